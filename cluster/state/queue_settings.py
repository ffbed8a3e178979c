"""The settings of a queue, as they stand in the log and in the state.

They are part of the log's format, as the operations are: a field is only ever added at the end,
with a default.
"""

from __future__ import annotations

from typing import Final

import msgspec

ACTIVE, PAUSED, DRAINING = QUEUE_STATES = ("active", "paused", "draining")
"""Whether a queue hands anything out, and whether it takes new jobs: a paused one does only the
latter, a draining one only the former."""


class RateLimit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At most `executions` leases in any `per_ms`, by log-time, and `burst` at a time.

    In the long run; after a pause up to `burst` are granted at once (see `queues`).
    """

    executions: int
    per_ms: int
    burst: int


class QueueSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What bounds the leases of one queue; 0, or None: nothing.

    `max_concurrency` counts the leases that are held at a time, `max_concurrency_per_key` those
    of jobs that have the same `Options.concurrency_key`.
    """

    state: str = ACTIVE
    max_concurrency: int = 0
    max_concurrency_per_key: int = 0
    rate_limit: RateLimit | None = None


DEFAULT_QUEUE_SETTINGS: Final = QueueSettings()
"""What most queues have: nothing is kept of them."""


class QueueChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New parts of a queue's settings; "", -1 or None for those that stay.

    A `rate_limit` of no executions takes the limit away.
    """

    state: str = ""
    max_concurrency: int = -1
    max_concurrency_per_key: int = -1
    rate_limit: RateLimit | None = None

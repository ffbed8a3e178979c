"""How long an attempt may take: ended here in time for its end to be told.

The cluster ends an attempt at the job's `timeout_ms`, counted from its claim, and may give the
execution to another worker at once. So a runner ends its attempt earlier by what it needs to
end it and to report why: then no two attempts run at the same time, and the report counts.
"""

from __future__ import annotations

from typing import NamedTuple

REPORT_MS = 1_000
"""Time for a report to be answered."""
_PART = 5
"""Of a short `timeout_ms`, at most this part of it is set aside."""


class Limits(NamedTuple):
    """`run_ms`: after so long the attempt is ended (None: never). `grace_ms`: to end by itself."""

    run_ms: int | None
    grace_ms: int


def limits(timeout_ms: int, own_ms: int | None, grace_ms: int) -> Limits:
    """Set the limits of an attempt.

    `timeout_ms` is the job's (0: none), `own_ms` the runner's own (None: none), `grace_ms` how
    long the runner waits between asking the attempt to end and ending it.
    """
    if timeout_ms == 0:
        return Limits(own_ms, grace_ms)
    reserve_ms = min(grace_ms + REPORT_MS, timeout_ms // _PART)
    run_ms = timeout_ms - reserve_ms
    if own_ms is not None and own_ms <= run_ms:
        return Limits(own_ms, min(grace_ms, timeout_ms - own_ms))
    return Limits(run_ms, min(grace_ms, max(reserve_ms - REPORT_MS, reserve_ms // 2)))

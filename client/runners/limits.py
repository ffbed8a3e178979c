"""How long an attempt may take: ended here in time for its end to be told.

The cluster ends an attempt at the job's `timeout_ms`, counted from its claim, and may give the
execution to another worker at once. So a runner ends its attempt earlier by what it needs to
end it and to report why: then no two attempts run at the same time, and the report counts.
"""

from __future__ import annotations

from typing import NamedTuple

REPORT_MS = 1_000
"""Time for a report to be answered; of a short `timeout_ms`, a tenth."""
_PART = 5
"""Of a short `timeout_ms`, at most this part of it is set aside for ending and reporting."""


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
    run_ms = timeout_ms - min(grace_ms + REPORT_MS, timeout_ms // _PART)
    if own_ms is not None:
        run_ms = min(own_ms, run_ms)
    over_ms = timeout_ms - min(REPORT_MS, timeout_ms // (2 * _PART))
    return Limits(run_ms, min(grace_ms, over_ms - run_ms))

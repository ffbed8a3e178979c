"""When an execution expires: no attempt of it begins then or later.

What would be due then or later is skipped at once, so whatever is scheduled is due before it
expires. What is due and gets no attempt in time is skipped by the leader, whose timer is
derived from this.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.records import Execution, Origin, origin_of
from timeball.cluster.state.usual import NO_OPTIONS

EXPIRED: Final = "expired"
"""The reason of an execution that was skipped for this."""
NEVER_MS: Final = 0


def expires_ms(execution: Execution) -> int:
    """When an execution expires, epoch milliseconds; `NEVER_MS` for most."""
    options = execution.job.options
    if options is NO_OPTIONS:
        return NEVER_MS
    at_ms, after_ms = options.expires_ms, options.expires_after_ms
    # A backfill is asked for when its nominal time is long over.
    if after_ms and origin_of(execution) is not Origin.BACKFILL:
        by_ms = execution.nominal_ms + after_ms
        return min(at_ms, by_ms) if at_ms else by_ms
    return at_ms


def expires_by(execution: Execution, instant_ms: int) -> bool:
    """Whether no attempt of an execution may begin at that instant."""
    return NEVER_MS < expires_ms(execution) <= instant_ms

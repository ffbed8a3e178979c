"""The overlap rule: what a recurring job's occurrences do when they come due together.

An occurrence is active from its due time until it ends, retries included. Those of a job
stand in line: what is leased first, then what began before and waits for its next attempt,
then by due time. Unless the rule is `allow`, only the first in line may be leased.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.operations import ALLOW
from timeball.cluster.state.records import Execution, ExecutionState, Job

_SCHEDULED: Final = ExecutionState.SCHEDULED


def waits(execution: Execution) -> bool:
    """Whether the rule holds a scheduled occurrence back: another of its job goes first."""
    recurrence = execution.job.recurrence
    if recurrence is None or len(recurrence.live) < 2 or recurrence.timetable.overlap == ALLOW:
        return False
    place = place_in_line(execution)
    return any(place_in_line(other) < place for other in recurrence.live.values())


def first_in_line(job: Job) -> Execution | None:
    """Which occurrence goes first, where they go one at a time; None if there is none."""
    recurrence = job.recurrence
    if recurrence is None or not recurrence.live or recurrence.timetable.overlap == ALLOW:
        return None
    return min(recurrence.live.values(), key=place_in_line)


def place_in_line(execution: Execution) -> tuple[int, int, int, int]:
    """Where an execution stands in line; no two of a job stand at the same place."""
    began = 1 if execution.token else 2
    rank = began if execution.state is _SCHEDULED else 0
    return rank, execution.due_ms, execution.sequence, execution.nominal_ms

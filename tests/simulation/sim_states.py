"""What must hold of timetables in the state of every node, after each entry that it applies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import NUMBERED_PER_ENTRY
from timeball.cluster.state.records import Execution, ExecutionState, Job, Origin, origin_of

MAY_WAIT = {"skip": 0, "buffer_one": 1, "cancel_running": 1}
"""How many occurrences of a job may wait for one that is active, by its overlap rule."""


def complaints(state: StateMachine, index: int, touched: list[Any]) -> Iterator[str]:
    """What is not as it must be; `touched` are the records that the entry at `index` was about."""
    yield from _leased_at_a_time(state, index, touched)
    for record in touched:
        if isinstance(record, Execution) and _made_in_a_pause(state, record):
            yield (
                f"pause: {record.job.id}-{record.nominal_ms}: due at {record.due_ms}, though its"
                f" timetable is paused at {state.log_time_ms}"
            )
        elif isinstance(record, Job):
            waiting = _waiting(state, record)
            if waiting:
                yield f"overlap: {record.id}: {waiting} wait under {record.timetable.overlap}"


def _leased_at_a_time(state: StateMachine, index: int, touched: list[Any]) -> Iterator[str]:
    """Jobs two of whose executions are leased, the second of them by this entry.

    A rule that is edited ends no lease, so it is not judged in the entry of an edit.
    """
    held: dict[int, list[Execution]] = defaultdict(list)
    for execution in state.leased.values():
        timetable = execution.job.timetable
        if timetable is not None and timetable.overlap != "allow":
            held[execution.job.id].append(execution)
    for job_id, leased in held.items():
        newest = max(execution.token for execution in leased)
        job = leased[0].job
        edited = job.version > 1 and job in touched
        if len(leased) > 1 and newest // NUMBERED_PER_ENTRY == index and not edited:
            nominals = sorted(execution.nominal_ms for execution in leased)
            yield f"overlap: {job_id}: {nominals} are leased under {job.timetable.overlap}"


def _made_in_a_pause(state: StateMachine, execution: Execution) -> bool:
    """Whether a paused timetable holds an occurrence ahead that nobody else asked for."""
    recurrence = execution.job.recurrence
    return (
        recurrence is not None
        and recurrence.paused_ms > 0
        and execution.state is ExecutionState.SCHEDULED
        and not execution.token
        and execution.due_ms > state.log_time_ms
        and origin_of(execution) is Origin.TIMETABLE
        and execution.nominal_ms in recurrence.live
    )


def _waiting(state: StateMachine, job: Job) -> list[int]:
    """The nominal times that wait behind another one of their job, if they are too many.

    Not counted is what a backfill made, and what the timetable has not come to yet. Of a job whose
    rule may have been another before, or that has a dead letter replayed, nothing can be said.
    """
    recurrence = job.recurrence
    if recurrence is None or job.version > 1 or recurrence.timetable.overlap not in MAY_WAIT:
        return []
    live = [e for e in recurrence.live.values() if e.due_ms <= state.log_time_ms or e.token]
    if any(len(e.attempts or ()) != e.attempts_used for e in live):
        return []
    begun = [e for e in live if e.token]
    unbegun = sorted((e for e in live if not e.token), key=lambda e: (e.due_ms, e.sequence))
    new = [
        e.nominal_ms
        for e in unbegun
        if origin_of(e) is Origin.TRIGGER
        or (origin_of(e) is Origin.TIMETABLE and e.nominal_ms < recurrence.planned_ms)
    ]
    goes_first = not begun and unbegun[:1] and unbegun[0].nominal_ms in new
    waiting = len(new) - bool(goes_first)
    return new if waiting > MAY_WAIT[recurrence.timetable.overlap] else []

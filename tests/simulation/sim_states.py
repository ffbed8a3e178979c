"""What must hold of timetables in the state of every node, after each entry that it applies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.records import Execution, ExecutionState, Origin, origin_of


def complaints(state: StateMachine, touched: Iterable[Any]) -> Iterator[str]:
    """What is not as it must be; `touched` are the records that the entry was about."""
    held: dict[int, int] = {}
    for execution in state.leased.values():
        timetable = execution.job.timetable
        if timetable is None or timetable.overlap == "allow":
            continue
        other = held.setdefault(execution.job.id, execution.nominal_ms)
        if other != execution.nominal_ms:
            yield (
                f"overlap: {execution.job.id}: {other} and {execution.nominal_ms} are leased at"
                f" a time under {timetable.overlap}"
            )
    for record in touched:
        if isinstance(record, Execution) and _made_in_a_pause(state, record):
            yield (
                f"pause: {record.job.id}-{record.nominal_ms}: due at {record.due_ms}, though its"
                f" timetable is paused at {state.log_time_ms}"
            )


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

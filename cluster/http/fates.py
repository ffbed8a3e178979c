"""What became of a recurring job's nominal times, and which come next, as people see it.

The past is in two places: executions that are kept tell of themselves, and the job's ledger of
the times that hold none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import chain
from typing import Literal

from timeball.client import messages
from timeball.cluster.dispatch.fires import Fire, explain_fires
from timeball.cluster.http.instants import render_instant
from timeball.cluster.http.schedule_views import to_come
from timeball.cluster.http.views import execution_state
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.ledger import fate_of
from timeball.cluster.state.operations import Fate
from timeball.cluster.state.records import (
    Execution,
    ExecutionState,
    FateKind,
    Job,
    Origin,
    Recurrence,
    origin_of,
)

FateName = Literal["fired", "coalesced", "skipped", "missed", "planned", "triggered", "backfilled"]
_FATE_NAMES: dict[FateKind, FateName] = {
    FateKind.COALESCED: "coalesced",
    FateKind.SKIPPED: "skipped",
    FateKind.MISSED: "missed",
    FateKind.FIRED: "fired",
}
_ASKED: dict[Origin, FateName] = {
    Origin.TRIGGER: "triggered",
    Origin.BACKFILL: "backfilled",
}


def past_fates(
    recurrence: Recurrence, executions: Iterable[Execution], limit: int, now_ms: int
) -> list[messages.FateView]:
    """The latest `limit` fates, newest first; one that is planned is the newest of all."""
    told: Iterable[Fate | Execution] = chain(recurrence.ledger, executions)
    return [
        _fate_view(one) if isinstance(one, Fate) else _execution_fate(one, now_ms)
        for one in heapq.nlargest(limit, told, key=_latest_ms)
    ]


def _latest_ms(one: Fate | Execution) -> int:
    return one.last_ms if isinstance(one, Fate) else one.nominal_ms


def _fate_view(fate: Fate) -> messages.FateView:
    return messages.FateView(
        first_at=render_instant(fate.first_ms),
        last_at=render_instant(fate.last_ms),
        count=fate.count,
        fate=_FATE_NAMES[FateKind(fate.kind)],
        reason=fate.reason,
        execution_id=None,
        state=None,
    )


def _execution_fate(execution: Execution, now_ms: int) -> messages.FateView:
    nominal_at = render_instant(execution.nominal_ms)
    identity = messages.encode_execution_id(execution.job.id, execution.nominal_ms)
    state = execution_state(execution)
    fate, reason = _ASKED.get(origin_of(execution)), execution.reason
    if execution.state is ExecutionState.SKIPPED:
        told = fate_of(execution)
        fate, reason = fate or _FATE_NAMES[FateKind(told.kind)], told.reason
    elif fate is None:
        waits = execution.state is ExecutionState.SCHEDULED and not execution.attempts_used
        fate = "planned" if waits and execution.due_ms > now_ms else "fired"
    return messages.FateView(nominal_at, nominal_at, 1, fate, reason, identity, state)


def coming_fires(job: Job, recurrence: Recurrence, now_ms: int, count: int) -> list[Fire]:
    """The next `count` fires of a job's timetable, and what is excluded between them.

    None while it stands still. Raises `TimetableError`.
    """
    if not recurrence.moves:
        return []
    after_ms, count = to_come(job, recurrence, now_ms, count)
    if not count:
        return []
    offset_ms = jitter_offset(job.id, recurrence.timetable.jitter_ms)
    return explain_fires(recurrence.timetable, after_ms, count, offset_ms)


def fire_view(fire: Fire) -> messages.FireView:
    """A time to come; parts of the timetable are named as on the wire."""
    why = [
        text.replace("rules[", "schedules[").replace("exclusions[", "exclude[") for text in fire.why
    ]
    return messages.FireView(
        nominal_at=render_instant(fire.nominal_ms),
        local=fire.local,
        time_zone=fire.time_zone,
        due_at=render_instant(min(fire.due_ms, messages.MAX_INSTANT_MS)),
        excluded=fire.excluded,
        why=why,
    )

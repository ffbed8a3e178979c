"""The operations on timetables: moving on, pausing, parking, and occurrences beside them."""

from __future__ import annotations

from typing import Final

from timeball.cluster.state import budget, limits
from timeball.cluster.state.expiry import expires_by
from timeball.cluster.state.happenings import Happened
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.ledger import write_down
from timeball.cluster.state.memory import Request
from timeball.cluster.state.operations import (
    ALLOW,
    BUFFER_ONE,
    SKIP,
    Advance,
    AdvanceTimetables,
    BackfillJob,
    Fate,
    ParkTimetables,
    PauseJob,
    ResumeJob,
    TriggerJob,
)
from timeball.cluster.state.overlap import place_in_line
from timeball.cluster.state.records import (
    Execution,
    ExecutionState,
    FateKind,
    Job,
    JobState,
    Origin,
    Recurrence,
    origin_of,
)
from timeball.cluster.state.store import Store
from timeball.cluster.state.transitions import Event
from timeball.cluster.state.verdicts import (
    Backfilled,
    Changed,
    ChangeStatus,
    Created,
    CreateStatus,
    Moved,
    Triggered,
    TriggerStatus,
)

OVERLAP: Final = "overlap"
SUPERSEDED: Final = "superseded"
"""Why the overlap rule left an occurrence out: another was active, or a newer one came due."""
FAILURE: Final = "failure"
"""The reason of a pause by `pause_on_failure`."""
_SCHEDULED: Final = ExecutionState.SCHEDULED
_KINDS: Final = frozenset({FateKind.COALESCED, FateKind.SKIPPED, FateKind.MISSED})
"""What a planner may say of nominal times."""


def advance_timetables(store: Store, operation: AdvanceTimetables) -> list[Moved]:
    """Move each timetable on, if it still stands where the planner saw it."""
    return [_advance(store, item) for item in operation.items]


def _advance(store: Store, item: Advance) -> Moved:
    job = store.job_to_change(item.job)
    recurrence = None if job is None else job.recurrence
    if job is None or recurrence is None or not recurrence.moves:
        return Moved.STALE
    if (item.version, item.after_ms) != (job.version, recurrence.planned_ms):
        return Moved.STALE
    if not _is_sound(item):
        return Moved.UNSOUND
    if item.caught_up > budget.room(store, store.log_time_ms):
        return Moved.NO_BUDGET
    budget.spend(store, item.caught_up)
    store.counters.caught_up += item.caught_up
    store.unplan(job)
    before = (item.after_ms, *item.nominals[:-1], *[fate.last_ms for fate in item.fates])
    recurrence.passed_ms = min(max(before), item.planned_ms)
    recurrence.planned_ms = item.planned_ms
    store.plan(job)
    came_due = _make(store, job, item)
    for fate in item.fates:
        kind = FateKind(fate.kind)
        store.count_fates(recurrence, kind, fate.count)
        store.happened.of_fate(job, kind, fate.count, fate.first_ms, fate.last_ms, fate.reason)
        write_down(recurrence, fate)
    for execution in came_due:
        settle(store, execution)
    store.touched.append(job)
    if item.ended:
        store.end_timetable(job)
        store.complete_if_idle(job)
    return Moved.MOVED


def _make(store: Store, job: Job, item: Advance) -> list[Execution]:
    """Make the occurrences of a step; which have come due, with the one that was pending."""
    recurrence, executions = job.recurrence, job.executions
    assert recurrence is not None
    assert isinstance(executions, dict)
    made: list[Execution] = []
    pending = executions.get(item.after_ms)
    if pending is not None and pending.state is _SCHEDULED and not pending.token:
        if item.pending is not None:
            store.skip(pending, FateKind(item.pending.kind), item.pending.reason)
            recurrence.made -= 1
        else:
            made.append(pending)
            if item.fates or item.caught_up:
                store.touched.append(pending)  # it may have been held back till now
    offset_ms = jitter_offset(job.id, recurrence.timetable.jitter_ms)
    for nominal_ms in item.nominals:
        recurrence.made += 1
        recurrence.fired += 1
        present = executions.get(nominal_ms)
        if present is None:
            due_ms = min(nominal_ms + offset_ms, limits.MAX_TIME_MS)
            sequence = store.number_occurrence()
            made.append(store.add_execution(job, nominal_ms, due_ms, sequence))
        elif origin_of(present) is Origin.TRIGGER:  # at this very instant, as it happens
            del recurrence.asked[nominal_ms]
    return [execution for execution in made if execution.due_ms <= store.log_time_ms]


def _is_sound(item: Advance) -> bool:
    if len(item.nominals) > limits.MAX_OCCURRENCES_PER_ADVANCE or len(item.fates) > 8:
        return False
    latest_ms = item.after_ms
    for nominal_ms in item.nominals:
        if nominal_ms <= latest_ms:
            return False
        latest_ms = nominal_ms
    fates = item.fates if item.pending is None else (*item.fates, item.pending)
    # A step that moves nothing could be applied twice: its condition would hold again.
    moves = item.planned_ms > item.after_ms or item.ended
    return (
        moves
        and latest_ms <= item.planned_ms <= limits.MAX_TIME_MS
        and 0 <= item.caught_up <= len(item.nominals) + 1
        and all(_fate_is_sound(fate) for fate in fates)
    )


def _fate_is_sound(fate: Fate) -> bool:
    return (
        fate.kind in _KINDS
        and 0 < fate.count <= limits.MAX_SETTING
        and 0 <= fate.first_ms <= fate.last_ms <= limits.MAX_TIME_MS
        and len(fate.reason) <= limits.MAX_REASON_CHARS
    )


def settle(store: Store, execution: Execution) -> None:
    """Apply the overlap rule to an occurrence that has come due, if it has not been leased."""
    recurrence = execution.job.recurrence
    assert recurrence is not None
    rule = recurrence.timetable.overlap
    if rule == ALLOW or execution.state is not _SCHEDULED or execution.token:
        return
    skip_expired_of(store, recurrence)  # these are in nobody's way
    if execution.state is not _SCHEDULED:
        return
    place = place_in_line(execution)
    line = sorted(recurrence.live.values(), key=place_in_line)
    ahead = [other for other in line if place_in_line(other) < place]
    if not ahead:
        return
    if rule == SKIP:
        store.skip(execution, FateKind.SKIPPED, OVERLAP)
    elif rule == BUFFER_ONE:
        if any(origin_of(other) is not Origin.BACKFILL for other in ahead[1:]):
            store.skip(execution, FateKind.SKIPPED, OVERLAP)
    else:
        for other in ahead:
            _give_way(store, other)


def skip_expired_of(store: Store, recurrence: Recurrence) -> None:
    """Skip the occurrences of a job that have expired, or will have when they are due."""
    for _, execution in sorted(recurrence.live.items()):
        at_ms = max(execution.due_ms, store.log_time_ms)
        if execution.state is _SCHEDULED and expires_by(execution, at_ms):
            store.lapse(execution, Event.SKIP)


def _give_way(store: Store, execution: Execution) -> None:
    """End an occurrence, or have its worker end it, for one that has come due after it."""
    if origin_of(execution) is Origin.BACKFILL:
        return  # somebody asked for each of these
    if execution.state is not _SCHEDULED:
        if not execution.cancel_requested:
            store.will_change(execution)
            execution.cancel_requested = True
            store.happened.of_execution(execution, Happened.CANCEL_REQUESTED, why=SUPERSEDED)
            store.touched.append(execution)
    elif execution.token:
        store.will_change(execution)
        execution.reason = SUPERSEDED
        store.finish(execution, Event.CANCEL, ExecutionState.CANCELLED)
        store.counters.cancelled += 1
    else:
        store.skip(execution, FateKind.SKIPPED, SUPERSEDED)


def stand_at_present(store: Store, job: Job, recurrence: Recurrence, offset_ms: int) -> None:
    """Take back the occurrence that is not due yet, and let the timetable stand at log-time.

    Times are due `offset_ms` later from now on. No nominal time that had its turn comes
    again, and the one taken back may.
    """
    assert isinstance(job.executions, dict)
    pending = job.executions.get(recurrence.planned_ms)
    if (
        pending is not None
        and pending.state is _SCHEDULED
        and not pending.token
        and pending.due_ms > store.log_time_ms
        and origin_of(pending) is Origin.TIMETABLE
    ):
        store.withdraw(pending)
        before_ms = min(pending.nominal_ms - 1, store.log_time_ms - offset_ms)
        recurrence.planned_ms = max(recurrence.passed_ms, before_ms)


def _touch_unbegun(store: Store, recurrence: Recurrence) -> None:
    """What is scheduled and was never leased may be held back, or go, for another reason now."""
    for execution in recurrence.live.values():
        if execution.state is _SCHEDULED and not execution.token:
            store.touched.append(execution)


def pause_job(store: Store, operation: PauseJob) -> Changed:
    """Make no further occurrences."""
    job = store.job_to_change(operation.job)
    found = find_timetable(job)
    if isinstance(found, ChangeStatus):
        return Changed(found)
    assert job is not None
    if found.paused_ms:
        return Changed(ChangeStatus.UNCHANGED, job.id, job.version)
    _pause(store, job, found, operation.reason[: limits.MAX_REASON_CHARS])
    return Changed(ChangeStatus.CHANGED, job.id, job.version)


def _pause(store: Store, job: Job, recurrence: Recurrence, reason: str) -> None:
    store.unplan(job)
    offset_ms = jitter_offset(job.id, recurrence.timetable.jitter_ms)
    stand_at_present(store, job, recurrence, offset_ms)
    recurrence.paused_ms = max(store.log_time_ms, 1)
    recurrence.pause_reason = reason
    store.plan(job)
    store.touched.append(job)
    store.happened.of_job(job, Happened.JOB_PAUSED, reason)
    _touch_unbegun(store, recurrence)


def died(store: Store, execution: Execution) -> None:
    """An execution has gone to the dead letters: its job may want to be paused for it."""
    job = execution.job
    recurrence = job.recurrence
    if recurrence is not None and recurrence.timetable.pause_on_failure and recurrence.moves:
        _pause(store, job, recurrence, FAILURE)


def resume_job(store: Store, operation: ResumeJob) -> Changed:
    """Let a timetable go on."""
    job = store.job_to_change(operation.job)
    found = find_timetable(job)
    if isinstance(found, ChangeStatus):
        return Changed(found)
    assert job is not None
    if found.moves:
        return Changed(ChangeStatus.UNCHANGED, job.id, job.version)
    if found.paused_ms and not operation.catch_up:
        offset_ms = jitter_offset(job.id, found.timetable.jitter_ms)
        found.skip_to_ms = max(store.log_time_ms - offset_ms, 0)
    store.unplan(job)
    found.paused_ms = 0
    found.pause_reason = found.parked = ""
    store.plan(job)
    store.touched.append(job)
    store.happened.of_job(job, Happened.JOB_RESUMED)
    return Changed(ChangeStatus.CHANGED, job.id, job.version)


def find_timetable(job: Job | None) -> Recurrence | ChangeStatus:
    """The timetable of a job, if it can still be changed; else why not."""
    if job is None:
        return ChangeStatus.UNKNOWN
    if job.recurrence is None:
        return ChangeStatus.NOT_RECURRING
    return ChangeStatus.ENDED if job.recurrence.ended else job.recurrence


def park_timetables(store: Store, operation: ParkTimetables) -> list[bool]:
    """Let timetables that fail stand still."""
    return [_park(store, *item) for item in operation.items]


def _park(store: Store, job_id: int, version: int, why: str) -> bool:
    job = store.job_to_change(job_id)
    recurrence = None if job is None else job.recurrence
    if job is None or recurrence is None or job.version != version or not recurrence.moves:
        return False
    store.unplan(job)
    recurrence.parked = why[: limits.MAX_REASON_CHARS] or "unknown"
    store.plan(job)
    store.touched.append(job)
    store.happened.of_job(job, Happened.JOB_PARKED, recurrence.parked)
    _touch_unbegun(store, recurrence)
    return True


def trigger_job(store: Store, operation: TriggerJob) -> Triggered:
    """Make one occurrence now, beside the timetable."""
    request_id = operation.request_id
    if request_id:
        known = store.requests.find(request_id, store.log_time_ms, store.settings.request_memory_ms)
        if known is not None:
            first = known.answer()[0]
            if not known.of_trigger or first.job != operation.job:
                return Triggered(TriggerStatus.KEY_REUSED)
            store.counters.duplicates += 1
            return Triggered(TriggerStatus.DUPLICATE, first.nominal_ms)
    job = store.job_to_change(operation.job)
    if job is None or len(request_id) > limits.MAX_KEY_CHARS:
        return Triggered(TriggerStatus.UNKNOWN)
    recurrence = job.recurrence
    if recurrence is None:
        return Triggered(TriggerStatus.NOT_RECURRING)
    if job.state is not JobState.ACTIVE:
        return Triggered(TriggerStatus.ENDED)
    if len(store.pending) >= store.settings.max_pending:
        return Triggered(TriggerStatus.FULL)
    assert isinstance(job.executions, dict)
    nominal_ms = store.log_time_ms
    while nominal_ms in job.executions:
        nominal_ms += 1
    execution = _ask(store, job, recurrence, nominal_ms, Origin.TRIGGER)
    settle(store, execution)
    if request_id:
        answer = [Created(CreateStatus.CREATED, job.id, nominal_ms)]
        store.requests.add(Request(request_id, store.log_time_ms, answer, True))
    skipped = execution.state is ExecutionState.SKIPPED
    status = TriggerStatus.SKIPPED if skipped else TriggerStatus.CREATED
    return Triggered(status, nominal_ms)


def backfill_job(store: Store, operation: BackfillJob) -> Backfilled:
    """Make occurrences of the past that are not there."""
    job = store.job_to_change(operation.job)
    recurrence = None if job is None else job.recurrence
    if job is None:
        return Backfilled(ChangeStatus.UNKNOWN)
    if recurrence is None:
        return Backfilled(ChangeStatus.NOT_RECURRING)
    if job.state is not JobState.ACTIVE:
        return Backfilled(ChangeStatus.ENDED)
    if job.version != operation.version:
        return Backfilled(ChangeStatus.OTHER_VERSION)
    nominals = operation.nominals
    if len(nominals) > limits.MAX_OCCURRENCES_PER_ADVANCE or not all(
        0 <= nominal_ms <= store.log_time_ms for nominal_ms in nominals
    ):
        return Backfilled(ChangeStatus.INVALID)
    if len(store.pending) + len(nominals) > store.settings.max_pending:
        return Backfilled(ChangeStatus.FULL)
    assert isinstance(job.executions, dict)
    created: list[int] = []
    existing: list[int] = []
    for nominal_ms in nominals:
        if nominal_ms in job.executions:
            existing.append(nominal_ms)
        else:
            _ask(store, job, recurrence, nominal_ms, Origin.BACKFILL)
            created.append(nominal_ms)
    store.put_in_order(job)  # once: a sort for each would stall every node
    return Backfilled(ChangeStatus.CHANGED, created, existing)


def _ask(
    store: Store, job: Job, recurrence: Recurrence, nominal_ms: int, origin: Origin
) -> Execution:
    """Make an occurrence that the timetable does not, due at once."""
    recurrence.asked[nominal_ms] = origin
    due_ms = max(nominal_ms, store.log_time_ms)
    sequence = store.number_occurrence()
    in_order = origin is not Origin.BACKFILL
    return store.add_execution(job, nominal_ms, due_ms, sequence, in_order=in_order)

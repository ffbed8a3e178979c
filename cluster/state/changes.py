"""The operations that give a job another definition: update, and put by name.

What began under a definition ends under it. What is still to begin follows the new one; the
occurrence that is not due yet is taken back, and planned anew by the new timetable.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state import limits
from timeball.cluster.state.expiry import expires_by
from timeball.cluster.state.happenings import Happened
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.jobs import create, shared_policy
from timeball.cluster.state.operations import Change, NewJob, Options, PutJob, Timetable, UpdateJob
from timeball.cluster.state.records import (
    Execution,
    ExecutionState,
    Job,
    JobState,
    Recurrence,
)
from timeball.cluster.state.soundness import is_sound_options, is_sound_timetable
from timeball.cluster.state.store import Store
from timeball.cluster.state.timetables import find_timetable, skip_expired_of, stand_at_present
from timeball.cluster.state.transitions import TERMINAL, Event
from timeball.cluster.state.usual import DEFAULT_POLICY, NO_OPTIONS
from timeball.cluster.state.values import Definition
from timeball.cluster.state.verdicts import Changed, ChangeStatus, CreateStatus
from timeball.wheel import PRIORITIES

_SCHEDULED: Final = ExecutionState.SCHEDULED
_REFUSALS: Final = {
    CreateStatus.FULL: ChangeStatus.FULL,
    CreateStatus.TOO_MANY_REQUIREMENTS: ChangeStatus.TOO_MANY_REQUIREMENTS,
    CreateStatus.DRAINING: ChangeStatus.DRAINING,
    CreateStatus.INVALID: ChangeStatus.INVALID,
}
"""Why a put makes no new job; it has no key that could be known."""


def update_job(store: Store, operation: UpdateJob) -> Changed:
    """Change what the operation names of a job's definition."""
    job = store.job_to_change(operation.job)
    if job is None:
        return Changed(ChangeStatus.UNKNOWN)
    if operation.version and operation.version != job.version:
        return Changed(ChangeStatus.OTHER_VERSION, job.id, job.version)
    return _change(store, job, operation.change)


def put_job(store: Store, operation: PutJob) -> Changed:
    """Give the job of this name this definition, or create it."""
    name, new = operation.name, operation.job
    keyed = new.idempotency_key or new.key_rule is not None
    if not 0 < len(name) <= limits.MAX_QUEUE_CHARS or new.timetable is None or keyed:
        return Changed(ChangeStatus.INVALID)
    named = store.names.get(name)
    if named is None:
        return _create(store, new, name)
    job = store.job_to_change(named.id)
    assert job is named
    if operation.only_new:
        return Changed(ChangeStatus.OTHER_VERSION, job.id, job.version)
    options = new.options or NO_OPTIONS
    if (new.queue, new.partition_key, options.concurrency_key) != (
        job.queue,
        job.partition_key,
        job.options.concurrency_key,
    ):
        return Changed(ChangeStatus.FIXED, job.id, job.version)
    change = Change(
        new.payload,
        new.retry or DEFAULT_POLICY,
        new.priority,
        new.timeout_ms,
        new.timetable,
        requires=options.requires,
        tags=options.tags,
        expires_ms=options.expires_ms,
        expires_after_ms=options.expires_after_ms,
    )
    return _change(store, job, change)


def _create(store: Store, new: NewJob, name: str) -> Changed:
    created = create(store, new, name)
    if created.status is CreateStatus.CREATED:
        return Changed(ChangeStatus.CREATED, created.job, 1)
    return Changed(_REFUSALS[created.status])


def _change(store: Store, job: Job, change: Change) -> Changed:
    definition, options = _definition(store, job, change), _options(job, change)
    if definition is None or options is None:
        return Changed(ChangeStatus.INVALID, job.id, job.version)
    requires = options.requires
    if requires != job.options.requires and not store.queues[job.queue].has_room_for(requires):
        return Changed(ChangeStatus.TOO_MANY_REQUIREMENTS, job.id, job.version)
    if job.recurrence is None:
        status = _change_once(store, job, change, definition, options)
    else:
        status = _change_recurring(store, job, change, definition, options)
    if status is ChangeStatus.CHANGED:
        store.happened.of_job(job, Happened.JOB_UPDATED)
    return Changed(status, job.id, job.version)


def _definition(store: Store, job: Job, change: Change) -> Definition | None:
    """What the job is to run with; None if that is beyond the limits."""
    retry = job.retry if change.retry is None else shared_policy(store, change.retry)
    payload = job.payload if change.payload is None else change.payload
    priority = job.priority if change.priority < 0 else change.priority
    timeout_ms = job.timeout_ms if change.timeout_ms < 0 else change.timeout_ms
    if (
        retry is None
        or len(payload) > limits.MAX_PAYLOAD_BYTES
        or priority >= PRIORITIES
        or timeout_ms > limits.MAX_DURATION_MS
        or not 0 <= change.first_ms <= limits.MAX_TIME_MS
        or change.delay_ms > limits.MAX_DURATION_MS
        or (change.timetable is not None and not is_sound_timetable(change.timetable))
    ):
        return None
    return Definition(job.version + 1, payload, retry, priority, timeout_ms)


def _options(job: Job, change: Change) -> Options | None:
    """What the job is to ask for; None if that is beyond the limits."""
    before = job.options
    options = Options(
        before.concurrency_key,
        before.requires if change.requires is None else change.requires,
        before.tags if change.tags is None else change.tags,
        before.expires_ms if change.expires_ms < 0 else change.expires_ms,
        before.expires_after_ms if change.expires_after_ms < 0 else change.expires_after_ms,
    )
    if options == before:
        return before
    if options == NO_OPTIONS:
        return NO_OPTIONS
    return options if is_sound_options(options) else None


def _change_once(
    store: Store, job: Job, change: Change, definition: Definition, options: Options
) -> ChangeStatus:
    execution = job.executions
    assert isinstance(execution, Execution)
    if change.timetable is not None:
        return ChangeStatus.NOT_RECURRING
    if job.state is not JobState.ACTIVE:
        return ChangeStatus.ENDED
    if execution.state is not _SCHEDULED or execution.token:
        return ChangeStatus.BEGUN
    nominal_ms = change.first_ms or execution.nominal_ms
    if change.delay_ms >= 0:
        nominal_ms = min(store.log_time_ms + change.delay_ms, limits.MAX_TIME_MS)
    if (
        nominal_ms == execution.nominal_ms
        and options == job.options
        and not _differs(job, definition)
    ):
        return ChangeStatus.UNCHANGED
    store.will_change(execution)
    store.pending.discard(execution.due_ms, execution)
    before_ms = execution.nominal_ms
    if nominal_ms != before_ms:  # it is another execution now, by its identity
        store.happened.of_execution(execution, Happened.WITHDRAWN)
    execution.nominal_ms = execution.due_ms = nominal_ms
    store.pending.add(nominal_ms, execution)
    store.touched.append(execution)
    if nominal_ms != before_ms:
        store.happened.of_execution(execution, Happened.CREATED)
    _define(store, job, definition, options)
    if expires_by(execution, max(nominal_ms, store.log_time_ms)):
        store.lapse(execution, Event.SKIP)
    return ChangeStatus.CHANGED


def _change_recurring(
    store: Store, job: Job, change: Change, definition: Definition, options: Options
) -> ChangeStatus:
    recurrence = find_timetable(job)
    if isinstance(recurrence, ChangeStatus):
        return recurrence
    if change.first_ms or change.delay_ms >= 0:
        return ChangeStatus.RECURRING
    timetable = recurrence.timetable if change.timetable is None else change.timetable
    replanned = timetable != recurrence.timetable
    redefined = _differs(job, definition)
    if not (replanned or redefined or options != job.options or recurrence.parked):
        return ChangeStatus.UNCHANGED
    if redefined:
        _keep_what_began(store, job, recurrence, definition)
    _define(store, job, definition, options)
    store.unplan(job)
    if replanned:
        _replan(store, job, recurrence, timetable)
    recurrence.parked = ""
    store.plan(job)
    store.touched.append(job)
    if options is not NO_OPTIONS:
        skip_expired_of(store, recurrence)
    # Also what began and waits: another rule may let it go, or hold it back.
    store.touched.extend(
        [execution for execution in recurrence.live.values() if execution.state is _SCHEDULED]
    )
    return ChangeStatus.CHANGED


def _replan(store: Store, job: Job, recurrence: Recurrence, timetable: Timetable) -> None:
    stand_at_present(store, job, recurrence, jitter_offset(job.id, timetable.jitter_ms))
    recurrence.timetable = timetable


def _keep_what_began(
    store: Store, job: Job, recurrence: Recurrence, definition: Definition
) -> None:
    """Let executions that began keep their definition; the dead, too, which may be replayed."""
    before = Definition(job.version, job.payload, job.retry, job.priority, job.timeout_ms)
    assert isinstance(job.executions, dict)
    grown = len(definition.payload) - len(job.payload)
    for execution in job.executions.values():
        if execution.state is ExecutionState.DEAD or (
            execution.token and execution.state not in TERMINAL
        ):
            recurrence.begun.setdefault(execution.nominal_ms, before)
        elif execution.state in TERMINAL:
            # These count for the payload that their job has now.
            store.finished_bytes += grown


def _differs(job: Job, definition: Definition) -> bool:
    return (job.payload, job.retry, job.priority, job.timeout_ms) != (
        definition.payload,
        definition.retry,
        definition.priority,
        definition.timeout_ms,
    )


def _define(store: Store, job: Job, definition: Definition, options: Options) -> None:
    counts = store.queues[job.queue]
    counts.count_requirements(job.options.requires, -1)
    counts.count_requirements(options.requires, 1)
    job.version = definition.version
    job.payload = definition.payload
    job.retry = definition.retry
    job.priority = definition.priority
    job.timeout_ms = definition.timeout_ms
    job.options = options

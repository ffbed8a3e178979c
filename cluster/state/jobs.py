"""The operations on jobs: create, cancel, and moving timetables on."""

from __future__ import annotations

from timeball.cluster.state import limits
from timeball.cluster.state.memory import KeyRecord, RequestRecord
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CancelJobs,
    CreateJobs,
    NewJob,
    RetryPolicy,
)
from timeball.cluster.state.records import Execution, ExecutionState, Job, JobState, Recurrence
from timeball.cluster.state.store import NO_EXECUTIONS, Store
from timeball.cluster.state.transitions import Event
from timeball.cluster.state.verdicts import CancelStatus, Created, CreateStatus, JobsCreated
from timeball.wheel import PRIORITIES

_DEFAULT_POLICY = RetryPolicy()
_CREATED = CreateStatus.CREATED
_INVALID = Created(CreateStatus.INVALID, 0, 0)
_FULL = Created(CreateStatus.FULL, 0, 0)


def create_jobs(store: Store, operation: CreateJobs) -> JobsCreated:
    """Create each job, or answer with what its key or the whole request made before."""
    request_id = operation.request_id
    if not request_id:
        return JobsCreated([_create(store, new) for new in operation.jobs])
    if len(request_id) > limits.MAX_KEY_CHARS:
        return JobsCreated([_INVALID] * len(operation.jobs))
    window_ms = store.settings.request_memory_ms
    known = store.requests.find(request_id, store.log_time_ms, window_ms)
    if known is not None:
        store.counters.duplicates += len(known.answer)
        return JobsCreated(known.answer, repeated=True)
    answer = [_create(store, new) for new in operation.jobs]
    if any(created.job for created in answer):
        store.requests.add(RequestRecord(request_id, store.log_time_ms, answer))
    return JobsCreated(answer)


def _create(store: Store, new: NewJob) -> Created:
    policy = _policy(store, new.retry)
    if policy is None or not _within_limits(new):
        return _INVALID
    settings = store.settings
    key = new.idempotency_key
    if key:
        known = store.keys.find(key, store.log_time_ms, settings.idempotency_window_ms)
        if known is not None:
            if known.fingerprint != new.fingerprint:
                return Created(CreateStatus.KEY_REUSED, 0, 0)
            store.counters.duplicates += 1
            return Created(CreateStatus.DUPLICATE, known.job, known.nominal_ms)
    if len(store.pending) >= settings.max_pending or (
        new.queue not in store.queues and len(store.queues) >= limits.MAX_QUEUES
    ):
        return _FULL
    nominal_ms = new.first_ms or min(store.log_time_ms + new.delay_ms, limits.MAX_TIME_MS)
    job = _add_job(store, new, policy, nominal_ms)
    if key:
        store.keys.add(KeyRecord(key, job.created_ms, new.fingerprint, job.id, nominal_ms))
    return Created(_CREATED, job.id, nominal_ms)


def _add_job(store: Store, new: NewJob, policy: RetryPolicy, nominal_ms: int) -> Job:
    timetable = new.timetable
    job = Job(
        store.number_job(),
        new.queue,
        new.payload,
        store.log_time_ms,
        policy,
        new.priority,
        new.partition_key,
        new.timeout_ms,
        new.idempotency_key,
        NO_EXECUTIONS if timetable is None else {},
        None if timetable is None else Recurrence(timetable, nominal_ms),
    )
    store.add_job(job)
    store.add_execution(job, nominal_ms, job.id)
    if timetable is not None:
        store.touched.append(job)
    return job


def _policy(store: Store, retry: RetryPolicy | None) -> RetryPolicy | None:
    """The policy that a job is to hold, shared by all that have it; None if it is unsound."""
    if retry is None:
        return _DEFAULT_POLICY
    known = store.policies.get(retry)
    if known is None and _sound_policy(retry):
        known = store.share_policy(retry)
    return known


def _within_limits(new: NewJob) -> bool:
    return (
        0 < len(new.queue) <= limits.MAX_QUEUE_CHARS
        and len(new.payload) <= limits.MAX_PAYLOAD_BYTES
        and 0 <= new.first_ms <= limits.MAX_TIME_MS
        and 0 <= new.delay_ms <= limits.MAX_DURATION_MS
        and 0 <= new.timeout_ms <= limits.MAX_DURATION_MS
        and 0 <= new.priority < PRIORITIES
        # Most jobs have none of these.
        and (not new.partition_key or len(new.partition_key) <= limits.MAX_KEY_CHARS)
        and (not new.idempotency_key or len(new.idempotency_key) <= limits.MAX_KEY_CHARS)
        and (not new.fingerprint or len(new.fingerprint) <= limits.MAX_FINGERPRINT_BYTES)
    )


def _sound_policy(retry: RetryPolicy) -> bool:
    return (
        1 <= retry.max_attempts <= limits.MAX_ATTEMPTS
        and 0 <= retry.initial_ms <= limits.MAX_DURATION_MS
        and 1 <= retry.multiplier_pct <= limits.MAX_MULTIPLIER_PCT
        and 0 <= retry.max_ms <= limits.MAX_DURATION_MS
        and 0 <= retry.jitter_pct <= 100
    )


def cancel_jobs(store: Store, operation: CancelJobs) -> list[CancelStatus]:
    """Cancel each job; the order of the log decides against a claim."""
    return [_cancel(store, job_id) for job_id in operation.jobs]


def _cancel(store: Store, job_id: int) -> CancelStatus:
    job = store.job_to_change(job_id)
    if job is None:
        return CancelStatus.UNKNOWN
    if job.state is JobState.COMPLETED:
        return CancelStatus.FINISHED
    if job.state is JobState.ACTIVE:
        store.end_timetable(job)
        job.state = JobState.CANCELLED
        for execution in store.executions_of(job):
            store.will_change(execution)
            if execution.state is ExecutionState.SCHEDULED:
                store.finish(execution, Event.CANCEL, ExecutionState.CANCELLED)
                store.counters.cancelled += 1
            elif _held(execution):
                execution.cancel_requested = True
                store.touched.append(execution)
    return _cancel_status(store, job)


def _cancel_status(store: Store, job: Job) -> CancelStatus:
    executions = store.executions_of(job)
    if any(_held(execution) for execution in executions):
        return CancelStatus.REQUESTED
    if job.recurrence is None and executions[0].state is not ExecutionState.CANCELLED:
        return CancelStatus.FINISHED
    return CancelStatus.CANCELLED


def _held(execution: Execution) -> bool:
    return execution.state in (ExecutionState.LEASED, ExecutionState.RUNNING)


def advance_timetables(store: Store, operation: AdvanceTimetables) -> list[bool]:
    """Move each timetable on, if it still stands where the planner saw it."""
    return [_advance(store, item) for item in operation.items]


def _advance(store: Store, item: Advance) -> bool:
    job = store.job_to_change(item.job)
    recurrence = None if job is None else job.recurrence
    if job is None or recurrence is None or recurrence.ended:
        return False
    if not _advance_is_sound(recurrence, item):
        return False
    store.timetables.discard(recurrence.planned_ms, job)
    recurrence.planned_ms = item.planned_ms
    store.timetables.add(recurrence.planned_ms, job)
    recurrence.coalesced += item.coalesced
    recurrence.missed += item.missed
    store.counters.coalesced += item.coalesced
    store.counters.missed += item.missed
    for nominal_ms in item.nominals:
        store.add_execution(job, nominal_ms, store.number_occurrence())
    store.touched.append(job)
    if item.ended:
        store.end_timetable(job)
        store.complete_if_idle(job)
    return True


def _advance_is_sound(recurrence: Recurrence, item: Advance) -> bool:
    if item.after_ms != recurrence.planned_ms:
        return False
    if len(item.nominals) > limits.MAX_OCCURRENCES_PER_ADVANCE:
        return False
    latest_ms = item.after_ms
    for nominal_ms in item.nominals:
        if nominal_ms <= latest_ms:
            return False
        latest_ms = nominal_ms
    # A step that moves nothing could be applied twice: its condition would hold again.
    moves = item.planned_ms > item.after_ms or item.ended
    return (
        moves
        and latest_ms <= item.planned_ms <= limits.MAX_TIME_MS
        and 0 <= item.coalesced <= limits.MAX_SETTING
        and 0 <= item.missed <= limits.MAX_SETTING
    )

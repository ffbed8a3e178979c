"""The operations that begin and end jobs: create and cancel."""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec.structs import astuple

from timeball.cluster.state import limits
from timeball.cluster.state.happenings import Happened
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.keys import UNTIL_ENDED, Key, key_name, short_fingerprint
from timeball.cluster.state.memory import Request
from timeball.cluster.state.operations import (
    CancelJobs,
    CreateJobs,
    KeyRule,
    NewJob,
    Options,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.queues import is_draining
from timeball.cluster.state.records import Execution, ExecutionState, Job, JobState, Recurrence
from timeball.cluster.state.soundness import (
    is_sound_options,
    is_sound_policy,
    is_sound_rule,
    is_sound_timetable,
)
from timeball.cluster.state.store import NO_EXECUTIONS, Store
from timeball.cluster.state.transitions import Event
from timeball.cluster.state.usual import DEFAULT_POLICY, NO_OPTIONS, PLAIN_KEY
from timeball.cluster.state.verdicts import CancelStatus, Created, CreateStatus, JobsCreated
from timeball.wheel import PRIORITIES

_CREATED: Final = CreateStatus.CREATED
_INVALID: Final = Created(CreateStatus.INVALID, 0, 0)
_FULL: Final = Created(CreateStatus.FULL, 0, 0)
_DRAINING: Final = Created(CreateStatus.DRAINING, 0, 0)
_TOO_MANY: Final = Created(CreateStatus.TOO_MANY_REQUIREMENTS, 0, 0)
_KEYS_FULL: Final = Created(CreateStatus.KEYS_FULL, 0, 0)
_KEY_REUSED: Final = Created(CreateStatus.KEY_REUSED, 0, 0)
_Fields: TypeAlias = tuple[
    str,
    bytes,
    int,
    int,
    Timetable | None,
    int,
    str,
    RetryPolicy | None,
    int,
    str,
    bytes,
    Options | None,
    KeyRule | None,
]
"""A `NewJob` by position: each of its fields is read some times, which here costs nothing."""

_ANSWERED: Final = (CreateStatus.CREATED, CreateStatus.DUPLICATE)


def create_jobs(store: Store, operation: CreateJobs) -> JobsCreated:
    """Create each job, or answer with what its key or the whole request made before.

    A request id that belongs to something else makes nothing, and the answer holds no job.
    """
    request_id = operation.request_id
    if not request_id:
        return JobsCreated([create(store, new) for new in operation.jobs])
    if len(request_id) > limits.MAX_KEY_CHARS:
        return JobsCreated([_INVALID] * len(operation.jobs))
    window_ms = store.settings.request_memory_ms
    known = store.requests.find(request_id, store.log_time_ms, window_ms)
    if known is not None:
        if known.of_trigger:
            return JobsCreated([], repeated=True)
        first_answer = known.answer()
        store.counters.duplicates += len(first_answer)
        return JobsCreated(first_answer, repeated=True)
    answer = [create(store, new) for new in operation.jobs]
    if any(created.status in _ANSWERED for created in answer):
        store.requests.add(Request(request_id, store.log_time_ms, answer))
    return JobsCreated(answer)


def create(store: Store, new: NewJob, name: str = "") -> Created:
    """Create one job, or answer with what its key made before."""
    settings = store.settings
    fields: _Fields = astuple(new)
    queue, _, first_ms, delay_ms, _, _, _, retry, _, key, _, options, key_rule = fields
    rule = key_rule or PLAIN_KEY
    if key:
        known_as = key_name(key, queue, within_queue=rule.within_queue)
        known = store.keys.find(known_as, store.log_time_ms)
        if known is not None:
            return _known(store, new, rule, known)
    policy = shared_policy(store, retry)
    if policy is None or not _within_limits(fields):
        return _INVALID
    if key_rule is not None and not (
        key and is_sound_rule(key_rule, settings.idempotency_max_window_ms)
    ):
        return _INVALID
    if store.configured and is_draining(store, queue):
        return _DRAINING
    if len(store.pending) >= settings.max_pending or (
        queue not in store.queues and len(store.queues) >= limits.MAX_QUEUES
    ):
        return _FULL
    if options is not None and not _may_require(store, queue, options.requires):
        return _TOO_MANY
    if rule.until_ended and store.keys.held >= settings.idempotency_keys_held:
        return _KEYS_FULL
    nominal_ms = first_ms or min(store.log_time_ms + delay_ms, limits.MAX_TIME_MS)
    job = _add_job(store, fields, policy, nominal_ms, name)
    if key:
        _hold_key(store, new, rule, job, nominal_ms)
        if job.state is not JobState.ACTIVE:  # it expires before it is due
            store.keys.release(job.id)
    return Created(_CREATED, job.id, nominal_ms)


def _may_require(store: Store, queue: str, requires: tuple[str, ...]) -> bool:
    counts = store.queues.get(queue)
    return counts is None or counts.has_room_for(requires)


def _known(store: Store, new: NewJob, rule: KeyRule, known: Key) -> Created:
    """The answer to a create whose key another has."""
    if known.fingerprint != short_fingerprint(new.fingerprint):
        return _KEY_REUSED
    if rule.reject:
        store.counters.rejected += 1
        status = CreateStatus.REJECTED
    else:
        store.counters.duplicates += 1
        status = CreateStatus.DUPLICATE
    return Created(status, known.job, _first_nominal(store, known))


def _hold_key(store: Store, new: NewJob, rule: KeyRule, job: Job, nominal_ms: int) -> None:
    # A window of none would be one without an end.
    window_ms = rule.window_ms or store.settings.idempotency_window_ms or 1
    record = Key(
        key_name(job.idempotency_key, job.queue, within_queue=rule.within_queue),
        job.created_ms,
        short_fingerprint(new.fingerprint),
        job.id,
        nominal_ms,
        UNTIL_ENDED if rule.until_ended else window_ms,
    )
    if rule.until_ended:
        store.keys.keep(record)
        store.keys.hold(record)
    else:
        store.keys.add(record)


def _first_nominal(store: Store, known: Key) -> int:
    """The nominal time that a key's job began with; of a one-shot job the one of now."""
    job = store.jobs.get(known.job)
    if job is None or job.recurrence is not None:
        return known.nominal_ms
    return job.planned_ms


def _add_job(store: Store, fields: _Fields, policy: RetryPolicy, nominal_ms: int, name: str) -> Job:
    queue, payload, _, _, timetable, priority, partition_key, _, timeout_ms, key, _, options, _ = (
        fields
    )
    due_ms = nominal_ms
    job = Job(
        store.number_job(),
        queue,
        payload,
        store.log_time_ms,
        policy,
        priority,
        partition_key,
        timeout_ms,
        key,
        NO_EXECUTIONS if timetable is None else {},
        options=options or NO_OPTIONS,
    )
    if timetable is not None:
        # Times before the job was there are past, also such as would be due, by jitter, after it.
        passed_ms = min(store.log_time_ms, nominal_ms - 1)
        job.recurrence = Recurrence(
            timetable, nominal_ms, name=name, made=1, fired=1, passed_ms=passed_ms
        )
        offset_ms = jitter_offset(job.id, timetable.jitter_ms)
        due_ms = min(nominal_ms + offset_ms, limits.MAX_TIME_MS)
        store.touched.append(job)
        store.happened.of_job(job, Happened.JOB_CREATED)
    store.add_job(job)
    store.add_execution(job, nominal_ms, due_ms, job.id)
    return job


def shared_policy(store: Store, retry: RetryPolicy | None) -> RetryPolicy | None:
    """The policy that a job is to hold, shared by all that have it; None if it is unsound."""
    if retry is None or retry == DEFAULT_POLICY:
        return DEFAULT_POLICY
    known = store.policies.get(retry)
    if known is None and is_sound_policy(retry):
        known = store.share_policy(retry)
    return known


def _within_limits(fields: _Fields) -> bool:
    (
        queue,
        payload,
        first_ms,
        delay_ms,
        timetable,
        priority,
        partition_key,
        _,
        timeout_ms,
        key,
        fingerprint,
        options,
        _,
    ) = fields
    return (
        0 < len(queue) <= limits.MAX_QUEUE_CHARS
        and len(payload) <= limits.MAX_PAYLOAD_BYTES
        and 0 <= first_ms <= limits.MAX_TIME_MS
        and 0 <= delay_ms <= limits.MAX_DURATION_MS
        and 0 <= timeout_ms <= limits.MAX_DURATION_MS
        and 0 <= priority < PRIORITIES
        # Most jobs have none of these.
        and (not partition_key or len(partition_key) <= limits.MAX_KEY_CHARS)
        and (not key or len(key) <= limits.MAX_KEY_CHARS)
        and (not fingerprint or len(fingerprint) <= limits.MAX_FINGERPRINT_BYTES)
        and (options is None or is_sound_options(options))
        and (timetable is None or is_sound_timetable(timetable))
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
        store.happened.of_job(job, Happened.JOB_CANCELLED)
        for execution in store.executions_of(job):
            store.will_change(execution)
            if execution.state is ExecutionState.SCHEDULED:
                store.finish(execution, Event.CANCEL, ExecutionState.CANCELLED)
                store.counters.cancelled += 1
            elif _held(execution):
                execution.cancel_requested = True
                store.happened.of_execution(execution, Happened.CANCEL_REQUESTED)
                store.touched.append(execution)
        store.free_key_if_idle(job)
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

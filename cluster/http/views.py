"""Records to views: how jobs, executions and grants look on the wire."""

from __future__ import annotations

from typing import Final, Literal, cast

from timeball.client import messages
from timeball.cluster.http.exchange import Form
from timeball.cluster.http.instants import render_instant, render_optional
from timeball.cluster.http.options import show_expiry
from timeball.cluster.http.schedule_views import NEXT_FIRES, show_fires, show_timetable
from timeball.cluster.http.values import show_value
from timeball.cluster.state.expiry import expires_ms
from timeball.cluster.state.keys import UNTIL_ENDED, Key
from timeball.cluster.state.limits import MAX_TIME_MS
from timeball.cluster.state.operations import RetryPolicy
from timeball.cluster.state.records import (
    Attempt,
    Execution,
    ExecutionState,
    Job,
    JobState,
    Origin,
    Outcome,
    Recurrence,
    origin_of,
    payload_of,
    retry_of,
    timeout_of,
)
from timeball.cluster.state.values import AttemptError

JOB_STATES: Final[dict[str, JobState]] = {state.name.lower(): state for state in JobState}
EXECUTION_STATES: Final[dict[str, ExecutionState]] = {
    state.name.lower(): state for state in ExecutionState
} | {"retry": ExecutionState.SCHEDULED}

JobStateName = Literal["active", "completed", "cancelled"]
_JOB_STATE_NAMES: Final[dict[JobState, JobStateName]] = {
    JobState.ACTIVE: "active",
    JobState.COMPLETED: "completed",
    JobState.CANCELLED: "cancelled",
}
EXECUTION_STATE_NAMES: Final[dict[ExecutionState, messages.ExecutionStateName]] = {
    ExecutionState.SCHEDULED: "scheduled",
    ExecutionState.LEASED: "leased",
    ExecutionState.RUNNING: "running",
    ExecutionState.SUCCEEDED: "succeeded",
    ExecutionState.DEAD: "dead",
    ExecutionState.CANCELLED: "cancelled",
    ExecutionState.SKIPPED: "skipped",
}
OutcomeName = Literal[
    "open", "succeeded", "failed", "lease_expired", "timed_out", "released", "cancelled"
]
_OUTCOME_NAMES: Final[dict[Outcome, OutcomeName]] = {
    Outcome.OPEN: "open",
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.LEASE_EXPIRED: "lease_expired",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.RELEASED: "released",
    Outcome.CANCELLED: "cancelled",
}
# Names of the module: an attribute of another one is looked up at each use.
_Delivery: Final = messages.Delivery
_encode_execution_id: Final = messages.encode_execution_id
_NO_ERROR: Final = AttemptError()
OriginName = Literal["timetable", "trigger", "backfill"]
_ORIGIN_NAMES: Final[dict[Origin, OriginName]] = {
    Origin.TIMETABLE: "timetable",
    Origin.TRIGGER: "trigger",
    Origin.BACKFILL: "backfill",
}


def execution_state(execution: Execution) -> messages.ExecutionStateName:
    """The state by its name; a scheduled execution that was tried before shows as `retry`."""
    if execution.state is ExecutionState.SCHEDULED and execution.attempts_used:
        return "retry"
    return EXECUTION_STATE_NAMES[execution.state]


def job_state(job: Job) -> JobStateName:
    """The state by its name."""
    return _JOB_STATE_NAMES[job.state]


def job_view(
    job: Job,
    executions: list[Execution],
    key: Key | None,
    form: Form,
    now_ms: int,
    *,
    fires: int = NEXT_FIRES,
) -> messages.JobView:
    """A job with its key; `fires` bounds how many instants of its timetable are computed."""
    counts: dict[str, int] = {}
    options = job.options
    for execution in executions:
        name = execution_state(execution)
        counts[name] = counts.get(name, 0) + 1
    return messages.JobView(
        job_id=str(job.id),
        queue=job.queue,
        state=job_state(job),
        payload=show_value(job.payload, form),
        schedule=_schedule(job, executions),
        priority=job.priority,
        partition_key=job.partition_key,
        retry=show_policy(job.retry),
        timeout_ms=job.timeout_ms or None,
        idempotency_key=job.idempotency_key or None,
        created_at=render_instant(job.created_ms),
        next_fires=_next_fires(job, executions, now_ms, fires),
        execution_counts=counts,
        version=job.version,
        timetable=None if job.recurrence is None else timetable_view(job.recurrence),
        idempotency=None if key is None else _key_view(key),
        concurrency_key=options.concurrency_key,
        requires=options.requires,
        tags=options.tags,
        expires_at=show_expiry(options.expires_ms),
        expires_after_ms=options.expires_after_ms or None,
    )


def _key_view(key: Key) -> messages.KeyView:
    expires_at = None
    if key.window_ms != UNTIL_ENDED:
        expires_at = render_instant(min(key.since_ms + key.window_ms, MAX_TIME_MS))
    return messages.KeyView(
        scope="cluster" if isinstance(key.name, str) else "queue",
        until="window_ends" if expires_at else "job_ends",
        expires_at=expires_at,
    )


def timetable_view(recurrence: Recurrence) -> messages.TimetableView:
    """How a timetable stands."""
    paused = None
    if recurrence.paused_ms:
        since_at = render_instant(recurrence.paused_ms)
        paused = messages.Paused(since_at=since_at, reason=recurrence.pause_reason)
    return messages.TimetableView(
        name=recurrence.name or None,
        planned_at=render_instant(recurrence.planned_ms),
        ended=recurrence.ended,
        paused=paused,
        parked=recurrence.parked or None,
        fired=recurrence.fired,
        coalesced=recurrence.coalesced,
        skipped=recurrence.skipped,
        missed=recurrence.missed,
    )


def show_policy(policy: RetryPolicy) -> messages.Retry:
    """A retry policy, as it can be sent again."""
    return messages.Retry(
        max_attempts=policy.max_attempts,
        initial_ms=policy.initial_ms,
        multiplier_pct=policy.multiplier_pct,
        max_ms=policy.max_ms,
        jitter_pct=policy.jitter_pct,
        backoff=cast("messages.BackoffName", policy.backoff),
        delays_ms=policy.delays_ms,
        non_retryable_errors=policy.non_retryable_errors,
    )


def _schedule(job: Job, executions: list[Execution]) -> messages.Schedule | None:
    if job.timetable is not None:
        return show_timetable(job.timetable)
    if executions and executions[0].nominal_ms != job.created_ms:
        return messages.At(time=render_instant(executions[0].nominal_ms))
    return None


def _next_fires(job: Job, executions: list[Execution], now_ms: int, count: int) -> list[str]:
    if job.timetable is not None:
        return show_fires(job, now_ms, count)
    return [
        render_instant(execution.nominal_ms)
        for execution in executions
        if execution.state is ExecutionState.SCHEDULED and execution.nominal_ms > now_ms
    ]


def attempt_view(attempt: Attempt, form: Form) -> messages.AttemptView:
    """One lease of an execution."""
    error = attempt.error or _NO_ERROR
    return messages.AttemptView(
        number=attempt.number,
        worker=attempt.worker,
        token=attempt.token,
        outcome=_OUTCOME_NAMES[attempt.outcome],
        claimed_at=render_instant(attempt.claimed_ms),
        started_at=render_optional(attempt.started_ms),
        finished_at=render_optional(attempt.finished_ms),
        error_type=error.error_type,
        message=error.message,
        backtrace=error.backtrace,
        progress=show_value(attempt.progress, form),
    )


def execution_view(execution: Execution, form: Form, now_ms: int) -> messages.ExecutionView:
    """An execution with its attempts."""
    job = execution.job
    origin = None if job.recurrence is None else _ORIGIN_NAMES[origin_of(execution)]
    scheduled = execution.state is ExecutionState.SCHEDULED
    return messages.ExecutionView(
        execution_id=_encode_execution_id(job.id, execution.nominal_ms),
        job_id=str(job.id),
        queue=job.queue,
        state=execution_state(execution),
        reason=execution.reason,
        origin=origin,
        nominal_at=render_instant(execution.nominal_ms),
        due_at=render_instant(execution.due_ms),
        due=scheduled and execution.due_ms <= now_ms,
        finished_at=render_optional(execution.finished_ms),
        attempts_used=execution.attempts_used,
        max_attempts=retry_of(execution).max_attempts,
        cancel_requested=execution.cancel_requested,
        result=show_value(execution.result, form),
        attempts=[attempt_view(attempt, form) for attempt in execution.attempts],
        expires_at=show_expiry(expires_ms(execution)),
    )


def delivery(
    execution: Execution, token: int, attempt: int, lease_ms: int, form: Form
) -> messages.Delivery:
    """A granted lease, as its worker receives it."""
    job = execution.job
    job_id = str(job.id)
    identity = _encode_execution_id(job_id, execution.nominal_ms)
    return _Delivery(
        identity,
        job_id,
        job.queue,
        token,
        attempt,
        retry_of(execution).max_attempts,
        execution.nominal_ms,
        execution.due_ms,
        lease_ms,
        timeout_of(execution),
        identity,
        show_value(payload_of(execution), form),
    )

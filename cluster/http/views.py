"""Records to views: how jobs, executions and grants look on the wire."""

from __future__ import annotations

from typing import Literal

from timeball.client import messages
from timeball.cluster.dispatch.timetable import TimetableError, next_fires
from timeball.cluster.http.codec import show_value
from timeball.cluster.http.exchange import Form
from timeball.cluster.http.instants import render_instant, render_optional
from timeball.cluster.state import operations
from timeball.cluster.state.records import (
    Attempt,
    Execution,
    ExecutionState,
    Job,
    JobState,
    Outcome,
)

JOB_STATES: dict[str, JobState] = {state.name.lower(): state for state in JobState}
EXECUTION_STATES: dict[str, ExecutionState] = {
    state.name.lower(): state for state in ExecutionState
} | {"retry": ExecutionState.SCHEDULED}

JobStateName = Literal["active", "completed", "cancelled"]
_JOB_STATE_NAMES: dict[JobState, JobStateName] = {
    JobState.ACTIVE: "active",
    JobState.COMPLETED: "completed",
    JobState.CANCELLED: "cancelled",
}
_EXECUTION_STATE_NAMES: dict[ExecutionState, messages.ExecutionStateName] = {
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
_OUTCOME_NAMES: dict[Outcome, OutcomeName] = {
    Outcome.OPEN: "open",
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.LEASE_EXPIRED: "lease_expired",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.RELEASED: "released",
    Outcome.CANCELLED: "cancelled",
}
NEXT_FIRES = 5
"""How many instants of a timetable a view shows ahead."""


def execution_state(execution: Execution) -> messages.ExecutionStateName:
    """The state by its name; a scheduled execution that was tried before shows as `retry`."""
    if execution.state is ExecutionState.SCHEDULED and execution.attempts_used:
        return "retry"
    return _EXECUTION_STATE_NAMES[execution.state]


def job_view(
    job: Job, executions: list[Execution], form: Form, now_ms: int, *, fires: int = NEXT_FIRES
) -> messages.JobView:
    """A job; `fires` bounds how many instants of its timetable are computed."""
    counts: dict[str, int] = {}
    for execution in executions:
        name = execution_state(execution)
        counts[name] = counts.get(name, 0) + 1
    return messages.JobView(
        job_id=str(job.id),
        queue=job.queue,
        state=_JOB_STATE_NAMES[job.state],
        payload=show_value(job.payload, form),
        schedule=_schedule(job, executions),
        priority=job.priority,
        partition_key=job.partition_key,
        retry=messages.Retry(
            max_attempts=job.retry.max_attempts,
            initial_ms=job.retry.initial_ms,
            multiplier_pct=job.retry.multiplier_pct,
            max_ms=job.retry.max_ms,
            jitter_pct=job.retry.jitter_pct,
        ),
        timeout_ms=job.timeout_ms or None,
        idempotency_key=job.idempotency_key or None,
        created_at=render_instant(job.created_ms),
        next_fires=_next_fires(job, executions, now_ms, fires),
        coalesced=0 if job.recurrence is None else job.recurrence.coalesced,
        missed=0 if job.recurrence is None else job.recurrence.missed,
        execution_counts=counts,
    )


def _schedule(job: Job, executions: list[Execution]) -> messages.Schedule | None:
    match job.timetable:
        case operations.Every(interval_ms, anchor_ms, until_ms, catch_up):
            return messages.Every(
                interval_ms=interval_ms,
                anchor=render_instant(anchor_ms),
                until=render_optional(until_ms),
                catch_up=_catch_up(catch_up),
            )
        case operations.Cron(expression, time_zone, until_ms, catch_up):
            return messages.Cron(
                expression=expression,
                time_zone=time_zone,
                until=render_optional(until_ms),
                catch_up=_catch_up(catch_up),
            )
        case None:
            if executions and executions[0].nominal_ms != job.created_ms:
                return messages.At(time=render_instant(executions[0].nominal_ms))
    return None


def _catch_up(rule: str) -> messages.CatchUp:
    return "none" if rule == "none" else "all" if rule == "all" else "one"


def _next_fires(job: Job, executions: list[Execution], now_ms: int, count: int) -> list[str]:
    if job.state is not JobState.ACTIVE:
        return []
    if job.timetable is None:
        return [
            render_instant(execution.nominal_ms)
            for execution in executions
            if execution.state is ExecutionState.SCHEDULED and execution.nominal_ms > now_ms
        ]
    if job.timetable_ended:
        return []
    if count == 0:
        return [render_instant(job.planned_ms)] if job.planned_ms > now_ms else []
    return render_fires(job.timetable, now_ms, count)


def render_fires(
    timetable: operations.Every | operations.Cron, after_ms: int, count: int = NEXT_FIRES
) -> list[str]:
    """The next instants of a timetable; none where this node's zones cannot tell."""
    try:
        return [render_instant(fire) for fire in next_fires(timetable, after_ms, count)]
    except TimetableError:
        return []


def attempt_view(attempt: Attempt) -> messages.AttemptView:
    """One lease of an execution."""
    return messages.AttemptView(
        number=attempt.number,
        worker=attempt.worker,
        token=attempt.token,
        outcome=_OUTCOME_NAMES[attempt.outcome],
        claimed_at=render_instant(attempt.claimed_ms),
        started_at=render_optional(attempt.started_ms),
        finished_at=render_optional(attempt.finished_ms),
        error_type=attempt.error_type,
        message=attempt.message,
    )


def execution_view(execution: Execution, form: Form, now_ms: int) -> messages.ExecutionView:
    """An execution with its attempts."""
    job = execution.job
    scheduled = execution.state is ExecutionState.SCHEDULED
    return messages.ExecutionView(
        execution_id=messages.encode_execution_id(job.id, execution.nominal_ms),
        job_id=str(job.id),
        queue=job.queue,
        state=execution_state(execution),
        reason=execution.reason,
        nominal_at=render_instant(execution.nominal_ms),
        due_at=render_instant(execution.due_ms),
        due=scheduled and execution.due_ms <= now_ms,
        finished_at=render_optional(execution.finished_ms),
        attempts_used=execution.attempts_used,
        max_attempts=job.retry.max_attempts,
        cancel_requested=execution.cancel_requested,
        result=show_value(execution.result, form),
        attempts=[attempt_view(attempt) for attempt in execution.attempts or ()],
    )


def delivery(
    execution: Execution, token: int, attempt: int, lease_ms: int, form: Form
) -> messages.Delivery:
    """A granted lease, as its worker receives it."""
    job = execution.job
    identity = messages.encode_execution_id(job.id, execution.nominal_ms)
    return messages.Delivery(
        identity,
        str(job.id),
        job.queue,
        token,
        attempt,
        job.retry.max_attempts,
        execution.nominal_ms,
        execution.due_ms,
        lease_ms,
        job.timeout_ms,
        identity,
        show_value(job.payload, form),
    )

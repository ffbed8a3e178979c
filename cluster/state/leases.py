"""The operations on leases: claim, start, the reports of holders, and expiry.

A report names the fencing token that it was given. It is accepted iff that token is the
latest one granted for the execution, the execution is not terminal, and the holder has
not already ended its hold by another report. So a late report after the lease expired,
but before anybody else claimed, still counts; after a re-claim it is refused as stale.
A failure or a release ends the hold: what its holder says later changes nothing.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import astuple

from timeball.cluster.state import limits, poison
from timeball.cluster.state.backoff import backoff_ms
from timeball.cluster.state.expiry import expires_by
from timeball.cluster.state.happenings import Happened
from timeball.cluster.state.memory import Granted
from timeball.cluster.state.operations import (
    Claim,
    Expire,
    Fail,
    Failure,
    Release,
    ReportProgress,
    RetryPolicy,
    Start,
    Succeed,
    Success,
)
from timeball.cluster.state.overlap import waits
from timeball.cluster.state.queues import admit
from timeball.cluster.state.records import (
    Attempt,
    Execution,
    ExecutionState,
    Outcome,
    retry_of,
)
from timeball.cluster.state.store import Store
from timeball.cluster.state.timetables import died
from timeball.cluster.state.transitions import TERMINAL, Event, move
from timeball.cluster.state.usual import NO_OPTIONS
from timeball.cluster.state.values import AttemptError
from timeball.cluster.state.verdicts import Verdict

# Names of the module, since reading a member off its class takes ten times as long.
_SCHEDULED: Final = ExecutionState.SCHEDULED
_LEASED: Final = ExecutionState.LEASED
_RUNNING: Final = ExecutionState.RUNNING
_DONE: Final = ExecutionState.SUCCEEDED
_SUCCEED: Final = Event.SUCCEED
_HAPPENED: Final = Happened.LEASED
_OPEN: Final = Outcome.OPEN
_SUCCEEDED: Final = Outcome.SUCCEEDED
_ACCEPTED: Final = Verdict.ACCEPTED
_DUPLICATE: Final = Verdict.DUPLICATE
_LATE_OUTCOMES: Final = frozenset({Outcome.OPEN, Outcome.LEASE_EXPIRED, Outcome.TIMED_OUT})
"""How the latest attempt may stand for its holder's report to count."""


def claim(store: Store, operation: Claim) -> list[int]:
    """Lease what is scheduled, due or nearly so, and within its queue's settings; 0 for the
    rest. A remembered request grants
    nothing new."""
    wanted = operation.executions
    request_id = operation.request_id
    if (
        not 0 < operation.lease_ms <= limits.MAX_DURATION_MS
        or len(request_id) > limits.MAX_KEY_CHARS
    ):
        return [0] * len(wanted)
    if request_id:
        remembered = remembered_claim(store, request_id)
        if remembered is not None:
            tokens_by_hold = {(job, nominal_ms): token for job, nominal_ms, token in remembered}
            return [tokens_by_hold.get(hold, 0) for hold in wanted]
    worker, lease_ms = operation.worker[: limits.MAX_WORKER_CHARS], operation.lease_ms
    offered = operation.offered
    tokens = [
        token if _lease(store, job, nominal_ms, token, worker, lease_ms, offered) else 0
        for (job, nominal_ms), token in zip(wanted, store.number_tokens(len(wanted)), strict=True)
    ]
    store.counters.claimed += len(tokens) - tokens.count(0)
    if request_id:
        granted = [token for token in tokens if token]
        if granted:
            store.claims.add(Granted(request_id, store.log_time_ms, granted))
    return tokens


def remembered_claim(store: Store, request_id: str) -> list[tuple[int, int, int]] | None:
    """What this claim was granted and still holds, as (job, nominal_ms, token); None if unknown."""
    record = store.claims.find(request_id, store.log_time_ms, store.settings.claim_memory_ms)
    if record is None:
        return None
    held = [store.leased[token] for token in record.numbers() if token in store.leased]
    return [(execution.job.id, execution.nominal_ms, execution.token) for execution in held]


def _lease(
    store: Store,
    job_id: int,
    nominal_ms: int,
    token: int,
    worker: str,
    lease_ms: int,
    offered: tuple[str, ...],
) -> bool:
    execution = store.execution_to_change(job_id, nominal_ms)
    now_ms = store.log_time_ms
    if execution is None or execution.state is not _SCHEDULED or waits(execution):
        return False
    options = execution.job.options
    if options is not NO_OPTIONS and not (
        set(options.requires).issubset(offered) and not expires_by(execution, now_ms)
    ):
        return False
    claimed_ms = execution.due_ms
    if claimed_ms <= now_ms:
        claimed_ms = now_ms
    elif claimed_ms > now_ms + limits.MAX_LEAD_MS:
        return False
    if store.configured and not admit(store, execution):
        return False
    store.lease(execution, token)
    execution.attempts_used += 1
    if execution.tries is None:
        number = 1
        execution.tries = Attempt(token, worker, lease_ms, claimed_ms)
    else:
        number = execution.latest.number + 1
        attempt = Attempt(token, worker, lease_ms, claimed_ms, number=number)
        execution.tries = (*execution.attempts[1 - limits.ATTEMPTS_KEPT :], attempt)
    job, due_ms = execution.job, execution.due_ms
    store.happened.add(
        _HAPPENED, 1, job.queue, job_id, nominal_ms, token, number, due_ms, worker, ""
    )
    return True


def start(store: Store, operation: Start) -> list[Verdict]:
    """Leased → running, by the latest token."""
    return [_start(store, job, nominal_ms, token) for job, nominal_ms, token in operation.holds]


def _start(store: Store, job_id: int, nominal_ms: int, token: int) -> Verdict:
    execution = store.execution_to_change(job_id, nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    if token in store.leased and execution.token == token:
        if execution.state is _RUNNING:
            return _DUPLICATE
        move(execution, Event.START, _RUNNING)
        execution.latest.started_ms = store.log_time_ms
        store.happened.of_execution(execution, Happened.STARTED)
        return _ACCEPTED
    store.counters.stale += 1
    return _stale_or_finished(execution, token)


def report_progress(store: Store, operation: ReportProgress) -> list[Verdict]:
    """Keep how far holders have come."""
    return [_report_progress(store, *item) for item in operation.items]


def _report_progress(
    store: Store, job_id: int, nominal_ms: int, token: int, progress: bytes
) -> Verdict:
    execution = store.execution_to_change(job_id, nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    if execution.token != token or token not in store.leased:
        return _stale_or_finished(execution, token)
    if len(progress) > limits.MAX_PROGRESS_BYTES:
        return Verdict.TOO_LARGE
    execution.latest.progress = progress
    return _ACCEPTED


def succeed(store: Store, operation: Succeed) -> list[Verdict]:
    """End executions with their result."""
    return [_succeed(store, item) for item in operation.items]


def _succeed(store: Store, item: Success) -> Verdict:
    fields: tuple[int, int, int, bytes, int] = astuple(item)  # read more than once
    job_id, nominal_ms, token, result, started_ms = fields
    execution = store.held(job_id, nominal_ms, token)
    if execution is None:
        execution = store.execution_to_change(job_id, nominal_ms)
        if execution is None:
            return Verdict.UNKNOWN
        verdict = _judge(store, execution, token, _SUCCEEDED)
        if verdict is _DUPLICATE and execution.result != result:
            store.counters.stale += 1
            return Verdict.FINISHED
        if verdict is not _ACCEPTED:
            return verdict
    if len(result) > limits.MAX_RESULT_BYTES:
        return Verdict.TOO_LARGE
    _close_attempt(store, execution, _SUCCEEDED, started_ms)
    execution.result = result
    store.finish(execution, _SUCCEED, _DONE)
    store.counters.succeeded += 1
    return _ACCEPTED


def fail(store: Store, operation: Fail) -> list[Verdict]:
    """End attempts without success: retry later, or die."""
    return [_fail(store, item) for item in operation.items]


def _fail(store: Store, item: Failure) -> Verdict:
    execution = store.execution_to_change(item.job, item.nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    verdict = _judge(store, execution, item.token, Outcome.FAILED)
    if verdict is not _ACCEPTED:
        return verdict
    attempt = _close_attempt(store, execution, Outcome.FAILED, item.started_ms)
    attempt.error = _error(item)
    store.counters.failed += 1
    _retry_or_die(store, execution, Event.FAIL, attempt, item.retry_after_ms, item.non_retryable)
    return verdict


def _error(item: Failure) -> AttemptError | None:
    """What a report says of its failure, cut to the limits of the state; None for nothing.

    Of a backtrace the end is kept: it is where the error was raised.
    """
    if not (item.error_type or item.message or item.backtrace):
        return None
    return AttemptError(
        item.error_type[: limits.MAX_ERROR_TYPE_CHARS],
        item.message[: limits.MAX_ERROR_MESSAGE_CHARS],
        item.backtrace[-limits.MAX_BACKTRACE_CHARS :],
    )


def release(store: Store, operation: Release) -> list[Verdict]:
    """Give executions back: due at once, the attempt not counted."""
    return [_release(store, job, nominal_ms, token) for job, nominal_ms, token in operation.holds]


def _release(store: Store, job_id: int, nominal_ms: int, token: int) -> Verdict:
    execution = store.execution_to_change(job_id, nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    verdict = _judge(store, execution, token, Outcome.RELEASED)
    if verdict is not _ACCEPTED:
        return verdict
    _close_attempt(store, execution, Outcome.RELEASED)
    # A late release may follow a replay, which has given the attempt back already.
    execution.attempts_used = max(execution.attempts_used - 1, 0)
    store.counters.released += 1
    if execution.cancel_requested:
        store.finish(execution, Event.RELEASE, ExecutionState.CANCELLED)
        store.counters.cancelled += 1
    else:
        store.reschedule(execution, Event.RELEASE, store.log_time_ms)
    return verdict


def expire(store: Store, operation: Expire) -> list[Verdict]:
    """End leases whose time is over, unless anything committed before has ended them."""
    return [_expire(store, *hold) for hold in operation.holds]


def _expire(store: Store, job_id: int, nominal_ms: int, token: int, timed_out: bool) -> Verdict:
    execution = store.execution_to_change(job_id, nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    outcome = Outcome.TIMED_OUT if timed_out else Outcome.LEASE_EXPIRED
    if execution.token != token or token not in store.leased:
        attempt = _attempt_of(execution, token)
        if attempt is not None and attempt.outcome is outcome:
            return _DUPLICATE
        return _stale_or_finished(execution, token)
    attempt = _close_attempt(store, execution, outcome)
    store.counters.expired += 1
    _retry_or_die(store, execution, Event.EXPIRE, attempt)
    return _ACCEPTED


def _judge(store: Store, execution: Execution, token: int, reported: Outcome) -> Verdict:
    """Whether a holder's report counts; see the head of the module."""
    if token == execution.token and token:
        outcome = execution.latest.outcome
        if outcome is reported:
            return _DUPLICATE
        if execution.state in TERMINAL:
            store.counters.stale += 1
            return Verdict.FINISHED
        if outcome in _LATE_OUTCOMES:
            return _ACCEPTED
    else:
        earlier = _attempt_of(execution, token)
        if earlier is not None and earlier.outcome is reported:
            return _DUPLICATE
    store.counters.stale += 1
    return Verdict.STALE


def _stale_or_finished(execution: Execution, token: int) -> Verdict:
    """Why a token that holds nothing does not; 0 was never granted, so it is stale always."""
    latest = token == execution.token and token != 0
    return Verdict.FINISHED if latest and execution.state in TERMINAL else Verdict.STALE


def _retry_or_die(
    store: Store,
    execution: Execution,
    event: Event,
    attempt: Attempt,
    retry_after_ms: int = -1,
    non_retryable: bool = False,
) -> None:
    """The one way on after an attempt without success, reported or not."""
    policy = retry_of(execution)
    if execution.cancel_requested:
        store.finish(execution, event, ExecutionState.CANCELLED)
        store.counters.cancelled += 1
    elif reason := _poison(policy, execution, attempt, non_retryable):
        execution.reason = reason
        store.finish(execution, event, ExecutionState.DEAD)
        store.counters.died += 1
        died(store, execution)
    else:
        if retry_after_ms < 0:
            used = execution.attempts_used
            retry_after_ms = backoff_ms(policy, execution.job.id, execution.nominal_ms, used)
        delay_ms = min(retry_after_ms, limits.MAX_DURATION_MS)
        held = execution.state is not _SCHEDULED
        due_ms = min(store.log_time_ms + delay_ms, limits.MAX_TIME_MS)
        store.reschedule(execution, event, due_ms)
        if held and execution.state is _SCHEDULED:
            store.counters.retried += 1


def _poison(
    policy: RetryPolicy, execution: Execution, attempt: Attempt, non_retryable: bool
) -> str:
    """Why an execution is not to be tried again (see `poison`); "" if it is."""
    if non_retryable:
        return poison.NON_RETRYABLE
    error = attempt.error
    if error is not None and error.error_type in policy.non_retryable_errors:
        return poison.NON_RETRYABLE_ERROR
    if execution.attempts_used >= policy.max_attempts:
        return poison.EXHAUSTED_BY[attempt.outcome]
    return ""


def _close_attempt(
    store: Store, execution: Execution, outcome: Outcome, started_ms: int = 0
) -> Attempt:
    """Record how the latest attempt ended; `started_ms` is what its worker says (0: nothing)."""
    tries = execution.tries
    attempt = tries if type(tries) is Attempt else execution.latest
    attempt.outcome = outcome
    attempt.finished_ms = store.log_time_ms
    if started_ms and not attempt.started_ms:
        # The worker's clock is its own: keep the order of events.
        attempt.started_ms = min(max(started_ms, attempt.claimed_ms), store.log_time_ms)
    return attempt


def _attempt_of(execution: Execution, token: int) -> Attempt | None:
    for attempt in reversed(execution.attempts):
        if attempt.token == token:
            return attempt
    return None

"""Leases: who may hold an execution, whose report counts, and how often it is tried."""

from __future__ import annotations

import pytest

from timeball.cluster.state import limits
from timeball.cluster.state.operations import (
    NUMBERED_PER_ENTRY,
    Claim,
    Expire,
    RetryPolicy,
    Succeed,
    Success,
)
from timeball.cluster.state.records import ExecutionState, JobState, Outcome
from timeball.cluster.state.verdicts import Verdict


def outcomes(log, hold):
    return [attempt.outcome for attempt in log.execution(hold).attempts]


# Claim


def test_a_claim_leases_and_grants_the_token_of_its_place_in_the_log(log):
    holds = [log.create(), log.create()]
    tokens = log.claim(*holds, worker="w1", lease_ms=5_000)
    assert tokens == [log.index * NUMBERED_PER_ENTRY, log.index * NUMBERED_PER_ENTRY + 1]
    execution = log.execution(holds[1])
    assert execution.state is ExecutionState.LEASED
    assert execution.token == tokens[1]
    (attempt,) = execution.attempts
    assert (attempt.token, attempt.worker, attempt.lease_ms) == (tokens[1], "w1", 5_000)
    assert attempt.claimed_ms == log.now_ms


def test_tokens_are_numbered_over_the_whole_entry(log):
    first, second = log.create(), log.create()
    one, other = log.apply(Claim("a", "", 1_000, [first]), Claim("b", "", 1_000, [second]))
    assert other[0] == one[0] + 1


def test_a_claim_is_never_before_the_lead_by_a_millisecond(log):
    hold = log.create(delay_ms=limits.MAX_LEAD_MS + 100)
    log.pass_ms(99)
    assert log.claim(hold) == [0]
    assert log.execution(hold).state is ExecutionState.SCHEDULED
    log.pass_ms(1)
    assert log.claim(hold) != [0]


def test_what_is_leased_ahead_of_time_begins_when_it_is_due(log):
    hold = log.create(delay_ms=limits.MAX_LEAD_MS)
    assert log.claim(hold) != [0]
    execution = log.execution(hold)
    assert execution.attempts[-1].claimed_ms == execution.due_ms == log.now_ms + limits.MAX_LEAD_MS


def test_what_is_leased_ahead_of_time_and_released_is_not_due_any_sooner(log):
    hold = log.create(delay_ms=limits.MAX_LEAD_MS)
    due_ms = log.execution(hold).due_ms
    (token,) = log.claim(hold)
    log.pass_ms(1)
    assert log.release(hold, token) is Verdict.ACCEPTED
    assert log.execution(hold).due_ms == due_ms


def test_a_late_release_takes_a_backoff_back(log):
    hold = log.create(retry=RetryPolicy(max_attempts=3, initial_ms=60_000))
    (token,) = log.claim(hold)
    log.expire(hold, token)
    assert log.execution(hold).due_ms > log.now_ms
    assert log.release(hold, token) is Verdict.ACCEPTED
    assert log.execution(hold).due_ms == log.now_ms


def test_a_clock_that_steps_back_makes_nothing_due_nor_log_time_fall(log):
    hold = log.create(delay_ms=100)
    log.pass_ms(100)
    log.claim()
    log.pass_ms(-1_000)
    assert log.claim(hold) != [0]
    assert log.machine.log_time_ms == log.now_ms + 1_000


def test_a_claim_of_what_is_leased_ended_or_unknown_is_refused(log):
    held, _ = log.claimed()
    done, token = log.claimed()
    log.succeed(done, token)
    assert log.claim(held, done, (1, 1)) == [0, 0, 0]


def test_one_execution_named_twice_in_one_claim_is_leased_once(log):
    hold = log.create()
    assert [bool(token) for token in log.claim(hold, hold)] == [True, False]


def test_a_repeated_claim_answers_with_what_it_still_holds_and_grants_nothing_new(log):
    kept, done, other = log.create(), log.create(), log.create()
    tokens = log.claim(kept, done, request_id="r1")
    log.succeed(done, tokens[1])
    assert log.machine.remembered_claim("r1") == [(*kept, tokens[0])]
    assert log.claim(kept, done, other, request_id="r1") == [tokens[0], 0, 0]
    assert log.execution(other).state is ExecutionState.SCHEDULED


def test_a_claim_is_forgotten_by_log_time(log):
    log.settings(claim_memory_ms=1_000)
    hold = log.create()
    log.claim(hold, request_id="r1")
    log.pass_ms(999)
    log.claim()
    assert log.machine.remembered_claim("r1") is not None
    log.pass_ms(1)
    log.claim()
    assert log.machine.remembered_claim("r1") is None


def test_claims_are_forgotten_by_count(log):
    log.settings(claim_memory=2)
    for name in ("r1", "r2", "r3"):
        log.claim(log.create(), request_id=name)
    assert log.machine.remembered_claim("r1") is None
    assert log.machine.remembered_claim("r2") is not None


def test_a_claim_that_was_granted_nothing_is_not_remembered(log):
    assert log.claim((1, 1), request_id="r1") == [0]
    assert log.machine.remembered_claim("r1") is None


@pytest.mark.parametrize("lease_ms", [0, -1, limits.MAX_DURATION_MS + 1])
def test_a_lease_of_no_possible_length_is_refused(log, lease_ms):
    hold = log.create()
    assert log.claim(hold, lease_ms=lease_ms) == [0]


# Start


def test_start_sets_running_once(log):
    hold, token = log.claimed()
    log.pass_ms(5)
    assert log.start(hold, token) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert execution.state is ExecutionState.RUNNING
    assert execution.attempts[0].started_ms == log.now_ms
    assert log.start(hold, token) is Verdict.DUPLICATE


def test_start_by_who_does_not_hold_is_refused(log):
    hold, token = log.claimed()
    assert log.start(hold, token + 1) is Verdict.STALE
    log.expire(hold, token)
    assert log.start(hold, token) is Verdict.STALE
    second = log.claim_when_due(hold)
    log.succeed(hold, second)
    assert log.start(hold, second) is Verdict.FINISHED
    assert log.start((1, 1), 1) is Verdict.UNKNOWN


# Progress


def test_the_latest_progress_of_who_holds_is_kept_with_its_attempt(log):
    hold, first = log.claimed()
    assert log.report_progress(hold, first, b"\x01") is Verdict.ACCEPTED
    assert log.report_progress(hold, first, b"\x02") is Verdict.ACCEPTED
    log.expire(hold, first)
    assert log.report_progress(hold, first, b"\x03") is Verdict.STALE
    second = log.claim_when_due(hold)
    assert log.report_progress(hold, first, b"\x03") is Verdict.STALE
    assert [attempt.progress for attempt in log.execution(hold).attempts] == [b"\x02", b""]
    log.succeed(hold, second)
    assert log.report_progress(hold, second, b"\x03") is Verdict.FINISHED
    assert log.report_progress((1, 1), 1, b"\x03") is Verdict.UNKNOWN
    assert log.machine.counters.stale == 0, "the leader's own reports tell nothing of workers"


def test_progress_is_bounded(log):
    hold, token = log.claimed()
    most = b"x" * limits.MAX_PROGRESS_BYTES
    assert log.report_progress(hold, token, most) is Verdict.ACCEPTED
    assert log.report_progress(hold, token, most + b"x") is Verdict.TOO_LARGE
    assert log.execution(hold).attempts[-1].progress == most


# Completion


def test_success_ends_the_execution_and_its_job(log):
    hold, token = log.claimed()
    log.pass_ms(50)
    assert log.succeed(hold, token, result=b"\x2a") is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert execution.state is ExecutionState.SUCCEEDED
    assert execution.result == b"\x2a"
    assert execution.finished_ms == log.now_ms
    assert execution.job.state is JobState.COMPLETED
    assert outcomes(log, hold) == [Outcome.SUCCEEDED]
    assert execution in log.applied.touched


def test_leas_01_a_slow_worker_can_not_end_the_run_of_the_next(log):
    hold, slow = log.claimed()
    log.expire(hold, slow)
    fresh = log.claim_when_due(hold, worker="w2")
    assert fresh > slow
    before = log.machine.counters.stale
    assert log.succeed(hold, slow) is Verdict.STALE
    assert log.fail(hold, slow) is Verdict.STALE
    assert log.release(hold, slow) is Verdict.STALE
    assert log.start(hold, slow) is Verdict.STALE
    assert log.machine.counters.stale == before + 4
    assert log.execution(hold).state is ExecutionState.LEASED
    assert log.succeed(hold, fresh) is Verdict.ACCEPTED
    assert log.succeed(hold, slow) is Verdict.STALE


def test_late_success_counts_while_nobody_else_has_claimed(log):
    hold, token = log.claimed()
    log.expire(hold, token)
    assert log.execution(hold).state is ExecutionState.SCHEDULED
    assert log.succeed(hold, token) is Verdict.ACCEPTED
    assert log.execution(hold).state is ExecutionState.SUCCEEDED
    assert len(log.machine.pending) == 0
    assert log.claim(hold) == [0]


def test_late_failure_counts_and_is_not_counted_as_another_attempt(log):
    hold, token = log.claimed()
    log.expire(hold, token)
    assert log.fail(hold, token, retry_after_ms=60_000) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert execution.attempts_used == 1
    assert execution.due_ms == log.now_ms + 60_000
    assert outcomes(log, hold) == [Outcome.FAILED]
    assert log.machine.counters.retried == 1


def test_late_failure_may_say_that_no_retry_helps(log):
    hold, token = log.claimed()
    log.expire(hold, token)
    assert log.fail(hold, token, non_retryable=True) is Verdict.ACCEPTED
    assert log.execution(hold).state is ExecutionState.DEAD


def test_leas_03_a_repeat_answers_as_the_first_did(log):
    hold, token = log.claimed()
    log.succeed(hold, token, result=b"\x01")
    finished_ms = log.execution(hold).finished_ms
    log.pass_ms(10)
    assert log.succeed(hold, token, result=b"\x01") is Verdict.DUPLICATE
    assert log.execution(hold).finished_ms == finished_ms


def test_leas_03_another_result_with_the_same_token_is_refused_and_the_first_stays(log):
    hold, token = log.claimed()
    log.succeed(hold, token, result=b"\x01")
    assert log.succeed(hold, token, result=b"\x02") is Verdict.FINISHED
    assert log.fail(hold, token) is Verdict.FINISHED
    assert log.execution(hold).result == b"\x01"


def test_leas_03_after_trimming_the_execution_is_unknown(log):
    log.settings(keep_finished=0)
    hold, token = log.claimed()
    log.succeed(hold, token)
    assert log.succeed(hold, token) is Verdict.UNKNOWN


def test_an_ended_execution_takes_no_other_report(log):
    done, by = log.claimed()
    log.succeed(done, by)
    dead, killer = log.claimed(retry=RetryPolicy(max_attempts=1))
    log.expire(dead, killer)
    assert log.execution(dead).state is ExecutionState.DEAD
    assert log.fail(done, by) is Verdict.FINISHED
    assert log.release(done, by) is Verdict.FINISHED
    assert log.succeed(dead, killer) is Verdict.FINISHED
    assert log.fail(dead, killer) is Verdict.FINISHED
    assert log.execution(done).state is ExecutionState.SUCCEEDED
    assert log.execution(dead).state is ExecutionState.DEAD


def test_a_repeated_failure_is_a_duplicate_even_after_the_next_claim(log):
    hold, token = log.claimed()
    assert log.fail(hold, token) is Verdict.ACCEPTED
    due_ms = log.execution(hold).due_ms
    assert log.fail(hold, token) is Verdict.DUPLICATE
    assert log.execution(hold).due_ms == due_ms
    fresh = log.claim_when_due(hold)
    assert log.fail(hold, token) is Verdict.DUPLICATE
    assert log.execution(hold).token == fresh
    assert log.execution(hold).state is ExecutionState.LEASED


def test_a_failure_ends_the_hold(log):
    hold, token = log.claimed()
    log.fail(hold, token)
    assert log.succeed(hold, token) is Verdict.STALE
    assert log.execution(hold).state is ExecutionState.SCHEDULED


def test_two_successes_in_one_entry_are_one(log):
    hold, token = log.claimed()
    report = Success(*hold, token, b"\x01")
    assert log.apply(Succeed([report, report])) == [[Verdict.ACCEPTED, Verdict.DUPLICATE]]


@pytest.mark.parametrize("token", [0, -1, 2**62])
def test_a_token_that_was_never_granted_is_stale(log, token):
    hold = log.create()
    assert log.succeed(hold, token) is Verdict.STALE
    assert log.fail(hold, token) is Verdict.STALE
    assert log.release(hold, token) is Verdict.STALE
    assert log.expire(hold, token) is Verdict.STALE
    assert log.execution(hold).state is ExecutionState.SCHEDULED


def test_the_start_that_a_worker_reports_is_kept_in_the_order_of_events(log):
    claimed_ms = log.now_ms
    for reported_ms, kept_ms in ((5, claimed_ms), (claimed_ms + 10**9, None), (0, 0)):
        hold, token = log.claimed()
        claimed_ms = log.now_ms
        log.pass_ms(100)
        log.succeed(hold, token, started_ms=reported_ms)
        (attempt,) = log.execution(hold).attempts
        assert attempt.started_ms == (log.now_ms if kept_ms is None else kept_ms)


def test_a_result_beyond_the_limit_changes_nothing(log):
    hold, token = log.claimed()
    too_large = bytes(limits.MAX_RESULT_BYTES + 1)
    assert log.succeed(hold, token, result=too_large) is Verdict.TOO_LARGE
    assert log.execution(hold).state is ExecutionState.LEASED


def test_what_an_error_says_is_clipped(log):
    hold, token = log.claimed()
    backtrace = "outermost" + "b" * 10_000 + "innermost"
    log.fail(hold, token, error_type="E" * 10_000, message="m" * 10_000, backtrace=backtrace)
    (attempt,) = log.execution(hold).attempts
    assert len(attempt.error.error_type) == limits.MAX_ERROR_TYPE_CHARS
    assert len(attempt.error.message) == limits.MAX_ERROR_MESSAGE_CHARS
    assert attempt.error.backtrace == backtrace[-limits.MAX_BACKTRACE_CHARS :]


def test_each_attempt_keeps_its_own_error_and_those_without_one_hold_nothing(log):
    hold, token = log.claimed()
    log.fail(hold, token, error_type="ValueError", backtrace="line 1")
    log.fail(hold, log.claim_when_due(hold))
    log.succeed(hold, log.claim_when_due(hold))
    first, second, third = log.execution(hold).attempts
    assert (first.error.error_type, first.error.backtrace) == ("ValueError", "line 1")
    assert second.error is third.error is None


# Retry and death


def test_a_failure_is_retried_after_the_backoff_of_the_policy(log):
    hold, token = log.claimed()
    log.fail(hold, token, error_type="ValueError", message="no")
    execution = log.execution(hold)
    assert execution.state is ExecutionState.SCHEDULED
    assert execution.due_ms == log.now_ms + 1_000
    assert execution.attempts[0].error.message == "no"
    log.fail(hold, log.claim_when_due(hold))
    assert execution.due_ms == log.now_ms + 2_000


def test_retry_after_overrides_the_policy(log):
    hold, token = log.claimed()
    log.fail(hold, token, retry_after_ms=0)
    assert log.execution(hold).due_ms == log.now_ms


def test_a_retry_after_beyond_all_time_is_clamped(log):
    hold, token = log.claimed()
    log.fail(hold, token, retry_after_ms=2**62)
    assert log.execution(hold).due_ms == log.now_ms + limits.MAX_DURATION_MS


def test_non_retryable_goes_straight_to_dead(log):
    hold, token = log.claimed()
    log.fail(hold, token, non_retryable=True)
    execution = log.execution(hold)
    assert execution.state is ExecutionState.DEAD
    assert execution.reason == "non_retryable"
    assert execution.job.state is JobState.COMPLETED


def test_an_error_type_that_the_policy_names_goes_straight_to_dead(log):
    policy = RetryPolicy(5, non_retryable_errors=("ValueError", "KeyError"))
    hold, token = log.claimed(retry=policy)
    log.fail(hold, token, error_type="KeyError")
    execution = log.execution(hold)
    assert execution.state is ExecutionState.DEAD
    assert (execution.reason, execution.attempts_used) == ("non_retryable_error", 1)


@pytest.mark.parametrize(
    "error_type", ["", "valueerror", "ValueErro", "ValueErrors", "m.ValueError"]
)
def test_error_types_are_compared_exactly(log, error_type):
    hold, token = log.claimed(retry=RetryPolicy(5, non_retryable_errors=("ValueError",)))
    log.fail(hold, token, error_type=error_type)
    assert log.execution(hold).state is ExecutionState.SCHEDULED


def test_an_expiry_is_no_error_type_of_the_attempt_before(log):
    hold, token = log.claimed(retry=RetryPolicy(2, 0, non_retryable_errors=("ValueError",)))
    log.expire(hold, token)
    log.expire(hold, log.claim_when_due(hold))
    assert log.execution(hold).reason == "attempts_exhausted:lease_expired"


@pytest.mark.parametrize("max_attempts", [1, 2, 5])
@pytest.mark.parametrize("way", ["fail", "expire", "time out", "mixed"])
def test_retr_02_n_attempts_are_n_starts_on_every_path(log, max_attempts, way):
    hold = log.create(retry=RetryPolicy(max_attempts=max_attempts), delay_ms=10)
    starts = 0
    while log.execution(hold).state is ExecutionState.SCHEDULED:
        token = log.claim_when_due(hold)
        starts += 1
        if way == "fail" or (way == "mixed" and starts % 2):
            log.fail(hold, token)
        else:
            log.expire(hold, token, timed_out=way == "time out")
    assert starts == max_attempts
    execution = log.execution(hold)
    assert execution.state is ExecutionState.DEAD
    assert execution.reason.startswith("attempts_exhausted:")
    assert log.machine.counters.died == 1


def test_retr_03_an_execution_that_kills_its_workers_dies_by_expiry_alone(log):
    hold = log.create(retry=RetryPolicy(max_attempts=5, initial_ms=100, jitter_pct=0))
    for used in range(1, 6):
        token = log.claim_when_due(hold)
        assert log.execution(hold).attempts_used == used, "counted at the claim"
        log.pass_ms(10_000)
        log.expire(hold, token)
        if used < 5:
            assert log.execution(hold).due_ms == log.now_ms + 100 * 2 ** (used - 1)
    execution = log.execution(hold)
    assert execution.state is ExecutionState.DEAD
    assert execution.reason == "attempts_exhausted:lease_expired"
    assert outcomes(log, hold) == [Outcome.LEASE_EXPIRED] * 5


def test_the_latest_attempts_are_kept_and_numbered(log):
    hold = log.create(retry=RetryPolicy(max_attempts=100, initial_ms=0))
    for _ in range(limits.ATTEMPTS_KEPT + 10):
        log.fail(hold, log.claim_when_due(hold), message="again")
    attempts = log.execution(hold).attempts
    assert [attempt.number for attempt in attempts] == list(range(11, limits.ATTEMPTS_KEPT + 11))
    assert log.execution(hold).attempts_used == limits.ATTEMPTS_KEPT + 10


# Release


def test_a_release_is_due_at_once_and_counts_no_attempt(log):
    hold, token = log.claimed()
    log.pass_ms(30)
    assert log.release(hold, token) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert (execution.state, execution.due_ms) == (ExecutionState.SCHEDULED, log.now_ms)
    assert execution.attempts_used == 0
    assert outcomes(log, hold) == [Outcome.RELEASED]
    assert log.release(hold, token) is Verdict.DUPLICATE


def test_a_release_ends_the_hold(log):
    hold, token = log.claimed()
    log.release(hold, token)
    assert log.succeed(hold, token) is Verdict.STALE
    assert log.fail(hold, token) is Verdict.STALE
    assert log.execution(hold).attempts_used == 0
    assert log.claim_when_due(hold) > token


def test_a_late_release_gives_the_expired_attempt_back(log):
    hold, token = log.claimed()
    log.expire(hold, token)
    assert log.release(hold, token) is Verdict.ACCEPTED
    assert log.execution(hold).attempts_used == 0
    assert log.execution(hold).due_ms == log.now_ms


# Expiry


@pytest.mark.parametrize(
    ("timed_out", "outcome"), [(False, Outcome.LEASE_EXPIRED), (True, Outcome.TIMED_OUT)]
)
def test_expiry_takes_the_path_of_a_failure(log, timed_out, outcome):
    hold, token = log.claimed()
    assert log.expire(hold, token, timed_out) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert execution.state is ExecutionState.SCHEDULED
    assert execution.due_ms == log.now_ms + 1_000
    assert outcomes(log, hold) == [outcome]
    assert log.expire(hold, token, timed_out) is Verdict.DUPLICATE


def test_expiry_loses_to_what_was_committed_before(log):
    hold, token = log.claimed()
    log.apply(Succeed([Success(*hold, token)]), Expire([(*hold, token, False)]))
    assert log.applied.verdicts == [[Verdict.ACCEPTED], [Verdict.FINISHED]]
    other, old = log.claimed()
    log.release(other, old)
    fresh = log.claim_when_due(other)
    assert log.expire(other, old) is Verdict.STALE
    assert log.execution(other).token == fresh
    assert log.execution(other).state is ExecutionState.LEASED

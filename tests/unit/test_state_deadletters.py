"""Dead letters: why they are dead, and how they are replayed and purged."""

from __future__ import annotations

import pytest

from timeball.cluster.state import poison
from timeball.cluster.state.operations import Every, RetryPolicy, Timetable
from timeball.cluster.state.records import ExecutionState, FateKind, JobState, Outcome
from timeball.cluster.state.verdicts import Verdict


def dead(log, **job):
    hold, token = log.claimed(**job)
    log.fail(hold, token, non_retryable=True, message="poison")
    return hold, token


def test_a_replay_gives_a_new_budget_and_keeps_the_history(log):
    hold, _ = dead(log, retry=RetryPolicy(max_attempts=2, initial_ms=0))
    log.pass_ms(1_000)
    assert log.replay(hold) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert (execution.state, execution.due_ms) == (ExecutionState.SCHEDULED, log.now_ms)
    assert (execution.attempts_used, execution.reason, execution.finished_ms) == (0, "", 0)
    assert execution.job.state is JobState.ACTIVE
    assert execution.attempts[0].error.message == "poison"
    for _ in range(2):
        log.fail(hold, log.claim_when_due(hold))
    assert execution.state is ExecutionState.DEAD
    assert [attempt.number for attempt in execution.attempts] == [1, 2, 3]
    assert execution.job.state is JobState.COMPLETED


def test_only_the_dead_are_replayed(log):
    hold, token = log.claimed()
    assert log.replay(hold) is Verdict.NOT_DEAD
    log.succeed(hold, token)
    assert log.replay(hold) is Verdict.NOT_DEAD
    assert log.replay((1, 1)) is Verdict.UNKNOWN


def test_a_replay_by_token_means_the_death_that_it_came_to_and_no_later_one(log):
    hold, token = dead(log)
    assert log.replay(hold, token + 1) is Verdict.NOT_DEAD
    assert log.replay(hold, token) is Verdict.ACCEPTED
    later = log.claim_when_due(hold)
    log.fail(hold, later, non_retryable=True)
    assert log.replay(hold, token) is Verdict.NOT_DEAD, "a repeat gives no second budget"
    assert log.execution(hold).state is ExecutionState.DEAD
    assert log.replay(hold, later) is Verdict.ACCEPTED


def test_a_dead_letter_of_a_cancelled_job_is_purged_though_it_is_not_replayed(log):
    hold, _ = log.claimed(retry=RetryPolicy(1), timetable=Timetable((Every(1_000, 0),)))
    log.fail(hold, log.execution(hold).token)
    log.cancel(hold)
    assert log.replay(hold) is Verdict.JOB_CANCELLED
    assert log.purge(hold) is Verdict.ACCEPTED
    assert log.execution(hold) is None


def test_a_purge_forgets_the_execution_and_its_job_and_a_repeat_finds_nothing(log):
    hold, token = dead(log, queue="gone")
    before = log.machine.digest()
    assert log.purge(hold, token) is Verdict.ACCEPTED
    assert log.machine.digest() != before
    assert log.execution(hold) is None
    assert log.machine.job(hold[0]) is None
    assert "gone" not in log.machine.queues
    assert log.machine._store.dead_bytes == 0
    assert log.purge(hold, token) is Verdict.UNKNOWN
    assert (log.machine.counters.died, log.machine.counters.purged) == (1, 1)


def test_a_purge_by_token_spares_what_died_of_something_else_since(log):
    hold, token = dead(log)
    log.replay(hold)
    log.fail(hold, log.claim_when_due(hold), non_retryable=True, message="another")
    assert log.purge(hold, token) is Verdict.NOT_DEAD
    assert log.execution(hold).state is ExecutionState.DEAD


def test_only_the_dead_are_purged(log):
    hold, token = log.claimed()
    assert log.purge(hold) is Verdict.NOT_DEAD
    log.succeed(hold, token)
    assert log.purge(hold, token) is Verdict.NOT_DEAD
    assert log.execution(hold).state is ExecutionState.SUCCEEDED
    assert log.machine.counters.purged == 0


def test_a_purged_occurrence_leaves_a_line_in_the_ledger_and_the_job_goes_on(log):
    hold, token = log.claimed(retry=RetryPolicy(1), timetable=Timetable((Every(1_000, 0),)))
    log.fail(hold, token)
    assert log.purge(hold) is Verdict.ACCEPTED
    job = log.machine.job(hold[0])
    assert job.state is JobState.ACTIVE
    (fate,) = job.recurrence.ledger
    assert (fate.first_ms, fate.kind) == (hold[1], FateKind.FIRED)


# Reasons


def test_every_reason_for_a_death_is_in_the_table(log):
    """What the rules write down is what is documented and can be asked for."""
    found = set()
    for ending in ("failed", "lease_expired", "timed_out", "fatal", "by policy"):
        policy = RetryPolicy(1, non_retryable_errors=("Poison",))
        hold, token = log.claimed(retry=policy)
        if ending in ("lease_expired", "timed_out"):
            log.expire(hold, token, ending == "timed_out")
        else:
            error_type = "Poison" if ending == "by policy" else "E"
            log.fail(hold, token, error_type=error_type, non_retryable=ending == "fatal")
        found.add(log.execution(hold).reason)
    assert found == set(poison.REASONS)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LEASE_EXPIRED, Outcome.TIMED_OUT])
def test_a_family_of_reasons_holds_its_own_and_no_other(outcome):
    reason = poison.EXHAUSTED_BY[outcome]
    assert poison.is_of(reason, poison.ATTEMPTS_EXHAUSTED)
    assert poison.is_of(reason, reason)
    assert not poison.is_of(reason, "attempts")
    assert not poison.is_of(poison.NON_RETRYABLE_ERROR, poison.NON_RETRYABLE)

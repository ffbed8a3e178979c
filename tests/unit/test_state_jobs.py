"""Jobs: creation, idempotency, cancellation and timetables."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from timeball.cluster.state import limits
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CancelJobs,
    Claim,
    CreateJobs,
    Cron,
    NewJob,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.records import ExecutionState, JobState, Outcome
from timeball.cluster.state.usual import DEFAULT_POLICY
from timeball.cluster.state.verdicts import CancelStatus, CreateStatus, Moved, Verdict

MINUTELY = Timetable((Cron("* * * * *"),))


def recurring(log, first_in_ms=1_000, timetable=MINUTELY):
    return log.create(timetable=timetable, first_ms=log.now_ms + first_in_ms)


def advance(log, job, after_ms, nominals, planned_ms=None, **rest):
    planned_ms = nominals[-1] if planned_ms is None else planned_ms
    item = Advance(job, 1, after_ms, nominals, planned_ms, **rest)
    return log.apply(AdvanceTimetables([item]))[0][0] is Moved.MOVED


def digest_of(log):
    return log.machine.digest()


# Create


def test_ids_tell_the_place_in_the_log(log):
    one, other = log.create_all(NewJob("a", b""), NewJob("b", b""))
    assert (one.job, other.job) == (log.index * 4096, log.index * 4096 + 1)
    assert one.status is CreateStatus.CREATED


def test_ids_are_numbered_over_the_whole_entry(log):
    first, second = log.apply(*[CreateJobs("", [NewJob("q", b"")])] * 2)
    assert second.jobs[0].job == first.jobs[0].job + 1


def test_a_job_comes_with_its_first_execution(log):
    job, nominal_ms = log.create(queue="mail", delay_ms=250, priority=7, partition_key="t1")
    execution = log.execution((job, nominal_ms))
    assert nominal_ms == execution.due_ms == log.now_ms + 250
    assert execution.state is ExecutionState.SCHEDULED
    record = log.machine.job(job)
    assert (record.queue, record.priority, record.partition_key) == ("mail", 7, "t1")
    assert list(log.machine.executions_of(record)) == [execution]
    assert log.machine.pending.items(log.machine.pending.first()) == [execution]
    assert log.applied.touched == [execution]


def test_a_first_time_in_the_past_is_due_at_once(log):
    hold = log.create(first_ms=5)
    assert hold[1] == 5
    assert log.claim(hold) != [0]


@pytest.mark.parametrize(
    "broken",
    [
        {"queue": ""},
        {"queue": "q" * (limits.MAX_QUEUE_CHARS + 1)},
        {"payload": bytes(limits.MAX_PAYLOAD_BYTES + 1)},
        {"first_ms": -1},
        {"first_ms": limits.MAX_TIME_MS + 1},
        {"delay_ms": -1},
        {"delay_ms": 2**62},
        {"timeout_ms": -1},
        {"priority": -1},
        {"priority": 10},
        {"partition_key": "k" * (limits.MAX_KEY_CHARS + 1)},
        {"idempotency_key": "k" * (limits.MAX_KEY_CHARS + 1)},
        {"fingerprint": bytes(limits.MAX_FINGERPRINT_BYTES + 1)},
        {"retry": RetryPolicy(max_attempts=0)},
        {"retry": RetryPolicy(max_attempts=2**31)},
        {"retry": RetryPolicy(initial_ms=-1)},
        {"retry": RetryPolicy(max_ms=2**62)},
        {"retry": RetryPolicy(multiplier_pct=0)},
        {"retry": RetryPolicy(jitter_pct=101)},
        {"retry": RetryPolicy(backoff="quadratic")},
        {"retry": RetryPolicy(backoff="list")},
        {"retry": RetryPolicy(delays_ms=(1,))},
        {"retry": RetryPolicy(backoff="list", delays_ms=(1, -1))},
        {"retry": RetryPolicy(backoff="list", delays_ms=(2**62,))},
        {"retry": RetryPolicy(backoff="list", delays_ms=(1,) * (limits.MAX_DELAYS + 1))},
        {"retry": RetryPolicy(non_retryable_errors=("",))},
        {"retry": RetryPolicy(non_retryable_errors=("e" * 201,))},
        {"retry": RetryPolicy(non_retryable_errors=("e",) * 17)},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_a_job_beyond_the_limits_is_refused_and_the_others_are_made(log, broken):
    bad = NewJob(**{"queue": "q", "payload": b"", **broken})
    refused, made = log.create_all(bad, NewJob("q", b""))
    assert (refused.status, refused.job) == (CreateStatus.INVALID, 0)
    assert made.status is CreateStatus.CREATED
    assert len(log.machine.pending) == 1


@pytest.mark.parametrize(
    "policy", [RetryPolicy(), RetryPolicy(2, backoff="list", delays_ms=(1, 2))]
)
def test_jobs_share_equal_policies_also_after_a_restore(log, policy):
    """A million of them hold one object; the default is left out of dumps altogether."""
    log.create_all(*[NewJob("q", b"", retry=msgspec.structs.replace(policy))])
    log.create_all(*[NewJob("q", b"", retry=msgspec.structs.replace(policy))])
    log.create_all(NewJob("q", b""))
    restored = StateMachine()
    restored.load(log.machine.dump())
    for machine in (log.machine, restored):
        default, *others = [job.retry for job in machine.list_jobs().items]
        assert default is DEFAULT_POLICY
        assert {id(one) for one in others} == {id(others[0])}
        assert others[0] == policy
        assert (others[0] is DEFAULT_POLICY) is (policy == DEFAULT_POLICY)
    assert restored.digest() == log.machine.digest()


def test_pending_executions_are_bounded(log):
    log.settings(max_pending=2)
    answers = log.create_all(*[NewJob("q", b"")] * 3)
    assert [one.status for one in answers] == [CreateStatus.CREATED] * 2 + [CreateStatus.FULL]


def test_queues_are_bounded_and_go_with_their_last_job(log, monkeypatch):
    monkeypatch.setattr(limits, "MAX_QUEUES", 1)
    log.settings(keep_finished=0)
    hold, token = log.claimed(queue="a")
    assert log.create_all(NewJob("b", b""))[0].status is CreateStatus.FULL
    assert log.create_all(NewJob("a", b""))[0].status is CreateStatus.CREATED
    log.succeed(hold, token)
    assert list(log.machine.queues) == ["a"]


# Idempotency


def keyed(key="k1", fingerprint=b"f1", queue="q"):
    return NewJob(queue, b"", idempotency_key=key, fingerprint=fingerprint)


def test_idem_01_one_key_makes_one_job(log):
    (first,) = log.create_all(keyed())
    answers = [log.create_all(keyed())[0] for _ in range(5)]
    assert {answer.status for answer in answers} == {CreateStatus.DUPLICATE}
    assert {(a.job, a.nominal_ms) for a in answers} == {(first.job, first.nominal_ms)}
    assert len(log.machine.pending) == 1
    assert log.machine.counters.duplicates == 5


def test_idem_01_one_key_twice_in_one_request_makes_one_job(log):
    first, second = log.create_all(keyed(), keyed())
    assert (second.status, second.job) == (CreateStatus.DUPLICATE, first.job)


def test_the_same_key_for_another_request_is_refused(log):
    log.create_all(keyed(fingerprint=b"f1"))
    (answer,) = log.create_all(keyed(fingerprint=b"f2"))
    assert (answer.status, answer.job) == (CreateStatus.KEY_REUSED, 0)
    assert len(log.machine.pending) == 1


def test_a_key_expires_by_log_time(log):
    log.settings(idempotency_window_ms=1_000)
    (first,) = log.create_all(keyed())
    log.pass_ms(999)
    assert log.create_all(keyed())[0].status is CreateStatus.DUPLICATE
    log.pass_ms(1)
    (second,) = log.create_all(keyed())
    assert second.status is CreateStatus.CREATED
    assert second.job > first.job
    log.pass_ms(999)
    assert log.create_all(keyed())[0].job == second.job, "the window begins anew"


def test_a_key_expires_on_the_instant_however_many_wait_to_be_trimmed(log):
    log.settings(idempotency_window_ms=1_000)
    for batch in range(3):
        log.create_all(*[keyed(f"{batch}-{number}") for number in range(400)])
    log.create_all(keyed("last"))
    log.pass_ms(1_000)
    assert log.create_all(keyed("last"))[0].status is CreateStatus.CREATED
    log.apply()
    assert log.create_all(keyed("last"))[0].status is CreateStatus.DUPLICATE


def test_keys_are_bounded_oldest_out(log):
    log.settings(idempotency_keys=2)
    log.create_all(keyed("a"))
    log.create_all(keyed("b"), keyed("c"))
    assert log.create_all(keyed("c"))[0].status is CreateStatus.DUPLICATE
    assert log.create_all(keyed("a"))[0].status is CreateStatus.CREATED


def test_trimming_takes_bounded_steps(log):
    for batch in range(10):
        log.create_all(*[keyed(f"{batch}-{number}") for number in range(100)])
    log.settings(idempotency_keys=0)
    kept = []
    while log.machine.windowed_keys:
        kept.append(log.machine.windowed_keys)
        log.apply()
    assert [a - b for a, b in itertools.pairwise(kept)] == [limits.TRIM_STEP] * 2


def test_a_cancelled_job_keeps_its_key_for_the_window(log):
    (first,) = log.create_all(keyed())
    log.cancel((first.job, first.nominal_ms))
    assert log.create_all(keyed())[0].status is CreateStatus.DUPLICATE


def test_a_key_outlives_its_job(log):
    log.settings(keep_finished=0)
    (first,) = log.create_all(keyed())
    log.cancel((first.job, first.nominal_ms))
    assert log.machine.job(first.job) is None
    assert log.create_all(keyed())[0].job == first.job


def test_a_repeated_request_answers_as_the_first_did(log):
    first = log.create_all(NewJob("q", b""), NewJob("q", b""), request_id="r1")
    (again,) = log.apply(CreateJobs("r1", [NewJob("q", b""), NewJob("q", b"")]))
    assert again.repeated
    assert [(one.job, one.status) for one in again.jobs] == [(f.job, f.status) for f in first]
    assert len(log.machine.pending) == 2
    assert log.machine.counters.duplicates == 2


def test_requests_are_remembered_for_a_time_and_a_number_of_jobs(log):
    log.settings(request_memory_ms=1_000, request_memory=2)
    log.create_all(NewJob("q", b""), request_id="r1")
    log.create_all(NewJob("q", b""), NewJob("q", b""), request_id="r2")
    assert log.apply(CreateJobs("r2", []))[0].repeated
    assert not log.apply(CreateJobs("r1", [NewJob("q", b"")]))[0].repeated
    log.pass_ms(1_000)
    assert not log.apply(CreateJobs("r1", [NewJob("q", b"")]))[0].repeated


def test_a_request_that_made_nothing_may_be_tried_again(log):
    log.settings(max_pending=0)
    log.create_all(NewJob("q", b""), request_id="r1")
    log.settings(max_pending=1)
    (answer,) = log.create_all(NewJob("q", b""), request_id="r1")
    assert answer.status is CreateStatus.CREATED


# Cancel


def test_cancelling_a_scheduled_job_ends_it(log):
    hold = log.create()
    assert log.cancel(hold) is CancelStatus.CANCELLED
    execution = log.execution(hold)
    assert execution.state is ExecutionState.CANCELLED
    assert execution.job.state is JobState.CANCELLED
    assert log.claim(hold) == [0]
    assert len(log.machine.pending) == 0
    assert log.cancel(hold) is CancelStatus.CANCELLED
    assert log.machine.counters.cancelled == 1


def test_timr_10_the_order_of_the_log_decides_between_cancel_and_claim(log):
    first, second = log.create(), log.create()
    log.apply(CancelJobs([first[0]]), Claim("w", "", 1_000, [first, second]))
    assert log.applied.verdicts[0] == [CancelStatus.CANCELLED]
    assert log.applied.verdicts[1][0] == 0
    log.apply(CancelJobs([second[0], second[0]]))
    assert log.applied.verdicts[0] == [CancelStatus.REQUESTED] * 2
    counts = log.machine.queues["mail"]
    assert (counts.scheduled, counts.leased, counts.cancelled) == (0, 1, 1)


def test_timr_10_a_holder_may_still_succeed_after_a_cancel(log):
    hold, token = log.claimed()
    assert log.cancel(hold) is CancelStatus.REQUESTED
    assert log.execution(hold).cancel_requested
    assert log.execution(hold) in log.applied.touched
    assert log.succeed(hold, token) is Verdict.ACCEPTED
    assert log.execution(hold).state is ExecutionState.SUCCEEDED
    assert log.cancel(hold) is CancelStatus.FINISHED


@pytest.mark.parametrize("way", ["fail", "release", "expire"])
def test_after_a_cancel_any_other_end_of_the_attempt_cancels(log, way):
    hold, token = log.claimed()
    log.cancel(hold)
    assert getattr(log, way)(hold, token) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert execution.state is ExecutionState.CANCELLED
    assert execution.attempts[0].outcome in (
        Outcome.FAILED,
        Outcome.RELEASED,
        Outcome.LEASE_EXPIRED,
    )
    assert getattr(log, way)(hold, token) is Verdict.DUPLICATE
    assert log.succeed(hold, token) is Verdict.FINISHED
    assert log.cancel(hold) is CancelStatus.CANCELLED


def test_what_ended_another_way_is_not_cancelled(log):
    hold, token = log.claimed()
    log.succeed(hold, token)
    assert log.cancel(hold) is CancelStatus.FINISHED
    assert log.cancel((1, 1)) is CancelStatus.UNKNOWN


def test_cancelling_a_recurring_job_ends_its_timetable(log):
    job, first_ms = recurring(log)
    assert log.cancel((job, first_ms)) is CancelStatus.CANCELLED
    assert len(log.machine.timetables) == 0
    assert not advance(log, job, first_ms, [first_ms + 60_000])
    assert log.machine.job(job) in log.machine.list_jobs(state=JobState.CANCELLED).items


def test_a_dead_occurrence_of_a_cancelled_job_is_not_replayed(log):
    hold = recurring(log, first_in_ms=0)
    log.fail(hold, log.claim_when_due(hold), non_retryable=True)
    log.cancel(hold)
    assert log.replay(hold) is Verdict.JOB_CANCELLED
    assert log.execution(hold).state is ExecutionState.DEAD

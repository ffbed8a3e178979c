"""What has ended is kept for a while and up to a number, then leaves nothing behind."""

from __future__ import annotations

import sys

from timeball.cluster.state.limits import TRIM_STEP
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CancelJobs,
    Claim,
    CreateJobs,
    Cron,
    NewJob,
    Succeed,
    Success,
)
from timeball.cluster.state.records import JobState


def done(log, **job):
    hold, token = log.claimed(**job)
    log.succeed(hold, token)
    return hold


def dead(log, **job):
    hold, token = log.claimed(**job)
    log.fail(hold, token, non_retryable=True)
    return hold


def test_finished_executions_are_kept_up_to_a_number_oldest_out(log):
    log.settings(keep_finished=2)
    holds = [done(log) for _ in range(4)]
    assert [log.execution(hold) is None for hold in holds] == [True, True, False, False]
    assert [log.machine.job(hold[0]) is None for hold in holds] == [True, True, False, False]
    assert log.machine.queues["mail"].succeeded == 2
    assert log.machine.queues["mail"].total_succeeded == 4


def test_finished_executions_are_kept_for_a_time_by_log_time(log):
    log.settings(keep_finished_ms=1_000)
    hold = done(log)
    log.pass_ms(999)
    log.apply()
    assert log.execution(hold) is not None
    log.pass_ms(1)
    log.apply()
    assert log.execution(hold) is None


def test_cancelled_executions_are_trimmed_like_the_succeeded(log):
    log.settings(keep_finished=0)
    hold = log.create()
    log.cancel(hold)
    assert log.machine.job(hold[0]) is None
    assert log.machine.queues == {}


def test_dead_executions_have_their_own_bound(log):
    log.settings(keep_finished=0, keep_finished_ms=0, keep_dead=2)
    holds = [dead(log) for _ in range(3)]
    assert [log.execution(hold) is None for hold in holds] == [True, False, False]
    assert log.machine.queues["mail"].dead == 2


def test_a_replayed_execution_waits_in_the_order_of_its_second_death(log):
    log.settings(keep_dead=2)
    first, second = dead(log), dead(log)
    log.replay(first)
    log.fail(first, log.claim_when_due(first), non_retryable=True)
    dead(log)
    assert log.execution(second) is None
    assert log.execution(first) is not None


def test_what_is_under_way_is_never_trimmed(log):
    log.settings(keep_finished=0, keep_dead=0, keep_finished_ms=0)
    waiting = log.create(delay_ms=10**9)
    held, _ = log.claimed()
    log.pass_ms(10**8)
    log.apply()
    assert log.execution(waiting) is not None
    assert log.execution(held) is not None


def test_an_active_recurring_job_outlives_its_executions_and_goes_when_ended(log):
    log.settings(keep_finished=0)
    hold = log.create(timetable=Cron("* * * * *"))
    job, first_ms = hold
    log.succeed(hold, log.claim_when_due(hold))
    assert log.execution(hold) is None
    assert log.machine.job(job).state is JobState.ACTIVE
    last = (job, first_ms + 1)
    log.apply(AdvanceTimetables([Advance(job, first_ms, [last[1]], last[1], ended=True)]))
    log.pass_ms(1)
    log.succeed(last, log.claim_when_due(last))
    assert log.machine.job(job) is None


def test_a_recurring_job_that_ends_without_executions_is_kept_like_one(log):
    log.settings(keep_finished=1)
    hold = log.create(timetable=Cron("* * * * *"))
    log.succeed(hold, log.claim_when_due(hold))
    done(log)
    assert log.execution(hold) is None
    log.cancel(hold)
    assert log.machine.job(hold[0]).state is JobState.CANCELLED
    done(log)
    assert log.machine.job(hold[0]) is None


def test_trimming_takes_bounded_steps_and_keeps_up_with_what_ends(log):
    count = 4 * TRIM_STEP
    jobs = [(one.job, one.nominal_ms) for one in log.create_all(*[NewJob("q", b"")] * count)]
    log.apply(CancelJobs([job for job, _ in jobs]))
    log.settings(keep_finished=0)
    assert log.machine.queues["q"].cancelled == count - TRIM_STEP
    more = [(one.job, one.nominal_ms) for one in log.create_all(*[NewJob("q", b"")] * count)]
    log.apply(CancelJobs([job for job, _ in more]))
    assert log.machine.queues == {}, "an entry that ends many may drop many"


def test_dropped_records_leave_no_ring_of_references(log):
    """The records are invisible to the collector: a ring would stay for ever."""
    log.settings(keep_finished=0)
    one_shot, token = log.claimed(payload=b"one-shot payload")
    recurring = log.create(payload=b"recurring payload", timetable=Cron("* * * * *"))
    payloads = [log.machine.job(hold[0]).payload for hold in (one_shot, recurring)]
    log.succeed(one_shot, token)
    log.cancel(recurring)
    log.apply()
    assert log.machine.job(one_shot[0]) is log.machine.job(recurring[0]) is None
    # The list and the argument of getrefcount; no job is left to hold them.
    assert [sys.getrefcount(payloads[at]) for at in (0, 1)] == [2, 2]


def test_counts_survive_a_whole_life_in_one_entry(log):
    log.settings(keep_finished=0)
    first = (log.index + 1) * 4096
    hold = (first, log.now_ms)
    log.apply(
        CreateJobs("", [NewJob("q", b"")]),
        Claim("w", "", 1_000, [hold]),
        Succeed([Success(*hold, first)]),
    )
    assert log.machine.job(first) is None
    assert log.machine.counters.succeeded == 1
    assert len(log.machine.pending) == len(log.machine.leased) == 0

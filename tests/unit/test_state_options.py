"""Options in the state: expiry, at or after which no attempt begins, and requirements."""

from __future__ import annotations

import pytest

from timeball.cluster.state.expiry import expires_ms
from timeball.cluster.state.ledger import fate_of
from timeball.cluster.state.limits import MAX_REQUIREMENTS
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    BackfillJob,
    CancelJobs,
    Change,
    Claim,
    Cron,
    Every,
    Fate,
    KeyRule,
    NewJob,
    Options,
    PutJob,
    RetryPolicy,
    SkipExpired,
    Timetable,
    TriggerJob,
    UpdateJob,
)
from timeball.cluster.state.records import ExecutionState, FateKind, JobState
from timeball.cluster.state.verdicts import ChangeStatus, CreateStatus, Moved, Verdict

MINUTE_MS = 60_000
SKIPPED = ExecutionState.SKIPPED
SCHEDULED = ExecutionState.SCHEDULED


def after(ms, **rest):
    return Options(expires_after_ms=ms, **rest)


def skip(log, *holds):
    return log.apply(SkipExpired(holds))[0]


def recurring(log, expires_after_ms, overlap="allow", **rest):
    timetable = Timetable((Cron("* * * * *"),), overlap=overlap)
    options = after(expires_after_ms)
    first_ms = log.now_ms + MINUTE_MS
    return log.create(timetable=timetable, first_ms=first_ms, options=options, **rest)


def come_due(log, job):
    """Let the planned occurrence come due, and the next be planned a minute later."""
    record = log.machine.job(job)
    log.now_ms = max(record.moves_at_ms, log.now_ms)
    at_ms = record.planned_ms
    item = Advance(job, record.version, at_ms, [at_ms + MINUTE_MS], at_ms + MINUTE_MS)
    assert log.apply(AdvanceTimetables([item]))[0][0] is Moved.MOVED
    return job, at_ms


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expires_in_ms"),
    [
        (Options(expires_after_ms=700), 1_200),
        (Options(expires_ms=1_764_480_000_900), 900),
        (Options(expires_ms=1_764_480_000_900, expires_after_ms=700), 900),
        (Options(expires_ms=1_764_480_002_000, expires_after_ms=700), 1_200),
    ],
)
def test_the_earlier_of_both_bounds_counts(log, options, expires_in_ms):
    begin_ms = log.now_ms
    hold = log.create(delay_ms=500, options=options)
    assert expires_ms(log.execution(hold)) == begin_ms + expires_in_ms
    log.now_ms = begin_ms + expires_in_ms
    assert log.claim(hold) == [0]
    log.now_ms -= 1
    assert log.claim(hold) == [0], "log-time does not go back"


def test_no_claim_is_granted_from_the_expiry_on_and_one_that_was_goes_on(log):
    holds = [log.create(options=after(1_000)) for _ in range(2)]
    log.pass_ms(999)
    (token,) = log.claim(holds[0])
    log.pass_ms(1)
    assert token
    assert log.claim(holds[1]) == [0]
    log.pass_ms(5_000)
    assert log.succeed(holds[0], token) is Verdict.ACCEPTED


def test_a_claim_ahead_of_the_due_time_may_end_at_the_expiry(log):
    hold = log.create(delay_ms=10, options=after(1))
    (token,) = log.claim(hold)
    assert token, "it begins when it is due, a millisecond before it expires"


# --- skipping ------------------------------------------------------------------------------------


def test_what_has_expired_is_skipped_once_and_nothing_sooner(log):
    hold = log.create(options=after(1_000))
    log.pass_ms(999)
    assert skip(log, hold) == [Verdict.STALE]
    log.pass_ms(1)
    assert skip(log, hold, hold, (12, 34)) == [Verdict.ACCEPTED, Verdict.STALE, Verdict.UNKNOWN]
    execution = log.execution(hold)
    assert (execution.state, execution.reason) == (SKIPPED, "expired")
    assert (execution.finished_ms, execution.attempts) == (log.now_ms, ())
    assert execution in log.applied.touched
    assert execution.job.state is JobState.COMPLETED
    assert log.machine.counters.skipped_expired == 1
    assert (log.machine.queues["mail"].scheduled, log.machine.queues["mail"].skipped) == (0, 1)


def test_what_never_expires_or_is_leased_or_has_ended_is_not_skipped(log):
    plain = log.create()
    held, token = log.claimed(options=after(1_000))
    ended = log.create(options=after(1_000))
    log.cancel(ended)
    log.pass_ms(5_000)
    assert skip(log, plain, held, ended) == [Verdict.STALE] * 3
    assert log.succeed(held, token) is Verdict.ACCEPTED


def test_what_expires_before_it_is_due_is_made_and_skipped_at_once(log):
    hold = log.create(delay_ms=500, options=Options(expires_ms=log.now_ms + 500))
    execution = log.execution(hold)
    assert (execution.state, execution.reason) == (SKIPPED, "expired")
    assert execution.job.state is JobState.COMPLETED
    assert len(log.machine.pending) == 0


@pytest.mark.parametrize("way", ["fail", "fail late", "expire", "release"])
def test_a_retry_that_would_come_too_late_is_skipped_with_its_attempts_kept(log, way):
    options = after(1_500)
    hold, token = log.claimed(options=options, retry=RetryPolicy(5, 1_000, jitter_pct=0))
    log.pass_ms(1_500 if way == "release" else 500)
    if way == "fail late":
        assert log.expire(hold, token) is Verdict.ACCEPTED
        assert log.execution(hold).state is SKIPPED, "the next attempt would be due at the expiry"
        assert log.fail(hold, token) is Verdict.FINISHED
    else:
        assert getattr(log, way.split()[0])(hold, token) is Verdict.ACCEPTED
    execution = log.execution(hold)
    assert (execution.state, execution.reason) == (SKIPPED, "expired")
    assert len(execution.attempts) == 1
    assert log.machine.counters.retried == 0
    assert log.machine.leased == {}
    assert log.succeed(hold, token) is Verdict.FINISHED


@pytest.mark.parametrize("way", ["fail", "release"])
def test_a_late_report_may_put_a_retry_off_beyond_the_expiry(log, way):
    hold, token = log.claimed(options=after(1_500), retry=RetryPolicy(5, 100, jitter_pct=0))
    assert log.expire(hold, token) is Verdict.ACCEPTED
    assert log.execution(hold).state is SCHEDULED
    if way == "fail":
        assert log.fail(hold, token, retry_after_ms=1_500) is Verdict.ACCEPTED
    else:
        log.pass_ms(1_500)
        assert log.release(hold, token) is Verdict.ACCEPTED
    assert (log.execution(hold).state, log.execution(hold).reason) == (SKIPPED, "expired")


def test_a_retry_that_comes_in_time_is_made_and_the_last_attempt_dies_as_ever(log):
    hold, token = log.claimed(options=after(3_000), retry=RetryPolicy(2, 1_000, jitter_pct=0))
    log.fail(hold, token)
    assert log.execution(hold).state is SCHEDULED
    token = log.claim_when_due(hold)
    log.pass_ms(60_000)
    log.fail(hold, token)
    assert log.execution(hold).state is ExecutionState.DEAD


def test_a_dead_letter_that_has_expired_stays_dead(log):
    hold, token = log.claimed(options=after(1_000), retry=RetryPolicy(1))
    log.fail(hold, token)
    log.pass_ms(999)
    assert log.replay(hold) is Verdict.ACCEPTED
    (token,) = log.claim(hold)
    log.fail(hold, token)
    log.pass_ms(1)
    assert log.replay(hold) is Verdict.EXPIRED
    assert log.execution(hold).state is ExecutionState.DEAD
    assert log.execution(hold).reason == "attempts_exhausted:failed"
    assert log.purge(hold) is Verdict.ACCEPTED


def test_a_cancelled_job_is_cancelled_and_not_skipped(log):
    hold, token = log.claimed(options=after(1_000))
    log.apply(CancelJobs([hold[0]]))
    log.pass_ms(5_000)
    log.fail(hold, token)
    assert log.execution(hold).state is ExecutionState.CANCELLED


# --- timetables ----------------------------------------------------------------------------------


def test_a_skipped_occurrence_is_accounted_for(log):
    job, _ = recurring(log, 10_000)
    hold = come_due(log, job)
    log.pass_ms(10_000)
    assert skip(log, hold) == [Verdict.ACCEPTED]
    recurrence = log.machine.job(job).recurrence
    assert (recurrence.fired, recurrence.skipped) == (1, 1)
    assert fate_of(log.execution(hold)) == Fate(hold[1], hold[1], 1, FateKind.SKIPPED, "expired")
    assert log.machine.counters.skipped == 1


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_running"])
def test_what_has_expired_is_in_nobodys_way(log, overlap):
    job, _ = recurring(log, 90_000, overlap)
    first = come_due(log, job)
    second = come_due(log, job)
    if overlap == "buffer_one":
        assert log.execution(second).state is SCHEDULED, "it waits"
    third = come_due(log, job)
    assert log.execution(first).state is SKIPPED
    if overlap == "buffer_one":
        assert log.execution(first).reason == "expired"
        assert log.execution(third).state is SCHEDULED, "the first is gone, the second goes"
        assert log.claim(third, second) == [0, *log.machine.leased]
    elif overlap == "skip":
        assert log.execution(second).reason == "skipped:overlap"
        assert log.execution(third).state is SCHEDULED
        assert log.claim(third) != [0]


def test_a_run_that_was_missed_too_long_ago_is_skipped_and_cancels_nothing(log):
    job, _ = recurring(log, 30_000, "cancel_running")
    first = come_due(log, job)
    (token,) = log.claim(first)
    log.pass_ms(5 * MINUTE_MS)
    record = log.machine.job(job)
    nominal_ms = record.planned_ms + MINUTE_MS
    item = Advance(job, 1, record.planned_ms, [nominal_ms], nominal_ms, caught_up=1)
    assert log.apply(AdvanceTimetables([item]))[0][0] is Moved.MOVED
    assert log.execution((job, nominal_ms)).reason == "expired"
    assert not log.execution(first).cancel_requested
    assert log.succeed(first, token) is Verdict.ACCEPTED
    recurrence = log.machine.job(job).recurrence
    assert (recurrence.fired, recurrence.skipped, recurrence.made) == (1, 2, 3)


def test_the_next_in_line_goes_when_what_was_ahead_expires(log):
    job, _ = recurring(log, 70_000, "buffer_one")
    first = come_due(log, job)
    second = come_due(log, job)
    log.pass_ms(10_000)
    assert log.claim(second) == [0]
    assert skip(log, first) == [Verdict.ACCEPTED]
    assert log.execution(second) in log.applied.touched
    assert log.claim(second) != [0]


def test_a_trigger_expires_and_a_backfill_does_not(log):
    job, _ = recurring(log, 10_000)
    come_due(log, job)
    log.pass_ms(30_000)
    (triggered,) = log.apply(TriggerJob(job))
    past_ms = log.now_ms - 25_000
    log.apply(BackfillJob(job, 1, [past_ms]))
    log.pass_ms(10_000)
    asked, backfilled = (job, triggered.nominal_ms), (job, past_ms)
    assert skip(log, asked, backfilled) == [Verdict.ACCEPTED, Verdict.STALE]
    assert log.claim(backfilled) != [0]
    assert log.machine.job(job).recurrence.skipped == 0, "no time of the timetable"


def test_a_backfill_that_the_timetable_comes_to_later_does_not_expire_either(log):
    job, first_ms = recurring(log, 30_000)
    past = [first_ms + MINUTE_MS, first_ms + 2 * MINUTE_MS]
    log.now_ms = past[-1] + 40_000
    log.apply(BackfillJob(job, 1, past))
    item = Advance(job, 1, first_ms, past, past[-1], caught_up=2)
    assert log.apply(AdvanceTimetables([item]))[0][0] is Moved.MOVED
    for nominal_ms in past:
        assert expires_ms(log.execution((job, nominal_ms))) == 0
        assert log.claim((job, nominal_ms)) != [0]


# --- changes -------------------------------------------------------------------------------------


def test_a_change_of_the_expiry_counts_at_once(log):
    hold = log.create(delay_ms=500, options=after(100))
    longer = UpdateJob(hold[0], 0, Change(expires_after_ms=60_000))
    assert log.apply(longer)[0].status is ChangeStatus.CHANGED
    assert log.execution(hold) in log.applied.touched
    log.pass_ms(600)
    assert skip(log, hold) == [Verdict.STALE]
    gone = UpdateJob(hold[0], 0, Change(expires_ms=log.now_ms))
    assert log.apply(gone)[0].status is ChangeStatus.CHANGED
    assert (log.execution(hold).state, log.execution(hold).reason) == (SKIPPED, "expired")


def test_a_change_skips_what_has_expired_by_it_in_backoff_too(log):
    job, _ = recurring(log, 3_600_000, retry=RetryPolicy(5, 30_000, jitter_pct=0))
    first = come_due(log, job)
    (token,) = log.claim(first)
    log.fail(first, token)
    second = come_due(log, job)
    log.apply(UpdateJob(job, 0, Change(expires_after_ms=10_000)))
    assert log.execution(first).reason == "expired"
    assert log.execution(second).state is SCHEDULED
    assert log.machine.job(job).recurrence.skipped == 1


def test_changes_of_options_are_versions_and_keep_what_they_do_not_name(log):
    options = Options("k", ("a",), ("t",), 0, 900)
    hold = log.create(delay_ms=500, options=options)
    for change, expected in (
        (Change(requires=("b", "c")), Options("k", ("b", "c"), ("t",), 0, 900)),
        (Change(tags=()), Options("k", ("b", "c"), (), 0, 900)),
        (Change(expires_after_ms=0), Options("k", ("b", "c"))),
    ):
        assert log.apply(UpdateJob(hold[0], 0, change))[0].status is ChangeStatus.CHANGED
        assert log.machine.job(hold[0]).options == expected
        assert log.apply(UpdateJob(hold[0], 0, change))[0].status is ChangeStatus.UNCHANGED
    assert log.machine.job(hold[0]).version == 4
    unsound = UpdateJob(hold[0], 0, Change(requires=("b", "a")))
    assert log.apply(unsound)[0].status is ChangeStatus.INVALID


def test_a_put_replaces_options_and_never_the_concurrency_key(log):
    timetable = Timetable((Every(MINUTE_MS, 0),))

    def put(options):
        new = NewJob("q", b"", first_ms=log.now_ms, timetable=timetable, options=options)
        return log.apply(PutJob("n", new))[0]

    created = put(Options("k", ("a",), (), 0, 900))
    assert put(None).status is ChangeStatus.FIXED
    assert put(Options("k", (), ("t",))).status is ChangeStatus.CHANGED
    assert log.machine.job(created.job).options == Options("k", (), ("t",))


# --- requirements --------------------------------------------------------------------------------


def test_a_claim_must_offer_all_that_is_required(log):
    hold = log.create(options=Options(requires=("eu", "gpu")))
    for offered in ((), ("gpu",), ("cpu", "eu")):
        assert log.apply(Claim("w", "", 1_000, [hold], offered)) == [[0]]
    ((token,),) = log.apply(Claim("w", "", 1_000, [hold], ("gpu", "ssd", "eu")))
    assert token


def test_the_jobs_of_a_queue_require_a_bounded_number_of_different_sets(log):
    def new(number, queue="mail"):
        options = Options(requires=(f"host-{number:03d}",))
        return NewJob(queue, b"", delay_ms=500, options=options)

    created = log.create_all(*(new(number) for number in range(MAX_REQUIREMENTS)))
    assert {one.status for one in created} == {CreateStatus.CREATED}
    (refused, known, plain, elsewhere) = log.create_all(
        new(999), new(0), NewJob("mail", b""), new(999, "other")
    )
    assert refused.status is CreateStatus.TOO_MANY_REQUIREMENTS
    assert [one.status for one in (known, plain, elsewhere)] == [CreateStatus.CREATED] * 3

    def put():
        timetable = Timetable((Every(MINUTE_MS, 0),))
        options = Options(requires=("put",))
        job = NewJob("mail", b"", first_ms=log.now_ms, timetable=timetable, options=options)
        return log.apply(PutJob("n", job))[0].status

    change = UpdateJob(plain.job, 0, Change(requires=("new",)))
    assert log.apply(change)[0].status is ChangeStatus.TOO_MANY_REQUIREMENTS
    assert put() is ChangeStatus.TOO_MANY_REQUIREMENTS
    freed = UpdateJob(created[5].job, 0, Change(requires=()))
    assert log.apply(freed)[0].status is ChangeStatus.CHANGED
    assert log.apply(change)[0].status is ChangeStatus.CHANGED
    assert put() is ChangeStatus.TOO_MANY_REQUIREMENTS
    # What is forgotten counts no more.
    log.settings(keep_finished=0)
    log.apply(CancelJobs([created[6].job]))
    assert log.machine.job(created[6].job) is None
    assert put() is ChangeStatus.CREATED


def test_a_key_that_holds_until_its_job_has_ended_is_free_when_the_job_expires(log):
    def new(options):
        rule = KeyRule(until_ended=True)
        return NewJob("q", b"", idempotency_key="k", key_rule=rule, options=options)

    begin_ms = log.now_ms
    (at_once,) = log.create_all(new(Options(expires_ms=begin_ms)))
    (later,) = log.create_all(new(after(1_000)))
    assert at_once.job != later.job
    assert log.create_all(new(None))[0].status is CreateStatus.DUPLICATE
    log.pass_ms(1_000)
    assert skip(log, (later.job, later.nominal_ms)) == [Verdict.ACCEPTED]
    assert log.create_all(new(None))[0].status is CreateStatus.CREATED

"""Timetables in the state: moving on, fates, overlap, pauses, and occurrences beside them."""

from __future__ import annotations

from collections import Counter

import pytest

from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.limits import LEDGER_KEPT
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    BackfillJob,
    CancelJobs,
    Change,
    Cron,
    Every,
    Fate,
    NewJob,
    ParkTimetables,
    PauseJob,
    ResumeJob,
    Timetable,
    TriggerJob,
    UpdateJob,
)
from timeball.cluster.state.records import ExecutionState, FateKind, JobState, Origin
from timeball.cluster.state.verdicts import (
    Backfilled,
    ChangeStatus,
    Moved,
    Triggered,
    TriggerStatus,
    Verdict,
)

MINUTELY = Timetable((Cron("* * * * *"),))
MINUTE_MS = 60_000


def recurring(log, first_in_ms=1_000, timetable=MINUTELY, **rest):
    return log.create(timetable=timetable, first_ms=log.now_ms + first_in_ms, **rest)


def with_overlap(overlap, **rest):
    return Timetable((Cron("* * * * *"),), overlap=overlap, **rest)


def advance(log, job, after_ms, nominals, planned_ms=None, version=1, **rest):
    planned_ms = nominals[-1] if planned_ms is None else planned_ms
    item = Advance(job, version, after_ms, nominals, planned_ms, **rest)
    return log.apply(AdvanceTimetables([item]))[0][0] is Moved.MOVED


def come_due(log, job):
    """Let the planned occurrence come due, and the next be planned a minute later."""
    record = log.machine.job(job)
    log.now_ms = record.moves_at_ms
    planned_ms = record.planned_ms
    assert advance(log, job, planned_ms, [planned_ms + MINUTE_MS], version=record.version)
    return job, planned_ms


def states(log, job):
    return [one.state.name.lower() for one in log.machine.executions_of(log.machine.job(job))]


def reasons(log, job):
    return [one.reason for one in log.machine.executions_of(log.machine.job(job))]


def totals(log, job):
    found = log.machine.job(job).recurrence
    return found.made, found.fired, found.coalesced, found.skipped, found.missed


# Moving on


def test_a_recurring_job_stands_at_its_first_occurrence(log):
    job, first_ms = recurring(log)
    record = log.machine.job(job)
    assert record.planned_ms == first_ms
    assert log.machine.timetables.items(log.machine.timetables.first()) == [record]
    assert record in log.applied.touched


def test_an_advance_creates_the_next_occurrences_and_moves_on(log):
    job, first_ms = recurring(log)
    assert advance(
        log,
        job,
        first_ms,
        [first_ms + 1, first_ms + 2],
        first_ms + 5,
        fates=[Fate(first_ms + 3, first_ms + 5, 2, FateKind.MISSED, "window")],
    )
    record = log.machine.job(job)
    assert record.planned_ms == first_ms + 5
    assert record.recurrence.missed == log.machine.counters.missed == 2
    nominals = [execution.nominal_ms for execution in log.machine.executions_of(record)]
    assert nominals == [first_ms, first_ms + 1, first_ms + 2]
    assert record in log.applied.touched


def test_recu_03_an_advance_counts_once_whoever_repeats_it(log):
    job, first_ms = recurring(log)
    assert advance(log, job, first_ms, [first_ms + 60_000])
    before = log.machine.job(job).planned_ms
    assert not advance(log, job, first_ms, [first_ms + 60_000])
    assert not advance(
        log, job, first_ms, [first_ms + 30_000], fates=[Fate(1, 2, 3, FateKind.COALESCED)]
    )
    record = log.machine.job(job)
    assert (record.planned_ms, record.recurrence.coalesced) == (before, 0)
    assert len(log.machine.executions_of(record)) == 2


def test_recu_03_one_refused_advance_does_not_keep_the_others(log):
    job, first_ms = recurring(log)
    other, other_ms = recurring(log)
    items = [
        Advance(job, 1, first_ms - 1, [first_ms + 1], first_ms + 1),
        Advance(other, 1, other_ms, [other_ms + 1], other_ms + 1),
        Advance(1, 1, 1, [2], 2),
    ]
    assert log.apply(AdvanceTimetables(items)) == [[Moved.STALE, Moved.MOVED, Moved.STALE]]


@pytest.mark.parametrize(
    "unsound",
    [
        {"nominals": [0]},
        {"nominals": [1, 1]},
        {"nominals": [2, 1]},
        {"nominals": [5], "planned": 4},
        {"nominals": [], "planned": 0},
        {"nominals": [], "planned": -1},
        {"nominals": [1], "planned": 2**62},
        {"nominals": [1], "planned": 1, "fates": [Fate(1, 2, -1, FateKind.MISSED)]},
        {"nominals": [1], "planned": 1, "fates": [Fate(1, 2, 2**62, FateKind.MISSED)]},
        {"nominals": [1], "planned": 1, "fates": [Fate(2, 1, 1, FateKind.MISSED)]},
        {"nominals": [1], "planned": 1, "fates": [Fate(1, 2, 1, FateKind.FIRED)]},
        {"nominals": [1], "planned": 1, "fates": [Fate(1, 2, 1, FateKind.SKIPPED, "x" * 501)]},
        {"nominals": [1], "planned": 1, "fates": [Fate(1, 2, 1, FateKind.MISSED)] * 9},
        {"nominals": [1], "planned": 1, "pending": Fate(1, 1, 1, FateKind.FIRED)},
        {"nominals": [1], "planned": 1, "caught_up": 3},
        {"nominals": [1], "planned": 1, "caught_up": -1},
        {"nominals": list(range(1, 1_002)), "planned": 2_000},
    ],
    ids=str,
)
def test_an_unsound_advance_changes_nothing(log, unsound):
    job, first_ms = recurring(log)
    nominals = [first_ms + step for step in unsound["nominals"]]
    planned_ms = first_ms + unsound.get("planned", 10)
    rest = {name: unsound[name] for name in ("fates", "pending", "caught_up") if name in unsound}
    item = Advance(job, 1, first_ms, nominals, planned_ms, **rest)
    assert log.apply(AdvanceTimetables([item])) == [[Moved.UNSOUND]]
    record = log.machine.job(job).recurrence
    assert (record.planned_ms, record.coalesced, record.missed) == (first_ms, 0, 0)
    assert len(log.machine.executions_of(log.machine.job(job))) == 1


def test_a_one_shot_job_has_no_timetable_to_advance(log):
    job, nominal_ms = log.create()
    assert not advance(log, job, nominal_ms, [nominal_ms + 1])


def test_a_recurring_job_completes_when_its_timetable_ended_and_nothing_is_under_way(log):
    hold = recurring(log, first_in_ms=0, timetable=Timetable((Every(1_000, 0),)))
    job, first_ms = hold
    record = log.machine.job(job)
    log.succeed(hold, log.claim_when_due(hold))
    assert record.state is JobState.ACTIVE
    assert advance(log, job, first_ms, [first_ms + 1_000], ended=True)
    assert record.state is JobState.ACTIVE
    assert len(log.machine.timetables) == 0
    last = (job, first_ms + 1_000)
    log.fail(last, log.claim_when_due(last), non_retryable=True)
    assert record.state is JobState.COMPLETED
    assert log.replay(last) is Verdict.ACCEPTED
    assert record.state is JobState.ACTIVE
    log.succeed(last, log.claim_when_due(last))
    assert record.state is JobState.COMPLETED


def test_the_end_of_an_idle_timetable_completes_its_job(log):
    hold = recurring(log, first_in_ms=0)
    log.succeed(hold, log.claim_when_due(hold))
    assert advance(log, *hold, [], planned_ms=hold[1], ended=True)
    assert log.machine.job(hold[0]).state is JobState.COMPLETED


# Fates


def test_recu_02_an_occurrence_that_catch_up_gives_up_is_withdrawn_with_its_reason(log):
    job, first_ms = recurring(log)
    log.pass_ms(10 * MINUTE_MS)
    later_ms = first_ms + 10 * MINUTE_MS
    fate = Fate(first_ms, first_ms, 1, FateKind.MISSED, "catch_up none")
    rest = Fate(first_ms + 1, later_ms - 1, 9, FateKind.MISSED, "catch_up none")
    assert advance(log, job, first_ms, [later_ms], pending=fate, fates=[rest])
    assert states(log, job) == ["skipped", "scheduled"]
    assert reasons(log, job) == ["missed:catch_up none", ""]
    assert totals(log, job) == (1, 1, 0, 0, 10)
    assert log.machine.counters.missed == 10
    assert log.machine.queues["mail"].skipped == 1


def test_an_occurrence_that_is_leased_already_is_not_withdrawn(log):
    job, first_ms = recurring(log, first_in_ms=0)
    token = log.claim_when_due((job, first_ms))
    fate = Fate(first_ms, first_ms, 1, FateKind.COALESCED, "catch_up one")
    assert advance(log, job, first_ms, [first_ms + MINUTE_MS], pending=fate)
    assert totals(log, job) == (2, 2, 0, 0, 0)
    assert log.succeed((job, first_ms), token) is Verdict.ACCEPTED


def test_the_ledger_joins_neighbours_of_one_fate_and_forgets_the_oldest(log):
    job, at_ms = recurring(log, first_in_ms=0)
    recurrence = log.machine.job(job).recurrence
    for step in range(2 * LEDGER_KEPT):
        fates = [
            Fate(at_ms + 1, at_ms + 2, 2, FateKind.MISSED, "limit"),
            Fate(at_ms + 3, at_ms + 3, 1, FateKind.MISSED, "limit"),
            Fate(at_ms + 4, at_ms + 4, 1, FateKind.COALESCED, "catch_up one"),
        ]
        assert advance(log, job, at_ms, [], at_ms + 5, fates=fates), step
        at_ms += 5
    assert len(recurrence.ledger) == LEDGER_KEPT
    assert recurrence.ledger[-2:] == [
        Fate(at_ms - 4, at_ms - 2, 3, FateKind.MISSED, "limit"),
        Fate(at_ms - 1, at_ms - 1, 1, FateKind.COALESCED, "catch_up one"),
    ]
    assert (recurrence.missed, recurrence.coalesced) == (6 * LEDGER_KEPT, 2 * LEDGER_KEPT)


def test_what_retention_drops_of_a_timetable_goes_to_its_ledger(log):
    log.settings(keep_finished=0)
    job, _ = recurring(log, first_in_ms=0)
    for _ in range(3):
        hold = come_due(log, job)
        log.succeed(hold, log.claim_when_due(hold))
    log.apply()
    last_ms = hold[1]
    assert states(log, job) == ["scheduled"]
    assert log.machine.job(job).recurrence.ledger == [
        Fate(last_ms - 2 * MINUTE_MS, last_ms, 3, FateKind.FIRED, "succeeded")
    ]


def test_what_was_asked_for_beside_the_timetable_leaves_no_line_in_the_ledger(log):
    log.settings(keep_finished=0)
    job, _ = recurring(log, first_in_ms=MINUTE_MS)
    ((status, nominal_ms),) = [fields(log.apply(TriggerJob(job))[0])]
    log.succeed((job, nominal_ms), log.claim_when_due((job, nominal_ms)))
    log.apply()
    recurrence = log.machine.job(job).recurrence
    assert status is TriggerStatus.CREATED
    assert (recurrence.ledger, recurrence.asked) == ([], {})


def fields(verdict):
    return verdict.status, verdict.nominal_ms


# The budget of runs of the past


def test_runs_of_the_past_come_out_of_a_budget_that_log_time_refills(log):
    log.settings(catch_up_per_s=2)
    job, at_ms = recurring(log, first_in_ms=0)
    room = log.machine.catch_up_room
    assert room(log.now_ms) == 20
    assert advance(log, job, at_ms, [at_ms + step for step in range(1, 16)], caught_up=15)
    assert room(log.now_ms) == 5
    item = Advance(job, 1, at_ms + 15, [at_ms + 16], at_ms + 16, caught_up=1)
    many = list(range(at_ms + 16, at_ms + 22))
    six = Advance(job, 1, at_ms + 15, many, at_ms + 21, caught_up=6)
    assert log.apply(AdvanceTimetables([six])) == [[Moved.NO_BUDGET]]
    assert log.machine.job(job).planned_ms == at_ms + 15
    assert log.apply(AdvanceTimetables([item])) == [[Moved.MOVED]]
    assert room(log.now_ms) == 4
    assert room(log.now_ms + 499) == 4
    assert room(log.now_ms + 500) == 5
    assert room(log.now_ms + 60_000) == 20
    assert log.machine.counters.caught_up == 16


def test_a_budget_of_zero_bounds_nothing(log):
    log.settings(catch_up_per_s=0)
    job, at_ms = recurring(log, first_in_ms=0)
    assert advance(log, job, at_ms, list(range(at_ms + 1, at_ms + 1_001)), caught_up=1_000)
    assert log.machine.catch_up_room(log.now_ms) >= 1_000


# Overlap


def test_recu_08_allow_lets_occurrences_run_side_by_side(log):
    job, _ = recurring(log, first_in_ms=0)
    holds = [come_due(log, job) for _ in range(3)]
    assert all(log.claim(*holds))


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_running"])
def test_recu_08_never_two_of_a_job_are_leased_at_a_time(log, overlap):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap(overlap))
    first = come_due(log, job)
    assert log.claim(first) != [0]
    second = come_due(log, job)
    assert log.claim(second) == [0]
    ahead = (job, log.machine.job(job).planned_ms)
    log.now_ms = ahead[1]
    assert log.claim(ahead) == [0]


def test_recu_08_skip_leaves_out_what_comes_due_while_another_is_active(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("skip"))
    first = come_due(log, job)
    token = log.claim_when_due(first)
    come_due(log, job)
    come_due(log, job)
    assert states(log, job) == ["leased", "skipped", "skipped", "scheduled"]
    assert reasons(log, job)[1] == "skipped:overlap"
    assert totals(log, job) == (4, 2, 0, 2, 0)
    log.succeed(first, token)
    fourth = come_due(log, job)
    assert log.claim(fourth) != [0]


def test_recu_08_an_occurrence_without_a_worker_is_active_too(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("skip"))
    come_due(log, job)
    come_due(log, job)
    assert states(log, job) == ["scheduled", "skipped", "scheduled"]


@pytest.mark.parametrize("end", ["success", "death", "expiry", "cancel"])
def test_recu_08_every_end_frees_the_slot(log, end):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("buffer_one"))
    first = come_due(log, job)
    token = log.claim_when_due(first)
    second = come_due(log, job)
    if end == "success":
        log.succeed(first, token)
    elif end == "death":
        log.fail(first, token, non_retryable=True)
    elif end == "expiry":
        for attempt in range(3):
            assert log.expire(first, token) is Verdict.ACCEPTED
            if attempt < 2:
                assert log.claim(second) == [0]
                token = log.claim_when_due(first)
    else:
        assert log.cancel(first)
        assert log.release(first, token) is Verdict.ACCEPTED
        assert states(log, job) == ["cancelled"] * 3
        return
    assert log.execution(second) in log.applied.touched, "it is to be made ready now"
    assert log.claim(second) != [0]


def test_recu_08_a_retry_keeps_the_slot_while_it_waits(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("skip"))
    first = come_due(log, job)
    log.fail(first, log.claim_when_due(first), retry_after_ms=10 * MINUTE_MS)
    come_due(log, job)
    assert states(log, job) == ["scheduled", "skipped", "scheduled"]


def test_recu_08_buffer_one_lets_one_wait_and_no_more(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("buffer_one"))
    first = come_due(log, job)
    token = log.claim_when_due(first)
    second = come_due(log, job)
    come_due(log, job)
    assert states(log, job) == ["leased", "scheduled", "skipped", "scheduled"]
    log.succeed(first, token)
    assert log.claim(second) != [0]
    come_due(log, job)
    assert states(log, job) == ["succeeded", "leased", "skipped", "scheduled", "scheduled"]


def test_recu_08_cancel_running_asks_the_holder_and_lets_the_newest_wait(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("cancel_running"))
    first = come_due(log, job)
    token = log.claim_when_due(first)
    come_due(log, job)
    assert log.execution(first).cancel_requested
    assert log.execution(first) in log.applied.touched
    third = come_due(log, job)
    assert states(log, job) == ["leased", "skipped", "scheduled", "scheduled"]
    assert reasons(log, job)[1] == "skipped:superseded"
    assert log.fail(first, token) is Verdict.ACCEPTED
    assert log.execution(first).state is ExecutionState.CANCELLED
    assert log.claim(third) != [0]


def test_recu_08_cancel_running_ends_what_waits_for_its_next_attempt(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("cancel_running"))
    first = come_due(log, job)
    log.fail(first, log.claim_when_due(first), retry_after_ms=10 * MINUTE_MS)
    second = come_due(log, job)
    assert states(log, job) == ["cancelled", "scheduled", "scheduled"]
    assert log.claim(second) != [0]


def test_recu_08_the_rule_holds_over_a_restored_state(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("buffer_one"))
    first = come_due(log, job)
    token = log.claim_when_due(first)
    second = come_due(log, job)
    log.machine.load(list(log.machine.dump()))
    assert log.claim(second) == [0]
    come_due(log, job)
    assert states(log, job) == ["leased", "scheduled", "skipped", "scheduled"]
    log.succeed(first, token)
    assert log.claim(second) != [0]


def test_a_replayed_occurrence_goes_before_those_that_wait(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("buffer_one"))
    first = come_due(log, job)
    log.fail(first, log.claim_when_due(first), non_retryable=True)
    second = come_due(log, job)
    assert log.replay(first) is Verdict.ACCEPTED
    assert log.claim(second) == [0]
    token = log.claim_when_due(first)
    log.succeed(first, token)
    assert log.claim(second) != [0]


# Jitter


def test_jitter_shifts_a_timetable_as_a_whole(log):
    jobs = [
        recurring(log, timetable=Timetable((Cron("* * * * *"),), jitter_ms=30_000))
        for _ in range(40)
    ]
    offsets = set()
    for job, first_ms in jobs:
        offset_ms = jitter_offset(job, 30_000)
        assert 0 <= offset_ms <= 30_000
        offsets.add(offset_ms)
        assert log.execution((job, first_ms)).due_ms == first_ms + offset_ms
        assert log.machine.job(job).moves_at_ms == first_ms + offset_ms
    assert len(offsets) > 30
    job, first_ms = jobs[0]
    come_due(log, job)
    following = log.execution((job, first_ms + MINUTE_MS))
    assert following.due_ms - following.nominal_ms == jitter_offset(job, 30_000)
    assert jitter_offset(job, 0) == 0


# Pause and resume


def pause(log, job, reason=""):
    return log.apply(PauseJob(job, reason))[0].status


def resume(log, job, catch_up=False):
    return log.apply(ResumeJob(job, catch_up))[0].status


def test_no_time_before_the_creation_of_a_job_comes_up_by_its_jitter(log):
    made_ms = log.now_ms
    job, _ = recurring(log, timetable=with_overlap("allow", jitter_ms=86_400_000))
    record = log.machine.job(job)
    assert record.moves_at_ms - record.planned_ms > MINUTE_MS, "the offset of this job"
    log.pass_ms(10)
    assert pause(log, job) is ChangeStatus.CHANGED
    assert resume(log, job) is ChangeStatus.CHANGED
    assert record.planned_ms == made_ms, "the next time is one after it"


def test_a_pause_takes_back_what_is_not_due_and_lets_the_rest_go_on(log):
    job, _ = recurring(log, first_in_ms=0)
    due = come_due(log, job)
    log.pass_ms(10)
    assert pause(log, job, "maintenance") is ChangeStatus.CHANGED
    record = log.machine.job(job)
    assert states(log, job) == ["scheduled"]
    assert (record.recurrence.paused_ms, record.recurrence.pause_reason) == (
        log.now_ms,
        "maintenance",
    )
    assert record.planned_ms == log.now_ms
    assert len(log.machine.timetables) == 0
    assert totals(log, job) == (1, 1, 0, 0, 0)
    assert log.machine.counters.withdrawn == 1
    assert log.claim(due) != [0]
    assert pause(log, job) is ChangeStatus.UNCHANGED
    assert not advance(log, job, record.planned_ms, [record.planned_ms + 1])


def test_a_job_that_is_paused_before_its_first_run_goes_no_further_back_than_its_creation(log):
    wide = Timetable(MINUTELY.rules, jitter_ms=86_400_000)
    job, first_ms = recurring(log, first_in_ms=10, timetable=wide)
    assert jitter_offset(job, 86_400_000) > 60_000
    created_ms = log.now_ms
    log.pass_ms(60_000)
    pause(log, job)
    assert states(log, job) == []
    assert log.machine.job(job).planned_ms == created_ms < first_ms


def test_resuming_says_what_fell_into_the_pause(log):
    job, _ = recurring(log)
    pause(log, job)
    log.pass_ms(90_000)
    assert resume(log, job) is ChangeStatus.CHANGED
    record = log.machine.job(job)
    assert (record.recurrence.skip_to_ms, record.recurrence.paused_ms) == (log.now_ms, 0)
    assert log.machine.timetables.items(log.machine.timetables.first()) == [record]
    assert record in log.applied.touched
    assert resume(log, job) is ChangeStatus.UNCHANGED
    pause(log, job)
    log.pass_ms(5)
    before = record.recurrence.skip_to_ms
    resume(log, job, catch_up=True)
    assert record.recurrence.skip_to_ms == before


def test_a_pause_and_a_resume_make_no_nominal_time_come_twice(log):
    job, first_ms = recurring(log, first_in_ms=0)
    come_due(log, job)
    pause(log, job)
    record = log.machine.job(job)
    assert record.planned_ms >= first_ms
    resume(log, job)
    assert record.planned_ms >= first_ms


def test_a_death_pauses_a_timetable_that_wants_it(log):
    timetable = Timetable((Cron("* * * * *"),), pause_on_failure=True)
    job, _ = recurring(log, first_in_ms=0, timetable=timetable)
    hold = come_due(log, job)
    log.fail(hold, log.claim_when_due(hold), non_retryable=True)
    recurrence = log.machine.job(job).recurrence
    assert (recurrence.paused_ms, recurrence.pause_reason) == (log.now_ms, "failure")
    assert states(log, job) == ["dead"]
    other, _ = recurring(log, first_in_ms=0)
    hold = come_due(log, other)
    log.fail(hold, log.claim_when_due(hold), non_retryable=True)
    assert not log.machine.job(other).recurrence.paused_ms


def test_only_a_timetable_that_goes_on_is_paused(log):
    one_shot, _ = log.create()
    assert pause(log, one_shot) is ChangeStatus.NOT_RECURRING
    assert pause(log, 1) is ChangeStatus.UNKNOWN
    job, _ = recurring(log)
    log.cancel((job, 0))
    assert pause(log, job) is ChangeStatus.ENDED
    assert resume(log, job) is ChangeStatus.ENDED


def test_a_paused_job_that_is_cancelled_is_forgotten_like_any(log):
    log.settings(keep_finished=0)
    job, _ = recurring(log)
    pause(log, job)
    log.cancel((job, 0))
    log.apply()
    assert log.machine.job(job) is None


# Parking


def test_recu_09_a_timetable_that_fails_stands_still_and_says_why(log):
    job, first_ms = recurring(log)
    other, _ = recurring(log)
    verdict = log.apply(
        ParkTimetables([(job, 2, "stale"), (job, 1, "next is not later"), (1, 1, "")])
    )
    assert verdict == [[False, True, False]]
    record = log.machine.job(job)
    assert record.recurrence.parked == "next is not later"
    assert [one.id for _, jobs in log.machine.timetables.upto(2**62) for one in jobs] == [other]
    assert not advance(log, job, first_ms, [first_ms + 1])
    assert log.claim((job, first_ms)) == [0], "not due yet"
    assert log.apply(ParkTimetables([(job, 1, "again")])) == [[False]]
    assert resume(log, job) is ChangeStatus.CHANGED
    assert (record.recurrence.parked, record.recurrence.skip_to_ms) == ("", 0)
    assert advance(log, job, first_ms, [first_ms + 1])


def test_timetables_that_stand_still_are_counted_whatever_becomes_of_them(log):
    first, second, third = (recurring(log)[0] for _ in range(3))

    def counted():
        before = log.machine.paused_timetables, log.machine.parked_timetables
        log.machine.load(list(log.machine.dump()))
        after = log.machine.paused_timetables, log.machine.parked_timetables
        assert before == after
        return before

    pause(log, first)
    pause(log, second)
    log.apply(ParkTimetables([(third, 1, "it fails")]))
    assert counted() == (2, 1)
    pause(log, third)
    assert counted() == (3, 1), "one may stand still for two reasons"
    log.apply(UpdateJob(third, 0, Change(payload=b"\x01")))
    assert counted() == (3, 0)
    resume(log, third)
    log.cancel((second, 0))
    assert counted() == (1, 0)
    resume(log, first)
    assert counted() == (0, 0)


# Trigger and backfill


def trigger(log, job, request_id=""):
    return log.apply(TriggerJob(job, request_id))[0]


def test_a_trigger_makes_one_occurrence_now_and_leaves_the_timetable_alone(log):
    job, first_ms = recurring(log, first_in_ms=MINUTE_MS)
    before = totals(log, job)
    assert trigger(log, job) == Triggered(TriggerStatus.CREATED, log.now_ms)
    assert trigger(log, job) == Triggered(TriggerStatus.CREATED, log.now_ms + 1)
    record = log.machine.job(job)
    nominals = [one.nominal_ms for one in log.machine.executions_of(record)]
    assert nominals == [log.now_ms, log.now_ms + 1, first_ms], "in the order of nominal times"
    assert record.recurrence.asked == {
        log.now_ms: Origin.TRIGGER,
        log.now_ms + 1: Origin.TRIGGER,
    }
    assert (record.planned_ms, totals(log, job)) == (first_ms, before)
    assert log.claim((job, log.now_ms)) != [0]
    log.machine.load(list(log.machine.dump()))


def test_a_trigger_is_repeatable_by_its_request_id(log):
    job, _ = recurring(log)
    other, _ = recurring(log)
    first = trigger(log, job, "t1")
    log.pass_ms(10)
    assert trigger(log, job, "t1") == Triggered(TriggerStatus.DUPLICATE, first.nominal_ms)
    assert trigger(log, other, "t1").status is TriggerStatus.KEY_REUSED
    assert len(log.machine.executions_of(log.machine.job(job))) == 2


def test_a_request_id_of_a_create_is_none_of_a_trigger_and_the_other_way_round(log):
    new = NewJob("mail", b"", log.now_ms + 60_000, timetable=MINUTELY)
    (created,) = log.create_all(new, request_id="shared")
    before = states(log, created.job)
    assert trigger(log, created.job, "shared").status is TriggerStatus.KEY_REUSED
    assert states(log, created.job) == before
    assert trigger(log, created.job, "other").status is TriggerStatus.CREATED
    assert log.create_all(new, request_id="other") == []
    assert len(log.machine.list_jobs().items) == 1


def test_a_trigger_respects_the_overlap_rule(log):
    job, _ = recurring(log, first_in_ms=0, timetable=with_overlap("skip"))
    hold = come_due(log, job)
    log.claim_when_due(hold)
    log.pass_ms(1)
    assert trigger(log, job) == Triggered(TriggerStatus.SKIPPED, log.now_ms)
    assert totals(log, job) == (2, 2, 0, 0, 0)


def test_a_trigger_that_can_not_be_says_why(log):
    one_shot, _ = log.create()
    job, _ = recurring(log)
    log.apply(CancelJobs([job]))
    assert trigger(log, one_shot).status is TriggerStatus.NOT_RECURRING
    assert trigger(log, 1).status is TriggerStatus.UNKNOWN
    assert trigger(log, job).status is TriggerStatus.ENDED
    log.settings(max_pending=1)
    full, _ = recurring(log)
    assert full == 0 or trigger(log, full).status is TriggerStatus.FULL


def test_an_occurrence_at_the_very_instant_of_a_trigger_is_that_one(log):
    job, first_ms = recurring(log, first_in_ms=1)
    log.now_ms = first_ms + MINUTE_MS
    assert trigger(log, job).nominal_ms == first_ms + MINUTE_MS
    assert advance(log, job, first_ms, [first_ms + MINUTE_MS, first_ms + 2 * MINUTE_MS])
    assert len(states(log, job)) == 3
    assert log.machine.job(job).recurrence.asked == {}
    assert totals(log, job) == (3, 3, 0, 0, 0)


def backfill(log, job, nominals, version=1):
    return log.apply(BackfillJob(job, version, nominals))[0]


def test_a_backfill_makes_what_is_not_there(log):
    job, first_ms = recurring(log, first_in_ms=0)
    come_due(log, job)
    past = [first_ms - 2, first_ms - 1, first_ms]
    assert backfill(log, job, past) == Backfilled(
        ChangeStatus.CHANGED, [first_ms - 2, first_ms - 1], [first_ms]
    )
    assert all(log.claim((job, first_ms - 2), (job, first_ms - 1)))
    assert backfill(log, job, past).created == []
    assert totals(log, job) == (2, 2, 0, 0, 0)


def test_a_backfill_sorts_what_a_job_holds_but_once(log):
    moves = Counter()

    class Watched(dict):
        """Counts what putting executions in order does with them."""

        def clear(self):
            moves["all anew"] += 1
            super().clear()

        def popitem(self):
            moves["one step"] += 1
            return super().popitem()

    job, first_ms = recurring(log, first_in_ms=MINUTE_MS)
    record = log.machine.job(job)
    record.executions = Watched(record.executions)
    latest = list(range(log.now_ms - 1_000, log.now_ms))
    earlier = [nominal_ms - 5_000 for nominal_ms in latest]
    assert backfill(log, job, latest).created == latest
    assert backfill(log, job, earlier).created == earlier
    assert trigger(log, job).status is TriggerStatus.CREATED
    nominals = [one.nominal_ms for one in log.machine.executions_of(record)]
    assert nominals == [*earlier, *latest, log.now_ms, first_ms], "in the order of nominal times"
    assert moves == {"all anew": 2, "one step": 1}


def test_a_backfill_goes_one_after_another_and_is_not_skipped(log):
    job, first_ms = recurring(log, first_in_ms=MINUTE_MS, timetable=with_overlap("skip"))
    past = [first_ms - 3_000_000, first_ms - 2_000_000, first_ms - 1_000_000]
    assert len(backfill(log, job, past).created) == 3
    for nominal_ms in past:
        rest = [(job, other) for other in past if other > nominal_ms]
        assert log.claim(*rest) == [0] * len(rest)
        log.succeed((job, nominal_ms), log.claim_when_due((job, nominal_ms)))
    assert states(log, job) == ["succeeded"] * 3 + ["scheduled"]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_running"])
def test_a_backfill_that_waits_loses_nothing_to_what_comes_due(log, overlap):
    job, first_ms = recurring(log, first_in_ms=10, timetable=with_overlap(overlap))
    past = [first_ms - 60_000, first_ms - 30_000]
    assert backfill(log, job, past).created == past
    come_due(log, job)
    assert states(log, job)[:2] == ["scheduled"] * 2


def test_a_backfill_that_can_not_be_says_why(log):
    job, _ = recurring(log)
    one_shot, _ = log.create()
    assert backfill(log, job, [1], version=2).status is ChangeStatus.OTHER_VERSION
    assert backfill(log, job, [log.now_ms + 1]).status is ChangeStatus.INVALID
    assert backfill(log, job, [-1]).status is ChangeStatus.INVALID
    assert backfill(log, job, list(range(1_001))).status is ChangeStatus.INVALID
    assert backfill(log, one_shot, [1]).status is ChangeStatus.NOT_RECURRING
    assert backfill(log, 1, [1]).status is ChangeStatus.UNKNOWN
    log.settings(max_pending=3)
    assert backfill(log, job, [1, 2]).status is ChangeStatus.FULL
    log.cancel((job, 0))
    assert backfill(log, job, [1]).status is ChangeStatus.ENDED

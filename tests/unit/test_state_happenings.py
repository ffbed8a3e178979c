"""What `apply` tells of an entry: each transition once, in order, on any node."""

from __future__ import annotations

from timeball.cluster.state.happenings import RETRY, Happened
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CancelJobs,
    Change,
    ClusterSettings,
    Every,
    Fate,
    Lead,
    NewJob,
    PauseJob,
    PurgeDead,
    PutJob,
    Replay,
    ResumeJob,
    Timetable,
    TriggerJob,
    UpdateJob,
    encode_entry,
)
from timeball.cluster.state.records import ExecutionState, FateKind


def told(log):
    """What happened in the latest entry, by name."""
    return [Happened(one[0]).name for one in log.applied.happened]


def test_a_life_is_told_step_by_step(log):
    hold, token = log.claimed()
    (leased,) = log.applied.happened
    assert leased == (
        *(Happened.LEASED, ExecutionState.LEASED, "mail", hold[0], hold[1]),
        *(token, 1, hold[1], "w1", ""),
    )
    log.start(hold, token)
    assert told(log) == ["STARTED"]
    log.succeed(hold, token)
    assert told(log) == ["SUCCEEDED"]
    assert log.applied.happened[0][1] == ExecutionState.SUCCEEDED


def test_what_changes_nothing_tells_nothing(log):
    hold, token = log.claimed()
    log.succeed(hold, token)
    log.succeed(hold, token)
    assert told(log) == []
    log.succeed(hold, token + 1)
    assert told(log) == []


def test_a_failure_tells_what_follows(log):
    hold, token = log.claimed()
    log.fail(hold, token, error_type="Boom")
    (failed,) = log.applied.happened
    assert (failed[0], failed[1], failed[8]) == (Happened.FAILED, RETRY, "Boom")
    assert failed[7] == log.machine.execution(*hold).due_ms
    log.pass_ms(60_000)
    (token,) = log.claim(hold)
    log.fail(hold, token, error_type="Worse", non_retryable=True)
    (died,) = log.applied.happened
    assert (died[1], died[6]) == (ExecutionState.DEAD, 2)
    assert died[8:] == ("Worse", "non_retryable")
    log.apply(Replay([(*hold, 0)]))
    (replayed,) = log.applied.happened
    assert replayed[:2] == (Happened.REPLAYED, ExecutionState.SCHEDULED)


def test_releases_expiries_and_cancels(log):
    hold, token = log.claimed()
    log.release(hold, token)
    assert log.applied.happened[0][:2] == (Happened.RELEASED, ExecutionState.SCHEDULED)
    (token,) = log.claim(hold)
    log.expire(hold, token)
    assert log.applied.happened[0][:2] == (Happened.EXPIRED, RETRY)
    log.pass_ms(60_000)
    (token,) = log.claim(hold)
    log.apply(CancelJobs([hold[0]]))
    assert told(log) == ["JOB_CANCELLED", "CANCEL_REQUESTED"]
    log.apply(CancelJobs([hold[0]]))
    assert told(log) == []
    log.release(hold, token)
    assert log.applied.happened[0][:2] == (Happened.RELEASED, ExecutionState.CANCELLED)


def test_dead_letters_leave_by_request_and_by_retention(log):
    holds = []
    for _ in range(2):
        hold, token = log.claimed()
        log.fail(hold, token, non_retryable=True)
        holds.append(hold)
    log.apply(PurgeDead([(*holds[0], 0)]))
    assert [(one[0], one[9]) for one in log.applied.happened] == [(Happened.PURGED, "requested")]
    log.settings(keep_dead=0)
    assert [(one[0], one[9]) for one in log.applied.happened] == [(Happened.PURGED, "retention")]


def recurring(log, **timetable):
    new = NewJob(
        "mail", b"\xc0", log.now_ms + 1_000, timetable=Timetable((Every(1_000, 0),), **timetable)
    )
    (changed,) = log.apply(PutJob("nightly", new))
    return log.machine.job(changed.job)


def test_the_life_of_a_recurring_job(log):
    job = recurring(log)
    assert told(log) == ["JOB_CREATED", "CREATED"]
    assert log.applied.happened[0][8] == "nightly"
    log.apply(PauseJob(job.id, "holiday"))
    assert told(log) == ["WITHDRAWN", "JOB_PAUSED"]
    assert log.applied.happened[1][9] == "holiday"
    log.apply(PauseJob(job.id, "holiday"))
    assert told(log) == []
    log.apply(ResumeJob(job.id))
    assert told(log) == ["JOB_RESUMED"]
    log.apply(UpdateJob(job.id, 0, Change(payload=b"\x01")))
    assert told(log) == ["JOB_UPDATED"]
    assert log.applied.happened[0][6] == 2
    log.apply(TriggerJob(job.id, ""))
    assert told(log) == ["CREATED"]
    log.apply(CancelJobs([job.id]))
    assert told(log) == ["JOB_CANCELLED", "CANCELLED"]


def test_nominal_times_without_an_execution_are_counted(log):
    job = recurring(log)
    planned = job.planned_ms
    log.pass_ms(60_000)
    fate = Fate(planned + 1_000, planned + 9_000, 9, FateKind.MISSED, "catch_up")
    log.apply(
        AdvanceTimetables([Advance(job.id, 1, planned, [], planned + 9_000, [fate], ended=True)])
    )
    assert told(log) == ["JOB_MISSED"]
    missed = log.applied.happened[0]
    assert (missed[4], missed[6], missed[7], missed[9]) == (
        *(planned + 9_000, 9, planned + 1_000),
        "catch_up",
    )
    hold = (job.id, planned)
    (token,) = log.claim(hold)
    log.fail(hold, token, non_retryable=True)
    assert told(log) == ["FAILED", "JOB_COMPLETED"]
    log.apply(Replay([(*hold, 0)]))
    assert told(log) == ["JOB_REOPENED", "REPLAYED"]


def test_a_job_that_is_planned_anew_has_another_execution(log):
    hold = log.create(first_ms=log.now_ms + 5_000)
    log.apply(UpdateJob(hold[0], 0, Change(first_ms=log.now_ms + 9_000)))
    assert told(log) == ["WITHDRAWN", "CREATED", "JOB_UPDATED"]
    assert [one[4] - log.now_ms for one in [*log.applied.happened][:2]] == [5_000, 9_000]


def test_an_entry_tells_which_came_before_it(log):
    log.create()
    assert log.applied.previous == log.index - 1
    log.index += 5  # entries of consensus itself
    log.create()
    assert log.applied.previous == log.index - 6
    machine = StateMachine()
    machine.load(list(log.machine.dump()))
    applied = machine.apply(
        log.index + 3, encode_entry(log.now_ms, [Lead("n1", ClusterSettings())])
    )
    assert applied.previous == log.index

"""Changes of a job's definition: update and put. What began keeps what it began with."""

from __future__ import annotations

import pytest

from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.limits import MAX_PAYLOAD_BYTES, MAX_TIME_MS
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    Change,
    Cron,
    Every,
    NewJob,
    ParkTimetables,
    PauseJob,
    PutJob,
    RetryPolicy,
    Timetable,
    UpdateJob,
)
from timeball.cluster.state.records import ExecutionState, JobState, definition_of
from timeball.cluster.state.sizes import kept_bytes
from timeball.cluster.state.verdicts import Changed, ChangeStatus, CreateStatus, Moved, Verdict

EVERY_MINUTE = Timetable((Every(60_000, 0),))
EVERY_SECOND = Timetable((Every(1_000, 0),))


def recurring(log, first_in_ms=60_000, timetable=EVERY_MINUTE, **rest):
    return log.create(timetable=timetable, first_ms=log.now_ms + first_in_ms, **rest)


def update(log, job, version=0, **change):
    return log.apply(UpdateJob(job, version, Change(**change)))[0]


def put(log, name="nightly", timetable=EVERY_MINUTE, first_in_ms=60_000, queue="q", **rest):
    payload = rest.pop("payload", b"\xc0")
    new = NewJob(queue, payload, log.now_ms + first_in_ms, timetable=timetable, **rest)
    return log.apply(PutJob(name, new))[0]


def advance(log, job, nominals, version=None):
    record = log.machine.job(job)
    item = Advance(job, version or record.version, record.planned_ms, nominals, nominals[-1])
    return log.apply(AdvanceTimetables([item]))[0][0]


def scheduled(log, job):
    return [
        one.nominal_ms
        for one in log.machine.executions_of(log.machine.job(job))
        if one.state is ExecutionState.SCHEDULED
    ]


# One-shot jobs


def test_a_one_shot_job_is_planned_anew(log):
    job, first_ms = log.create(delay_ms=10_000)
    assert update(log, job, first_ms=first_ms + 5) == Changed(ChangeStatus.CHANGED, job, 2)
    assert log.machine.execution(job, first_ms) is None
    assert log.claim((job, first_ms + 5)) == [0], "not due yet"
    assert update(log, job, delay_ms=0) == Changed(ChangeStatus.CHANGED, job, 3)
    (found,) = scheduled(log, job)
    assert found == log.now_ms
    assert log.machine.execution(job, found) in log.applied.touched
    assert log.claim((job, found)) != [0]


def test_timr_06_rescheduled_ten_thousand_times_it_is_there_once(log):
    job, _ = log.create(delay_ms=10)
    for step in range(10_000):
        log.pass_ms(step % 3)
        assert update(log, job, delay_ms=step * 7_919 % 23 + 1).status is ChangeStatus.CHANGED
        assert len(log.machine.pending) == 1
    assert len(scheduled(log, job)) == 1
    assert log.machine.job(job).version == 10_001
    log.machine.load(list(log.machine.dump()))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": b"\x01"}, "payload"),
        ({"priority": 9}, "priority"),
        ({"timeout_ms": 7}, "timeout_ms"),
        ({"retry": RetryPolicy(9)}, "retry"),
    ],
)
def test_each_part_changes_alone(log, change, field):
    job, first_ms = log.create(delay_ms=10_000)
    assert update(log, job, **change) == Changed(ChangeStatus.CHANGED, job, 2)
    assert getattr(log.machine.job(job), field) == change[field]
    assert scheduled(log, job) == [first_ms]
    assert update(log, job, **change) == Changed(ChangeStatus.UNCHANGED, job, 2)


def test_a_one_shot_job_that_began_or_ended_does_not_change(log):
    hold, token = log.claimed()
    assert update(log, hold[0], payload=b"\x01").status is ChangeStatus.BEGUN
    log.fail(hold, token)
    assert update(log, hold[0], delay_ms=0).status is ChangeStatus.BEGUN
    log.succeed(hold, log.claim_when_due(hold))
    assert update(log, hold[0], delay_ms=0).status is ChangeStatus.ENDED
    assert log.machine.job(hold[0]).version == 1


def test_a_key_answers_with_the_execution_that_there_is(log):
    new = NewJob("q", b"", delay_ms=9_000, idempotency_key="k", fingerprint=b"f")
    (created,) = log.create_all(new)
    update(log, created.job, first_ms=log.now_ms + 50)
    (again,) = log.create_all(new)
    assert again.status is CreateStatus.DUPLICATE
    assert log.machine.execution(again.job, again.nominal_ms) is not None


# Versions


def test_a_change_may_be_conditional_on_the_version(log):
    job, _ = recurring(log)
    assert update(log, job, 2, priority=1) == Changed(ChangeStatus.OTHER_VERSION, job, 1)
    assert update(log, job, 1, priority=1) == Changed(ChangeStatus.CHANGED, job, 2)
    assert update(log, job, 1, priority=2) == Changed(ChangeStatus.OTHER_VERSION, job, 2)
    assert update(log, 1, priority=2).status is ChangeStatus.UNKNOWN


def test_recu_06_a_step_planned_under_an_earlier_version_counts_no_more(log):
    job, first_ms = recurring(log)
    update(log, job, timetable=EVERY_SECOND)
    stood_ms = log.machine.job(job).planned_ms
    update(log, job, timetable=EVERY_MINUTE)
    assert log.machine.job(job).planned_ms == stood_ms, "the same log-time"
    assert advance(log, job, [first_ms], version=2) is Moved.STALE
    assert advance(log, job, [first_ms], version=3) is Moved.MOVED


# Recurring jobs


def test_recu_06_the_pending_occurrence_follows_the_new_timetable(log):
    job, first_ms = recurring(log)
    log.pass_ms(10)
    assert update(log, job, timetable=EVERY_SECOND) == Changed(ChangeStatus.CHANGED, job, 2)
    record = log.machine.job(job)
    assert scheduled(log, job) == []
    assert record.planned_ms == log.now_ms
    assert record in log.applied.touched
    assert advance(log, job, [log.now_ms + 990]) is Moved.MOVED
    assert scheduled(log, job) == [log.now_ms + 990]
    assert log.machine.execution(job, first_ms) is None
    assert (record.recurrence.made, record.recurrence.fired) == (1, 1)


def test_recu_06_what_is_due_already_is_not_taken_back(log):
    job, first_ms = recurring(log, first_in_ms=0)
    log.pass_ms(5)
    update(log, job, timetable=EVERY_SECOND)
    assert scheduled(log, job) == [first_ms]
    assert log.machine.job(job).planned_ms == first_ms


def test_recu_06_a_hundred_edits_leave_one_pending_occurrence_of_the_last(log):
    job, _ = recurring(log)
    for step in range(100):
        interval_ms = 1_000 + step
        update(log, job, timetable=Timetable((Every(interval_ms, 0),)))
        if step % 4 == 0:
            advance(log, job, [log.now_ms + interval_ms])
        log.pass_ms(10)
    advance(log, job, [log.now_ms + 77])
    assert scheduled(log, job) == [log.now_ms + 77]
    assert log.machine.job(job).timetable == Timetable((Every(1_099, 0),))


def test_an_edit_of_other_parts_leaves_the_pending_occurrence(log):
    job, first_ms = recurring(log)
    update(log, job, payload=b"\x02", priority=1)
    assert scheduled(log, job) == [first_ms]
    assert log.machine.execution(job, first_ms) in log.applied.touched, "its priority is new"


def test_recu_06_what_began_keeps_its_definition_to_its_end(log):
    job, _ = recurring(log, first_in_ms=0, payload=b"\x01", retry=RetryPolicy(2, 10, jitter_pct=0))
    first = (job, log.machine.job(job).planned_ms)
    advance(log, job, [first[1] + 1])
    second = (job, first[1] + 1)
    token = log.claim_when_due(first)
    update(log, job, payload=b"\x02", priority=1, timeout_ms=50, retry=RetryPolicy(9))
    began = definition_of(log.execution(first))
    assert (began.payload, began.priority, began.timeout_ms) == (b"\x01", 5, 0)
    assert (began.version, definition_of(log.execution(second)).version) == (1, 2)
    assert definition_of(log.execution(second)).payload == b"\x02"
    log.machine.load(list(log.machine.dump()))
    log.fail(first, token)
    assert definition_of(log.execution(first)).payload == b"\x01", "a retry, too"
    log.fail(first, log.claim_when_due(first))
    assert log.execution(first).state is ExecutionState.DEAD, "by the old policy of two attempts"
    update(log, job, payload=b"\x03")
    assert log.replay(first) is Verdict.ACCEPTED
    assert definition_of(log.execution(first)).payload == b"\x01"
    log.succeed(first, log.claim_when_due(first))
    assert log.machine.job(job).recurrence.begun == {}


def test_what_is_kept_counts_for_the_payload_that_its_job_has(log):
    job, _ = recurring(log, first_in_ms=0, payload=b"\x01")
    done = (job, log.machine.job(job).planned_ms)
    advance(log, job, [done[1] + 1])
    dead = (job, done[1] + 1)
    log.succeed(done, log.claim_when_due(done))
    log.fail(dead, log.claim_when_due(dead), non_retryable=True)
    update(log, job, payload=b"longer than before")
    store = log.machine._store
    assert store.finished_bytes == sum(kept_bytes(one) for one in store.finished)
    assert store.dead_bytes == sum(kept_bytes(one) for one in store.dead)
    assert store.dead_bytes < store.finished_bytes


def test_an_edit_lets_a_parked_timetable_go_on(log):
    job, first_ms = recurring(log)
    log.apply(ParkTimetables([(job, 1, "broken")]))
    assert update(log, job, timetable=EVERY_SECOND).status is ChangeStatus.CHANGED
    assert log.machine.job(job).recurrence.parked == ""
    assert len(log.machine.timetables) == 1
    assert scheduled(log, job) == []
    assert log.machine.execution(job, first_ms) is None


def test_an_edit_leaves_a_pause_as_it_is(log):
    job, _ = recurring(log)
    log.apply(PauseJob(job))
    assert update(log, job, timetable=EVERY_SECOND).status is ChangeStatus.CHANGED
    assert log.machine.job(job).recurrence.paused_ms
    assert len(log.machine.timetables) == 0


def test_an_edit_of_the_jitter_loses_no_occurrence_and_repeats_none(log):
    wide = Timetable((Every(60_000, 0),), jitter_ms=50_000)
    job, first_ms = recurring(log, first_in_ms=0, timetable=wide)
    offset_ms = jitter_offset(job, 50_000)
    assert offset_ms > 2
    log.now_ms = first_ms + offset_ms - 1
    update(log, job, timetable=EVERY_MINUTE)
    assert log.machine.job(job).planned_ms == first_ms - 1, "it was not due, and would have been"
    assert advance(log, job, [first_ms, first_ms + 60_000]) is Moved.MOVED
    assert scheduled(log, job) == [first_ms, first_ms + 60_000]
    update(log, job, timetable=wide)
    assert scheduled(log, job) == [first_ms]
    assert log.machine.job(job).planned_ms == first_ms, "which has had its turn"


@pytest.mark.parametrize(
    "change",
    [
        {"payload": bytes(MAX_PAYLOAD_BYTES + 1)},
        {"priority": 10},
        {"timeout_ms": 2**62},
        {"retry": RetryPolicy(0)},
        {"timetable": Timetable(())},
        {"timetable": Timetable((Every(0, 0),))},
        {"timetable": Timetable((Cron("x" * 257),))},
        {"timetable": Timetable((Cron("* * * * *"),), overlap="perhaps")},
        {"timetable": Timetable((Cron("* * * * *"),), catch_up="some")},
        {"timetable": Timetable((Cron("* * * * *"),), jitter_ms=-1)},
        {"timetable": Timetable((Cron("* * * * *"),), until_ms=MAX_TIME_MS + 1)},
        {"first_ms": MAX_TIME_MS + 1},
        {"delay_ms": 2**62},
    ],
    ids=str,
)
def test_what_is_beyond_the_limits_changes_nothing(log, change):
    job, _ = recurring(log)
    before = log.machine.digest()
    assert update(log, job, **change) == Changed(ChangeStatus.INVALID, job, 1)
    log.machine._store.applied_index -= 1
    assert log.machine.digest() == before


def test_a_change_must_fit_the_kind_of_job(log):
    one_shot, _ = log.create(delay_ms=9_000)
    job, _ = recurring(log)
    assert update(log, one_shot, timetable=EVERY_MINUTE).status is ChangeStatus.NOT_RECURRING
    assert update(log, job, delay_ms=0).status is ChangeStatus.RECURRING
    log.cancel((job, 0))
    assert update(log, job, priority=1).status is ChangeStatus.ENDED


# Names


def test_a_put_creates_changes_or_leaves_as_it_is(log):
    created = put(log)
    assert created == Changed(ChangeStatus.CREATED, created.job, 1)
    assert log.machine.named("nightly").id == created.job
    assert put(log) == Changed(ChangeStatus.UNCHANGED, created.job, 1)
    assert put(log, payload=b"\x05") == Changed(ChangeStatus.CHANGED, created.job, 2)
    assert put(log, timetable=EVERY_SECOND) == Changed(ChangeStatus.CHANGED, created.job, 3)
    assert log.machine.job(created.job).payload == b"\xc0", "a put gives the whole definition"
    assert put(log, "other").job != created.job


def test_recu_06_deleted_and_put_again_it_is_a_new_job(log):
    first = put(log)
    hold = (first.job, log.machine.job(first.job).planned_ms)
    log.now_ms = hold[1]
    log.claim_when_due(hold)
    log.cancel(hold)
    assert log.machine.named("nightly") is None
    second = put(log)
    assert (second.status, second.version) == (ChangeStatus.CREATED, 1)
    assert second.job != first.job
    assert log.machine.job(first.job).state is JobState.CANCELLED
    log.machine.load(list(log.machine.dump()))
    assert log.machine.named("nightly").id == second.job


def test_a_put_does_not_move_a_job_to_another_queue(log):
    job = put(log).job
    assert put(log, queue="other") == Changed(ChangeStatus.FIXED, job, 1)
    assert put(log, partition_key="p") == Changed(ChangeStatus.FIXED, job, 1)


def test_a_put_that_can_not_be_says_why(log):
    assert put(log, name="").status is ChangeStatus.INVALID
    assert put(log, name="x" * 201).status is ChangeStatus.INVALID
    assert put(log, timetable=None).status is ChangeStatus.INVALID
    assert put(log, idempotency_key="k").status is ChangeStatus.INVALID
    assert put(log, timetable=Timetable(())).status is ChangeStatus.INVALID
    log.settings(max_pending=0)
    assert put(log).status is ChangeStatus.FULL

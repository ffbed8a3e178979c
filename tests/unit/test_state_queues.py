"""The settings of queues: what they let be leased, and how they change."""

from __future__ import annotations

import pytest

from timeball.cluster.state import limits
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    CancelJobs,
    Claim,
    ConfigureQueue,
    CreateJobs,
    Every,
    NewJob,
    Options,
    PutJob,
    RetryPolicy,
    Timetable,
    TriggerJob,
)
from timeball.cluster.state.queue_settings import (
    QueueChange,
    QueueSettings,
    RateLimit,
)
from timeball.cluster.state.verdicts import ChangeStatus, CreateStatus, TriggerStatus, Verdict

ONCE = RetryPolicy(1)
AGAIN = RetryPolicy(9, 0, 100, 0, 0)


def configure(log, queue="mail", *, version=-1, **change):
    return log.apply(ConfigureQueue(queue, version, QueueChange(**change)))[0]


def of_key(key, **rest):
    return {"options": Options(key, tags=("tag",)), **rest}


def leased(log, *holds):
    """Which of these a claim gets."""
    return [bool(token) for token in log.claim(*holds)]


def settings_of(log, queue="mail"):
    return log.machine.configured[queue].settings


# How a lease ends


def succeeds(log, hold, token):
    assert log.succeed(hold, token) is Verdict.ACCEPTED


def fails(log, hold, token):
    assert log.fail(hold, token) is Verdict.ACCEPTED


def dies(log, hold, token):
    assert log.fail(hold, token, non_retryable=True) is Verdict.ACCEPTED


def is_released(log, hold, token):
    assert log.release(hold, token) is Verdict.ACCEPTED


def expires(log, hold, token):
    assert log.expire(hold, token) is Verdict.ACCEPTED


def is_cancelled(log, hold, token):
    log.apply(CancelJobs([hold[0]]))
    assert log.release(hold, token) is Verdict.ACCEPTED


def succeeds_after_a_start(log, hold, token):
    log.start(hold, token)
    succeeds(log, hold, token)


ENDS = [
    *(succeeds, succeeds_after_a_start, fails, dies, is_released, expires, is_cancelled),
]


@pytest.mark.parametrize("end", ENDS)
def test_a_queue_has_so_many_leases_at_a_time(log, end):
    configure(log, max_concurrency=2)
    holds = [log.create(retry=AGAIN) for _ in range(4)]
    first, second, *refused = log.claim(*holds)
    assert first
    assert second
    assert refused == [0, 0]
    assert log.claim(*holds[2:]) == [0, 0]
    end(log, holds[0], first)
    assert leased(log, *holds[2:]) == [True, False]


@pytest.mark.parametrize("end", ENDS)
def test_a_key_has_so_many_leases_at_a_time(log, end):
    configure(log, max_concurrency_per_key=1)
    one, other = log.create(retry=AGAIN, **of_key("a")), log.create(**of_key("a"))
    elsewhere, *without = log.create(**of_key("b")), *(log.create(**of_key("")) for _ in "12")
    (token,) = log.claim(one)
    assert leased(log, other, elsewhere, *without, log.create()) == [False, *[True] * 4]
    end(log, one, token)
    assert leased(log, other) == [True]


def test_a_lease_that_expired_is_not_counted_off_twice(log):
    configure(log, max_concurrency=1, max_concurrency_per_key=1)
    one, other = (log.create(retry=AGAIN, **of_key("a")) for _ in range(2))
    (token,) = log.claim(one)
    log.expire(one, token)
    assert leased(log, other) == [True]
    assert log.succeed(one, token) is Verdict.ACCEPTED, "late, and nobody has claimed it since"
    assert leased(log, log.create(**of_key("a"))) == [False]


def test_keys_and_limits_of_one_queue_are_not_another_s(log):
    configure(log, max_concurrency_per_key=1)
    holds = [log.create(queue=queue, **of_key("a")) for queue in ("mail", "sms", "sms")]
    assert leased(log, *holds) == [True, True, True]


def test_a_replayed_execution_counts_again_when_it_is_leased_and_not_before(log):
    configure(log, max_concurrency=1)
    hold, token = log.claimed(retry=ONCE)
    dies(log, hold, token)
    log.replay(hold)
    assert leased(log, log.create()) == [True]
    assert leased(log, hold) == [False]


def test_limits_within_one_entry_and_one_claim_count_what_was_granted_before(log):
    configure(log, max_concurrency=3)
    holds = [log.create() for _ in range(5)]
    one, other = log.apply(Claim("a", "", 1_000, holds[:2]), Claim("b", "", 1_000, holds[2:]))
    assert [bool(token) for token in one + other] == [True, True, True, False, False]


def test_a_limit_that_is_lowered_takes_no_lease_away_and_grants_none_until_there_is_room(log):
    holds = [log.create() for _ in range(4)]
    tokens = log.claim(*holds[:3])
    configure(log, max_concurrency=1)
    assert log.machine.queues["mail"].leased == 3
    for hold, token in zip(holds[:2], tokens[:2], strict=True):
        succeeds(log, hold, token)
        assert leased(log, holds[3]) == [False]
    succeeds(log, holds[2], tokens[2])
    assert leased(log, holds[3]) == [True]


def test_keys_are_counted_before_there_is_a_limit(log):
    one, other = log.create(**of_key("a")), log.create(**of_key("a"))
    log.claim(one)
    configure(log, max_concurrency_per_key=1)
    assert leased(log, other) == [False]


def test_counts_are_those_of_a_state_that_was_restored(log):
    holds = [log.create(**of_key(key)) for key in "aab"]
    log.claim(holds[0])
    configure(log, max_concurrency_per_key=1, max_concurrency=2)
    other = StateMachine()
    other.load(list(log.machine.dump()))
    assert other.queues["mail"] == log.machine.queues["mail"]
    log.machine = other
    assert leased(log, holds[1], holds[2]) == [False, True]


def test_a_paused_queue_leases_nothing_and_takes_jobs(log):
    hold, token = log.claimed()
    configure(log, state="paused")
    waiting = log.create()
    assert leased(log, waiting) == [False]
    succeeds(log, hold, token)
    configure(log, state="active")
    assert leased(log, waiting) == [True]


def test_a_draining_queue_takes_no_job_and_works_off_what_is_there(log):
    waiting = log.create()
    timetable = Timetable((Every(1_000, 0),))
    recurring, nominal_ms = log.create(timetable=timetable, first_ms=log.now_ms)
    known = log.create(idempotency_key="k", fingerprint=b"f")
    configure(log, state="draining")
    new = NewJob("mail", b"\xc0")
    assert [created.status for created in log.create_all(new, new)] == [CreateStatus.DRAINING] * 2
    (elsewhere,) = log.create_all(NewJob("sms", b"\xc0"))
    assert elsewhere.status is CreateStatus.CREATED
    (again,) = log.create_all(NewJob("mail", b"\xc0", idempotency_key="k", fingerprint=b"f"))
    assert (again.status, again.job) == (CreateStatus.DUPLICATE, known[0])
    put = PutJob("nightly", NewJob("mail", b"\xc0", log.now_ms, timetable=timetable))
    assert log.apply(put)[0].status is ChangeStatus.DRAINING
    assert log.apply(TriggerJob(recurring))[0].status is TriggerStatus.CREATED
    assert leased(log, waiting, (recurring, nominal_ms)) == [True, True]


def test_a_refused_create_of_a_draining_queue_is_not_remembered(log):
    configure(log, state="draining")
    log.apply(CreateJobs("r1", [NewJob("mail", b"\xc0")]))
    configure(log, state="active")
    (answer,) = log.apply(CreateJobs("r1", [NewJob("mail", b"\xc0")]))
    assert not answer.repeated
    assert answer.jobs[0].status is CreateStatus.CREATED


# The rate limit


def test_a_rate_limit_allows_a_burst_and_then_its_rate_by_log_time(log):
    configure(log, rate_limit=RateLimit(2, 1_000, 3))
    holds = [log.create() for _ in range(9)]
    assert leased(log, *holds) == [True] * 3 + [False] * 6
    log.pass_ms(499)
    assert leased(log, *holds[3:]) == [False] * 6
    log.pass_ms(1)
    assert leased(log, *holds[3:]) == [True] + [False] * 5
    log.pass_ms(60_000)
    assert leased(log, *holds[4:]) == [True] * 3 + [False] * 2, "no more than the burst"


def test_a_rate_that_is_no_whole_number_of_milliseconds_is_kept_in_the_long_run(log):
    configure(log, rate_limit=RateLimit(7, 1_000, 1))
    granted = 0
    for _ in range(3_000):
        log.pass_ms(1)
        granted += leased(log, log.create())[0]
    assert granted == 1 + 7 * 3 - 1, "the first at once, and the 21st after 2,858 ms"


def test_a_clock_that_steps_back_refills_nothing(log):
    configure(log, rate_limit=RateLimit(1, 1_000, 1))
    one, other = log.create(), log.create()
    assert leased(log, one) == [True]
    log.pass_ms(-5_000)
    assert leased(log, other) == [False]
    log.pass_ms(5_999)
    assert leased(log, other) == [False]
    log.pass_ms(1)
    assert leased(log, other) == [True]


def test_what_is_refused_or_given_back_charges_nothing_or_stays_charged(log):
    configure(log, rate_limit=RateLimit(1, 1_000, 2), max_concurrency=1)
    one, other = log.create(), log.create()
    first, refused = log.claim(one, other)
    assert not refused, "the bucket holds one more, and is not charged for this"
    is_released(log, one, first)
    assert leased(log, other) == [True]
    configure(log, max_concurrency=0)
    assert leased(log, one) == [False]


def test_a_change_of_the_settings_does_not_fill_the_bucket_again(log):
    configure(log, rate_limit=RateLimit(1, 1_000, 3))
    holds = [log.create() for _ in range(8)]
    assert leased(log, *holds[:3]) == [True] * 3
    configure(log, max_concurrency=100)
    assert leased(log, holds[3]) == [False]
    configure(log, rate_limit=RateLimit(1, 1_000, 4))
    assert leased(log, holds[3], holds[4]) == [True, False], "the burst is one larger"
    configure(log, rate_limit=RateLimit(10, 100, 2))
    assert leased(log, holds[4]) == [False]


# Settings


def test_settings_change_in_part_and_each_change_has_a_version(log):
    first = configure(log, max_concurrency=4)
    assert (first.status, first.version) == (ChangeStatus.CHANGED, 1)
    assert log.applied.queues == ["mail"]
    second = configure(log, version=1, state="paused", rate_limit=RateLimit(1, 1, 1))
    assert second.settings == QueueSettings("paused", 4, 0, RateLimit(1, 1, 1))
    assert second.version == 2
    stale = configure(log, version=1, state="active")
    assert (stale.status, stale.version) == (ChangeStatus.OTHER_VERSION, 2)
    again = configure(log, version=2, max_concurrency=4)
    assert (again.status, again.version) == (ChangeStatus.UNCHANGED, 2)
    assert log.applied.queues == []
    assert settings_of(log) == second.settings


def test_defaults_are_not_kept_and_a_version_never_comes_again(log):
    configure(log, max_concurrency=4)
    back = configure(log, max_concurrency=0, rate_limit=RateLimit(0, 0, 0))
    assert (back.status, back.version, back.settings) == (
        *(ChangeStatus.CHANGED, 0),
        QueueSettings(),
    )
    assert not log.machine.configured
    assert configure(log, version=0, max_concurrency=4).version == 3


def test_settings_outlive_the_jobs_of_their_queue(log):
    log.settings(keep_finished=0)
    configure(log, max_concurrency=1)
    hold, token = log.claimed()
    succeeds(log, hold, token)
    log.apply()
    assert "mail" not in log.machine.queues
    assert leased(log, log.create(), log.create()) == [True, False]


@pytest.mark.parametrize(
    "change",
    [
        {"state": "closed"},
        {"max_concurrency": limits.MAX_CONCURRENCY + 1},
        {"max_concurrency": -2},
        {"max_concurrency_per_key": limits.MAX_CONCURRENCY + 1},
        {"rate_limit": RateLimit(limits.MAX_RATE + 1, 1, 1)},
        {"rate_limit": RateLimit(-1, 1, 1)},
        {"rate_limit": RateLimit(1, 0, 1)},
        {"rate_limit": RateLimit(1, limits.MAX_RATE_PERIOD_MS + 1, 1)},
        {"rate_limit": RateLimit(1, 1, 0)},
        {"rate_limit": RateLimit(1, 1, limits.MAX_RATE + 1)},
    ],
)
def test_settings_beyond_the_limits_are_refused(log, change):
    assert configure(log, **change).status is ChangeStatus.INVALID
    assert not log.machine.configured


@pytest.mark.parametrize("name", ["", "x" * (limits.MAX_QUEUE_CHARS + 1)])
def test_a_name_that_no_queue_can_have_is_refused(log, name):
    assert configure(log, name, state="paused").status is ChangeStatus.INVALID


def test_so_many_queues_can_be_configured_and_no_more(log, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CONFIGURED_QUEUES", 2)
    for name in ("a", "b"):
        assert configure(log, name, state="paused").status is ChangeStatus.CHANGED
    assert configure(log, "c", state="paused").status is ChangeStatus.FULL
    assert configure(log, "a", state="draining").status is ChangeStatus.CHANGED
    configure(log, "b", state="active")
    assert configure(log, "c", state="paused").status is ChangeStatus.CHANGED

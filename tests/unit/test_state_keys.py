"""Idempotency keys: windows, scopes, duplicates refused, and keys held until the job has ended."""

from __future__ import annotations

import itertools
import sys

import pytest

from timeball.cluster.state import limits
from timeball.cluster.state.keys import Key, Keys
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CreateJobs,
    Every,
    KeyRule,
    NewJob,
    PutJob,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.records import JobState
from timeball.cluster.state.verdicts import CancelStatus, ChangeStatus, CreateStatus, Moved, Verdict

CREATED, DUPLICATE = CreateStatus.CREATED, CreateStatus.DUPLICATE
UNTIL_ENDED = KeyRule(until_ended=True)
EVERY = Timetable((Every(1_000, 0),))


def keyed(key="k", rule=None, queue="q", **rest):
    rest = {"fingerprint": b"f", **rest}
    return NewJob(queue, b"", idempotency_key=key, key_rule=rule, **rest)


def ask(log, *args, **rest):
    (answer,) = log.create_all(keyed(*args, **rest))
    return answer


def reloaded(log):
    """The same log on a state that has been restored from a dump."""
    machine = StateMachine()
    machine.load(list(log.machine.dump()))
    assert machine.digest() == log.machine.digest()
    log.machine = machine
    return log


# Windows


@pytest.mark.parametrize("restart", [False, True])
def test_each_key_has_its_own_window(log, restart):
    windows = {"short": 1_000, "long": 5_000, "odd": 1_023}
    first = {key: ask(log, key, KeyRule(window_ms)).job for key, window_ms in windows.items()}
    first["plain"] = ask(log, "plain").job
    for _ in range(6):
        log.pass_ms(999)
        if restart:
            reloaded(log)
        for key, window_ms in {**windows, "plain": 86_400_000}.items():
            over = log.now_ms >= log.machine.job(first[key]).created_ms + window_ms
            answer = ask(log, key, KeyRule(window_ms if key != "plain" else 0))
            assert answer.status is (CREATED if over else DUPLICATE), key
            assert (answer.job != first[key]) is over
            first[key] = answer.job
        log.pass_ms(1)


def test_a_window_is_settled_by_the_create_whatever_the_cluster_says_later(log):
    log.settings(idempotency_window_ms=5_000)
    first = ask(log, "a")
    log.settings(idempotency_window_ms=1_000)
    log.pass_ms(4_999)
    assert ask(log, "a").job == first.job
    log.settings(idempotency_window_ms=90_000)
    log.pass_ms(1)
    assert ask(log, "a").status is CREATED


def test_a_repeat_does_not_lengthen_the_window(log):
    ask(log, "a", KeyRule(1_000))
    log.pass_ms(900)
    assert ask(log, "a", KeyRule(10_000)).status is DUPLICATE
    log.pass_ms(100)
    assert ask(log, "a", KeyRule(1_000)).status is CREATED


def test_a_window_is_bounded_by_the_cluster(log):
    log.settings(idempotency_max_window_ms=5_000)
    assert ask(log, "a", KeyRule(5_001)).status is CreateStatus.INVALID
    assert ask(log, "a", KeyRule(5_000)).status is CREATED


@pytest.mark.parametrize("rule", [KeyRule(-1), KeyRule(1, until_ended=True)], ids=repr)
def test_a_rule_that_makes_no_sense_makes_no_job(log, rule):
    assert ask(log, "a", rule).status is CreateStatus.INVALID
    assert log.machine.queues == {}


def test_a_rule_without_a_key_makes_no_job(log):
    assert ask(log, "", UNTIL_ENDED).status is CreateStatus.INVALID


def test_named_jobs_take_no_keys(log):
    for new in (keyed("k", timetable=EVERY), keyed("", UNTIL_ENDED, timetable=EVERY)):
        assert log.apply(PutJob("n", new))[0].status is ChangeStatus.INVALID


def test_keys_that_are_over_leave_by_class_in_bounded_steps(log):
    for batch in range(10):
        rules = [KeyRule(1_000), KeyRule(9_000)]
        log.create_all(*[keyed(f"{batch}-{n}", rules[n % 2]) for n in range(200)])
    assert log.machine.windowed_keys == 2_000
    log.pass_ms(1_000)
    sizes = [2_000]
    while sizes[-1] > 1_000:
        log.apply()
        sizes.append(log.machine.windowed_keys)
    assert all(a - b <= limits.TRIM_STEP for a, b in itertools.pairwise(sizes))
    assert sizes[-1] == 1_000
    assert ask(log, "0-1", KeyRule(9_000)).status is DUPLICATE
    log.pass_ms(8_000)
    for _ in range(5):
        log.apply()
    assert log.machine.windowed_keys == 0
    assert log.machine.counters.keys_forgotten == 0


def test_a_key_waits_behind_another_of_its_class_for_at_most_twice_its_window(log):
    ask(log, "long", KeyRule(2_047))
    ask(log, "short", KeyRule(1_024))
    log.pass_ms(1_024)
    assert ask(log, "short", KeyRule(1_024)).status is CREATED
    log.pass_ms(1_022)
    log.apply()
    assert log.machine.windowed_keys == 3
    log.pass_ms(1)
    log.apply()
    assert log.machine.windowed_keys == 1
    assert ask(log, "short", KeyRule(1_024)).status is DUPLICATE, (
        "the older record took only itself"
    )


def test_beyond_the_bound_the_key_known_longest_is_forgotten_and_counted(log):
    log.settings(idempotency_keys=2)
    ask(log, "a", KeyRule(9_000_000))
    ask(log, "b", KeyRule(5_000))
    ask(log, "c", KeyRule(9_000_000))
    assert log.machine.counters.keys_forgotten == 1
    assert ask(log, "b").status is DUPLICATE
    assert ask(log, "a").status is CREATED
    assert log.machine.counters.keys_forgotten == 2


def test_of_two_records_of_one_key_the_later_counts_after_a_restart_too(log):
    """They are in queues of different classes, and a dump has no order between these."""
    log.create_all(*[keyed(f"x{n}", KeyRule(4_100)) for n in range(2)])
    ask(log, "k", KeyRule(4_096))
    log.pass_ms(4_096)
    later = ask(log, "k", KeyRule(3_000))
    assert later.status is CREATED
    assert log.machine.windowed_keys == 4
    assert ask(reloaded(log), "k").job == later.job


# Scopes


@pytest.mark.parametrize("until_ended", [False, True])
def test_a_key_may_be_known_in_its_queue_alone(log, until_ended):
    here = KeyRule(within_queue=True, until_ended=until_ended)
    mail, sms = (ask(log, "k", here, queue) for queue in ("mail", "sms"))
    whole = ask(log, "k", KeyRule(until_ended=until_ended), "mail")
    assert len({mail.job, sms.job, whole.job}) == 3
    reloaded(log)
    for queue, first in (("mail", mail), ("sms", sms)):
        assert (ask(log, "k", here, queue).status, ask(log, "k", here, queue).job) == (
            DUPLICATE,
            first.job,
        )
    assert ask(log, "k", None, "mail").job == whole.job


def test_queues_and_keys_do_not_run_together(log):
    here = KeyRule(within_queue=True)
    assert ask(log, "bc", here, "a").job != ask(log, "c", here, "ab").job


# Duplicates refused


def test_a_duplicate_may_be_refused(log):
    first = ask(log, "k")
    answer = ask(log, "k", KeyRule(reject=True))
    assert (answer.status, answer.job) == (CreateStatus.REJECTED, first.job)
    assert (log.machine.counters.rejected, log.machine.counters.duplicates) == (1, 0)
    assert ask(log, "k").status is DUPLICATE, "it counts for the request that asks so"


def test_another_request_is_another_request_however_a_duplicate_is_answered(log):
    ask(log, "k")
    for rule in (KeyRule(reject=True), UNTIL_ENDED, None):
        assert ask(log, "k", rule, fingerprint=b"g").status is CreateStatus.KEY_REUSED


def test_a_create_that_refuses_duplicates_is_repeatable_by_its_request_id(log):
    new = keyed("k", KeyRule(reject=True))
    (first,) = log.create_all(new, request_id="r")
    (again,) = log.create_all(new, request_id="r")
    assert (again.status, again.job) == (CREATED, first.job)


def test_what_was_refused_may_be_asked_again_by_the_same_request_id(log):
    ask(log, "k", KeyRule(1_000))
    new = keyed("k", KeyRule(reject=True))
    assert log.create_all(new, request_id="r")[0].status is CreateStatus.REJECTED
    log.pass_ms(1_000)
    assert log.create_all(new, request_id="r")[0].status is CREATED


# Until the job has ended


def end_success(log, hold, token):
    log.succeed(hold, token)


def end_death(log, hold, token):
    log.fail(hold, token, non_retryable=True)


def end_cancel(log, hold, token):
    log.release(hold, token)
    log.cancel(hold)


@pytest.mark.parametrize("end", [end_success, end_death, end_cancel])
@pytest.mark.parametrize("restart", [False, True])
def test_a_key_holds_until_its_job_has_ended_and_is_free_at_once(log, end, restart):
    first = ask(log, "k", UNTIL_ENDED)
    hold = first.job, first.nominal_ms
    log.pass_ms(40 * 86_400_000)
    assert ask(log, "k", UNTIL_ENDED).job == first.job, "no window ends it"
    (token,) = log.claim(hold)
    log.start(hold, token)
    if restart:
        reloaded(log)
    assert ask(log, "k", UNTIL_ENDED).job == first.job
    end(log, hold, token)
    assert log.machine.held_keys == 0
    second = ask(log, "k", UNTIL_ENDED)
    assert second.status is CREATED
    assert (log.machine.job(first.job).idempotency_key, log.machine.held_keys) == ("k", 1)
    assert log.machine.key_of(log.machine.job(first.job)) is None
    assert log.machine.key_of(log.machine.job(second.job)).job == second.job


def test_a_retry_is_not_an_end(log):
    first = ask(log, "k", UNTIL_ENDED, retry=RetryPolicy(2))
    hold = first.job, first.nominal_ms
    log.fail(hold, log.claim(hold)[0])
    assert ask(log, "k", UNTIL_ENDED).job == first.job
    log.fail(hold, log.claim_when_due(hold))
    assert ask(log, "k", UNTIL_ENDED).status is CREATED


@pytest.mark.parametrize("timetable", [None, EVERY])
def test_a_cancelled_job_holds_its_key_until_its_worker_is_done(log, timetable):
    first = ask(log, "k", UNTIL_ENDED, timetable=timetable, first_ms=log.now_ms)
    hold = first.job, first.nominal_ms
    (token,) = log.claim(hold)
    assert log.cancel(hold) is CancelStatus.REQUESTED
    for _ in range(2):
        assert ask(log, "k", UNTIL_ENDED).job == first.job
        reloaded(log)
    log.succeed(hold, token)
    assert ask(log, "k", UNTIL_ENDED).status is CREATED


def test_a_recurring_job_holds_its_key_until_the_last_run_has_ended(log):
    first = ask(log, "k", UNTIL_ENDED, timetable=EVERY, first_ms=log.now_ms + 1_000)
    last_ms = first.nominal_ms + 1_000
    step = Advance(first.job, 1, first.nominal_ms, [last_ms], last_ms, ended=True)
    assert log.apply(AdvanceTimetables([step]))[0] == [Moved.MOVED]
    for nominal_ms in (first.nominal_ms, last_ms):
        assert ask(log, "k", UNTIL_ENDED).job == first.job
        hold = first.job, nominal_ms
        log.succeed(hold, log.claim_when_due(hold))
        reloaded(log)
    assert ask(log, "k", UNTIL_ENDED).status is CREATED


def test_a_timetable_that_ends_without_another_run_frees_its_key(log):
    for end in (
        lambda job: log.cancel((job, 0)),
        lambda job: log.apply(
            AdvanceTimetables([Advance(job, 1, log.now_ms, [], log.now_ms + 1, ended=True)])
        ),
    ):
        first = ask(log, "k", UNTIL_ENDED, timetable=EVERY, first_ms=log.now_ms)
        assert first.status is CREATED
        hold = first.job, first.nominal_ms
        log.succeed(hold, log.claim(hold)[0])
        assert ask(log, "k", UNTIL_ENDED).job == first.job
        end(first.job)
        assert log.machine.held_keys == 0


def test_what_holds_a_key_decides_how_long(log):
    window, ended = ask(log, "w", KeyRule(1_000)), ask(log, "e", UNTIL_ENDED)
    for answer in (window, ended):
        log.cancel((answer.job, 0))
    assert ask(log, "w", UNTIL_ENDED).job == window.job, "its window is not over"
    assert ask(log, "e", KeyRule(1_000)).status is CREATED


def test_held_keys_are_bounded_and_the_bound_has_a_name(log):
    log.settings(idempotency_keys_held=2, idempotency_keys=1)
    first = ask(log, "a", UNTIL_ENDED)
    ask(log, "b", UNTIL_ENDED)
    assert ask(log, "c", UNTIL_ENDED).status is CreateStatus.KEYS_FULL
    assert ask(log, "a", UNTIL_ENDED).job == first.job
    assert ask(log, "c").status is CREATED, "keys with a window have a bound of their own"
    log.cancel((first.job, 0))
    assert ask(log, "d", UNTIL_ENDED).status is CREATED


def test_a_job_that_is_forgotten_leaves_nothing_of_its_key(log):
    log.settings(keep_finished=0, keep_dead=0)
    keys = log.machine._store.keys
    for end in (end_success, end_death, end_cancel):
        answer = ask(log, "k", UNTIL_ENDED)
        hold = answer.job, answer.nominal_ms
        end(log, hold, log.claim(hold)[0])
        assert log.machine.job(answer.job) is None
        assert not any(keys._of_jobs)
        assert not any(keys._shards)


# Dead letters


def dead(log, key="k", rule=UNTIL_ENDED):
    answer = ask(log, key, rule)
    hold = answer.job, answer.nominal_ms
    log.fail(hold, log.claim(hold)[0], non_retryable=True)
    return hold


@pytest.mark.parametrize("restart", [False, True])
def test_a_replay_takes_the_key_again(log, restart):
    hold = dead(log)
    if restart:
        reloaded(log)
    assert log.replay(hold) is Verdict.ACCEPTED
    assert ask(log, "k", UNTIL_ENDED).job == hold[0]
    log.succeed(hold, log.claim_when_due(hold))
    assert ask(log, "k", UNTIL_ENDED).status is CREATED


@pytest.mark.parametrize("rule", [UNTIL_ENDED, None])
def test_a_dead_letter_whose_key_another_job_has_is_not_replayed(log, rule):
    hold = dead(log)
    other = ask(log, "k", rule)
    digest = log.machine.digest()
    assert log.replay(hold) is Verdict.KEY_TAKEN
    assert log.machine.job(hold[0]).state is JobState.COMPLETED
    assert log.machine.counters.replayed == 0
    assert digest != log.machine.digest(), "only the position"
    log.cancel((other.job, 0))
    log.pass_ms(86_400_000)
    assert log.replay(hold) is Verdict.ACCEPTED


def test_a_dead_run_of_a_job_that_goes_on_is_replayed_under_its_own_key(log):
    first = ask(log, "k", UNTIL_ENDED, timetable=EVERY, first_ms=log.now_ms)
    hold = first.job, first.nominal_ms
    log.fail(hold, log.claim(hold)[0], non_retryable=True)
    assert log.replay(hold) is Verdict.ACCEPTED
    assert log.machine.held_keys == 1


def test_dead_letters_of_keys_with_a_window_are_replayed_as_ever(log):
    hold = dead(log, rule=KeyRule(1_000))
    log.pass_ms(1_000)
    ask(log, "k", KeyRule(1_000))
    assert log.replay(hold) is Verdict.ACCEPTED


def test_a_key_held_again_hides_one_that_is_over_after_a_restart_too(log):
    hold = dead(log)
    ask(log, "behind", KeyRule(2_047))
    ask(log, "k", KeyRule(1_024))
    log.pass_ms(1_024)
    assert log.replay(hold) is Verdict.ACCEPTED
    assert log.machine.windowed_keys == 2, "the later job's record still lies there"
    assert ask(reloaded(log), "k", UNTIL_ENDED).job == hold[0]


# IDEM-05: what a key takes


def test_idem_05_a_key_in_memory_is_bounded_by_the_window_and_by_number(log):
    """2,000,000 keys would take a while; 40,000 that end at once, at a bound of 2,000."""
    log.settings(idempotency_keys=2_000, keep_finished=100, idempotency_window_ms=60_000)
    sizes = []
    for batch in range(80):
        jobs = log.create_all(*[keyed(f"{batch}-{n}".ljust(255, "x")) for n in range(500)])
        log.apply(*[])
        for one in jobs[:5]:
            log.succeed((one.job, one.nominal_ms), log.claim((one.job, one.nominal_ms))[0])
        for one in jobs[5:]:
            log.cancel((one.job, one.nominal_ms))
        log.pass_ms(100)
        sizes.append(log.machine.windowed_keys)
        if batch % 20 == 19:
            assert sum(map(len, log.machine.dump())) < 2_000 * 330 + 100 * 700
    assert max(sizes) <= 2_000 + 500
    assert log.machine.counters.keys_forgotten > 30_000
    log.pass_ms(60_000)
    for _ in range(10):
        log.apply()
    assert log.machine.windowed_keys == 0
    assert not any(log.machine._store.keys._shards)


def test_idem_05_a_key_costs_what_the_documents_say(log):
    """One flat object, whose name is the one that the job holds."""
    (job,) = log.create_all(keyed("k" * 36, fingerprint=bytes(range(100, 108))))
    (record,) = log.machine._store.keys
    kept = log.machine.job(job.job)
    assert sys.getsizeof(record) <= 80
    for restarted in (False, True):
        if restarted:
            reloaded(log)
            (record,) = log.machine._store.keys
            kept = log.machine.job(job.job)
        assert record.name is kept.idempotency_key


def test_a_job_without_a_key_costs_nothing_for_those_that_have_one(log):
    (job,) = log.create_all(NewJob("q", b""))
    assert sys.getsizeof(log.machine.job(job.job)) <= 144
    assert log.machine._store.keys.windowed == 0
    assert not any(log.machine._store.keys._of_jobs)


def test_windows_of_all_lengths_take_few_queues():
    keys = Keys()
    for number, window_ms in enumerate([1, *(7 * 10**place + place for place in range(11))], 1):
        keys.add(Key(f"k{number}", 5, 1, number, 5, window_ms))
    for number in range(100, 2_000):
        keys.add(Key(f"k{number}", 5, 1, number, 5, number))
    assert len(keys._orders) <= 40
    assert list(keys._orders) == sorted(keys._orders)


def test_the_batch_of_a_request_may_hold_a_key_twice(log):
    first, again, refused = log.create_all(
        keyed("k", UNTIL_ENDED), keyed("k", UNTIL_ENDED), keyed("k", KeyRule(reject=True))
    )
    assert [again.status, refused.status] == [DUPLICATE, CreateStatus.REJECTED]
    assert {first.job, again.job, refused.job} == {first.job}
    assert log.apply(CreateJobs("", []))[0].jobs == []

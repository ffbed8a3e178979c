"""Pages of records by cursor."""

from __future__ import annotations

import pytest

from timeball.cluster.state import listing
from timeball.cluster.state.listing import DeadFilter
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    Cron,
    NewJob,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.records import ExecutionState, JobState


def walk(list_page, **arguments):
    """All pages after one another."""
    pages, after = [], None
    while True:
        page = list_page(after=after, **arguments)
        pages.append(page.items)
        after = page.next_after
        if after is None:
            return pages


def jobs_in(pages):
    return [record.id for page in pages for record in page]


@pytest.fixture
def many(log):
    """Jobs over many entries far apart, so over several shards."""
    holds = []
    for _ in range(10):
        holds += [(one.job, one.nominal_ms) for one in log.create_all(*[NewJob("q", b"")] * 3)]
        for _ in range(20):
            log.apply()
    return holds


def test_jobs_come_newest_first_in_pages(log, many):
    pages = walk(log.machine.list_jobs, limit=4)
    assert jobs_in(pages) == [job for job, _ in reversed(many)]
    assert [len(page) for page in pages] == [4] * 7 + [2]


def test_a_page_that_is_just_full_is_the_last(log, many):
    assert [len(page) for page in walk(log.machine.list_jobs, limit=30)] == [30]


def test_new_and_dropped_jobs_do_not_shift_the_pages(log, many):
    log.settings(keep_finished=0)
    first = log.machine.list_jobs(limit=10)
    log.create()
    log.cancel((first.next_after, 0))
    assert log.machine.job(first.next_after) is None
    rest = walk(
        lambda after, limit: log.machine.list_jobs(after=after or first.next_after, limit=limit),
        limit=7,
    )
    assert jobs_in([first.items, *rest]) == [job for job, _ in reversed(many)]


def test_jobs_are_filtered_by_queue_and_state(log):
    mail, sms = log.create(queue="mail"), log.create(queue="sms")
    log.cancel(sms)
    assert jobs_in([log.machine.list_jobs(queue="mail").items]) == [mail[0]]
    assert jobs_in([log.machine.list_jobs(state=JobState.CANCELLED).items]) == [sms[0]]
    assert log.machine.list_jobs(queue="mail", state=JobState.CANCELLED).items == []


def test_a_page_looks_at_a_bounded_number_of_records(log, many, monkeypatch):
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 8)
    pages = walk(log.machine.list_jobs, limit=4, queue="none such")
    assert pages == [[]] * 4


def test_executions_come_by_job_then_nominal_time_newest_first(log):
    job, first_ms = log.create(timetable=Timetable((Cron("* * * * *"),)))
    nominals = [first_ms + step for step in range(1, 6)]
    log.apply(AdvanceTimetables([Advance(job, 1, first_ms, nominals, nominals[-1])]))
    newer = log.create()
    log.cancel(newer)
    pages = walk(log.machine.list_executions, limit=2)
    places = [(one.job.id, one.nominal_ms) for page in pages for one in page]
    assert places == [newer, *((job, at) for at in reversed([first_ms, *nominals]))]
    scheduled = walk(log.machine.list_executions, limit=4, state=ExecutionState.SCHEDULED)
    assert [len(page) for page in scheduled] == [4, 2]
    assert log.machine.list_executions(queue="other").items == []


def test_dead_executions_come_latest_dead_first(log):
    holds = []
    for burst in range(3):
        batch = [log.claimed(queue=f"q{burst}") for _ in range(3)]
        for hold, token in reversed(batch):
            log.fail(hold, token, non_retryable=True)
        holds += [hold for hold, _ in batch]
        log.pass_ms(1)
    pages = walk(log.machine.list_dead, limit=2)
    assert [(one.job.id, one.nominal_ms) for page in pages for one in page] == holds[::-1]
    of_one = log.machine.list_dead(wanted=DeadFilter(queue="q1"))
    assert [one.job.queue for one in of_one.items] == ["q1"] * 3


def test_a_replay_between_two_pages_of_the_dead_hides_no_other(log):
    holds = []
    for _ in range(4):
        hold, token = log.claimed()
        log.fail(hold, token, non_retryable=True)
        holds.append(hold)
    first = log.machine.list_dead(limit=2)
    log.replay(holds[2])
    rest = log.machine.list_dead(after=first.next_after)
    assert [(one.job.id, one.nominal_ms) for one in rest.items] == [holds[1], holds[0]]


@pytest.fixture
def graves(log):
    """Dead letters of every kind, one a millisecond, by the name of what they died of."""
    plain = {"error_type": "", "queue": "mail", "fatal": False, "retry": RetryPolicy(1)}
    kinds = {
        "failed": {"error_type": "KeyError"},
        "other error": {"error_type": "KeyErrors"},
        "other queue": {"error_type": "KeyError", "queue": "sms"},
        "silent": {},
        "fatal": {"fatal": True},
        "by policy": {
            "error_type": "Poison",
            "retry": RetryPolicy(9, non_retryable_errors=("Poison",)),
        },
        "expired": None,
    }
    found = {}
    for name, differing in kinds.items():
        kind = {**plain, **(differing or {})}
        hold, token = log.claimed(queue=kind["queue"], retry=kind["retry"])
        if differing is None:
            log.expire(hold, token)
        else:
            log.fail(hold, token, error_type=kind["error_type"], non_retryable=kind["fatal"])
        found[name] = hold
        log.pass_ms(1)
    return found


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"error_type": "KeyError"}, ["failed", "other queue"]),
        ({"error_type": "KeyError", "queue": "mail"}, ["failed"]),
        ({"error_type": ""}, ["silent", "fatal", "expired"]),
        ({"reason": "non_retryable"}, ["fatal"]),
        ({"reason": "non_retryable_error"}, ["by policy"]),
        ({"reason": "attempts_exhausted:lease_expired"}, ["expired"]),
        ({"reason": "attempts_exhausted:timed_out"}, []),
        (
            {"reason": "attempts_exhausted"},
            ["failed", "other error", "other queue", "silent", "expired"],
        ),
    ],
)
def test_dead_letters_are_chosen_by_what_they_died_of(log, graves, wanted, names):
    found = log.machine.list_dead(wanted=DeadFilter(**wanted)).items
    assert [(one.job.id, one.nominal_ms) for one in found] == [graves[n] for n in names[::-1]]


def test_dead_letters_are_chosen_by_job_and_by_when_they_died(log, graves):
    def held(**wanted):
        found = log.machine.list_dead(wanted=DeadFilter(**wanted)).items
        return [(one.job.id, one.nominal_ms) for one in found]

    holds = list(graves.values())
    assert held(job=holds[2][0]) == [holds[2]]
    died_ms = log.execution(holds[3]).finished_ms
    assert held(died_after_ms=died_ms) == holds[3:][::-1]
    assert held(died_before_ms=died_ms) == holds[:3][::-1]
    assert held(died_after_ms=died_ms, died_before_ms=died_ms + 1) == [holds[3]]
    assert held(died_after_ms=log.now_ms) == []


def test_one_look_at_the_dead_is_bounded_whatever_it_looks_for(log, graves, monkeypatch):
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 3)
    wanted = DeadFilter(reason="attempts_exhausted:failed", queue="mail", error_type="KeyError")
    pages = walk(log.machine.list_dead, wanted=wanted)
    assert [len(page) for page in pages] == [0, 0, 1]


def test_what_died_long_ago_is_not_looked_at_when_it_is_not_wanted(log, graves, monkeypatch):
    monkeypatch.setattr(listing, "MOST_LOOKED_AT", 3)
    wanted = DeadFilter(died_after_ms=log.execution(graves["by policy"]).finished_ms)
    assert [len(page) for page in walk(log.machine.list_dead, wanted=wanted)] == [2]

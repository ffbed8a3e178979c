"""Pages of records by cursor."""

from __future__ import annotations

import pytest

from timeball.cluster.state import listing
from timeball.cluster.state.operations import Advance, AdvanceTimetables, Cron, NewJob, Timetable
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
    assert [one.job.queue for one in log.machine.list_dead(queue="q1").items] == ["q1"] * 3


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

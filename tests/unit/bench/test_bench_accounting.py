"""The account of a run: each rule by the record that breaks it."""

from __future__ import annotations

import msgspec
import pytest

from timeball.bench.load.accounting import Account, merge, out_of_order
from timeball.bench.load.plan import Plan, read_payload, write_payload
from timeball.bench.load.records import (
    ACKNOWLEDGED,
    NEVER,
    REFUSED,
    Log,
    SubmitterRecord,
    WorkerRecord,
)

START_MS = 1_764_480_000_000
TOTAL = 6


def make_plan(**changes: object) -> Plan:
    fields = {
        "urls": ["http://127.0.0.1:1"],
        "folder": "",
        "name": "run",
        "queue": "bench",
        "total": TOTAL,
        "rate": 1_000.0,
        "mode": "steady",
        "jobs_per_post": 4,
        "workers": 2,
        "executions_per_claim": 10,
    }
    return msgspec.convert({**fields, **changes}, Plan)


def submitted(outcomes: list[int]) -> SubmitterRecord:
    return SubmitterRecord(
        outcomes=bytes(outcomes),
        lateness_us=b"",
        latency_us=b"",
        sent_after_due=0,
        began_ns=0,
        ended_ns=0,
        repeats=0,
        internal_errors=0,
    )


class Delivery(msgspec.Struct):
    job_id: str
    token: int
    attempt: int
    due_ms: int


class Worker:
    """A worker that takes and completes executions at the instants that a test says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.log = Log()

    def take(
        self,
        number: int,
        token: int,
        *,
        lag_us: int = 500,
        job: int = 0,
        attempt: int = 1,
        told_due_ms: int = 0,
    ) -> None:
        planned_ms = self.plan.due_ms(START_MS, number)
        now_ns = (planned_ms * 1000 + lag_us) * 1000
        delivery = Delivery(str(job or 100 + number), token, attempt, told_due_ms or planned_ms)
        self.log.delivered(now_ns, [number], [delivery])

    def complete(self, number: int, verdict: str = "accepted") -> None:
        self.log.reported([number], [verdict])

    def record(self) -> WorkerRecord:
        return self.log.record(claims=0, reports=0, repeats=0, internal_errors=0)


def account(workers: list[Worker], outcomes: list[int] | None = None) -> Account:
    records = [worker.record() for worker in workers]
    submitters = [submitted(outcomes or [ACKNOWLEDGED] * TOTAL)]
    return merge(workers[0].plan, START_MS, records, submitters).account


def perfect_run() -> list[Worker]:
    workers = [Worker(make_plan()) for _ in range(2)]
    for number in range(TOTAL):
        workers[number % 2].take(number, token=1_000 + number)
        workers[number % 2].complete(number)
    return workers


def test_a_perfect_run_has_nothing_to_blame() -> None:
    found = account(perfect_run())
    assert found.failures == []
    assert (found.acknowledged, found.delivered, found.accepted) == (TOTAL, TOTAL, TOTAL)
    assert found.redelivered == found.later_attempts == found.unanswered == found.refused == 0


def test_an_acknowledged_execution_that_nobody_completed_is_lost() -> None:
    workers = [Worker(make_plan())]
    for number in range(TOTAL - 1):
        workers[0].take(number, token=number + 1)
        workers[0].complete(number)
    workers[0].take(TOTAL - 1, token=TOTAL)
    workers[0].complete(TOTAL - 1, "stale")
    found = account(workers)
    assert found.lost == 1
    assert found.stale_refused == 1
    assert found.failures == ["1 executions lost"]


def test_what_was_refused_or_never_answered_is_not_lost() -> None:
    workers = [Worker(make_plan())]
    found = account(workers, [REFUSED, REFUSED, 0, 0, 0, 0])
    assert (found.lost, found.refused, found.unanswered) == (0, 2, 4)


def test_two_accepted_completions_count_wherever_they_were_accepted() -> None:
    workers = perfect_run()
    workers[1].take(0, token=2_000, attempt=2)
    workers[1].complete(0)
    found = account(workers)
    assert found.double_accepted == 1
    assert (found.redelivered, found.later_attempts) == (1, 1)
    same = perfect_run()
    same[0].complete(0)
    assert account(same).double_accepted == 1


def test_a_repeated_report_that_had_counted_unheard_counts_once() -> None:
    worker = Worker(make_plan())
    for number in range(TOTAL):
        worker.take(number, token=number + 1)
        worker.complete(number, "duplicate")
    found = account([worker])
    assert (found.lost, found.double_accepted) == (0, 0)


@pytest.mark.parametrize("same_worker", [True, False])
def test_a_number_that_comes_with_two_jobs_was_made_twice(same_worker: bool) -> None:
    workers = perfect_run()
    workers[0 if same_worker else 1].take(0, token=3_000, job=999)
    assert account(workers).duplicates == 1


def test_early_is_what_arrives_a_microsecond_before_the_planned_instant() -> None:
    worker = Worker(make_plan())
    worker.take(0, token=1, lag_us=0)
    assert account([worker]).early == 0
    worker.take(1, token=2, lag_us=-1, told_due_ms=START_MS)
    assert account([worker]).early == 1
    merged = merge(worker.plan, START_MS, [worker.record()], [submitted([1] * TOTAL)])
    assert merged.lags_us[1] == 0


def test_early_is_also_what_arrives_before_the_due_time_that_the_cluster_tells() -> None:
    worker = Worker(make_plan())
    worker.take(0, token=1, attempt=2, lag_us=49_999, told_due_ms=START_MS + 50)
    worker.take(0, token=2, attempt=3, lag_us=50_000, told_due_ms=START_MS + 50)
    assert account([worker]).early == 1


def test_the_lag_is_that_of_the_first_delivery() -> None:
    first, second = perfect_run()
    second.take(0, token=5_000, lag_us=90_000, attempt=2)
    records = [second.record(), first.record()]
    merged = merge(first.plan, START_MS, records, [submitted([1] * TOTAL)])
    assert merged.lags_us[0] == 500
    assert merged.tokens[0] == 1_000


def test_what_was_not_delivered_has_no_lag_and_no_arrival() -> None:
    plan = make_plan()
    worker = Worker(plan)
    worker.take(3, token=1, lag_us=700)
    merged = merge(plan, START_MS, [worker.record()], [submitted([1] * TOTAL)])
    assert list(merged.lags_us) == [NEVER, NEVER, NEVER, 700, NEVER, NEVER]
    assert list(merged.arrivals.at_us) == [(START_MS + 3) * 1000 + 700]
    assert list(merged.arrivals.counts) == [1]


def test_arrivals_are_counted_once_in_order_of_time_whoever_got_them() -> None:
    first, second = perfect_run()
    first.take(2, token=9_000, lag_us=5_000, attempt=2)
    second.log.delivered(
        (START_MS + 9) * 1_000_000, [0, 1], [Delivery(str(100 + n), 1, 2, 0) for n in (0, 1)]
    )
    records = [first.record(), second.record()]
    merged = merge(first.plan, START_MS, records, [submitted([1] * TOTAL)])
    at_us = [(START_MS + n) * 1000 + 500 for n in range(TOTAL)]
    assert list(merged.arrivals.at_us) == at_us
    assert merged.arrivals.count == TOTAL
    assert merged.account.redelivered == 3
    begin_ms = START_MS
    assert merged.arrivals.between(begin_ms + 1, begin_ms + 3) == 2
    assert merged.arrivals.between(begin_ms, begin_ms + 60_000) == TOTAL


def test_answers_in_batches_are_written_down_like_single_ones() -> None:
    plan = make_plan()
    single, batched = Worker(plan), Worker(plan)
    now_ns = (START_MS + 9) * 1_000_000
    deliveries = [Delivery(str(100 + n), 50 + n, 1, START_MS + n) for n in range(TOTAL)]
    batched.log.delivered(now_ns, range(TOTAL), deliveries)
    batched.log.reported([0, 1], ["accepted", "accepted"])
    batched.log.reported([2, 3, 4, 5], ["accepted", "stale", "duplicate", "unknown"])
    for n, delivery in enumerate(deliveries):
        single.log.delivered(now_ns, [n], [delivery])
    for n, verdict in enumerate(
        ["accepted", "accepted", "accepted", "stale", "duplicate", "unknown"]
    ):
        single.complete(n, verdict)
    assert account([single]) == account([batched])
    assert (account([batched]).accepted, account([batched]).lost) == (4, 2)
    assert batched.log.settled == single.log.settled == 4
    assert batched.record().verdicts == single.record().verdicts


def test_submitters_outcomes_are_put_together() -> None:
    worker = perfect_run()[0]
    submitters = [submitted([1, 0, 0, 2, 0, 0]), submitted([0, 1, 1, 0, 2, 0])]
    found = merge(worker.plan, START_MS, [worker.record()], submitters).account
    assert (found.acknowledged, found.refused, found.unanswered) == (3, 2, 1)


def test_a_grant_that_overtakes_an_older_job_is_out_of_order() -> None:
    plan = make_plan(rate=0.0)
    for tokens, expected in (([1, 2, 3], 0), ([1, 3, 2], 1), ([3, 2, 1], 2)):
        worker = Worker(plan)
        for number, token in enumerate(tokens):
            worker.take(number, token=token)
        merged = merge(plan, START_MS, [worker.record()], [submitted([1] * TOTAL)])
        assert out_of_order(merged) == expected


def test_due_instants_follow_from_the_plan_alone() -> None:
    plan = make_plan(rate=4.0)
    assert [plan.due_ms(START_MS, n) - START_MS for n in range(5)] == [0, 250, 500, 750, 1_000]
    assert [list(plan.numbers(batch)) for batch in range(plan.batches)] == [[0, 1, 2, 3], [4, 5]]
    at_once = make_plan(rate=0.0)
    assert {at_once.due_ms(START_MS, n) for n in range(5)} == {START_MS}


def test_a_payload_carries_its_number_in_64_bytes() -> None:
    for number in (0, 1, 9_999_999_999):
        payload = write_payload(number)
        assert read_payload(payload) == number
        assert len(msgspec.msgpack.encode(payload)) == 64

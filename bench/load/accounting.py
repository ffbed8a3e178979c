"""The account of a run: the generators' records merged, execution by execution.

Exact, whatever the number: every execution that the cluster acknowledged must have one
accepted completion, and only one, and nothing may have come before its time.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter

import msgspec

from timeball.bench.load.plan import Plan
from timeball.bench.load.records import (
    ACKNOWLEDGED,
    MOST,
    NEVER,
    REFUSED,
    UNKNOWN,
    SubmitterRecord,
    WorkerRecord,
    numbers,
)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the executions of a run, warm-up included."""

    acknowledged: int
    refused: int
    """Creates that the cluster had no room for: it said so, and they don't exist."""
    unanswered: int
    """Creates without an answer in the end; they may exist or not."""
    delivered: int
    accepted: int
    early: int
    lost: int
    """Acknowledged, and no completion was accepted by the end."""
    double_accepted: int
    """Executions with more than one accepted completion."""
    duplicates: int
    """Numbers that came with more than one job: a repeated create made a second one."""
    redelivered: int
    """Deliveries of what had been delivered before, to whichever worker."""
    later_attempts: int
    stale_refused: int

    @property
    def failures(self) -> list[str]:
        """What must never be, one line each."""
        counts = {
            "early": self.early,
            "lost": self.lost,
            "accepted twice": self.double_accepted,
            "made twice": self.duplicates,
        }
        return [f"{count} executions {what}" for what, count in counts.items() if count]


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """When executions first came into workers' hands, in order of time."""

    at_us: array[int]
    """uint64: epoch microseconds."""
    counts: array[int]
    """uint32: how many came then, in one answer."""

    @property
    def count(self) -> int:
        """Executions that came."""
        return sum(self.counts)

    def between(self, first_ms: int, last_ms: int) -> int:
        """How many came from one instant until before another."""
        first = bisect_left(self.at_us, first_ms * 1000)
        last = bisect_left(self.at_us, last_ms * 1000)
        return sum(self.counts[first:last])


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The merged records."""

    account: Account
    arrivals: Arrivals
    lags_us: array[int]
    """uint32 by execution: due instant to the first delivery; `NEVER`: none."""
    jobs: array[int]
    tokens: array[int]


def merge(
    plan: Plan,
    start_ms: int,
    workers: Sequence[WorkerRecord],
    submitters: Sequence[SubmitterRecord],
) -> Merged:
    """Merge the records of all generators; the first execution was due at `start_ms`."""
    deliveries = _Deliveries(plan, start_ms)
    for at_ns, delivered in heapq.merge(*map(_answers, workers), key=itemgetter(0)):
        deliveries.add(at_ns, delivered)
    accepts = bytearray(plan.total)
    for worker in workers:
        for number in numbers(worker.accepted, "I"):
            accepts[number] = min(accepts[number] + 1, MOST)
    account = _account(plan, workers, submitters, deliveries, accepts)
    return Merged(
        account=account,
        arrivals=Arrivals(at_us=deliveries.at_us, counts=deliveries.firsts),
        lags_us=deliveries.lags_us,
        jobs=deliveries.jobs,
        tokens=deliveries.tokens,
    )


def _answers(worker: WorkerRecord) -> Iterator[tuple[int, tuple[array[int], ...]]]:
    """When each answer came, and its deliveries: numbers, jobs, tokens and due times."""
    columns = (
        numbers(worker.numbers, "I"),
        numbers(worker.jobs, "Q"),
        numbers(worker.tokens, "Q"),
        numbers(worker.dues_ms, "Q"),
    )
    end = 0
    for at_ns, size in zip(
        numbers(worker.arrived_ns, "Q"), numbers(worker.sizes, "I"), strict=True
    ):
        begin, end = end, end + size
        yield at_ns, tuple(column[begin:end] for column in columns)


class _Deliveries:
    """What came, by execution; fed in order of time."""

    def __init__(self, plan: Plan, start_ms: int) -> None:
        self._plan = plan
        self._start_ms = start_ms
        total = plan.total if plan.workers else 0
        self.lags_us: array[int] = array("I", [NEVER]) * total
        self.jobs: array[int] = array("Q", [0]) * total
        self.tokens: array[int] = array("Q", [0]) * total
        self.at_us: array[int] = array("Q")
        self.firsts: array[int] = array("I")
        self.early = 0
        self.duplicates = 0
        self.redelivered = 0

    def add(self, at_ns: int, delivered: tuple[array[int], ...]) -> None:
        lags_us, jobs, tokens = self.lags_us, self.jobs, self.tokens
        at_us = at_ns // 1000
        again = 0
        planned_ms = self._plan.dues_ms(self._start_ms, delivered[0])
        for number, job, token, due_ms, planned in zip(*delivered, planned_ms, strict=True):
            if at_ns < max(planned, due_ms) * 1_000_000:
                self.early += 1
            if lags_us[number] == NEVER:
                lags_us[number] = min(max(0, at_us - planned * 1000), NEVER - 1)
                jobs[number] = job
                tokens[number] = token
                continue
            again += 1
            self.duplicates += jobs[number] != job
        self.redelivered += again
        if again < len(planned_ms):
            self.at_us.append(at_us)
            self.firsts.append(len(planned_ms) - again)


def _account(
    plan: Plan,
    workers: Sequence[WorkerRecord],
    submitters: Sequence[SubmitterRecord],
    deliveries: _Deliveries,
    accepts: bytearray,
) -> Account:
    outcomes = submitters[0].outcomes if submitters else bytes(plan.total)
    for other in submitters[1:]:  # each has its own executions, and nothing for the rest
        outcomes = bytes(map(max, outcomes, other.outcomes))
    attempts = [numbers(worker.attempts, "H") for worker in workers]
    unfinished = zip(outcomes, accepts, strict=True) if workers else ()
    return Account(
        acknowledged=outcomes.count(ACKNOWLEDGED),
        refused=outcomes.count(REFUSED),
        unanswered=outcomes.count(UNKNOWN),
        delivered=sum(deliveries.firsts),
        accepted=plan.total - accepts.count(0),
        early=deliveries.early,
        lost=sum(outcome == ACKNOWLEDGED and not count for outcome, count in unfinished),
        double_accepted=plan.total - accepts.count(0) - accepts.count(1),
        duplicates=deliveries.duplicates,
        redelivered=deliveries.redelivered,
        later_attempts=sum(len(column) - column.count(1) for column in attempts),
        stale_refused=sum(worker.verdicts.get("stale", 0) for worker in workers),
    )


def out_of_order(merged: Merged) -> int:
    """Grants of executions all due at one instant that overtook an older job's.

    Within one partition the older job goes first. Both the order of jobs and that of grants
    are positions in the log, so it does not matter which answer arrived first where.
    """
    granted = sorted(
        (token, job) for token, job in zip(merged.tokens, merged.jobs, strict=True) if token
    )
    return sum(later[1] < earlier[1] for earlier, later in itertools.pairwise(granted))

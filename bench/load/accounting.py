"""The account of a run: the generators' records merged, execution by execution.

Exact, whatever the number: every execution that the cluster acknowledged must have one
accepted completion, and only one, and nothing may have come before its time.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

import msgspec

from timeball.bench.load.plan import Plan
from timeball.bench.load.records import (
    ACKNOWLEDGED,
    NEVER,
    REFUSED,
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


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The merged records."""

    account: Account
    lags_us: array[int]
    """uint32 by execution: due instant to the first delivery; `NEVER`: none."""
    jobs: array[int]
    tokens: array[int]


def merge(
    plan: Plan, workers: Sequence[WorkerRecord], submitters: Sequence[SubmitterRecord]
) -> Merged:
    """Merge the records of all generators of one run."""
    lags_us: array[int] = array("I", [NEVER]) * plan.total
    tokens: array[int] = array("Q", [0]) * plan.total
    jobs: array[int] = array("Q", [0]) * plan.total
    duplicates = 0
    for worker in workers:
        columns = (numbers(worker.lags_us, "I"), numbers(worker.jobs, "Q"))
        mine = numbers(worker.tokens, "Q")
        duplicates += worker.foreign
        for number, (lag_us, job) in enumerate(zip(*columns, strict=True)):
            if not job:
                continue
            duplicates += jobs[number] not in (0, job)
            jobs[number] = job
            if lag_us < lags_us[number] or not tokens[number]:
                lags_us[number] = lag_us
                tokens[number] = mine[number]
    account = _account(plan, workers, submitters, duplicates)
    return Merged(account=account, lags_us=lags_us, jobs=jobs, tokens=tokens)


def _account(
    plan: Plan,
    workers: Sequence[WorkerRecord],
    submitters: Sequence[SubmitterRecord],
    duplicates: int,
) -> Account:
    outcomes = _summed([submitter.outcomes for submitter in submitters], plan.total)
    deliveries = _summed([worker.deliveries for worker in workers], plan.total)
    accepts = _summed([worker.accepts for worker in workers], plan.total)
    return Account(
        acknowledged=outcomes.count(ACKNOWLEDGED),
        refused=outcomes.count(REFUSED),
        unanswered=outcomes.count(0),
        delivered=sum(map(bool, deliveries)),
        accepted=sum(map(bool, accepts)),
        early=sum(worker.early for worker in workers),
        lost=sum(
            outcome == ACKNOWLEDGED and not accepted
            for outcome, accepted in zip(outcomes, accepts, strict=True)
        )
        if workers
        else 0,
        double_accepted=sum(count > 1 for count in accepts),
        duplicates=duplicates,
        redelivered=sum(deliveries) - sum(map(bool, deliveries)),
        later_attempts=sum(worker.later_attempts for worker in workers),
        stale_refused=sum(worker.verdicts.get("stale", 0) for worker in workers),
    )


def _summed(columns: Sequence[bytes], total: int) -> list[int]:
    return [sum(counts) for counts in zip(*columns, strict=True)] if columns else [0] * total


def out_of_order(merged: Merged) -> int:
    """Grants of executions all due at one instant that overtook an older job's.

    Within one partition the older job goes first. Both the order of jobs and that of grants
    are positions in the log, so it does not matter which answer arrived first where.
    """
    granted = sorted(
        (token, job) for token, job in zip(merged.tokens, merged.jobs, strict=True) if token
    )
    return sum(later[1] < earlier[1] for earlier, later in itertools.pairwise(granted))


def arrivals_us(plan: Plan, start_ms: int, merged: Merged) -> array[int]:
    """When each execution came into a worker's hands, epoch microseconds, in order of time."""
    return array(
        "Q",
        sorted(
            plan.due_ms(start_ms, number) * 1000 + lag_us
            for number, lag_us in enumerate(merged.lags_us)
            if lag_us != NEVER
        ),
    )

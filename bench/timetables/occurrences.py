"""What must hold of timetables under catch-up `one`, beside what must hold of every run.

The evidence is what workers recorded, and the cluster's listings in the end. What should have
happened is the reference's arithmetic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from timeball.bench.checkers import Case, Checker, Finding
from timeball.bench.evidence import Run, instant_ms
from timeball.bench.history import Delivered, ReportAnswered, ReportSent
from timeball.bench.timetables.reference import Ledger, ledgers

GRACE_MS = 10_000
"""What is late by no more runs on its own: only a longer silence may fold nominal times."""
SLACK_MS = 1_000
"""A fold begins after what was made ahead, so up to one beat of a second later than the silence."""


def check_accounted(run: Run) -> Finding:
    """Every nominal time has run, or is counted as folded into one that did; nothing else has.

    The cluster's own count is held against what is missing of the reference: too low, and a time
    is lost; too high, and the job's history tells of times that never were.
    """
    case = Case("accounted")
    for ledger in ledgers(run):
        view, creation, counts = ledger.view, ledger.creation, ledger.timetable
        case.examined += len(ledger.named)
        created_ms = instant_ms(view.created_at)
        if not creation.sent_us // 1000 <= created_ms <= creation.acked_us // 1000:
            case.violated(
                view.job_id,
                f"says it was created at {created_ms} ms, but was asked for at {creation.sent_us}"
                f" us and acknowledged at {creation.acked_us} us",
            )
        for nominal in sorted(set(ledger.ran) - set(ledger.named)):
            case.violated(f"{view.job_id}-{nominal}", "ran, and its timetable names no such time")
        missing = [nominal for nominal in ledger.named if nominal not in ledger.ran]
        if len(missing) != counts.coalesced:
            case.violated(
                view.job_id,
                f"{len(missing)} nominal times did not run, {counts.coalesced} are counted as"
                f" coalesced; missing: {_sample(missing)}",
            )
        if counts.missed:
            case.violated(view.job_id, f"counts {counts.missed} times as missed: `one` misses none")
        if view.state != "completed" or view.next_fires:
            case.violated(
                view.job_id, f"has come to its end, yet is {view.state}, next: {view.next_fires}"
            )
    return case.finding()


def check_once(run: Run) -> Finding:
    """Each nominal time that ran has one execution, and one completion that was accepted.

    Counted by nominal time, whatever ids executions have, and by what workers know themselves. A
    worker may never learn that its completion was accepted; then it must at least have sent it.
    """
    case = Case("once")
    accepted: dict[str, set[int]] = defaultdict(set)
    sent: dict[str, set[int]] = defaultdict(set)
    for answer in run.of(ReportAnswered):
        if answer.kind == "complete" and answer.verdict in ("accepted", "duplicate"):
            accepted[answer.execution_id].add(answer.token)
    for report in run.of(ReportSent):
        if report.kind == "complete":
            sent[report.execution_id].add(report.token)
    for ledger in ledgers(run):
        for nominal, views in ledger.ran.items():
            subject = f"{ledger.view.job_id}-{nominal}"
            case.examined += 1
            ids = sorted(view.execution_id for view in views)
            if len(ids) > 1:
                case.violated(subject, f"ran as {len(ids)} executions: {ids}")
            tokens = {token for execution in ids for token in accepted[execution]}
            if len(tokens) > 1:
                case.violated(subject, f"completions under the tokens {sorted(tokens)} count")
            winners = {a.token for v in views for a in v.attempts if a.outcome == "succeeded"}
            known = tokens or {token for execution in ids for token in sent[execution]}
            if not winners or not winners <= known:
                case.violated(
                    subject,
                    f"is {views[0].state} by the tokens {sorted(winners)}; its workers"
                    f" completed it under {sorted(known)}",
                )
    _renamed(run, case)
    return case.finding()


def _renamed(run: Run, case: Case) -> None:
    """What a worker was told of an execution's nominal time is what the listing says of it."""
    for delivery in run.of(Delivered):
        view = run.executions.get(delivery.execution_id)
        if view is None:
            case.violated(delivery.execution_id, "was delivered, and is not listed")
        elif instant_ms(view.nominal_at) != delivery.nominal_ms:
            case.violated(
                delivery.execution_id,
                f"was delivered as of {delivery.nominal_ms} ms, is listed as of {view.nominal_at}",
            )


def check_folded(run: Run) -> Finding:
    """Nominal times are folded only after a silence longer than the grace, into their last one.

    The silence is everybody's: whoever fired anything of a later nominal time led and served
    while the oldest folded one was not too late to run on its own.
    """
    case = Case("folded")
    heard = sorted((d.at_us, d.nominal_ms) for d in run.of(Delivered))
    instants = [at_us for at_us, _ in heard]
    for ledger in ledgers(run):
        case.examined += len(ledger.named)
        for oldest, following in _folds(ledger):
            subject = f"{ledger.view.job_id}-{oldest}"
            if following is None:
                case.violated(subject, "did not run, nor any later one: `one` runs the last")
            until_us = (oldest + GRACE_MS - SLACK_MS) * 1000
            low, high = bisect_right(instants, oldest * 1000), bisect_right(instants, until_us)
            for at_us, nominal in heard[low:high]:
                if nominal > oldest:
                    case.violated(
                        subject,
                        f"did not run, though the cluster fired what was due at {nominal} ms at"
                        f" {at_us} us, within the grace of {GRACE_MS} ms",
                    )
                    break
    return case.finding()


def _folds(ledger: Ledger) -> Iterator[tuple[int, int | None]]:
    """The oldest of each row of missing nominal times, with the one after it that ran."""
    oldest: int | None = None
    for nominal in ledger.named:
        if nominal not in ledger.ran:
            oldest = nominal if oldest is None else oldest
        elif oldest is not None:
            yield oldest, nominal
            oldest = None
    if oldest is not None:
        yield oldest, None


def _sample(nominals: list[int]) -> str:
    return ", ".join(str(nominal) for nominal in nominals[:5]) or "none"


RULES: dict[str, Checker] = {
    "accounted": check_accounted,
    "once": check_once,
    "folded": check_folded,
}
"""Every checker by the rule that it guards."""


def check_occurrences(run: Run) -> dict[str, Finding]:
    """Run every checker of timetables; the findings by rule."""
    return {rule: checker(run) for rule, checker in RULES.items()}

"""The checkers of chaos, beside those of every run: what only faults and status reads show."""

from __future__ import annotations

from collections import defaultdict

from timeball.bench.checkers import Case, Checker, Finding
from timeball.bench.evidence import Run
from timeball.bench.history import (
    FaultOvercome,
    FaultStruck,
    JobAcknowledged,
    NodeComplained,
    NodeEnded,
    StatusRead,
)

FINAL_STATES = frozenset(("succeeded", "cancelled", "skipped"))
"""States of a one-shot job's execution that nothing leads out of."""


def check_overcome(run: Run) -> Finding:
    """After every fault all nodes become ready again, and one leads and serves."""
    case = Case("overcome")
    overcome = {event.number for event in run.of(FaultOvercome)}
    for struck in run.of(FaultStruck):
        case.examined += 1
        if struck.number not in overcome:
            case.violated(
                f"fault {struck.number}",
                f"{struck.kind} of {', '.join(struck.targets)} at {struck.at_us} us, and the"
                " cluster did not come round",
            )
    return case.finding()


def check_ended(run: Run) -> Finding:
    """A node ends when it is made to, and by SIGTERM with code 0."""
    case = Case("ended")
    for ended in run.of(NodeEnded):
        case.examined += 1
        if ended.asked is None:
            case.violated(ended.node, f"ended by itself at {ended.at_us} us, code {ended.code}")
        elif ended.asked == "terminate" and ended.code != 0:
            case.violated(ended.node, f"was asked to end and did so with code {ended.code}")
    return case.finding()


def check_complaints(run: Run) -> Finding:
    """No node logs an error: faults from outside are no errors of its own."""
    case = Case("complaints")
    case.examined = len(run.final.nodes)
    for complaint in run.of(NodeComplained):
        case.violated(complaint.node, complaint.line)
    return case.finding()


def check_reads(run: Run) -> Finding:
    """Status reads agree: one index shows one state, and what is over at one stays so after.

    An acknowledged job that was known at an index is known at every later one, on any node.
    """
    case = Case("reads")
    acknowledged = {ack.job_id for ack in run.of(JobAcknowledged)}
    by_job: dict[str, list[StatusRead]] = defaultdict(list)
    for read in run.of(StatusRead):
        by_job[read.job_id].append(read)
    for job_id, reads in by_job.items():
        reads.sort(key=lambda read: read.applied_index)
        before: StatusRead | None = None
        for read in reads:
            case.examined += 1
            if before is not None:
                _compare(case, before, read)
            before = read
        if job_id not in acknowledged:
            case.violated(job_id, "a status was asked for of a job that nobody was told of")
    return case.finding()


def _compare(case: Case, before: StatusRead, read: StatusRead) -> None:
    if read.state == before.state:
        return
    told = (
        f"{before.node} at {before.applied_index}: {before.state};"
        f" {read.node} at {read.applied_index}: {read.state}"
    )
    if read.applied_index == before.applied_index:
        case.violated(read.job_id, f"two states at one index: {told}")
    elif read.state is None:
        case.violated(read.job_id, f"known, and unknown later: {told}")
    elif before.state in FINAL_STATES:
        case.violated(read.job_id, f"over, and not over later: {told}")


RULES: dict[str, Checker] = {
    "overcome": check_overcome,
    "ended": check_ended,
    "complaints": check_complaints,
    "reads": check_reads,
}
"""Every checker by the rule that it guards."""


def check_conduct(run: Run) -> dict[str, Finding]:
    """Run every checker of chaos; the findings by rule."""
    return {rule: checker(run) for rule, checker in RULES.items()}

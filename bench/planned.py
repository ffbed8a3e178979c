"""The failures that the demo plans: whether each really happened and was really survived.

A run in which nothing failed proves little. So the demo fails, too, when one of its own
faults did not strike where it should, and each judgement here says what was seen.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from timeball.bench import workload
from timeball.bench.evidence import Run
from timeball.bench.history import (
    Delivered,
    HandlerStarted,
    JobAcknowledged,
    LeaderObserved,
    ProcessSignalled,
    ReplayAcknowledged,
)
from timeball.bench.metrics import failover_gap, leader_kills
from timeball.client.messages import ExecutionView

LOAD_OVER_FAILOVER = 10
"""Fewer executions due while there was no leader would not be a fail-over under load."""


class Planned(msgspec.Struct, frozen=True):
    """One planned failure: did it happen, was it survived, and what shows it."""

    name: str
    what: str
    survived: bool
    seen: str


def judge(run: Run) -> list[Planned]:
    """Judge every planned failure."""
    planned = []
    for name, (what, judgement) in _PLAN.items():
        survived, seen = judgement(run)
        planned.append(Planned(name, what, survived, seen))
    return planned


def _executions(run: Run, label: str) -> list[ExecutionView]:
    return [
        view
        for creation in run.creations.values()
        if creation.label == label
        for view in run.executions_by_job.get(creation.job_id, [])
    ]


def _outcomes(view: ExecutionView) -> list[str]:
    return [attempt.outcome for attempt in view.attempts]


def _flaky(run: Run) -> tuple[bool, str]:
    wanted = ["failed"] * workload.FLAKY_FAILURES + ["succeeded"]
    views = _executions(run, workload.FLAKY)
    seen = "; ".join(" → ".join(_outcomes(view)) for view in views) or "it never ran"
    return bool(views) and all(_outcomes(view) == wanted for view in views), seen


def _poison(run: Run) -> tuple[bool, str]:
    replays = {replay.execution_id: replay for replay in run.of(ReplayAcknowledged)}
    for view in _executions(run, workload.POISON):
        outcomes = _outcomes(view)
        wanted = ["failed"] * workload.POISON_ATTEMPTS + ["succeeded"]
        replay = replays.get(view.execution_id)
        if replay is not None and replay.status == "replayed":
            seen = f"dead after {outcomes.count('failed')} attempts, replayed, then {view.state}"
            return outcomes == wanted and view.state == "succeeded", seen
    return False, "it was never dead and replayed"


def _worker_killed(run: Run) -> tuple[bool, str]:
    kills = [s for s in run.of(ProcessSignalled) if s.signal == "kill" and not s.led]
    for view in _executions(run, workload.CRASH):
        for kill in kills:
            holders = run.deliveries.get(view.execution_id, [])
            held = [d for d in holders if d.source == kill.process and d.at_us < kill.at_us]
            again = [d for d in holders if d.source != kill.process and d.at_us > kill.at_us]
            if held and again:
                took_ms = (again[0].at_us - kill.at_us) // 1000
                seen = (
                    f"{kill.process} died holding it; {again[0].source} got it"
                    f" {took_ms} ms later; {view.state}"
                )
                return view.state == "succeeded", seen
    return False, "no execution was redelivered from a killed worker"


def _zombie(run: Run) -> tuple[bool, str]:
    woken = {s.process: s.at_us for s in run.of(ProcessSignalled) if s.signal == "continue"}
    for view in _executions(run, workload.ZOMBIE):
        answers = run.answers.get(view.execution_id, [])
        late = next((a for a in answers if a.sent_us > woken.get(a.source, a.sent_us)), None)
        won = next((a for a in answers if a.kind == "complete" and a.verdict == "accepted"), None)
        if late is not None and won is not None:
            when = "while" if late.at_us < won.sent_us else "after"
            seen = f"{late.source} reported late, {when} {won.source} held it: {late.verdict}"
            fenced = late.verdict == "stale" and when == "while" and late.source != won.source
            return fenced and view.state == "succeeded", seen
    return False, "no late report came from a worker that had been stopped"


def _keyed(run: Run) -> tuple[bool, str]:
    acks = [a for a in run.of(JobAcknowledged) if a.idempotency_key == workload.KEY]
    statuses = [ack.status for ack in acks]
    jobs = {ack.job_id for ack in acks}
    survived = statuses == ["created", "duplicate"] and len(jobs) == 1
    return survived, f"{len(acks)} creates answered {', '.join(statuses)}: {len(jobs)} job"


def _cancelled(run: Run) -> tuple[bool, str]:
    views = _executions(run, workload.UNWANTED)
    deliveries = [d for view in views for d in run.deliveries.get(view.execution_id, [])]
    states = ", ".join(view.state for view in views) or "gone"
    survived = [view.state for view in views] == ["cancelled"] and not deliveries
    return survived, f"{states}, {len(deliveries)} deliveries"


def _leader_killed(run: Run) -> tuple[bool, str]:
    for kill in leader_kills(run):
        leaders = [s for s in run.of(LeaderObserved) if s.at_us > kill.at_us]
        gap = failover_gap(run, kill)
        if not leaders or gap is None:
            return False, f"{kill.process} died, and nobody took over"
        start, end = gap
        due = [d for d in run.of(Delivered) if start <= d.due_ms * 1000 <= end]
        seen = (
            f"{kill.process} died, {leaders[0].leader} leads term {leaders[0].term};"
            f" {len(due)} executions fell due in {(end - start) // 1000} ms of silence"
        )
        return len(due) >= LOAD_OVER_FAILOVER, seen
    return False, "no leader was killed"


def _leader_returned(run: Run) -> tuple[bool, str]:
    for kill in leader_kills(run):
        returned = any(
            s.process == kill.process and s.signal == "start" and s.at_us > kill.at_us
            for s in run.of(ProcessSignalled)
        )
        view = next((node for node in run.final.nodes if node.node == kill.process), None)
        if returned and view is not None:
            highest = max(node.applied_index for node in run.final.nodes)
            seen = f"{kill.process} stands at entry {view.applied_index} of {highest}"
            return view.applied_index == highest, seen
    return False, "it did not come back"


def _all_kinds(run: Run) -> tuple[bool, str]:
    kinds = (workload.IMMEDIATE, workload.DELAYED, workload.INTERVAL, workload.CRON)
    labels: dict[str, int] = {}
    for started in run.of(HandlerStarted):
        labels[started.label] = labels.get(started.label, 0) + 1
    seen = ", ".join(f"{labels.get(kind, 0)} {kind}" for kind in kinds)
    return all(labels.get(kind) for kind in kinds), seen


_PLAN: dict[str, tuple[str, Callable[[Run], tuple[bool, str]]]] = {
    "every_kind_ran": ("Jobs of every kind ran", _all_kinds),
    "leader_killed": ("Leader killed (SIGKILL) under load", _leader_killed),
    "leader_returned": ("Killed leader restarted and caught up", _leader_returned),
    "worker_killed": ("Worker killed (SIGKILL) in mid-job", _worker_killed),
    "worker_stopped": ("Worker stopped past its lease, completes late", _zombie),
    "job_failed_twice": ("Job fails twice before it succeeds", _flaky),
    "job_poisoned": ("Poison job goes dead, is replayed", _poison),
    "job_created_twice": ("Same job created twice, one idempotency key", _keyed),
    "job_cancelled": ("Job cancelled before it is due", _cancelled),
}

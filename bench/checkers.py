"""The checkers: what must hold of every run, whatever failed during it.

Each reads a `Run` (the recorded history and the cluster's final answers) and returns a
`Finding`: how many things it looked at and every violation with its evidence. They know
nothing of the cluster's inside, so the cluster cannot make them agree with itself.

A checker that looked at nothing has proved nothing: `examined` says so.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable

import msgspec

from timeball.bench.evidence import Creation, Run, instant_ms
from timeball.bench.history import CreateSent, Delivered, JobAcknowledged, ReplayAcknowledged
from timeball.bench.nominal_times import nominal_times
from timeball.client.messages import After, At, Cron, Every

SETTLED_MS = 2_000
"""What was due this long before the final answers must have been delivered by then."""


class Violation(msgspec.Struct, frozen=True):
    """Something that must never be: about which job, execution or node, and how we know."""

    rule: str
    subject: str
    detail: str


class Finding(msgspec.Struct, frozen=True):
    """What one checker found."""

    rule: str
    examined: int
    violations: list[Violation]


Checker = Callable[[Run], Finding]


class Case:
    """Gathers the finding of one checker."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self.examined = 0
        self._violations: list[Violation] = []

    def violated(self, subject: str, detail: str) -> None:
        """Note that something was not as it must be."""
        self._violations.append(Violation(self._rule, subject, detail))

    def finding(self) -> Finding:
        """What was found."""
        return Finding(self._rule, self.examined, self._violations)


def check_lost(run: Run) -> Finding:
    """Nothing acknowledged is lost: jobs, accepted completions, cancels and replays."""
    case = Case("lost")
    for creation in run.creations.values():
        case.examined += 1
        if creation.job_id not in run.jobs:
            case.violated(creation.job_id, f"acknowledged at {creation.acked_us} us, now unknown")
        elif not run.executions_by_job.get(creation.job_id) and not _may_have_none(run, creation):
            case.violated(creation.job_id, "acknowledged, and has no execution")
    _completions_lost(run, case)
    _cancels_lost(run, case)
    _replays_lost(run, case)
    return case.finding()


def _may_have_none(run: Run, creation: Creation) -> bool:
    return creation.job_id in run.cancels and isinstance(creation.schedule, Every | Cron)


def _completions_lost(run: Run, case: Case) -> None:
    for execution_id, answers in run.answers.items():
        accepted = [answer for answer in answers if answer.verdict == "accepted"]
        if not accepted:
            continue
        case.examined += len(accepted)
        view = run.executions.get(execution_id)
        if view is None:
            case.violated(execution_id, f"token {accepted[-1].token} reported, now unknown")
            continue
        tokens = {attempt.token: attempt.outcome for attempt in view.attempts}
        for answer in accepted:
            if answer.token not in tokens:
                case.violated(execution_id, f"no attempt left of accepted token {answer.token}")
            elif answer.kind == "complete" and (
                view.state != "succeeded" or tokens[answer.token] != "succeeded"
            ):
                case.violated(
                    execution_id,
                    f"completion with token {answer.token} was accepted, now {view.state}"
                    f" with that attempt {tokens[answer.token]}",
                )


def _cancels_lost(run: Run, case: Case) -> None:
    delivered = {delivery.token for delivery in run.of(Delivered)}
    for job_id, cancel in run.cancels.items():
        case.examined += 1
        view = run.jobs.get(job_id)
        if view is not None and view.state != "cancelled":
            case.violated(job_id, f"cancel acknowledged ({cancel.status}), now {view.state}")
        for execution in run.executions_by_job.get(job_id, []):
            for attempt in execution.attempts:
                if attempt.outcome == "released" and attempt.token not in delivered:
                    continue  # leased ahead of its due time, and given back by then
                if instant_ms(attempt.claimed_at) * 1000 > cancel.at_us:
                    case.violated(
                        execution.execution_id,
                        f"claimed at {attempt.claimed_at}, after the acknowledged cancel",
                    )


def _replays_lost(run: Run, case: Case) -> None:
    for replay in run.of(ReplayAcknowledged):
        if replay.status != "replayed":
            continue
        case.examined += 1
        view = run.executions.get(replay.execution_id)
        later = (
            []
            if view is None
            else [
                attempt
                for attempt in view.attempts
                if instant_ms(attempt.claimed_at) >= replay.sent_us // 1000
            ]
        )
        expired = view is not None and view.reason == "expired"
        if view is None or (view.state in ("dead", "skipped") and not later and not expired):
            case.violated(replay.execution_id, "replay acknowledged, and never tried again")


def check_early(run: Run) -> Finding:
    """No delivery and no grant before the due time, nor before what the job's creator asked for."""
    case = Case("early")
    for delivery in run.of(Delivered):
        case.examined += 1
        floor_ms = max(delivery.due_ms, delivery.nominal_ms)
        creation = run.creations.get(delivery.job_id)
        if creation is not None:
            floor_ms = max(floor_ms, _earliest_ms(creation))
        if delivery.at_us < floor_ms * 1000:
            case.violated(
                delivery.execution_id,
                f"received by {delivery.source} at {delivery.at_us} us,"
                f" {floor_ms * 1000 - delivery.at_us} us before {floor_ms} ms",
            )
    for view in run.final.executions:
        for attempt in view.attempts:
            if instant_ms(attempt.claimed_at) < instant_ms(view.nominal_at):
                case.violated(
                    view.execution_id,
                    f"claimed at {attempt.claimed_at}, nominal time {view.nominal_at}",
                )
    return case.finding()


def _earliest_ms(creation: Creation) -> int:
    """The earliest instant at which the creator may see any execution of the job."""
    sent_ms = creation.sent_us // 1000
    match creation.schedule:
        case At(time=int(time_ms)):
            return time_ms
        case At(time=str(text)):
            return instant_ms(text)
        case After(delay_ms=delay_ms):
            return sent_ms + delay_ms
        case _:
            return sent_ms


def check_double_accepted(run: Run) -> Finding:
    """At most one completion of an execution is accepted, and it is granted to nobody after."""
    case = Case("double_accepted")
    for execution_id, answers in run.answers.items():
        completions = [a for a in answers if a.kind == "complete" and a.verdict == "accepted"]
        case.examined += len(completions)
        if len(completions) > 1:
            who = ", ".join(f"{answer.source} with token {answer.token}" for answer in completions)
            case.violated(execution_id, f"{len(completions)} completions accepted: {who}")
        for completion in completions:
            for delivery in run.deliveries.get(execution_id, []):
                if delivery.token > completion.token:
                    case.violated(
                        execution_id,
                        f"completion with token {completion.token} accepted from"
                        f" {completion.source}, yet {delivery.source} holds {delivery.token}",
                    )
    for view in run.final.executions:
        succeeded = [a.token for a in view.attempts if a.outcome == "succeeded"]
        if len(succeeded) > 1:
            case.violated(view.execution_id, f"attempts {succeeded} all succeeded")
    return case.finding()


def check_stale_accepted(run: Run) -> Finding:
    """A report is refused when a later grant had reached somebody before it was sent."""
    case = Case("stale_accepted")
    for execution_id, answers in run.answers.items():
        deliveries = run.deliveries.get(execution_id, [])
        for answer in answers:
            newer = [
                delivery
                for delivery in deliveries
                if delivery.token > answer.token and delivery.at_us < answer.sent_us
            ]
            if not newer:
                continue
            case.examined += 1
            if answer.verdict == "accepted":
                case.violated(
                    execution_id,
                    f"{answer.kind} of {answer.source} with token {answer.token} accepted,"
                    f" though {newer[0].source} held {newer[0].token} before it was sent",
                )
    return case.finding()


def check_missed_occurrences(run: Run) -> Finding:
    """Every nominal time of a recurring job, from its creation to its end, has its execution.

    A job that does not catch up on all may fold nominal times, if it counts them.
    """
    case = Case("missed_occurrences")
    for creation, expected in _expected_nominals(run):
        found = {instant_ms(v.nominal_at) for v in run.executions_by_job.get(creation.job_id, [])}
        acked_ms = creation.acked_us // 1000
        missing = [nominal for nominal in expected if nominal > acked_ms and nominal not in found]
        case.examined += len(expected)
        if missing and not _folded(run, creation, len(missing)):
            sample = ", ".join(str(nominal) for nominal in missing[:5])
            for nominal in missing:
                case.violated(f"{creation.job_id}-{nominal}", f"no execution; missing: {sample}")
    return case.finding()


def _folded(run: Run, creation: Creation, missing: int) -> bool:
    view = run.jobs.get(creation.job_id)
    schedule = creation.schedule
    if view is None or not isinstance(schedule, Every | Cron) or schedule.catch_up == "all":
        return False
    timetable = view.timetable
    return timetable is not None and missing <= timetable.coalesced + timetable.missed


def _expected_nominals(run: Run) -> list[tuple[Creation, list[int]]]:
    """Each recurring job with its nominal times up to its cancel or the settled end."""
    expected = []
    for creation in run.creations.values():
        if not isinstance(creation.schedule, Every | Cron):
            continue
        end_ms = run.final.asked_us // 1000 - SETTLED_MS
        cancel = run.cancels.get(creation.job_id)
        if cancel is not None:
            end_ms = min(end_ms, cancel.sent_us // 1000 - SETTLED_MS)
        expected.append((creation, list(nominal_times(creation, end_ms))))
    return expected


def check_duplicate_occurrences(run: Run) -> Finding:
    """One execution for each (job, nominal time), and none at a time the schedule doesn't name."""
    case = Case("duplicate_occurrences")
    by_identity: dict[tuple[str, int], set[str]] = defaultdict(set)
    listed: set[str] = set()
    for view in run.final.executions:
        case.examined += 1
        if view.execution_id in listed:
            case.violated(view.execution_id, "listed twice")
        listed.add(view.execution_id)
        by_identity[view.job_id, instant_ms(view.nominal_at)].add(view.execution_id)
    for delivery in run.of(Delivered):
        by_identity[delivery.job_id, delivery.nominal_ms].add(delivery.execution_id)
    nominals: dict[str, list[int]] = defaultdict(list)
    for (job_id, nominal_ms), executions in by_identity.items():
        nominals[job_id].append(nominal_ms)
        if len(executions) > 1:
            case.violated(f"{job_id}-{nominal_ms}", f"executions {sorted(executions)}")
    for creation in run.creations.values():
        _unasked_occurrences(case, creation, nominals[creation.job_id])
    return case.finding()


def _unasked_occurrences(case: Case, creation: Creation, nominals: list[int]) -> None:
    if not nominals:
        return
    if isinstance(creation.schedule, Every | Cron):
        asked = set(nominal_times(creation, max(nominals)))
        for nominal in sorted(set(nominals) - asked):
            case.violated(f"{creation.job_id}-{nominal}", "the schedule names no such time")
    elif len(nominals) > 1:
        case.violated(creation.job_id, f"a one-shot job occurs at {sorted(nominals)}")


def check_duplicate_jobs(run: Run) -> Finding:
    """One job for each request and each idempotency key, however often the create was repeated."""
    case = Case("duplicate_jobs")
    by_key: dict[str, set[str]] = defaultdict(set)
    by_request: dict[tuple[str, int], set[str]] = defaultdict(set)
    for ack in run.of(JobAcknowledged):
        case.examined += 1
        by_request[ack.request_id, ack.position].add(ack.job_id)
        if ack.idempotency_key is not None:
            by_key[ack.idempotency_key].add(ack.job_id)
    for subject, jobs in [*by_key.items(), *((r, j) for (r, _), j in by_request.items())]:
        if len(jobs) > 1:
            case.violated(subject, f"made the jobs {sorted(jobs)}")
    answered = {request_id for request_id, _ in by_request}
    asked = {sent.request_id: sent.jobs for sent in run.of(CreateSent)}
    unanswered = sum(jobs for request_id, jobs in asked.items() if request_id not in answered)
    unasked = sorted(set(run.jobs) - set(run.creations))
    if len(unasked) > unanswered:
        for job_id in unasked:
            case.violated(job_id, f"a job that nobody asked for; {unanswered} creates unanswered")
    return case.finding()


def check_tokens(run: Run) -> Finding:
    """Fencing tokens are unique, rise from attempt to attempt, and rise in real time."""
    case = Case("tokens")
    owners: dict[int, tuple[str, int]] = {}
    for delivery in run.of(Delivered):
        case.examined += 1
        owner = (delivery.execution_id, delivery.attempt)
        if owners.setdefault(delivery.token, owner) != owner:
            case.violated(
                delivery.execution_id,
                f"token {delivery.token} was granted for {owners[delivery.token]} and {owner}",
            )
    for view in run.final.executions:
        tokens = [attempt.token for attempt in view.attempts]
        if any(later <= earlier for earlier, later in itertools.pairwise(tokens)):
            case.violated(view.execution_id, f"tokens of its attempts do not rise: {tokens}")
    _tokens_fell(run, case)
    return case.finding()


def _tokens_fell(run: Run, case: Case) -> None:
    """A grant asked for after another was in hand must have the higher token."""
    received = sorted(run.of(Delivered), key=lambda delivery: delivery.at_us)
    highest = 0
    position = 0
    for delivery in sorted(received, key=lambda delivery: delivery.claim_sent_us):
        while received[position].at_us < delivery.claim_sent_us:
            highest = max(highest, received[position].token)
            position += 1
        if delivery.token <= highest:
            case.violated(
                delivery.execution_id,
                f"token {delivery.token} was granted to a claim sent after {highest} was received",
            )


def check_undelivered(run: Run) -> Finding:
    """Every due execution is eventually delivered, and none is left on the way."""
    case = Case("undelivered")
    settled_ms = run.final.asked_us // 1000 - SETTLED_MS
    for view in run.final.executions:
        case.examined += 1
        if view.state in ("scheduled", "retry"):
            if instant_ms(view.due_at) <= settled_ms:
                case.violated(view.execution_id, f"due at {view.due_at} and still {view.state}")
        elif view.state in ("leased", "running"):
            case.violated(view.execution_id, f"still {view.state} when all should be over")
        elif view.state == "succeeded" and view.execution_id not in run.deliveries:
            case.violated(view.execution_id, "succeeded, and no worker ever received it")
    return case.finding()


def check_replicas(run: Run) -> Finding:
    """All nodes answer, stand at one applied index, and hash to the same state."""
    case = Case("replicas")
    nodes = run.final.nodes
    case.examined = len(nodes)
    if len(nodes) != run.final.expected_nodes:
        case.violated("cluster", f"{len(nodes)} of {run.final.expected_nodes} nodes answered")
    if len({node.applied_index for node in nodes}) > 1:
        standing = {node.node: node.applied_index for node in nodes}
        case.violated("cluster", f"applied indexes differ: {standing}")
    elif len({node.state_digest for node in nodes}) > 1:
        digests = {node.node: node.state_digest for node in nodes}
        case.violated("cluster", f"state digests differ at one index: {digests}")
    for node in nodes:
        if not isinstance(node.state_digest, str):
            case.violated(node.node, "answered without a state digest")
    return case.finding()


CHECKERS: dict[str, Checker] = {
    "lost": check_lost,
    "early": check_early,
    "double_accepted": check_double_accepted,
    "stale_accepted": check_stale_accepted,
    "missed_occurrences": check_missed_occurrences,
    "duplicate_occurrences": check_duplicate_occurrences,
    "duplicate_jobs": check_duplicate_jobs,
    "tokens": check_tokens,
    "undelivered": check_undelivered,
    "replicas": check_replicas,
}
"""Every checker by the rule that it guards."""


def check(run: Run) -> dict[str, Finding]:
    """Run every checker; the findings by rule."""
    return {rule: checker(run) for rule, checker in CHECKERS.items()}

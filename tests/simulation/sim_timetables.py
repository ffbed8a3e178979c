"""What must hold of the timetables of a run, judged by what timekeepers and workers saw.

What should have happened is arithmetic (`sim_schedules`). A request whose answer was lost may have
been done, or may be done later still: what depends on that is not judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from sim_schedules import beats
from sim_timetable_events import QUEUE, Asked, Explained, Handed, Told

from timeball.bench.evidence import Run, instant_ms
from timeball.bench.history import AnyEvent, Delivered, FinalAnswers
from timeball.client.messages import ExecutionView, JobExplained, Timetable

AHEAD_MS = 25
"""A grant may commit this long before the instant at which its attempt counts as claimed."""
LEDGER_LINES = 100
"""How many lines a job keeps of times that hold no execution."""
ADVANCES = ("put", "create", "update")
"""What may change a definition."""


class Timetables:
    """The evidence, indexed."""

    def __init__(self, events: list[AnyEvent], final: FinalAnswers, *, skewed: bool) -> None:
        self.run = Run(events, final)
        self.skewed = skewed
        self.asked = self.run.of(Asked)
        self.told = {(told.source, told.number): told for told in self.run.of(Told)}
        self.explained = {one.answer.job_id: one for one in self.run.of(Explained)}
        self._by_payload = {one.payload: one for one in self.asked if one.payload is not None}

    def answer(self, asked: Asked) -> Told | None:
        return self.told.get((asked.source, asked.number))

    def maker(self, explained: Explained) -> Asked:
        """The request that gave a job the payload that it has."""
        return self._by_payload[explained.payload]

    @cached_property
    def uncertain(self) -> set[str]:
        """Timekeepers some of whose changes may have been made, or be made later."""
        return {
            asked.source
            for asked in self.asked
            if asked.action in ADVANCES and _is_doubtful(self.answer(asked))
        }

    @cached_property
    def unended(self) -> set[str]:
        """Timekeepers one of whose cancels may not have been made: what they put next, as another
        job of the name, may have changed the same one."""
        return {
            asked.source
            for asked in self.asked
            if asked.action == "cancel" and _is_doubtful(self.answer(asked))
        }

    def schedules(self, explained: Explained) -> list[Timetable]:
        """All that the job may ever have had."""
        maker = self.maker(explained)
        if explained.answer.version == 1:
            assert maker.schedule is not None
            return [maker.schedule]
        unsure = maker.source in self.uncertain | self.unended
        found: list[Timetable] = []
        for asked in self.asked:
            if (
                asked.source == maker.source
                and (unsure or asked.line == maker.line)
                and asked.schedule is not None
                and asked.schedule not in found
            ):
                found.append(asked.schedule)
        return found

    @cached_property
    def executions(self) -> dict[str, list[ExecutionView]]:
        """By job, what is kept of it in the end."""
        return self.run.executions_by_job

    def of_origin(self, job_id: str, origin: str) -> list[ExecutionView]:
        return [one for one in self.executions.get(job_id, []) if one.origin == origin]

    def backfilled(self, job_id: str, nominal_ms: int) -> bool:
        """Whether a backfill of this time was asked for."""
        return any(
            asked.action == "backfill"
            and asked.job_id == job_id
            and asked.start_ms <= nominal_ms <= asked.until_ms
            for asked in self.asked
        )


def _is_doubtful(told: Told | None) -> bool:
    return told is None or told.doubtful


def judge_timetables(events: list[AnyEvent], final: FinalAnswers, *, skewed: bool) -> list[str]:
    """All that is wrong, each as `rule: subject: detail`."""
    seen = Timetables(events, final, skewed=skewed)
    return [f"{rule}: {told}" for rule, judge in RULES.items() for told in judge(seen)]


def judge_named(seen: Timetables) -> Iterator[str]:
    """What ran is a nominal time of the timetable, or somebody asked for it."""
    for job_id, explained in seen.explained.items():
        named: set[int] = set()
        views = seen.executions.get(job_id, [])
        if views:
            nominals = [instant_ms(view.nominal_at) for view in views]
            for schedule in seen.schedules(explained):
                named.update(beats(schedule, min(nominals) - 1, max(nominals)))
        for view in views:
            nominal_ms = instant_ms(view.nominal_at)
            if view.origin != "trigger" and nominal_ms not in named:
                yield f"{view.execution_id}: the schedule names no such time"
            if view.origin == "backfill" and not seen.backfilled(job_id, nominal_ms):
                yield f"{view.execution_id}: nobody asked for this backfill"


def judge_accounting(seen: Timetables) -> Iterator[str]:
    """Each nominal time up to the planned one is fired, coalesced, skipped or missed, once."""
    for job_id, explained in seen.explained.items():
        answer = explained.answer
        timetable = answer.timetable
        ours = [line for line in answer.past if line.fate not in ("triggered", "backfilled")]
        if sum(1 for line in ours if line.execution_id is None) >= LEDGER_LINES:
            continue  # the oldest lines are forgotten
        views = {view.execution_id: view for view in seen.executions.get(job_id, [])}
        counts: dict[str, int] = defaultdict(int)
        for line in ours:
            kept = views.get(line.execution_id or "")
            if kept is None or kept.origin == "timetable":
                counts["fired" if line.fate == "planned" else line.fate] += line.count
        # A backfilled run stays one when the timetable comes to its time, and counts as its run.
        planned_ms = instant_ms(timetable.planned_at)
        adopted = sum(
            line.fate == "backfilled" and instant_ms(line.first_at) <= planned_ms
            for line in answer.past
        )
        for fate in ("fired", "coalesced", "skipped", "missed"):
            beyond = getattr(timetable, fate) - counts[fate]
            if not 0 <= beyond <= (adopted if fate == "fired" else 0):
                yield f"{job_id}: {counts[fate]} {fate} in its history, {timetable} in its totals"
        yield from _tally(seen, explained, [instant_ms(line.first_at) for line in ours])


def _tally(seen: Timetables, explained: Explained, firsts: list[int]) -> Iterator[str]:
    """The totals, against all times that the timetable names from its first on."""
    answer = explained.answer
    job_id, timetable = answer.job_id, answer.timetable
    total = timetable.fired + timetable.coalesced + timetable.skipped + timetable.missed
    planned_ms, created_ms = instant_ms(timetable.planned_at), explained.created_ms
    schedules = seen.schedules(explained)
    asked_ms = min(
        asked.at_us // 1000
        for asked in seen.asked
        if asked.source == seen.maker(explained).source and asked.schedule in schedules
    )
    if len(schedules) > 1:
        # Which of them named a time is not known, but none has its turn twice.
        named = {beat for one in schedules for beat in beats(one, asked_ms, planned_ms)}
        if total > len(named):
            yield f"{job_id}: counts {total} times, of {len(named)} up to {planned_ms}: {timetable}"
        return
    schedule = schedules[0]
    first = min(firsts, default=planned_ms + 1)
    due = beats(schedule, created_ms, max(planned_ms, created_ms))
    if firsts and not (asked_ms <= first <= (due[0] if due else first)):
        yield f"{job_id}: its first time is {first}, it was created at {created_ms}: {due[:1]}"
    named = set(beats(schedule, min(first - 1, created_ms), planned_ms))
    if total != len(named):
        yield (
            f"{job_id}: counts {total} times, its schedule names {len(named)} from {first} to"
            f" {planned_ms}: {timetable}"
        )


def judge_max_runs(seen: Timetables) -> Iterator[str]:
    """A timetable makes no more occurrences than it may."""
    for job_id, explained in seen.explained.items():
        answer = explained.answer
        bounds = [schedule.max_runs for schedule in seen.schedules(explained)]
        if None in bounds:
            continue
        left_out = sum(
            line.count
            for line in answer.past
            if line.fate == "skipped" and line.reason in ("overlap", "superseded")
            if _is_of(seen, job_id, line.execution_id)
        )
        made, most = answer.timetable.fired + left_out, max(bounds)
        if made > most:
            yield f"{job_id}: made {made} occurrences of at most {most}"


def _is_of(seen: Timetables, job_id: str, execution_id: str | None) -> bool:
    """Whether the timetable itself made an occurrence."""
    return execution_id is None or any(
        view.execution_id == execution_id for view in seen.of_origin(job_id, "timetable")
    )


def judge_pauses(seen: Timetables) -> Iterator[str]:
    """After an acknowledged pause nothing new is made, until a resume is sent."""
    paused: dict[str, Told] = {}
    doubtful: set[str] = set()
    for event in seen.run.events:
        match event:
            case Asked(action="resume"):
                before = paused.pop(event.job_id, None)
                if _is_doubtful(seen.answer(event)):
                    doubtful.add(event.job_id)
                elif before is not None and not event.catch_up and not seen.skewed:
                    yield from _ran_though_skipped(seen, before, event)
            case Told(status="changed" | "unchanged"):
                asked = next(
                    one
                    for one in seen.asked
                    if (one.source, one.number) == (event.source, event.number)
                )
                if asked.action == "pause" and asked.job_id not in doubtful:
                    paused.setdefault(asked.job_id, event)
            case Delivered(job_id=job_id) if job_id in paused:
                view = seen.run.executions.get(event.execution_id)
                late = event.nominal_ms * 1000 > paused[job_id].at_us
                if late and view is not None and view.origin == "timetable":
                    yield f"{event.execution_id}: delivered in a pause since {paused[job_id].at_us}"


def _ran_though_skipped(seen: Timetables, pause: Told, resume: Asked) -> Iterator[str]:
    """A resume that skips lets nothing run of what fell into the pause."""
    explained = seen.explained.get(resume.job_id)
    if explained is None:
        return
    jitter_ms = max(schedule.jitter_ms for schedule in seen.schedules(explained))
    for view in seen.of_origin(resume.job_id, "timetable"):
        nominal_ms = instant_ms(view.nominal_at)
        if pause.at_us < nominal_ms * 1000 < resume.judge_us - jitter_ms * 1000:
            yield f"{view.execution_id}: made, though it fell into a pause whose times are skipped"


def judge_triggers(seen: Timetables) -> Iterator[str]:
    """A trigger that was acknowledged makes one execution, which runs or is skipped."""
    by_request: dict[tuple[str, str], list[Told]] = defaultdict(list)
    requests: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for asked in seen.asked:
        if asked.action == "trigger":
            requests[asked.job_id].add((asked.source, asked.request_id))
            told = seen.answer(asked)
            if told is not None and told.executions:
                by_request[asked.source, asked.request_id].append(told)
    for request, answers in by_request.items():
        made = {execution for told in answers for execution in told.executions}
        if len(made) > 1 or any(told.status != "duplicate" for told in answers[1:]):
            yield f"{request}: made {sorted(made)}: {[told.status for told in answers]}"
        yield from _trigger_ran(seen, answers[0], made)
    for job_id, asked_for in requests.items():
        triggered = seen.of_origin(job_id, "trigger")
        if len(triggered) > len(asked_for):
            yield f"{job_id}: triggered {len(triggered)} times, asked for {len(asked_for)} times"


def _trigger_ran(seen: Timetables, first: Told, made: Iterable[str]) -> Iterator[str]:
    explained = seen.explained.get(first.job_id)
    if explained is None:
        yield f"{first.job_id}: triggered, and now unknown"
        return
    rules = {schedule.overlap for schedule in seen.schedules(explained)}
    cancelled = seen.run.jobs[first.job_id].state == "cancelled"
    for execution_id in made:
        view = seen.run.executions.get(execution_id)
        if view is None:
            yield f"{execution_id}: a trigger was acknowledged, now unknown"
            continue
        may_end = {"succeeded", "dead"}
        if rules != {"allow"}:
            may_end.add("skipped")
        if cancelled or "cancel_running" in rules:
            may_end.add("cancelled")
        if first.status == "skipped":
            may_end = {"skipped"}
        if view.state not in may_end:
            yield f"{execution_id}: a trigger was {first.status}, it is {view.state} {view.reason}"


def judge_backfills(seen: Timetables) -> Iterator[str]:
    """What a backfill said that it made is there."""
    for asked in seen.asked:
        told = seen.answer(asked)
        if asked.action != "backfill" or told is None:
            continue
        for execution_id in told.executions:
            view = seen.run.executions.get(execution_id)
            if view is None or not asked.start_ms <= instant_ms(view.nominal_at) <= asked.until_ms:
                yield f"{execution_id}: a backfill was acknowledged, now {view}"
            elif view.state == "skipped" and view.origin == "backfill":
                # If the timetable has come to that time since, the occurrence goes by its rules.
                yield f"{execution_id}: a backfill was acknowledged, and left out: {view.reason}"


def judge_failures(seen: Timetables) -> Iterator[str]:
    """A dead letter pauses the timetables that want it, and nothing else pauses any unasked."""
    asked_of = {asked.job_id for asked in seen.asked if asked.action in ("pause", "resume")}
    for job_id, explained in seen.explained.items():
        answer = explained.answer
        timetable = answer.timetable
        wants = {schedule.pause_on_failure for schedule in seen.schedules(explained)}
        if job_id in asked_of or len(wants) > 1:
            continue
        if timetable.paused is not None and wants == {False}:
            yield f"{job_id}: nobody has paused it: {timetable.paused}"
        died = [line for line in answer.past if line.state == "dead"]
        if died and timetable.paused is None and wants == {True} and not timetable.ended:
            yield f"{job_id}: goes on, though {died[-1].execution_id} is dead"


def judge_payloads(seen: Timetables) -> Iterator[str]:
    """All attempts of an execution are of one definition, which was current when it began."""
    handed: dict[str, list[Handed]] = defaultdict(list)
    for one in seen.run.of(Handed):
        handed[one.execution_id].append(one)
    for execution_id, deliveries in handed.items():
        payloads = {one.payload for one in deliveries}
        if len(payloads) > 1:
            yield f"{execution_id}: was delivered with the payloads {sorted(payloads)}"
        view = seen.run.executions.get(execution_id)
        if view is None or not view.attempts or view.attempts[0].number != 1:
            continue
        began_ms = instant_ms(view.attempts[0].claimed_at)
        payload = deliveries[0].payload
        asked = seen._by_payload.get(payload)
        if asked is None or asked.at_us > (began_ms + AHEAD_MS) * 1000:
            yield f"{execution_id}: payload {payload} at {began_ms}: nobody had sent it: {asked}"
        elif asked.source not in seen.uncertain:
            newest = _newest_before(seen, view.job_id, (began_ms - AHEAD_MS) * 1000)
            if payload < newest:
                yield f"{execution_id}: payload {payload}, begun at {began_ms} after {newest}"


def _newest_before(seen: Timetables, job_id: str, instant_us: int) -> int:
    """The payload of the latest change that was acknowledged before an instant."""
    newest = 0
    for asked in seen.asked:
        told = seen.answer(asked)
        if (
            asked.payload is not None
            and told is not None
            and told.job_id == job_id
            and told.status == "changed"
            and told.at_us < instant_us
        ):
            newest = max(newest, asked.payload)
    return newest


def judge_versions(seen: Timetables) -> Iterator[str]:
    """Each change has a version of its own; one upon a version follows that one."""
    latest: dict[str, int] = {}
    for asked in seen.asked:
        told = seen.answer(asked)
        if asked.action not in ADVANCES or told is None:
            continue
        certain = asked.source not in seen.uncertain
        before = latest.get(told.job_id or asked.job_id, 1)
        if told.status == "412" and certain and asked.if_version == before:
            yield f"{asked.job_id}: {asked.if_version} is refused as not the version"
        if told.status != "changed":
            continue
        expected = before + 1 if certain else max(before + 1, told.version)
        if asked.if_version is not None and not told.doubtful:
            expected = asked.if_version + 1
        if told.version != expected or told.version <= before:
            yield f"{told.job_id}: version {told.version} after {before}, upon {asked.if_version}"
        latest[told.job_id] = told.version


def judge_jitter(seen: Timetables) -> Iterator[str]:
    """Occurrences are due one constant share of the jitter after their nominal times."""
    for job_id, explained in seen.explained.items():
        schedules = seen.schedules(explained)
        answer: JobExplained = explained.answer
        offsets = {instant_ms(fire.due_at) - instant_ms(fire.nominal_at) for fire in answer.next}
        if len(schedules) > 1 or not offsets:
            continue
        if len(offsets) > 1 or not 0 <= min(offsets) <= schedules[0].jitter_ms:
            yield f"{job_id}: due {sorted(offsets)} ms after the nominal times"
        for view in seen.of_origin(job_id, "timetable"):
            due_ms, nominal_ms = instant_ms(view.due_at), instant_ms(view.nominal_at)
            if due_ms < nominal_ms + min(offsets) and not seen.backfilled(job_id, nominal_ms):
                yield f"{view.execution_id}: due at {view.due_at}, jitter {min(offsets)} ms"


def judge_cancels(seen: Timetables) -> Iterator[str]:
    """A job whose cancel was acknowledged is cancelled; in the end no timetable goes on."""
    for asked in seen.asked:
        told = seen.answer(asked)
        if asked.action == "cancel" and told is not None and told.status != "404":
            state = seen.run.jobs[told.job_id].state
            if state == "active" or (told.status != "finished" and state != "cancelled"):
                yield f"{told.job_id}: cancel acknowledged ({told.status}), now {state}"
    for job in seen.run.final.jobs:
        if job.queue == QUEUE and job.state == "active":
            yield f"{job.job_id}: was cancelled in the end, and is active"


RULES = {
    "unnamed": judge_named,
    "accounting": judge_accounting,
    "max_runs": judge_max_runs,
    "pause": judge_pauses,
    "trigger": judge_triggers,
    "backfill": judge_backfills,
    "failure": judge_failures,
    "payload": judge_payloads,
    "version": judge_versions,
    "jitter": judge_jitter,
    "cancel": judge_cancels,
}
"""Every rule by its name."""

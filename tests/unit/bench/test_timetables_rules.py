"""The checkers of timetables see damaged histories: doubled, missing, early, wrongly folded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest

from timeball.bench.evidence import Run
from timeball.bench.history import (
    AnyEvent,
    Delivered,
    FaultOvercome,
    FaultStruck,
    FinalAnswers,
    JobAcknowledged,
    ReportAnswered,
    ReportSent,
)
from timeball.bench.timetables.lags import lags_ms
from timeball.bench.timetables.occurrences import RULES
from timeball.bench.timetables.reference import timetables
from timeball.bench.timetables.trial import TimetablesTrial
from timeball.client.messages import (
    AttemptView,
    ClusterView,
    ExecutionView,
    JobView,
    Retry,
    Schedule,
    TimetableView,
)

T0 = 1_764_480_000_000
"""A full minute, epoch milliseconds; instants below count from it."""
END = 65_500
LABELS = {"1": "each-second", "2": "each-second", "3": "each-minute"}
PERIOD = {"each-second": 1_000, "each-minute": 60_000}


def rfc(at: int) -> str:
    return datetime.fromtimestamp((T0 + at) / 1000, UTC).isoformat(timespec="milliseconds")


class Story:
    """A run in which two timetables beat each second and one each minute; all is well."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.jobs: dict[str, JobView] = {}
        self.executions: dict[tuple[str, int], list[ExecutionView]] = {}
        self.token = 0
        for job, label in LABELS.items():
            (schedule,) = timetables(label, 1, T0 + END)
            self.created(job, label, schedule)
            for at in range(PERIOD[label], END, PERIOD[label]):
                self.fires(job, at)

    def created(self, job: str, label: str, schedule: Schedule) -> None:
        self.events.append(
            JobAcknowledged(
                at_us=(T0 + 305) * 1000,
                source="client",
                request_id=f"request of {job}",
                job_id=job,
                status="created",
                sent_us=(T0 + 295) * 1000,
                label=label,
                schedule=schedule,
            )
        )
        self.jobs[job] = JobView(
            job_id=job,
            queue="default",
            state="completed",
            payload=None,
            schedule=schedule,
            priority=5,
            partition_key="",
            retry=Retry(),
            timeout_ms=None,
            idempotency_key=None,
            created_at=rfc(300),
            next_fires=[],
            execution_counts={},
            version=1,
            timetable=TimetableView(
                name=None,
                planned_at=rfc(END),
                ended=True,
                paused=None,
                parked=None,
                fired=0,
                coalesced=0,
                skipped=0,
                missed=0,
            ),
        )

    def fires(self, job: str, at: int, *, late: int = 2, name: str | None = None) -> None:
        """One occurrence, from its delivery to its accepted completion."""
        self.token += 1
        execution = name or f"{job}-{at}"
        self.delivered(job, at, execution, at + late)
        self.completed(execution, self.token, at + late + 2)
        done = AttemptView(
            number=1,
            worker="w",
            token=self.token,
            outcome="succeeded",
            claimed_at=rfc(at + late),
            started_at=None,
            finished_at=None,
            error_type="",
            message="",
        )
        view = ExecutionView(
            execution_id=execution,
            job_id=job,
            queue="default",
            state="succeeded",
            reason="",
            origin="timetable",
            nominal_at=rfc(at),
            due_at=rfc(at),
            due=False,
            finished_at=None,
            attempts_used=1,
            max_attempts=5,
            cancel_requested=False,
            result=None,
            attempts=[done],
        )
        self.executions.setdefault((job, at), []).append(view)

    def delivered(self, job: str, nominal: int, execution: str, at: int) -> None:
        self.events.append(
            Delivered(
                at_us=(T0 + at) * 1000,
                source="w",
                execution_id=execution,
                job_id=job,
                token=self.token,
                attempt=1,
                nominal_ms=T0 + nominal,
                due_ms=T0 + nominal,
                claim_sent_us=(T0 + at) * 1000 - 500,
            )
        )

    def completed(
        self,
        execution: str,
        token: int,
        at: int,
        verdict: Literal["accepted", "duplicate"] | None = "accepted",
    ) -> None:
        what: Any = {"kind": "complete", "execution_id": execution, "token": token, "source": "w"}
        at_us = (T0 + at) * 1000
        self.events.append(ReportSent(at_us=at_us - 900, **what))
        if verdict is not None:
            answer = ReportAnswered(at_us=at_us, sent_us=at_us - 900, verdict=verdict, **what)
            self.events.append(answer)

    def forget(self, job: str, *instants: int) -> None:
        """Nothing has ever been seen of these occurrences."""
        gone = {view.execution_id for at in instants for view in self.executions.pop((job, at))}
        self.events = [e for e in self.events if getattr(e, "execution_id", None) not in gone]

    def silent(self, after: int, until: int) -> None:
        """Nobody fires anything in between; what a second names is folded into its last."""
        for job in ("1", "2"):
            instants = range(after // 1000 * 1000 + 1_000, until, 1_000)
            self.forget(job, *instants)
            self.fires(job, instants[-1], late=until - instants[-1])
            self.change_timetable(job, coalesced=len(instants) - 1)

    def change_job(self, job: str, **fields: Any) -> None:
        self.jobs[job] = msgspec.structs.replace(self.jobs[job], **fields)

    def change_timetable(self, job: str, **fields: Any) -> None:
        timetable = self.jobs[job].timetable
        assert timetable is not None
        self.change_job(job, timetable=msgspec.structs.replace(timetable, **fields))

    def change_execution(self, job: str, at: int, **fields: Any) -> None:
        (view,) = self.executions[job, at]
        self.executions[job, at] = [msgspec.structs.replace(view, **fields)]

    def run(self) -> Run:
        view = ClusterView(
            cluster="c",
            node="a",
            version="0",
            role="leader",
            serving=True,
            leader="a",
            term=1,
            commit_index=1,
            applied_index=1,
            log_time_ms=T0,
            state_digest="d",
            nodes=[],
            queues=[],
            totals={},
        )
        final = FinalAnswers(
            asked_us=(T0 + END + 9_000) * 1000,
            jobs=list(self.jobs.values()),
            executions=[view for views in self.executions.values() for view in views],
            nodes=[msgspec.structs.replace(view, node=name) for name in "abc"],
            expected_nodes=3,
        )
        events = sorted(self.events, key=lambda event: event.at_us)
        return Run(events, final)


TRIAL = TimetablesTrial(1, 60, {}, 15, 20)


def broken(story: Story) -> set[str]:
    """What breaks, but for the order of tokens, which the stories above do not keep."""
    findings = TRIAL.judge(story.run())
    return {rule for rule, finding in findings.items() if finding.violations} - {"tokens"}


def told(story: Story, rule: str) -> str:
    return "\n".join(v.detail for v in RULES[rule](story.run()).violations)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_good_run_breaks_no_rule_and_every_nominal_time_was_looked_at(story: Story) -> None:
    assert broken(story) == set()
    findings = TRIAL.judge(story.run())
    assert [findings[rule].examined for rule in RULES] == [65 + 65 + 1] * 3


class TestDoubled:
    def test_a_nominal_time_runs_as_two_executions(self, story: Story) -> None:
        story.fires("1", 7_000, late=40, name="twin")
        assert broken(story) == {"duplicate_occurrences", "once"}
        assert "ran as 2 executions" in told(story, "once")

    @pytest.mark.parametrize("verdict", ["accepted", "duplicate"])
    def test_a_second_token_counts_as_well(
        self, story: Story, verdict: Literal["accepted", "duplicate"]
    ) -> None:
        story.completed("1-7000", 999, 7_500, verdict)
        assert "once" in broken(story)
        assert "completions under the tokens" in told(story, "once")

    def test_a_twin_that_only_a_worker_saw(self, story: Story) -> None:
        story.delivered("1", 7_000, "twin", 7_040)
        assert broken(story) == {"duplicate_occurrences", "once"}

    def test_a_minute_runs_twice_as_if_it_were_two(self, story: Story) -> None:
        story.fires("3", 60_100, name="twin")
        assert broken(story) == {"duplicate_occurrences", "accounted"}
        assert "names no such time" in told(story, "accounted")

    def test_a_repeat_whose_first_answer_was_lost_is_none(self, story: Story) -> None:
        (view,) = story.executions["1", 7_000]
        story.completed("1-7000", view.attempts[0].token, 7_500, "duplicate")
        assert broken(story) == set()


class TestMissing:
    def test_nobody_counts_it(self, story: Story) -> None:
        story.forget("1", 7_000)
        assert broken(story) == {"accounted", "missed_occurrences", "folded"}
        assert f"missing: {T0 + 7_000}" in told(story, "accounted")

    def test_a_minute_that_nobody_counts(self, story: Story) -> None:
        story.forget("3", 60_000)
        assert {"accounted", "missed_occurrences"} <= broken(story)

    def test_it_was_skipped(self, story: Story) -> None:
        story.change_execution("1", 7_000, state="skipped", attempts=[])
        assert "accounted" in broken(story)

    def test_it_never_ran_to_its_end(self, story: Story) -> None:
        story.change_execution("1", 7_000, state="dead", attempts=[])
        assert "once" in broken(story)

    def test_it_succeeded_by_a_report_that_nobody_sent(self, story: Story) -> None:
        story.events = [
            event
            for event in story.events
            if not (
                isinstance(event, ReportSent | ReportAnswered) and event.execution_id == "1-7000"
            )
        ]
        assert broken(story) == {"once"}

    def test_an_answer_that_never_came_is_no_loss(self, story: Story) -> None:
        story.events = [
            event
            for event in story.events
            if not (isinstance(event, ReportAnswered) and event.execution_id == "1-7000")
        ]
        assert broken(story) == set()

    def test_the_timetable_stands_still_before_its_end(self, story: Story) -> None:
        story.forget("1", 63_000, 64_000, 65_000)
        story.change_job("1", state="active", next_fires=[rfc(63_000)])
        assert "accounted" in broken(story)
        assert "has come to its end" in told(story, "accounted")

    def test_a_beat_between_the_create_and_its_answer_counts_if_it_ran(self, story: Story) -> None:
        """The create came to the leader before the beat, or after it: both are right."""
        story.events = [
            msgspec.structs.replace(event, at_us=(T0 + 1_100) * 1000)
            if isinstance(event, JobAcknowledged) and event.job_id == "1"
            else event
            for event in story.events
        ]
        story.change_job("1", created_at=rfc(1_050))
        assert broken(story) == set()
        story.forget("1", 1_000)
        assert broken(story) == set()
        story.forget("1", 2_000)
        assert "accounted" in broken(story)

    def test_a_late_creation_hides_nothing(self, story: Story) -> None:
        story.forget("1", 1_000)
        story.change_job("1", created_at=rfc(1_100))
        assert "accounted" in broken(story)
        assert "says it was created at" in told(story, "accounted")


class TestEarly:
    def test_a_worker_has_it_before_its_nominal_time(self, story: Story) -> None:
        story.forget("1", 7_000)
        story.fires("1", 7_000, late=-1)
        assert broken(story) == {"early"}

    def test_it_was_delivered_as_of_an_earlier_time_than_it_is_listed(self, story: Story) -> None:
        story.delivered("1", 6_000, "1-7000", 6_500)
        assert {"once", "duplicate_occurrences"} <= broken(story)
        assert "was delivered as of" in told(story, "once")


class TestFolded:
    def test_a_silence_longer_than_the_grace_folds_into_the_last(self, story: Story) -> None:
        story.silent(20_500, 33_100)
        assert broken(story) == set()
        assert story.jobs["1"].timetable.coalesced == 12

    def test_the_cluster_fired_within_the_grace(self, story: Story) -> None:
        story.forget("1", 21_000)
        story.change_timetable("1", coalesced=1)
        assert broken(story) == {"folded"}
        assert "within the grace" in told(story, "folded")

    def test_another_timetable_ran_through_the_silence(self, story: Story) -> None:
        story.silent(20_500, 33_100)
        story.fires("2", 22_000, late=50)
        story.change_timetable("2", coalesced=11)
        assert broken(story) == {"folded"}

    def test_the_last_one_did_not_run(self, story: Story) -> None:
        story.forget("1", *range(54_000, 66_000, 1_000))
        story.forget("2", *range(54_000, 66_000, 1_000))
        story.forget("3", 60_000)
        story.fires("3", 60_000, late=9_000)
        for job in ("1", "2"):
            story.change_timetable(job, coalesced=12)
        assert broken(story) == {"folded"}
        assert "`one` runs the last" in told(story, "folded")

    def test_too_few_are_counted(self, story: Story) -> None:
        story.silent(20_500, 33_100)
        story.change_timetable("1", coalesced=11)
        assert broken(story) == {"accounted", "missed_occurrences"}

    def test_more_are_counted_than_are_missing(self, story: Story) -> None:
        story.change_timetable("1", coalesced=1)
        assert broken(story) == {"accounted"}

    def test_one_counts_none_as_missed(self, story: Story) -> None:
        story.silent(20_500, 33_100)
        story.change_timetable("1", missed=1)
        assert broken(story) == {"accounted"}


def test_lags_belong_to_the_later_of_the_faults_that_stood(story: Story) -> None:
    for number, kind, at, overcome in (
        (1, "freeze_leader", 10_050, 31_000),
        (2, "vanish_leader", 24_900, 31_500),
    ):
        fault: Any = {"source": "client", "number": number}
        targets: Any = {"kind": kind, "targets": ["a"], "leader": "a"}
        story.events.append(FaultStruck(at_us=(T0 + at) * 1000, **fault, **targets))
        story.events.append(FaultOvercome(at_us=(T0 + overcome) * 1000, **fault))
    lags = lags_ms(story.run())
    counts = {kind: len(those) for kind, those in lags.items()}
    assert counts == {"none": 131 - 44, "freeze_leader": 2 * 15, "vanish_leader": 2 * 7}
    assert {lag for those in lags.values() for lag in those} == {2.0}

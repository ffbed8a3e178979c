"""Each checker stays silent on a good history and fires on the one that breaks its rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest

from timeball.bench.checkers import CHECKERS, check
from timeball.bench.evidence import Run
from timeball.bench.history import (
    AnyEvent,
    CancelAcknowledged,
    CreateSent,
    Delivered,
    FinalAnswers,
    JobAcknowledged,
    ReplayAcknowledged,
    ReportAnswered,
    ReportKind,
)
from timeball.client.messages import (
    After,
    At,
    AttemptView,
    ClusterView,
    Cron,
    Every,
    ExecutionStateName,
    ExecutionView,
    JobView,
    Retry,
    Schedule,
    TimetableView,
)

T0 = 1_764_480_000_000
"""A whole second, epoch milliseconds; the stories below begin here."""
END = T0 + 60_000


def rfc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


class Story:
    """Builds a run, one thing that happens after another; instants are given as epoch ms."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.jobs: dict[str, JobView] = {}
        self.executions: list[ExecutionView] = []
        self.nodes = [node(name, 90, "d1") for name in ("n1", "n2", "n3")]

    def run(self) -> Run:
        events = sorted(self.events, key=lambda event: event.at_us)
        final = FinalAnswers(
            asked_us=END * 1000,
            jobs=list(self.jobs.values()),
            executions=self.executions,
            nodes=self.nodes,
            expected_nodes=3,
        )
        return Run(events, final)

    def acknowledged(
        self,
        job: str,
        *,
        sent: int = T0,
        schedule: Schedule | None = None,
        key: str | None = None,
        request: str | None = None,
        status: Literal["created", "duplicate"] = "created",
    ) -> None:
        self.events.append(
            JobAcknowledged(
                at_us=(sent + 5) * 1000,
                source="client",
                request_id=request or f"request of {job}",
                job_id=job,
                status=status,
                sent_us=sent * 1000,
                idempotency_key=key,
                schedule=schedule,
            )
        )

    def job(self, job: str, **overrides: Any) -> None:
        view = JobView(
            job_id=job,
            queue="default",
            state="completed",
            payload=None,
            schedule=None,
            priority=5,
            partition_key="",
            retry=Retry(),
            timeout_ms=None,
            idempotency_key=None,
            created_at=rfc(T0),
            next_fires=[],
            execution_counts={},
            version=1,
            timetable=None,
        )
        self.jobs[job] = msgspec.structs.replace(view, **overrides)

    def execution(
        self,
        job: str,
        nominal: int,
        *,
        state: ExecutionStateName = "succeeded",
        attempts: list[AttemptView] | None = None,
        execution_id: str | None = None,
        due: int | None = None,
    ) -> None:
        self.executions.append(
            ExecutionView(
                execution_id=execution_id or f"{job}-{nominal}",
                job_id=job,
                queue="default",
                state=state,
                reason="",
                origin=None,
                nominal_at=rfc(nominal),
                due_at=rfc(due or nominal),
                due=False,
                finished_at=None,
                attempts_used=1,
                max_attempts=5,
                cancel_requested=False,
                result=None,
                attempts=attempts or [],
            )
        )

    def delivered(
        self,
        job: str,
        nominal: int,
        token: int,
        *,
        at: int,
        sent: int | None = None,
        attempt: int = 1,
        worker: str = "w1",
        execution_id: str | None = None,
    ) -> None:
        self.events.append(
            Delivered(
                at_us=at * 1000,
                source=worker,
                execution_id=execution_id or f"{job}-{nominal}",
                job_id=job,
                token=token,
                attempt=attempt,
                nominal_ms=nominal,
                due_ms=nominal,
                claim_sent_us=(sent if sent is not None else at - 1) * 1000,
            )
        )

    def change(self, token: int, **fields: int) -> None:
        """Change the delivery of that token."""
        self.events = [
            msgspec.structs.replace(event, **fields)
            if isinstance(event, Delivered) and event.token == token
            else event
            for event in self.events
        ]

    def answered(
        self,
        job: str,
        nominal: int,
        token: int,
        verdict: Literal["accepted", "duplicate", "stale", "finished", "unknown"] = "accepted",
        *,
        at: int,
        kind: ReportKind = "complete",
        worker: str = "w1",
    ) -> None:
        self.events.append(
            ReportAnswered(
                at_us=at * 1000,
                source=worker,
                kind=kind,
                execution_id=f"{job}-{nominal}",
                token=token,
                verdict=verdict,
                sent_us=at * 1000 - 500,
            )
        )


def node(name: str, applied: int, digest: str) -> ClusterView:
    return ClusterView(
        cluster="c",
        node=name,
        version="0",
        role="follower",
        serving=False,
        leader="n1",
        term=2,
        commit_index=applied,
        applied_index=applied,
        log_time_ms=T0,
        state_digest=digest,
        nodes=[],
        queues=[],
        totals={},
    )


def attempt(
    token: int,
    *,
    claimed: int,
    outcome: Literal["open", "succeeded", "failed", "lease_expired", "released"] = "succeeded",
) -> AttemptView:
    return AttemptView(
        number=1,
        worker="w1",
        token=token,
        outcome=outcome,
        claimed_at=rfc(claimed),
        started_at=None,
        finished_at=None,
        error_type="",
        message="",
    )


@pytest.fixture
def story() -> Story:
    """A good run: a one-shot job redelivered once with a late stale report, and a cron job."""
    story = Story()
    story.acknowledged("1", schedule=At(T0 + 1_000), key="k")
    story.acknowledged("1", sent=T0 + 50, request="again", key="k", status="duplicate")
    story.job("1")
    story.delivered("1", T0 + 1_000, 10, at=T0 + 1_003, sent=T0 + 500)
    story.delivered("1", T0 + 1_000, 20, at=T0 + 4_000, attempt=2, worker="w2")
    story.answered("1", T0 + 1_000, 20, at=T0 + 4_010, worker="w2")
    story.answered("1", T0 + 1_000, 20, "duplicate", at=T0 + 4_020, worker="w2")
    story.answered("1", T0 + 1_000, 10, "stale", at=T0 + 5_000)
    tries = [
        attempt(10, claimed=T0 + 1_001, outcome="lease_expired"),
        attempt(20, claimed=T0 + 4_000),
    ]
    story.execution("1", T0 + 1_000, attempts=tries)
    story.acknowledged("2", sent=T0 + 300, schedule=Cron("* * * * * *", until=T0 + 3_500))
    story.job("2")
    for token, nominal in enumerate((T0 + 1_000, T0 + 2_000, T0 + 3_000), start=11):
        story.delivered("2", nominal, token, at=nominal + 2)
        story.answered("2", nominal, token, at=nominal + 4)
        story.execution("2", nominal, attempts=[attempt(token, claimed=nominal + 1)])
    return story


def broken(story: Story) -> set[str]:
    """The rules that the run breaks."""
    return {rule for rule, finding in check(story.run()).items() if finding.violations}


def test_a_good_run_breaks_no_rule_and_every_checker_looked_at_something(story: Story) -> None:
    findings = check(story.run())
    assert [v for finding in findings.values() for v in finding.violations] == []
    assert all(finding.examined for finding in findings.values())
    assert set(findings) == set(CHECKERS)


def test_a_violation_names_its_rule_its_subject_and_what_was_seen(story: Story) -> None:
    del story.jobs["1"]
    (violation,) = check(story.run())["lost"].violations
    assert (violation.rule, violation.subject) == ("lost", "1")
    assert "acknowledged" in violation.detail


class TestLost:
    def test_an_acknowledged_job_is_unknown(self, story: Story) -> None:
        del story.jobs["1"]
        assert broken(story) == {"lost"}

    def test_an_acknowledged_job_has_no_execution(self, story: Story) -> None:
        story.acknowledged("3")
        story.job("3")
        assert broken(story) == {"lost"}

    def test_an_accepted_completion_is_not_in_the_state(self, story: Story) -> None:
        story.executions[0] = msgspec.structs.replace(story.executions[0], state="dead")
        assert broken(story) == {"lost"}

    def test_the_attempt_of_an_accepted_report_is_gone(self, story: Story) -> None:
        view = story.executions[0]
        story.executions[0] = msgspec.structs.replace(view, attempts=view.attempts[:1])
        assert broken(story) == {"lost"}

    def test_the_execution_of_an_accepted_report_is_gone(self, story: Story) -> None:
        story.answered("1", T0 + 9_000, 30, at=T0 + 9_001)
        assert broken(story) == {"lost"}

    def test_a_cancel_is_forgotten(self, story: Story) -> None:
        cancelled(story, "3", at=T0 + 10_000, state="completed")
        assert broken(story) == {"lost"}

    def test_a_cancelled_job_is_granted_later(self, story: Story) -> None:
        cancelled(story, "3", at=T0 + 10_000, claimed=T0 + 20_000)
        assert broken(story) == {"lost"}

    def test_a_cancelled_job_was_leased_before_it_was_due_and_given_back(
        self, story: Story
    ) -> None:
        cancelled(story, "3", at=T0 + 19_990, claimed=T0 + 20_000, outcome="released")
        assert broken(story) == set()
        story.delivered("3", T0 + 20_000, 99, at=T0 + 20_001)
        assert "lost" in broken(story)

    def test_a_cancel_that_holds(self, story: Story) -> None:
        cancelled(story, "3", at=T0 + 10_000)
        assert broken(story) == set()

    def test_a_replay_is_forgotten(self, story: Story) -> None:
        replayed(story, tried_again=False)
        assert broken(story) == {"lost"}

    def test_a_replay_that_holds(self, story: Story) -> None:
        replayed(story, tried_again=True)
        assert broken(story) == set()


def cancelled(
    story: Story,
    job: str,
    *,
    at: int,
    state: Literal["completed", "cancelled"] = "cancelled",
    claimed: int | None = None,
    outcome: Literal["failed", "released"] = "failed",
) -> None:
    story.acknowledged(job, schedule=At(T0 + 20_000))
    story.job(job, state=state)
    tries = [attempt(99, claimed=claimed, outcome=outcome)] if claimed else []
    story.execution(job, T0 + 20_000, state="cancelled", attempts=tries)
    story.events.append(
        CancelAcknowledged(
            at_us=at * 1000,
            source="client",
            job_id=job,
            status="cancelled",
            sent_us=(at - 3) * 1000,
        )
    )


def replayed(story: Story, *, tried_again: bool) -> None:
    story.acknowledged("3")
    story.job("3")
    tries = [attempt(30, claimed=T0 + 10, outcome="failed")]
    if tried_again:
        tries.append(attempt(40, claimed=T0 + 10_000, outcome="failed"))
    story.execution("3", T0 + 1, state="dead", attempts=tries)
    story.events.append(
        ReplayAcknowledged(
            at_us=(T0 + 9_000) * 1000,
            source="client",
            execution_id=f"3-{T0 + 1}",
            status="replayed",
            sent_us=(T0 + 8_999) * 1000,
        )
    )


class TestEarly:
    def test_received_before_its_due_time(self, story: Story) -> None:
        story.change(12, at_us=(T0 + 1_999) * 1000, claim_sent_us=T0 * 1000)
        assert broken(story) == {"early"}

    def test_received_before_the_delay_that_its_creator_asked_for(self, story: Story) -> None:
        one_shot(story, "3", T0 + 100, 5, schedule=After(delay_ms=5_000))
        assert broken(story) == {"early"}

    def test_received_before_the_instant_that_its_creator_asked_for(self, story: Story) -> None:
        one_shot(story, "3", T0 + 100, 5, schedule=At(rfc(T0 + 5_000)))
        assert broken(story) == {"early"}

    def test_granted_before_its_nominal_time_though_received_later(self, story: Story) -> None:
        view = story.executions[1]
        early = [attempt(11, claimed=T0 + 999)]
        story.executions[1] = msgspec.structs.replace(view, attempts=early)
        assert broken(story) == {"early"}


def one_shot(
    story: Story, job: str, nominal: int, token: int, *, schedule: Schedule | None = None
) -> None:
    """A one-shot job that runs well, one millisecond after its nominal time."""
    story.acknowledged(job, schedule=schedule)
    story.job(job)
    story.delivered(job, nominal, token, at=nominal + 1, sent=T0)
    story.answered(job, nominal, token, at=nominal + 3)
    story.execution(job, nominal, attempts=[attempt(token, claimed=nominal)])


class TestDoubleAccepted:
    def test_two_workers_complete_one_execution(self, story: Story) -> None:
        story.answered("1", T0 + 1_000, 10, at=T0 + 3_000)
        assert "double_accepted" in broken(story)

    def test_one_token_is_accepted_twice(self, story: Story) -> None:
        story.answered("2", T0 + 1_000, 11, at=T0 + 3_000)
        assert broken(story) == {"double_accepted"}

    def test_a_finished_execution_is_granted_again(self, story: Story) -> None:
        story.delivered("2", T0 + 1_000, 50, at=T0 + 6_000, attempt=2)
        assert broken(story) == {"double_accepted"}

    def test_the_state_holds_two_successes(self, story: Story) -> None:
        tries = [attempt(10, claimed=T0 + 1_001), attempt(20, claimed=T0 + 4_000)]
        story.executions[0] = msgspec.structs.replace(story.executions[0], attempts=tries)
        assert broken(story) == {"double_accepted"}


class TestStaleAccepted:
    def test_a_late_failure_counts_though_another_worker_holds_it(self, story: Story) -> None:
        story.answered("1", T0 + 1_000, 10, at=T0 + 4_005, kind="fail")
        assert broken(story) == {"stale_accepted"}

    def test_a_late_report_before_anybody_claimed_again_counts(self, story: Story) -> None:
        story.answered("1", T0 + 1_000, 10, at=T0 + 3_500, kind="fail")
        assert broken(story) == set()


class TestOccurrences:
    def test_a_nominal_time_has_no_execution(self, story: Story) -> None:
        gone = story.executions.pop()
        story.events = [e for e in story.events if not concerns(e, gone.execution_id)]
        assert broken(story) == {"missed_occurrences"}

    def test_an_interval_job_misses_one_in_the_middle(self, story: Story) -> None:
        interval(story, missing=T0 + 2_250)
        assert broken(story) == {"missed_occurrences"}

    def test_an_interval_job_whose_catch_up_counted_the_missing_one(self, story: Story) -> None:
        interval(story, missing=T0 + 2_250, catch_up="one", coalesced=1)
        assert broken(story) == set()

    def test_counting_does_not_help_a_job_that_catches_up_on_all(self, story: Story) -> None:
        interval(story, missing=T0 + 2_250, catch_up="all", coalesced=1)
        assert broken(story) == {"missed_occurrences"}

    def test_a_cancelled_timetable_needs_nothing_after_its_cancel(self, story: Story) -> None:
        story.acknowledged("3", schedule=Cron("*/2 * * * * *"))
        story.job("3", state="cancelled")
        for nominal in range(T0 + 2_000, T0 + 10_001, 2_000):
            story.execution("3", nominal, state="cancelled")
        cancel = CancelAcknowledged(
            at_us=(T0 + 11_000) * 1000,
            source="client",
            job_id="3",
            status="cancelled",
            sent_us=(T0 + 10_500) * 1000,
        )
        story.events.append(cancel)
        assert broken(story) == set()

    def test_an_occurrence_that_the_schedule_does_not_name(self, story: Story) -> None:
        story.execution("2", T0 + 2_500, state="skipped")
        assert broken(story) == {"duplicate_occurrences"}

    def test_an_occurrence_after_the_end_of_the_schedule(self, story: Story) -> None:
        story.execution("2", T0 + 4_000, state="skipped")
        assert broken(story) == {"duplicate_occurrences"}

    def test_two_executions_of_one_nominal_time(self, story: Story) -> None:
        story.execution("2", T0 + 2_000, state="skipped", execution_id="twin")
        assert broken(story) == {"duplicate_occurrences"}

    def test_a_delivery_under_another_id_for_the_same_nominal_time(self, story: Story) -> None:
        story.delivered("2", T0 + 2_000, 60, at=T0 + 8_000, execution_id="twin")
        assert broken(story) == {"duplicate_occurrences"}

    def test_an_execution_is_listed_twice(self, story: Story) -> None:
        story.executions.append(story.executions[1])
        assert broken(story) == {"duplicate_occurrences"}

    def test_a_one_shot_job_occurs_twice(self, story: Story) -> None:
        story.execution("1", T0 + 2_000, state="skipped")
        assert broken(story) == {"duplicate_occurrences"}


def concerns(event: AnyEvent, execution_id: str) -> bool:
    return getattr(event, "execution_id", None) == execution_id


def timetable(coalesced: int) -> TimetableView:
    return TimetableView(
        name=None,
        planned_at=rfc(T0 + 6_000),
        ended=True,
        paused=None,
        parked=None,
        fired=9 - coalesced,
        coalesced=coalesced,
        skipped=0,
        missed=0,
    )


def interval(
    story: Story,
    *,
    missing: int,
    catch_up: Literal["one", "all"] = "all",
    coalesced: int = 0,
) -> None:
    """A job each 750 ms from T0, with the execution of one nominal time missing."""
    schedule = Every(750, anchor=T0, until=T0 + 6_100, catch_up=catch_up)
    story.acknowledged("3", sent=T0 - 3_000, schedule=schedule)
    story.job("3", timetable=timetable(coalesced))
    for nominal in range(T0, T0 + 6_001, 750):
        if nominal != missing:
            story.execution("3", nominal, state="skipped")


class TestDuplicateJobs:
    def test_one_key_makes_two_jobs(self, story: Story) -> None:
        one_shot(story, "3", T0 + 100, 5)
        story.acknowledged("3", request="third", key="k")
        assert broken(story) == {"duplicate_jobs"}

    def test_one_request_makes_two_jobs(self, story: Story) -> None:
        one_shot(story, "3", T0 + 100, 5)
        story.acknowledged("3", request="request of 1")
        assert broken(story) == {"duplicate_jobs"}

    def test_a_job_that_nobody_asked_for(self, story: Story) -> None:
        story.job("3")
        assert broken(story) == {"duplicate_jobs"}

    def test_a_job_whose_create_was_never_answered(self, story: Story) -> None:
        story.job("3")
        story.events.append(CreateSent(at_us=T0 * 1000, source="client", request_id="lost"))
        assert broken(story) == set()


class TestTokens:
    def test_one_token_for_two_executions(self, story: Story) -> None:
        one_shot(story, "3", T0 + 1_000, 11)
        assert broken(story) == {"tokens"}

    def test_a_repeated_claim_answers_with_the_same_token(self, story: Story) -> None:
        story.delivered("2", T0 + 2_000, 12, at=T0 + 2_005, sent=T0 + 2_001)
        assert broken(story) == set()

    def test_tokens_fall_from_attempt_to_attempt(self, story: Story) -> None:
        view = story.executions[0]
        turned = msgspec.structs.replace(view, attempts=view.attempts[::-1])
        story.executions[0] = turned
        assert broken(story) == {"tokens"}

    def test_a_later_grant_has_a_lower_token(self, story: Story) -> None:
        one_shot(story, "3", T0 + 10_000, 5)
        story.change(5, claim_sent_us=(T0 + 9_000) * 1000)
        assert broken(story) == {"tokens"}

    def test_an_older_grant_whose_answer_came_late(self, story: Story) -> None:
        one_shot(story, "3", T0 + 10_000, 5)  # its claim had been sent before all others
        assert broken(story) == set()


class TestUndelivered:
    def test_due_long_ago_and_still_scheduled(self, story: Story) -> None:
        story.acknowledged("3", schedule=At(T0 + 20_000))
        story.job("3", state="active")
        story.execution("3", T0 + 20_000, state="scheduled")
        assert broken(story) == {"undelivered"}

    def test_visibly_scheduled_for_later(self, story: Story) -> None:
        story.acknowledged("3", schedule=At(END + 20_000))
        story.job("3", state="active")
        story.execution("3", END + 20_000, state="scheduled")
        assert broken(story) == set()

    def test_still_leased_when_all_is_over(self, story: Story) -> None:
        story.acknowledged("3")
        story.job("3", state="active")
        story.execution("3", T0 + 1, state="running")
        assert broken(story) == {"undelivered"}

    def test_succeeded_without_a_worker(self, story: Story) -> None:
        story.acknowledged("3")
        story.job("3")
        story.execution("3", T0 + 1, state="succeeded")
        assert broken(story) == {"undelivered"}


class TestReplicas:
    def test_digests_differ(self, story: Story) -> None:
        story.nodes[2] = node("n3", 90, "d2")
        assert broken(story) == {"replicas"}

    def test_a_node_lags(self, story: Story) -> None:
        story.nodes[2] = node("n3", 89, "d1")
        assert broken(story) == {"replicas"}

    def test_a_node_does_not_answer(self, story: Story) -> None:
        story.nodes.pop()
        assert broken(story) == {"replicas"}

    def test_a_node_keeps_its_digest_to_itself(self, story: Story) -> None:
        story.nodes = [
            msgspec.structs.replace(view, state_digest=msgspec.UNSET) for view in story.nodes
        ]
        assert broken(story) == {"replicas"}

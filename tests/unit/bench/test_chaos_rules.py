"""The checkers of chaos see damaged histories, and the gaps of faults are measured rightly."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.bench.chaos.gaps import Gap, gaps
from timeball.bench.chaos.rules import RULES, check_conduct
from timeball.bench.evidence import Run
from timeball.bench.history import (
    AnyEvent,
    CreateSent,
    Delivered,
    FaultHealed,
    FaultOvercome,
    FaultStruck,
    FinalAnswers,
    JobAcknowledged,
    NodeComplained,
    NodeEnded,
    StatusRead,
)
from timeball.client.messages import ClusterView

T0 = 1_764_480_000_000
"""Epoch milliseconds; instants below count from it."""


class Story:
    """A run, built one event after another; `at` is in milliseconds since T0."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def add(self, event: Any, at: float, /, **fields: Any) -> None:
        self.events.append(event(at_us=T0 * 1000 + round(at * 1000), source="s", **fields))

    def fault(self, number: int, kind: str, at: float, healed: float, overcome: float) -> None:
        self.add(FaultStruck, at, number=number, kind=kind, targets=["a"], leader="a")
        self.add(FaultHealed, healed, number=number)
        self.add(FaultOvercome, overcome, number=number)

    def delivered(self, at: float, due: int) -> None:
        self.add(
            Delivered,
            at,
            execution_id=f"1-{due}",
            job_id="1",
            token=1,
            attempt=1,
            nominal_ms=T0 + due,
            due_ms=T0 + due,
            claim_sent_us=0,
        )

    def read(self, node: str, index: int, state: str | None, job: str = "1") -> None:
        at = 500 + len(self.events)
        self.add(StatusRead, at, node=node, job_id=job, applied_index=index, state=state)

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
            nodes=[],
            queues=[],
            totals={},
        )
        final = FinalAnswers(asked_us=0, jobs=[], executions=[], nodes=[view] * 3, expected_nodes=3)
        return Run(sorted(self.events, key=lambda event: event.at_us), final)


@pytest.fixture
def story() -> Story:
    """A leader killed and restarted, and one job followed to its end."""
    story = Story()
    story.add(JobAcknowledged, 1, request_id="r", job_id="1", status="created", sent_us=0)
    story.fault(1, "kill_leader", 1_000, 2_000, 3_000)
    story.add(NodeEnded, 1_001, node="a", code=-9, asked="kill")
    story.add(NodeEnded, 1_500, node="b", code=0, asked="terminate")
    story.read("a", 10, None)
    story.read("b", 20, "scheduled")
    story.read("a", 20, "scheduled")
    story.read("c", 30, "succeeded")
    story.read("a", 5, None)
    return story


def broken(story: Story) -> set[str]:
    findings = check_conduct(story.run())
    return {rule for rule, finding in findings.items() if finding.violations}


def test_a_good_run_breaks_no_rule_and_every_checker_looked_at_something(story: Story) -> None:
    assert broken(story) == set()
    findings = check_conduct(story.run())
    assert findings.keys() == RULES.keys()
    assert all(finding.examined for finding in findings.values())


def test_a_fault_that_is_never_overcome(story: Story) -> None:
    story.events = [event for event in story.events if not isinstance(event, FaultOvercome)]
    assert broken(story) == {"overcome"}


def test_a_node_that_ends_by_itself(story: Story) -> None:
    story.add(NodeEnded, 2_500, node="c", code=4, asked=None)
    assert broken(story) == {"ended"}


def test_a_node_that_is_asked_to_end_and_fails(story: Story) -> None:
    story.add(NodeEnded, 2_500, node="c", code=1, asked="terminate")
    assert broken(story) == {"ended"}


def test_a_node_that_logs_an_error(story: Story) -> None:
    story.add(NodeComplained, 0, node="c", line="ERROR apply raised")
    assert broken(story) == {"complaints"}


@pytest.mark.parametrize(
    ("node", "index", "state"),
    [
        ("b", 30, "running"),  # two states at one index
        ("a", 40, "scheduled"),  # over, and not over later
        ("b", 31, None),  # known, and unknown later
        ("b", 15, "succeeded"),  # over at an earlier index than it was open at
    ],
)
def test_status_reads_that_contradict_each_other(
    story: Story, node: str, index: int, state: str | None
) -> None:
    story.read(node, index, state)
    assert broken(story) == {"reads"}


def test_a_job_that_was_known_and_is_unknown_before_its_end(story: Story) -> None:
    story.read("b", 21, None)
    assert broken(story) == {"reads"}


def test_the_gap_ends_with_the_first_delivery_of_what_fell_due_after_the_fault(
    story: Story,
) -> None:
    story.delivered(999, due=990)
    story.delivered(1_010, due=995)  # under way
    story.delivered(1_020, due=1_020)  # granted ahead of its time
    story.delivered(1_600, due=1_015)  # the backlog comes first
    story.delivered(1_601, due=1_400)
    story.delivered(2_900, due=2_899)
    story.delivered(3_500, due=3_400)
    assert gaps(story.run()) == [Gap("kill_leader", 1, 601.0, 1_299.0)]


def test_the_gap_of_a_lost_majority_counts_from_its_healing(story: Story) -> None:
    story.events = []
    story.fault(1, "power_off", 1_000, 2_000, 3_000)
    story.delivered(1_500, due=1_400)
    story.delivered(2_700, due=2_100)
    (gap,) = gaps(story.run())
    assert (gap.first_fire_ms, gap.silence_ms) == (700.0, 1_200.0)


def test_a_fault_after_which_nothing_fires_has_no_gap_but_a_silence(story: Story) -> None:
    story.delivered(900, due=890)
    story.delivered(3_100, due=890)
    assert gaps(story.run()) == [Gap("kill_leader", 1, None, 2_100.0)]


def test_a_job_was_sent_when_its_request_was_first_sent() -> None:
    """The first try, whose answer was lost, may have made it."""
    story = Story()
    for at in (100, 700):
        story.add(CreateSent, at, request_id="r")
    sent_us = T0 * 1000 + 700_000
    story.add(JobAcknowledged, 710, request_id="r", job_id="1", status="created", sent_us=sent_us)
    assert story.run().creations["1"].sent_us == T0 * 1000 + 100_000

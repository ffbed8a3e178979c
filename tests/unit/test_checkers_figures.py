"""The figures of a run, and what makes a demo fail, from small histories written by hand."""

from __future__ import annotations

import io
import json
from typing import Any, Literal

import msgspec
import pytest
from rich.console import Console

from timeball.bench.checkers import CHECKERS, Finding, Violation, check
from timeball.bench.demo import Outcome
from timeball.bench.evidence import Run
from timeball.bench.history import (
    AnyEvent,
    Delivered,
    FinalAnswers,
    JobAcknowledged,
    LeaderObserved,
    ProcessSignalled,
    ReportAnswered,
    Signal,
)
from timeball.bench.metrics import Lag, Window, failover_gap, lag_of, measure
from timeball.bench.planned import Planned, judge
from timeball.bench.report import PROMISES, render

T0 = 1_764_480_000_000


def delivered(
    lag_ms: float, *, due: int = 0, token: int = 1, attempt: int = 1, execution: str = "1-1"
) -> Delivered:
    return Delivered(
        at_us=int((T0 + due + lag_ms) * 1000),
        source="w1",
        execution_id=execution,
        job_id=execution.partition("-")[0],
        token=token,
        attempt=attempt,
        nominal_ms=T0 + due,
        due_ms=T0 + due,
        claim_sent_us=T0 * 1000,
    )


def signalled(process: str, signal: Signal, at: int, *, led: bool = False) -> ProcessSignalled:
    at_us = (T0 + at) * 1000
    return ProcessSignalled(at_us=at_us, source="client", process=process, signal=signal, led=led)


def leads(node: str, term: int, at: int) -> LeaderObserved:
    return LeaderObserved(at_us=(T0 + at) * 1000, source="client", leader=node, term=term)


def answered(
    execution: str,
    token: int,
    verdict: Literal["accepted", "duplicate", "stale"],
    kind: Literal["complete", "fail"] = "complete",
) -> ReportAnswered:
    return ReportAnswered(
        at_us=T0 * 1000,
        source="w1",
        kind=kind,
        execution_id=execution,
        token=token,
        verdict=verdict,
        sent_us=T0 * 1000,
    )


def run_of(*events: AnyEvent) -> Run:
    final = FinalAnswers(
        asked_us=(T0 + 60_000) * 1000, jobs=[], executions=[], nodes=[], expected_nodes=3
    )
    return Run(sorted(events, key=lambda event: event.at_us), final)


def test_percentiles_are_nearest_ranks() -> None:
    assert lag_of([delivered(lag) for lag in range(1, 201)]) == Lag(100.0, 198.0, 200.0, 200)
    assert lag_of([delivered(2.5)]) == Lag(2.5, 2.5, 2.5, 1)
    assert lag_of([]) == Lag(0.0, 0.0, 0.0, 0)


def test_lag_counts_first_attempts_and_steady_leaves_out_what_a_fault_disturbed() -> None:
    run = run_of(
        delivered(2, due=749),
        delivered(800, due=750),
        signalled("w2", "stop", 1_000),
        delivered(900, due=1_500),
        signalled("w2", "continue", 3_000),
        delivered(700, due=3_900),
        delivered(4, due=4_001),
        delivered(5_000, due=5_000, attempt=2),
    )
    figures = measure(run)
    assert figures.fire_lag_ms == Lag(700.0, 900.0, 900.0, 5)
    assert figures.fire_lag_steady_ms == Lag(2.0, 4.0, 4.0, 2)
    assert figures.fault_windows == [Window("stop w2", T0 + 750, T0 + 4_000)]


def test_the_failover_gap_is_the_longest_silence_around_the_leaders_death() -> None:
    kill = signalled("a", "kill", 1_000, led=True)
    quiet_before = [delivered(0, due=due) for due in (0, 900)]
    around = [delivered(0, due=due) for due in (990, 1_005, 1_400, 1_410)]
    quiet_after = [delivered(0, due=due) for due in (11_100, 13_000)]
    run = run_of(leads("a", 1, 0), kill, *quiet_before, *around, leads("b", 2, 1_390))
    assert failover_gap(run, kill) == ((T0 + 1_005) * 1000, (T0 + 1_400) * 1000)
    figures = measure(run)
    assert (figures.failovers, figures.failover_gap_ms) == (1, 395.0)
    late = run_of(kill, *around, delivered(0, due=11_050), *quiet_after)
    assert failover_gap(late, kill) == ((T0 + 1_410) * 1000, (T0 + 11_050) * 1000)


def test_silence_for_ever_is_no_gap_and_no_failover() -> None:
    kill = signalled("a", "kill", 1_000, led=True)
    figures = measure(run_of(leads("a", 1, 0), delivered(0), kill, leads("a", 1, 2_000)))
    assert (figures.failovers, figures.failover_gap_ms) == (0, None)


def test_a_redelivery_after_a_reported_failure_is_a_retry_and_any_other_is_not() -> None:
    figures = measure(
        run_of(
            delivered(0, token=1),
            answered("1-1", 1, "accepted", "fail"),
            delivered(0, token=2, attempt=2),
            delivered(0, token=2, attempt=2),
            delivered(0, token=3, attempt=3),
            answered("1-1", 2, "stale"),
            answered("1-1", 3, "accepted"),
            answered("1-1", 3, "duplicate"),
        )
    )
    assert (figures.retries, figures.redelivered) == (1, 1)
    assert (figures.stale_refused, figures.duplicates_suppressed) == (1, 1)


def test_a_create_answered_with_an_earlier_job_is_a_duplicate_suppressed() -> None:
    ack = JobAcknowledged(
        at_us=1, source="client", request_id="r", job_id="1", status="duplicate", sent_us=0
    )
    assert measure(run_of(ack)).duplicates_suppressed == 1


def test_no_planned_failure_is_believed_without_evidence() -> None:
    planned = judge(run_of())
    assert len(planned) == 9
    assert not any(each.survived for each in planned)
    assert all(each.seen for each in planned)


def outcome(**changes: Any) -> Outcome:
    """A demo that went well."""
    run = run_of()
    figures = msgspec.structs.replace(measure(run), executions=900, failover_gap_ms=700.0)
    good = Outcome(
        findings={rule: Finding(rule, 3, []) for rule in CHECKERS},
        planned=[Planned("worker_killed", "Worker killed", True, "seen")],
        figures=figures,
        run=run,
        seconds=31.5,
    )
    return msgspec.structs.replace(good, **changes)


def test_a_demo_that_went_well() -> None:
    assert outcome().failures == []
    report = json.loads(outcome().as_json())
    zeros = ("lost", "early", "double_accepted", "missed_occurrences", "duplicate_occurrences")
    assert [report[name] for name in zeros] == [0] * 5
    assert report["ok"] is True
    assert report["digests_agree"] is True
    assert report["executions"] == 900
    assert set(report["fire_lag_ms"]) == {"p50", "p99", "max", "count"}


@pytest.mark.parametrize("rule", list(CHECKERS))
def test_a_broken_rule_or_one_that_saw_nothing_fails_the_demo(rule: str) -> None:
    good = outcome().findings
    broken = {**good, rule: Finding(rule, 3, [Violation(rule, "1-1", "why")])}
    failed = outcome(findings=broken)
    assert failed.failures == [f"{rule}: 1-1: why"]
    assert json.loads(failed.as_json())[rule] == 1
    (reason,) = outcome(findings={**good, rule: Finding(rule, 0, [])}).failures
    assert "nothing to look at" in reason


def test_a_failure_that_did_not_happen_fails_the_demo() -> None:
    (reason,) = outcome(planned=[Planned("x", "Worker killed", False, "nobody died")]).failures
    assert "nobody died" in reason


@pytest.mark.parametrize(
    ("figure", "value"),
    [("executions", 499), ("failover_gap_ms", 1_500.1), ("failover_gap_ms", None)],
)
def test_too_few_executions_or_too_slow_a_failover_fails_the_demo(
    figure: str, value: float | None
) -> None:
    figures = msgspec.structs.replace(outcome().figures, **{figure: value})
    assert len(outcome(figures=figures).failures) == 1


def test_the_table_shows_every_promise_and_says_why_a_demo_failed() -> None:
    text = io.StringIO()
    render(outcome(), Console(file=text, width=120))
    assert all(promise in text.getvalue() for promise, _ in PROMISES.values())
    assert "PASSED" in text.getvalue()
    render(outcome(findings=check(run_of())), Console(file=text, width=120))
    assert "FAILED" in text.getvalue()
    assert "0 of 3 nodes answered" in text.getvalue()

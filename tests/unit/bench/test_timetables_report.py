"""The report of timetables: what it sums up, and that its last line is the verdict."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

from rich.console import Console

from timeball.bench.chaos.gaps import Gap
from timeball.bench.chaos.storm import Round
from timeball.bench.checkers import Finding, Violation
from timeball.bench.evidence import Run
from timeball.bench.history import Delivered, FaultOvercome, FaultStruck, FinalAnswers
from timeball.bench.timetables.report import Report, render, summarise

T0 = 1_764_480_000_000


def delivered(nominal: int, at: int) -> Delivered:
    return Delivered(
        at_us=(T0 + at) * 1000,
        source="w",
        execution_id=f"1-{nominal}",
        job_id="1",
        token=nominal,
        attempt=1,
        nominal_ms=T0 + nominal,
        due_ms=T0 + nominal,
        claim_sent_us=0,
    )


def summed_up(*violations: Violation) -> tuple[Report, Round]:
    stamp = {"source": "client", "number": 1}
    run = Run(
        [
            delivered(1_000, 1_003),
            FaultStruck(
                at_us=(T0 + 1_900) * 1000, kind="kill_leader", targets=["a"], leader="a", **stamp
            ),
            delivered(2_000, 2_700),
            FaultOvercome(at_us=(T0 + 2_900) * 1000, **stamp),
            delivered(3_000, 3_002),
        ],
        FinalAnswers(asked_us=0, jobs=[], executions=[], nodes=[], expected_nodes=3),
    )
    done = Round(
        number=1,
        folder=Path("/kept"),
        seconds=4.0,
        findings={"once": Finding("once", 3, list(violations))},
        gaps=[Gap("kill_leader", 1, 800.0, 1_697.0)],
        counts=Counter({"Delivered": 3}),
    )
    return summarise(9, done, run), done


def printed(report: Report, done: Round) -> list[str]:
    text = io.StringIO()
    render(report, done, Console(file=text, width=200))
    return text.getvalue().rstrip().splitlines()


def test_lags_are_told_by_the_fault_that_stood() -> None:
    report, done = summed_up()
    assert report.lags.keys() == {"none", "kill_leader"}
    killed = report.lags["kill_leader"]
    assert killed.lag is not None
    assert (killed.strikes, killed.lag.count, killed.lag.max_ms) == (1, 1, 700.0)
    assert killed.silence_ms == 1_697.0
    assert (report.strikes, report.strikes_before) == (1, 1)
    assert report.longest_silence_ms == 1_697.0
    lines = printed(report, done)
    assert lines[-1] == "violations: 0"
    assert not any("kept" in line for line in lines)


def test_a_violation_is_shown_with_its_evidence_and_where_to_look() -> None:
    report, done = summed_up(Violation("once", "1-2000", "ran as 2 executions"))
    lines = printed(report, done)
    assert lines[-1] == "violations: 1"
    assert "once: 1-2000: ran as 2 executions" in lines
    assert "kept: /kept" in lines

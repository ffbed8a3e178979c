"""The report of a run of chaos: gaps by kind of fault, what was checked, and the verdict last."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from timeball.bench.chaos.gaps import Gap
from timeball.bench.chaos.plan import KINDS
from timeball.bench.chaos.storm import Round
from timeball.bench.metrics import rank

GOAL_MS = 1_500
"""How long the first fire after the loss of a leader may take, at p99."""
SHOWN = 20


class Spread(msgspec.Struct, frozen=True):
    """Percentiles (nearest rank) of gaps, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a run is over."""

    seed: int
    rounds: int
    seconds: float
    violations: int
    failover: Spread | None
    """The first fires after losses of a leader."""
    failover_goal_ms: int
    faults: dict[str, Spread]
    broken: dict[str, int]
    """Violations by rule."""
    examined: dict[str, int]
    """What each checker had to look at."""
    counts: dict[str, int]
    """Recorded events by kind, and executions."""


def spread(values: Sequence[float]) -> Spread | None:
    """Sum up gaps; None when there is none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(len(ordered), rank(ordered, 50), rank(ordered, 99), ordered[-1])


def summarise(seed: int, rounds: Sequence[Round]) -> Report:
    """Sum up the rounds of a run."""
    all_gaps = [gap for each in rounds for gap in each.gaps]
    broken: Counter[str] = Counter()
    examined: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in rounds:
        counts.update(each.counts)
        for rule, finding in each.findings.items():
            broken[rule] += len(finding.violations)
            examined[rule] += finding.examined
    return Report(
        seed=seed,
        rounds=len(rounds),
        seconds=round(sum(each.seconds for each in rounds), 1),
        violations=sum(broken.values()),
        failover=spread(_first_fires(gap for gap in all_gaps if KINDS[gap.kind].deposes)),
        failover_goal_ms=GOAL_MS,
        faults={
            kind: seen
            for kind, found in _by_kind(all_gaps).items()
            if (seen := spread(_first_fires(found))) is not None
        },
        broken=dict(broken),
        examined=dict(examined),
        counts=dict(counts),
    )


def _first_fires(found: Iterable[Gap]) -> list[float]:
    return [gap.first_fire_ms for gap in found if gap.first_fire_ms is not None]


def _by_kind(found: Sequence[Gap]) -> dict[str, list[Gap]]:
    by_kind: dict[str, list[Gap]] = defaultdict(list)
    for gap in found:
        by_kind[gap.kind].append(gap)
    return {kind: by_kind[kind] for kind in KINDS if kind in by_kind}


def render(report: Report, rounds: Sequence[Round], console: Console) -> None:
    """Print the report; the number of violations is its last line."""
    console.print(_faults_table([gap for each in rounds for gap in each.gaps]))
    console.print(rules_table(report.examined, report.broken))
    counts = report.counts
    console.print(
        f"{report.seconds:g} s in {report.rounds} rounds, seed {report.seed}:"
        f" {counts.get('JobAcknowledged', 0)} jobs acknowledged,"
        f" {counts.get('executions', 0)} executions, {counts.get('Delivered', 0)} deliveries,"
        f" {counts.get('StatusRead', 0)} status reads"
    )
    if report.failover is not None:
        over = report.failover
        met = "met" if over.p99_ms <= report.failover_goal_ms else "MISSED"
        console.print(
            f"first fire after {over.count} losses of a leader: p50 {over.p50_ms:.0f} ms,"
            f" p99 {over.p99_ms:.0f} ms, max {over.max_ms:.0f} ms"
            f" (goal: p99 ≤ {report.failover_goal_ms} ms, {met})"
        )
    for each in rounds:
        for violation in each.violations[:SHOWN]:
            text = f"{violation.rule}: {violation.subject}: {violation.detail}"
            console.print(text, markup=False, soft_wrap=True)
        if each.violations:
            console.print(f"kept: {each.folder}", markup=False, soft_wrap=True)
    console.print(f"violations: {report.violations}")


def _faults_table(found: Sequence[Gap]) -> Table:
    table = Table(title="First fire and longest silence, ms", box=box.SIMPLE, title_justify="left")
    table.add_column("fault")
    table.add_column("n", justify="right")
    for name in ("p50", "p99", "max", "silence p50", "max"):
        table.add_column(name, justify="right")
    table.add_column("what is done", style="dim")
    for kind, those in _by_kind(found).items():
        fires = spread(_first_fires(those))
        silences = spread([gap.silence_ms for gap in those if gap.silence_ms is not None])
        figures = ["–"] * 5
        if fires is not None:
            figures[:3] = [f"{ms:.0f}" for ms in (fires.p50_ms, fires.p99_ms, fires.max_ms)]
        if silences is not None:
            figures[3:] = [f"{ms:.0f}" for ms in (silences.p50_ms, silences.max_ms)]
        healing = KINDS[kind].gap_from == "healing"
        what = KINDS[kind].what + (" (first fire from the healing)" if healing else "")
        table.add_row(kind, str(len(those)), *figures, what)
    return table


def rules_table(examined: Mapping[str, int], broken: Mapping[str, int]) -> Table:
    """What each checker looked at, and how often its rule was broken."""
    table = Table(title="What was checked", box=box.SIMPLE, title_justify="left")
    table.add_column("rule")
    table.add_column("examined", justify="right")
    table.add_column("violations", justify="right")
    for rule, seen in examined.items():
        style = "bold red" if broken[rule] else None
        table.add_row(rule, str(seen), str(broken[rule]), style=style)
    return table

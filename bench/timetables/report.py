"""The report of timetables under faults: how late, what is accounted for, and the verdict last."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from timeball.bench.chaos.plan import KINDS
from timeball.bench.chaos.report import SHOWN, Spread, rules_table, spread
from timeball.bench.chaos.storm import Round
from timeball.bench.evidence import Run
from timeball.bench.history import Delivered, FaultStruck
from timeball.bench.timetables.lags import QUIET, lags_ms
from timeball.bench.timetables.reference import ledgers


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How late the occurrences were that fell due under faults of one kind, or of none."""

    strikes: int
    lag: Spread | None
    """From the nominal time to the first delivery, in milliseconds."""
    silence_ms: float | None
    """The longest time without any delivery until such a fault was overcome."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is known when a run is over."""

    seed: int
    seconds: float
    violations: int
    timetables: int
    nominal_times: int
    """Those that the reference names, of all timetables."""
    fired: int
    coalesced: int
    """As the cluster counts them."""
    missed: int
    strikes: int
    strikes_before: int
    """Those just before a full second; the others fell upon one."""
    longest_silence_ms: float
    """The longest time without any delivery, from the first one to the last."""
    lag: Spread | None
    """Of all occurrences."""
    lags: dict[str, Lag]
    """By the kind of fault that stood when they fell due."""
    broken: dict[str, int]
    """Violations by rule."""
    examined: dict[str, int]
    """What each checker had to look at."""
    counts: dict[str, int]
    """Recorded events by kind, and executions."""


def summarise(seed: int, done: Round, run: Run) -> Report:
    """Sum up a run."""
    struck = run.of(FaultStruck)
    lags = lags_ms(run)
    all_ledgers = list(ledgers(run))
    heard = sorted(delivery.at_us for delivery in run.of(Delivered))
    silences = [later - earlier for earlier, later in itertools.pairwise(heard)]
    return Report(
        seed=seed,
        seconds=done.seconds,
        violations=len(done.violations),
        timetables=len(all_ledgers),
        nominal_times=sum(len(ledger.named) for ledger in all_ledgers),
        fired=sum(len(ledger.ran) for ledger in all_ledgers),
        coalesced=sum(ledger.timetable.coalesced for ledger in all_ledgers),
        missed=sum(ledger.timetable.missed for ledger in all_ledgers),
        strikes=len(struck),
        strikes_before=sum(event.at_us // 1000 % 1000 >= 500 for event in struck),
        longest_silence_ms=round(max(silences, default=0) / 1000, 1),
        lag=spread([lag for those in lags.values() for lag in those]),
        lags=_by_kind(done, struck, lags),
        broken={rule: len(finding.violations) for rule, finding in done.findings.items()},
        examined={rule: finding.examined for rule, finding in done.findings.items()},
        counts=dict(done.counts),
    )


def _by_kind(
    done: Round, struck: Sequence[FaultStruck], lags: Mapping[str, list[float]]
) -> dict[str, Lag]:
    counts = Counter(event.kind for event in struck)
    silences: dict[str, float] = {}
    for gap in done.gaps:
        if gap.silence_ms is not None:
            silences[gap.kind] = max(gap.silence_ms, silences.get(gap.kind, 0.0))
    return {
        kind: Lag(
            strikes=counts[kind],
            lag=spread(lags.get(kind, [])),
            silence_ms=silences.get(kind),
        )
        for kind in (QUIET, *KINDS)
        if kind in counts or kind in lags
    }


def render(report: Report, done: Round, console: Console) -> None:
    """Print the report; the number of violations is its last line."""
    console.print(_lags_table(report))
    console.print(rules_table(report.examined, report.broken))
    console.print(
        f"{report.seconds:g} s, seed {report.seed}: {report.strikes} strikes,"
        f" {report.strikes_before} of them just before a full second and"
        f" {report.strikes - report.strikes_before} upon one"
    )
    console.print(
        f"{report.timetables} timetables named {report.nominal_times} times:"
        f" {report.fired} fired, {report.coalesced} coalesced, {report.missed} missed;"
        f" longest silence {report.longest_silence_ms:.0f} ms"
    )
    for violation in done.violations[:SHOWN]:
        text = f"{violation.rule}: {violation.subject}: {violation.detail}"
        console.print(text, markup=False, soft_wrap=True)
    if done.violations:
        console.print(f"kept: {done.folder}", markup=False, soft_wrap=True)
    console.print(f"violations: {report.violations}")


def _lags_table(report: Report) -> Table:
    table = Table(
        title="From the nominal time to a worker, ms, by the fault that stood then",
        box=box.SIMPLE,
        title_justify="left",
    )
    table.add_column("fault")
    for name in ("strikes", "occurrences", "p50", "p99", "max", "longest silence"):
        table.add_column(name, justify="right")
    table.add_column("what is done", style="dim")
    for kind, row in report.lags.items():
        figures = ["0", "–", "–", "–"]
        if row.lag is not None:
            spans = (row.lag.p50_ms, row.lag.p99_ms, row.lag.max_ms)
            figures = [str(row.lag.count), *(f"{ms:.1f}" for ms in spans)]
        silence = "–" if row.silence_ms is None else f"{row.silence_ms:.0f}"
        strikes = str(row.strikes) if kind in KINDS else "–"
        what = KINDS[kind].what if kind in KINDS else "nothing is broken"
        table.add_row(kind, strikes, *figures, silence, what)
    return table

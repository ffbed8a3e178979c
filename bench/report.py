"""The demo's table: what a person wants to know, in the order in which they want to know it."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from timeball.bench.demo import FAILOVER_LIMIT_MS, Outcome, machine, versions
from timeball.bench.metrics import Lag

PROMISES = {
    "lost": ("Nothing acknowledged is lost", "jobs and reports"),
    "early": ("Nothing is delivered before its time", "deliveries"),
    "double_accepted": ("One accepted completion for an execution", "completions"),
    "stale_accepted": ("An old fencing token never counts", "late reports"),
    "missed_occurrences": ("Every nominal time has its execution", "nominal times"),
    "duplicate_occurrences": ("No nominal time has two executions", "executions"),
    "duplicate_jobs": ("A repeated create makes no second job", "creates"),
    "tokens": ("Fencing tokens are unique and only rise", "grants"),
    "undelivered": ("Everything due is delivered in the end", "executions"),
    "replicas": ("All nodes hold the same state", "nodes' hashes"),
}
"""Each checker's rule in a reader's words, and what it counts."""

SHOWN_FAILURES = 20


def render(outcome: Outcome, console: Console) -> None:
    """Print the outcome."""
    failures = outcome.failures
    body = Group(
        _safety(outcome),
        Text(),
        _failures_survived(outcome),
        Text(),
        _metrics(outcome),
    )
    colour = "red" if failures else "green"
    host = machine()
    place = f"{host['cores']} cores, Python {versions()['python']}, {outcome.seconds:g} s"
    title = f"[bold]Timeball demo[/] · three nodes, three workers, one machine · {place}"
    console.print(Panel(body, title=title, border_style=colour, box=box.ROUNDED, padding=(1, 2)))
    if failures:
        console.print(f"[bold red]FAILED[/] for {len(failures)} reasons:")
        for failure in failures[:SHOWN_FAILURES]:
            console.print(Text(f"  · {failure}"))
        if len(failures) > SHOWN_FAILURES:
            console.print(f"  · … and {len(failures) - SHOWN_FAILURES} more")
    else:
        executions = outcome.figures.executions
        console.print(
            f"[bold green]PASSED[/] {executions} executions: none lost, none early, "
            "none accepted twice, no occurrence missed or made twice."
        )


def _mark(good: bool) -> Text:
    return Text("✓", "bold green") if good else Text("✗", "bold red")


def _section(title: str) -> Table:
    table = Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=None,
        show_header=False,
        padding=(0, 1),
        expand=True,
    )
    table.add_column(width=1)
    table.add_column(width=46)
    return table


def _safety(outcome: Outcome) -> Table:
    table = _section("State safety")
    table.add_column(justify="right", width=10)
    table.add_column(style="dim", ratio=1)
    for rule, finding in outcome.findings.items():
        promise, counted = PROMISES[rule]
        broken = len(finding.violations)
        table.add_row(
            _mark(not broken and finding.examined > 0),
            promise,
            Text(f"{broken} broken", "bold red" if broken else "green"),
            f"of {finding.examined} {counted}",
        )
    return table


def _failures_survived(outcome: Outcome) -> Table:
    table = _section("Failures survived")
    table.add_column(style="dim", ratio=1)
    for planned in outcome.planned:
        table.add_row(_mark(planned.survived), planned.what, planned.seen)
    return table


def _metrics(outcome: Outcome) -> Table:
    figures = outcome.figures
    table = _section("Metrics")
    table.add_column(ratio=1)
    gap = figures.failover_gap_ms
    rows = [
        ("Fire lag, steady (outside of the faults)", _lag(figures.fire_lag_steady_ms)),
        ("Fire lag, all first attempts (faults included)", _lag(figures.fire_lag_ms)),
        (
            f"Fail-over gap (allowed: {FAILOVER_LIMIT_MS} ms)",
            "none" if gap is None else f"{gap:.0f} ms, last delivery → next",
        ),
        ("Executions · deliveries", f"{figures.executions} · {figures.deliveries}"),
        (
            "Retries · redelivered after a lost lease",
            f"{figures.retries} · {figures.redelivered}",
        ),
        ("Stale reports refused", str(figures.stale_refused)),
        ("Duplicates suppressed", str(figures.duplicates_suppressed)),
        (
            "Dead · replayed · cancelled",
            f"{figures.dead} · {figures.replayed} · {figures.cancelled}",
        ),
    ]
    for name, value in rows:
        table.add_row("", name, value)
    table.caption = "Fire lag: from the due instant to the committed lease in the worker's hands."
    table.caption_justify = "left"
    return table


def _lag(lag: Lag) -> str:
    return f"p50 {lag.p50:.1f} · p99 {lag.p99:.1f} · max {lag.max:.1f} ms  ({lag.count})"

"""The commands `timeball bench …`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from timeball.bench.console import until_signalled
from timeball.bench.load import benches
from timeball.bench.load.children import GeneratorFailed
from timeball.bench.load.driver import Observed, RunFailed, Show
from timeball.bench.load.figures import Figures
from timeball.bench.load.plot import PlotUnavailable, plot
from timeball.bench.load.progress import showing
from timeball.bench.load.render import failures, render
from timeball.bench.load.scale import scale as measure_scale
from timeball.bench.load.wheels import compare_wheels
from timeball.cluster.localcluster import NodeFailed

EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130

T = TypeVar("T")
Command = Callable[..., None]

_FORESEEN = (RunFailed, GeneratorFailed, NodeFailed, PlotUnavailable, TimeoutError)


@click.group()
def bench() -> None:
    """Measure a cluster of three nodes on this machine, fsync on (or the one at --urls)."""


def _options(*names: str) -> Callable[[Command], Command]:
    """The options of a bench, from those that several have."""

    def add(command: Command) -> Command:
        for name in reversed((*names, "json")):
            command = _SHARED[name](command)
        return command

    return add


_SHARED: dict[str, Callable[[Command], Command]] = {
    "rate": click.option(
        "--rate",
        type=click.FloatRange(min=1, max=1_000_000),
        default=1_000.0,
        show_default=True,
        help="Executions due in a second.",
    ),
    "seconds": click.option(
        "--seconds",
        type=click.FloatRange(min=0.5, max=86_400),
        default=10.0,
        show_default=True,
        help="Length of the measured window.",
    ),
    "warmup": click.option(
        "--warmup",
        "warmup_s",
        type=click.FloatRange(min=0.5, max=600),
        default=3.0,
        show_default=True,
        help="Seconds of the same load before it; not measured, but checked.",
    ),
    "mode": click.option(
        "--mode",
        type=click.Choice(["steady", "preloaded"]),
        default="steady",
        show_default=True,
        help="Submit while firing, or everything before the first is due.",
    ),
    "workers": click.option(
        "--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes."
    ),
    "submitters": click.option(
        "--submitters", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes."
    ),
    "batch": click.option(
        "--batch",
        type=click.IntRange(1, 1_000),
        default=100,
        show_default=True,
        help="Jobs in a POST; 1: unbatched, with one execution in a claim, too.",
    ),
    "claim": click.option(
        "--claim",
        type=click.IntRange(1, 1_000),
        help=f"Most executions in a claim.  [default: {benches.CLAIM}, or 1 with --batch 1]",
    ),
    "executions": click.option(
        "--executions",
        type=click.IntRange(1, 20_000_000),
        default=10_000,
        show_default=True,
        help="How many.",
    ),
    "pending": click.option(
        "--pending",
        type=click.IntRange(0, 20_000_000),
        default=0,
        show_default=True,
        help="Other jobs that are pending meanwhile, due far ahead.",
    ),
    "kill": click.option(
        "--kill-leader-every",
        "kill_leader_every_s",
        type=click.FloatRange(min=0, max=86_400),
        default=0.0,
        help="SIGKILL whoever leads, every so many seconds, and restart it.",
    ),
    "snapshot": click.option(
        "--snapshot-meanwhile",
        is_flag=True,
        help="Have each node take a snapshot in the measured window; fail if none was taken.",
    ),
    "urls": click.option(
        "--urls", default="", help="Use the cluster of these nodes, with commas between."
    ),
    "plot": click.option(
        "--plot",
        "plot_path",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        help="Draw lag over time and the percentile curve into this PNG file.",
    ),
    "json": click.option(
        "--json",
        "json_path",
        type=click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path),
        help="Write one JSON object to this file; `-`: to stdout, in place of the table.",
    ),
}
_LOAD = ("rate", "seconds", "warmup", "mode", "workers", "submitters", "batch", "claim", "pending")


@bench.command("fire-lag")
@_options(*_LOAD, "kill", "snapshot", "urls", "plot")
def fire_lag(json_path: Path | None, plot_path: Path | None, **given: Any) -> None:
    """Fire lag of an open loop: due instant to the committed lease in a worker's hands."""
    _run_and_plot("Fire lag", benches.fire_lag, given, json_path, plot_path)


@bench.command()
@click.option(
    "--p99-ms",
    type=click.FloatRange(min=0.1),
    default=25.0,
    show_default=True,
    help="A rate is held while the p99 of its fire lag is no higher.",
)
@click.option(
    "--from",
    "lowest",
    type=click.FloatRange(min=1, max=1_000_000),
    default=10_000.0,
    show_default=True,
    help="The first rate, executions a second.",
)
@click.option(
    "--to",
    "highest",
    type=click.FloatRange(min=1, max=1_000_000),
    default=60_000.0,
    show_default=True,
    help="The highest rate that is tried.",
)
@_options("seconds", "warmup", "workers", "submitters", "batch", "claim", "urls", "plot")
def peak(json_path: Path | None, plot_path: Path | None, **given: Any) -> None:
    """The highest steady rate that is held: rising rates, then halving, each on a new cluster."""
    if given["lowest"] > given["highest"]:
        raise click.BadParameter("--from is higher than --to")
    _run_and_plot("Peak", benches.peak, given, json_path, plot_path)


@bench.command()
@_options("executions", "submitters", "batch", "urls")
def submit(json_path: Path | None, **given: Any) -> None:
    """Creates a second, as fast as they are answered."""
    _finish("Submit", _run(benches.submit, given), json_path)


@bench.command()
@_options("executions", "workers", "batch", "claim", "urls")
def claim(json_path: Path | None, **given: Any) -> None:
    """Leases a second out of a backlog."""
    _finish("Claim", _run(benches.claim, given), json_path)


@bench.command()
@_options("executions", "workers", "batch", "claim", "urls")
def burst(json_path: Path | None, **given: Any) -> None:
    """All executions due on one instant: the time until all are in workers' hands."""
    _finish("Burst", _run(benches.burst, given), json_path)


@bench.command()
@click.option(
    "--executions",
    "--pending",
    "pending",
    type=click.IntRange(0, 20_000_000),
    default=100_000,
    show_default=True,
    help="One-shot jobs that are pending, due far ahead.",
)
@click.option("--keyed", is_flag=True, help="Measure jobs with idempotency keys, too.")
@_options(*(name for name in _LOAD if name != "pending"), "plot")
def scale(json_path: Path | None, plot_path: Path | None, **given: Any) -> None:
    """Many pending executions: memory, fire lag beside them, snapshots, stalls, restarts."""
    _run_and_plot("Scale", measure_scale, given, json_path, plot_path)


@bench.command()
@_options(*_LOAD, "kill", "plot")
def failover(json_path: Path | None, plot_path: Path | None, **given: Any) -> None:
    """The gaps that workers see while leaders are killed (every 10 s, unless said otherwise)."""
    given["kill_leader_every_s"] = given["kill_leader_every_s"] or 10.0
    _run_and_plot("Fail-over", benches.failover, given, json_path, plot_path)


@bench.command()
@click.option(
    "--entries",
    type=click.IntRange(1_000, 10_000_000),
    multiple=True,
    default=(10_000, 100_000, 1_000_000),
    show_default=True,
    help="How many timers are held; may be repeated.",
)
@_options()
def wheel(json_path: Path | None, entries: tuple[int, ...]) -> None:
    """The timing wheel against a heap and a sorted list, in this process alone."""
    with showing() as show:
        figures = compare_wheels(entries, show)
    _finish("Wheel", figures, json_path)


def _run_and_plot(
    title: str,
    measure: Callable[[Path, benches.Options, Show], Coroutine[Any, Any, tuple[Figures, Observed]]],
    given: dict[str, Any],
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    figures, observed = _run(measure, given)
    if plot_path is not None:
        try:
            plot(figures, observed, plot_path)
        except PlotUnavailable as error:
            click.echo(f"No plot: {error}", err=True)
    _finish(title, figures, json_path)


def _run(
    measure: Callable[[Path, benches.Options, Show], Coroutine[Any, Any, T]], given: dict[str, Any]
) -> T:
    urls = [url.strip() for url in given.pop("urls", "").split(",") if url.strip()]
    options = benches.Options(urls=urls, **given)
    try:
        with tempfile.TemporaryDirectory(prefix="timeball-bench-") as folder, showing() as show:
            return asyncio.run(until_signalled(measure(Path(folder), options, show)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        click.echo("Interrupted; every process is ended.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except _FORESEEN as error:
        click.echo(f"FAILED: {type(error).__name__}: {error}", err=True)
        sys.exit(EXIT_BROKEN)


def _finish(title: str, figures: Figures, json_path: Path | None) -> None:
    """Print the figures, and end with 1 when something was early, lost or accepted twice."""
    report = msgspec.json.format(msgspec.json.encode(figures), indent=2)
    if json_path is not None and str(json_path) == "-":
        click.echo(report)
    else:
        if json_path is not None:
            json_path.write_bytes(report + b"\n")
        render(title, figures)
    broken = failures(figures)
    for failure in broken:
        click.echo(f"BROKEN: {failure}", err=True)
    sys.exit(EXIT_BROKEN if broken else 0)

"""The command `timeball bench timetables`."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console

from timeball.bench.chaos.storm import Round, Storm
from timeball.bench.console import telling, until_signalled
from timeball.bench.evidence import Run
from timeball.bench.timetables.report import render, summarise
from timeball.bench.timetables.strikes import PAUSE_S, SPACING_S
from timeball.bench.timetables.trial import TimetablesTrial
from timeball.cluster.localcluster import NodeFailed

EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130
WIDTH = 140


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.2, max=120),
    default=10.0,
    show_default=True,
    help="How long the timetables run.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Repeats the strikes.")
@click.option(
    "--each-second",
    type=click.IntRange(min=1, max=500),
    default=20,
    show_default=True,
    help="Timetables that beat each second.",
)
@click.option(
    "--each-minute",
    type=click.IntRange(min=0, max=500),
    default=20,
    show_default=True,
    help="Timetables that beat each minute.",
)
@click.option(
    "--spacing",
    type=click.Choice(["5", "6", "10", "12", "15", "20", "30", "60"]),
    default=str(SPACING_S),
    show_default=True,
    help="Seconds from one strike to the next.",
)
@click.option(
    "--pause",
    type=click.FloatRange(min=3, max=60),
    default=PAUSE_S,
    show_default=True,
    help="Seconds for which a leader is stopped.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep logs, data and histories in this new or empty folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead.")
def timetables(
    minutes: float,
    seed: int | None,
    each_second: int,
    each_minute: int,
    spacing: str,
    pause: float,
    keep: Path | None,
    as_json: bool,
) -> None:
    """Strike the leader at the instants that timetables name, and check that none is lost.

    It is killed, stopped or cut off by turns, 100 ms before a full second or upon it. Ends with 1
    when a nominal time is missing, came twice or came early, or another promise was broken; then
    the nodes' logs, data and the recorded history are kept, and named.
    """
    if keep is not None:
        keep = keep.absolute()
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.BadParameter(f"{keep} is not empty", param_hint="--keep")
    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    click.echo(f"seed {chosen}", err=True)
    folder = Path(tempfile.mkdtemp(prefix="timeball-timetables-")) if keep is None else keep
    counts = {"each-second": each_second, "each-minute": each_minute}
    trial = TimetablesTrial(chosen, minutes * 60, counts, int(spacing), pause)
    with telling() as tell:
        done, run = _run(folder, trial, tell)
    report = summarise(chosen, done, run)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        render(report, done, Console(width=None if sys.stdout.isatty() else WIDTH))
    if keep is None and not report.violations:
        shutil.rmtree(folder)
    sys.exit(EXIT_BROKEN if report.violations else 0)


def _run(folder: Path, trial: TimetablesTrial, tell: Callable[[str], None]) -> tuple[Round, Run]:
    storm = Storm(folder, trial, tell)
    try:
        done = asyncio.run(until_signalled(storm.blow(1)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        click.echo("Interrupted; every process is ended.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except (NodeFailed, TimeoutError) as error:
        click.echo(f"FAILED: {type(error).__name__}: {error}", err=True)
        sys.exit(EXIT_BROKEN)
    assert storm.run is not None
    return done, storm.run

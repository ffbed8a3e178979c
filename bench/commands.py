"""The commands `timeball demo` and `timeball bench`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from timeball.bench.chaos.commands import chaos
from timeball.bench.console import leaves, telling, until_signalled
from timeball.bench.demo import Outcome, run_demo
from timeball.bench.hangups.commands import hangups
from timeball.bench.load.commands import bench
from timeball.bench.report import render
from timeball.bench.timetables.commands import timetables
from timeball.bench.watching import NotSeen
from timeball.client.errors import TimeballError
from timeball.cluster.localcluster import NodeFailed

__all__ = ["bench", "demo"]

bench.add_command(chaos)
bench.add_command(hangups)
bench.add_command(timetables)

LIMIT_S = 60.0
"""A demo that takes longer is stopped: its machine is too slow, or something hangs."""
EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130

_FORESEEN = (NotSeen, NodeFailed, TimeballError)
"""What ends a demo without a defect of the demo itself."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep logs, data and histories in this new or empty folder.",
)
def demo(as_json: bool, keep: Path | None) -> None:
    """Run three nodes and three workers through a minute of failures, and prove what held.

    Ends with 0 when every promise held and every planned failure happened, else with 1.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.BadParameter(f"{keep} is not empty", param_hint="--keep")
    with _folder(keep) as folder, telling() as tell:
        outcome = _run(folder, tell)
    if as_json:
        click.echo(outcome.as_json())
    else:
        render(outcome, Console(width=None if sys.stdout.isatty() else 120))
    sys.exit(EXIT_BROKEN if outcome.failures else 0)


def _run(folder: Path, tell: Callable[[str], None]) -> Outcome:
    try:
        return asyncio.run(until_signalled(_in_time(folder, tell)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        click.echo("Interrupted; every process is ended.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except (ExceptionGroup, *_FORESEEN) as error:
        foreseen = list(leaves(error))
        if not all(isinstance(leaf, _FORESEEN) for leaf in foreseen):
            raise
        for leaf in foreseen:
            click.echo(f"FAILED: {type(leaf).__name__}: {leaf}", err=True)
        sys.exit(EXIT_BROKEN)


async def _in_time(folder: Path, tell: Callable[[str], None]) -> Outcome:
    limit = asyncio.timeout(LIMIT_S)
    try:
        async with limit:
            return await run_demo(folder, tell)
    except TimeoutError as error:
        what = f"the end of the demo within {LIMIT_S:g} s" if limit.expired() else "a ready cluster"
        raise NotSeen(f"not seen in time: {what}") from error


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="timeball-demo-") as folder:
        yield Path(folder)

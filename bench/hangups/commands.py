"""The command `timeball bench hangups`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from timeball.bench.console import leaves, telling, until_signalled
from timeball.bench.hangups.trial import Report, Tell, Trial
from timeball.client.errors import TimeballError
from timeball.cluster.localcluster import NodeFailed

EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130

_FORESEEN = (NodeFailed, TimeballError, TimeoutError)


@click.command()
@click.option(
    "--pollers",
    type=click.IntRange(min=1, max=5_000),
    default=1_000,
    show_default=True,
    help="Pollers that hang up each second.",
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1, max=3_600),
    default=60,
    show_default=True,
    help="How many seconds; each has a wave of pollers of its own.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1, max=10_000),
    default=200,
    show_default=True,
    help="Jobs created each second.",
)
def hangups(pollers: int, seconds: int, jobs: int) -> None:
    """Have pollers hang up each second while jobs come in; print one JSON object on stdout.

    Ends with 1 when a lease outlived its poller by a second, an attempt was used up, a claim waits
    at the end, a job was not done, or a node's memory grew.
    """
    with tempfile.TemporaryDirectory(prefix="timeball-hangups-") as folder, telling() as tell:
        report = _run(Path(folder), Trial(pollers, seconds, jobs, tell), tell)
    violations = report.violations
    click.echo(msgspec.json.encode({**msgspec.structs.asdict(report), "violations": violations}))
    sys.exit(EXIT_BROKEN if violations else 0)


def _run(folder: Path, trial: Trial, tell: Tell) -> Report:
    try:
        return asyncio.run(until_signalled(trial.run(folder)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        tell("Interrupted; every process is ended.")
        sys.exit(EXIT_INTERRUPTED)
    except (ExceptionGroup, *_FORESEEN) as error:
        foreseen = list(leaves(error))
        if not all(isinstance(leaf, _FORESEEN) for leaf in foreseen):
            raise
        for leaf in foreseen:
            click.echo(f"FAILED: {type(leaf).__name__}: {leaf}", err=True)
        sys.exit(EXIT_BROKEN)

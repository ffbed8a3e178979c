"""The command `timeball bench chaos`."""

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

from timeball.bench.chaos.mixture import MixtureTrial
from timeball.bench.chaos.plan import KINDS, schedule
from timeball.bench.chaos.report import render, summarise
from timeball.bench.chaos.storm import Round, Storm
from timeball.bench.console import telling, until_signalled
from timeball.cluster.localcluster import NodeFailed

ROUND_S = 180.0
"""The longest round: a long run is several, so that what is recorded and compared stays bounded."""
EXIT_BROKEN = 1
EXIT_INTERRUPTED = 130
WIDTH = 140


@click.command()
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1, max=10_000),
    default=3.0,
    show_default=True,
    help="How long faults strike.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Repeats a schedule of faults.")
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=2_000),
    default=60.0,
    show_default=True,
    help="One-shot jobs a second.",
)
@click.option(
    "--faults",
    default=",".join(KINDS),
    help="The kinds that strike, with commas between.  [default: all]",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep every round's logs, data and histories under this new or empty folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout instead.")
def chaos(
    minutes: float, seed: int | None, rate: float, faults: str, keep: Path | None, as_json: bool
) -> None:
    """Break a real cluster under load in every way, and check what its users saw.

    Ends with 1 when a promise was broken; the nodes' logs, data and the recorded history of
    that round are kept, and named. The seed repeats the schedule of faults, not the exact
    interleaving.
    """
    kinds = [kind.strip() for kind in faults.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in KINDS:
            known = ", ".join(KINDS)
            raise click.BadParameter(f"{kind!r} is none of {known}", param_hint="--faults")
    if not kinds:
        raise click.BadParameter("names no kind", param_hint="--faults")
    if keep is not None:
        keep = keep.absolute()
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.BadParameter(f"{keep} is not empty", param_hint="--keep")
    chosen = random.SystemRandom().randrange(10**6) if seed is None else seed
    click.echo(f"seed {chosen}", err=True)
    with telling() as tell:
        rounds = _run(minutes * 60, chosen, rate, kinds, keep, tell)
    report = summarise(chosen, rounds)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        render(report, rounds, Console(width=None if sys.stdout.isatty() else WIDTH))
    sys.exit(EXIT_BROKEN if report.violations else 0)


def _run(
    seconds: float,
    seed: int,
    rate: float,
    kinds: list[str],
    keep: Path | None,
    tell: Callable[[str], None],
) -> list[Round]:
    try:
        return asyncio.run(until_signalled(_rounds(seconds, seed, rate, kinds, keep, tell)))
    except (asyncio.CancelledError, KeyboardInterrupt):
        click.echo("Interrupted; every process is ended.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except (NodeFailed, TimeoutError) as error:
        click.echo(f"FAILED: {type(error).__name__}: {error}", err=True)
        sys.exit(EXIT_BROKEN)


async def _rounds(
    seconds: float,
    seed: int,
    rate: float,
    kinds: list[str],
    keep: Path | None,
    tell: Callable[[str], None],
) -> list[Round]:
    """Run one round after another until the time is up or a promise was broken."""
    faults = schedule(seed, kinds)
    rng = random.Random(seed)
    base = Path(tempfile.mkdtemp(prefix="timeball-chaos-")) if keep is None else keep
    rounds: list[Round] = []
    left = seconds
    try:
        while left > 0 and not any(done.violations for done in rounds):
            number = len(rounds) + 1
            folder = base / f"round-{number}"
            folder.mkdir()
            length = min(left, ROUND_S)
            tell(f"round {number}: {length:g} s of faults")
            trial = MixtureTrial(random.Random(rng.random()), rate, faults, length)
            rounds.append(await Storm(folder, trial, tell).blow(number))
            if keep is None and not rounds[-1].violations:
                await asyncio.to_thread(shutil.rmtree, folder)
            left -= length
    finally:
        if keep is None and not any(base.iterdir()):
            base.rmdir()
    return rounds

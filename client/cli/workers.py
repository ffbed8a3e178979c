"""`timeball workers …`: tell running workers to claim no more, or to end."""

from __future__ import annotations

from typing import Any

import click

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options
from timeball.client.messages import WorkerDetails


@click.group()
def workers() -> None:
    """Tell running workers, by name, to claim no more or to end."""


@workers.command()
@click.argument("name")
@freshness_options
@asks
def show(asker: Asker, /, name: str, **fresh: Any) -> None:
    """Show what a worker is told."""
    answer = asker.ask(lambda client: client.worker(name, **fresh))
    asker.show(answer, lambda: _facts(answer))


@workers.command()
@click.argument("name")
@asks
def quiet(asker: Asker, name: str) -> None:
    """Claim no more, finish what it has, and stay."""
    answer = asker.ask(lambda client: client.quiet_worker(name))
    asker.show(answer, lambda: _facts(answer))


@workers.command()
@click.argument("name")
@asks
def terminate(asker: Asker, name: str) -> None:
    """Claim no more, finish what it has, and end, as on SIGTERM."""
    answer = asker.ask(lambda client: client.terminate_worker(name))
    asker.show(answer, lambda: _facts(answer))


@workers.command()
@click.argument("name")
@asks
def resume(asker: Asker, name: str) -> None:
    """Take back what it is told: a quiet worker claims again."""
    answer = asker.ask(lambda client: client.resume_worker(name))
    asker.show(answer, lambda: _facts(answer))


def _facts(view: WorkerDetails) -> str:
    return output.facts(
        [("worker", view.name), ("instruction", view.instruction), ("since", view.instructed_at)]
    )

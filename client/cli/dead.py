"""`timeball dead …`: look at dead letters and replay them."""

from __future__ import annotations

from typing import Any

import click

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options, limit_option
from timeball.client.cli.executions import many


@click.group()
def dead() -> None:
    """Look at dead letters and replay them."""


@dead.command(name="list")
@click.option("--queue")
@limit_option
@freshness_options
@asks
def list_dead(asker: Asker, /, queue: str | None, limit: int, **fresh: Any) -> None:
    """List dead executions, newest first."""
    views = asker.collect(
        lambda client, page_size: client.dead(queue=queue, page_size=page_size, **fresh), limit
    )
    asker.show(views, lambda: many(views))


@dead.command()
@click.argument("execution_ids", nargs=-1, required=True)
@asks
def replay(asker: Asker, execution_ids: tuple[str, ...]) -> None:
    """Give dead executions a new attempt budget. Exit code 1 if one was not dead."""
    answers = asker.ask(lambda client: client.replay(execution_ids))
    rows = [(answer.execution_id, answer.status) for answer in answers]
    asker.show(answers, lambda: output.table(["execution", "status"], rows))
    refused = sum(answer.status != "replayed" for answer in answers)
    if refused:
        raise click.ClickException(f"{refused} of {len(answers)} were not replayed")

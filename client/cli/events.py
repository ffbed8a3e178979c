"""`timeball events`: what happens to executions and jobs, as it happens."""

from __future__ import annotations

from contextlib import aclosing
from typing import get_args

import click
import msgspec

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks
from timeball.client.client import Client
from timeball.client.messages import OLDEST, Event, EventType

_NOUNS = ("execution", "job")


@click.command()
@click.option("--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option("--after", help='Behind this event id or position of the log, or "oldest".')
@click.option("--queue", help="Of this queue only.")
@click.option("--job", help="Of this job and its executions only.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice([*_NOUNS, *get_args(EventType)]),
    metavar="TYPE",
    help="Such as execution.failed, or job for all that begin so; repeat it.",
)
@click.option("--state", "states", multiple=True, help="That led to this state; repeat it.")
@asks
def events(
    asker: Asker,
    /,
    follow: bool,
    after: str | None,
    queue: str | None,
    job: str | None,
    types: tuple[str, ...],
    states: tuple[str, ...],
) -> None:
    """Tell what happens to executions and jobs, one line each; with --json one object each.

    Without --follow it ends when it has told all that a node still keeps, or all since --after;
    with --follow it begins with what happens now, or behind --after, and goes on until Ctrl-C.
    """
    if after is None and not follow:
        after = OLDEST

    async def tell(client: Client) -> None:
        told = client.events(
            after=after, queue=queue, job=job, types=types, states=states, follow=follow
        )
        async with aclosing(told) as events:
            async for event in events:
                click.echo(msgspec.json.encode(event) if asker.as_json else _line(event))

    asker.ask(tell)


def _line(event: Event) -> str:
    subject = event.execution_id or f"job {event.job_id}"
    notes: list[str | None] = [
        event.name,
        event.state and f"→ {event.state}",
        event.worker and f"worker {event.worker}",
        None if event.count is None else f"{event.count} times",
        event.error_type,
        event.reason,
    ]
    told = [event.at, event.id, event.queue, subject, event.type, *filter(None, notes)]
    return "  ".join(output.printable(part) for part in told)

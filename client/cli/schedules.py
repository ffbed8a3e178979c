"""`timeball schedule …`: look at schedules before they are anybody's."""

from __future__ import annotations

import click

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks
from timeball.client.cli.scheduling import describe, details, instant, schedule_options
from timeball.client.cli.timetables import fires_table
from timeball.client.messages import Schedule, SchedulePreviewed


@click.group()
def schedule() -> None:
    """Look at schedules without creating anything."""


@schedule.command()
@schedule_options
@click.option("--from", "later_than", help="Fires after this: ISO 8601 or epoch ms. [default: now]")
@click.option("--count", type=click.IntRange(1, 100), default=5, show_default=True)
@asks
def preview(asker: Asker, /, schedule: Schedule | None, later_than: str | None, count: int) -> None:
    """Show when a schedule fires: local and UTC time, and what is unusual about it."""
    if schedule is None:
        raise click.UsageError("which schedule? give --cron, --every, --at, --after or --schedule")
    asked = schedule
    answer = asker.ask(
        lambda client: client.preview_schedule(
            asked, after=None if later_than is None else instant(later_than), count=count
        )
    )
    asker.show(answer, lambda: _previewed(answer))


def _previewed(answer: SchedulePreviewed) -> str:
    head = output.facts([("schedule", describe(answer.schedule)), *details(answer.schedule)])
    return f"{head}\n\n{fires_table(answer.fires) if answer.fires else 'never fires'}"

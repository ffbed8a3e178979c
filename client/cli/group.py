"""The group `timeball`: its own commands, and those that other installed parts bring along.

Commands which need more than the client (a node, the demo) are entry points of the group
"timeball.commands". They are imported when somebody asks for them, so the client stays
light, and their absence is one clear line.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click

from timeball.client.cli.cluster import cluster
from timeball.client.cli.dead import dead
from timeball.client.cli.events import events
from timeball.client.cli.executions import execution
from timeball.client.cli.jobs import job
from timeball.client.cli.queues import queue
from timeball.client.cli.schedules import schedule
from timeball.client.cli.worker import worker
from timeball.client.cli.workers import workers

COMMANDS = "timeball.commands"


class NotInstalled(click.ClickException):
    """A command was asked for whose part is not installed."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group that also offers the commands among the installed entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List own and installed commands."""
        return sorted({*super().list_commands(ctx), *entry_points(group=COMMANDS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Give an own command, or import an installed one."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for entry in entry_points(group=COMMANDS, name=cmd_name):
            return _load(entry)
        return None


def _load(entry: EntryPoint) -> click.Command:
    try:
        command = entry.load()
    except (ImportError, AttributeError) as error:
        return _missing(entry.name, str(error))
    assert isinstance(command, click.Command), f"{entry.value} is not a command"
    return command


def _missing(name: str, why: str) -> click.Command:
    """Make the command that says what to install."""
    hint = "needs more than the client: pip install 'timeball[server]'"

    def tell() -> None:
        raise NotInstalled(f"`timeball {name}` {hint} ({why})")

    return click.Command(
        name,
        callback=tell,
        short_help=f"({hint})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="timeball", prog_name="timeball")
def main() -> None:
    """Timeball, a replicated job scheduler: never early, milliseconds late, nothing lost."""


for _command in (job, execution, dead, queue, events, schedule, cluster, worker, workers):
    main.add_command(_command)

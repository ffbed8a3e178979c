"""`timeball dead …`: look at dead letters, replay and purge them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, get_args

import click

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options, limit_option
from timeball.client.cli.executions import many
from timeball.client.cli.scheduling import instant
from timeball.client.messages import DeadReason, Purged, Replayed

P = ParamSpec("P")

_FILTERS = (
    click.option("--queue", help="Of this queue only."),
    click.option("--job", help="Of this job only."),
    click.option("--error-type", help='Whose last attempt failed with exactly this; "" for none.'),
    click.option("--reason", type=click.Choice(get_args(DeadReason)), help="Dead for this reason."),
    click.option("--died-after", help="Dead since then or later: ISO 8601 or epoch ms."),
    click.option("--died-before", help="Dead since before then: ISO 8601 or epoch ms."),
)


def _filter_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the options that choose dead letters, as its parameter `chosen`."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        chosen: dict[str, Any] = {}
        for name in ("queue", "job", "error_type", "reason", "died_after", "died_before"):
            value = kwargs.pop(name)
            if value is not None:
                chosen[name] = instant(str(value)) if name.startswith("died_") else value
        kwargs["chosen"] = chosen
        command(*args, **kwargs)

    for option in reversed(_FILTERS):
        wrapped = option(wrapped)
    return wrapped


def _move_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command what says which dead letters it moves, by name or by filters."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--limit", type=click.IntRange(1), help="Of those chosen, the newest."),
        click.option("--all", "everything", is_flag=True, help="All dead letters."),
        _filter_options,
        click.argument("execution_ids", nargs=-1),
    ):
        command = option(command)
    return command


@click.group()
def dead() -> None:
    """Look at dead letters, replay and purge them."""


@dead.command(name="list")
@_filter_options
@limit_option
@freshness_options
@asks
def list_dead(asker: Asker, /, chosen: dict[str, Any], limit: int, **fresh: Any) -> None:
    """List dead executions, newest first."""
    views = asker.collect(
        lambda client, page_size: client.dead(page_size=page_size, **chosen, **fresh), limit
    )
    asker.show(views, lambda: many(views))


@dead.command()
@_move_options
@asks
def replay(
    asker: Asker,
    /,
    execution_ids: tuple[str, ...],
    chosen: dict[str, Any],
    everything: bool,
    limit: int | None,
    yes: bool,
) -> None:
    """Give dead executions a new attempt budget: those named, or all that the options choose.

    Exit code 1 if one that was named was not dead.
    """
    if execution_ids:
        _refuse_choice(chosen, everything, limit)
        _tell(asker, asker.ask(lambda client: client.replay(execution_ids)), "replayed")
        return
    _confirm("Replay", chosen, everything, limit, yes)
    count = asker.ask(lambda client: client.replay_matching(limit=limit, **chosen))
    asker.show({"replayed": count}, lambda: f"{count} replayed")


@dead.command()
@_move_options
@asks
def purge(
    asker: Asker,
    /,
    execution_ids: tuple[str, ...],
    chosen: dict[str, Any],
    everything: bool,
    limit: int | None,
    yes: bool,
) -> None:
    """Forget dead executions for good: those named, or all that the options choose.

    Exit code 1 if one that was named was not dead.
    """
    if execution_ids:
        _refuse_choice(chosen, everything, limit)
        _tell(asker, asker.ask(lambda client: client.purge(execution_ids)), "purged")
        return
    _confirm("Purge", chosen, everything, limit, yes)
    count = asker.ask(lambda client: client.purge_matching(limit=limit, **chosen))
    asker.show({"purged": count}, lambda: f"{count} purged")


def _tell(asker: Asker, answers: Sequence[Replayed | Purged], done: str) -> None:
    rows = [(answer.execution_id, answer.status) for answer in answers]
    asker.show(answers, lambda: output.table(["execution", "status"], rows))
    refused = sum(answer.status != done for answer in answers)
    if refused:
        raise click.ClickException(f"{refused} of {len(answers)} were not {done}")


def _refuse_choice(chosen: dict[str, Any], everything: bool, limit: int | None) -> None:
    if chosen or everything or limit is not None:
        raise click.UsageError("name executions, or choose them by options: not both")


def _confirm(
    verb: str, chosen: dict[str, Any], everything: bool, limit: int | None, yes: bool
) -> None:
    """Ask before many are moved at once; what chooses nothing by mistake is refused."""
    if bool(chosen) is everything:
        raise click.UsageError(
            "name executions, choose them by options such as --queue, or give --all instead"
        )
    which = ", ".join(
        f"{name.replace('_', ' ')} {value or 'none'}" for name, value in chosen.items()
    )
    which = f" ({which})" if which else ""
    count = "all dead letters" if limit is None else f"the newest {limit} dead letters"
    if not yes:
        click.confirm(f"{verb} {count}{which}?", abort=True, err=True)

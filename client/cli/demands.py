"""What few jobs ask for, on the command line: keys, requirements, tags and expiry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import click

from timeball.client.cli.durations import DURATION, in_words
from timeball.client.cli.scheduling import instant
from timeball.client.messages import JobView

P = ParamSpec("P")

_FIELDS = ("requires", "tags", "expires_at", "expires_after_ms")
_OPTIONS = (
    click.option(
        "--requires", multiple=True, metavar="TAG", help="What a worker must offer; repeat it."
    ),
    click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="To find the job by; repeat it."
    ),
    click.option(
        "--expires-at",
        help="Skip it if no attempt has begun by this instant: ISO 8601 or epoch ms.",
    ),
    click.option(
        "--expires-after",
        "expires_after_ms",
        type=DURATION,
        help="Skip each run of which no attempt has begun so long after its nominal time.",
    ),
)


def demand_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command these options, as its parameter `demands`: those given."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        given: dict[str, Any] = {name: kwargs.pop(name) for name in _FIELDS}
        demands = {name: value for name, value in given.items() if value not in (None, ())}
        if "expires_at" in demands:
            demands["expires_at"] = instant(demands["expires_at"])
        kwargs["demands"] = demands
        command(*args, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def tell_demands(view: JobView) -> list[tuple[str, object]]:
    """Name and value of what a job asks for."""
    after_ms = view.expires_after_ms
    return [
        ("concurrency key", view.concurrency_key),
        ("requires", list(view.requires)),
        ("tags", list(view.tags)),
        ("expires at", view.expires_at),
        ("expires after", None if after_ms is None else in_words(after_ms)),
    ]

"""Idempotency keys on the command line: the options that give one, and the words that tell one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, get_args

import click

from timeball.client.cli.durations import DURATION
from timeball.client.messages import Idempotency, JobView, KeyScope, KeyUntil, OnDuplicate

P = ParamSpec("P")
_RULE = {
    "key_window_ms": "window_ms",
    "key_scope": "scope",
    "key_until": "until",
    "on_duplicate": "on_duplicate",
}
"""The fields of a rule by their parameters."""

_OPTIONS = (
    click.option("--key", help="Idempotency key: the same key makes no second job while it holds."),
    click.option(
        "--key-window", "key_window_ms", type=DURATION, help="How long the key holds. [1 day]"
    ),
    click.option(
        "--key-until",
        type=click.Choice(get_args(KeyUntil)),
        help="Until when: `job_ends` is for at most one job of the key at a time. [window_ends]",
    ),
    click.option(
        "--key-scope",
        type=click.Choice(get_args(KeyScope)),
        help="Where the key is known. [cluster]",
    ),
    click.option(
        "--on-duplicate",
        type=click.Choice(get_args(OnDuplicate)),
        help="Show the job that has the key, or fail. [return]",
    ),
)


def key_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the options of a key, as its parameter `keyed`: the fields of a create."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        given = {field: kwargs.pop(name) for name, field in _RULE.items()}
        rule = {field: value for field, value in given.items() if value is not None}
        kwargs["keyed"] = _keyed(kwargs.pop("key"), rule)
        command(*args, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _keyed(key: object, rule: dict[str, Any]) -> dict[str, Any]:
    if key is None:
        if rule:
            raise click.UsageError("--key-window and its like go with --key")
        return {}
    if "window_ms" in rule and rule.get("until") == "job_ends":
        raise click.UsageError("--key-window and --key-until job_ends exclude each other")
    if rule.get("window_ms") == 0:
        raise click.UsageError("--key-window must be longer than nothing")
    return {"idempotency_key": key} | ({"idempotency": Idempotency(**rule)} if rule else {})


def tell_key(view: JobView) -> list[tuple[str, str | None]]:
    """Facts about the key of a job: itself, and how it holds."""
    held = view.idempotency
    holds = None
    if held is not None:
        until = f"until {held.expires_at}" if held.expires_at else "until the job has ended"
        holds = f"{until}, in this queue" if held.scope == "queue" else until
    elif view.idempotency_key:
        holds = "no more"
    return [("idempotency key", view.idempotency_key), ("key holds", holds)]

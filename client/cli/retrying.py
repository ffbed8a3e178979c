"""Retry policies on the command line: the options that make one, and the words that tell one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, get_args

import click
import msgspec

from timeball.client.cli.durations import DURATION, in_words
from timeball.client.messages import BackoffName, Retry

P = ParamSpec("P")
_FIELDS = ("max_attempts", "backoff", "max_ms", "jitter_pct", "non_retryable_errors")

_OPTIONS = (
    click.option(
        "--max-attempts",
        type=click.IntRange(1, 10_000),
        help=f"How often it is started at most. [{Retry().max_attempts}]",
    ),
    click.option(
        "--backoff",
        type=click.Choice(get_args(BackoffName)),
        help="How delays before retries follow each other. [exponential]",
    ),
    click.option(
        "--retry-delay",
        "retry_delays",
        type=DURATION,
        multiple=True,
        help="The first delay; given several times, the delays of a list. [1s]",
    ),
    click.option("--retry-cap", "max_ms", type=DURATION, help="The longest delay. [1h]"),
    click.option(
        "--retry-jitter",
        "jitter_pct",
        type=click.IntRange(0, 100),
        help="Per cent of each delay that are left to chance. [20]",
    ),
    click.option(
        "--non-retryable",
        "non_retryable_errors",
        multiple=True,
        help="An error type that is not worth a retry.",
    ),
)


def retry_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the options of a policy, as its parameter `retrying`: those given."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        given = {name: kwargs.pop(name) for name in (*_FIELDS, "retry_delays")}
        kwargs["retrying"] = {
            name: value for name, value in given.items() if value not in (None, ())
        }
        command(*args, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def revised(retry: Retry, retrying: dict[str, Any]) -> Retry:
    """Make the policy that the options ask for out of the one that there is.

    Several delays are a list. One that is longer than the cap raises it, if it was not given.
    """
    fields = {name: retrying[name] for name in _FIELDS if name in retrying}
    delays: tuple[int, ...] = retrying.get("retry_delays", ())
    backoff = fields.setdefault("backoff", "list" if len(delays) > 1 else retry.backoff)
    if len(delays) > 1 and backoff != "list":
        raise click.UsageError(f"several --retry-delay make a list, not --backoff {backoff}")
    if backoff != "list":
        fields["delays_ms"] = ()
    elif delays:
        fields["delays_ms"] = delays
    if delays and backoff != "list":
        fields["initial_ms"] = delays[0]
    fields.setdefault("max_ms", max(*delays, retry.max_ms, 0))
    return msgspec.structs.replace(retry, **fields)


def tell_retry(retry: Retry) -> list[tuple[str, object]]:
    """Name and value of what people want to know of a policy."""
    match retry.backoff:
        case "exponential":
            growth = retry.multiplier_pct / 100
            delays = f"{in_words(retry.initial_ms)}, then {growth:g} times the one before"
        case "linear":
            first = in_words(retry.initial_ms)
            delays = f"{first}, then {first} longer than the one before"
        case "fixed":
            delays = f"always {in_words(retry.initial_ms)}"
        case "list":
            delays = ", ".join(map(in_words, retry.delays_ms))
    if retry.max_attempts == 1:
        return [("attempts", "at most 1")]
    return [
        ("attempts", f"at most {retry.max_attempts}"),
        ("retry after", f"{delays}; at most {in_words(retry.max_ms)}"),
        ("retry jitter", f"{retry.jitter_pct} %"),
        ("non-retryable", list(retry.non_retryable_errors)),
    ]

"""`timeball queue …`: how queues stand; pause, drain and bound them."""

from __future__ import annotations

import re
from typing import Any

import click
from msgspec import UNSET, UnsetType

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options
from timeball.client.cli.durations import DURATION, in_words
from timeball.client.messages import QueueDetails, RateLimit

NONE = "none"
"""What takes a bound away."""


@click.group()
def queue() -> None:
    """Look at queues; pause, drain and bound them."""


class Bound(click.ParamType[int]):
    """A number of executions, or none; becomes 0 for none."""

    name = "number|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse the text; anything else is a usage error."""
        if isinstance(value, int):
            return value
        text = str(value)
        if text == NONE:
            return 0
        if re.fullmatch(r"[1-9][0-9]{0,6}", text) is None or int(text) > 1_000_000:
            self.fail(f"{text!r} is neither a number from 1 to 1000000 nor {NONE}", param, ctx)
        return int(text)


class Rate(click.ParamType[RateLimit]):
    """So many executions in a length of time, such as 100/1s; no executions stand for none."""

    name = "number/length|none"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> RateLimit:
        """Parse the text; anything else is a usage error."""
        if isinstance(value, RateLimit):
            return value
        text = str(value)
        if text == NONE:
            return _NO_RATE
        number, slash, length = text.partition("/")
        if not slash or re.fullmatch(r"[1-9][0-9]{0,6}", number) is None:
            self.fail(f"{text!r} is neither a rate such as 100/1s or 5/1m nor {NONE}", param, ctx)
        return RateLimit(executions=int(number), per_ms=DURATION.convert(length, param, ctx))


_NO_RATE = RateLimit(executions=0)


@queue.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Most lines."
)
@freshness_options
@asks
def list_queues(asker: Asker, /, limit: int, **fresh: Any) -> None:
    """List queues by name."""
    queues = asker.collect(
        lambda client, page_size: client.queues(page_size=page_size, **fresh), limit
    )
    asker.show(queues, lambda: _table(queues))


@queue.command()
@click.argument("name")
@freshness_options
@asks
def show(asker: Asker, /, name: str, **fresh: Any) -> None:
    """Show a queue: its settings, and what it holds."""
    answer = asker.ask(lambda client: client.queue(name, **fresh))
    asker.show(answer, lambda: _facts(answer))


def _if_version(command: Any) -> Any:
    return click.option(
        "--if-version",
        type=click.IntRange(0),
        help="Only if the settings still are at this version.",
    )(command)


@queue.command()
@click.argument("name")
@_if_version
@asks
def pause(asker: Asker, name: str, if_version: int | None) -> None:
    """Hand nothing out; jobs are still taken, and what workers hold goes on."""
    answer = asker.ask(lambda client: client.pause_queue(name, if_version=if_version))
    asker.show(answer, lambda: _facts(answer))


@queue.command()
@click.argument("name")
@_if_version
@asks
def drain(asker: Asker, name: str, if_version: int | None) -> None:
    """Take no new jobs, and work off what is there."""
    answer = asker.ask(lambda client: client.drain_queue(name, if_version=if_version))
    asker.show(answer, lambda: _facts(answer))


@queue.command()
@click.argument("name")
@_if_version
@asks
def resume(asker: Asker, name: str, if_version: int | None) -> None:
    """Let a paused or draining queue take jobs and hand them out; its limits stay."""
    answer = asker.ask(lambda client: client.resume_queue(name, if_version=if_version))
    asker.show(answer, lambda: _facts(answer))


@queue.command("set")
@click.argument("name")
@click.option("--max-concurrency", type=Bound(), help="Executions that workers hold at a time.")
@click.option(
    "--max-concurrency-per-key", type=Bound(), help="The same of jobs with one concurrency key."
)
@click.option("--rate", type=Rate(), help="Executions handed out in a length of time: 100/1s.")
@click.option(
    "--burst",
    type=click.IntRange(1, 1_000_000),
    help="With --rate: so many at once after a pause. Default: as many as the rate's number.",
)
@_if_version
@asks
def set_limits(
    asker: Asker,
    name: str,
    max_concurrency: int | None,
    max_concurrency_per_key: int | None,
    rate: RateLimit | None,
    burst: int | None,
    if_version: int | None,
) -> None:
    """Bound what a queue hands out; "none" takes a bound away, and what is not given stays."""
    if burst is not None and (rate is None or rate is _NO_RATE):
        raise click.UsageError("--burst goes with a --rate")
    if (max_concurrency, max_concurrency_per_key, rate) == (None, None, None):
        raise click.UsageError("nothing to set: give --max-concurrency, …-per-key or --rate")
    limit: RateLimit | UnsetType | None = UNSET
    if rate is not None:
        limit = None
        if rate is not _NO_RATE:
            limit = RateLimit(executions=rate.executions, per_ms=rate.per_ms, burst=burst)
    answer = asker.ask(
        lambda client: client.update_queue(
            name,
            max_concurrency=_bound(max_concurrency),
            max_concurrency_per_key=_bound(max_concurrency_per_key),
            rate_limit=limit,
            if_version=if_version,
        )
    )
    asker.show(answer, lambda: _facts(answer))


def _bound(given: int | None) -> int | UnsetType | None:
    return UNSET if given is None else given or None


def _rate(limit: RateLimit | None) -> str | None:
    if limit is None:
        return None
    return f"{limit.executions}/{in_words(limit.per_ms)}, burst {limit.burst}"


def _facts(view: QueueDetails) -> str:
    return output.facts(
        [
            ("queue", view.name),
            ("state", view.state),
            ("max concurrency", view.max_concurrency),
            ("max concurrency per key", view.max_concurrency_per_key),
            ("rate limit", _rate(view.rate_limit)),
            ("version", view.version),
            ("scheduled", view.scheduled),
            ("ready", view.ready),
            ("leased", view.leased),
            ("dead", view.dead),
            ("waiting claims", view.waiting_claims),
            ("held back by", ", ".join(view.held_back_by or ()) or None),
        ]
    )


def _table(queues: list[QueueDetails]) -> str:
    headings = ["queue", "state", "scheduled", "ready", "leased", "dead", "waiting", "concurrency"]
    return output.table(
        [*headings, "per key", "rate", "version"],
        [
            (
                view.name,
                view.state,
                view.scheduled,
                view.ready,
                view.leased,
                view.dead,
                view.waiting_claims,
                view.max_concurrency,
                view.max_concurrency_per_key,
                _rate(view.rate_limit),
                view.version,
            )
            for view in queues
        ],
    )

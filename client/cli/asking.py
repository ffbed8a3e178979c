"""What every command that asks a cluster shares: where it is, how to answer, how to fail."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast, get_args

import click

from timeball.client.calls import DEFAULT_URLS, parse_urls
from timeball.client.cli import output
from timeball.client.client import Client
from timeball.client.errors import TimeballError
from timeball.client.messages import MAX_BATCH, MAX_INDEX, Consistency

P = ParamSpec("P")
T = TypeVar("T")


class Asker(NamedTuple):
    """A cluster's address, and the form in which the answer is wanted."""

    urls: list[str]
    timeout_ms: int
    as_json: bool

    def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """Ask the cluster; a refusal ends the command with one line and exit code 1."""

        async def run() -> T:
            async with Client(self.urls, timeout_ms=self.timeout_ms) as client:
                return await question(client)

        try:
            return asyncio.run(run())
        except TimeballError as error:
            raise click.ClickException(one_line(error)) from error

    def collect(self, listing: Callable[[Client, int], AsyncIterator[T]], limit: int) -> list[T]:
        """Ask for the first `limit` items of a listing, which is given the size of its pages."""

        async def take(client: Client) -> list[T]:
            items: list[T] = []
            generator = cast("Any", listing(client, min(limit, MAX_BATCH)))
            async with aclosing(generator) as pages:
                async for item in pages:
                    items.append(item)
                    if len(items) >= limit:
                        break
            return items

        return self.ask(take)

    def show(self, answer: object, text: Callable[[], str]) -> None:
        """Print the answer: as JSON if asked for, else as text for people."""
        click.echo(output.as_json(answer) if self.as_json else text())


def one_line(error: TimeballError) -> str:
    """Say in one line what went wrong, with the fields if the detail does not name them."""
    fields = [f"{item.field}: {item.detail}" for item in error.errors]
    missing = [field for field in fields if field.split(":")[0] not in error.detail]
    return " ".join("; ".join([error.detail or error.title, *missing]).split())


def url_option(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the option that says where the cluster is, as its parameter `urls`."""
    return click.option(
        "--url",
        "urls",
        multiple=True,
        envvar="TIMEBALL_URLS",
        default=DEFAULT_URLS,
        show_default=", ".join(DEFAULT_URLS),
        help="A node's URL; repeat it, or separate by commas. [env: TIMEBALL_URLS]",
    )(command)


def nodes_of(urls: Sequence[str]) -> list[str]:
    """Parse what `url_option` was given."""
    try:
        return parse_urls(",".join(urls))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from error


def asks(command: Callable[Concatenate[Asker, P], None]) -> Callable[P, None]:
    """Give a command the options that say where the cluster is."""

    @url_option
    @click.option(
        "--timeout-ms",
        type=click.IntRange(1, 3_600_000),
        default=10_000,
        show_default=True,
        help="How long to try.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        urls = cast("tuple[str, ...]", kwargs.pop("urls"))
        timeout_ms = cast("int", kwargs.pop("timeout_ms"))
        as_json = cast("bool", kwargs.pop("as_json"))
        refuse_bytes(kwargs)
        command(Asker(nodes_of(urls), timeout_ms, as_json), *args, **kwargs)

    return wrapped


def refuse_bytes(parameters: Mapping[str, object]) -> None:
    """Refuse what the shell passed on that is no text: it reaches us as lone surrogates."""
    for name, value in parameters.items():
        for text in value if isinstance(value, tuple) else (value,):
            try:
                str(text).encode()
            except UnicodeEncodeError as error:
                hint = name.replace("_", "-")
                raise click.BadParameter("this is not UTF-8 text", param_hint=hint) from error


def freshness_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the options of a read, by the names that the client's methods have."""
    consistency = click.option(
        "--consistency",
        type=click.Choice(get_args(Consistency)),
        default="applied",
        show_default=True,
        help="applied: what the node asked has applied; strong: all that anybody was answered.",
    )
    min_index = click.option(
        "--min-index",
        type=click.IntRange(0, MAX_INDEX),
        default=0,
        help="Wait until the node has applied this position of the log.",
    )
    return consistency(min_index(command))


def limit_option(command: Callable[P, None]) -> Callable[P, None]:
    """Give a listing its length."""
    return click.option(
        "--limit",
        type=click.IntRange(1, 100_000),
        default=50,
        show_default=True,
        help="Most lines, newest first.",
    )(command)

"""`timeball worker`: run a command or call a URL for each execution, without writing a program."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click

from timeball.client.cli.asking import nodes_of, one_line, refuse_bytes, url_option
from timeball.client.cli.durations import DURATION
from timeball.client.client import Client
from timeball.client.errors import TimeballError
from timeball.client.handlers import Handler
from timeball.client.runners import CommandRunner, WebhookRunner
from timeball.client.worker import Worker

LEASE_MS = (500, 3_600_000)
"""What the cluster grants."""


class Ran(NamedTuple):
    """How a worker is to work."""

    urls: list[str]
    queue: str
    concurrency: int
    lease_ms: int
    drain_ms: int
    name: str | None
    tags: tuple[str, ...]


@click.command()
@click.option("--queue", default="default", show_default=True)
@click.option("--exec", "command", metavar="COMMAND", help="Run this in a shell.")
@click.option("--http", "target", metavar="URL", help="Send this a POST.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=4,
    show_default=True,
    help="How many executions at a time.",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION,
    help="Longest time for one attempt, beside the job's own. [--http: 30s]",
)
@click.option(
    "--retry-after",
    "retry_after_ms",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Until the next attempt after exit code 75, or a 429 or 503 that names no time.",
)
@click.option(
    "--fatal",
    "fatal",
    type=int,
    multiple=True,
    metavar="CODE",
    help="An exit code, or a status, after which there is no further attempt; repeat it. "
    "[--exec: 65; --http: what speaks of the request]",
)
@click.option(
    "--kill-grace",
    "grace_ms",
    type=DURATION,
    help="With --exec: from SIGTERM to SIGKILL, when a command is to end. [5s]",
)
@click.option("--header", "headers", multiple=True, help="With --http: 'Name: value'; repeat it.")
@click.option(
    "--headers-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --http: a file of such headers, one a line, which no list of processes shows.",
)
@click.option(
    "--ca",
    type=click.Path(dir_okay=False),
    help="With --http: verify the server by these authorities, in PEM.",
)
@click.option(
    "--lease",
    "lease_ms",
    type=DURATION,
    default="10s",
    show_default=True,
    help="How long after the end of this machine others may take its executions.",
)
@click.option(
    "--drain",
    "drain_ms",
    type=DURATION,
    default="30s",
    show_default=True,
    help="At SIGTERM: how long what runs may go on. A second one ends it.",
)
@click.option("--name", help="What attempts call this worker. [host, process and chance]")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="What it offers to jobs that require something; repeat it.",
)
@click.option("--quiet", is_flag=True, help="Log no line for each execution.")
@url_option
def worker(
    urls: Sequence[str],
    command: str | None,
    target: str | None,
    quiet: bool,
    queue: str,
    concurrency: int,
    lease_ms: int,
    drain_ms: int,
    name: str | None,
    tags: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a command, or call a URL, for each execution of a queue.

    The payload comes as JSON, on the standard input or as the body. The environment variables
    TIMEBALL_EXECUTION_ID, _JOB_ID, _QUEUE, _TOKEN, _ATTEMPT, _MAX_ATTEMPTS, _NOMINAL_MS, _DUE_MS,
    _TIMEOUT_MS and _IDEMPOTENCY_KEY, or headers of such names, tell the rest. Exit code 0, or a
    status of 2xx, is success, and the output its result. It ends in good order at SIGTERM.
    """
    refuse_bytes({"queue": queue, "exec": command, "http": target, "name": name, "tag": tags})
    if not LEASE_MS[0] <= lease_ms <= LEASE_MS[1]:
        raise click.BadParameter("a lease is 500ms to 1h long", param_hint="--lease")
    if (command is None) == (target is None):
        raise click.UsageError("give --exec COMMAND or --http URL, and not both")
    ran = Ran(nodes_of(urls), queue, concurrency, lease_ms, drain_ms, name, tags)
    _log(quiet)
    if command is not None:
        runner: CommandRunner | WebhookRunner = _command_runner(command, **options)
    else:
        assert target is not None
        runner = _webhook_runner(target, concurrency, **options)
    try:
        asyncio.run(_work(ran, runner))
    except TimeballError as error:
        raise click.ClickException(one_line(error)) from error


async def _work(ran: Ran, runner: CommandRunner | WebhookRunner) -> None:
    entered: AbstractAsyncContextManager[Handler] = (
        runner if isinstance(runner, WebhookRunner) else nullcontext(runner)
    )
    async with Client(ran.urls) as client, entered as handler:
        told = f"working on queue {ran.queue!r}, {ran.concurrency} at a time"
        click.echo(told, err=True)
        await Worker(
            client,
            ran.queue,
            handler,
            concurrency=ran.concurrency,
            lease_ms=ran.lease_ms,
            name=ran.name,
            tags=ran.tags,
        ).run(grace_ms=ran.drain_ms)


def _command_runner(
    command: str, *, grace_ms: int | None, fatal: tuple[int, ...], **options: Any
) -> CommandRunner:
    _refuse(options, "goes with --http", "headers", "headers_file", "ca")
    chosen = {key: options[key] for key in ("timeout_ms", "retry_after_ms")}
    if grace_ms is not None:
        chosen["grace_ms"] = grace_ms
    if fatal:
        chosen["fatal"] = fatal
    try:
        return CommandRunner(command, **chosen)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _webhook_runner(
    url: str,
    most: int,
    *,
    timeout_ms: int | None,
    retry_after_ms: int,
    fatal: tuple[int, ...],
    headers: tuple[str, ...],
    headers_file: Path | None,
    ca: str | None,
    **options: Any,
) -> WebhookRunner:
    _refuse(options, "goes with --exec", "grace_ms")
    chosen: dict[str, Any] = {"retry_after_ms": retry_after_ms, "ca_file": ca}
    if timeout_ms is not None:
        chosen["timeout_ms"] = timeout_ms
    if fatal:
        chosen["fatal"] = fatal
    lines = list(headers)
    try:
        if headers_file is not None:
            lines += headers_file.read_text("utf-8").splitlines()
        return WebhookRunner(url, most=most, extra_headers=_headers(lines), **chosen)
    except (ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error


def _headers(lines: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("a header is written 'Name: value'")
        if name.strip().lower() in map(str.lower, headers):
            raise ValueError(f"the header {name.strip()} is given twice")
        headers[name.strip()] = value.strip()
    return headers


def _refuse(options: dict[str, Any], why: str, *names: str) -> None:
    shown = {"grace_ms": "--kill-grace", "headers": "--header", "headers_file": "--headers-file"}
    for name in names:
        if options.get(name) not in (None, ()):
            raise click.UsageError(f"{shown.get(name, '--' + name)} {why}")


def _log(quiet: bool) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("timeball.runners").setLevel(logging.WARNING if quiet else logging.INFO)

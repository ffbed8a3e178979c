"""What commands that run processes share: telling what happens, and ending in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

T = TypeVar("T")


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Show on stderr what happens: a live line at a terminal, a line for each step elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: click.echo(text, err=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Starting")

        def tell(text: str) -> None:
            progress.update(task, description=text)
            progress.console.print(f"[dim]{text}[/]")

        yield tell


async def until_signalled(running: Coroutine[Any, Any, T]) -> T:
    """Run; an interrupt or a terminal's end cancels it in order, a second one faster."""
    main = asyncio.current_task()
    assert main is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, main.cancel)
    return await running


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that a group is made of, or the one that is none."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error

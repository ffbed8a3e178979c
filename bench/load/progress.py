"""What is shown on stderr while a bench runs: a bar at a terminal, a line a step elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from timeball.bench.load.driver import Show


@contextmanager
def showing() -> Iterator[Show]:
    """Show steps and the share of each that is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:32}"),
        BarColumn(bar_width=40),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda text, share: progress.update(task, description=text, completed=share)


def _lines() -> Show:
    last = ""

    def show(text: str, _share: float) -> None:
        nonlocal last
        step = text.partition(" (")[0]
        if step != last:
            click.echo(step, err=True)
            last = step

    return show

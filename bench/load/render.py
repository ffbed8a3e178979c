"""The table of a bench, for people; everything else stands in the JSON object."""

from __future__ import annotations

import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from timeball.bench.load.figures import MUST_NOT_BE, Figures

_ELSEWHERE = ("settings", "versions", "machine", "account", "fire_lag_hdr")


def failures(figures: Figures) -> list[str]:
    """What must never be, one line each."""
    return [f"{name} = {figures[name]}" for name in MUST_NOT_BE if figures.get(name)]


def render(title: str, figures: Figures) -> None:
    """Print the figures."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    machine = figures["machine"]
    place = (
        f"{machine['cores']} cores, load {machine['load_before']} → {machine['load_after']},"
        f" loop {machine['loop_ns']:g} ns, fdatasync {machine['fdatasync_ms']['p50']:g} ms"
    )
    table = Table(
        title=f"[bold]{title}[/] · {place} · Python {figures['versions']['python']}",
        title_justify="left",
        box=box.ROUNDED,
        show_header=False,
    )
    table.add_column()
    table.add_column(ratio=1)
    for name, value in figures.items():
        if name not in _ELSEWHERE:
            broken = name in MUST_NOT_BE and value
            text = Text(_text(value), "bold red" if broken else "")
            table.add_row(name.replace("_", " "), text)
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " · ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        several_lines = any(isinstance(inner, dict) for inner in value)
        return ("\n" if several_lines else ", ").join(_text(inner) for inner in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value is None else str(value)

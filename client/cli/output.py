"""Answers as text for people: aligned columns, no colours, nothing to install; or as JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import msgspec

MAX_CELL = 60
"""Longer cells are clipped in tables; JSON shows everything."""
NOTHING = "-"


def as_json(answer: object) -> str:
    """Render an answer as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    notes: Iterable[Sequence[str]] = (),
) -> str:
    """Align rows under their headings; numbers to the right. The notes of a row stand below it."""
    lines = [[_cell(value) for value in row] for row in rows]
    if not lines:
        return "nothing"
    numeric = [all(_is_number(line[i]) for line in lines) for i in range(len(headings))]
    widths = [max(map(_width, column)) for column in zip(headings, *lines, strict=True)]
    notes_below = iter(((), *notes))
    told: list[str] = []
    for line in ([heading.upper() for heading in headings], *lines):
        cells = zip(line, widths, numeric, strict=True)
        told.append("  ".join(_pad(cell, width, right) for cell, width, right in cells).rstrip())
        told.extend(f"    {printable(note)}" for note in next(notes_below, ()))
    return "\n".join(told)


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Align names and values, one a line; a value that is None or empty is left out."""
    shown = [(name, value) for name, value in pairs if value not in (None, "", [], {})]
    width = max((_width(name) for name, _ in shown), default=0)
    return "\n".join(f"{_pad(name, width, False)}  {_value(value)}" for name, value in shown)


def block(heading: str, text: str) -> str:
    """Render a text of several lines, set in, below its heading."""
    return "\n".join([heading, *(f"  {printable(line)}" for line in text.splitlines())])


def compact(value: object) -> str:
    """Render a payload or result on one line."""
    return msgspec.json.encode(value).decode()


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    return NOTHING if value is None or value == "" else printable(str(value))


def _cell(value: object) -> str:
    text = _value(value) or NOTHING
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"


def printable(text: str) -> str:
    """Escape what could move the cursor or break the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _is_number(text: str) -> bool:
    return text == NOTHING or text.lstrip("-").isdecimal()


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def _pad(text: str, width: int, right: bool) -> str:
    blank = " " * (width - _width(text))
    return blank + text if right else text + blank

"""Lengths of time on the command line: a number with its unit."""

from __future__ import annotations

import re

import click

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(click.ParamType[int]):
    """A length such as 250ms, 1.5s, 10m, 2h or 1d; becomes milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse the text; a missing or unknown unit is a usage error."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a length such as 250ms, 1.5s, 10m, 2h or 1d", param, ctx)
        return round(float(match[1]) * UNITS_MS[match[2]])


DURATION = Duration()


def in_words(length_ms: int) -> str:
    """Say a length in the largest unit that it is a whole number of, as it could be typed."""
    for unit, unit_ms in sorted(UNITS_MS.items(), key=lambda item: -item[1]):
        if length_ms and length_ms % unit_ms == 0:
            return f"{length_ms // unit_ms}{unit}"
    return "0s"

"""Instants on the wire: ISO 8601 or epoch milliseconds in, RFC 3339 in UTC out."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from timeball.client.errors import InvalidRequest
from timeball.client.messages import MAX_INSTANT_MS

MAX_TEXT: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MILLISECONDS: Final = tuple(f".{millisecond:03d}Z" for millisecond in range(1000))
_GRAMMAR: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d|\d{8}|\d{4}-W\d\d-\d|\d{4}W\d{3})[Tt ]"
    r"(?P<time>(?:[01]\d|2[0-3])(?::?[0-5]\d(?::?[0-5]\d(?:[.,](?P<fraction>\d+))?)?)?)"
    r"(?P<offset>[Zz]|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?",
    re.ASCII,
)
"""What `datetime.fromisoformat` takes besides is an error: it lets any character stand for the T,
reads nothing behind a NUL, and makes three o'clock of 20260101103000Z."""
_EXPECTED: Final = (
    "expected an ISO 8601 instant with an offset, such as 2026-01-01T09:00:00Z, "
    "or epoch milliseconds"
)


def parse_instant(value: str | int, field: str) -> int:
    """Read an instant as epoch milliseconds, rounded up: nothing is ever early.

    Raises InvalidRequest naming `field` for a time without an offset (it would mean
    another instant on each machine), and outside of 1970 to 9999.
    """
    instant_ms = value if isinstance(value, int) else _parse_text(value, field)
    if not 0 <= instant_ms <= MAX_INSTANT_MS:
        raise InvalidRequest.at(field, "the instant is outside of the years 1970 to 9999")
    return instant_ms


def _parse_text(text: str, field: str) -> int:
    found = _GRAMMAR.fullmatch(text) if len(text) <= MAX_TEXT else None
    if found is None:
        raise InvalidRequest.at(field, f"{_EXPECTED}, got {text[:MAX_TEXT]!r}")
    date, time, fraction, offset = found.group("date", "time", "fraction", "offset")
    if offset is None:
        raise InvalidRequest.at(field, f"{text!r} has no offset: add Z or ±hh:mm")
    whole = time if fraction is None else time[: -len(fraction) - 1]
    try:
        second = datetime.fromisoformat(f"{date}T{whole}{offset.upper()}")
    except ValueError as error:  # the 30th of February, the 54th week, 10:3000
        raise InvalidRequest.at(field, f"{_EXPECTED}, got {text!r}") from error
    fraction_ms = -(-int(fraction) * 1000 // 10 ** len(fraction)) if fraction else 0
    return (second - _EPOCH) // _MILLISECOND + fraction_ms


def render_instant(instant_ms: int) -> str:
    """Write epoch milliseconds as RFC 3339, such as 2026-01-01T00:00:00.000Z."""
    assert 0 <= instant_ms <= MAX_INSTANT_MS
    return _render_second(instant_ms // 1000) + _MILLISECONDS[instant_ms % 1000]


@functools.lru_cache(maxsize=1024)
def _render_second(seconds: int) -> str:
    """A large batch shows few different seconds, and formatting one is slow."""
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"


def render_optional(instant_ms: int) -> str | None:
    """Like `render_instant`; 0 stands for an instant that has not come."""
    return render_instant(instant_ms) if instant_ms else None

"""Instants on the wire: ISO 8601 or epoch milliseconds in, RFC 3339 in UTC out."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta

from timeball.client.errors import InvalidRequest
from timeball.client.messages import MAX_INSTANT_MS

MAX_TEXT = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLISECONDS = tuple(f".{millisecond:03d}Z" for millisecond in range(1000))
_CHARACTERS = re.compile(r"[0-9TtWZz:.,+ -]+", re.ASCII)
_EXPECTED = (
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
    # The library takes any character between date and time, and reads no further than a NUL.
    if len(text) > MAX_TEXT or _CHARACTERS.fullmatch(text) is None:
        raise InvalidRequest.at(field, _EXPECTED)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest.at(field, f"{_EXPECTED}, got {text!r}") from error
    if moment.tzinfo is None:
        raise InvalidRequest.at(field, f"{text!r} has no offset: add Z or ±hh:mm")
    return -((_EPOCH - moment) // _MILLISECOND)


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

"""Query parameters of lists, and the opaque cursors that lead from page to page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable
from urllib.parse import parse_qsl

import msgspec

from timeball.client.errors import InvalidRequest
from timeball.client.messages import MAX_BATCH, MAX_TAG, decode_job_id
from timeball.cluster.http.codec import check_queue_name
from timeball.cluster.http.instants import parse_instant
from timeball.cluster.state.listing import ALWAYS, Span

DEFAULT_LIMIT = 100
MAX_PARAMETERS = 20
MAX_CURSOR = 100
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""A page ends before its payloads, or results and errors, exceed this, whatever its limit."""

Position = tuple[int, ...]
"""Where a page ended: a job id, or a job id and a nominal time."""

_cursors = msgspec.msgpack.Decoder(tuple[str, list[int]])


def read_query(query: str, known: Collection[str]) -> dict[str, str]:
    """The parameters of a query; refuses unknown and repeated ones by name."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError as error:
        raise InvalidRequest.at("query", "the query string is malformed") from error
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            expected = ", ".join(sorted(known)) or "none"
            raise InvalidRequest.at(
                name[:100] or "query", f"unknown query parameter; known are: {expected}"
            )
        if name in found:
            raise InvalidRequest.at(name, "given more than once")
        found[name] = value
    return found


def read_limit(parameters: dict[str, str]) -> int:
    """The `limit` of a page."""
    return read_number(parameters, "limit", range(1, MAX_BATCH + 1), DEFAULT_LIMIT)


def read_number(parameters: dict[str, str], name: str, allowed: range, default: int) -> int:
    """A parameter that is a number of a few digits."""
    text = parameters.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) <= 9 and int(text) in allowed:
        return int(text)
    raise InvalidRequest.at(
        name, f"expected an integer from {allowed[0]} to {allowed[-1]}, got {text[:50]!r}"
    )


def read_queue(parameters: dict[str, str]) -> str | None:
    """The `queue` to restrict a list to."""
    queue = parameters.get("queue")
    if queue is not None:
        check_queue_name(queue)
    return queue


def read_job(parameters: dict[str, str]) -> int | None:
    """The `job` to restrict a list to."""
    return read_job_text(parameters.get("job"), "job")


def read_job_text(text: str | None, field: str) -> int | None:
    """The job that a field names, if it names one."""
    if text is None:
        return None
    try:
        return decode_job_id(text)
    except ValueError as error:
        raise InvalidRequest.at(field, str(error)) from error


def read_tag(parameters: dict[str, str]) -> str | None:
    """The `tag` to restrict a list to."""
    tag = parameters.get("tag")
    if tag is not None and not 0 < len(tag) <= MAX_TAG:
        raise InvalidRequest.at("tag", f"expected 1 to {MAX_TAG} characters, got {len(tag)}")
    return tag


def read_choice(parameters: dict[str, str], name: str, choices: Collection[str]) -> str | None:
    """A parameter that is one of a few words."""
    value = parameters.get(name)
    if value is None or value in choices:
        return value
    raise InvalidRequest.at(name, f"expected one of {', '.join(choices)}, got {value[:50]!r}")


def read_instant(parameters: dict[str, str], name: str) -> int | None:
    """A parameter that is an instant, as text or epoch milliseconds."""
    text = parameters.get(name)
    if text is None:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= 16
    return parse_instant(int(text) if digits else text, name)


def read_span(parameters: dict[str, str], what: str) -> Span:
    """The instants that `what`_after and `what`_before leave."""
    after = read_instant(parameters, f"{what}_after")
    before = read_instant(parameters, f"{what}_before")
    return Span(
        ALWAYS.from_ms if after is None else after,
        ALWAYS.before_ms if before is None else before,
    )


def fitting(sizes: Iterable[int]) -> int:
    """How many items, from the first, fit into a page; at least one if there is any."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > MAX_PAGE_BYTES:
            break
        count += 1
    return count


def write_cursor(kind: str, position: Position) -> str:
    """Render where a page of a list of that kind ended."""
    packed = msgspec.msgpack.encode((kind, position))
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def read_cursor(parameters: dict[str, str], kind: str, length: int) -> Position | None:
    """The position that the `cursor` stands for; None for the first page."""
    return read_cursor_text(parameters.get("cursor"), kind, length)


def read_cursor_text(text: str | None, kind: str, length: int) -> Position | None:
    """The same of a cursor in a body."""
    if text is None:
        return None
    try:
        if len(text) > MAX_CURSOR or not text.isascii():
            raise ValueError("too long")
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found_kind, position = _cursors.decode(packed)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidRequest.at("cursor", "not a cursor that this list gave") from error
    if found_kind != kind or len(position) != length or any(part < 0 for part in position):
        raise InvalidRequest.at("cursor", "not a cursor that this list gave")
    return tuple(position)

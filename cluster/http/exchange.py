"""A request and its response as plain values, so that handlers know no web framework."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from timeball.client.errors import InvalidRequest

Form = Literal["json", "msgpack"]
"""The two representations that every message has."""


class Request(msgspec.Struct, eq=False):
    """One request, its body already read whole.

    `headers` are keyed by lower-case names. `answer_form` is what the client accepts,
    `body_form` what it sent (None: nothing).
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    body_form: Form | None = None
    answer_form: Form = "json"
    parameters: dict[str, str] = {}
    """The named parts of the path, as the route matched them."""
    takes_chunks: bool = True
    """Whether the client reads a body in chunks; one that speaks HTTP/1.0 does not."""


class StreamBroken(Exception):
    """A stream ends before it is whole: the client is to see that it was cut off."""


class Stream(msgspec.Struct, eq=False):
    """A body that comes into being while it is sent.

    Its parts are asked for one at a time, the next when the client has taken most of those before;
    they raise nothing but `StreamBroken`. `stalled` is called when it takes nothing any more.
    """

    parts: AsyncGenerator[bytes, None]
    stalled: Callable[[], None]


class Response(msgspec.Struct, eq=False):
    """One response. `undelivered` is called when it could not be written to the client.

    It has either a body or a stream.
    """

    status: int
    body: bytes = b""
    content_type: str = ""
    headers: dict[str, str] = {}
    undelivered: Callable[[], None] | None = None
    stream: Stream | None = None


class Answered(msgspec.Struct, eq=False):
    """What a handler returns: a message that still has to be put into the negotiated form."""

    message: Any
    status: int = 200
    headers: dict[str, str] = {}
    undelivered: Callable[[], None] | None = None


Handler = Callable[[Request], Awaitable["Answered | Response"]]

IDEMPOTENCY_KEY = "idempotency-key"
REQUEST_ID = "timeball-request-id"
MAX_REQUEST_ID = 64
APPLIED_INDEX = "Timeball-Applied-Index"
HOPS = "Timeball-Hops"


def read_header(request: Request, name: str, longest: int) -> str:
    """The value of a header, empty when it was not sent; raises InvalidRequest by its name."""
    value = request.headers.get(name, "")
    if name in request.headers and not 1 <= len(value) <= longest:
        raise InvalidRequest.at(name, f"expected 1 to {longest} characters")
    if not value.isprintable():  # what is not UTF-8 arrives as lone surrogates, not printable
        raise InvalidRequest.at(name, "expected printable characters, in UTF-8")
    return value


def read_request_id(request: Request, field: str | None = None) -> str:
    """The request id, empty when none was sent; raises InvalidRequest by the header's name.

    A body's `field` counts if it has one: a node that forwards a claim adds a header of its own,
    without a look at the body. The header is checked nevertheless.
    """
    header = read_header(request, REQUEST_ID, MAX_REQUEST_ID)
    return field or header

"""HTTP/1.1 as bytes: requests parsed within limits, heads of answers rendered.

httptools parses; here is what a node makes of it. Whatever is refused becomes an arrival
too, so that its problem document is sent in its turn.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from http import HTTPStatus
from types import SimpleNamespace
from typing import NoReturn

import msgspec
from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)

from timeball.client.errors import (
    InvalidRequest,
    TimeballError,
    TooLarge,
    UnsupportedMediaType,
)
from timeball.client.messages import MAX_BODY_BYTES, FieldError
from timeball.cluster.http.exchange import Request, Response
from timeball.cluster.http.heads import KnownHeads

_log = logging.getLogger(__name__)

MAX_HEADERS = 64
MAX_HEADER_BYTES = 8_190
"""Of one header, its name and value together; also of the target."""
MAX_HEAD_BYTES = 65_536
"""Of a whole head, and of what follows the last byte of a body, give or take one slice."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus
}
_WITHOUT_LENGTH = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


class Arrival(msgspec.Struct, eq=False):
    """A request that is whole, or that is refused before the application sees it."""

    request: Request
    refusal: TimeballError | None = None
    keep_alive: bool = False
    """Whether the client wants to ask again on this connection, and may."""


class RequestParser:
    """Turns the bytes of one connection into arrivals.

    At any time at most one of `in_head` and `in_body` holds: a part of a request is there
    and more has to come. Once `closed`, no further request can be told from the bytes.
    """

    __slots__ = (
        "_barren",
        "_body",
        "_fields",
        "_fruitful",
        "_heads",
        "_http",
        "_keep_alive",
        "_request",
        "_target",
        "arrivals",
        "awaits_continue",
        "closed",
        "in_body",
        "in_head",
    )

    def __init__(self, heads: KnownHeads) -> None:
        """`heads` are those that any connection has read before."""
        self._heads = heads
        self.arrivals: deque[Arrival] = deque()
        self.closed = False
        self.in_head = False
        self.in_body = False
        self.awaits_continue = False
        """The client holds the body back until it is told to go on."""
        self._http = HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._request: Request | None = None  # until its head is whole
        self._keep_alive = False
        self._body: bytes | bytearray = b""
        self._barren = 0  # bytes since the last that began or completed a head, or brought a body
        self._fruitful = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes; raises nothing, what is no HTTP becomes a refused arrival."""
        if self.in_head or self.in_body or self.closed:
            self._parse(data)
        elif (request := self._heads.read(data)) is not None:
            self._barren = 0
            self.arrivals.append(Arrival(request, None, True))
        else:
            before = len(self.arrivals)
            self._parse(data)
            whole = not (self.in_head or self.in_body or self.closed)
            if whole and len(self.arrivals) == before + 1:
                self._heads.learn(data, self.arrivals[-1].request)

    def _parse(self, data: bytes) -> None:
        size = len(data)
        self._fruitful = False
        while data and not self.closed:
            try:
                self._http.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                data = self._ignore_upgrade() + data[upgrade.args[0] :]
            except HttpParserError as error:
                if self.closed:  # by ourselves
                    break
                if isinstance(error, HttpParserCallbackError):
                    _log.error("a request failed in being parsed", exc_info=error)
                self._refuse_malformed(str(error))
        self._barren = 0 if self._fruitful else self._barren + size
        if self._barren > MAX_HEAD_BYTES and (self.in_head or self.in_body):
            self._refuse_malformed(f"a head of more than {MAX_HEAD_BYTES} bytes")

    def refuse(self, error: TimeballError) -> None:
        """Give up what is under way: the answer is `error`, and nothing is parsed any more."""
        self.arrivals.append(Arrival(self._request or Request("", ""), error))
        self.in_head = self.in_body = self.awaits_continue = False
        self.closed = True
        self._body = b""

    # --- what httptools calls ------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A first byte."""
        self._target = b""
        self._fields = []
        self._request = None
        self._fruitful = True
        self.in_head = True

    def on_url(self, part: bytes) -> None:
        """A part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header, or a trailer, which nobody reads; `feed` bounds how many there can be."""
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole: what it announces may be refused before it is read."""
        if len(self._target) > MAX_HEADER_BYTES:
            self._fail(InvalidRequest.at("request", f"a target beyond {MAX_HEADER_BYTES} bytes"))
        if len(self._fields) > MAX_HEADERS:
            self._fail(InvalidRequest.at("request", f"more than {MAX_HEADERS} headers"))
        headers: dict[str, str] = {}
        for name, value in self._fields:
            if len(name) + len(value) > MAX_HEADER_BYTES:
                detail = f"a header beyond {MAX_HEADER_BYTES} bytes"
                self._fail(InvalidRequest.at("request", detail))
            headers[_header_name(name)] = value.decode("utf-8", "surrogateescape").strip(" \t")
        path, _, query = self._target.decode("utf-8", "surrogateescape").partition("?")
        self._request = Request(self._http.get_method().decode("ascii"), path, query, headers)
        self._keep_alive = self._http.should_keep_alive()
        self._request.takes_chunks = self._http.get_http_version() != "1.0"
        self.in_head = False
        self._fruitful = True
        length = int(headers.get("content-length") or 0)
        if not length and "transfer-encoding" not in headers:
            return
        self.in_body = True
        if length > MAX_BODY_BYTES:
            self._fail(_too_large())
        encoding = headers.get("content-encoding")
        if encoding is not None and encoding.lower() != "identity":
            detail = f"Content-Encoding {encoding[:50]!r}: send the body as it is"
            self._fail(UnsupportedMediaType(detail))
        expectation = headers.get("expect")
        self.awaits_continue = expectation is not None and expectation.lower() == "100-continue"

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        self.awaits_continue = False
        self._fruitful = True
        if len(self._body) + len(part) > MAX_BODY_BYTES:
            self._fail(_too_large())
        if not self._body:
            self._body = part
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += part

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self.in_body and self._http.should_upgrade():
            return  # so httptools says, but the body that the head announced is still to come
        self.in_body = self.awaits_continue = False
        request = self._request
        assert request is not None, "its head came first"
        request.body = bytes(self._body)
        self._body = b""
        self.closed = not self._keep_alive
        self.arrivals.append(Arrival(request, None, self._keep_alive))

    # --- particulars -----------------------------------------------------------------------

    def _ignore_upgrade(self) -> bytes:
        """Serve on in HTTP/1.1, as a server may that is asked for another protocol.

        Returns what has to be parsed first. httptools takes all that follows such a head for
        the other protocol. A body that belongs to it is read by a parser of its own, which
        does not tell where the body ends, so this is the connection's last request.
        """
        if not self.in_body:
            self._http = HttpRequestParser(self)
            return b""
        assert self._request is not None, "its head came first"
        headers = self._request.headers
        self._keep_alive = False
        body_only = SimpleNamespace(
            on_body=self.on_body, on_message_complete=self.on_message_complete
        )
        self._http = HttpRequestParser(body_only)
        framing = next(name for name in ("content-length", "transfer-encoding") if name in headers)
        return f"POST / HTTP/1.1\r\n{framing}: {headers[framing]}\r\n\r\n".encode()

    def _refuse_malformed(self, detail: str) -> None:
        if self.in_body:
            self.refuse(InvalidRequest.at("body", "the transfer is malformed"))
        else:
            self.refuse(InvalidRequest.at("request", detail or "it cannot be parsed"))

    def _fail(self, error: TimeballError) -> NoReturn:
        """Refuse from within the parser, which then stops."""
        self.refuse(error)
        raise HttpParserError("refused")


LAST_CHUNK = b"0\r\n\r\n"


def render_chunk(part: bytes) -> bytes:
    """One part of a body whose length is not known beforehand; an empty one would end it."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def render_head(response: Response, *, date: str, connection: str, chunked: bool = True) -> bytes:
    """The head of an answer; `date` and `connection` are left out when they are empty.

    A stream that is not `chunked` ends with the connection.
    """
    lines = [_opening(response.status, date, response.content_type, connection)]
    if response.stream is not None:
        if chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
    elif response.status not in _WITHOUT_LENGTH:
        lines.append(f"Content-Length: {len(response.body)}\r\n")
    for name, value in response.headers.items():
        assert value.isprintable(), "no header may smuggle in another one"
        lines.append(f"{name}: {value}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode()


@functools.lru_cache(maxsize=64)
def _opening(status: int, date: str, content_type: str, connection: str) -> str:
    """What most heads of a second have in common."""
    opening = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
    if date:
        opening += f"Date: {date}\r\n"
    if content_type:
        opening += f"Content-Type: {content_type}\r\n"
    if connection:
        opening += f"Connection: {connection}\r\n"
    return opening


@functools.lru_cache(maxsize=256)
def _header_name(name: bytes) -> str:
    """Clients write the names of the same few headers each in their own way."""
    return name.decode("latin-1").lower()


def _too_large() -> TooLarge:
    detail = f"more than {MAX_BODY_BYTES} bytes"
    return TooLarge(f"body: {detail}", errors=[FieldError(field="body", detail=detail)])

"""A lean HTTP/1.1 client for load generators: one request at a time over a kept connection.

A generator that spends more on a request than the server does measures itself. This one
knows only what the load needs: POST and GET with a length-delimited body. `Line` keeps a
connection to whichever node leads and repeats a request whose outcome is unknown, which the
protocol makes safe through request ids and tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import cast
from urllib.parse import urlsplit

import msgspec

from timeball.client.messages import ClusterView

PAUSE_S = 0.02
"""Between two tries to reach a leader."""
STUCK_S = 15.0
"""A request without an answer for so long is given up with its connection, and repeated."""
INTERNAL_ERROR = 500
UNAVAILABLE = (INTERNAL_ERROR, 503)
BUSY = (429, 503)
"""What `Line.post` returns when the cluster has no room for the request at present."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_OVERLOADED = b"urn:timeball:problem:overloaded"
_views = msgspec.msgpack.Decoder(ClusterView)

Address = tuple[str, int]
Answer = tuple[int, bytes]


class Lost(ConnectionError):
    """The connection ended before the answer: the outcome is unknown."""


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._buffer = bytearray()
        self._status = 0
        self._body_at = 0
        self._end = 0
        self._host = b""

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connect; raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, *address)
        connection._host = b"%s:%d" % (address[0].encode(), address[1])
        return connection

    @property
    def closed(self) -> bool:
        """Whether another connection is needed."""
        return self._transport is None or self._transport.is_closing()

    def get(self, path: bytes) -> asyncio.Future[Answer]:
        """Ask; the answer in MessagePack."""
        return self._send(
            b"GET %s HTTP/1.1\r\nHost: %s\r\nAccept: application/msgpack\r\n\r\n"
            % (path, self._host)
        )

    def post(self, path: bytes, body: bytes, extra: bytes = b"") -> asyncio.Future[Answer]:
        """Send a MessagePack body; `extra` are whole header lines."""
        head = (
            b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/msgpack\r\n"
            b"Content-Length: %d\r\n%s\r\n" % (path, self._host, len(body), extra)
        )
        return self._send(head + body)

    def close(self) -> None:
        """End the connection; a request under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, request: bytes) -> asyncio.Future[Answer]:
        assert self._answer is None, "one request at a time"
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            answer.set_exception(Lost("closed"))
            return answer
        self._answer = answer
        self._transport.write(request)
        return answer

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """A part of an answer, or a whole one."""
        self._buffer += data
        if not self._end and not self._read_head():
            return
        if len(self._buffer) < self._end:
            return
        body = bytes(self._buffer[self._body_at : self._end])
        del self._buffer[: self._end]
        self._end = 0
        answer, self._answer = self._answer, None
        if answer is None:
            self.close()  # an answer to nothing
        elif not answer.done():
            answer.set_result((self._status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ended by either side."""
        self._transport = None
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(Lost(str(exc or "closed by the node")))

    def _read_head(self) -> bool:
        at = self._buffer.find(_HEAD_END)
        if at < 0:
            return False
        length = _LENGTH.search(self._buffer, 0, at)
        if length is None:
            self.close()  # no node sends such an answer
            return False
        self._status = int(self._buffer[9:12])
        self._body_at = at + len(_HEAD_END)
        self._end = self._body_at + int(length[1])
        return True


class Leaders:
    """Which node leads, as far as this process knows; asked again when a line suspects it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._addresses = [_address(url) for url in urls]
        self._current: Address | None = None
        self._search = asyncio.Lock()

    async def find(self) -> Address:
        """Wait for a node that leads and serves."""
        while self._current is None:
            async with self._search:
                if self._current is None:
                    self._current = await self._ask_all()
            if self._current is None:
                await asyncio.sleep(PAUSE_S)
        return self._current

    def suspect(self, address: Address) -> None:
        """It didn't answer as a leader does."""
        if self._current == address:
            self._current = None

    async def _ask_all(self) -> Address | None:
        for address in self._addresses:
            view = await _ask(address)
            if view is not None and view.serving:
                return address
        return None


def _address(url: str) -> Address:
    parts = urlsplit(url)
    assert parts.hostname is not None, url
    return parts.hostname, parts.port or 80


async def _ask(address: Address) -> ClusterView | None:
    try:
        async with asyncio.timeout(1.0):
            connection = await Connection.open(address)
            try:
                status, body = await connection.get(b"/v1/cluster")
            finally:
                connection.close()
    except (OSError, TimeoutError):
        return None
    return _views.decode(body) if status == 200 else None


class Line:
    """A connection to whoever leads, for one request at a time."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._address: Address | None = None
        self._connection: Connection | None = None
        self._sent_at: float | None = None
        self.repeats = 0
        """Requests sent again because the outcome of the first was unknown or nobody led."""
        self.internal_errors = 0
        """Answers among these that told of a defect of the node."""

    async def post(self, path: bytes, body: bytes, extra: bytes = b"") -> Answer:
        """Send until a node answers that can; the answer may be that it has no room (`BUSY`)."""
        loop = asyncio.get_running_loop()
        while True:
            connection = await self._connected()
            self._sent_at = loop.time()
            try:
                status, answer = await connection.post(path, body, extra)
                if status not in UNAVAILABLE or _OVERLOADED in answer:
                    return status, answer
                self.internal_errors += status == INTERNAL_ERROR
            except Lost:
                self.close()
            finally:
                self._sent_at = None
            self.repeats += 1
            await self._elsewhere()

    async def connect(self) -> None:
        """Have a connection before the first request needs it."""
        await self._connected()

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def drop_if_stuck(self, now: float) -> None:
        """Give a connection up whose request has gone unanswered for too long."""
        if self._sent_at is not None and now - self._sent_at > STUCK_S:
            self.close()

    async def _connected(self) -> Connection:
        while self._connection is None or self._connection.closed:
            self._address = await self._leaders.find()
            try:
                self._connection = await Connection.open(self._address)
            except OSError:
                await self._elsewhere()
        return self._connection

    async def _elsewhere(self) -> None:
        self.close()
        if self._address is not None:
            self._leaders.suspect(self._address)
        await asyncio.sleep(PAUSE_S)


@contextlib.asynccontextmanager
async def watching(lines: Sequence[Line]) -> AsyncIterator[None]:
    """Drop stuck connections of these lines meanwhile, and close all in the end."""
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        while True:
            await asyncio.sleep(1.0)
            for line in lines:
                line.drop_if_stuck(loop.time())

    task = loop.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        for line in lines:
            line.close()

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
from collections.abc import AsyncIterator, Callable, Sequence
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
Ended = Callable[[Answer | None], None]
"""Called with the answer; with None when the connection ended before: the outcome is unknown."""
Then = Callable[[int, bytes], None]
"""Called with the status and the body of an answer."""


class Lost(ConnectionError):
    """The connection ended before the answer: the outcome is unknown."""


class Connection(asyncio.Protocol):
    """One connection with at most one request under way.

    An answer is handed to a callback within the turn that read it: a task to be woken for it
    would cost as much as all the rest.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._ended: Ended | None = None
        self._buffer = bytearray()
        """What has come of an answer that came in parts."""
        self._status = 0
        self._body_at = 0
        self._end = 0
        """Length of the answer under way; 0: its head is not complete."""
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

    async def get(self, path: bytes) -> Answer:
        """Ask; the answer in MessagePack. Raises Lost."""
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def ended(answer: Answer | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._send(
            b"GET %b HTTP/1.1\r\nHost: %b\r\nAccept: application/msgpack\r\n\r\n"
            % (path, self._host),
            ended,
        )
        answer = await answered
        if answer is None:
            raise Lost
        return answer

    def post(self, path: bytes, body: bytes, ended: Ended, extra: bytes = b"") -> None:
        """Send a MessagePack body; `extra` are whole header lines."""
        self._send(
            b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/msgpack\r\n"
            b"Content-Length: %d\r\n%b\r\n%b" % (path, self._host, len(body), extra, body),
            ended,
        )

    def close(self) -> None:
        """End the connection; a request under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self, request: bytes, ended: Ended) -> None:
        assert self._ended is None, "one request at a time"
        if self._transport is None or self._transport.is_closing():
            ended(None)
            return
        self._ended = ended
        self._transport.write(request)

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """A part of an answer, or a whole one, which is the rule."""
        buffer = self._buffer
        came: bytes | bytearray = data
        if buffer:
            buffer += data
            came = buffer
        if (not self._end and not self._read_head(came)) or len(came) < self._end:
            if not buffer:
                buffer += data
            return
        ended, self._ended = self._ended, None
        if ended is None or len(came) > self._end:
            self._ended = ended
            self.close()  # an answer to nothing
            return
        body = bytes(came[self._body_at :])
        buffer.clear()
        self._end = 0
        ended((self._status, body))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Ended by either side."""
        self._transport = None
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(None)

    def _read_head(self, came: bytes | bytearray) -> bool:
        at = came.find(_HEAD_END)
        if at < 0:
            return False
        length = _LENGTH.search(came, 0, at)
        if length is None:
            self.close()  # no node sends such an answer
            return False
        self._status = int(came[9:12])
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
        self._loop = asyncio.get_running_loop()
        self._address: Address | None = None
        self._connection: Connection | None = None
        self._request = (b"", b"", b"")
        self._then: Then | None = None
        self._sent_at: float | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._closed = False
        self.repeats = 0
        """Requests sent again because the outcome of the first was unknown or nobody led."""
        self.internal_errors = 0
        """Answers among these that told of a defect of the node."""

    def post(self, path: bytes, body: bytes, then: Then, extra: bytes = b"") -> None:
        """Send until a node answers that can; the answer may be that it has no room (`BUSY`)."""
        assert self._then is None, "one request at a time"
        self._request = (path, body, extra)
        self._then = then
        self._send()

    async def connect(self) -> None:
        """Have a connection before the first request needs it."""
        while self._connection is None or self._connection.closed:
            self._address = await self._leaders.find()
            try:
                self._connection = await Connection.open(self._address)
            except OSError:
                await self._elsewhere()

    def close(self) -> None:
        """Give the connection up, and a request under way."""
        self._closed = True
        if self._recovery is not None:
            self._recovery.cancel()
        if self._connection is not None:
            self._connection.close()

    def drop_if_stuck(self, now: float) -> None:
        """Give a connection up whose request has gone unanswered for too long."""
        stuck = self._sent_at is not None and now - self._sent_at > STUCK_S
        if stuck and self._connection is not None:
            self._connection.close()

    def _send(self) -> None:
        if self._connection is None or self._connection.closed:
            self._recovery = self._loop.create_task(self._send_connected())
            return
        self._sent_at = self._loop.time()
        path, body, extra = self._request
        self._connection.post(path, body, self._ended, extra)

    def _ended(self, answer: Answer | None) -> None:
        self._sent_at = None
        if answer is not None:
            status, body = answer
            if status not in UNAVAILABLE or _OVERLOADED in body:
                then, self._then = self._then, None
                assert then is not None
                then(status, body)
                return
            self.internal_errors += status == INTERNAL_ERROR
        if not self._closed:
            self.repeats += 1
            self._recovery = self._loop.create_task(self._send_elsewhere())

    async def _send_connected(self) -> None:
        await self.connect()
        self._send()

    async def _send_elsewhere(self) -> None:
        await self._elsewhere()
        await self._send_connected()

    async def _elsewhere(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
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

"""The way from a client to the node beside it: requests as values, without sockets or bytes.

What a socket would show is shown: a request that is given up, by its client or by its time, is
cancelled in the node, as one whose connection closes is; and the way can be cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from timeball.client.failover import Trouble
from timeball.client.flow import NoReply, Reply, Send, Steps
from timeball.client.transport import drive
from timeball.cluster.http.exchange import Request, Response, Stream, StreamBroken

T = TypeVar("T")


class Way:
    """The way to one node, shared by all its clients: open, cut for a while, or gone."""

    def __init__(self, handle: Callable[[Request], Awaitable[Response]]) -> None:
        self._handle = handle
        self._cut = False
        self._gone = False
        self._under_way: set[asyncio.Timeout] = set()

    def cut(self) -> None:
        """Lose what is under way, and let nothing through until `mend`."""
        self._cut = True
        now_s = asyncio.get_running_loop().time()
        for limit in self._under_way:
            limit.reschedule(now_s)

    def mend(self) -> None:
        """Let requests through again."""
        self._cut = False

    def end(self) -> None:
        """The node is no more: who asks still has a mistake, and is told so at once."""
        self._gone = True
        self.cut()

    async def send(self, send: Send) -> Reply | NoReply:
        """Have one request answered by the node. Raises RuntimeError when there is none."""
        response = await self._ask(send)
        return response if isinstance(response, NoReply) else _reply(response)

    async def open(self, send: Send) -> DirectStream | Reply | NoReply:
        """Have a stream begun by the node; raises as `send` does."""
        response = await self._ask(send)
        if isinstance(response, NoReply):
            return response
        return _reply(response) if response.stream is None else DirectStream(self, response.stream)

    async def next_part(self, parts: AsyncGenerator[bytes, None]) -> bytes | NoReply:
        """Wait for the next part of a stream: empty at its end."""
        if self._cut:
            return NoReply(Trouble.BROKEN, "the network is cut")
        try:
            async with asyncio.timeout(None) as limit:
                self._under_way.add(limit)
                try:
                    return await anext(parts, b"")
                finally:
                    self._under_way.discard(limit)
        except StreamBroken:
            return NoReply(Trouble.BROKEN, "the node ended the stream")
        except TimeoutError:
            return NoReply(Trouble.BROKEN, "the network is cut")

    async def _ask(self, send: Send) -> Response | NoReply:
        self._check()
        if self._cut:
            return NoReply(Trouble.UNREACHABLE, "the network is cut")
        path, _, query = send.path.partition("?")
        request = Request(
            method=send.method,
            path=path,
            query=query,
            headers={name.lower(): value for name, value in send.headers.items()},
            body=send.body or b"",
        )
        try:
            async with asyncio.timeout(send.timeout_ms / 1_000) as limit:
                self._under_way.add(limit)
                try:
                    return await self._handle(request)
                finally:
                    self._under_way.discard(limit)
        except TimeoutError:
            self._check()
            if self._cut:
                return NoReply(Trouble.BROKEN, "the network is cut")
            return NoReply(Trouble.TIMED_OUT, f"{send.timeout_ms} ms passed")

    def _check(self) -> None:
        if self._gone:
            raise RuntimeError("the cluster has ended: stop workers and await calls before it does")


def _reply(response: Response) -> Reply:
    return Reply(
        status=response.status,
        content_type=response.content_type,
        body=response.body,
        retry_after=response.headers.get("Retry-After", ""),
        applied_index=response.headers.get("Timeball-Applied-Index", ""),
    )


class DirectStream:
    """An answer of the node that comes in parts."""

    def __init__(self, way: Way, stream: Stream) -> None:
        self._way = way
        self._parts = stream.parts

    async def read(self) -> bytes | NoReply:
        """Wait for the next part: empty at the end, NoReply when it broke before."""
        return await self._way.next_part(self._parts)

    async def close(self) -> None:
        """Read no more."""
        await self._parts.aclose()


class DirectTransport:
    """The transport of one `Client`."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._closed = False

    async def drive(self, steps: Steps[T]) -> T:
        """Take a flow to its end: its value or its exception."""
        if self._closed:
            raise RuntimeError("the client is closed")
        return await drive(steps, self._way.send)

    async def open(self, send: Send) -> DirectStream | Reply | NoReply:
        """Send a request for a stream; anything but a success is read whole."""
        if self._closed:
            raise RuntimeError("the client is closed")
        return await self._way.open(send)

    async def close(self) -> None:
        """Refuse further requests."""
        self._closed = True


class Runs(Protocol):
    """What runs a coroutine of the cluster's loop to its end, from any thread."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class SteppedStream:
    """A stream of one `SyncClient`: the cluster's loop runs until there is more."""

    def __init__(self, stream: DirectStream, run: Runs) -> None:
        self._stream = stream
        self._run = run

    async def read(self) -> bytes | NoReply:
        """Wait for the next part: empty at the end, NoReply when it broke before."""
        return self._run(self._stream.read())

    async def close(self) -> None:
        """Read no more."""
        self._run(self._stream.close())


class SteppedTransport:
    """The transport of one `SyncClient`: the cluster's loop runs until a request is answered."""

    def __init__(self, way: Way, run: Runs) -> None:
        self._direct = DirectTransport(way)
        self._run = run

    async def drive(self, steps: Steps[T]) -> T:
        """Take a flow to its end; never waits for the loop of whoever calls."""
        return self._run(self._direct.drive(steps))

    async def open(self, send: Send) -> SteppedStream | Reply | NoReply:
        """Send a request for a stream; never waits for the loop of whoever calls."""
        opened = self._run(self._direct.open(send))
        return SteppedStream(opened, self._run) if isinstance(opened, DirectStream) else opened

    async def close(self) -> None:
        """Refuse further requests."""
        await self._direct.close()

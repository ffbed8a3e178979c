"""The asynchronous transport: drives a flow over aiohttp. The only place that knows sockets."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp
from yarl import URL

from timeball.client.event_stream import SILENCE_MS
from timeball.client.failover import Trouble
from timeball.client.flow import NoReply, Pause, Reply, Send, Steps

T = TypeVar("T")

MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Largest answer: a full claim of full payloads is 64 MiB and some."""
CONNECT_TIMEOUT_MS = 1_000
WHOLE_BYTES = 1024 * 1024
"""Largest body that is handed to a socket in one piece."""


async def drive(steps: Steps[T], send: Callable[[Send], Awaitable[Reply | NoReply]]) -> T:
    """Take a flow to its end in an event loop: its value or its exception."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                await asyncio.sleep(step.pause_ms / 1_000)
                step = steps.send(None)
            else:
                step = steps.send(await send(step))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()


class AsyncTransport:
    """Sockets for flows; opens its session with the first request, within the running loop."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def drive(self, steps: Steps[T]) -> T:
        """Take a flow to its end: its value or its exception."""
        return await drive(steps, self.send)

    async def send(self, send: Send) -> Reply | NoReply:
        """Send one request to one node; redirects are never followed."""
        connect_s = min(CONNECT_TIMEOUT_MS, send.timeout_ms) / 1_000
        try:
            async with self._open().request(
                send.method,
                URL(send.url + send.path, encoded=True),
                headers=send.headers,
                data=_streamed(send.body),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=send.timeout_ms / 1_000, sock_connect=connect_s
                ),
            ) as response:
                return await _whole(response)
        except (aiohttp.ClientError, OSError) as error:
            return _no_reply(error, send.timeout_ms)

    async def open(self, send: Send) -> OpenedStream | Reply | NoReply:
        """Send a request for a stream; anything but a success is read whole."""
        connect_s = min(CONNECT_TIMEOUT_MS, send.timeout_ms) / 1_000
        timeout = aiohttp.ClientTimeout(sock_connect=connect_s, sock_read=SILENCE_MS / 1_000)
        url = URL(send.url + send.path, encoded=True)
        asked = self._open().request(
            send.method, url, headers=send.headers, allow_redirects=False, timeout=timeout
        )
        try:
            async with asyncio.timeout(send.timeout_ms / 1_000):
                response = await asked
            if 200 <= response.status < 300:
                return OpenedStream(response)
            async with response:
                return await _whole(response)
        except (aiohttp.ClientError, OSError) as error:
            return _no_reply(error, send.timeout_ms)

    async def close(self) -> None:
        """Close all connections; requests under way fail. Further requests are refused."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


class OpenedStream:
    """An answer that comes in parts."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def read(self) -> bytes | NoReply:
        """Wait for the next part: empty at the end, NoReply when it broke before."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            return _no_reply(error)

    async def close(self) -> None:
        """Read no more."""
        self._response.close()


def _no_reply(error: aiohttp.ClientError | OSError, timeout_ms: int | None = None) -> NoReply:
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return NoReply(Trouble.UNREACHABLE, _cause(error))
    if isinstance(error, TimeoutError):
        return NoReply(
            Trouble.TIMED_OUT, f"{timeout_ms} ms passed" if timeout_ms else "it was silent"
        )
    return NoReply(Trouble.BROKEN, _cause(error))


async def _whole(response: aiohttp.ClientResponse) -> Reply:
    return Reply(
        status=response.status,
        content_type=response.headers.get("Content-Type", ""),
        body=await _bounded(response),
        retry_after=response.headers.get("Retry-After", ""),
        applied_index=response.headers.get("Timeball-Applied-Index", ""),
    )


def _streamed(body: bytes | None) -> bytes | io.BytesIO | None:
    """Have a large body sent piece by piece: whole, it would hold up the loop."""
    return body if body is None or len(body) <= WHOLE_BYTES else io.BytesIO(body)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer exceeds {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _cause(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error)
    return str(error) or type(error).__name__

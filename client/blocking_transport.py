"""The synchronous transport: drives a flow over the standard library's HTTP, in any thread.

Connections are kept alive and shared by all threads; each is in one thread's hands while its
request is under way.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from timeball.client.event_stream import SILENCE_MS
from timeball.client.failover import Trouble
from timeball.client.flow import NoReply, Pause, Reply, Send, Steps
from timeball.client.transport import CONNECT_TIMEOUT_MS, MAX_ANSWER_BYTES

T = TypeVar("T")

PART_BYTES = 64 * 1024
"""Most of a stream that is read in one go."""


class BlockingTransport:
    """Sockets for flows: at most `connections` idle ones are kept.

    `drive` is a coroutine that never waits for a loop, so that whoever steps it once has its
    end: see `timeball.client.blocking`.
    """

    def __init__(
        self,
        connections: int,
        now_ms: Callable[[], int],
        pause: Callable[[float], None],
    ) -> None:
        self._connections = connections
        self._now_ms = now_ms
        self._pause = pause
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._guard = threading.Lock()
        self._closed = False

    async def drive(self, steps: Steps[T]) -> T:
        """Take a flow to its end: its value or its exception."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    self._pause(step.pause_ms / 1_000)
                    step = steps.send(None)
                else:
                    step = steps.send(self.send(step))
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()

    def send(self, send: Send) -> Reply | NoReply:
        """Send one request to one node; redirects are never followed."""
        by_ms = self._now_ms() + send.timeout_ms
        try:
            connection = self._take(send.url)
            if connection.sock is None:
                connection.timeout = min(CONNECT_TIMEOUT_MS, send.timeout_ms) / 1_000
                connection.connect()
        except OSError as error:
            return NoReply(Trouble.UNREACHABLE, _cause(error))
        try:
            reply = self._exchange(connection, send, by_ms)
        except TimeoutError:
            connection.close()
            return NoReply(Trouble.TIMED_OUT, f"{send.timeout_ms} ms passed")
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            return NoReply(Trouble.BROKEN, _cause(error))
        except BaseException:
            connection.close()
            raise
        self._give_back(send.url, connection)
        return reply

    async def open(self, send: Send) -> OpenedStream | Reply | NoReply:
        """Send a request for a stream; anything but a success is read whole."""
        connection = _connection(send.url)
        connection.timeout = min(CONNECT_TIMEOUT_MS, send.timeout_ms) / 1_000
        with self._guard:
            if self._closed:
                raise RuntimeError("the client is closed")
        try:
            connection.connect()
        except OSError as error:
            return NoReply(Trouble.UNREACHABLE, _cause(error))
        try:
            stream = connection.sock
            stream.settimeout(send.timeout_ms / 1_000)
            connection.request(send.method, send.path, headers=send.headers)
            response = connection.getresponse()
            if 200 <= response.status < 300:
                stream.settimeout(SILENCE_MS / 1_000)
                return OpenedStream(connection, response)
            reply = _reply(response)
        except TimeoutError:
            connection.close()
            return NoReply(Trouble.TIMED_OUT, f"{send.timeout_ms} ms passed")
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            return NoReply(Trouble.BROKEN, _cause(error))
        except BaseException:
            connection.close()
            raise
        connection.close()
        return reply

    async def close(self) -> None:
        """Close the idle connections. Further requests are refused."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _exchange(self, connection: http.client.HTTPConnection, send: Send, by_ms: int) -> Reply:
        stream = connection.sock
        assert stream is not None
        timed = _Timed(stream, lambda: (by_ms - self._now_ms()) / 1_000)
        connection.sock = timed  # http.client needs no more than it has
        try:
            connection.request(send.method, send.path, send.body, send.headers)
            with contextlib.closing(connection.getresponse()) as response:
                reply = _reply(response)
                keep = not response.will_close
        finally:
            if connection.sock is timed:
                connection.sock = stream
            else:  # http.client has done with it
                stream.close()
        if not keep:
            connection.close()
        return reply

    def _take(self, url: str) -> http.client.HTTPConnection:
        """Take an idle connection to a node, the last used first, or make one."""
        while True:
            with self._guard:
                if self._closed:
                    raise RuntimeError("the client is closed")
                places = [place for place, (to, _) in enumerate(self._idle) if to == url]
                if not places:
                    return _connection(url)
                connection = self._idle.pop(places[-1])[1]
            if connection.sock is not None and not _readable(connection.sock):
                return connection
            connection.close()  # the node closed it: nothing can have come unasked

    def _give_back(self, url: str, connection: http.client.HTTPConnection) -> None:
        dropped = connection
        with self._guard:
            if not self._closed and connection.sock is not None:
                self._idle.append((url, connection))
                if len(self._idle) <= self._connections:
                    return
                dropped = self._idle.pop(0)[1]
        dropped.close()


class OpenedStream:
    """An answer that comes in parts, on a connection of its own."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response

    async def read(self) -> bytes | NoReply:
        """Wait for the next part: empty at the end, NoReply when it broke before."""
        try:
            return self._response.read1(PART_BYTES)
        except TimeoutError:
            return NoReply(Trouble.TIMED_OUT, "it was silent")
        except (http.client.HTTPException, OSError) as error:
            return NoReply(Trouble.BROKEN, _cause(error))

    async def close(self) -> None:
        """Read no more."""
        self._response.close()
        self._connection.close()


def _reply(response: http.client.HTTPResponse) -> Reply:
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise http.client.HTTPException(f"the answer exceeds {MAX_ANSWER_BYTES} bytes")
    return Reply(
        status=response.status,
        content_type=response.getheader("Content-Type", ""),
        body=body,
        retry_after=response.getheader("Retry-After", ""),
        applied_index=response.getheader("Timeball-Applied-Index", ""),
    )


def _connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(parts.hostname, parts.port, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port)


def _readable(stream: socket.socket) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(0))


class _Timed:
    """A socket as http.client uses it, whose every operation ends when the request's time does."""

    def __init__(self, stream: socket.socket, left_s: Callable[[], float]) -> None:
        self._stream = stream
        self._left_s = left_s

    def sendall(self, data: bytes) -> None:
        self.arm().sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Reading(self), 64 * 1024)

    def close(self) -> None:
        """Leave the closing to whoever handed in the socket: an answer may still be read."""

    def arm(self) -> socket.socket:
        """Give the socket what time is left."""
        left_s = self._left_s()
        if left_s <= 0:
            raise TimeoutError
        self._stream.settimeout(left_s)
        return self._stream


class _Reading(io.RawIOBase):
    """Reads a timed socket."""

    def __init__(self, timed: _Timed) -> None:
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # whatever io hands it
        return self._timed.arm().recv_into(buffer)


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__

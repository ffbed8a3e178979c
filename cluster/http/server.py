"""The adapter between sockets and the application: aiohttp's low-level server.

It reads bodies within limits and deadlines, hands whole requests on, and learns whether
the answer could be written. Everything above it speaks in `Request` and `Response`, so a
leaner protocol can take its place.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from timeball.client.errors import (
    InvalidRequest,
    TimeballError,
    TooLarge,
    UnsupportedMediaType,
)
from timeball.client.messages import MAX_BODY_BYTES, FieldError
from timeball.cluster.http.application import Application
from timeball.cluster.http.exchange import Request, Response
from timeball.cluster.http.problems import problem_response

_log = logging.getLogger(__name__)

HEADER_DEADLINE_S = 10.0
BODY_DEADLINE_S = 30.0
WRITE_DEADLINE_S = 30.0
KEEP_ALIVE_S = 75.0
RESET_WINDOW_S = 1.0
"""A connection reset this soon after an answer takes the answer with it."""
MAX_HEADERS = 64
BACKLOG = 1024


class _Connection(web.RequestHandler):
    """One connection, with an absolute deadline for the head of each request.

    aiohttp bounds only how long a connection idles. A single timer per connection looks
    whether a head that began has been under way for too long, however it drips in.
    """

    __slots__ = ("_answered_at", "_head_began", "_head_timer", "_undelivered", "answering")

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self.answering = False
        self._head_began = 0.0
        self._head_timer: asyncio.TimerHandle | None = None
        self._undelivered: Callable[[], None] | None = None
        self._answered_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._head_timer = loop.call_later(HEADER_DEADLINE_S, self._check_head)

    def data_received(self, data: bytes) -> None:
        if not self.answering and not self._head_began:
            self._head_began = asyncio.get_running_loop().time()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._undelivered is not None and self._was_reset(exc):
            self._undelivered()
        self._undelivered = None
        super().connection_lost(exc)

    def begin_answer(self) -> None:
        """The head is complete; that the client asks again proves that it has the last answer."""
        self.answering = True
        self._head_began = 0.0
        self._undelivered = None

    def end_answer(self, undelivered: Callable[[], None] | None) -> None:
        """The answer was written, which does not yet say that the client reads it."""
        self._undelivered = undelivered
        self._answered_at = asyncio.get_running_loop().time()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request, as far as aiohttp can tell, with a problem document.

        A stranger's bytes are no defect of the node, so its log stays silent about them.
        """
        if status >= 500 or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        detail = (message or "it cannot be parsed").partition("\n")[0]
        refusal = InvalidRequest.at("request", detail.rstrip(":"))
        return _reply(problem_response(refusal, "json"), close=True)

    def _was_reset(self, exc: BaseException | None) -> bool:
        """Whether the client had closed its end before it could read what was just written.

        Its kernel then resets the connection; a client that reads and closes never does.
        Where the client's FIN was seen first, only the socket's error tells of the reset.
        """
        if asyncio.get_running_loop().time() - self._answered_at > RESET_WINDOW_S:
            return False
        if isinstance(exc, ConnectionError):
            return True
        raw = None if self.transport is None else self.transport.get_extra_info("socket")
        return raw is not None and raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def _check_head(self) -> None:
        loop = asyncio.get_running_loop()
        began = self._head_began or loop.time()
        if began + HEADER_DEADLINE_S <= loop.time():
            self._head_timer = None
            self.force_close()
        else:
            self._head_timer = loop.call_at(began + HEADER_DEADLINE_S, self._check_head)


class _Connections(web.Server):
    """aiohttp's server with our connections."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, **self._options)


class HttpServer:
    """Listens on one address and serves the application."""

    def __init__(self, application: Application, host: str, port: int) -> None:
        self._application = application
        self._host = host
        self._port = port
        self._runner: web.ServerRunner | None = None
        self._site: web.SockSite | None = None
        self._socket: socket.socket | None = None
        self.open_requests = 0
        """Requests that are being answered."""
        self._idle = asyncio.Event()

    def bind(self) -> None:
        """Take the address, without answering yet; raises OSError when it is in use."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, self._port), family=family)

    async def start(self) -> None:
        """Listen and answer, on the address that `bind` took."""
        assert self._socket is not None, "bind() comes first"
        server = _Connections(
            self._serve,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
            lingering_time=1.0,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.SockSite(self._runner, self._socket, backlog=BACKLOG)
        await self._site.start()

    async def stop_accepting(self) -> None:
        """Take no new connections; those that stand are served on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; whether that came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.open_requests:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Close every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _serve(self, message: web.BaseRequest) -> web.StreamResponse:
        connection = message.protocol
        assert isinstance(connection, _Connection)
        connection.begin_answer()
        self.open_requests += 1
        try:
            return await self._exchange(message)
        finally:
            connection.answering = False
            self.open_requests -= 1
            if not self.open_requests:
                self._idle.set()

    async def _exchange(self, message: web.BaseRequest) -> web.StreamResponse:
        request = _head(message)
        broken = False
        try:
            request.body = await _read_body(message)
            response = await self._application.handle(request)
        except TimeballError as error:
            broken = True
            response = self._application.refuse(request, error)
        connection = message.protocol
        assert isinstance(connection, _Connection)
        reply = _reply(response, close=broken)
        delivered = False
        try:
            async with asyncio.timeout(WRITE_DEADLINE_S):
                await reply.prepare(message)
                await reply.write_eof()
            delivered = True
        except (ConnectionError, TimeoutError):
            # The client is gone or does not read; aiohttp meets the same when it goes on.
            connection.force_close()
        finally:
            if delivered:
                connection.end_answer(response.undelivered)
            elif response.undelivered is not None:
                response.undelivered()
        return reply


def _head(message: web.BaseRequest) -> Request:
    path, _, query = message.raw_path.partition("?")
    return Request(
        method=message.method,
        path=path,
        query=query,
        headers={name.lower(): value for name, value in message.headers.items()},
    )


async def _read_body(message: web.BaseRequest) -> bytes:
    """The whole body; raises TooLarge at once when its length says so, else at the limit."""
    if not message.body_exists:
        return b""
    length = message.content_length
    if length is not None and length > MAX_BODY_BYTES:
        raise _too_large()
    encoding = message.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(f"Content-Encoding {encoding[:50]!r}: send the body as it is")
    if message.headers.get("Expect", "").lower() == "100-continue":
        await message.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        message.writer.output_size = 0
    content = message.content
    if content.is_eof():
        body = content.read_nowait(-1)
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        return body
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            while part := await content.readany():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                parts.append(part)
    except TimeoutError as error:
        raise InvalidRequest.at("body", f"did not arrive within {BODY_DEADLINE_S:.0f} s") from error
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise InvalidRequest.at("body", "the transfer is malformed") from error
    return b"".join(parts)


def _too_large() -> TooLarge:
    detail = f"more than {MAX_BODY_BYTES} bytes"
    return TooLarge(f"body: {detail}", errors=[FieldError(field="body", detail=detail)])


def _reply(response: Response, *, close: bool) -> web.Response:
    reply = web.Response(status=response.status, body=response.body, headers=response.headers)
    if response.content_type:
        reply.headers["Content-Type"] = response.content_type
    if close:
        reply.force_close()
    return reply

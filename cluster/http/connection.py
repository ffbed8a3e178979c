"""One client's connection: requests in, answers out, in order and within deadlines.

Requests are answered one at a time. What a client sends ahead waits unparsed, is taken up a
slice in each turn of the loop, and beyond one read its sending is held back. A single timer
serves all deadlines of the connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, cast

from timeball.client.errors import InvalidRequest, Overloaded
from timeball.cluster.http.deadline import Deadline
from timeball.cluster.http.eager import Eager
from timeball.cluster.http.exchange import Request, Response, Stream, StreamBroken
from timeball.cluster.http.peers import peer_of
from timeball.cluster.http.problems import RETRY_MS
from timeball.cluster.http.wire import (
    CONTINUE,
    LAST_CHUNK,
    RequestParser,
    render_chunk,
    render_head,
)

if TYPE_CHECKING:
    from timeball.cluster.http.server import HttpServer

_log = logging.getLogger(__name__)

HEADER_DEADLINE_S = 10.0
BODY_DEADLINE_S = 30.0
WRITE_DEADLINE_S = 30.0
KEEP_ALIVE_S = 75.0
LINGER_S = 1.0
"""How long a client may go on after the last answer, so that it can read it."""
RESET_WINDOW_S = 1.0
"""A connection reset this soon after an answer takes the answer with it."""
CROSSING_S = 0.1
"""How long a reset may be behind the client's FIN that crossed an answer: a round trip."""
SLICE_BYTES = 16_384
"""Parsed in one go: bounds how many requests that were sent ahead are answered in one turn."""
JOINED_BYTES = 65_536
"""Up to this size a body is copied behind its head, into one packet if it fits."""

Stage = Literal["idle", "head", "body", "answer"]


class Connection(asyncio.Protocol):
    """Serves one client; belongs to an HttpServer."""

    __slots__ = (
        "_answered_at",
        "_answering",
        "_deadline",
        "_drained",
        "_ending",
        "_held_back",
        "_loop",
        "_lost",
        "_parser",
        "_server",
        "_stage",
        "_transport",
        "_undelivered",
        "_unread",
        "peer",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(server.heads)
        self._transport: asyncio.Transport
        self.peer = ""
        """Whom it counts for; see `peer_of`."""
        self._answering: Eager | None = None
        self._unread = b""
        self._drained: asyncio.Future[None] | None = None
        self._undelivered: Callable[[], None] | None = None
        self._answered_at = 0.0
        self._held_back = False
        self._ending = False
        self._lost = False
        self._stage: Stage = "answer"
        self._deadline = Deadline(self._loop, HEADER_DEADLINE_S)

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or has begun to arrive with its whole head."""
        return self._answering is not None or bool(self._unread) or self._parser.in_body

    # --- what the transport calls ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.peer = peer_of(transport.get_extra_info("peername"))
        if no_room := self._server.admit(self):
            self._parser.refuse(Overloaded(no_room, retry_after_ms=RETRY_MS))
            self._begin_answers()
        else:
            self._await_more()

    def data_received(self, data: bytes) -> None:
        """Take what the client sends, or let it wait behind what is being answered."""
        if self._parser.closed or self._ending:
            return  # it was told so, or is about to be
        if self._answering is not None or self._unread:
            self._keep_unread(self._unread + data)
        else:
            self._parse(data)

    def eof_received(self) -> bool:
        """The client has closed its end; what is left to say is whether it took its answer.

        If it went before it could see the answer, its kernel answers that with a reset, which
        is still on its way: stay open so long, for only an open connection hears of it.
        """
        if self._answering is None and self._undelivered is not None:
            self._ending = True
            self._deadline.set(CROSSING_S, self._close)
            return True
        return False

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """The client has read most of it."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: what it asked for is cancelled."""
        half_written = self._drained is not None
        if self._undelivered is not None and (half_written or self._was_reset(exc)):
            self._undelivered()
        self._undelivered = None
        self._lost = self._ending = True
        self._deadline.end()
        self._unread = b""
        self._parser = RequestParser(self._server.heads)
        if self._answering is not None:
            self._answering.cancel()
        else:
            self._server.forget(self)

    # --- what the server calls ---------------------------------------------------------------

    def close_if_idle(self) -> None:
        """Close unless a request is under way, were it only its first byte."""
        if self._stage == "idle" and not self._ending:
            self._close()

    def close_now(self) -> None:
        """Close, whatever is under way."""
        if self._answering is not None:
            self._answering.cancel()
        self._close()

    def abort(self) -> None:
        """Close without writing what the client has not taken, which it will never see."""
        if self._undelivered is not None and self._transport.get_write_buffer_size():
            self._undelivered()
            self._undelivered = None
        self._transport.abort()

    # --- reading -----------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        """Parse until a request is whole, and answer it; what follows waits unread."""
        parser = self._parser
        for start in range(0, len(data), SLICE_BYTES):
            end = start + SLICE_BYTES
            parser.feed(data[start:end])
            if parser.arrivals:
                if end < len(data):
                    self._keep_unread(data[end:])
                self._begin_answers()
                return
        self._read_on()

    def _keep_unread(self, data: bytes) -> None:
        """Keep what was sent ahead; only much of it stops reading, which hides that clients go."""
        self._unread = b"" if self._parser.closed else data
        if len(data) > SLICE_BYTES and not self._held_back and not self._transport.is_closing():
            self._held_back = True
            self._transport.pause_reading()

    def _await_more(self) -> None:
        """There is nothing to answer: see what has to come next, and until when.

        A deadline counts from the beginning of its stage, whatever drips in meanwhile.
        """
        parser = self._parser
        if parser.awaits_continue:
            parser.awaits_continue = False
            self._transport.write(CONTINUE)
        stage: Stage = "body" if parser.in_body else "head" if parser.in_head else "idle"
        if stage == self._stage:
            return
        self._stage = stage
        if stage == "body":
            self._deadline.set(BODY_DEADLINE_S, self._refuse_body)
        elif stage == "head":
            self._deadline.set(HEADER_DEADLINE_S, self._close)
        else:
            self._deadline.set(KEEP_ALIVE_S, self._close)

    def _refuse_body(self) -> None:
        late = InvalidRequest.at("body", f"did not arrive within {BODY_DEADLINE_S:.0f} s")
        self._parser.refuse(late)
        self._begin_answers()

    # --- answering ---------------------------------------------------------------------------

    def _begin_answers(self) -> None:
        self._stage = "answer"
        self._deadline.lift()
        self._answering = Eager(self._loop, self._answer_all(), self._end_answers)
        self._answering.start()

    async def _answer_all(self) -> None:
        """Answer what has arrived, one after the other."""
        application = self._server.application
        arrivals = self._parser.arrivals
        try:
            while arrivals and not self._ending:
                arrival = arrivals.popleft()
                self._undelivered = None  # that the client asks again proves that it has that
                if arrival.refusal is None:
                    response = await application.handle(arrival.request)
                else:
                    response = application.refuse(arrival.request, arrival.refusal)
                keep_alive = arrival.keep_alive and not self._server.draining
                if response.stream is not None:
                    keep_alive &= arrival.request.takes_chunks
                    await self._stream(arrival.request, response, response.stream, keep_alive)
                else:
                    self._write(arrival.request, response, keep_alive=keep_alive)
                if self._drained is not None:
                    self._deadline.set(WRITE_DEADLINE_S, self.abort)
                    await self._drained
                    self._deadline.lift()
                    self._answered_at = self._loop.time()
                if not keep_alive:
                    self._finish()
        except StreamBroken:
            self._close()
        except Exception as error:  # noqa: BLE001 — the application raises none: a defect here
            _log.error("a connection failed inside the node", exc_info=error)
            self.abort()
        except asyncio.CancelledError:
            if not self._transport.is_closing():  # not by us: nobody should wait for an answer
                self.abort()

    def _write(self, request: Request, response: Response, *, keep_alive: bool) -> None:
        if self._transport.is_closing():
            if response.undelivered is not None:
                response.undelivered()
            return
        # Until it asks again, nothing says that the client has read it.
        self._undelivered = response.undelivered
        self._answered_at = self._loop.time()
        head = self._head(request, response, keep_alive)
        if request.method == "HEAD" or not response.body:
            self._transport.write(head)
        elif len(response.body) <= JOINED_BYTES:
            self._transport.write(head + response.body)
        else:
            self._transport.writelines((head, response.body))

    def _head(self, request: Request, response: Response, keep_alive: bool) -> bytes:
        connection = "" if keep_alive else "close"
        if keep_alive and request.headers.get("connection", "").lower() == "keep-alive":
            connection = "keep-alive"  # HTTP/1.0 clients need to be told
        return render_head(
            response,
            date=self._server.http_date(),
            connection=connection,
            chunked=request.takes_chunks,
        )

    async def _stream(
        self, request: Request, response: Response, stream: Stream, keep_alive: bool
    ) -> None:
        """Write a body as it comes into being, at the pace at which the client takes it."""
        if self._transport.is_closing():
            return
        self._transport.write(self._head(request, response, keep_alive))
        if request.method == "HEAD":
            return
        async with aclosing(stream.parts) as parts:
            async for part in parts:
                self._transport.write(render_chunk(part) if request.takes_chunks else part)
                if self._drained is not None:
                    self._deadline.set(WRITE_DEADLINE_S, lambda: self._give_up(stream))
                    await self._drained
                    self._deadline.lift()
        if request.takes_chunks:
            self._transport.write(LAST_CHUNK)

    def _give_up(self, stream: Stream) -> None:
        stream.stalled()
        self.abort()

    def _end_answers(self) -> None:
        """What had arrived is answered, or nobody is left to take it: see what is next."""
        self._answering = None
        self._server.settle()
        if self._lost:
            self._server.forget(self)
        elif self._unread and not self._ending:
            self._loop.call_soon(self._take_up_unread)
        elif not self._transport.is_closing():
            self._read_on()

    def _take_up_unread(self) -> None:
        """In a turn of its own, so that no client who sends much ahead has one to itself."""
        unread, self._unread = self._unread, b""
        if unread and not self._ending:
            self._parse(unread)

    def _read_on(self) -> None:
        parser = self._parser
        if self._held_back:
            self._held_back = False
            self._transport.resume_reading()
        if not self._ending:
            if self._server.draining and not parser.in_head and not parser.in_body:
                self._close()
            else:
                self._await_more()

    # --- the end -----------------------------------------------------------------------------

    def _finish(self) -> None:
        """End the connection after its last answer, giving the client time to close first.

        To close while the client still sends would reset the connection, and the answer
        with it; and only as long as the connection stands does a reset tell of a lost answer.
        """
        self._ending = True
        if not self._transport.is_closing():
            self._transport.write_eof()
            self._deadline.set(LINGER_S, self._close)

    def _close(self) -> None:
        self._ending = True
        self._transport.close()
        self._deadline.set(WRITE_DEADLINE_S, self.abort)

    def _was_reset(self, exc: Exception | None) -> bool:
        """Whether the client had closed its end before it could read what was just written.

        Its kernel then resets the connection; a client that reads and closes never does.
        Where the client's FIN was seen first, only the socket's error tells of the reset.
        """
        if self._loop.time() - self._answered_at > RESET_WINDOW_S:
            return False
        if isinstance(exc, ConnectionError):
            return True
        raw = self._transport.get_extra_info("socket")
        return raw is not None and raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

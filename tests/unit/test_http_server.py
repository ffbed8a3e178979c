"""The adapter between sockets and the application, on real sockets in this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import uvloop

from timeball.client.errors import InvalidRequest
from timeball.client.messages import Problem
from timeball.cluster.http import connection as connection_module
from timeball.cluster.http import server as server_module
from timeball.cluster.http.application import Application
from timeball.cluster.http.exchange import Answered, Request, Response, Stream, StreamBroken
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.peers import peer_of
from timeball.cluster.http.routes import Route
from timeball.cluster.http.server import HttpServer
from timeball.cluster.localcluster import LOOPBACK, free_ports

LIMIT_S = 20.0
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


class Desk:
    """A few routes that record what happens to them."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.undelivered = asyncio.Event()
        self.go = asyncio.Event()
        self.answer = b"x" * 1000
        self.breaks = False

    def routes(self) -> list[Route]:
        return [
            Route(method="GET", pattern="/ok", handler=self.ok),
            Route(method="POST", pattern="/echo", handler=self.echo),
            Route(method="GET", pattern="/wait", handler=self.wait),
            Route(method="GET", pattern="/grant", handler=self.grant),
            Route(method="GET", pattern="/broken", handler=self.broken),
            Route(method="GET", pattern="/cancelled", handler=self.give_up),
            Route(method="GET", pattern="/stream", handler=self.stream, plain=True),
        ]

    async def ok(self, _request: Request) -> Answered:
        return Answered(message={"ok": True})

    async def echo(self, request: Request) -> Answered:
        if b"bad" in request.body:
            raise InvalidRequest.at("body", "it is bad")
        return Answered(message={"size": len(request.body)})

    async def wait(self, _request: Request) -> Answered:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError("nobody ends the wait")

    async def grant(self, _request: Request) -> Response:
        self.asked.set()
        await self.go.wait()
        return Response(
            status=200,
            body=self.answer,
            content_type="text/plain",
            undelivered=self.undelivered.set,
        )

    async def stream(self, request: Request) -> Response:
        parts = self.parts(int(request.query or "0"))
        return Response(200, content_type="text/plain", stream=Stream(parts, self.undelivered.set))

    async def parts(self, size: int) -> AsyncGenerator[bytes, None]:
        """Three parts; when they are to be large ones, more without end."""
        self.asked.set()
        try:
            for part in (b"one", b"two", b"three"):
                yield part
            while size:
                yield b"x" * size
            await self.go.wait()
            if self.breaks:
                raise StreamBroken
        finally:
            self.cancelled.set()

    async def broken(self, _request: Request) -> Answered:
        raise RuntimeError("a defect")

    async def give_up(self, _request: Request) -> Answered:
        raise asyncio.CancelledError


class Served:
    def __init__(self) -> None:
        self.desk = Desk()
        (self.port,) = free_ports(1)
        forwarder = Forwarder(lambda: None, "http://here")
        application = Application(
            self.desk.routes(),
            serving=lambda: True,
            has_room=lambda: True,
            applied_index=lambda: 7,
            forwarder=forwarder,
        )
        self.now_ms = 0
        self.server = HttpServer(
            application, LOOPBACK, self.port, wall_clock_ms=lambda: self.now_ms
        )
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._writers), return_exceptions=True
        )
        await self.server.stop()


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Each test runs on both event loops that a node may run on."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    served.server.bind()
    await served.server.start()
    yield served
    await served.close()


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), LIMIT_S)


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status = int((await asyncio.wait_for(reader.readline(), LIMIT_S)).split()[1])
    length = 0
    while (line := await reader.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, await reader.readexactly(length)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def post(body: bytes) -> bytes:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_a_connection_serves_on_after_errors(served: Served) -> None:
    reader, writer = await served.connect()
    for request, status in [
        (get("/ok"), 200),
        (get("/nowhere"), 404),
        (post(b'"bad"'), 400),
        (get("/broken"), 500),
        (post(b'"good"'), 200),
    ]:
        writer.write(request)
        assert (await answer(reader))[0] == status
    writer.close()


async def test_nobody_waits_for_the_answer_of_a_handler_that_was_cancelled(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(get("/cancelled"))
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""


async def test_requests_in_one_packet_are_answered_in_order(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(post(b"1") + post(b"22") + get("/ok"))
    bodies = [(await answer(reader))[1] for _ in range(3)]
    assert bodies == [b'{"size":1}', b'{"size":2}', b'{"ok":true}']
    writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /ok HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused_by_a_problem(
    served: Served, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await served.connect()
    writer.write(get("/ok"))
    await answer(reader)
    writer.write(raw)
    status, body = await answer(reader)
    assert status == 400
    assert msgspec.json.decode(body, type=Problem).errors[0].field == "request"
    assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
    assert not caplog.records, "what strangers send is no defect of the node"
    writer.close()


@pytest.mark.parametrize(
    ("header", "status"), [("Accept", 406), ("Content-Type", 415), ("Content-Encoding", 415)]
)
async def test_a_header_that_is_no_text_is_refused(
    served: Served, header: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await served.connect()
    head = f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n{header}: ".encode()
    if header != "Content-Type":
        head = head.replace(b"\r\n", b"\r\nContent-Type: application/json\r\n", 1)
    writer.write(head + b"\xff\xfe\r\n\r\n1")
    found, body = await answer(reader)
    assert found == msgspec.json.decode(body, type=Problem).status == status
    assert not caplog.records
    writer.close()


async def test_http_03_a_head_that_drips_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEADER_DEADLINE_S", 0.05)
    reader, writer = await served.connect()

    writer.write(b"GET /ok HTTP/1.1\r\nX: ")

    async def drip() -> None:
        while True:
            writer.write(b"x")
            await asyncio.sleep(0.005)

    dripping = asyncio.ensure_future(drip())
    try:
        left = await asyncio.wait_for(reader.read(), LIMIT_S)
    except ConnectionResetError:  # a drop was under way when the server closed
        left = b""
    assert left == b""
    dripping.cancel()
    writer.close()


async def test_an_idle_connection_is_not_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEADER_DEADLINE_S", 0.01)
    reader, writer = await served.connect()
    for _ in range(3):
        writer.write(get("/ok"))
        assert (await answer(reader))[0] == 200
        await asyncio.sleep(0.03)
    writer.close()


async def test_http_03_who_drips_hinders_nobody(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many heads, lengths and chunks that drip: others are served, and all of them end."""
    monkeypatch.setattr(connection_module, "HEADER_DEADLINE_S", 0.3)
    monkeypatch.setattr(connection_module, "BODY_DEADLINE_S", 0.3)
    post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    beginnings = (
        (b"GET /o", b"k"),
        (b"GET /ok HTTP/1.1\r\nX: ", b"x"),
        (post + b"Content-Length: 100000\r\n\r\n", b"1"),
        (post + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\n"),
    )

    async def drip(beginning: bytes, drop: bytes) -> None:
        reader, writer = await served.connect()
        writer.write(beginning)
        ended = asyncio.ensure_future(reader.read())
        while not ended.done() and not writer.is_closing():
            writer.write(drop)
            await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionResetError):  # a drop crossed the server's end
            await ended
        writer.close()

    dripping = [asyncio.ensure_future(drip(*beginnings[place % 4])) for place in range(200)]
    reader, writer = await served.connect()
    for _ in range(20):
        writer.write(get("/ok"))
        assert (await answer(reader))[0] == 200
    writer.close()
    await asyncio.wait_for(asyncio.gather(*dripping), LIMIT_S)


async def test_http_03_a_body_that_drips_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "BODY_DEADLINE_S", 0.05)
    reader, writer = await served.connect()
    writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nonly this")
    status, body = await answer(reader)
    assert status == 400
    assert b'"field":"body"' in body
    writer.close()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_http_02_a_client_that_leaves_cancels_its_request_and_gives_up_its_place(
    served: Served, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    _, writer = await served.connect()
    writer.write(get("/wait"))
    await soon(served.desk.asked)
    leave(writer, how)
    await soon(served.desk.cancelled)
    assert await served.server.wait_idle(LIMIT_S)
    assert await exchange(served) == 200


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_an_answer_to_nobody_is_undelivered(served: Served, how: str) -> None:
    """The client leaves in the moment of the answer: before its end of the connection is seen."""
    _, writer = await served.connect()
    writer.write(get("/grant"))
    await soon(served.desk.asked)
    served.desk.go.set()
    leave(writer, how)
    await soon(served.desk.undelivered)


async def test_an_answer_that_was_read_is_delivered(served: Served) -> None:
    served.desk.go.set()
    reader, writer = await served.connect()
    writer.write(get("/grant"))
    assert await answer(reader) == (200, b"x" * 1000)
    writer.close()
    await writer.wait_closed()
    await exchange(served)  # the end of the first connection has been seen
    assert await served.server.wait_idle(LIMIT_S)
    assert not served.desk.undelivered.is_set()


async def test_an_answer_that_crosses_the_clients_fin_is_judged_by_the_reset_behind_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CROSSING_S", LIMIT_S)
    monkeypatch.setattr(connection_module, "RESET_WINDOW_S", LIMIT_S)
    served.desk.go.set()
    _, writer = await served.connect()
    writer.transport.pause_reading()
    writer.write(get("/grant"))
    await soon(served.desk.asked)
    writer.write_eof()
    await exchange(served)  # the end that the client closed is seen
    assert not served.desk.undelivered.is_set()
    leave(writer, "reset")
    await exchange(served)
    await served.server.stop()
    assert served.desk.undelivered.is_set()


async def test_an_answer_that_crosses_the_clients_fin_and_is_read_is_delivered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CROSSING_S", 0.01)
    served.desk.go.set()
    reader, writer = await served.connect()
    writer.write(get("/grant"))
    await soon(served.desk.asked)
    writer.write_eof()
    assert await answer(reader) == (200, b"x" * 1000)
    assert await asyncio.wait_for(reader.read(), LIMIT_S) == b"", "the server closes, too"
    assert not served.desk.undelivered.is_set()


async def exchange(served: Served) -> int:
    """A request on a connection of its own: what the server was told before, it knows then."""
    reader, writer = await served.connect()
    writer.write(get("/ok"))
    return (await answer(reader))[0]


def leave(writer: asyncio.StreamWriter, how: str) -> None:
    raw: Any = writer.get_extra_info("socket")
    if how == "reset":
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


async def test_an_address_in_use_is_an_error_at_once(served: Served) -> None:
    other = HttpServer(served.server.application, LOOPBACK, served.port)
    with pytest.raises(OSError, match="in use"):
        other.bind()


async def test_connections_are_limited_in_heads(served: Served) -> None:
    reader, writer = await served.connect()
    head = b"GET /ok HTTP/1.1\r\nHost: x\r\n"
    writer.write(head + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n")
    status, _ = await answer(reader)
    assert status in (400, 431)
    writer.close()


# --- the connection ------------------------------------------------------------------------


def kernel_limits(writer: asyncio.StreamWriter, size: int) -> None:
    raw: Any = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


async def test_a_flood_sent_ahead_is_held_back_and_answered_whole(served: Served) -> None:
    reader, writer = await served.connect()
    count = 20_000
    writer.write(get("/ok") * count)
    for _ in range(count):
        assert await answer(reader) == (200, b'{"ok":true}')


class Wire(asyncio.Transport):
    """A transport that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def test_who_sends_much_ahead_shares_the_loop(served: Served) -> None:
    connection, wire = connection_module.Connection(served.server), Wire()
    connection.connection_made(wire)
    request = get("/ok")
    a_slice = connection_module.SLICE_BYTES // len(request) + 1
    connection.data_received(request * (3 * a_slice))
    for turn in (1, 2, 3):
        assert 0 < wire.writes <= turn * a_slice
        assert connection.busy, "what was sent ahead counts as asked"
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.writes == 3 * a_slice
    assert not connection.busy
    connection.connection_lost(None)


async def test_a_large_body_sent_ahead_is_read_on(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(get("/grant") + post(b"1" * 2_000_000))
    await soon(served.desk.asked)
    await exchange(served)  # its sending is held back by now
    served.desk.go.set()
    assert (await answer(reader))[0] == 200
    assert await answer(reader) == (200, b'{"size":2000000}')


async def test_what_is_sent_ahead_does_not_hide_that_the_client_goes(served: Served) -> None:
    _, writer = await served.connect()
    writer.write(get("/wait") + get("/ok"))
    await soon(served.desk.asked)
    writer.write(get("/ok"))
    writer.close()
    await soon(served.desk.cancelled)


async def test_a_body_in_chunks_and_pieces(served: Served) -> None:
    reader, writer = await served.connect()
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for piece in [head + b"Transfer-Encoding: chu", b"nked\r\n\r\n2\r\n12", b"\r\n0\r\n\r\n"]:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    assert await answer(reader) == (200, b'{"size":2}')
    writer.write(head + b"Transfer-Encoding: chunked\r\n\r\nno size\r\n")
    status, body = await answer(reader)
    assert status == 400
    assert msgspec.json.decode(body, type=Problem).errors[0].field == "body"
    assert await reader.read() == b""


async def test_a_body_is_asked_for_in_its_turn(served: Served) -> None:
    reader, writer = await served.connect()
    expecting = post(b"12").replace(b"Host", b"Expect: 100-continue\r\nHost").removesuffix(b"12")
    writer.write(get("/nowhere") + expecting)
    assert (await answer(reader))[0] == 404
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"12" + get("/ok"))
    assert await answer(reader) == (200, b'{"size":2}')
    assert await answer(reader) == (200, b'{"ok":true}')


async def test_a_body_too_large_is_refused_while_the_client_sends_on(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(post(b"")[:-5].replace(b"Content-Length: ", b"Content-Length: 99999999"))
    writer.write(b"\r\n\r\n" + b" " * 2_000_000)
    assert (await answer(reader))[0] == 413
    assert await reader.read() == b""


async def test_a_head_question_is_answered_without_a_body(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(b"HEAD /ok HTTP/1.1\r\nHost: x\r\n\r\n" + get("/ok"))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 11\r\n" in head
    assert await answer(reader) == (200, b'{"ok":true}')


@pytest.mark.parametrize(
    ("version", "header", "told"),
    [
        ("1.0", "X: x", b"close"),
        ("1.0", "Connection: keep-alive", b"keep-alive"),
        ("1.1", "Connection: close", b"close"),
    ],
)
async def test_whether_the_connection_stays_is_told(
    served: Served, version: str, header: str, told: bytes
) -> None:
    reader, writer = await served.connect()
    writer.write(f"GET /ok HTTP/{version}\r\nHost: x\r\n{header}\r\n\r\n".encode() * 2)
    for _ in range(1 if told == b"close" else 2):
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: " + told + b"\r\n" in head
        assert await reader.readexactly(11) == b'{"ok":true}'
    if told == b"close":
        assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""


async def test_another_protocol_is_not_taken_up(served: Served) -> None:
    reader, writer = await served.connect()
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost"
    writer.write(get("/ok").replace(b"Host", upgrade) + get("/nowhere"))
    assert await answer(reader) == (200, b'{"ok":true}')
    assert (await answer(reader))[0] == 404
    writer.write(post(b"123").replace(b"Host", upgrade))
    assert await answer(reader) == (200, b'{"size":3}')


async def test_http_03_an_answer_that_nobody_reads_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_DEADLINE_S", 0.05)
    served.desk.answer = b"x" * 20_000_000
    served.desk.go.set()
    _, writer = await served.connect()
    writer.transport.pause_reading()
    kernel_limits(writer, 4096)
    writer.write(get("/grant"))
    await soon(served.desk.undelivered)
    assert await served.server.wait_idle(LIMIT_S)


async def test_an_answer_that_is_half_read_is_undelivered_however_late_the_client_goes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RESET_WINDOW_S", -1.0)  # it is over at once
    served.desk.answer = b"x" * 20_000_000
    served.desk.go.set()
    reader, writer = await served.connect()
    writer.write(get("/grant"))
    await asyncio.wait_for(reader.readexactly(100_000), LIMIT_S)
    leave(writer, "reset")
    await soon(served.desk.undelivered)


async def test_a_large_answer_is_written_whole(served: Served) -> None:
    served.desk.answer = b"x" * 20_000_000
    served.desk.go.set()
    reader, writer = await served.connect()
    writer.write(get("/grant") + get("/ok"))
    assert await answer(reader) == (200, served.desk.answer)
    assert await answer(reader) == (200, b'{"ok":true}')
    assert not served.desk.undelivered.is_set()


async def test_idle_connections_are_closed_in_the_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "KEEP_ALIVE_S", 0.05)
    fresh, _ = await served.connect()
    used, writer = await served.connect()
    writer.write(get("/ok"))
    await answer(used)
    assert await asyncio.wait_for(fresh.read(), LIMIT_S) == b""
    assert await asyncio.wait_for(used.read(), LIMIT_S) == b""


async def test_beyond_the_limit_connections_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    reader, writer = await served.connect()
    writer.write(get("/ok"))
    await answer(reader)
    other, other_writer = await served.connect()
    other_writer.write(get("/ok"))
    status, body = await answer(other)
    assert status == 503
    assert msgspec.json.decode(body, type=Problem).type.endswith("overloaded")
    assert await asyncio.wait_for(other.read(), LIMIT_S) == b""
    writer.write(get("/ok"))
    assert (await answer(reader))[0] == 200


async def test_http_03_a_burst_of_connections_is_taken_up_in_few_turns(served: Served) -> None:
    """A busy node has few turns in a second, and its backlog is bounded."""
    loop = asyncio.get_running_loop()
    sockets = [socket.create_connection((LOOPBACK, served.port)) for _ in range(160)]
    turns = 0

    def count() -> None:
        nonlocal turns, counting
        turns += 1
        counting = loop.call_soon(count)

    counting = loop.call_soon(count)
    async with asyncio.timeout(LIMIT_S):
        while len(served.server._connections) < len(sockets):  # noqa: ASYNC110 - turns are counted
            await asyncio.sleep(0)
    counting.cancel()
    assert turns < 160 // 2
    for raw in sockets:
        raw.close()


async def test_http_03_connections_are_bounded_for_each_peer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds many idle ones has no more of them; others are served, and so is he by those."""
    monkeypatch.setattr(served.server, "_most_per_peer", 3)
    held = [await served.connect() for _ in range(3)]
    other, writer = await served.connect()
    status, body = await answer(other)
    assert status == 503
    assert b"too many connections from 127.0.0.1" in body
    assert await asyncio.wait_for(other.read(), LIMIT_S) == b""
    writer.close()
    monkeypatch.setattr(
        connection_module, "peer_of", lambda name: "another" if name else "without a name"
    )
    reader, writer = await served.connect()
    writer.write(get("/ok"))
    assert (await answer(reader))[0] == 200
    monkeypatch.undo()
    monkeypatch.setattr(served.server, "_most_per_peer", 3)
    for _, writer in held:
        writer.write(get("/ok"))
    for reader, writer in held:
        assert (await answer(reader))[0] == 200
        writer.close()
    gone = served.server._wait_until(lambda: "127.0.0.1" not in served.server._by_peer, LIMIT_S)
    assert await gone
    reader, writer = await served.connect()
    writer.write(get("/ok"))
    assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:1", 6, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        (None, ""),
        ("", ""),
    ],
)
def test_http_03_whom_a_connection_counts_for(name: Any, peer: str) -> None:
    assert peer_of(name) == peer


async def test_a_draining_server_answers_what_it_was_asked(served: Served) -> None:
    idle, _ = await served.connect()
    begun, begun_writer = await served.connect()
    begun_writer.write(get("/ok")[:-2])
    asked, asked_writer = await served.connect()
    asked_writer.write(get("/grant"))
    await soon(served.desk.asked)
    assert served.server.open_requests == 1
    await served.server.stop_accepting()
    assert await asyncio.wait_for(idle.read(), LIMIT_S) == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(LOOPBACK, served.port)
    assert not await served.server.wait_idle(0)
    begun_writer.write(b"\r\n")
    served.desk.go.set()
    for reader in (begun, asked):
        last = await asyncio.wait_for(reader.read(), LIMIT_S)
        assert last.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" in last
    assert await served.server.wait_idle(LIMIT_S)


async def test_the_end_cancels_what_is_under_way(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(get("/wait"))
    await soon(served.desk.asked)
    await served.server.stop()
    assert served.desk.cancelled.is_set()
    assert served.server.open_requests == 0
    assert await reader.read() == b""


async def test_answers_carry_the_date_of_the_clock(served: Served) -> None:
    reader, writer = await served.connect()
    for now_ms, date in [
        (784_111_777_000, b"37"),
        (784_111_777_999, b"37"),
        (784_111_778_000, b"38"),
    ]:
        served.now_ms = now_ms
        writer.write(get("/ok"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Date: Sun, 06 Nov 1994 08:49:" + date + b" GMT\r\n" in head
        await reader.readexactly(11)


CHUNKS = b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n"


async def test_a_stream_comes_in_chunks_and_the_connection_serves_on(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(get("/stream"))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    assert b"\r\nTransfer-Encoding: chunked\r\n" in head
    assert b"Content-Length" not in head
    assert await reader.readexactly(len(CHUNKS)) == CHUNKS  # before the stream has ended
    served.desk.go.set()
    assert await reader.readexactly(5) == b"0\r\n\r\n"
    writer.write(get("/ok"))
    assert (await answer(reader))[0] == 200
    writer.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_stream_to_a_client_of_http_1_0_ends_with_the_connection(
    served: Served, times: int
) -> None:
    """Also when its head is known from before, and though it would like to stay."""
    served.desk.go.set()
    for _ in range(times):
        reader, writer = await served.connect()
        writer.write(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head, _, body = (await asyncio.wait_for(reader.read(), LIMIT_S)).partition(b"\r\n\r\n")
        assert b"Transfer-Encoding" not in head
        assert b"\r\nConnection: close" in head
        assert body == b"onetwothree"
        writer.close()


async def test_a_stream_that_breaks_is_seen_to_be_cut_off(served: Served) -> None:
    served.desk.breaks = True
    served.desk.go.set()
    reader, writer = await served.connect()
    writer.write(get("/stream"))
    _, _, body = (await asyncio.wait_for(reader.read(), LIMIT_S)).partition(b"\r\n\r\n")
    assert body == CHUNKS
    writer.close()


async def test_head_of_a_stream_is_all_that_head_gets(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(get("/stream").replace(b"GET", b"HEAD"))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    assert head.startswith(b"HTTP/1.1 200 ")
    writer.write(get("/ok"))
    assert (await answer(reader))[0] == 200
    assert not served.desk.asked.is_set()
    writer.close()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_client_that_leaves_its_stream_ends_it(served: Served, how: str) -> None:
    reader, writer = await served.connect()
    writer.write(get("/stream"))
    await asyncio.wait_for(reader.readuntil(CHUNKS), LIMIT_S)
    leave(writer, how)
    await soon(served.desk.cancelled)
    assert await served.server.wait_idle(LIMIT_S)
    assert not served.desk.undelivered.is_set()


async def test_a_stream_that_nobody_reads_is_not_written_on_and_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "WRITE_DEADLINE_S", 0.05)
    _, writer = await served.connect()
    writer.transport.pause_reading()
    kernel_limits(writer, 4096)
    writer.write(get("/stream?100000"))
    await soon(served.desk.undelivered)
    await soon(served.desk.cancelled)
    assert await served.server.wait_idle(LIMIT_S)

"""The lean connection: answers in pieces, lost connections, leaders that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from timeball.bench.load.connection import BUSY, Answer, Connection, Leaders, Line, Lost
from timeball.client.messages import ClusterView

Respond = Callable[[bytes, bytes], list[bytes]]
"""From the request line and body to the pieces of the answer; no pieces: hang up."""


def answer(status: int, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nDate: now\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def view(serving: bool) -> bytes:
    seen = ClusterView(
        cluster="c",
        node="a",
        version="1",
        role="leader" if serving else "follower",
        serving=serving,
        leader="a",
        term=1,
        commit_index=1,
        applied_index=1,
        log_time_ms=1,
        nodes=[],
        queues=[],
        totals={},
    )
    return msgspec.msgpack.encode(seen)


@asynccontextmanager
async def node(respond: Respond) -> AsyncIterator[str]:
    """A server that answers as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = dict(
                    line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
                )
                body = await reader.readexactly(int(lines.get(b"Content-Length", 0)))
                pieces = respond(head.split(b"\r\n")[0], body)
                if not pieces:
                    break
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def posted(connection: Connection, body: bytes = b"") -> Answer:
    """The answer to a claim; raises Lost."""
    answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
    connection.post(b"/v1/claims", body, answered.set_result)
    found = await answered
    if found is None:
        raise Lost
    return found


async def posted_by(line: Line, body: bytes = b"") -> Answer:
    """The answer to a create, from whichever node gives it."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    line.post(b"/v1/jobs/batch", body, lambda *answer: answered.set_result(answer))
    return await answered


def address(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


async def test_an_answer_may_come_in_any_pieces() -> None:
    whole = answer(200, b"x" * 10)
    async with node(lambda _line, _body: [whole[i : i + 1] for i in range(len(whole))]) as url:
        connection = await Connection.open(address(url))
        for _ in range(2):
            assert await posted(connection, b"body") == (200, b"x" * 10)
        connection.close()


async def test_a_request_on_a_connection_that_ends_is_lost() -> None:
    async with node(lambda _line, _body: []) as url:
        connection = await Connection.open(address(url))
        with pytest.raises(Lost):
            await posted(connection)
        with pytest.raises(Lost):
            await posted(connection)


async def test_an_answer_without_a_length_ends_the_connection() -> None:
    async with node(lambda _line, _body: [b"HTTP/1.1 200 X\r\n\r\n"]) as url:
        connection = await Connection.open(address(url))
        with pytest.raises(Lost):
            await posted(connection)


async def test_a_line_repeats_the_same_request_until_the_leader_answers() -> None:
    bodies: list[bytes] = []
    leads = "first"

    def first(line: bytes, body: bytes) -> list[bytes]:
        nonlocal leads
        if b"/v1/cluster" in line:
            return [answer(200, view(leads == "first"))]
        bodies.append(body)
        leads = "second"
        return []  # took the request, and died

    def second(line: bytes, body: bytes) -> list[bytes]:
        if b"/v1/cluster" in line:
            return [answer(200, view(leads == "second"))]
        bodies.append(body)
        return [answer(503)] if len(bodies) == 2 else [answer(200, b"done")]

    async with node(first) as one, node(second) as two:
        line = Line(Leaders([one, two]))
        assert await posted_by(line, b"the same") == (200, b"done")
        line.close()
    assert bodies == [b"the same"] * 3
    assert line.repeats == 2


async def test_a_cluster_without_room_is_told_to_the_caller() -> None:
    full = b'{"type": "urn:timeball:problem:overloaded"}'

    def respond(line: bytes, _body: bytes) -> list[bytes]:
        return [answer(200, view(True)) if b"/v1/cluster" in line else answer(503, full)]

    async with node(respond) as url:
        line = Line(Leaders([url]))
        status, body = await posted_by(line)
        line.close()
    assert status in BUSY
    assert body == full
    assert line.repeats == 0


async def test_a_request_that_goes_unanswered_is_given_up_and_repeated() -> None:
    asked = asyncio.Event()

    def respond(line: bytes, _body: bytes) -> list[bytes]:
        if b"/v1/cluster" in line:
            return [answer(200, view(True))]
        if asked.is_set():
            return [answer(200, b"late")]
        asked.set()
        return [b"HTTP/1.1 200 X\r\n"]  # and nothing more

    async with node(respond) as url:
        line = Line(Leaders([url]))
        posting = asyncio.create_task(posted_by(line))
        await asked.wait()
        line.drop_if_stuck(asyncio.get_running_loop().time() + 1.0)
        assert not posting.done()
        line.drop_if_stuck(asyncio.get_running_loop().time() + 60.0)
        assert await posting == (200, b"late")
        line.close()


async def test_more_than_an_answer_ends_the_connection_and_the_request_is_lost() -> None:
    async with node(lambda _line, _body: [answer(200, b"x") + answer(200, b"y")]) as url:
        connection = await Connection.open(address(url))
        with pytest.raises(Lost):
            await posted(connection)
        assert connection.closed


async def test_a_closed_line_repeats_nothing() -> None:
    asked = asyncio.Event()

    def respond(line: bytes, _body: bytes) -> list[bytes]:
        if b"/v1/cluster" in line:
            return [answer(200, view(True))]
        asked.set()
        return [b"HTTP/1.1 200 X\r\n"]  # and nothing more

    async with node(respond) as url:
        line = Line(Leaders([url]))
        line.post(b"/v1/claims", b"", lambda _status, _body: None)
        await asked.wait()
        line.close()
        await asyncio.sleep(0)
    assert line.repeats == 0

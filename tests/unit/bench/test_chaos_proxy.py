"""Links that are broken on purpose: each rule does to bytes what it says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from timeball.bench.chaos.proxy import CLEAR, HOST, REFUSED, SILENT, Links, Rule, Way
from timeball.cluster.localcluster import free_ports


class Echo:
    """A target that sends back what it gets, and counts who has come."""

    def __init__(self) -> None:
        self.visitors = 0
        self.got = bytearray()
        self.heard = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visitors += 1
        while data := await reader.read(65536):
            self.got += data
            self.heard.set()
            writer.write(data)
        writer.close()


class Place:
    """A client `a`, an echo `b`, and the links between them."""

    def __init__(self, links: Links, port: int, echo: Echo) -> None:
        self.links = links
        self.port = port
        self.echo = echo
        self.dialled: list[asyncio.StreamWriter] = []

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        self.dialled.append(writer)
        return reader, writer

    async def close(self) -> None:
        await self.links.close()
        for writer in self.dialled:
            writer.transport.abort()
        await asyncio.sleep(0)  # aborted connections are closed in the loop's next turn


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    echo = Echo()
    port, target_port = free_ports(2)
    server = await asyncio.start_server(echo.serve, HOST, target_port)
    links = Links(random.Random(1))
    links.add("a", "b", port, target_port)
    await links.start()
    place = Place(links, port, echo)
    yield place
    await place.close()
    server.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_sent_arrives_whole_and_in_order_both_ways(place: Place) -> None:
    reader, writer = await place.dial()
    sent = random.Random(2).randbytes(3_000_000)
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    writer.close()
    assert await closed(reader)


async def test_the_end_of_either_side_is_the_end_of_both(place: Place) -> None:
    reader, writer = await place.dial()
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    writer.write_eof()
    assert await closed(reader)
    writer.close()


async def test_silence_holds_one_way_and_what_waited_arrives_when_it_ends(place: Place) -> None:
    reader, writer = await place.dial()
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    place.links.govern([("b", "a")], SILENT)
    place.echo.heard.clear()
    writer.write(b"2")
    await place.echo.heard.wait()  # the other way is open
    answer = asyncio.ensure_future(reader.readexactly(1))
    await turns()
    assert not answer.done()
    place.links.clear()
    assert await answer == b"2"
    writer.close()


async def test_a_silent_way_passes_on_neither_new_connections_nor_their_ends(
    place: Place,
) -> None:
    reader, writer = await place.dial()
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    place.links.govern([("a", "b")], SILENT)
    _, other = await place.dial()
    writer.close()
    await turns()
    assert place.echo.visitors == 1
    assert bytes(place.echo.got) == b"1"
    place.links.clear()
    other.write(b"2")
    while bytes(place.echo.got) != b"12":
        place.echo.heard.clear()
        await place.echo.heard.wait()
    other.close()


async def test_a_refusal_breaks_what_stands_and_what_comes(place: Place) -> None:
    reader, writer = await place.dial()
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    place.links.govern([("b", "a")], REFUSED)
    assert await closed(reader)
    again, _ = await place.dial()
    assert await closed(again)
    assert place.echo.visitors == 1
    place.links.clear()
    reader, writer = await place.dial()
    writer.write(b"2")
    assert await reader.readexactly(1) == b"2"


async def test_a_target_that_does_not_listen_is_felt_as_a_broken_connection() -> None:
    port, nobody = free_ports(2)
    links = Links(random.Random(1))
    links.add("a", "b", port, nobody)
    await links.start()
    reader, writer = await asyncio.open_connection(HOST, port)
    assert await closed(reader)
    writer.close()
    await links.close()


def test_delay_loss_and_breaks_are_drawn_as_the_rule_says() -> None:
    way = Way(random.Random(3))
    assert way.draw_delay_s() == 0
    way.govern(Rule(delay_ms=20, jitter_ms=40))
    delays = [way.draw_delay_s() for _ in range(1_000)]
    assert 0.02 <= min(delays) < 0.021
    assert 0.059 < max(delays) <= 0.06
    way.govern(Rule(lost=0.1, repeat_ms=200))
    assert 50 < sum(way.draw_delay_s() == 0.2 for _ in range(1_000)) < 150
    way.govern(Rule(broken=1.0))
    with pytest.raises(ConnectionResetError):
        way.draw_delay_s()
    way.govern(CLEAR)
    assert way.draw_delay_s() == 0


async def test_delay_keeps_the_order(place: Place) -> None:
    place.links.govern([("a", "b")], Rule(jitter_ms=10))
    reader, writer = await place.dial()
    sent = bytes(range(100))
    for byte in sent:
        writer.write(bytes([byte]))
        await turns(3)
    assert await reader.readexactly(len(sent)) == sent
    writer.close()


async def test_a_link_that_breaks_ends_the_connection(place: Place) -> None:
    reader, writer = await place.dial()
    writer.write(b"1")
    assert await reader.readexactly(1) == b"1"
    place.links.govern([("a", "b")], Rule(broken=1.0))
    writer.write(b"2")
    assert await closed(reader)
    assert bytes(place.echo.got) == b"1"

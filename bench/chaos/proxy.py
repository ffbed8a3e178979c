"""Links that can be broken: TCP proxies between named parties, with a rule for each direction.

Whoever dials another party dials a proxy, which dials on. A connection carries both directions,
and either side may have dialled it; so what becomes of bytes depends not on the proxy but on
the *way* that they go, from one party to another:

    silent    nothing arrives and nobody is told; what was sent waits, as TCP's own repeats would,
              and arrives if the way opens while the connection stands
    refused   connections are broken at once, and new ones too
    delay     everything comes later, by a fixed and a random part
    loss      TCP loses nothing: a lost packet holds up all behind it until it is sent again, so
              a share of what passes is held up for that long; and a share breaks the connection

A new connection needs both ways. Held bytes are bounded: then the sender's TCP has to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

import msgspec

CHUNK_BYTES = 64 * 1024
HELD_CHUNKS = 16
"""Of one direction of a connection; then no more is read."""
MAX_CONNECTIONS = 1_000
"""Of one proxy; more are refused."""
HOST = "127.0.0.1"


class Rule(msgspec.Struct, frozen=True):
    """What becomes of the bytes that go one way."""

    passing: bool = True
    refusing: bool = False
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    lost: float = 0.0
    """The share of chunks that are held up for `repeat_ms`, with all behind them."""
    repeat_ms: float = 200.0
    broken: float = 0.0
    """The share of chunks at which the connection breaks."""


CLEAR = Rule()
SILENT = Rule(passing=False)
REFUSED = Rule(passing=False, refusing=True)


class Way:
    """One direction between two parties, whoever dialled."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.rule = CLEAR
        self._open = asyncio.Event()
        self._open.set()

    def govern(self, rule: Rule) -> None:
        """Put a rule in force, for what comes and for what is held."""
        self.rule = rule
        if rule.passing:
            self._open.set()
        else:
            self._open.clear()

    async def passable(self) -> None:
        """Wait until bytes may pass."""
        await self._open.wait()

    def draw_delay_s(self) -> float:
        """How long to hold up what has just come; raises ConnectionResetError for a break."""
        rule = self.rule
        if rule == CLEAR:
            return 0.0
        if rule.broken and self._rng.random() < rule.broken:
            raise ConnectionResetError("the link broke, as its rule says")
        delay_ms = rule.delay_ms + rule.jitter_ms * self._rng.random()
        if rule.lost and self._rng.random() < rule.lost:
            delay_ms += rule.repeat_ms
        return delay_ms / 1000


class Proxy:
    """Listens where `source` dials `target`, and dials on."""

    def __init__(self, port: int, target_port: int, forth: Way, back: Way) -> None:
        self.port = port
        self._target_port = target_port
        self._forth = forth
        self._back = back
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        self._server = await asyncio.start_server(self._accepted, HOST, self.port)

    async def close(self) -> None:
        """Listen no more and break every connection."""
        if self._server is not None:
            self._server.close()
        self.break_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def break_connections(self) -> None:
        """Break every connection."""
        for connection in self._connections:
            connection.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        full = len(self._connections) >= MAX_CONNECTIONS
        self._connections.add(task)
        try:
            if not (full or self._forth.rule.refusing or self._back.rule.refusing):
                await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # a broken connection is what a proxy passes on
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._forth.passable()
        await self._back.passable()
        onward_reader, onward_writer = await asyncio.open_connection(HOST, self._target_port)
        streams = [(reader, onward_writer, self._forth), (onward_reader, writer, self._back)]
        pumps = [asyncio.create_task(_pump(*stream)) for stream in streams]
        try:
            # The end of one direction is the end of both: nothing here half-closes.
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
            with contextlib.suppress(OSError):
                for closing in (writer, onward_writer):
                    closing.close()
                    await closing.wait_closed()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            onward_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
    """Carry one direction to its end."""
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS)
    reading = asyncio.create_task(_read(reader, held, way))
    writing = asyncio.create_task(_write(writer, held, way))
    try:
        done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in (reading, writing):
            task.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)


async def _read(
    reader: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]], way: Way
) -> None:
    """Take what comes, each with the instant at which it may go on; nothing overtakes."""
    clock = asyncio.get_running_loop().time
    due = 0.0
    while True:
        data = await reader.read(CHUNK_BYTES)
        due = max(due, clock() + way.draw_delay_s())
        await held.put((due, data))
        if not data:
            return


async def _write(
    writer: asyncio.StreamWriter, held: asyncio.Queue[tuple[float, bytes]], way: Way
) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        due, data = await held.get()
        if due > clock():
            await asyncio.sleep(due - clock())
        await way.passable()
        if not data:
            return
        writer.write(data)
        await writer.drain()


class Links:
    """All proxies of a run, and the rules of all ways between its parties."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ways: dict[tuple[str, str], Way] = {}
        self._proxies: list[tuple[str, str, Proxy]] = []

    def add(self, source: str, target: str, port: int, target_port: int) -> None:
        """Add a proxy at `port` for what `source` dials at `target_port` of `target`."""
        forth, back = self._way(source, target), self._way(target, source)
        self._proxies.append((source, target, Proxy(port, target_port, forth, back)))

    def _way(self, source: str, target: str) -> Way:
        if (source, target) not in self._ways:
            self._ways[source, target] = Way(random.Random(self._rng.random()))
        return self._ways[source, target]

    async def start(self) -> None:
        """Start every proxy; raises OSError when a port is taken."""
        for _, _, proxy in self._proxies:
            await proxy.start()

    async def close(self) -> None:
        """End every proxy."""
        await asyncio.gather(*(proxy.close() for _, _, proxy in self._proxies))

    def govern(self, ways: Iterable[tuple[str, str]], rule: Rule) -> None:
        """Put a rule in force on ways, given as (from, to)."""
        governed = set(ways)
        for way in governed:
            self._ways[way].govern(rule)
        if rule.refusing:
            for source, target, proxy in self._proxies:
                if (source, target) in governed or (target, source) in governed:
                    proxy.break_connections()

    def clear(self) -> None:
        """Let everything pass everywhere."""
        for way in self._ways.values():
            way.govern(CLEAR)

"""Listening on one address: taking it, serving its connections, letting go in good order.

Everything above the connections speaks in `Request` and `Response`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate

from timeball.cluster.http.application import Application
from timeball.cluster.http.connection import Connection
from timeball.cluster.http.heads import KnownHeads

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 10_000
CONNECTIONS_PER_PEER = 4_000
"""From one address, if the configuration says nothing else: more than two nodes of this cluster
keep for what they forward, should they share one."""
BACKLOG = 1024
LISTENERS = 16
"""Of the one address: uvloop takes one connection for each in a turn of the loop. One alone would
let a burst of connections overflow the backlog of a node that is busy."""
CLOSE_GRACE_S = 0.1
"""How long closing connections may take to write what they still hold."""


class HttpServer:
    """Listens on one address and serves the application."""

    def __init__(
        self,
        application: Application,
        host: str,
        port: int,
        *,
        wall_clock_ms: Callable[[], int] | None = None,
        connections_per_peer: int = CONNECTIONS_PER_PEER,
    ) -> None:
        """Without a clock, answers carry no Date (RFC 9110, section 6.6.1)."""
        self.application = application
        self.heads = KnownHeads()
        self.draining = False
        """New connections are no longer taken, and standing ones close after their answer."""
        self._host = host
        self._port = port
        self._wall_clock_ms = wall_clock_ms
        self._socket: socket.socket | None = None
        self._listeners: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._most_per_peer = connections_per_peer
        self._by_peer: Counter[str] = Counter()
        self._settled = asyncio.Event()
        self._date = ""
        self._date_s = -1

    @property
    def open_requests(self) -> int:
        """Requests that are being answered, or whose body is arriving."""
        return sum(connection.busy for connection in self._connections)

    def bind(self) -> None:
        """Take the address, without answering yet; raises OSError when it is in use."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._socket = socket.create_server((self._host, self._port), family=family)

    async def start(self) -> None:
        """Listen and answer, on the address that `bind` took."""
        assert self._socket is not None, "bind() comes first"
        loop = asyncio.get_running_loop()
        for _ in range(LISTENERS):
            listener = await loop.create_server(
                lambda: Connection(self), sock=self._socket.dup(), backlog=BACKLOG
            )
            self._listeners.append(listener)

    async def stop_accepting(self) -> None:
        """Take no new connections; those with a request under way are served to its end."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for connection in list(self._connections):
            connection.close_if_idle()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; whether that came in time."""
        return await self._wait_until(lambda: not self.open_requests, timeout_s)

    async def stop(self) -> None:
        """Close every connection."""
        await self.stop_accepting()
        for connection in list(self._connections):
            connection.close_now()
        if not await self._wait_until(lambda: not self._connections, CLOSE_GRACE_S):
            for connection in list(self._connections):
                connection.abort()
            if not await self._wait_until(lambda: not self._connections, 1.0):
                _log.warning("%d connections did not end", len(self._connections))

    # --- what connections call ---------------------------------------------------------------

    def admit(self, connection: Connection) -> str:
        """Why there is no room for one more connection; "" if there is. It is known from now on
        anyway."""
        self._connections.add(connection)
        self._by_peer[connection.peer] += 1
        if len(self._connections) > MAX_CONNECTIONS:
            return "too many connections"
        if self._by_peer[connection.peer] > self._most_per_peer:
            return f"too many connections from {connection.peer}"
        return ""

    def settle(self) -> None:
        """A connection has answered what it was asked."""
        self._settled.set()

    def forget(self, connection: Connection) -> None:
        """A connection is lost and its last handler has ended."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._by_peer[connection.peer] -= 1
            if not self._by_peer[connection.peer]:
                del self._by_peer[connection.peer]
        self._settled.set()

    def http_date(self) -> str:
        """The Date of an answer given now, empty without a clock."""
        if self._wall_clock_ms is None:
            return ""
        now_s = self._wall_clock_ms() // 1000
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = formatdate(now_s, usegmt=True)
        return self._date

    async def _wait_until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return False
        return True

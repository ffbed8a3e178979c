"""Pollers that ask for work and hang up before they have taken the answer.

They speak over bare sockets: a client library would read the answer as soon as it comes, and has
then taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from timeball.cluster.settings import Address

Manner = Literal["reset", "close", "half"]
"""How one hangs up: the connection is reset; it is closed, whatever has come of an answer by then;
or it is closed after the first bytes of an answer, if there is one."""

MANNERS: tuple[Manner, ...] = get_args(Manner)
QUEUE = "hangups"
WAIT_MS = 30_000
LEASE_MS = 600_000
"""Longer than any run: a lease that is not given back is found, for it does not end by itself."""
MOST = 3
"""Executions that one asks for."""
SPREAD_S = 1.0
"""Within which the pollers of a wave come, evenly: the next wave follows on it."""
SHORTEST_S = 0.02
LONGEST_S = 0.5
"""From the claim to the hang-up, chosen for each."""
IN_TIME_S = 0.9
"""A poller that hangs up later than this, for the machine was too slow to wake it, proves nothing:
a client that has had its answer for a second is believed to have read it."""
FIRST_BYTES = 40
_RESET = struct.pack("ii", 1, 0)


class Ghosts:
    """Waves of pollers, spread over the nodes and over the manners of hanging up."""

    def __init__(self, addresses: Sequence[Address], seed: int) -> None:
        self._addresses = addresses
        self._random = random.Random(seed)
        self.hung_up: Counter[Manner] = Counter()
        self.overslept: set[str] = set()
        """Those that did not hang up in time, by their worker's name."""
        self.refused = 0
        """Connections that a node did not take."""

    async def wave(self, name: str, count: int) -> None:
        """So many ask, as workers whose names begin so; returns when all have hung up."""
        await asyncio.gather(*(self._haunt(name, place, count) for place in range(count)))

    async def _haunt(self, name: str, place: int, count: int) -> None:
        worker = f"{name}-{place}"
        address = self._addresses[place % len(self._addresses)]
        manner = MANNERS[place // len(self._addresses) % len(MANNERS)]
        hold_s = self._random.uniform(SHORTEST_S, LONGEST_S)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(SPREAD_S * place / count)
        with socket.socket() as connection:
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, (address.host, address.port))
                asked_s = loop.time()
                await loop.sock_sendall(connection, _claim(address, worker))
            except OSError:
                self.refused += 1
                return
            await asyncio.sleep(hold_s)
            if manner == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif manner == "half":
                with contextlib.suppress(BlockingIOError):  # there is no answer yet
                    connection.recv(FIRST_BYTES)
        self.hung_up[manner] += 1
        if loop.time() - asked_s > IN_TIME_S:
            self.overslept.add(worker)


def _claim(address: Address, worker: str) -> bytes:
    body = msgspec.json.encode(
        {
            "queue": QUEUE,
            "worker": worker,
            "max_executions": MOST,
            "wait_ms": WAIT_MS,
            "lease_ms": LEASE_MS,
        }
    )
    head = (
        f"POST /v1/claims HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body

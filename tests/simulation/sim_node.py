"""A real node in the simulator: one place, one disk, one clock, and a life after the other.

Everything of `timeball.cluster.node.Node` runs but its sockets, the watch over the real event loop
and the tuning of the garbage collector: the network, the disk, both clocks and chance are handed
in, and HTTP comes over simulated streams.

A supervisor is part of the place: it starts a node anew that has stopped itself, and empties the
disk of one that refuses to start because its files are damaged, as the manual says.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sim_disk import FaultyDisk
from sim_http import Passing, Web
from sim_loop import Process, SimLoop
from sim_net import Endpoint, Network

from timeball.cluster.node import Node
from timeball.cluster.raft.errors import Damaged, DiskFull
from timeball.cluster.raft.interface import Observer
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.settings import Address, Limits, NodeSettings, Settings
from timeball.cluster.settings import Process as ProcessSettings

EPOCH_MS = 1_800_000_000_000
SUPERVISOR_S = 0.5


def settings_for(names: list[str]) -> Settings:
    """One cluster's configuration; hosts are named like the nodes."""
    return Settings(
        path=Path("/simulated/timeball.toml"),
        name="simulated",
        secret=b"simulated secret",
        nodes=tuple(NodeSettings(n, Address(n, 7101), Address(n, 7201)) for n in names),
        queues=None,
        limits=Limits(),
        process=ProcessSettings(),
    )


class InOrder(dict):
    """A set in the order of adding: a real one is walked in the order of addresses."""

    def add(self, item: Any) -> None:
        self.setdefault(item)

    def remove(self, item: Any) -> None:
        del self[item]

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class SimNode(Node):
    """A node that serves simulated streams."""

    def __init__(self, settings: Settings, name: str, place: Place, **parts: Any) -> None:
        super().__init__(settings, name, **parts)
        self.forwarder._send = Passing(place.web, name, place.process)
        self.forwarder._claims, self.forwarder._cleanups = InOrder(), InOrder()
        self.http._connections = InOrder()

    async def start(self) -> None:
        await self.consensus.start()


class Place:
    """Where one node lives, over all its lives."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        web: Web,
        name: str,
        settings: Settings,
        raft: RaftSettings,
        rng: random.Random,
        witness: Callable[[Place], Observer],
        log: Callable[..., None],
    ) -> None:
        self.name = name
        self.web = web
        self.disk = FaultyDisk(loop, random.Random(rng.random()))
        self.process: Process
        self.node: SimNode | None = None
        self.up = False
        """Whether a process lives here, however far it has come."""
        self.lives = 0
        self.skew_ms = 0
        """How far this place's wall clock is ahead of the true time."""
        self.wanted = False
        """Whether it should be up."""
        self._loop = loop
        self._network = network
        self._settings = settings
        self._raft = raft
        self._rng = rng
        self._witness = witness
        self._log = log
        self._endpoint: Endpoint

    def wall_clock_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms

    def wall_clock_us(self) -> int:
        return (EPOCH_MS + self.skew_ms) * 1000 + int(self._loop.time() * 1_000_000)

    def start(self) -> None:
        """Begin a life."""
        self.wanted = True
        if self.up:
            return
        self.up = True
        self.lives += 1
        self.process = process = Process(self._loop, f"{self.name}/{self.lives}")
        self._endpoint = Endpoint(self._network, self.name, process)
        process.call_at(self._loop.time(), self._begin, process)

    def _begin(self, process: Process) -> None:
        node = SimNode(
            self._settings,
            self.name,
            self,
            wall_clock_ms=self.wall_clock_ms,
            clock=self._loop.time,
            rng=random.Random(self._rng.random()),
            network=self._endpoint,
            disk=self.disk,
            raft=self._raft,
        )
        node.consensus.add_observer(self._witness(self))
        node.consensus.add_observer(_Supervisor(self, process))
        self.node = node
        self._loop.create_task(self._start(node, process))

    async def _start(self, node: SimNode, process: Process) -> None:
        try:
            await node.start()
        except Damaged as damage:
            self._log("damaged", self.name, str(damage.reason))
            self._loop.call_at_for(None, self._loop.time(), self._end_damaged, process)
            return
        except (OSError, DiskFull) as error:
            self._log("cannot start", self.name, type(error).__name__)
            self._loop.call_at_for(None, self._loop.time(), self._end, process)
            return
        self.web.listen(self.name, process, node.http)
        self._log("up", self.name, self.lives, node.consensus.applied_index)

    def halted(self, process: Process, reason: str) -> None:
        self._log("halted", self.name, reason)
        self._loop.call_at_for(None, self._loop.time(), self._end, process)

    def _end(self, process: Process) -> None:
        """The process has ended by itself: the supervisor starts another."""
        if process is self.process and process.alive:
            self.kill()
            self.wanted = True
            again = self._loop.time() + SUPERVISOR_S
            self._loop.call_at_for(None, again, self._start_again)

    def _end_damaged(self, process: Process) -> None:
        """The operator empties the disk, and the supervisor starts another."""
        if process is self.process and process.alive:
            self._end(process)
            self.disk.wipe()

    def _start_again(self) -> None:
        if self.wanted:
            self.start()

    def kill(self, *, power: bool = False) -> None:
        """Like SIGKILL; with `power`, the host is gone, and what was not synced with it."""
        self.wanted = False
        if not self.up:
            return
        self.up = False
        self.process.kill()
        self.process.keep(self.node)
        self.node = None
        self._endpoint.die(vanished=power)
        self.web.die(self.name, vanished=power)
        self.disk.interrupt()
        if power:
            self.disk.crash(self._rng)

    @property
    def joined(self) -> SimNode | None:
        """The node, once it has loaded its files and takes part."""
        node = self.node
        return None if node is None or node.consensus._engine is None else node

    @property
    def leads(self) -> bool:
        return self.joined is not None and self.joined.serving


class _Supervisor(Observer):
    def __init__(self, place: Place, process: Process) -> None:
        self._place = place
        self._process = process

    def on_halt(self, reason: str) -> None:
        self._place.halted(self._process, reason)

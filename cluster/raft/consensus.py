"""One node's consensus, put together: storage, engine, network, timer and observers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from timeball.cluster.raft.disk import Disk, RealDisk
from timeball.cluster.raft.engine import Engine
from timeball.cluster.raft.errors import Damaged, Halted, NotLeader
from timeball.cluster.raft.interface import Observer, PeerStatus, Role, StateMachine
from timeball.cluster.raft.metadata import MAX_INCARNATION, Standing, cluster_id, founding_id
from timeball.cluster.raft.network import Network
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.space import Room
from timeball.cluster.raft.stats import Stats
from timeball.cluster.raft.storage import Storage
from timeball.cluster.raft.transport import TcpNetwork

_logger = logging.getLogger(__name__)


class Consensus:
    """A member of the cluster, from `start` to `stop`; see `interface.Replica` for its use.

    `members` maps the name of each member, this node's too, to its host and port. `clock` is
    monotonic, in seconds. `level` is the highest feature level that this node supports. Without
    `network` and `disk` it uses TCP and the real disk.
    """

    def __init__(
        self,
        node_name: str,
        members: Mapping[str, tuple[str, int]],
        data_dir: Path,
        secret: bytes,
        machine: StateMachine,
        settings: RaftSettings,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        level: int = 1,
        network: Network | None = None,
        disk: Disk | None = None,
    ) -> None:
        settings.validate()
        if node_name not in members:
            raise ValueError(f"this node, {node_name!r}, is not among the members")
        self._name = node_name
        self._members = dict(members)
        self._machine = machine
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._level = level
        self._cluster_id = cluster_id(settings.cluster, members)
        self._network = network or TcpNetwork(
            node_name,
            self._members,
            self._cluster_id,
            secret,
            settings,
            clock,
            rng,
            founding=lambda: founding_id(self._storage.metadata.founders),
        )
        self._storage = Storage(disk or RealDisk(), data_dir, settings)
        self._observers: list[Observer] = []
        self._engine: Engine | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._started = False
        self.observe_fsync: list[Callable[[float], None]] = []
        """Each is called with the seconds that each sync of the journal took."""
        self.stats = Stats()

    def add_observer(self, observer: Observer) -> None:
        assert self._engine is None, "observers are added before the node starts"
        self._observers.append(observer)

    async def start(self) -> None:
        """Load what is on disk and join the cluster.

        Raises Damaged or Misconfigured when this data directory must not be used, Halted when a
        newer release is needed for it, and OSError when the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._storage.open(self._cluster_id, self._name, self._machine)
            self._storage.identify(self._rng.randrange(1, MAX_INCARNATION))
        except Damaged as damage:
            _logger.critical("%s must not start: %s", self._name, damage)
            self._storage.close()
            raise
        except BaseException:
            self._storage.close()
            raise
        self._engine = Engine(
            self._name,
            list(self._members),
            self._storage,
            self._machine,
            self._settings,
            self._clock,
            self._rng,
            self._network,
            loop,
            self._observers,
            self.stats,
        )
        self._engine.fsync_observers = self.observe_fsync
        self._engine.level = self._level
        try:
            await self._network.start(self._engine.link)
        except BaseException:
            self._storage.close()
            raise
        self._started = True
        self._tick()

    def _tick(self) -> None:
        engine = self._running
        engine.doTick()
        if engine.halted is None:
            loop = asyncio.get_running_loop()
            self._ticker = loop.call_later(self._settings.tick_s, self._tick)

    async def stop(self) -> None:
        """Hand leadership over if there is time, then leave. Safe to call twice."""
        engine = self._engine
        if engine is None or not self._started:
            return
        await self._hand_over(engine)
        self._started = False
        if self._ticker is not None:
            self._ticker.cancel()
        if engine.halted is None:
            with engine.turn():
                engine.flush()
            with engine.turn():  # also when the flush found no room
                engine.step_down(engine.term)
                self._storage.mark()
        engine.reading.end()
        await engine.end_tasks()
        await self._network.stop()
        engine.destroy()

    async def _hand_over(self, engine: Engine) -> None:
        """Let the follower that is furthest lead before this leader goes."""
        if engine.leadership is None or not engine.others:
            return
        engine.handing_over = True
        deadline = self._clock() + self._settings.transfer_timeout_s
        asked = False
        while engine.leadership is not None and self._clock() < deadline:
            asked = asked or engine.leadership.hand_over()
            await asyncio.sleep(self._settings.tick_s)

    def halt(self, reason: str) -> None:
        """Stop this node for good, because going on could break a promise."""
        self._running.halt(reason)

    @property
    def _running(self) -> Engine:
        assert self._engine is not None, "the node has not started"
        return self._engine

    def append(self, entry: bytes) -> int:
        if not entry or len(entry) > self._settings.max_entry_bytes:
            raise ValueError(f"an entry has 1 to {self._settings.max_entry_bytes} bytes")
        if not self._started:
            raise NotLeader(None)
        return self._running.append(entry)

    def read(self, index: int, *, strong: bool) -> asyncio.Future[None]:
        """Wait until a read may be answered from this node's state; see `interface.Replica`."""
        return self._running.reading.wait(index, strong)

    @property
    def waiting_reads(self) -> int:
        """Reads that wait for this node to apply more, or to know how much."""
        return self._running.reading.waiting

    def take_snapshot(self) -> int:
        """Begin a snapshot of all that is applied here; the position that it covers.

        Raises SnapshotUnderWay when one is being taken, and Halted when the node has stopped.
        """
        if self.halted is not None or not self._started:
            raise Halted("this node has stopped")
        return self._running.snapshotting.ask()

    @property
    def role(self) -> Role:
        return self._running.role

    @property
    def term(self) -> int:
        return self._running.term

    @property
    def leader(self) -> str | None:
        return self._running.leader

    @property
    def leading_term(self) -> int | None:
        leadership = self._running.leadership
        return self._running.term if leadership is not None and leadership.announced else None

    @property
    def applied_index(self) -> int:
        return self._running.applied_index

    @property
    def apply_s(self) -> float:
        return self._running.apply_s

    @property
    def commit_index(self) -> int:
        return self._running.commit_index

    @property
    def known_commit_index(self) -> int:
        return max(self._running.known_commit_index, self._running.commit_index)

    @property
    def last_index(self) -> int:
        return self._running.last_index

    @property
    def halted(self) -> str | None:
        """Why the node has stopped itself, else None."""
        return self._running.halted

    @property
    def room(self) -> Room:
        """What the room on this node's disk allows (see `space`)."""
        return self._running.space.room

    @property
    def free_bytes(self) -> int:
        """The room on this node's disk, when it was looked at last."""
        return self._running.space.free_bytes

    @property
    def quorum_seen(self) -> bool:
        engine = self._running
        if engine.leadership is not None:
            return engine.leadership.has_quorum(self._clock())
        return engine.leader is not None and engine.timer.hears_leader(self._clock())

    def peers(self) -> list[PeerStatus]:
        engine, now = self._running, self._clock()
        statuses = []
        for peer in engine.others:
            match_index = age = share = level = None
            if engine.leadership is not None:
                progress = engine.leadership.progress(peer)
                match_index, age = progress.match, now - progress.last_response
                share = progress.snapshot_share
                level = progress.level if engine.connected(peer) else None
            standing, incarnation = engine.membership.of(peer)
            connected = engine.connected(peer)
            statuses.append(
                PeerStatus(peer, connected, match_index, age, standing, incarnation, share, level)
            )
        return statuses

    @property
    def standing(self) -> Standing:
        return self._storage.metadata.standing

    @property
    def incarnation(self) -> int:
        return self._storage.metadata.incarnation

    @property
    def obstacle(self) -> str | None:
        return self._running.membership.obstacle()

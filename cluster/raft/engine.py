"""The engine: pysyncobj with what is unsafe replaced; no other module knows its insides.

Of pysyncobj 0.3.17 there remain its object with the state of a Raft node (role, term, vote,
leader, log, commit and applied index), its construction and status, and its
helpers that change role and term. Replaced are persistence (never synced), transport (unpickles
what strangers send), elections, replication, commit, application and snapshots; the audit of the
faults is restated in the tests of this package, by fault id. A test pins the version, the hash of
the file, and each private name used below.

The engine is driven from one event loop: a message, a proposal or a coarse tick. What the node
writes in one turn of the loop is made durable together at the start of the next: the leader's
messages have left by then, and a follower has gathered all that lay in its sockets. A follower
applies in the turn after that: the leader waits for its acknowledgement, nobody for its state.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.journal import Journal as LibraryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport as LibraryTransport

from timeball.cluster.raft.candidacy import Candidacy
from timeball.cluster.raft.diskwatch import DiskWatch
from timeball.cluster.raft.elections import ElectionTimer
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import DiskFull, Halted, NotLeader, OutcomeUnknown
from timeball.cluster.raft.following import Following
from timeball.cluster.raft.interface import Observer, Role, StateMachine
from timeball.cluster.raft.leading import Leadership
from timeball.cluster.raft.membership import Membership
from timeball.cluster.raft.messages import Message
from timeball.cluster.raft.network import Network
from timeball.cluster.raft.reading import Reading
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.snapshots import Snapshot
from timeball.cluster.raft.snapshotting import Snapshotting
from timeball.cluster.raft.stats import Stats
from timeball.cluster.raft.storage import Storage

if TYPE_CHECKING:
    LibraryObject = Any
else:
    LibraryObject = SyncObj

_logger = logging.getLogger(__name__)
_ROLES: tuple[Role, Role, Role] = ("follower", "candidate", "leader")
_ZEROS_DELAY_S = 0.001
"""After a sync: by then what it made true has been told, and the next entry is not there yet."""
_FOLLOWER, _CANDIDATE, _LEADER = range(3)


class _Link(LibraryTransport):  # type: ignore[misc]
    """The library's transport, over our network."""

    def __init__(self, network: Network, nodes: Mapping[str, Node]) -> None:
        super().__init__(None, None, [])
        self._network = network
        self._nodes = nodes

    def send(self, node: Node, message: Message) -> bool:
        return self._network.send(node.id, message)

    def on_message(self, peer: str, message: Message) -> None:
        self._onMessageReceived(self._nodes[peer], message)

    def on_connected(self, peer: str) -> None:
        self._onNodeConnected(self._nodes[peer])

    def on_disconnected(self, peer: str) -> None:
        self._onNodeDisconnected(self._nodes[peer])


class _Log(LibraryJournal):  # type: ignore[misc]
    """The library's journal, over our storage; the library itself only reads, and saves votes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getitem__(self, position: int) -> tuple[bytes, int, int]:
        log = self._storage.log
        index = range(log.base_index, log.last_index + 1)[position]
        term = log.term_at(index)
        assert term is not None
        return b"", index, term  # the library asks for the last index and term alone

    def __len__(self) -> int:
        return len(self._storage.log)

    def setCurrentTerm(self, term: int, vote: str | None) -> None:  # noqa: N802
        self._storage.save_vote(term, vote)

    def _destroy(self) -> None:
        self._storage.close()


class _NoPoller:
    """The library's poller has nothing to poll: sockets belong to the event loop."""

    def poll(self, _timeout: float) -> None:
        return


class _Turn:
    """Whatever goes wrong inside stops the node: half a turn must not be built upon.

    But for a full disk: it is met before anything has changed, and what was to be done is lost
    like a message; it is repeated by its rules.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if isinstance(error, DiskFull):
            self._engine.found_no_room(error)
            return True
        self._engine.halt(f"{type(error).__name__}: {error}")
        return isinstance(error, OSError | Halted)


class Engine(LibraryObject):  # type: ignore[misc]
    """One member's Raft state, and the turns in which it changes.

    `storage` is open and loaded into `machine`; `network` is not started yet.
    """

    def __init__(
        self,
        name: str,
        members: list[str],
        storage: Storage,
        machine: StateMachine,
        settings: RaftSettings,
        clock: Callable[[], float],
        rng: random.Random,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        observers: list[Observer],
        stats: Stats,
    ) -> None:
        # The library looks at every attribute while it is being built: ours come first.
        self.name = name
        self.members = sorted(members)
        self.others = [member for member in self.members if member != name]
        self.storage = storage
        self.machine = machine
        self.settings = settings
        self.clock = clock
        self.stats = stats
        self.halted: str | None = None
        self.level = 1
        """The highest feature level of this node's release; leaders are told."""
        self.leadership: Leadership | None = None
        self.known_commit_index = 0
        """The highest position that a leader has told to be committed, here or not yet here."""
        self.handing_over = False
        self._disk = DiskWatch(self)
        self.space = self._disk.space
        self.fsync_observers: list[Callable[[float], None]] = []
        self._loop = loop
        self._observers = observers
        self._nodes = {member: Node(member) for member in self.members}
        self._connected: set[str] = set()
        self._turn = _Turn(self)
        self._applying = False
        self._apply_scheduled = False
        self._apply_ends: float | None = None
        self.apply_s = 0.0
        self._flush_scheduled = False
        self._zeros_scheduled = False
        self.timer = ElectionTimer(settings, rng)
        self._candidacy = Candidacy(self)
        self._following = Following(self)
        self.membership = Membership(self)
        self.reading = Reading(self, rng.getrandbits(48))
        self.snapshotting = Snapshotting(self)
        self.link = _Link(network, self._nodes)
        super().__init__(
            self._nodes[name],
            [self._nodes[other] for other in self.others],
            conf=SyncObjConf(
                autoTick=False,
                dynamicMembershipChange=False,  # M1
                fullDumpFile=None,
                journalFile=None,
            ),
            transport=self.link,
        )
        self._poller = _NoPoller()
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__raftLog = _Log(storage)
        self._SyncObj__raftCurrentTerm = storage.metadata.term
        self._SyncObj__votedForNodeId = storage.metadata.vote
        # C1: what is committed beyond the snapshot is learnt anew from the next leader.
        self._SyncObj__raftCommitIndex = storage.position.index
        self._SyncObj__raftLastApplied = storage.position.index
        self.timer.reset(clock())

    # The library's state, under our names.

    @property
    def role(self) -> Role:
        return _ROLES[self._SyncObj__raftState]

    @property
    def term(self) -> int:
        term: int = self._SyncObj__raftCurrentTerm
        return term

    @property
    def vote(self) -> str | None:
        vote: str | None = self._SyncObj__votedForNodeId
        return vote

    @property
    def leader(self) -> str | None:
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    @property
    def commit_index(self) -> int:
        index: int = self._SyncObj__raftCommitIndex
        return index

    @property
    def applied_index(self) -> int:
        index: int = self._SyncObj__raftLastApplied
        return index

    @property
    def last_index(self) -> int:
        return self.storage.log.last_index

    @property
    def last_term(self) -> int:
        return self.storage.log.last_term

    @property
    def log(self) -> MemoryLog:
        return self.storage.log

    def connected(self, peer: str) -> bool:
        return peer in self._connected

    def send(self, peer: str, message: Message) -> None:
        """Send, or lose: every message may be lost, and is repeated by its rules."""
        self.link.send(self._nodes[peer], message)

    # Changes of role.

    def save_term(self, term: int, vote: str | None) -> None:
        """Take a term and a vote; they are durable on return. DiskFull: neither is taken."""
        self.storage.save_vote(term, vote)
        self._SyncObj__setCurrentTerm(term, vote)

    def become_candidate(self) -> None:
        assert self.leadership is None
        self.save_term(self.term + 1, self.name)
        self._SyncObj__setState(_CANDIDATE)
        self._SyncObj__raftLeader = None
        self.stats.elections += 1

    def become_leader(self) -> None:
        assert self.role == "candidate"
        assert self.vote == self.name
        assert self.membership.votes
        self._SyncObj__setState(_LEADER)
        self._SyncObj__raftLeader = self._nodes[self.name]
        self.stats.leaderships += 1
        _logger.info("%s leads term %d", self.name, self.term)
        self.leadership = Leadership(self)
        self.leadership.begin()

    def step_down(self, term: int) -> None:
        """Follow in `term`, whoever leads it."""
        if term > self.term:
            self.save_term(term, None)
        self._candidacy.abandon()
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None
        self.timer.reset(self.clock())
        self._disk.lost_leadership()
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            _logger.info("%s leads no more, term %d", self.name, self.term)
            leadership.close()
            self.reading.lost("this node leads no more")
            if leadership.announced:
                self._notify(lambda observer: observer.on_leadership(None))

    def follow(self, leader: str) -> None:
        """A message of this term's leader has come."""
        if self.leadership is not None:
            raise Halted(f"{leader} and {self.name} both lead term {self.term}")
        node = self._nodes[leader]
        if self._SyncObj__raftLeader is not node:  # who stands for election knows no leader
            self._candidacy.abandon()
            self._SyncObj__setState(_FOLLOWER)
            self._SyncObj__raftLeader = node
            self.membership.follow()
        self.timer.heard_leader(self.clock())

    def forget_leader(self) -> None:
        self._SyncObj__raftLeader = None
        self.timer.forget_leader()

    def must_not_be_disturbed(self) -> bool:
        """Whether a leader is alive as far as this node can tell: others must not unseat it."""
        now = self.clock()
        if self.leadership is not None:
            return self.leadership.has_quorum(now)
        return self.timer.hears_leader(now)

    # Turns.

    def turn(self) -> _Turn:
        """What changes the state is done within one of these; see there."""
        return self._turn

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: ARG002, N802, N803
        if self.halted is not None:
            return
        with self.turn():
            now = self.clock()
            self.membership.tick(now)
            self._disk.tick(now)
            if self.leadership is not None:
                self.leadership.tick(now)
            else:
                self._candidacy.tick(now)
            self.reading.tick(now)

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:  # noqa: N802
        if self.halted is not None:
            return
        with self.turn():
            if self.membership.introduced(node.id, message):
                return
            if not self._candidacy.agree_on_term(node.id, message):
                return
            if self.leadership is not None and self.leadership.receive(node.id, message):
                return
            if self._following.receive(node.id, message):
                return
            if self.membership.admitted(node.id, message):
                return
            if self.reading.receive(node.id, message):
                return
            self._candidacy.receive(node.id, message)

    def _SyncObj__onNodeConnected(self, node: Node) -> None:  # noqa: N802
        self._connected.add(node.id)
        if self.halted is not None:
            return
        with self.turn():
            self.membership.connected(node.id)
            if self.leadership is not None:
                self.leadership.connected(node.id)

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        self._connected.discard(node.id)
        self.membership.disconnected(node.id)
        if self.leader == node.id:
            self._SyncObj__raftLeader = None
            self.timer.lost_link_to_leader(self.clock())

    def append(self, data: bytes) -> int:
        """Write an entry as leader and send it.

        Raises NotLeader or DiskFull when nothing was written, and OutcomeUnknown when this node
        stopped itself half way: a follower may hold the entry by then, and another leader commit
        it.
        """
        if self.leadership is not None and self.space.low:
            raise DiskFull("the disk has too little room to lead on")
        if self.leadership is None or self.handing_over or self.halted is not None:
            raise NotLeader(None if self.leader == self.name else self.leader)
        with self.turn():
            return self.leadership.append(data)
        raise OutcomeUnknown("the node stopped itself while it wrote the entry")

    def write(self, entry: Entry) -> None:
        """Take an entry into log and journal, and see that it becomes durable."""
        self.storage.append(entry)
        self.schedule_flush()

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        if self.halted is None:
            with self.turn():
                self.flush()
                self._apply_soon()
                if self.storage.journal.wants_zeros and not self._zeros_scheduled:
                    self._zeros_scheduled = True
                    self._loop.call_later(_ZEROS_DELAY_S, self._zeros_turn)

    def _zeros_turn(self) -> None:
        """Prepare the journal for what comes, while nobody waits for it."""
        self._zeros_scheduled = False
        if self.halted is None and not self.space.full:
            with self.turn():
                self.storage.journal.prepare()

    def flush(self) -> None:
        """Make durable what was written, then vouch for it."""
        if self.storage.unsynced:
            started = self.clock()
            self.stats.journal_bytes += self.storage.sync()
            ended = self.clock()
            self._disk.wrote(ended)
            for observe in self.fsync_observers:
                observe(ended - started)
        self._following.durable()
        if self.leadership is not None:
            self.leadership.count()

    # Commit, application, snapshots.

    def commit(self, index: int) -> None:
        """All up to `index` is committed; apply it, as a follower after what is to be vouched for.

        The flush that is scheduled goes on with it, once its acknowledgement has left.
        """
        if index > self.commit_index:
            assert index <= self.last_index
            self._SyncObj__raftCommitIndex = index
            if self.leadership is not None or not self._flush_scheduled:
                self._SyncObj__applyLogEntries()

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply what is committed, each entry once, for a bounded part of one turn."""
        if self._applying:
            return False  # an observer proposed: the loop below goes on with what it committed
        self._applying = True
        try:
            limit = self.applied_index + self.settings.max_apply_per_turn
            ends = self._applying_ends()
            while self.applied_index < min(self.commit_index, limit) and self.halted is None:
                if self.clock() >= ends:
                    break
                self._apply(self.storage.entry(self.applied_index + 1))
            self._SyncObj__tryLogCompaction()
        finally:
            self._applying = False
        self.reading.applied()
        self._apply_soon()
        return False

    def _applying_ends(self) -> float:
        """When applying is over for this turn of the loop, whatever it is called by."""
        if self._apply_ends is None:
            self._apply_ends = self.clock() + self.settings.max_apply_s
            self._loop.call_soon(self._begin_applying_anew)
        return self._apply_ends

    def _begin_applying_anew(self) -> None:
        self._apply_ends = None

    def _apply_soon(self) -> None:
        """Apply what is committed and not applied yet in the next turn."""
        if self.applied_index < self.commit_index and not self._apply_scheduled:
            self._apply_scheduled = True
            self._loop.call_soon(self._apply_turn)

    def _apply_turn(self) -> None:
        self._apply_scheduled = False
        if self.halted is None:
            with self.turn():
                self._SyncObj__applyLogEntries()

    def _apply(self, entry: Entry) -> None:
        if not entry.data:
            self._SyncObj__raftLastApplied = entry.index
        else:
            began = self.clock()
            applied = self.machine.apply(entry.index, entry.data)
            self.apply_s = self.clock() - began
            if applied.halt is not None:
                raise Halted(f"the entry {entry.index} cannot be applied: {applied.halt}")
            self._SyncObj__raftLastApplied = entry.index
            self.snapshotting.grown_bytes += len(entry.data)
            self.stats.entries_applied += 1
            for observer in self._observers:
                observer.on_applied(entry.index, entry.term, entry.data, applied)
        if self.leadership is not None and self.leadership.barrier_index == entry.index:
            self.leadership.announced = True
            term = self.term
            self._notify(lambda observer: observer.on_leadership(term))
            if self.leadership is not None:
                self.leadership.rounds.begin()

    def _notify(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            call(observer)

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        self.snapshotting.consider()

    def install(self, snapshot: Snapshot) -> None:
        """Go on from a received snapshot, which is verified and loaded into the state machine."""
        index = snapshot.position.index
        assert index > self.applied_index
        self.snapshotting.abandon()
        self.storage.install(snapshot)
        self._SyncObj__raftCommitIndex = index
        self._SyncObj__raftLastApplied = index
        self.snapshotting.grown_bytes = 0
        self.stats.last_snapshot_index = index
        self.stats.snapshots_installed += 1
        self._notify(lambda observer: observer.on_installed(index))
        self.reading.applied()

    # The end.

    async def end_tasks(self) -> None:
        """End what is done beside the turns: a snapshot, an installation."""
        self._following.abandon()
        self.snapshotting.abandon()
        await self.snapshotting.ended()

    def found_no_room(self, error: DiskFull) -> None:
        """What was to be written found no room, and nothing has changed."""
        self._disk.found_no_room(error)

    def halt(self, reason: str) -> None:
        """Stop for good: nothing is sent, written, applied or accepted any more."""
        if self.halted is not None:
            return
        self.halted = reason
        _logger.critical("%s has stopped itself: %s", self.name, reason)
        leadership, self.leadership = self.leadership, None
        self._candidacy.abandon()
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None
        if leadership is not None:
            leadership.close()
            if leadership.announced:
                self._notify(lambda observer: observer.on_leadership(None))
        self._notify(lambda observer: observer.on_halt(reason))
        self.reading.end()

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work)

    def create_future(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback)

    # The library's own ways in, closed.

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        if self.leadership is not None:
            self.leadership.broadcast()

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: ARG002, N802, N803
        raise AssertionError("snapshots are loaded by our storage")

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        raise AssertionError("proposals come through append")

    def _applyCommand(self, *_command: object) -> None:  # noqa: N802
        raise AssertionError("proposals come through append")

"""Three nodes in one process, under virtual time, on a simulated network and disks.

Everything that production code would ask of the system is handed in: the loop's time only moves
when nothing is left to do, messages go through one seeded wire, files know what is synced.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import hashlib
import random
import selectors
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from timeball.cluster.raft.consensus import Consensus
from timeball.cluster.raft.errors import Misconfigured
from timeball.cluster.raft.interface import Observer
from timeball.cluster.raft.messages import (
    Append,
    AppendReply,
    Introduction,
    Message,
    PreVoteReply,
    PreVoteRequest,
    SnapshotReply,
    VoteReply,
)
from timeball.cluster.raft.settings import RaftSettings


class VirtualSelector(selectors.BaseSelector):
    """Selects nothing, and lets the time pass that it was to wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj, events, data=None):
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj):
        return self._keys.pop(fileobj)

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("nothing will ever happen any more")
        self.now += max(0.0, timeout)
        return []

    def get_map(self):
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        self.failures: list[dict[str, Any]] = []
        super().__init__(self.virtual)
        self.set_exception_handler(lambda _loop, context: self.failures.append(context))

    def time(self) -> float:
        return self.virtual.now


def virtual(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test under virtual time; an exception in any callback fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(test(*args, **kwargs))
            leftovers = asyncio.all_tasks(loop)
            for task in leftovers:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
            assert loop.failures == []
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    return run


class Applied(msgspec.Struct):
    verdicts: list[Any]
    halt: str | None = None


class ListLoading:
    def __init__(self, machine: ListMachine) -> None:
        self._machine = machine
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> Iterator[None]:
        self._machine.load(self._chunks)
        return self._let_go()

    def _let_go(self) -> Iterator[None]:
        yield
        self._machine.let_go += 1


class ListMachine:
    """Keeps all entries that were applied, in order."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []
        self.refuse: str | None = None
        self.explode = False
        self.calls: list[int] = []
        self.under_way: Any = None
        self.loads = self.let_go = 0
        """Loads that began, and states that were let go of after one."""

    def apply(self, index: int, entry: bytes) -> Applied:
        self.calls.append(index)
        if self.explode:
            raise RuntimeError("a fault in apply")
        if self.refuse is not None:
            return Applied([], halt=self.refuse)
        self.applied.append((index, entry))
        return Applied([(index, position) for position in range(len(operations(entry)))])

    def dump(self) -> Generator[bytes, None, None]:
        assert self.under_way is None or self.under_way.gi_frame is None, "one dump at a time"
        self.under_way = self._dump(list(self.applied))
        return self.under_way

    def _dump(self, applied: list[tuple[int, bytes]]) -> Generator[bytes, None, None]:
        for start in range(0, len(applied), 3):
            yield msgspec.msgpack.encode(applied[start : start + 3])

    def load(self, chunks: Iterable[bytes]) -> None:
        loaded: list[tuple[int, bytes]] = []
        for chunk in chunks:
            try:
                loaded += msgspec.msgpack.decode(chunk, type=list[tuple[int, bytes]])
            except msgspec.MsgspecError as error:
                raise ValueError("not a dump") from error
        self.applied = loaded

    def loading(self) -> ListLoading:
        self.loads += 1
        return ListLoading(self)

    def digest(self) -> str:
        return hashlib.sha256(repr(self.applied).encode()).hexdigest()

    def entries(self) -> list[bytes]:
        return [entry for _, entry in self.applied]


def encode_entry(log_time_ms: int, ops: Iterable[Any]) -> bytes:
    return msgspec.msgpack.encode([log_time_ms, list(ops)])


def operations(entry: bytes) -> list[Any]:
    """The operations of an entry made by `encode_entry`; any other entry is one operation."""
    try:
        _, ops = msgspec.msgpack.decode(entry, type=tuple[int, list[Any]])
    except msgspec.MsgspecError:
        return [entry]
    return ops


class _Data:
    """The content of one file: as written, and as it would be after a loss of power."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.synced = b""


SECTOR = 512


def _survivor(data: _Data, rng: random.Random) -> bytes:
    """What a loss of power leaves of a file: all that was synced, and of the rest any part.

    Its size is the synced one or one on the way to the written one. What was written over is kept
    or lost sector by sector, in any order; what was added is kept up to a point, or as zeros.
    """
    old, new = data.synced, bytes(data.written)
    size = rng.randint(min(len(old), len(new)), max(len(old), len(new)))
    if len(new) < len(old):
        size = rng.choice([len(old), len(new)])  # cut in one step
        return (new + old[len(new) :])[:size]
    zeroed = rng.random() < 0.5
    survivor = bytearray(size)
    for start in range(0, size, SECTOR):
        end = min(start + SECTOR, size)
        before = old[start:end].ljust(end - start, b"\0")
        kept = rng.random() < 0.5 or new[start:end] == before
        tail = start >= len(old)
        survivor[start:end] = new[start:end] if kept or (tail and not zeroed) else before
    return bytes(survivor)


class SimFile:
    def __init__(self, disk: SimDisk, data: _Data, path: Path) -> None:
        self._disk = disk
        self._data = data
        self._path = path

    def append(self, data: bytes) -> None:
        self.write(len(self._data.written), data)

    def write(self, offset: int, data: bytes) -> None:
        self._disk.may_fail("append", self._path)
        assert offset <= len(self._data.written), "a hole"
        room = self._disk.room(self._data, offset + len(data) - len(self._data.written))
        self._data.written[offset : offset + len(data)] = data
        if room < 0:  # what found room is written: the start
            del self._data.written[room:]
            raise OSError(errno.ENOSPC, "No space left on device", str(self._path))

    def read(self, offset: int, length: int) -> bytes:
        self._disk.may_fail("read", self._path)
        return bytes(self._data.written[offset : offset + length])

    def size(self) -> int:
        return len(self._data.written)

    def truncate(self, size: int) -> None:
        self._disk.may_fail("truncate", self._path)
        del self._data.written[size:]

    def sync(self) -> None:
        self._disk.may_fail("sync", self._path)
        self._disk.syncs += 1
        self._data.synced = bytes(self._data.written)

    def close(self) -> None:
        return


class SimLock:
    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def close(self) -> None:
        self._disk.locked = False


class SimDisk:
    """One node's disk. `crash` keeps what was synced, and of the rest what chance leaves."""

    def __init__(self) -> None:
        self.files: dict[Path, _Data] = {}
        self.durable: dict[Path, _Data] = {}
        self.locked = False
        self.syncs = 0
        self.fail: dict[str, OSError] = {}
        """Actions that fail, such as "sync", or "sync journal-" on files of such names alone."""
        self.capacity: int | None = None
        """How many bytes all files together may have."""

    def may_fail(self, action: str, path: Path) -> None:
        for key, error in self.fail.items():
            failing, _, prefix = key.partition(" ")
            if failing == action and path.name.startswith(prefix):
                raise error

    @property
    def used(self) -> int:
        return sum(len(data.written) for data in self.files.values())

    def room(self, data: _Data, growth: int) -> int:
        """What is left after a file has grown; negative when it does not find room."""
        if self.capacity is None or growth <= 0:
            return 0
        return min(0, self.capacity - self.used - growth)

    def free_bytes(self, directory: Path) -> int:
        return 2**40 if self.capacity is None else max(0, self.capacity - self.used)

    def lock(self, directory: Path) -> SimLock:
        if self.locked:
            raise Misconfigured(f"{directory} is in use by another process")
        self.locked = True
        return SimLock(self)

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.files if path.parent == directory)

    def create(self, path: Path) -> SimFile:
        self.may_fail("create", path)
        self.files[path] = _Data()
        return SimFile(self, self.files[path], path)

    def open(self, path: Path) -> SimFile:
        if path not in self.files:
            raise FileNotFoundError(path)
        self.may_fail("open", path)
        return SimFile(self, self.files[path], path)

    def replace(self, source: Path, target: Path) -> None:
        self.may_fail("replace", target)
        self.files[target] = self.files.pop(source)

    def remove(self, path: Path) -> None:
        self.may_fail("remove", path)
        del self.files[path]

    def sync_directory(self, directory: Path) -> None:
        self.may_fail("sync", directory)
        self.durable = dict(self.files)

    async def aside(self, work: Callable[[], None]) -> None:
        work()

    def crash(self, rng: random.Random) -> None:
        """Lose power."""
        names = sorted({*self.files, *self.durable})
        chosen = {path: rng.choice([self.files, self.durable]).get(path) for path in names}
        self.files = {path: data for path, data in chosen.items() if data is not None}
        for data in self.files.values():
            data.synced = _survivor(data, rng)
            data.written = bytearray(data.synced)
        self.durable = dict(self.files)
        self.locked = False

    def wipe(self) -> None:
        self.files = {}
        self.durable = {}
        self.locked = False


class Wire:
    """The network of a cluster: latency, and on demand loss, repetition, reordering and cuts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self.endpoints: dict[str, Endpoint] = {}
        self.cut: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.repetition = 0.0
        self.reordering = 0.0
        self.latency_s = 0.0005
        self.paused: dict[str, list[Callable[[], None]]] = {}
        self.tap: Callable[[str, str, Message], bool] | None = None
        """Sees each message; False drops it."""
        self.sent: list[tuple[str, str, Message]] = []
        self._last: dict[tuple[str, str], float] = {}

    def join(self, endpoint: Endpoint) -> None:
        for other in self.endpoints.values():
            self._loop.call_soon(self._connect, endpoint, other)
        self.endpoints[endpoint.name] = endpoint

    def _connect(self, one: Endpoint, other: Endpoint) -> None:
        if one.alive and other.alive:
            one.receiver.on_connected(other.name)
            other.receiver.on_connected(one.name)

    def leave(self, endpoint: Endpoint) -> None:
        endpoint.alive = False
        if self.endpoints.get(endpoint.name) is endpoint:
            del self.endpoints[endpoint.name]
            for other in self.endpoints.values():
                self._loop.call_soon(self._disconnect, other, endpoint.name)

    def _disconnect(self, endpoint: Endpoint, gone: str) -> None:
        if endpoint.alive:
            self._deliver(endpoint, lambda: endpoint.receiver.on_disconnected(gone))

    def break_link(self, one: str, other: str) -> None:
        """Both ends see their connection break, and a new one stand at once."""
        a, b = self.endpoints[one], self.endpoints[other]
        a.receiver.on_disconnected(other)
        b.receiver.on_disconnected(one)
        self._loop.call_soon(self._connect, a, b)

    def send(self, source: Endpoint, target_name: str, message: Message) -> bool:
        target = self.endpoints.get(target_name)
        self.sent.append((source.name, target_name, message))
        if target is None or not source.alive:
            return False
        raw = msgspec.msgpack.encode(message)
        if self.tap is not None and not self.tap(source.name, target_name, message):
            return True
        copies = 1 + (self._rng.random() < self.repetition)
        for _ in range(copies):
            if self._rng.random() < self.loss or (source.name, target_name) in self.cut:
                continue
            when = self._loop.time() + self.latency_s
            if self._rng.random() < self.reordering:
                when += self._rng.uniform(0, 0.1)
            else:  # asyncio does not keep the order of timers for the same instant
                link = (source.name, target_name)
                when = self._last[link] = max(when, self._last.get(link, 0.0) + 1e-7)
            self._loop.call_at(when, self._arrive, source, target, raw)
        return True

    def _arrive(self, source: Endpoint, target: Endpoint, raw: bytes) -> None:
        if not target.alive or not source.alive:
            return
        if (source.name, target.name) in self.cut:
            return
        message = msgspec.msgpack.decode(raw, type=Message)
        self._deliver(target, lambda: target.receiver.on_message(source.name, message))

    def _deliver(self, target: Endpoint, call: Callable[[], None]) -> None:
        if target.name in self.paused:
            self.paused[target.name].append(call)
        else:
            call()


class Endpoint:
    """One node's network."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self.name = name
        self.alive = False
        self.receiver: Any = None

    async def start(self, receiver: Any) -> None:
        self.receiver = receiver
        self.alive = True
        self._wire.join(self)

    async def stop(self) -> None:
        self._wire.leave(self)

    def send(self, peer: str, message: Message) -> bool:
        return self._wire.send(self, peer, message)


class Recorder(Observer):
    def __init__(self) -> None:
        self.applied: list[tuple[int, int, bytes]] = []
        self.leadership: list[int | None] = []
        self.installed: list[int] = []
        self.halts: list[str] = []

    def on_applied(self, index, term, entry, applied):
        self.applied.append((index, term, entry))

    def on_leadership(self, term):
        self.leadership.append(term)

    def on_installed(self, index):
        self.installed.append(index)

    def on_halt(self, reason):
        self.halts.append(reason)


class Member:
    """One node, over all its lives; the disk stays."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk = SimDisk()
        self.up = False
        self.consensus: Consensus
        self.endpoint: Endpoint
        self.machine: ListMachine
        self.recorder: Recorder

    @property
    def engine(self) -> Any:
        return self.consensus._engine

    @property
    def leads(self) -> bool:
        return self.up and self.consensus.leading_term is not None


class Cluster:
    """Members that can be started, killed, cut off, paused and emptied."""

    def __init__(self, names: str = "abc", seed: int = 1, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.rng = random.Random(seed)
        self.settings = RaftSettings(**{"journal_step_bytes": 1024, **settings})
        self.wire = Wire(self.loop, self.rng)
        self.members = {name: Member(name) for name in names}

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def new_machine(self, name: str) -> Any:
        return ListMachine()

    def joined(self, member: Member) -> None:
        """Called for a member that is put together and not yet started."""

    async def start(self, *names: str, observers: Iterable[Observer] = ()) -> Cluster:
        for name in names or self.members:
            member = self.members[name]
            assert not member.up
            member.endpoint = Endpoint(self.wire, name)
            member.machine = self.new_machine(name)
            member.recorder = Recorder()
            member.consensus = Consensus(
                name,
                dict.fromkeys(self.members, ("127.0.0.1", 1)),
                Path("/data"),
                b"s" * 32,
                member.machine,
                self.settings,
                clock=self.loop.time,
                rng=random.Random(self.rng.random()),
                level=getattr(member.machine, "supported_level", 1),
                network=member.endpoint,
                disk=member.disk,
            )
            for observer in (member.recorder, *observers):
                member.consensus.add_observer(observer)
            self.joined(member)
            await member.consensus.start()
            member.up = True
        return self

    def kill(self, name: str, power_lost: bool = False) -> None:
        """The process is gone in this very turn, without a word."""
        member = self.members[name]
        member.up = False
        member.engine.halted = "killed"
        if member.consensus._ticker is not None:
            member.consensus._ticker.cancel()
        self.wire.leave(member.endpoint)
        self.wire.paused.pop(name, None)
        member.disk.locked = False
        if power_lost:
            member.disk.crash(self.rng)

    def pause(self, name: str) -> None:
        """Like SIGSTOP: neither ticks nor reads."""
        self.wire.paused[name] = []
        self.members[name].consensus._ticker.cancel()

    def resume(self, name: str) -> None:
        """The timer comes first, then what waited in the sockets: the worse order."""
        waiting = self.wire.paused.pop(name)
        self.members[name].consensus._tick()
        for call in waiting:
            call()

    def isolate(self, name: str) -> None:
        for other in self.members:
            if other != name:
                self.wire.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        self.wire.cut.clear()

    @property
    def leader(self) -> Member | None:
        """The leader of the highest term, if it has its barrier applied."""
        leaders = [member for member in self.members.values() if member.leads]
        return max(leaders, key=lambda member: member.consensus.term, default=None)

    async def wait(self, condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
        deadline = self.loop.time() + limit_s
        while not (found := condition()):
            assert self.loop.time() < deadline, "it did not come about in time"
            await asyncio.sleep(0.005)
        return found

    async def elected(self) -> Member:
        return await self.wait(lambda: self.leader)

    async def propose(self, *entries: bytes) -> int:
        """Append entries at the leader and wait until all that are up have applied them."""
        leader = await self.elected()
        index = 0
        for entry in entries:
            index = leader.consensus.append(entry)
        await self.settled(index)
        return index

    async def snapshot(self, name: str) -> int:
        """Have a node take a snapshot of all that it has applied; its position."""
        consensus = self.members[name].consensus
        await self.wait(lambda: not consensus.stats.snapshot_under_way)
        index = consensus.take_snapshot()
        await self.wait(lambda: not consensus.stats.snapshot_under_way)
        assert consensus.stats.last_snapshot_index == index
        return index

    async def settled(self, index: int = 0) -> None:
        """Wait until all that are up agree."""
        up = [member for member in self.members.values() if member.up]

        def agreed() -> bool:
            leader = self.leader
            if leader is None:
                return False
            last = max(index, leader.consensus.last_index)
            return all(member.consensus.applied_index == last for member in up)

        await self.wait(agreed)
        assert len({member.machine.digest() for member in up}) == 1

    def followers(self) -> list[Member]:
        leader = self.leader
        return [m for m in self.members.values() if m.up and m is not leader]


class Puppet:
    """One real node, `a`, whose peers are played by the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @classmethod
    async def start(cls, names: str = "abc", *, found: bool = True, **settings: Any) -> Puppet:
        puppet = cls(Cluster(names, **settings))
        await puppet.restart(found)
        return puppet

    async def restart(self, found: bool = True) -> None:
        await self.cluster.start("a")
        for peer in self.peers:
            self.node.endpoint.receiver.on_connected(peer)
        if found:
            self.found()

    def found(self) -> None:
        """The other members are blank too, and say that they see the same."""
        founders = {**dict.fromkeys(self.peers, 7), "a": self.consensus.incarnation}
        for peer in self.peers:
            self.say(peer, Introduction(0, 7, "blank", founders))
        assert self.consensus.standing == "voter"
        self.cluster.wire.sent.clear()

    @property
    def peers(self) -> list[str]:
        return [name for name in self.cluster.members if name != "a"]

    @property
    def node(self) -> Member:
        return self.cluster["a"]

    @property
    def consensus(self) -> Consensus:
        return self.node.consensus

    def say(self, peer: str, message: Message) -> None:
        self.node.endpoint.receiver.on_message(peer, message)

    def heard(self, kind: type[Any] | None = None, peer: str | None = None) -> list[Any]:
        """What the node has said since it was last asked; its disk's number reads as 0."""
        said = [(to, self._anonymous(message)) for _, to, message in self.cluster.wire.sent]
        self.cluster.wire.sent.clear()
        return [
            message
            for to, message in said
            if (kind is None or isinstance(message, kind)) and (peer is None or peer == to)
        ]

    def _anonymous(self, message: Message) -> Message:
        if not isinstance(message, AppendReply | SnapshotReply):
            return message
        assert message.incarnation == self.consensus.incarnation
        return msgspec.structs.replace(message, incarnation=0)

    async def installed(self) -> None:
        """Let what was received be installed, or refused."""
        engine = self.node.engine
        for _ in range(10_000):
            if engine._following._installation is None or engine.halted is not None:
                return
            await asyncio.sleep(0)
        raise AssertionError("the installation never ended")

    async def settle(self) -> None:
        """Let the node's next turns pass, but no time."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def lead(self) -> int:
        """Make the node leader of the next term, barrier not yet committed; the term."""
        await self.cluster.wait(lambda: self.heard(PreVoteRequest))
        term = self.consensus.term
        self.say("b", PreVoteReply(term, term, granted=True))
        for peer in list(self.cluster.members)[1:]:
            self.say(peer, PreVoteReply(term, term, granted=True))
        for peer in list(self.cluster.members)[1:]:
            self.say(peer, VoteReply(self.consensus.term, granted=True))
        await self.settle()
        assert self.consensus.role == "leader"
        return self.consensus.term

    def follow(self, *entries: tuple[int, bytes], prev: tuple[int, int] = (0, 0), **more: Any):
        """An append from `b`, in the term of its last entry unless told otherwise."""
        term = more.pop("term", entries[-1][0] if entries else self.consensus.term)
        commit = more.pop("commit", 0)
        self.say("b", Append(term, *prev, commit, list(entries)))

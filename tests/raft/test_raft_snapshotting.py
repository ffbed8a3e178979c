"""How a node takes snapshots beside its work: turns, pace, failures, and what may come between."""

from __future__ import annotations

import ast
import asyncio
import errno
import itertools
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from raft_harness import Cluster, ListMachine, Member, Puppet, SimDisk, virtual

from timeball.cluster.raft import storage as storage_module
from timeball.cluster.raft.disk import RealDisk
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.errors import Halted, SnapshotUnderWay
from timeball.cluster.raft.messages import AppendReply, SnapshotChunk, SnapshotReply
from timeball.cluster.raft.metadata import cluster_id
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.snapshots import Position

NEVER = 10**9
WRITING = Path("/data/writing.tmp")


def under_way(member: Member) -> bool:
    return member.consensus.stats.snapshot_under_way


async def begun(cluster: Cluster, member: Member) -> int:
    """A snapshot of some chunks, of which some are written."""
    index = member.consensus.take_snapshot()
    for _ in range(3):
        await asyncio.sleep(0)
    assert WRITING in member.disk.files
    return index


async def filled(cluster: Cluster, entries: int = 200) -> Member:
    await cluster.start()
    await cluster.propose(*[b"%d" % n for n in range(entries)])
    return await cluster.elected()


@virtual
async def test_members_take_turns():
    cluster = await Cluster(snapshot_entries=90).start()
    seen: dict[str, set[int]] = {name: set() for name in "abc"}
    together = 0

    def look() -> None:
        nonlocal together
        together = max(together, sum(map(under_way, cluster.members.values())))
        for name, member in cluster.members.items():
            seen[name].add(member.consensus.stats.last_snapshot_index)

    for number in range(500):
        await cluster.propose(b"%d" % number)
        look()
    assert together == 1
    marks = {name: {index % 90 for index in indexes - {0}} for name, indexes in seen.items()}
    assert [len(indexes) for indexes in seen.values()] >= [5, 5, 5]
    assert all(len(found) == 1 for found in marks.values()), marks
    assert sorted(mark for found in marks.values() for mark in found) == [0, 30, 60]


@virtual
async def test_a_log_that_grows_by_too_many_bytes_is_cut_whatever_the_marks():
    cluster = Cluster(snapshot_entries=NEVER, snapshot_bytes=1_000)
    member = await filled(cluster, 1)
    await cluster.propose(bytes(990))
    assert member.consensus.stats.last_snapshot_index == 0
    await cluster.propose(bytes(10))
    await cluster.wait(lambda: member.consensus.stats.last_snapshot_index == 4)
    for name in "abc":
        await cluster.wait(lambda name=name: not under_way(cluster[name]))
    await cluster.propose(bytes(990))
    await asyncio.sleep(1)
    taken = [cluster[name].consensus.stats.snapshots_taken for name in "abc"]
    assert taken == [1, 1, 1], "it counts anew from the snapshot"


@virtual
async def test_a_snapshot_after_a_mark_that_was_missed_is_not_put_off_for_ever():
    cluster = Cluster("a", snapshot_entries=40)
    member = await filled(cluster, 30)
    await cluster.snapshot("a")
    await cluster.propose(*[b"x"] * 15)
    assert member.consensus.stats.snapshots_taken == 1, "half of the entries are too few"
    await cluster.propose(*[b"x"] * 40)
    await cluster.wait(lambda: member.consensus.stats.snapshots_taken == 2)


@virtual
async def test_what_is_applied_meanwhile_is_not_in_the_snapshot():
    cluster = Cluster(snapshot_entries=NEVER, trailing_entries=1)
    member = await filled(cluster)
    index = await begun(cluster, member)
    await cluster.propose(*[b"later"] * 5)
    assert under_way(member)
    await cluster.wait(lambda: not under_way(member))
    newest = member.engine.storage.snapshots.newest()
    assert newest.position == member.engine.storage.position == Position(index, 1)
    loaded = ListMachine()
    loaded.load(newest.chunks())
    assert loaded.entries() == [b"%d" % n for n in range(200)]
    assert member.engine.log.base_index == index - 1
    for name in "abc":
        cluster.kill(name, power_lost=True)
    await cluster.start()
    await cluster.settled()
    assert member.machine.entries()[-5:] == [b"later"] * 5


@virtual
async def test_one_snapshot_at_a_time_and_none_of_the_same_position_twice():
    cluster = Cluster(snapshot_entries=NEVER)
    member = await filled(cluster)
    index = await begun(cluster, member)
    with pytest.raises(SnapshotUnderWay, match=str(index)):
        member.consensus.take_snapshot()
    await cluster.wait(lambda: not under_way(member))
    assert member.consensus.take_snapshot() == index
    assert not under_way(member)
    member.consensus.halt("a test")
    with pytest.raises(Halted):
        member.consensus.take_snapshot()


class Failing:
    """A file whose nth call of one method fails."""

    def __init__(self, file: Any, method: str, calls: int) -> None:
        self._file, self._method, self._left = file, method, calls

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            self._left -= 1
            if self._left < 0:
                raise OSError(errno.ENOSPC, "no space left on device")
        return getattr(self._file, name)


@pytest.mark.parametrize(("method", "calls"), [("append", 0), ("append", 7), ("sync", 0)])
@virtual
async def test_a_snapshot_that_can_not_be_written_is_given_up(method: str, calls: int):
    cluster = Cluster(snapshot_entries=NEVER, snapshot_bytes=NEVER)
    member = await filled(cluster)
    before = await cluster.snapshot(member.name)
    await cluster.propose(b"more")
    create = member.disk.create

    def full(path: Path) -> Any:
        file = create(path)
        return Failing(file, method, calls) if path == WRITING else file

    member.disk.create = full
    index = member.consensus.take_snapshot()
    await cluster.wait(lambda: not under_way(member))
    stats = member.consensus.stats
    assert (stats.snapshot_failures, stats.last_snapshot_index) == (1, before)
    assert member.consensus.halted is None
    assert WRITING not in member.disk.files
    member.disk.create = create
    assert await cluster.snapshot(member.name) == index


@virtual
async def test_a_disk_that_stays_full_is_not_tried_again_at_every_entry():
    cluster = Cluster("a", snapshot_entries=100, snapshot_bytes=1)
    await cluster.start()
    member = await cluster.elected()
    create = member.disk.create
    member.disk.create = lambda path: Failing(
        create(path), "append", 0 if path == WRITING else NEVER
    )
    for number in range(50):
        await cluster.propose(b"%d" % number)
    assert member.consensus.stats.snapshot_failures == 5


@virtual
async def test_what_a_snapshot_makes_superfluous_goes():
    cluster = Cluster("a", snapshot_entries=NEVER, segment_bytes=500, trailing_entries=10)
    member = await filled(cluster, 50)
    indexes = []
    for _ in range(3):
        indexes.append(await cluster.snapshot("a"))
        await cluster.propose(*[b"%d" % n for n in range(50)])
    names = member.disk.names(Path("/data"))
    found = [int(name[9:]) for name in names if name.startswith("snapshot-")]
    assert found == indexes[1:]
    first, second = sorted(int(name[8:]) for name in names if name.startswith("journal-"))[:2]
    assert first <= indexes[1] + 1 < second
    assert member.engine.log.base_index == indexes[-1] - 10


def test_memory_lets_go_of_entries_in_small_steps(monkeypatch):
    monkeypatch.setattr(storage_module, "_FORGOTTEN_AT_ONCE", 10)
    storage = storage_module.Storage(SimDisk(), Path("/data"), RaftSettings(trailing_entries=5))
    storage.open(cluster_id("timeball", "a"), "a", ListMachine())
    for index in range(1, 41):
        storage.append(Entry(b"", index, 0))
    storage.position = Position(30, 0)
    steps = []
    while True:
        more = storage.forget_some()
        steps.append(storage.log.base_index)
        if not more:
            break
    assert steps == [10, 20, 25]


@virtual
async def test_a_snapshot_that_the_log_in_memory_does_not_follow_is_not_sent():
    """Its head is damaged, so the one before is found; it would have to be followed by another."""
    cluster = await Cluster(snapshot_entries=NEVER, trailing_entries=1).start()
    leader = await cluster.elected()
    for _ in range(2):
        await cluster.propose(*[b"x"] * 20)
        await cluster.snapshot(leader.name)
    name = cluster.followers()[0].name
    cluster.kill(name)
    cluster[name].disk.wipe()
    newest = max(path for path in leader.disk.files if path.name.startswith("snapshot-"))
    leader.disk.files[newest].written[0] ^= 1
    await cluster.start(name)
    await cluster.settled()
    assert cluster[name].recorder.installed == [leader.engine.storage.position.index]
    assert newest.with_name(newest.name + ".damaged") in leader.disk.files


async def donated(entries: int = 300) -> tuple[bytes, Position]:
    """The file of a snapshot, and its position."""
    donor = Cluster("a", snapshot_entries=NEVER)
    node = await filled(donor, entries)
    await donor.snapshot("a")
    path = max(path for path in node.disk.files if path.name.startswith("snapshot-"))
    position = node.engine.storage.position
    await node.consensus.stop()
    return bytes(node.disk.files[path].written), position


async def receiving(**settings: Any) -> tuple[Puppet, SnapshotChunk]:
    """A node with ten entries that has received all of a snapshot, and its last message."""
    raw, at = await donated()
    puppet = await Puppet.start(snapshot_entries=NEVER, **settings)
    puppet.follow(*[(1, b"%d" % n) for n in range(10)], commit=10)
    await puppet.settle()
    chunk = SnapshotChunk(9, at.index, at.term, len(raw), 0, raw)
    puppet.say("b", chunk)
    puppet.heard()
    return puppet, chunk


@virtual
async def test_a_node_goes_on_while_it_installs():
    puppet, chunk = await receiving()
    await puppet.settle()
    puppet.follow(prev=(0, 0), term=9)
    await puppet.settle()
    assert [type(reply) for reply in puppet.heard(peer="b")] == [AppendReply]
    assert puppet.consensus.applied_index == 10
    puppet.say("b", chunk)  # repeated, since there was no answer
    await puppet.installed()
    assert puppet.heard(SnapshotReply) == [SnapshotReply(9, chunk.index, chunk.size, True)]
    assert len(puppet.node.machine.applied) == 300
    assert puppet.node.recorder.installed == [chunk.index]
    await puppet.settle()
    assert (puppet.node.machine.loads, puppet.node.machine.let_go) == (1, 1)


@virtual
async def test_another_snapshot_takes_the_place_of_the_one_being_installed():
    raw, at = await donated(400)
    puppet, _ = await receiving()
    await puppet.settle()
    other = SnapshotChunk(10, at.index, at.term, len(raw), 0, raw)
    puppet.say("c", other)
    await puppet.installed()
    assert puppet.heard(SnapshotReply) == [SnapshotReply(10, at.index, len(raw), True)]
    assert puppet.node.recorder.installed == [at.index]
    assert puppet.consensus.halted is None


@virtual
async def test_what_the_log_brings_while_a_snapshot_is_loaded_is_not_undone():
    puppet, chunk = await receiving()
    await puppet.settle()
    entries = [(9, b"%d" % n) for n in range(10, 310)]
    puppet.follow(*entries, prev=(10, 1), commit=310)
    await puppet.installed()
    assert puppet.consensus.applied_index == 310 > chunk.index
    assert puppet.node.recorder.installed == []
    puppet.say("b", chunk)
    assert puppet.heard(SnapshotReply)[-1] == SnapshotReply(9, chunk.index, chunk.size, True)
    await puppet.installed()
    assert len(puppet.node.machine.applied) == 310


@virtual
async def test_a_snapshot_of_another_position_than_was_told_is_refused():
    raw, at = await donated()
    puppet = await Puppet.start(snapshot_entries=NEVER)
    puppet.say("b", SnapshotChunk(9, at.index, at.term + 1, len(raw), 0, raw))
    await puppet.installed()
    assert puppet.heard(SnapshotReply) == [SnapshotReply(9, at.index, 0, installed=False)]
    assert puppet.node.machine.applied == []


@virtual
async def test_a_stop_ends_an_installation():
    puppet, _ = await receiving()
    await puppet.settle()
    await puppet.consensus.stop()
    await asyncio.sleep(1)
    assert len(puppet.node.machine.applied) == 10
    names = puppet.node.disk.names(Path("/data"))
    assert not [name for name in names if name.startswith("snapshot-")]


@virtual
async def test_a_halted_node_installs_nothing():
    puppet, _ = await receiving()
    await puppet.settle()
    puppet.consensus.halt("a test")
    await asyncio.sleep(1)
    assert len(puppet.node.machine.applied) == 10
    assert puppet.heard(SnapshotReply) == []


@virtual
async def test_a_received_snapshot_that_can_not_be_synced_halts_the_node():
    raw, at = await donated()
    puppet = await Puppet.start(snapshot_entries=NEVER)
    await puppet.settle()
    puppet.node.disk.fail["sync"] = OSError(errno.EIO, "input/output error")
    puppet.say("b", SnapshotChunk(1, at.index, at.term, len(raw), 0, raw))
    await puppet.settle()
    assert puppet.consensus.halted is not None
    assert puppet.node.machine.applied == []


@virtual
async def test_a_received_snapshot_ends_the_one_under_way():
    raw, at = await donated()
    puppet = await Puppet.start(snapshot_entries=NEVER)
    puppet.follow(*[(1, b"%d" % n) for n in range(100)], commit=100)
    await puppet.settle()
    await begun(puppet.cluster, puppet.node)
    puppet.say("b", SnapshotChunk(9, at.index, at.term, len(raw), 0, raw))
    await puppet.installed()
    await puppet.cluster.wait(lambda: not under_way(puppet.node))
    assert puppet.consensus.halted is None
    stats = puppet.consensus.stats
    assert (stats.snapshots_taken, stats.snapshot_failures, stats.snapshots_installed) == (0, 0, 1)
    assert stats.last_snapshot_index == puppet.consensus.applied_index == at.index
    assert WRITING not in puppet.node.disk.files
    puppet.follow((9, b"next"), prev=(at.index, at.term), term=9, commit=at.index + 1)
    await puppet.settle()
    assert await puppet.cluster.snapshot("a") == at.index + 1


@virtual
async def test_nothing_is_installed_while_files_are_renamed_and_removed_beside_the_loop():
    raw, at = await donated()
    puppet = await Puppet.start(snapshot_entries=NEVER)
    puppet.follow(*[(1, b"%d" % n) for n in range(10)], commit=10)
    await puppet.settle()
    slow, waiting = asyncio.Event(), []

    async def aside(work: Callable[[], None]) -> None:
        waiting.append(work)
        await slow.wait()
        work()

    puppet.node.engine.storage.aside = aside
    puppet.consensus.take_snapshot()
    await puppet.cluster.wait(lambda: waiting)
    puppet.heard()
    chunk = SnapshotChunk(9, at.index, at.term, len(raw), 0, raw)
    puppet.say("b", chunk)
    await puppet.settle()
    assert puppet.heard(SnapshotReply) == []
    slow.set()
    await puppet.cluster.wait(lambda: not under_way(puppet.node))
    puppet.say("b", chunk)
    await puppet.installed()
    assert puppet.heard(SnapshotReply) == [SnapshotReply(9, at.index, len(raw), installed=True)]


@virtual
async def test_a_stop_ends_the_snapshot_under_way():
    cluster = Cluster("a", snapshot_entries=NEVER)
    member = await filled(cluster)
    await begun(cluster, member)
    await member.consensus.stop()
    assert not under_way(member)
    assert sorted(member.disk.names(Path("/data")))[-1] == "metadata"


@virtual
async def test_a_halted_node_writes_no_more():
    cluster = Cluster("a", snapshot_entries=NEVER)
    member = await filled(cluster)
    await begun(cluster, member)
    member.consensus.halt("a test")
    before = {path: bytes(data.written) for path, data in member.disk.files.items()}
    await asyncio.sleep(1)
    assert {path: bytes(data.written) for path, data in member.disk.files.items()} == before
    assert not under_way(member)
    cluster.kill("a")
    await cluster.start()
    assert WRITING not in member.disk.files


class SlowMachine(ListMachine):
    """Takes time to tell a chunk."""

    def __init__(self, chunk_s: float) -> None:
        super().__init__()
        self.chunk_s = chunk_s
        self.told = [0]
        """How many chunks, by turn of the others."""

    def dump(self) -> Generator[bytes, None, None]:
        loop: Any = asyncio.get_running_loop()
        for number in range(400):
            loop.virtual.now += self.chunk_s
            self.told[-1] += 1
            yield msgspec.msgpack.encode([(number, b"")])


@pytest.mark.parametrize(("chunk_s", "share"), [(0.00025, 0.2), (0.003, 0.2), (0.00025, 0.5)])
@virtual
async def test_a_snapshot_takes_its_share_of_the_loop(chunk_s: float, share: float):
    cluster = Cluster("a", snapshot_entries=NEVER, snapshot_share=share)
    member = await filled(cluster, 1)
    member.engine.machine = SlowMachine(chunk_s)
    await cluster.snapshot("a")
    assert member.consensus.stats.last_snapshot_s == pytest.approx(400 * chunk_s / share, rel=0.1)


@virtual
async def test_raft11_a_long_snapshot_under_load_costs_no_election_and_helps_who_is_far_behind():
    cluster = Cluster(snapshot_entries=NEVER, trailing_entries=1)
    leader = await filled(cluster, 600)
    term, behind = leader.consensus.term, cluster.followers()[0].name
    cluster.kill(behind)
    cluster[behind].disk.wipe()
    dump, loop = leader.machine.dump, asyncio.get_running_loop()

    def slowly() -> Generator[bytes, None, None]:
        for chunk in dump():
            loop.virtual.now += 0.002  # type: ignore[attr-defined]
            yield chunk

    leader.machine.dump = slowly  # type: ignore[method-assign]
    index = leader.consensus.take_snapshot()
    began, proposed = loop.time(), 0
    while under_way(leader):
        proposed += 1
        leader.consensus.append(b"meanwhile %d" % proposed)
        await asyncio.sleep(0.01)
    assert loop.time() - began > 1
    assert (cluster.leader, leader.consensus.term) == (leader, term)
    assert leader.consensus.stats.last_snapshot_index == index
    leader.machine.dump = dump  # type: ignore[method-assign]
    await cluster.start(behind)
    await cluster.settled()
    assert cluster[behind].recorder.installed == [index]
    assert len(cluster[behind].machine.applied) == 600 + proposed
    assert leader.consensus.term == term


def test_raft11_nothing_in_a_node_forks():
    """So no child hangs on a lock, outlives its node, or needs the memory twice."""
    folder = Path(__file__).resolve().parents[2] / "cluster"
    parts = [folder / part for part in ("raft", "state", "dispatch", "http")]
    names: set[str] = set()
    for path in [folder / "node.py", *(path for part in parts for path in part.glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
    assert "asyncio" in names
    assert not names & {"fork", "forkpty", "multiprocessing", "subprocess", "ProcessPoolExecutor"}


@virtual
async def test_a_slice_is_short_however_long_the_others_take():
    """A millisecond, and the chunk that passes it."""
    cluster = Cluster("a", snapshot_entries=NEVER)
    member = await filled(cluster, 1)
    member.engine.machine = machine = SlowMachine(0.0004)
    loop: Any = asyncio.get_running_loop()

    async def others() -> None:
        while True:
            await asyncio.sleep(0.001)
            loop.virtual.now += 0.01
            machine.told.append(0)

    busy = loop.create_task(others())
    await cluster.snapshot("a")
    busy.cancel()
    assert max(machine.told) == 3


@virtual
async def test_what_is_written_is_synced_in_small_portions():
    cluster = Cluster("a", snapshot_entries=NEVER)
    member = await filled(cluster, 1)
    portions: list[int] = []
    create = member.disk.create

    class Watched:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            if name == "sync":
                portions.append(self.file.size())
            return getattr(self.file, name)

    member.disk.create = lambda path: Watched(create(path))
    member.engine.machine.applied = [(n, bytes(20_000)) for n in range(300)]
    await cluster.snapshot("a")
    assert portions[-1] == member.consensus.stats.last_snapshot_bytes > 6_000_000
    sizes = [after - before for before, after in itertools.pairwise([0, *portions])]
    assert max(sizes) < 600_000


def test_bulky_work_has_ended_when_a_cancelled_caller_goes_on():
    async def run() -> list[str]:
        told: list[str] = []
        begins, may_end = threading.Event(), threading.Event()

        def work() -> None:
            begins.set()
            may_end.wait()
            told.append("work")

        async def caller() -> None:
            try:
                await RealDisk().aside(work)
            finally:
                told.append("caller")

        task = asyncio.create_task(caller())
        await asyncio.to_thread(begins.wait)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == []
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()
        return told

    assert asyncio.run(run()) == ["work", "caller"]

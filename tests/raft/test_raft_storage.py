"""Journal, snapshots and metadata agree after any crash, and damage is told by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from raft_harness import ListMachine, SimDisk

from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.errors import Damaged, Misconfigured
from timeball.cluster.raft.metadata import cluster_id
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.snapshots import Position, SnapshotStore
from timeball.cluster.raft.storage import Storage

DIR = Path("/data")
SETTINGS = RaftSettings(segment_bytes=200, journal_step_bytes=200, trailing_entries=3)
CLUSTER = cluster_id("timeball", "abc")


class PowerLost(BaseException):
    """Ends a test's node in the middle of an operation."""


class FragileDisk(SimDisk):
    """Loses power before its nth change."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1

    def _change(self) -> None:
        if self.left == 0:
            raise PowerLost
        self.left -= 1

    def may_fail(self, action: str, path: Path) -> None:
        if action not in ("open", "read"):
            self._change()
        super().may_fail(action, path)


def opened(disk: SimDisk, node: str = "a", cluster: str = CLUSTER) -> tuple[Storage, ListMachine]:
    disk.locked = False
    storage, machine = Storage(disk, DIR, SETTINGS), ListMachine()
    storage.open(cluster, node, machine)
    return storage, machine


def filled(disk: SimDisk, *snapshots_at: int, last: int = 30) -> tuple[Storage, ListMachine]:
    """Entries 1 to `last`, applied, with snapshots on the way."""
    storage, machine = opened(disk)
    storage.save_vote(1, "a")
    storage.save_standing("voter", {"a": 1})
    for index in range(1, last + 1):
        storage.append(Entry(b"%d" % index, index, 1))
        storage.sync()
        machine.apply(index, b"%d" % index)
        if index in snapshots_at:
            take_snapshot(storage, index, machine.dump())
    return storage, machine


def write_snapshot(snapshots: SnapshotStore, position: Position, chunks: Iterable[bytes]) -> None:
    """Store a snapshot in one go."""
    writing = snapshots.begin(position)
    writing.open()
    for chunk in chunks:
        writing.add(chunk)
    writing.seal()
    snapshots.publish(writing)
    writing.close()


def take_snapshot(storage: Storage, index: int, chunks: Iterable[bytes]) -> None:
    """The steps of a node that takes a snapshot, in one go."""
    position = Position(index, 1)
    write_snapshot(storage.snapshots, position, chunks)
    storage.remove_old(storage.adopt(position))
    while storage.forget_some():
        pass


def everything(storage: Storage, machine: ListMachine) -> list[bytes]:
    """What state and log hold together."""
    tail = range(storage.position.index + 1, storage.log.last_index + 1)
    return machine.entries() + [storage.log.get(index).data for index in tail]


def crash_at_every_change(
    prepare: Callable[[SimDisk], Callable[[], object]], check: Callable[[SimDisk, bool], None]
) -> None:
    """Run an operation, with a loss of power before its 1st, 2nd, ... change, and check."""
    for at in range(1000):
        for seed in range(4):
            disk = FragileDisk()
            operation = prepare(disk)
            disk.left = at
            done = True
            try:
                operation()
            except PowerLost:
                done = False
            disk.left = -1
            disk.crash(random.Random(seed))
            check(disk, done)
        if done:
            assert at > 3
            return
    raise AssertionError("the operation never ended")


def test_f2_f3_raft01_raft02_no_crash_during_a_snapshot_loses_an_entry():
    def prepare(disk: SimDisk) -> Callable[[], object]:
        storage, machine = filled(disk, 10, 20)
        return lambda: take_snapshot(storage, 30, machine.dump())

    def check(disk: SimDisk, done: bool) -> None:
        storage, machine = opened(disk)
        assert everything(storage, machine) == [b"%d" % n for n in range(1, 31)]
        assert storage.position.index == 30 or not done
        assert not [name for name in disk.names(DIR) if name.endswith(".tmp")]

    crash_at_every_change(prepare, check)


def test_f11d_no_crash_during_an_install_leaves_half_a_state():
    donor = SimDisk()
    filled(donor, 30)
    file = next(data for path, data in donor.files.items() if path.name.startswith("snapshot-"))

    def prepare(disk: SimDisk) -> Callable[[], object]:
        storage, _ = opened(disk)
        storage.save_vote(1, None)
        for index in range(1, 41):
            storage.append(Entry(b"divergent", index, 0))
        storage.journal.sync()

        def install() -> None:
            storage.snapshots.incoming_start()
            storage.snapshots.incoming_append(bytes(file.written))
            storage.snapshots.incoming_sync()
            storage.install(storage.snapshots.incoming_snapshot())

        return install

    def check(disk: SimDisk, done: bool) -> None:
        storage, machine = opened(disk)
        if storage.position.index == 30:
            assert everything(storage, machine) == [b"%d" % n for n in range(1, 31)]
        else:
            assert not done
            assert machine.applied == []
        storage.append(Entry(b"next", storage.log.last_index + 1, 1))
        storage.journal.sync()

    crash_at_every_change(prepare, check)


def test_no_crash_while_a_new_directory_is_made_prevents_the_next_start():
    def prepare(disk: SimDisk) -> Callable[[], object]:
        return lambda: opened(disk)

    def check(disk: SimDisk, done: bool) -> None:
        storage, _ = opened(disk)
        storage.append(Entry(b"1", 1, 0))
        storage.journal.sync()

    crash_at_every_change(prepare, check)


@pytest.mark.parametrize("seed", range(8))
def test_a_stored_or_received_snapshot_is_durable_on_return(seed: int):
    disk = SimDisk()
    store = SnapshotStore(disk, DIR)
    write_snapshot(store, Position(7, 1), [b"state"])
    raw = bytes(disk.files[newest_snapshot(disk)].written)
    disk.crash(random.Random(seed))
    assert store.newest().position == Position(7, 1)
    disk = SimDisk()
    store = SnapshotStore(disk, DIR)
    store.incoming_start()
    store.incoming_append(raw)
    store.incoming_sync()
    store.incoming_publish(7)
    disk.crash(random.Random(seed))
    assert list(store.newest().chunks()) == [b"state"]


def newest_snapshot(disk: SimDisk) -> Path:
    return max(path for path in disk.files if path.name.startswith("snapshot-"))


def _middle(disk: SimDisk, path: Path) -> int:
    """The middle of a file's data; zeros may follow it."""
    return len(disk.files[path].written.rstrip(b"\0")) // 2


def damage_truncated(disk: SimDisk, path: Path) -> None:
    del disk.files[path].written[_middle(disk, path) :]


def damage_flipped(disk: SimDisk, path: Path) -> None:
    disk.files[path].written[_middle(disk, path)] ^= 4


def damage_emptied(disk: SimDisk, path: Path) -> None:
    disk.files[path].written.clear()


def damage_version(disk: SimDisk, path: Path) -> None:
    disk.files[path].written[7] += 1


def damage_trailer(disk: SimDisk, path: Path) -> None:
    disk.files[path].written += b"more"


damages = pytest.mark.parametrize(
    "damage",
    [damage_truncated, damage_flipped, damage_emptied, damage_version, damage_trailer],
)


@damages
def test_raft04_a_damaged_snapshot_gives_way_to_the_one_before(damage):
    disk = SimDisk()
    filled(disk, 10, 20)
    damage(disk, newest_snapshot(disk))
    storage, machine = opened(disk)
    assert storage.position.index == 10
    assert everything(storage, machine) == [b"%d" % n for n in range(1, 31)]
    assert any(name.endswith(".damaged") for name in disk.names(DIR))
    opened(disk)


@damages
def test_raft04_a_damaged_only_snapshot_gives_way_to_the_whole_journal(damage):
    disk = SimDisk()
    filled(disk, 20)
    damage(disk, newest_snapshot(disk))
    storage, machine = opened(disk)
    assert everything(storage, machine) == [b"%d" % n for n in range(1, 31)]


@damages
def test_raft04_with_both_snapshots_damaged_the_node_refuses_to_start(damage):
    disk = SimDisk()
    filled(disk, 10, 20, 30)
    for path in [p for p in disk.files if p.name.startswith("snapshot-")]:
        damage(disk, path)
    with pytest.raises(Damaged, match="snapshot-00000000000000000030"):
        opened(disk)


def test_raft04_every_flipped_bit_of_a_snapshot_is_found():
    for at in range(0, 1000):
        disk = SimDisk()
        filled(disk, 20)
        path = newest_snapshot(disk)
        if at >= len(disk.files[path].written):
            break
        disk.files[path].written[at] ^= 1 << at % 8
        storage, _ = opened(disk)
        assert storage.position.index == 0
    assert at > 100


def test_raft04_a_snapshot_that_the_state_machine_refuses_counts_as_damaged():
    disk = SimDisk()
    storage, _ = filled(disk, 10)
    take_snapshot(storage, 20, [b"not a dump"])
    storage, _ = opened(disk)
    assert storage.position.index == 10


def test_a_journal_that_begins_behind_the_snapshot_is_refused():
    disk = SimDisk()
    filled(disk, 10, 20, 30)
    for path in [p for p in disk.files if p.name.startswith("snapshot-")]:
        del disk.files[path]
    with pytest.raises(Damaged, match="the journal begins here, but the snapshot ends at 0"):
        opened(disk)


def test_a_missing_journal_is_refused():
    disk = SimDisk()
    filled(disk)
    for path in [p for p in disk.files if p.name.startswith("journal-")]:
        del disk.files[path]
    with pytest.raises(Damaged, match="the journal is missing"):
        opened(disk)


def test_missing_metadata_are_refused_when_there_is_a_journal():
    disk = SimDisk()
    filled(disk)
    del disk.files[DIR / "metadata"]
    with pytest.raises(Damaged, match="metadata"):
        opened(disk)


def test_metadata_older_than_the_journal_are_refused():
    disk = SimDisk()
    storage, _ = opened(disk)
    old = disk.files[DIR / "metadata"]
    storage.save_vote(7, None)
    storage.append(Entry(b"1", 1, 7))
    storage.journal.sync()
    disk.files[DIR / "metadata"] = old
    with pytest.raises(Damaged, match="older than the journal"):
        opened(disk)


def test_every_flipped_bit_of_the_metadata_is_found():
    disk = SimDisk()
    filled(disk)
    raw = disk.files[DIR / "metadata"].written
    for at in range(len(raw)):
        raw[at] ^= 1 << at % 8
        with pytest.raises(Damaged, match="metadata"):
            opened(disk)
        raw[at] ^= 1 << at % 8
    opened(disk)


def test_raft05_no_crash_while_voting_forgets_an_earlier_vote():
    def prepare(disk: SimDisk) -> Callable[[], object]:
        storage, _ = opened(disk)
        storage.save_vote(3, "b")

        def vote_twice() -> None:
            storage.save_vote(4, "c")
            storage.save_standing("voter", {"a": 1})

        return vote_twice

    def check(disk: SimDisk, done: bool) -> None:
        storage, _ = opened(disk)
        stored = storage.metadata
        assert (stored.term, stored.vote) in [(3, "b"), (4, "c")]
        assert not done or stored.standing == "voter"

    crash_at_every_change(prepare, check)


def test_raft16_another_nodes_directory_is_refused():
    disk = SimDisk()
    opened(disk)
    with pytest.raises(Misconfigured, match="belongs to node 'a', this node is 'b'"):
        opened(disk, node="b")


def test_raft16_another_list_of_members_is_refused():
    disk = SimDisk()
    opened(disk)
    with pytest.raises(Misconfigured, match="another list of members"):
        opened(disk, cluster=cluster_id("timeball", "abcd"))


def test_the_cluster_id_tells_names_apart_but_not_their_order():
    assert cluster_id("x", ["a", "b"]) == cluster_id("x", ["b", "a"])
    ids = {cluster_id(*args) for args in [("x", "ab"), ("y", "ab"), ("x", ["ab"]), ("xa", "b")]}
    assert len(ids) == 4


def test_a_directory_in_use_is_refused():
    disk = SimDisk()
    opened(disk)
    with pytest.raises(Misconfigured, match="in use"):
        Storage(disk, DIR, SETTINGS).open(CLUSTER, "a", ListMachine())

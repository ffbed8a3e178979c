"""Memory holds the newest entries alone; whatever else is needed of the log comes from the journal.

The log of a node behaves as one that keeps everything in memory, and takes a bounded part of it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raft_harness import Cluster, ListMachine, Member, Puppet, SimDisk, SimFile, virtual
from test_raft_storage import CLUSTER, DIR, write_snapshot

from timeball.cluster.raft import storage as storage_module
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.errors import Damaged
from timeball.cluster.raft.journal import BATCH_START, encode_record, segment_name
from timeball.cluster.raft.messages import Append, AppendReply
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.snapshots import Position
from timeball.cluster.raft.storage import Storage

NEVER = 10**6
SMALL: dict[str, Any] = {"max_entry_bytes": 400, "log_memory_bytes": 1_000}
"""Room for four entries or so."""


def held(storage: Storage) -> list[Entry]:
    log = storage.log
    return [log.get(index) for index in range(log.held_index + 1, log.last_index + 1)]


class AgainstTheFullLog(RuleBasedStateMachine):
    """A storage beside a log that forgets nothing: `model` has every entry since its base."""

    @initialize(segment_bytes=st.sampled_from([1, 300, 5_000]), trailing=st.sampled_from([1, 5]))
    def begin(self, segment_bytes: int, trailing: int) -> None:
        self.settings = RaftSettings(
            segment_bytes=segment_bytes, trailing_entries=trailing, **SMALL
        )
        self.disk = SimDisk()
        self.model: dict[int, Entry] = {}
        self.terms = {0: 0}
        self.applied = 0
        self.open()

    def open(self) -> None:
        self.disk.locked = False
        self.storage, self.machine = Storage(self.disk, DIR, self.settings), ListMachine()
        self.storage.open(CLUSTER, "a", self.machine)
        self.applied = self.storage.position.index

    @property
    def last(self) -> int:
        return max(self.terms)

    @rule(sizes=st.lists(st.integers(0, 399), min_size=1, max_size=12), newer=st.integers(0, 1))
    def append(self, sizes: list[int], newer: int) -> None:
        term = self.terms[self.last] + newer
        self.storage.save_vote(max(term, self.storage.metadata.term), None)
        for size in sizes:
            entry = Entry(bytes([term % 256]) * size, self.last + 1, term)
            self.storage.append(entry)
            self.model[entry.index], self.terms[entry.index] = entry, term

    @rule()
    def sync(self) -> None:
        self.storage.sync()

    @rule(count=st.integers(1, 30))
    def apply(self, count: int) -> None:
        until = min(self.applied + count, self.storage.journal.durable_index)
        while self.applied < until:
            self.applied += 1
            entry = self.storage.entry(self.applied)
            assert entry == self.model[self.applied]
            self.machine.apply(entry.index, entry.data)

    @rule(back=st.integers(0, 30), sync=st.booleans())
    def truncate(self, back: int, sync: bool) -> None:
        index = max(self.applied + 1, self.last - back)
        if index > self.last:
            return
        if sync:
            self.storage.sync()
        self.storage.truncate_from(index)
        for cut in range(index, self.last + 1):
            del self.model[cut], self.terms[cut]

    @rule()
    def snapshot(self) -> None:
        if self.applied == self.storage.position.index:
            return
        position = Position(self.applied, self.terms[self.applied])
        write_snapshot(self.storage.snapshots, position, self.machine.dump())
        paths = self.storage.adopt(position)
        self.everything_is_there()
        self.storage.remove_old(paths)
        while self.storage.forget_some():
            pass

    @rule(ahead=st.integers(1, 5))
    def install(self, ahead: int) -> None:
        index, term = self.last + ahead, self.terms[self.last] + 1
        donor = storage_module.SnapshotStore(SimDisk(), DIR)
        write_snapshot(donor, Position(index, term), ListMachine().dump())
        newest = donor.newest()
        assert newest is not None
        snapshots = self.storage.snapshots
        snapshots.incoming_start()
        snapshots.incoming_append(newest.read(0, newest.size))
        snapshots.incoming_sync()
        self.storage.save_vote(max(term, self.storage.metadata.term), None)
        self.storage.install(snapshots.incoming_snapshot())
        self.model, self.terms, self.applied = {}, {index: term}, index

    @rule(seed=st.integers(0, 99))
    def lose_power(self, seed: int) -> None:
        durable = self.storage.journal.durable_index
        self.disk.crash(random.Random(seed))
        self.open()
        assert durable <= self.storage.log.last_index <= self.last
        for lost in range(self.storage.log.last_index + 1, self.last + 1):
            del self.model[lost], self.terms[lost]

    @rule(at=st.integers(0, 200), entries=st.integers(1, 20), size=st.integers(1, 2_000))
    def read(self, at: int, entries: int, size: int) -> None:
        base, last = self.storage.log.base_index, self.last
        if base == last:
            return
        start = base + 1 + at % (last - base)
        found = self.storage.entries_from(start, entries, size)
        assert found == [self.model[start + n] for n in range(len(found))]
        assert 1 <= len(found) <= entries
        assert len(found) == 1 or sum(len(entry.data) for entry in found) <= size

    @invariant()
    def everything_is_there(self) -> None:
        log, journal = self.storage.log, self.storage.journal
        assert log.last_index == self.last
        assert log.base_index <= max(self.applied, self.storage.position.index)
        for index in range(log.base_index, self.last + 1):
            assert log.term_at(index) == self.terms[index]
        assert log.term_at(log.base_index - 1) is None
        assert log.term_at(self.last + 1) is None
        for index in range(log.base_index + 1, self.last + 1):
            assert self.storage.entries_from(index, 1, 1) == [self.model[index]]
        assert log.held_index <= journal.durable_index

    @invariant()
    def memory_is_bounded(self) -> None:
        durable_index = self.storage.journal.durable_index
        durable = [entry for entry in held(self.storage) if entry.index <= durable_index]
        assert sum(len(entry.data) for entry in durable) <= 1_000


AgainstTheFullLog.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
test_it_behaves_as_a_log_that_keeps_everything = AgainstTheFullLog.TestCase


def filled(disk: SimDisk, count: int, **more: Any) -> Storage:
    """A storage with entries of 100 bytes, each synced."""
    disk.locked = False
    storage = Storage(disk, DIR, RaftSettings(**(SMALL | more)))
    storage.open(CLUSTER, "a", ListMachine())
    storage.save_vote(1, None)
    for index in range(1, count + 1):
        storage.append(Entry(b"%100d" % index, index, 1))
        storage.sync()
    return storage


def entry(index: int) -> Entry:
    return Entry(b"%100d" % index, index, 1)


def spoil(disk: SimDisk, index: int) -> Path:
    """Flip a bit in the data of an entry of `filled` or of `lagging`; the file."""
    marker = b"%100d" % index
    for path, data in disk.files.items():
        at = data.written.find(marker) if path.name.startswith("journal-") else -1
        if at >= 0:
            data.written[at + 50] ^= 1
            return path
    raise AssertionError("no journal holds it")


def test_memory_holds_the_newest_entries_up_to_its_bound():
    storage = filled(SimDisk(), 100)
    assert 3 <= len(held(storage)) <= 10
    assert sum(len(each.data) for each in held(storage)) <= 1_000


def test_an_entry_that_is_not_durable_stays_in_memory():
    storage = filled(SimDisk(), 3)
    for index in range(4, 60):
        storage.append(entry(index))
    storage.log.shed(storage.journal.durable_index)
    assert storage.log.held_index == 3
    assert [each.index for each in held(storage)] == list(range(4, 60))


def test_a_long_journal_is_opened_in_bounded_memory(monkeypatch):
    disk = SimDisk()
    filled(disk, 300, segment_bytes=10_000)
    sizes: list[int] = []
    read = SimFile.read

    def noted(self: SimFile, offset: int, length: int) -> bytes:
        data = read(self, offset, length)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(SimFile, "read", noted)
    monkeypatch.setattr("timeball.cluster.raft.journal._WINDOW", 1_000)
    storage = filled(disk, 0, segment_bytes=10_000)
    assert len(held(storage)) <= 10
    assert max(sizes) <= 1_000
    monkeypatch.setattr(storage_module, "_READ_BYTES", 2_000)
    sizes.clear()
    assert [storage.entry(index) for index in range(1, 301)] == [entry(i) for i in range(1, 301)]
    assert max(sizes) <= 2_000
    assert len(sizes) <= 30, "several entries are read together"


def test_a_record_larger_than_the_window_is_read_whole(monkeypatch):
    disk = SimDisk()
    filled(disk, 20)
    monkeypatch.setattr("timeball.cluster.raft.journal._WINDOW", 40)
    assert filled(disk, 0).log.last_index == 20


def test_the_log_ends_where_neither_memory_nor_journal_goes_on():
    storage = filled(SimDisk(), 50, segment_bytes=300, trailing_entries=40)
    for index in (20, 50):
        write_snapshot(storage.snapshots, Position(index, 1), ListMachine().dump())
        storage.remove_old(storage.adopt(Position(index, 1)))
    base = storage.log.base_index
    assert base == storage.journal.first_index - 1 > 10
    assert storage.entries_from(base + 1, 1, 1) == [entry(base + 1)]


def test_damage_is_never_read_as_an_entry():
    disk = SimDisk()
    storage = filled(disk, 50)
    path = spoil(disk, 10)
    assert storage.entries_from(7, 100, 10_000) == [entry(7), entry(8), entry(9)]
    assert not storage.journal.damaged
    with pytest.raises(Damaged, match="of entry 10") as caught:
        storage.entries_from(10, 100, 10_000)
    assert caught.value.path == path
    assert storage.journal.damaged
    assert storage.entries_from(11, 1, 1) == [entry(11)]


def test_a_record_of_another_place_is_not_read_in_its_place():
    """A disk may give back what it wrote elsewhere: that is sound, but not what was asked for."""
    disk = SimDisk()
    storage = filled(disk, 50)
    ninth, tenth = (encode_record(entry(index), BATCH_START) for index in (9, 10))
    raw = next(data.written for data in disk.files.values() if ninth in data.written)
    at = raw.index(ninth)
    raw[at : at + len(ninth)] = tenth
    with pytest.raises(Damaged, match="of entry 9"):
        storage.entries_from(9, 100, 10_000)
    storage.close()
    with pytest.raises(Damaged):
        filled(disk, 0)


def test_a_cut_below_what_memory_holds_leaves_nothing_of_the_old_end():
    storage = filled(SimDisk(), 50)
    assert storage.log.held_index > 40
    storage.save_vote(2, None)
    storage.append(Entry(b"of term 2", 51, 2))
    storage.truncate_from(10)
    assert storage.log.held_index == storage.log.last_index == 9
    assert storage.log.last_term == 1
    replaced = [Entry(b"new %d" % index, index, 2) for index in range(10, 30)]
    for each in replaced:
        storage.append(each)
    assert storage.entries_from(10, 100, 10_000) == replaced, "from memory, before any sync"
    storage.sync()
    assert storage.journal.read(10, 100, 10_000) == replaced
    assert storage.journal.read(8, 3, 10_000) == [entry(8), entry(9), replaced[0]]


def test_a_segment_that_was_cut_to_nothing_is_filled_before_another_begins():
    disk = SimDisk()
    storage = filled(disk, 5, segment_bytes=1)
    storage.truncate_from(1)
    storage.append(entry(1))
    storage.sync()
    assert storage.journal.forget_to(0) == [], "there is one file of that name, and it is needed"
    storage.close()
    assert filled(disk, 0).entries_from(1, 1, 1) == [entry(1)]


def test_a_damaged_segment_gets_no_further_entry_and_goes_with_the_next_snapshot():
    disk = SimDisk()
    storage = filled(disk, 50)
    for index in (20, 40):
        write_snapshot(storage.snapshots, Position(index, 1), ListMachine().dump())
        storage.remove_old(storage.adopt(Position(index, 1)))
    path = spoil(disk, 45)
    with pytest.raises(Damaged):
        storage.entries_from(45, 1, 1)
    storage.append(entry(51))
    storage.sync()
    assert segment_name(51) in disk.names(DIR)
    write_snapshot(storage.snapshots, Position(51, 1), ListMachine().dump())
    storage.remove_old(storage.adopt(Position(51, 1)))
    assert path not in disk.files
    assert not storage.journal.damaged
    again = filled(disk, 0)
    assert (again.position.index, again.log.last_index) == (51, 51)


async def lagging(count: int = 100, **settings: Any) -> tuple[Cluster, Member, Member]:
    """A leader whose memory has let go of what the follower, which is down, lacks."""
    cluster = await Cluster(snapshot_entries=NEVER, **(SMALL | settings)).start()
    await cluster.propose(b"all have this")
    leader, follower = await cluster.elected(), cluster.followers()[0]
    cluster.kill(follower.name)
    await cluster.propose(*[b"%100d" % index for index in range(3, count + 3)])
    assert leader.engine.log.held_index > 80
    return cluster, leader, follower


@virtual
async def test_a_follower_that_lags_behind_the_memory_of_its_leader_needs_no_snapshot():
    cluster, leader, follower = await lagging()
    await cluster.start(follower.name)
    await cluster.settled()
    assert follower.consensus.stats.snapshots_installed == 0
    assert leader.consensus.stats.snapshots_taken == 0
    assert follower.machine.entries() == leader.machine.entries()
    assert len(leader.machine.entries()) == 101


@virtual
async def test_nodes_start_with_more_than_their_memory_holds():
    cluster, _, follower = await lagging()
    await cluster.start(follower.name)
    await cluster.settled()
    for name in "abc":
        cluster.kill(name, power_lost=True)
    await cluster.start()
    await cluster.settled(103)
    for member in cluster.members.values():
        assert len(member.machine.entries()) == 101
        assert len(held(member.engine.storage)) <= 10
        assert member.consensus.stats.snapshots_installed == 0


@virtual
async def test_a_leader_reads_one_bounded_piece_in_a_turn(monkeypatch):
    monkeypatch.setattr(storage_module, "_READ_BYTES", 600)
    puppet = await Puppet.start(**SMALL)
    term = await puppet.lead()
    for index in range(2, 60):
        puppet.consensus.append(b"%100d" % index)
        await puppet.settle()
    puppet.say("c", AppendReply(term, True, 59))
    await puppet.settle()
    puppet.heard()
    puppet.say("b", AppendReply(term, False, 0, hint_index=1))
    puppet.node.endpoint.receiver.on_connected("b")
    puppet.heard()
    puppet.say("b", AppendReply(term, False, 59, hint_index=1))
    puppet.heard()
    got = 0
    for _ in range(100):
        puppet.say("b", AppendReply(term, True, got))
        sent = [message for message in puppet.heard(Append, "b") if message.entries]
        if puppet.node.engine.log.held_index > got:
            assert len(sent) == 1, "one read"
            assert sum(len(data) for _, data in sent[0].entries) <= 600
        for message in sent:
            assert message.prev_index == got
            got += len(message.entries)
        if got == 59:
            return
    raise AssertionError("it never came to the end")


@virtual
async def test_a_conflict_is_cut_among_entries_that_memory_holds_no_more():
    """What was read ahead of its commit must not be applied in place of what replaced it."""
    puppet = await Puppet.start(**SMALL)
    puppet.follow(*[(1, b"old %100d" % index) for index in range(1, 41)])
    await puppet.settle()
    puppet.follow((1, b"old %100d" % 41), prev=(40, 1), commit=2)
    await puppet.settle()
    assert puppet.consensus.applied_index == 2
    assert puppet.node.engine.log.held_index > 30
    replaced = [(2, b"new %100d" % index) for index in range(3, 41)]
    puppet.follow(*replaced, prev=(2, 1), commit=2)
    await puppet.settle()
    puppet.follow((2, b"new %100d" % 41), prev=(40, 2), commit=41)
    await puppet.settle()
    assert puppet.node.engine.log.held_index > 30
    assert puppet.consensus.applied_index == 41
    expected = [b"old %100d" % index for index in (1, 2)]
    expected += [b"new %100d" % index for index in range(3, 42)]
    assert puppet.node.machine.entries() == expected


@virtual
async def test_damage_found_while_a_follower_is_served_is_not_sent_but_repaired_by_a_snapshot():
    cluster, leader, follower = await lagging()
    path = spoil(leader.disk, 50)
    await cluster.start(follower.name)
    await cluster.settled()
    assert follower.consensus.stats.snapshots_installed == 1
    assert leader.consensus.halted is None
    assert leader.consensus.leading_term is not None
    assert follower.machine.entries() == leader.machine.entries()
    await cluster.propose(b"more")
    await cluster.snapshot(leader.name)
    assert path not in leader.disk.files, "the damaged segment is gone"
    cluster.kill(leader.name, power_lost=True)
    await cluster.start(leader.name)
    await cluster.settled()


@virtual
async def test_damage_before_a_snapshot_that_is_there_brings_another_that_rids_the_disk_of_it():
    """The snapshot can be sent as it is; but the node could not start again with the damage."""
    cluster, leader, follower = await lagging(trailing_entries=1_000)
    await cluster.snapshot(leader.name)
    await cluster.propose(b"behind it")
    path = spoil(leader.disk, 50)
    await cluster.start(follower.name)
    await cluster.settled()
    assert follower.consensus.stats.snapshots_installed == 1
    await cluster.wait(lambda: leader.consensus.stats.snapshots_taken == 2)
    await cluster.propose(b"into a new segment")
    await cluster.snapshot(leader.name)
    assert path not in leader.disk.files


@virtual
async def test_a_disk_that_cannot_read_counts_as_damage(monkeypatch):
    cluster, leader, follower = await lagging()
    read = SimFile.read

    def unreadable(self: SimFile, offset: int, length: int) -> bytes:
        name = next(p.name for p, data in self._disk.files.items() if data is self._data)
        if self._disk is leader.disk and name.startswith("journal-"):
            raise OSError(5, "Input/output error")
        return read(self, offset, length)

    monkeypatch.setattr(SimFile, "read", unreadable)
    await cluster.start(follower.name)
    await cluster.settled()
    assert follower.consensus.stats.snapshots_installed == 1
    assert leader.consensus.halted is None


@virtual
async def test_a_node_halts_at_damage_in_what_it_has_to_apply():
    puppet = await Puppet.start(**SMALL)
    puppet.follow(*[(1, b"%100d" % index) for index in range(1, 41)])
    await puppet.settle()
    path = spoil(puppet.node.disk, 20)
    puppet.follow((1, b"%100d" % 41), prev=(40, 1), commit=41)
    await puppet.settle()
    assert str(path) in puppet.consensus.halted
    assert puppet.node.machine.entries() == [b"%100d" % index for index in range(1, 20)]


@virtual
async def test_a_leader_halts_at_damage_in_what_nobody_has_applied():
    puppet = await Puppet.start(**SMALL)
    puppet.follow(*[(1, b"%100d" % index) for index in range(1, 41)])
    await puppet.settle()
    path = spoil(puppet.node.disk, 20)
    puppet.heard()
    term = await puppet.lead()
    puppet.say("b", AppendReply(term, False, 40, hint_index=20))
    puppet.say("b", AppendReply(term, True, 19))
    await puppet.settle()
    assert str(path) in puppet.consensus.halted
    assert not [m for m in puppet.heard(Append, "b") if m.prev_index == 19 and m.entries]

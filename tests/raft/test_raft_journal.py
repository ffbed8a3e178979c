"""The journal gives back what was synced, cuts a torn tail, and refuses any other damage (F4)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raft_harness import SimDisk

from timeball.cluster.raft.disk import RealDisk
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import Damaged, Misconfigured
from timeball.cluster.raft.journal import (
    Journal,
    encode_record,
    encode_segment_header,
    segment_name,
)
from timeball.cluster.raft.padded import MARGIN

DIR = Path("/data")
STEP = 200


def opened(disk: SimDisk, segment_bytes: int = 10**6) -> tuple[Journal, list[Entry]]:
    journal = Journal(disk, DIR, segment_bytes, STEP)
    log = MemoryLog()
    journal.open(log)
    if journal.empty:
        journal.reset(0, 0)
    return journal, [log.get(i) for i in range(log.base_index + 1, log.last_index + 1)]


def read_again(disk: SimDisk, segment_bytes: int = 10**6, vouched: int = 0) -> MemoryLog:
    log = MemoryLog()
    Journal(disk, DIR, segment_bytes, STEP).open(log, vouched)
    return log


def written(batches: list[list[bytes]], segment_bytes: int = 10**6) -> tuple[SimDisk, list[Entry]]:
    """A disk whose journal got these batches, each synced."""
    disk = SimDisk()
    journal, _ = opened(disk, segment_bytes)
    entries: list[Entry] = []
    for term, batch in enumerate(batches, 1):
        for data in batch:
            entries.append(Entry(data, len(entries) + 1, term))
            journal.append(entries[-1])
        journal.sync()
    return disk, entries


data = st.binary(min_size=0, max_size=40)
batches = st.lists(st.lists(data, min_size=1, max_size=4), min_size=1, max_size=8)


@given(batches=batches, segment_bytes=st.sampled_from([1, 100, 10**6]), seed=st.integers(0, 1000))
def test_what_was_synced_is_read_again(batches: list[list[bytes]], segment_bytes: int, seed: int):
    """After a loss of power at that, and though no start has made durable what it found."""
    disk, entries = written(batches, segment_bytes)
    disk.crash(random.Random(seed))
    journal, read = opened(disk, segment_bytes)
    assert read == entries
    assert journal.durable_index == len(entries)


@given(batches=batches, seed=st.integers(0, 1000), segment_bytes=st.sampled_from([1, 100, 10**6]))
def test_a_loss_of_power_takes_only_what_was_not_synced(
    batches: list[list[bytes]], seed: int, segment_bytes: int
):
    disk, entries = written(batches, segment_bytes)
    journal, _ = opened(disk, segment_bytes)
    more = [Entry(b"unsynced" * 5, len(entries) + 1 + n, 99) for n in range(3)]
    for entry in more:
        journal.append(entry)
    disk.fail["sync"] = OSError("no power")
    with pytest.raises(OSError, match="no power"):
        journal.sync()
    disk.fail.clear()
    disk.crash(random.Random(seed))
    _, read = opened(disk, segment_bytes)
    assert read == (entries + more)[: len(read)]
    assert len(read) >= len(entries)


@given(batches=batches, seed=st.integers(0, 1000), segment_bytes=st.sampled_from([1, 100, 10**6]))
def test_what_a_start_has_read_does_not_go_with_the_power(
    batches: list[list[bytes]], seed: int, segment_bytes: int
):
    """The process before may have died between writing and syncing: what its successor finds in
    the kernel's cache it acknowledges and counts, so it has to be durable by then."""
    disk, entries = written(batches, segment_bytes)
    journal, _ = opened(disk, segment_bytes)
    journal.append(Entry(b"written, not synced", len(entries) + 1, 99))
    disk.fail["sync"] = OSError("killed in mid-sync")
    with pytest.raises(OSError, match="killed"):
        journal.sync()
    disk.fail.clear()
    _, read = opened(disk, segment_bytes)
    disk.crash(random.Random(seed))
    _, again = opened(disk, segment_bytes)
    assert again == read


def _last_record_sizes(entries: list[Entry], count: int) -> int:
    return sum(len(encode_record(entry, 0)) for entry in entries[-count:])


def data_end(entries: list[Entry]) -> int:
    """Where the zeros begin in a journal of one segment."""
    return len(encode_segment_header(1, 0)) + _last_record_sizes(entries, len(entries))


@settings(max_examples=300)
@given(
    batches=batches,
    from_end=st.integers(0, 200),
    action=st.sampled_from(["zero", "flip", "garbage behind"]),
    bit=st.integers(0, 7),
)
def test_raft03_damage_near_the_end_is_cut_or_refused_never_replayed(
    batches: list[list[bytes]], from_end: int, action: str, bit: int
):
    disk, entries = written(batches)
    path = DIR / segment_name(1)
    raw = disk.files[path].written
    end = data_end(entries)
    at = max(0, end - 1 - from_end)
    if action == "zero":
        raw[at:] = bytes(len(raw) - at)
    elif action == "flip":
        raw[at] ^= 1 << bit
    else:
        garbage = bytes(range(at % 256))[: len(raw) - end - MARGIN]
        raw[end : end + len(garbage)] = garbage
    try:
        _, read = opened(disk)
    except Damaged as damage:
        refused = damage.path
    else:
        refused = None
    if refused is not None:
        assert refused == path
        return
    assert read == entries[: len(read)]
    if action == "garbage behind":
        assert read == entries


@settings(max_examples=20)
@given(batches=st.lists(st.lists(data, min_size=1, max_size=3), min_size=2, max_size=5))
def test_raft03_a_bad_record_that_a_later_batch_follows_is_refused(batches: list[list[bytes]]):
    _, entries = written(batches)
    last_batch = _last_record_sizes(entries, len(batches[-1]))
    for at in range(28, data_end(entries) - last_batch):
        disk, _ = written(batches)
        disk.files[DIR / segment_name(1)].written[at] ^= 0x10
        with pytest.raises(Damaged, match="journal-"):
            opened(disk)


@given(batches=batches)
def test_raft03_a_bad_record_of_the_last_batch_is_cut_and_the_journal_goes_on(
    batches: list[list[bytes]],
):
    disk, entries = written(batches)
    disk.files[DIR / segment_name(1)].written[data_end(entries) - 1] ^= 1
    journal, read = opened(disk)
    assert read == entries[:-1]
    assert journal.cut_bytes > 0
    journal.append(Entry(b"again", len(entries), 99))
    journal.sync()
    assert opened(disk)[1] == [*entries[:-1], Entry(b"again", len(entries), 99)]


@settings(max_examples=20)
@given(batches=st.lists(st.lists(data, min_size=1, max_size=3), min_size=1, max_size=4))
def test_raft03_a_journal_cut_short_is_refused_wherever_it_is_cut(batches: list[list[bytes]]):
    """Also between two records, or two batches, where what is left looks whole."""
    _, entries = written(batches)
    for size in range(data_end(entries) + MARGIN):
        disk, _ = written(batches)
        del disk.files[DIR / segment_name(1)].written[size:]
        with pytest.raises(Damaged, match="journal-"):
            read_again(disk, vouched=len(entries))
        if size >= len(encode_segment_header(1, 0)):  # the zeros tell, without any mark
            with pytest.raises(Damaged, match="cut short"):
                read_again(disk)


def test_raft03_a_journal_cut_within_zeros_of_its_own_data_is_refused():
    """What is left ends in zeros, but they are not those behind the data."""
    for follower in ([], [[b"x"]]):
        batches = [[b"a"], [bytes(300)], *follower]
        _, entries = written(batches)
        first, second = data_end(entries[:1]), data_end(entries[:2])
        for size in range(first, second + 1):
            disk, _ = written(batches)
            del disk.files[DIR / segment_name(1)].written[size:]
            with pytest.raises(Damaged, match="cut short"):
                read_again(disk)


def test_raft03_zeros_that_were_cut_from_the_end_are_no_loss():
    disk, entries = written([[b"x" * 30]] * 3)
    del disk.files[DIR / segment_name(1)].written[data_end(entries) + MARGIN :]
    journal, read = opened(disk)
    assert read == entries
    journal.append(Entry(b"y" * 300, 4, 9))
    journal.sync()
    assert len(opened(disk)[1]) == 4


@pytest.mark.parametrize("vouched", [0, 1, 2, 3])
def test_raft03_a_journal_that_ends_before_the_mark_is_refused(vouched: int):
    """Its last batch is zeroed, or flipped: only the mark tells that it had been vouched for."""
    for spoil in (lambda raw, at: bytes(len(raw) - at), lambda raw, at: b"\xff" + raw[at + 1 :]):
        disk, entries = written([[b"x"], [b"y"], [b"z"]])
        raw = disk.files[DIR / segment_name(1)].written
        at = data_end(entries[:2])
        raw[at:] = spoil(raw, at)
        before = bytes(raw)
        if vouched <= 2:
            assert read_again(disk, vouched=vouched).last_index == 2
        else:
            with pytest.raises(Damaged, match="the log ends at entry 2, though it held more"):
                read_again(disk, vouched=vouched)
            assert bytes(raw) == before, "what there is to examine is left alone"


def test_raft03_an_emptied_last_segment_is_refused_when_it_held_what_was_vouched_for():
    disk, _ = written([[b"x" * 50]] * 6, segment_bytes=60)
    last = DIR / disk.names(DIR)[-1]
    disk.files[last].written.clear()
    first = int(last.name.removeprefix("journal-"))
    with pytest.raises(Damaged, match="it is empty, though it held entries"):
        read_again(disk, 60, first)
    assert last.name in disk.names(DIR)
    assert read_again(disk, 60, first - 1).last_index == first - 1


def test_raft07_zeros_are_added_before_they_are_needed():
    """So the batches themselves never wait for them."""
    disk = SimDisk()
    journal = Journal(disk, DIR, 10**6, 4096)
    journal.open(MemoryLog())
    journal.reset(0, 0)
    prepared = 0
    for index in range(1, 200):
        syncs = disk.syncs
        journal.append(Entry(b"x" * 300, index, 1))
        journal.sync()
        assert disk.syncs == syncs + 1, "one sync for a batch"
        prepared += journal.wants_zeros
        journal.prepare()
        assert not journal.wants_zeros
    assert 10 < prepared < 20
    journal.close()
    assert not journal.wants_zeros


def test_raft07_a_segment_that_is_over_gets_no_more_zeros():
    disk = SimDisk()
    journal = Journal(disk, DIR, 1000, 4096)
    journal.open(MemoryLog())
    journal.reset(0, 0)
    journal.append(Entry(b"x" * 3900, 1, 1))
    journal.sync()
    assert not journal.wants_zeros


def test_raft03_a_batch_torn_in_any_order_of_its_sectors_is_cut():
    """A disk may write the sectors of one batch in any order: zeros may come before data."""
    cut = 0
    for seed in range(60):
        disk = SimDisk()
        journal = Journal(disk, DIR, 10**6, 8192)
        journal.open(MemoryLog())
        journal.reset(0, 0)
        journal.append(Entry(b"x" * 700, 1, 1))
        journal.sync()
        for index in (2, 3, 4):
            journal.append(Entry(b"y" * 900, index, 9))
        disk.fail["sync journal-"] = OSError("no power")
        with pytest.raises(OSError, match="no power"):
            journal.sync()
        disk.fail.clear()
        disk.crash(random.Random(seed))
        again, read = opened(disk)
        assert read[0] == Entry(b"x" * 700, 1, 1)
        assert all(entry.data == b"y" * 900 for entry in read[1:])
        cut += again.cut_bytes > 0
    assert cut > 10, "most of these crashes tear the batch"


def test_damage_in_an_older_segment_is_refused():
    disk, _ = written([[b"x" * 50]] * 6, segment_bytes=60)
    names = disk.names(DIR)
    assert len(names) > 2
    for name in names[:-1]:
        for at in range(len(disk.files[DIR / name].written)):
            disk.files[DIR / name].written[at] ^= 1
            with pytest.raises(Damaged, match=r"journal-"):
                opened(disk)
            disk.files[DIR / name].written[at] ^= 1
    opened(disk)


def test_a_missing_segment_is_refused():
    disk, _ = written([[b"x" * 50]] * 6, segment_bytes=60)
    del disk.files[DIR / disk.names(DIR)[1]]
    with pytest.raises(Damaged, match="does not follow"):
        opened(disk)


def test_a_segment_that_was_never_completed_is_dropped():
    disk, entries = written([[b"x" * 50]] * 3)
    for head in [b"", b"TBJR", bytes(28)]:
        disk.create(DIR / segment_name(4)).append(head)
        _, read = opened(disk)
        assert read == entries
        assert segment_name(4) not in disk.names(DIR)


@given(
    batches=batches,
    cut=st.integers(1, 30),
    segment_bytes=st.sampled_from([1, 100, 10**6]),
    unwritten=st.integers(0, 3),
)
def test_a_truncation_is_durable(
    batches: list[list[bytes]], cut: int, segment_bytes: int, unwritten: int
):
    disk, entries = written(batches, segment_bytes)
    journal, _ = opened(disk, segment_bytes)
    for _ in range(unwritten):
        entries.append(Entry(b"unwritten", len(entries) + 1, 99))
        journal.append(entries[-1])
    index = min(cut, len(entries))
    journal.truncate_from(index, entries[index - 2].term if index > 1 else 0)
    journal.sync()
    del entries[index - 1 :]
    entries.append(Entry(b"new", index, 100))
    journal.append(entries[-1])
    journal.sync()
    disk.crash(random.Random(1))
    assert opened(disk, segment_bytes)[1] == entries


@given(batches=batches, index=st.integers(0, 30))
def test_only_whole_segments_below_the_index_are_removed(batches: list[list[bytes]], index: int):
    disk, entries = written(batches, segment_bytes=100)
    journal, _ = opened(disk, 100)
    for path in journal.forget_to(index):
        disk.remove(path)
    first = journal.first_index
    assert first <= index + 1
    assert opened(disk, 100)[1] == entries[first - 1 :]


def test_f4_records_are_small_and_numbers_are_not_those_of_32_bits():
    assert len(encode_record(Entry(b"", 2**60, 2**60), 0)) == 25
    disk = SimDisk()
    journal = Journal(disk, DIR, 100, STEP)
    journal.open(MemoryLog())
    journal.reset(2**40, 2**33)
    entries = [Entry(b"x" * n, 2**40 + 1 + n, 2**33 + n) for n in range(30)]
    for entry in entries:
        journal.append(entry)
        journal.sync()
    assert len(disk.names(DIR)) > 3, "offsets are those of one segment"
    assert opened(disk, 100)[1] == entries


def test_f4_every_flipped_bit_of_what_was_vouched_for_is_found():
    disk, _ = written([[b"one", b"two"], [b"three"], [b"four"]])
    raw = disk.files[DIR / segment_name(1)].written
    last = len(raw.rstrip(b"\0")) - len(encode_record(Entry(b"four", 4, 3), 1))
    for bit in range(last * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged, match=r"journal-"):
            opened(disk)
        raw[bit // 8] ^= 1 << bit % 8
    opened(disk)


def test_the_real_disk_does_what_the_simulated_one_does(tmp_path: Path):
    disk = RealDisk()
    lock = disk.lock(tmp_path / "data")
    journal = Journal(disk, tmp_path / "data", 300, STEP)
    journal.open(MemoryLog())
    journal.reset(0, 0)
    entries = [Entry(b"x" * n, n, 1) for n in range(1, 30)]
    for entry in entries:
        journal.append(entry)
        journal.sync()
    journal.truncate_from(20, 1)
    for path in journal.forget_to(5):
        disk.remove(path)
    first = journal.first_index
    journal.close()
    again = Journal(disk, tmp_path / "data", 300, STEP)
    log = MemoryLog()
    again.open(log, cutting=20)
    assert [log.get(i) for i in range(first, 20)] == entries[first - 1 : 19]
    again.close()
    with pytest.raises(Misconfigured, match="in use by another process"):
        disk.lock(tmp_path / "data")
    lock.close()
    disk.lock(tmp_path / "data").close()

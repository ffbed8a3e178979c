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
from timeball.cluster.raft.journal import Journal, encode_record, segment_name

DIR = Path("/data")


def opened(disk: SimDisk, segment_bytes: int = 10**6) -> tuple[Journal, list[Entry]]:
    journal = Journal(disk, DIR, segment_bytes)
    log = MemoryLog()
    journal.open(log)
    if journal.empty:
        journal.reset(0, 0)
    return journal, [log.get(i) for i in range(log.base_index + 1, log.last_index + 1)]


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


@given(batches=batches, segment_bytes=st.sampled_from([1, 100, 10**6]))
def test_what_was_synced_is_read_again(batches: list[list[bytes]], segment_bytes: int):
    disk, entries = written(batches, segment_bytes)
    disk.crash(random.Random(0))
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


def _last_record_sizes(entries: list[Entry], count: int) -> int:
    return sum(len(encode_record(entry, 0)) for entry in entries[-count:])


@settings(max_examples=300)
@given(
    batches=batches,
    from_end=st.integers(0, 200),
    action=st.sampled_from(["truncate", "zero", "flip", "garbage behind"]),
    bit=st.integers(0, 7),
)
def test_raft03_damage_near_the_end_is_cut_or_refused_never_replayed(
    batches: list[list[bytes]], from_end: int, action: str, bit: int
):
    disk, entries = written(batches)
    path = DIR / segment_name(1)
    raw = disk.files[path].written
    at = max(0, len(raw) - 1 - from_end)
    if action == "truncate":
        del raw[at:]
    elif action == "zero":
        raw[at:] = bytes(len(raw) - at)
    elif action == "flip":
        raw[at] ^= 1 << bit
    else:
        raw += bytes(range(at % 256))
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
    whole, entries = written(batches)
    last_batch = _last_record_sizes(entries, len(batches[-1]))
    size = len(whole.files[DIR / segment_name(1)].written)
    for at in range(28, size - last_batch):
        disk, _ = written(batches)
        disk.files[DIR / segment_name(1)].written[at] ^= 0x10
        with pytest.raises(Damaged, match="journal-"):
            opened(disk)


@given(batches=batches)
def test_raft03_a_bad_record_of_the_last_batch_is_cut_and_the_journal_goes_on(
    batches: list[list[bytes]],
):
    disk, entries = written(batches)
    disk.files[DIR / segment_name(1)].written[-1] ^= 1
    journal, read = opened(disk)
    assert read == entries[:-1]
    assert journal.cut_bytes > 0
    journal.append(Entry(b"again", len(entries), 99))
    journal.sync()
    assert opened(disk)[1] == [*entries[:-1], Entry(b"again", len(entries), 99)]


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


def test_records_are_small_and_offsets_are_not_bounded():
    assert len(encode_record(Entry(b"", 2**60, 2**60), 0)) == 25


def test_the_real_disk_does_what_the_simulated_one_does(tmp_path: Path):
    disk = RealDisk()
    lock = disk.lock(tmp_path / "data")
    journal = Journal(disk, tmp_path / "data", 300)
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
    again = Journal(disk, tmp_path / "data", 300)
    log = MemoryLog()
    again.open(log)
    assert [log.get(i) for i in range(first, 20)] == entries[first - 1 : 19]
    again.close()
    with pytest.raises(Misconfigured, match="in use by another process"):
        disk.lock(tmp_path / "data")
    lock.close()
    disk.lock(tmp_path / "data").close()

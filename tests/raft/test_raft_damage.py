"""Each file of a data directory, damaged in each way: the documented outcome, never silent loss.

RAFT-03, RAFT-04, RAFT-05 and RAFT-06: what a crash can leave is put right; whatever else is found
is told by the file's name, and the node does not start.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import test_raft_storage
from raft_harness import ListMachine, SimDisk
from test_raft_storage import (
    CLUSTER,
    DIR,
    FragileDisk,
    crash_at_every_change,
    damage_emptied,
    damage_flipped,
    damage_truncated,
    everything,
    filled,
    newest_snapshot,
    opened,
)

from timeball.cluster.raft.disk import RealDisk
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.errors import Damaged, DiskFull
from timeball.cluster.raft.metadata import BLANK, Standing
from timeball.cluster.raft.padded import MARGIN
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.storage import Storage


def segments(disk: SimDisk) -> list[Path]:
    return sorted(path for path in disk.files if path.name.startswith("journal-"))


def damage_removed(disk: SimDisk, path: Path) -> None:
    del disk.files[path]


def damage_zeroed(disk: SimDisk, path: Path) -> None:
    raw = disk.files[path].written
    raw[:] = bytes(len(raw))


all_damages = pytest.mark.parametrize(
    "damage",
    [damage_truncated, damage_flipped, damage_emptied, damage_removed, damage_zeroed],
)


def rested(*snapshots_at: int) -> SimDisk:
    """The disk of a node that had nothing to write for a while, or has stopped."""
    disk = SimDisk()
    storage, _ = filled(disk, *snapshots_at)
    storage.mark()
    storage.close()
    return disk


@all_damages
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_raft03_any_damage_to_a_segment_that_is_needed_is_refused_by_name(damage, which: str):
    disk = rested()
    files = segments(disk)
    assert len(files) > 3
    path = files[{"first": 0, "middle": len(files) // 2, "last": -1}[which]]
    damage(disk, path)
    with pytest.raises(Damaged, match="journal-"):
        opened(disk)


@all_damages
def test_raft03_any_damage_to_the_metadata_is_refused_by_name(damage):
    disk = rested(10, 20)
    damage(disk, DIR / "metadata")
    with pytest.raises(Damaged, match="metadata"):
        opened(disk)


@all_damages
def test_raft04_any_damage_to_the_newest_snapshot_is_made_up_for(damage):
    disk = rested(10, 20)
    damage(disk, newest_snapshot(disk))
    assert everything(*opened(disk)) == [b"%d" % n for n in range(1, 31)]


@all_damages
def test_raft04_a_damaged_snapshot_that_nothing_stands_in_for_is_refused(damage):
    disk = rested(10, 20, 30)
    for path in [p for p in disk.files if p.name.startswith("snapshot-")]:
        damage(disk, path)
    with pytest.raises(Damaged, match=r"(snapshot|journal)-"):
        opened(disk)


def test_raft03_without_a_whole_directory_a_node_is_a_new_one():
    """An emptied disk tells nothing, and must not vote as if it did (RAFT-16)."""
    disk = rested(10)
    disk.wipe()
    storage, machine = opened(disk)
    assert machine.applied == []
    assert storage.metadata.standing == BLANK


def test_a_lost_lock_file_is_no_damage(tmp_path: Path):
    disk = RealDisk()
    for _ in range(2):
        storage = Storage(disk, tmp_path, RaftSettings(journal_step_bytes=4096))
        storage.open(CLUSTER, "a", ListMachine())
        storage.close()
        (tmp_path / "lock").unlink()


@pytest.mark.parametrize("action", ["open", "read"])
@pytest.mark.parametrize("name", ["journal-", "metadata"])
def test_raft07_a_file_that_can_not_be_read_is_named(action: str, name: str):
    disk = rested(10, 20)
    path = next(str(path) for path in sorted(disk.files) if path.name.startswith(name))
    disk.fail[f"{action} {name}"] = OSError(errno.EIO, "Input/output error", path)
    with pytest.raises(OSError, match=name):
        opened(disk)


@pytest.mark.parametrize("action", ["open", "read"])
def test_raft07_a_snapshot_that_can_not_be_read_gives_way_to_the_one_before(action: str):
    disk = rested(10, 20)
    newest = newest_snapshot(disk).name
    disk.fail[f"{action} {newest}"] = OSError(errno.EIO, "Input/output error")
    storage, machine = opened(disk)
    assert storage.position.index == 10
    assert everything(storage, machine) == [b"%d" % n for n in range(1, 31)]


def test_the_real_disk_names_the_file_of_every_error(tmp_path: Path, monkeypatch):
    file = RealDisk().create(tmp_path / "some-file")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for call in ("pwrite", "pread", "ftruncate", "fdatasync", "fsync"):
        monkeypatch.setattr(f"timeball.cluster.raft.disk.os.{call}", broken)
    for work in (
        lambda: file.append(b"x"),
        lambda: file.write(0, b"x"),
        lambda: file.read(0, 1),
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(OSError, match="some-file"):
            work()
    with pytest.raises(OSError, match=tmp_path.name):
        RealDisk().sync_directory(tmp_path)


# The mark: what was vouched for and is gone is missed.


def test_raft03_a_last_segment_that_goes_missing_is_missed_under_load_too():
    """Nobody had a moment to make a mark: the segment itself made one when it began."""
    disk = SimDisk()
    filled(disk)
    del disk.files[segments(disk)[-1]]
    with pytest.raises(Damaged, match="the log ends at entry"):
        opened(disk)


def test_raft03_a_missing_journal_is_missed_though_a_snapshot_is_there():
    disk = rested(10, 20)
    for path in segments(disk):
        del disk.files[path]
    with pytest.raises(Damaged, match="the journal is missing"):
        opened(disk)


@pytest.mark.parametrize("standing", ["voter", "joining", "blank"])
def test_raft03_a_disk_with_a_vote_has_a_journal_though_nothing_is_in_it(standing: Standing):
    disk = SimDisk()
    storage, _ = opened(disk)
    if standing != BLANK:
        storage.save_standing(standing, {"a": 1})
    storage.close()
    for path in segments(disk):
        del disk.files[path]
    if standing == "voter":
        with pytest.raises(Damaged, match="the journal is missing"):
            opened(disk)
    else:
        opened(disk)


def test_raft06_the_mark_is_made_with_every_vote_and_when_asked_for():
    disk = SimDisk()
    storage, _ = filled(disk, last=3)
    storage.save_vote(2, None)
    assert storage.metadata.vouched == 3
    storage.append(Entry(b"4", 4, 2))
    storage.sync()
    assert storage.metadata.vouched == 3
    storage.mark()
    assert storage.metadata.vouched == 4
    syncs = disk.syncs
    storage.mark()
    assert disk.syncs == syncs, "there is nothing new to remember"


def test_raft06_what_is_not_durable_yet_is_not_marked():
    storage, _ = filled(SimDisk(), last=3)
    storage.append(Entry(b"4", 4, 1))
    storage.save_vote(2, None)
    assert storage.metadata.vouched == 3


def cut_and_go_on(storage: Storage, first: int) -> Callable[[], object]:
    def run() -> None:
        storage.truncate_from(first)
        for index in (first, first + 1):
            storage.append(Entry(b"new", index, 2))
        storage.sync()

    return run


@pytest.mark.parametrize("last", [9, 30])
@pytest.mark.parametrize("first", [5, 8])  # in the middle of a segment, and where one begins
def test_f7_no_crash_while_a_conflict_is_cut_looks_like_damage(first: int, last: int):
    old = [b"%d" % n for n in range(1, last + 1)]
    kept = first - 1
    new = [*old[:kept], b"new", b"new"]

    def prepare(disk: SimDisk) -> Callable[[], object]:
        storage, _ = filled(disk, last=last)
        storage.mark()
        storage.save_vote(2, None)
        return cut_and_go_on(storage, first)

    def check(disk: SimDisk, done: bool) -> None:
        storage, machine = opened(disk)
        found = everything(storage, machine)
        assert found[:kept] == old[:kept]
        assert found == new if done else found in (old, new, new[:kept], new[: kept + 1])
        # And what is vouched for after that is there after the next start.
        index = storage.log.last_index + 1
        storage.append(Entry(b"more", index, 2))
        storage.sync()
        assert storage.durable_index == index
        again, machine = opened(disk)
        assert everything(again, machine) == [*found, b"more"]

    crash_at_every_change(prepare, check)


def test_f7_what_was_cut_is_not_vouched_for_any_more():
    storage, _ = filled(SimDisk(), last=9)
    storage.sync()
    assert storage.durable_index == 9
    storage.truncate_from(8)
    assert storage.durable_index == 7
    storage.append(Entry(b"new", 8, 2))
    assert storage.unsynced
    assert storage.durable_index == 7
    storage.sync()
    assert storage.durable_index == 8
    assert not storage.unsynced


def test_f11_a_snapshot_that_replaces_a_longer_log_lowers_the_mark():
    donor, disk = SimDisk(), SimDisk()
    filled(donor, 20)
    raw = bytes(donor.files[newest_snapshot(donor)].written)
    storage, _ = filled(disk, last=25)
    storage.mark()
    storage.snapshots.incoming_start()
    storage.snapshots.incoming_append(raw)
    storage.snapshots.incoming_sync()
    storage.install(storage.snapshots.incoming_snapshot())
    storage.close()
    disk.crash(random.Random(1))
    storage, machine = opened(disk)
    assert everything(storage, machine) == [b"%d" % n for n in range(1, 21)]


# No room.


def small_disk(last: int = 5) -> tuple[SimDisk, Storage]:
    disk = SimDisk()
    storage, _ = filled(disk, last=last)
    storage.mark()
    return disk, storage


def test_raft07_an_append_that_finds_no_room_changes_nothing_and_may_be_repeated():
    disk, storage = small_disk()
    before = {path: bytes(data.written) for path, data in disk.files.items()}
    disk.capacity = disk.used + 100
    storage.append(Entry(b"x" * 500, 6, 1))
    for _ in range(2):
        with pytest.raises(DiskFull, match="journal-"):
            storage.sync()
    assert {path: bytes(data.written) for path, data in disk.files.items()} == before
    assert storage.durable_index == 5
    disk.capacity = None
    storage.sync()
    assert storage.durable_index == 6
    again, machine = opened(disk)
    assert everything(again, machine)[-1] == b"x" * 500


def test_raft07_on_a_real_file_a_short_write_leaves_no_part_behind(tmp_path: Path, monkeypatch):
    storage = Storage(RealDisk(), tmp_path, RaftSettings(journal_step_bytes=4096))
    storage.open(CLUSTER, "a", ListMachine())
    storage.append(Entry(b"one", 1, 0))
    storage.sync()
    journal = next(tmp_path.glob("journal-*"))
    before = journal.read_bytes()
    pwrite = os.pwrite

    def short(fd: int, data: bytes, offset: int) -> int:
        if len(data) < 3000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, bytes(data[:1000]), offset)

    storage.append(Entry(b"x" * 9000, 2, 0))
    monkeypatch.setattr("timeball.cluster.raft.disk.os.pwrite", short)
    with pytest.raises(DiskFull, match="journal-"):
        storage.sync()
    assert journal.read_bytes() == before
    monkeypatch.undo()
    storage.sync()
    storage.close()
    storage = Storage(RealDisk(), tmp_path, RaftSettings(journal_step_bytes=4096))
    storage.open(CLUSTER, "a", ListMachine())
    assert storage.log.last_index == 2
    storage.close()


def test_raft07_a_new_segment_that_finds_no_room_leaves_no_file():
    disk, storage = small_disk()
    names = disk.names(DIR)
    storage.append(Entry(b"x" * 400, 6, 1))
    storage.sync()  # now the segment is over its size
    names = disk.names(DIR)
    disk.capacity = disk.used
    storage.append(Entry(b"y", 7, 1))
    with pytest.raises(DiskFull):
        storage.sync()
    assert disk.names(DIR) == names
    disk.capacity = None
    storage.sync()
    assert len(disk.names(DIR)) == len(names) + 1


def test_raft07_a_vote_that_finds_no_room_is_not_given():
    disk, storage = small_disk()
    raw = bytes(disk.files[DIR / "metadata"].written)
    disk.capacity = disk.used + 10
    with pytest.raises(DiskFull):
        storage.save_vote(7, "b")
    assert (storage.metadata.term, storage.metadata.vote) == (1, "a")
    assert disk.files[DIR / "metadata"].written == raw
    disk.capacity = None
    storage.save_vote(7, "b")


def test_raft07_what_waits_for_its_mark_is_not_vouched_for():
    """The journal found room for the first batch of a segment, the metadata did not."""
    disk, storage = small_disk()
    storage.append(Entry(b"x" * 400, 6, 1))
    storage.sync()
    storage.append(Entry(b"y", 7, 1))
    disk.fail["create metadata"] = OSError(errno.EDQUOT, "Disk quota exceeded")
    with pytest.raises(DiskFull):
        storage.sync()
    assert storage.journal.durable_index == 7
    assert storage.durable_index == 6
    assert storage.unsynced
    disk.fail.clear()
    storage.sync()
    assert storage.durable_index == 7


class CopyOnWrite(SimDisk):
    """A file system that needs room even to write over what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: int | None = None

    def may_fail(self, action: str, path: Path) -> None:
        super().may_fail(action, path)
        if action == "append" and self.passes is not None:
            raw = self.files[path].written
            end = len(raw.rstrip(b"\0"))
            raw[end : end + self.passes] = b"\x01" * self.passes
            raise OSError(errno.ENOSPC, "No space left on device")


def test_raft07_a_record_written_in_part_is_written_over(monkeypatch):
    monkeypatch.setattr(test_raft_storage, "SETTINGS", RaftSettings(journal_step_bytes=4096))
    disk = CopyOnWrite()
    storage, _ = filled(disk, last=3)
    storage.append(Entry(b"x" * 60, 4, 1))
    storage.append(Entry(b"x" * 20, 5, 1))
    disk.passes = 50
    with pytest.raises(DiskFull):
        storage.sync()
    disk.passes = None
    storage.truncate_from(4)
    storage.append(Entry(b"", 4, 2))
    storage.save_vote(2, None)
    storage.sync()
    raw = disk.files[segments(disk)[-1]].written
    assert raw.endswith(bytes(MARGIN))
    again, machine = opened(disk)
    assert again.journal.cut_bytes == 0, "nothing of it is left behind the new record"
    assert everything(again, machine) == [b"1", b"2", b"3", b""]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_raft07_a_batch_whose_sync_fails_is_never_tried_again(number: int):
    """Also for lack of space: its zeros were durable, so this tells of a disk that lies."""
    disk, storage = small_disk()
    storage.append(Entry(b"x", 6, 1))
    disk.fail["sync journal-"] = OSError(number, "failed")
    with pytest.raises(OSError, match="failed"):
        storage.sync()


def test_raft07_zeros_that_are_not_durable_are_taken_away_again():
    disk, storage = small_disk()
    path = segments(disk)[-1]
    size = len(disk.files[path].written)
    storage.append(Entry(b"x" * 500, 6, 1))
    disk.fail["sync journal-"] = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(DiskFull):
        storage.sync()
    assert len(disk.files[path].written) == size


def test_raft07_a_node_starts_on_a_full_disk():
    disk = rested(10, 20)
    disk.capacity = disk.used
    assert everything(*opened(disk)) == [b"%d" % n for n in range(1, 31)]


def test_the_fragile_disk_counts_no_reads():
    disk = FragileDisk()
    filled(disk, last=2)
    disk.left = 0
    for name in disk.names(DIR):
        file = disk.open(DIR / name)
        assert file.read(0, file.size())

"""A recovery that loses its power can be begun anew: it leaves no half of a cluster (RAFT-16)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from raft_harness import ListMachine, SimDisk
from test_raft_storage import CLUSTER, DIR, SETTINGS, crash_at_every_change, everything, filled

from timeball.cluster.raft.metadata import MetadataStore
from timeball.cluster.raft.recovery import found_anew
from timeball.cluster.raft.storage import Storage

FOLDERS = {"a": DIR, "b": Path("/of-b"), "c": Path("/of-c")}
ENTRIES = [b"%d" % n for n in range(1, 31)]


def recover(disk: SimDisk) -> int:
    """Found the cluster anew from the disk of `a`; its last index."""
    disk.locked = False
    numbers = iter((100, 101, 102))
    return found_anew(
        disk, "a", FOLDERS, CLUSTER, ListMachine(), SETTINGS, lambda: next(numbers)
    )  # fmt: skip


def lost_power(disk: SimDisk) -> Callable[[], object]:
    storage, _ = filled(disk, 10, 20)
    storage.close()
    return lambda: recover(disk)


def check_all_agree(disk: SimDisk) -> None:
    for name, folder in FOLDERS.items():
        disk.locked = False
        storage, machine = Storage(disk, folder, SETTINGS), ListMachine()
        storage.open(CLUSTER, name, machine)
        assert everything(storage, machine) == ENTRIES
        assert storage.metadata.founders == {"a": 100, "b": 101, "c": 102}
        assert storage.metadata.incarnation == storage.metadata.founders[name]
        assert (storage.metadata.term, storage.metadata.vote) == (2, None)
        storage.close()


def test_raft16_no_loss_of_power_during_a_recovery_leaves_half_a_cluster():
    def check(disk: SimDisk, done: bool) -> None:
        changed = MetadataStore(disk, DIR).load(CLUSTER, "a").term == 2
        assert changed or not done
        if not changed:  # once the others' folders are emptied, all of it can be repeated
            for path in [path for path in disk.files if path.parent != DIR]:
                disk.remove(path)
            assert recover(disk) == 30
        check_all_agree(disk)

    crash_at_every_change(lost_power, check)


def test_raft16_a_vote_is_given_up_with_a_new_number_only():
    storage, _ = filled(SimDisk(), last=3)
    storage.identify(7)
    storage.identify(8)
    assert storage.metadata.incarnation == 7, "a disk keeps its number"
    before = storage.metadata
    with pytest.raises(AssertionError):
        storage.disown(7)
    assert storage.metadata == before

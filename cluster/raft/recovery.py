"""The last resort when most disks of a cluster are lost: found it anew from one that is left.

Every member gets a copy of what the survivor holds, and a new founding makes all of them voters
that agree. What the survivor had not received is lost, acknowledged or not; that is why nothing
does this by itself. The nodes must be down: their folders are locked meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from timeball.cluster.raft.disk import Disk
from timeball.cluster.raft.errors import Misconfigured
from timeball.cluster.raft.interface import StateMachine
from timeball.cluster.raft.metadata import VOTER, Metadata, MetadataStore
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.storage import Storage

_COPIED = ("journal-", "snapshot-")
_PIECE_BYTES = 1024 * 1024


def found_anew(
    disk: Disk,
    survivor: str,
    directories: Mapping[str, Path],
    cluster_id: str,
    machine: StateMachine,
    settings: RaftSettings,
    new_incarnation: Callable[[], int],
) -> int:
    """Fill the empty `directories` of the others from the survivor's; the last position it holds.

    Raises Misconfigured when another folder holds anything or the survivor never had a vote, and
    Damaged when its files cannot be trusted. The survivor's own folder is changed last: until
    then everything can be repeated, once the others' folders are emptied.
    """
    for name, directory in directories.items():
        if name != survivor:
            _check_empty(disk, name, directory)
    storage = Storage(disk, directories[survivor], settings)
    try:
        storage.open(cluster_id, survivor, machine)
        before = storage.metadata
        if before.standing != VOTER:
            raise Misconfigured(f"the disk of {survivor!r} had no vote: it may lack nearly all")
        founders = {name: new_incarnation() for name in directories}

        def member(name: str) -> Metadata:
            return msgspec.structs.replace(
                before, node=name, term=before.term + 1, vote=None,
                incarnation=founders[name], founders=founders,
            )  # fmt: skip

        for name in directories:
            if name != survivor:
                _copy(disk, directories[survivor], directories[name])
                MetadataStore(disk, directories[name]).save(member(name))
        MetadataStore(disk, directories[survivor]).save(member(survivor))
        return storage.log.last_index
    finally:
        storage.close()


def _check_empty(disk: Disk, name: str, directory: Path) -> None:
    lock = disk.lock(directory)
    try:
        held = [found for found in disk.names(directory) if found != "lock"]
        if held:
            raise Misconfigured(
                f"{directory}, of node {name!r}, is not empty ({held[0]}): move it aside first"
            )
    finally:
        lock.close()


def _copy(disk: Disk, source: Path, target: Path) -> None:
    """Copy log and snapshots, durably."""
    for name in disk.names(source):
        if not name.startswith(_COPIED):
            continue
        old, new = disk.open(source / name), disk.create(target / name)
        try:
            for offset in range(0, old.size(), _PIECE_BYTES):
                new.append(old.read(offset, _PIECE_BYTES))
            new.sync()
        finally:
            old.close()
            new.close()
    disk.sync_directory(target)

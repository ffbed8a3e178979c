"""The node's durable promises: its term and vote, whose data directory this is, and its standing.

One small file, replaced as a whole: written beside the old one, synced, renamed, directory
synced. A vote must never leave the node before `save` has returned (Raft, figure 2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal
from zlib import crc32

import msgspec

from timeball.cluster.raft.disk import Disk, finding_room
from timeball.cluster.raft.errors import Damaged, Misconfigured

MAGIC = b"TBMETA02"
_FILE = "metadata"
_MAX_BYTES = 4096
MAX_INCARNATION = 2**48
"""Incarnations are drawn below this: any JSON reader can hold them."""

Standing = Literal["blank", "joining", "voter"]
"""What a disk counts for (decision 0014):

    blank    it holds nothing, and knows of no cluster: it may help to found one
    joining  it takes entries and snapshots, but has no vote and its answers count for nothing
    voter    it holds all that its name has ever vouched for
"""
BLANK: Standing = "blank"
JOINING: Standing = "joining"
VOTER: Standing = "voter"


def cluster_id(cluster: str, members: Iterable[str]) -> str:
    """A hash of the cluster's name and its members' names.

    Addresses are left out: a member that moves to another host stays the same member.
    """
    hashed = hashlib.sha256(b"timeball cluster")
    for part in [cluster, *sorted(members)]:
        encoded = part.encode()
        hashed.update(len(encoded).to_bytes(4, "big") + encoded)
    return hashed.hexdigest()[:32]


def founding_id(founders: Mapping[str, int]) -> str:
    """A short hash of the disks that founded a cluster; empty when they are not known."""
    if not founders:
        return ""
    return hashlib.sha256(repr(sorted(founders.items())).encode()).hexdigest()[:16]


class Metadata(msgspec.Struct, frozen=True, array_like=True):
    """What the file holds."""

    cluster_id: str
    node: str
    term: int = 0
    vote: str | None = None
    standing: Standing = BLANK
    incarnation: int = 0
    """A random number that tells this disk from any other that had or will have the same name."""
    founders: dict[str, int] = {}
    """The members' disks when the cluster was founded, by incarnation; empty while not known."""
    vouched: int = 0
    """Entries up to here were durable when this was written: a log without them has lost them."""
    cutting: int = 0
    """The entries from here on are being cut, or were, and none has taken their place yet."""


class MetadataStore:
    """Reads and replaces the metadata file of one data directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / _FILE

    def load(self, cluster: str, node: str) -> Metadata:
        """The stored metadata, or fresh ones, which are saved at once, on an empty directory.

        Raises Damaged when the file cannot be trusted, and Misconfigured when the directory
        belongs to another node or another list of members.
        """
        names = self._disk.names(self._directory)
        if _FILE not in names:
            if any(name.startswith(("journal-", "snapshot-")) for name in names):
                raise Damaged(self._path, "it is missing, but journal or snapshots are there")
            fresh = Metadata(cluster, node)
            self.save(fresh)
            return fresh
        file = self._disk.open(self._path)
        try:
            raw = file.read(0, _MAX_BYTES)
        finally:
            file.close()
        stored = self._decode(raw)
        if stored.node != node:
            raise Misconfigured(
                f"{self._directory} belongs to node {stored.node!r}, this node is {node!r}"
            )
        if stored.cluster_id != cluster:
            raise Misconfigured(
                f"{self._directory} belongs to another cluster or another list of members; "
                "the names of the cluster and of its members must stay as they were"
            )
        return stored

    def _decode(self, raw: bytes) -> Metadata:
        head = len(MAGIC) + 4
        if raw[: len(MAGIC)] != MAGIC:
            raise Damaged(self._path, "it does not begin like a metadata file")
        if crc32(raw[head:]) != int.from_bytes(raw[len(MAGIC) : head], "big"):
            raise Damaged(self._path, "its checksum does not match")
        try:
            return msgspec.msgpack.decode(raw[head:], type=Metadata)
        except msgspec.MsgspecError as error:
            raise Damaged(self._path, str(error)) from error

    def save(self, metadata: Metadata) -> None:
        """Replace the file durably; OSError stops the node, DiskFull changes nothing."""
        body = msgspec.msgpack.encode(metadata)
        fresh = self._path.with_suffix(".tmp")
        with finding_room():
            file = self._disk.create(fresh)
            try:
                file.append(MAGIC + crc32(body).to_bytes(4, "big") + body)
                file.sync()
            finally:
                file.close()
        self._disk.replace(fresh, self._path)
        self._disk.sync_directory(self._directory)

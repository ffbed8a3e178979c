"""Snapshots: the whole state as one checksummed file, `snapshot-<index>`.

    magic "TBSNAP01" | index u64 | term u64 | CRC32 of these u32
    chunk: length u32 | CRC32 u32 | data
    chunk: ...
    trailer: 0xFFFFFFFF | CRC32 u32 | chunks u64 | CRC32 of all data u32

All numbers are big-endian. A chunk's CRC covers its length and data, the trailer's CRC the rest of
the trailer. A snapshot is written under another name, synced, renamed, and the directory synced:
it is there whole, or not at all. The one before is kept as a fallback; the journal keeps what lies
between the two. A leader sends the file as it is, in pieces, and the receiver verifies the whole.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec

from timeball.cluster.raft.disk import Disk, DiskFile
from timeball.cluster.raft.errors import Damaged
from timeball.cluster.raft.interface import MAX_CHUNK_BYTES

MAGIC = b"TBSNAP01"
_HEAD = struct.Struct(">8sQQI")
_CHUNK = struct.Struct(">II")
_TRAILER = struct.Struct(">IIQI")
_END = 0xFFFFFFFF
_PREFIX = "snapshot-"
_SUFFIX_DAMAGED = ".damaged"
_INCOMING = "incoming.tmp"
_WRITING = "writing.tmp"
_KEPT = 2
_logger = logging.getLogger(__name__)


class Position(msgspec.Struct, frozen=True):
    """The last entry that a snapshot covers."""

    index: int
    term: int


def snapshot_name(index: int) -> str:
    """Names sort like the indexes they cover."""
    return f"{_PREFIX}{index:020d}"


def _read(path: Path, file: DiskFile, offset: int, length: int) -> bytes:
    """A piece of a snapshot; one that cannot be read is as good as a damaged one."""
    try:
        return file.read(offset, length)
    except OSError as error:
        raise Damaged(path, f"it cannot be read at byte {offset}: {error}") from error


def _read_head(path: Path, file: DiskFile) -> Position:
    head = _read(path, file, 0, _HEAD.size)
    if len(head) < _HEAD.size or head[:8] != MAGIC:
        raise Damaged(path, "it does not begin like a snapshot")
    _, index, term, crc = _HEAD.unpack(head)
    if crc32(head[:-4]) != crc:
        raise Damaged(path, "the checksum of its head does not match")
    return Position(index, term)


def _read_chunks(path: Path, file: DiskFile) -> Iterator[bytes]:
    """The chunks of a file, each verified; Damaged at the first fault, also a missing end."""
    offset = _HEAD.size
    total = 0
    chunks = 0
    while True:
        head = _read(path, file, offset, _CHUNK.size)
        if len(head) < _CHUNK.size:
            raise Damaged(path, f"it ends at byte {offset}, without a trailer")
        length, crc = _CHUNK.unpack(head)
        if length == _END:
            break
        if length > MAX_CHUNK_BYTES:
            raise Damaged(path, f"the chunk at byte {offset} has an impossible length")
        data = _read(path, file, offset + _CHUNK.size, length)
        if len(data) < length or crc32(data, crc32(head[:4])) != crc:
            raise Damaged(path, f"the chunk at byte {offset} does not match its checksum")
        total = crc32(data, total)
        chunks += 1
        offset += _CHUNK.size + length
        yield data
    trailer = _read(path, file, offset, _TRAILER.size)
    if len(trailer) < _TRAILER.size:
        raise Damaged(path, "its trailer is cut short")
    _, crc, told_chunks, told_total = _TRAILER.unpack(trailer)
    if crc32(trailer[8:]) != crc or (told_chunks, told_total) != (chunks, total):
        raise Damaged(path, "its trailer does not match its content")
    if file.size() != offset + _TRAILER.size:
        raise Damaged(path, "something follows its trailer")


class Snapshot:
    """A snapshot file, open for reading."""

    def __init__(self, path: Path, file: DiskFile) -> None:
        """Only the head is read; Damaged when that is not whole."""
        self.path = path
        self._file = file
        self.position = _read_head(path, file)
        self.size = file.size()

    def chunks(self) -> Iterator[bytes]:
        """What `StateMachine.dump` gave, each chunk verified; Damaged if the file is not whole."""
        return _read_chunks(self.path, self._file)

    def verify(self) -> None:
        """Read all of it; Damaged if it is not whole."""
        for _ in self.chunks():
            pass

    def read(self, offset: int, length: int) -> bytes:
        """A piece of the file itself, for sending; Damaged when it cannot be read."""
        return _read(self.path, self._file, offset, length)

    def close(self) -> None:
        self._file.close()


class Writing:
    """A snapshot that is being written, under another name, beside those that are there."""

    def __init__(self, path: Path, file: DiskFile, position: Position) -> None:
        self.path = path
        self.position = position
        self.unsynced = 0
        """Bytes that were written since the last sync."""
        self._file = file
        self._count = self._total = 0

    def _append(self, data: bytes) -> None:
        self._file.append(data)
        self.unsynced += len(data)

    def open(self) -> None:
        """Write the head: chunks may come."""
        head = MAGIC + struct.pack(">QQ", self.position.index, self.position.term)
        self._append(head + crc32(head).to_bytes(4, "big"))

    def add(self, data: bytes) -> None:
        """Write the next chunk."""
        assert 0 < len(data) <= MAX_CHUNK_BYTES, "a chunk is empty or too large"
        length = len(data).to_bytes(4, "big")
        self._append(length + crc32(data, crc32(length)).to_bytes(4, "big") + data)
        self._total = crc32(data, self._total)
        self._count += 1

    def seal(self) -> None:
        """Write the trailer: nothing is to come."""
        tail = struct.pack(">QI", self._count, self._total)
        self._append(struct.pack(">II", _END, crc32(tail)) + tail)

    def sync(self) -> None:
        """Make durable what was written."""
        self._file.sync()
        self.unsynced = 0

    @property
    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class SnapshotStore:
    """The snapshots of one data directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._incoming: DiskFile | None = None

    def _indexes(self) -> list[int]:
        """Indexes of the stored snapshots, newest first."""
        names = self._disk.names(self._directory)
        digits = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
        return sorted((int(part) for part in digits if part.isdigit()), reverse=True)

    def _path(self, index: int) -> Path:
        return self._directory / snapshot_name(index)

    def clean(self) -> None:
        """Remove what a crash left half-written."""
        leftovers = {_INCOMING, _WRITING} & set(self._disk.names(self._directory))
        for name in sorted(leftovers):
            self._disk.remove(self._directory / name)

    def candidates(self) -> Iterator[Snapshot | Damaged]:
        """The stored snapshots, newest first, each verified or the reason why not."""
        for index in self._indexes():
            path = self._path(index)
            file: DiskFile | None = None
            try:
                file = self._disk.open(path)
                snapshot = Snapshot(path, file)
                snapshot.verify()
                if snapshot.position.index != index:
                    raise Damaged(path, "its name does not match its index")
            except OSError as error:
                yield Damaged(path, f"it cannot be read: {error}")
                continue
            except Damaged as damage:
                if file is not None:
                    file.close()
                yield damage
                continue
            yield snapshot

    def set_aside(self, path: Path) -> None:
        """Rename a damaged snapshot, so that it is neither used nor lost to an examination."""
        self._disk.replace(path, path.with_name(path.name + _SUFFIX_DAMAGED))
        self._disk.sync_directory(self._directory)

    def newest(self) -> Snapshot | None:
        """The newest stored snapshot; Damaged when it does not even begin like one, or cannot be
        read.

        The rest is verified by whoever it is sent to.
        """
        for index in self._indexes():
            path = self._path(index)
            try:
                file = self._disk.open(path)
            except OSError as error:
                raise Damaged(path, f"it cannot be opened: {error}") from error
            try:
                return Snapshot(path, file)
            except Damaged:
                file.close()
                raise
        return None

    def previous_index(self) -> int:
        """The index of the fallback; 0 when there is none. The journal keeps what follows it."""
        indexes = self._indexes()
        return indexes[_KEPT - 1] if len(indexes) >= _KEPT else 0

    def begin(self, position: Position) -> Writing:
        """Begin to write a snapshot; `publish` or `abandon` must follow, and `close`."""
        path = self._directory / _WRITING
        return Writing(path, self._disk.create(path), position)

    def abandon(self, writing: Writing) -> None:
        """Drop what was written, as far as the disk lets us: a start drops what is left."""
        with suppress(OSError):
            self._disk.remove(writing.path)

    def publish(self, writing: Writing) -> None:
        """Make a sealed snapshot the newest one, durably."""
        writing.sync()
        self._publish(writing.path, writing.position.index)

    def _publish(self, path: Path, index: int) -> None:
        self._disk.replace(path, self._path(index))
        self._disk.sync_directory(self._directory)

    def drop_old(self) -> None:
        """Remove the snapshots before the fallback."""
        for old in self._indexes()[_KEPT:]:
            self._disk.remove(self._path(old))
        self._disk.sync_directory(self._directory)

    def incoming_start(self) -> None:
        """Begin to receive a snapshot; what was received of another is dropped."""
        self.incoming_drop()
        self._incoming = self._disk.create(self._directory / _INCOMING)

    @property
    def incoming_size(self) -> int:
        """How much has been received; the next piece must begin here."""
        return self._incoming.size() if self._incoming is not None else 0

    def incoming_append(self, data: bytes) -> None:
        assert self._incoming is not None
        self._incoming.append(data)

    def incoming_snapshot(self) -> Snapshot:
        """The received file as a snapshot, to be verified by reading it; or Damaged.

        `incoming_publish` or `incoming_drop` must follow.
        """
        assert self._incoming is not None
        return Snapshot(self._directory / _INCOMING, self._incoming)

    def incoming_sync(self) -> None:
        """Make durable what was received."""
        if self._incoming is not None:
            self._incoming.sync()

    def incoming_publish(self, index: int) -> None:
        """Make the received snapshot the newest one, durably."""
        assert self._incoming is not None
        self._incoming.close()
        self._incoming = None
        self._publish(self._directory / _INCOMING, index)
        self.drop_old()

    def incoming_drop(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
            self._disk.remove(self._directory / _INCOMING)

    def close(self) -> None:
        self.incoming_drop()

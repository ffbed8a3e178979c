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
from collections.abc import Iterable, Iterator
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


def _read_head(path: Path, file: DiskFile) -> Position:
    head = file.read(0, _HEAD.size)
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
        head = file.read(offset, _CHUNK.size)
        if len(head) < _CHUNK.size:
            raise Damaged(path, f"it ends at byte {offset}, without a trailer")
        length, crc = _CHUNK.unpack(head)
        if length == _END:
            break
        if length > MAX_CHUNK_BYTES:
            raise Damaged(path, f"the chunk at byte {offset} has an impossible length")
        data = file.read(offset + _CHUNK.size, length)
        if len(data) < length or crc32(data, crc32(head[:4])) != crc:
            raise Damaged(path, f"the chunk at byte {offset} does not match its checksum")
        total = crc32(data, total)
        chunks += 1
        offset += _CHUNK.size + length
        yield data
    trailer = file.read(offset, _TRAILER.size)
    if len(trailer) < _TRAILER.size:
        raise Damaged(path, "its trailer is cut short")
    _, crc, told_chunks, told_total = _TRAILER.unpack(trailer)
    if crc32(trailer[8:]) != crc or (told_chunks, told_total) != (chunks, total):
        raise Damaged(path, "its trailer does not match its content")
    if file.size() != offset + _TRAILER.size:
        raise Damaged(path, "something follows its trailer")


def _verify(path: Path, file: DiskFile) -> Position:
    position = _read_head(path, file)
    for _ in _read_chunks(path, file):
        pass
    return position


class Snapshot:
    """A snapshot file, verified and open for reading."""

    def __init__(self, path: Path, file: DiskFile) -> None:
        self.path = path
        self._file = file
        self.position = _verify(path, file)
        self.size = file.size()

    def chunks(self) -> Iterator[bytes]:
        """What `StateMachine.dump` gave; Damaged if the file changed since it was verified."""
        return _read_chunks(self.path, self._file)

    def read(self, offset: int, length: int) -> bytes:
        """A piece of the file itself, for sending."""
        return self._file.read(offset, length)

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
        """The newest stored snapshot, verified; Damaged when it is not whole."""
        for found in self.candidates():
            if isinstance(found, Damaged):
                raise found
            return found
        return None

    def previous_index(self) -> int:
        """The index of the fallback; 0 when there is none. The journal keeps what follows it."""
        indexes = self._indexes()
        return indexes[_KEPT - 1] if len(indexes) >= _KEPT else 0

    def write(self, position: Position, chunks: Iterable[bytes]) -> int:
        """Store a snapshot durably beside the old one and drop the oldest; its size."""
        path = self._directory / _WRITING
        file = self._disk.create(path)
        try:
            head = MAGIC + struct.pack(">QQ", position.index, position.term)
            file.append(head + crc32(head).to_bytes(4, "big"))
            count = total = 0
            for data in chunks:
                assert 0 < len(data) <= MAX_CHUNK_BYTES, "a chunk is empty or too large"
                length = len(data).to_bytes(4, "big")
                file.append(length + crc32(data, crc32(length)).to_bytes(4, "big") + data)
                total = crc32(data, total)
                count += 1
            tail = struct.pack(">QI", count, total)
            file.append(struct.pack(">II", _END, crc32(tail)) + tail)
            file.sync()
            size = file.size()
        finally:
            file.close()
        self._publish(path, position.index)
        return size

    def _publish(self, path: Path, index: int) -> None:
        self._disk.replace(path, self._path(index))
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

    def incoming_verify(self) -> Snapshot:
        """The received file as a snapshot, durable but not yet published; Damaged otherwise.

        `incoming_publish` or `incoming_drop` must follow.
        """
        assert self._incoming is not None
        self._incoming.sync()
        return Snapshot(self._directory / _INCOMING, self._incoming)

    def incoming_publish(self, index: int) -> None:
        """Make the received snapshot the newest one, durably."""
        assert self._incoming is not None
        self._incoming.close()
        self._incoming = None
        self._publish(self._directory / _INCOMING, index)

    def incoming_drop(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
            self._disk.remove(self._directory / _INCOMING)

    def close(self) -> None:
        self.incoming_drop()

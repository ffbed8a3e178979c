"""The journal: the log's entries on disk, in segment files that are only ever appended to.

A segment, `journal-<first index>`, all numbers big-endian:

    magic "TBJRNL01" | first index u64 | term of the entry before it u64 | CRC32 of these u32
    record: CRC32 u32 | length u32 | index u64 | term u64 | flags u8 | data
    record: ...

A record's CRC covers everything behind it. `sync` writes what was appended since the last one in
one write and makes it durable by one fdatasync: a batch. The flag BATCH_START marks its first
record.

Damage. Nothing that a batch holds is vouched for (acknowledged, counted, answered) before its
sync has returned, and the next batch is written only after that. So a bad record with no later
batch behind it is a torn tail: nobody relies on it, it is cut with a warning, and the leader sends
it again. A bad record with a later batch behind it, or in an older segment, was vouched for: the
node refuses to start and names the file.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from timeball.cluster.raft.disk import Disk, DiskFile
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import Damaged

MAGIC = b"TBJRNL01"
BATCH_START = 1
_SEGMENT = struct.Struct(">8sQQI")
_RECORD = struct.Struct(">IIQQB")
_PREFIX = "journal-"
_logger = logging.getLogger(__name__)


def encode_record(entry: Entry, flags: int) -> bytes:
    """The record of one entry."""
    head = _RECORD.pack(0, len(entry.data), entry.index, entry.term, flags)[4:]
    return crc32(entry.data, crc32(head)).to_bytes(4, "big") + head + entry.data


def encode_segment_header(first_index: int, previous_term: int) -> bytes:
    """The head of a segment file."""
    head = MAGIC + struct.pack(">QQ", first_index, previous_term)
    return head + crc32(head).to_bytes(4, "big")


def segment_name(first_index: int) -> str:
    """Names sort like the indexes they hold."""
    return f"{_PREFIX}{first_index:020d}"


class _Head(msgspec.Struct, frozen=True):
    """Where a record is and what it is, without its data."""

    index: int
    offset: int
    length: int


class _Segment:
    """One segment file and what is known of it."""

    def __init__(self, path: Path, file: DiskFile, first_index: int, previous_term: int) -> None:
        self.path = path
        self.file = file
        self.first_index = first_index
        self.previous_term = previous_term


def _read_record(raw: bytes, offset: int, index: int, min_term: int) -> tuple[Entry, int] | None:
    """The record at `offset` and its flags, if it is whole, sound and the expected one."""
    if offset + _RECORD.size > len(raw):
        return None
    crc, length, found_index, term, flags = _RECORD.unpack_from(raw, offset)
    end = offset + _RECORD.size + length
    if found_index != index or end > len(raw) or term < min_term or flags > BATCH_START:
        return None
    if crc32(memoryview(raw)[offset + 4 : end]) != crc:
        return None
    return Entry(raw[offset + _RECORD.size : end], index, term), flags


def _later_batch(raw: bytes, offset: int, index: int) -> int | None:
    """The offset of a sound record behind `offset` that starts a batch later than `index`.

    Lengths behind a damaged record mean nothing, so each offset is tried; the cheap test of the
    flag, the index and the length leaves few for the checksum.
    """
    flag_at = offset + _RECORD.size - 1
    while (flag_at := raw.find(BATCH_START, flag_at + 1)) >= 0:
        start = flag_at - _RECORD.size + 1
        crc, length, found_index, _, _ = _RECORD.unpack_from(raw, start)
        end = start + _RECORD.size + length
        if not index < found_index <= index + len(raw) or end > len(raw):
            continue
        if crc32(memoryview(raw)[start + 4 : end]) == crc:
            return start
    return None


class Journal:
    """The durable log of one data directory; the caller keeps the entries in memory."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._unwritten: list[Entry] = []
        self._last_index = 0
        self._last_term = 0
        self._durable_index = 0
        self._durable_term = 0
        self.cut_bytes = 0
        """Bytes of a torn tail that `open` cut."""

    @property
    def durable_index(self) -> int:
        """The last index that a sync has made durable."""
        return self._durable_index

    @property
    def first_index(self) -> int:
        return self._segments[0].first_index

    def open(self) -> MemoryLog:
        """Read all segments; Damaged when any of it cannot be trusted.

        On a directory without a journal the log is empty, and `reset` must come before `append`.
        """
        names = [n for n in self._disk.names(self._directory) if n.startswith(_PREFIX)]
        log: MemoryLog | None = None
        for position, name in enumerate(names):
            log = self._read_segment(self._directory / name, log, position == len(names) - 1)
        log = log or MemoryLog()
        self._secure()
        self._last_index = self._durable_index = log.last_index
        self._last_term = self._durable_term = log.last_term
        return log

    def _secure(self) -> None:
        """Make durable what was read: a process that died between writing and syncing has left
        its last batch, or the name of a segment, in the kernel's memory alone."""
        if self._segments:
            self._segments[-1].file.sync()
            self._disk.sync_directory(self._directory)

    @property
    def empty(self) -> bool:
        return not self._segments

    def _read_segment(self, path: Path, log: MemoryLog | None, last: bool) -> MemoryLog | None:
        file = self._disk.open(path)
        raw = file.read(0, file.size())
        head = raw[: _SEGMENT.size]
        sound = len(head) == _SEGMENT.size and head[:8] == MAGIC
        if not sound or crc32(head[:-4]) != int.from_bytes(head[-4:], "big"):
            if last and not raw[_SEGMENT.size :]:
                return self._drop_unborn(path, file, log)
            file.close()
            raise Damaged(path, "its head is not that of a journal segment")
        _, first_index, previous_term, _ = _SEGMENT.unpack(head)
        if path.name != segment_name(first_index):
            file.close()
            raise Damaged(path, f"its name does not match its first index, {first_index}")
        if log is None:
            log = MemoryLog(first_index - 1, previous_term)
        elif (log.last_index, log.last_term) != (first_index - 1, previous_term):
            file.close()
            raise Damaged(path, f"it does not follow entry {log.last_index} of the one before")
        self._segments.append(_Segment(path, file, first_index, previous_term))
        self._read_records(path, file, raw, log, last)
        return log

    def _read_records(
        self, path: Path, file: DiskFile, raw: bytes, log: MemoryLog, last: bool
    ) -> None:
        offset = _SEGMENT.size
        while offset < len(raw):
            record = _read_record(raw, offset, log.last_index + 1, log.last_term)
            if record is None:
                later = _later_batch(raw, offset, log.last_index + 1)
                if not last or later is not None:
                    raise Damaged(path, f"the record at byte {offset} is bad, and others follow it")
                self._cut(path, file, offset, len(raw) - offset)
                return
            log.append(record[0])
            offset += _RECORD.size + len(record[0].data)

    def _cut(self, path: Path, file: DiskFile, offset: int, size: int) -> None:
        _logger.warning("%s: cut a torn tail of %d bytes at byte %d", path, size, offset)
        file.truncate(offset)
        file.sync()
        self.cut_bytes += size

    def _drop_unborn(self, path: Path, file: DiskFile, log: MemoryLog | None) -> MemoryLog | None:
        """A last segment without a whole head: its creation was cut short, nothing was in it."""
        _logger.warning("%s: removed, it was never completed", path)
        self.cut_bytes += file.size()
        file.close()
        self._disk.remove(path)
        self._disk.sync_directory(self._directory)
        return log

    def append(self, entry: Entry) -> None:
        """Take an entry into the next batch; not durable, nor even written, before `sync`."""
        assert self._segments, "reset comes before the first append"
        assert entry.index == self._last_index + 1
        assert entry.term >= self._last_term
        self._unwritten.append(entry)
        self._last_index = entry.index
        self._last_term = entry.term

    @property
    def unwritten(self) -> int:
        """Entries that wait for `sync`."""
        return len(self._unwritten)

    def sync(self) -> int:
        """Write and make durable what was appended; the bytes written. OSError stops the node."""
        if not self._unwritten:
            return 0
        segment = self._segments[-1]
        if segment.file.size() >= self._segment_bytes:
            first = self._unwritten[0]
            segment = self._start_segment(first.index, self._durable_term)
        records = [encode_record(entry, 0) for entry in self._unwritten[1:]]
        batch = b"".join([encode_record(self._unwritten[0], BATCH_START), *records])
        segment.file.append(batch)
        segment.file.sync()
        self._unwritten.clear()
        self._durable_index = self._last_index
        self._durable_term = self._last_term
        return len(batch)

    def _records(self, segment: _Segment) -> Iterator[_Head]:
        """The heads of a segment's records, read from the file."""
        offset = _SEGMENT.size
        size = segment.file.size()
        while offset < size:
            _, length, index, _, _ = _RECORD.unpack(segment.file.read(offset, _RECORD.size))
            yield _Head(index, offset, length)
            offset += _RECORD.size + length

    def _start_segment(self, first_index: int, previous_term: int) -> _Segment:
        path = self._directory / segment_name(first_index)
        file = self._disk.create(path)
        file.append(encode_segment_header(first_index, previous_term))
        file.sync()
        self._disk.sync_directory(self._directory)
        segment = _Segment(path, file, first_index, previous_term)
        self._segments.append(segment)
        return segment

    def truncate_from(self, index: int, term_before: int) -> None:
        """Remove the entries from `index` on, durably; `term_before` is the term before them."""
        assert self._segments
        assert index >= self.first_index
        while self._unwritten and self._unwritten[-1].index >= index:
            self._unwritten.pop()
        if index <= self._durable_index:
            while len(self._segments) > 1 and self._segments[-1].first_index >= index:
                self._remove_segment(self._segments.pop())
            segment = self._segments[-1]
            for record in self._records(segment):
                if record.index == index:
                    segment.file.truncate(record.offset)
                    segment.file.sync()
                    break
            self._durable_index = index - 1
            self._durable_term = term_before
        self._last_index = index - 1
        self._last_term = term_before

    def _remove_segment(self, segment: _Segment) -> None:
        segment.file.close()
        self._disk.remove(segment.path)
        self._disk.sync_directory(self._directory)

    def forget_to(self, index: int) -> list[Path]:
        """Let go of the segments that hold nothing above `index`; a durable snapshot covers them.

        Their files remain to be removed, the first one first: what a crash leaves is a log still.
        """
        paths: list[Path] = []
        while len(self._segments) > 1 and self._segments[1].first_index <= index + 1:
            segment = self._segments.pop(0)
            segment.file.close()
            paths.append(segment.path)
        return paths

    def reset(self, base_index: int, base_term: int) -> None:
        """Remove everything and continue after `base_index`.

        Removed from the last segment to the first, so that what a crash leaves is still a log.
        """
        self._unwritten.clear()
        while self._segments:
            self._remove_segment(self._segments.pop())
        self._start_segment(base_index + 1, base_term)
        self._last_index = self._durable_index = base_index
        self._last_term = self._durable_term = base_term

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()

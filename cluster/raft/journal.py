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

Where each record lies is kept in memory, 8 bytes an entry, so that entries which memory holds no
more are read again: `read` verifies them once more and gives back nothing that is not sound. A
segment that has shown damage gets no further records: it goes as a whole, as soon as a snapshot
covers it.
"""

from __future__ import annotations

import logging
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from timeball.cluster.raft.disk import Disk, DiskFile
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import Damaged

MAGIC = b"TBJRNL01"
BATCH_START = 1
_SEGMENT = struct.Struct(">8sQQI")
_RECORD = struct.Struct(">IIQQB")
_PREFIX = "journal-"
_WINDOW = 1024 * 1024
"""Read at once when a journal is opened."""
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


class _Segment:
    """One segment file and what is known of it."""

    def __init__(self, path: Path, file: DiskFile, first_index: int, previous_term: int) -> None:
        self.path = path
        self.file = file
        self.first_index = first_index
        self.previous_term = previous_term
        self.offsets = array("Q")
        """Where each of its durable records begins."""
        self.end = _SEGMENT.size
        """Where the last of them ends."""
        self.damaged = False
        """Whether it failed to give back a record."""

    def grow(self, size: int) -> None:
        """A record of this size was added."""
        self.offsets.append(self.end)
        self.end += size

    def cut(self, index: int) -> None:
        """Remove the records from `index` on, durably."""
        position = index - self.first_index
        if position < len(self.offsets):
            self.end = self.offsets[position]
            self.file.truncate(self.end)
            self.file.sync()
            del self.offsets[position:]

    def _count_within(self, first: int, limit: int) -> int:
        """How many of its records end at `limit` or before, if the one at `first` begins there."""
        if self.end <= limit:
            return len(self.offsets)
        return bisect_right(self.offsets, limit, first) - 1

    def read(self, index: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """See `Journal.read`."""
        first = index - self.first_index
        start = self.offsets[first]
        last = self._count_within(first, start + max_bytes)
        last = min(max(last, first + 1), first + max_entries)
        end = self.offsets[last] if last < len(self.offsets) else self.end
        entries: list[Entry] = []
        try:
            raw = self.file.read(start, end - start)
        except OSError as error:
            self.damaged = True
            raise Damaged(
                self.path, f"the record at byte {start} cannot be read: {error}"
            ) from error
        for offset in self.offsets[first:last]:
            record = _read_record(raw, offset - start, index + len(entries), 0)
            if record is None:
                break
            entries.append(record[0])
        if not entries:
            self.damaged = True
            raise Damaged(self.path, f"the record at byte {start}, of entry {index}, is bad")
        return entries


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


def _size_told(raw: bytes, offset: int) -> int:
    """What the record at `offset` says to take; that of its head if that is not whole."""
    if offset + _RECORD.size > len(raw):
        return _RECORD.size
    length: int = _RECORD.unpack_from(raw, offset)[1]
    return _RECORD.size + length


def _sound_records(file: DiskFile, index: int, min_term: int) -> Iterator[Entry]:
    """The entries of a segment, the first one `index`, up to its end or the first bad record."""
    offset, size = _SEGMENT.size, file.size()
    window, at = b"", 0
    while offset < size:
        if at + _size_told(window, at) > len(window):
            window, at = file.read(offset, _WINDOW), 0
            if _size_told(window, at) > len(window):
                window = file.read(offset, _size_told(window, at))
        record = _read_record(window, at, index, min_term)
        if record is None:
            return
        entry = record[0]
        yield entry
        taken = _RECORD.size + len(entry.data)
        index, min_term = index + 1, entry.term
        offset, at = offset + taken, at + taken


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
    """The durable log of one data directory; the caller keeps the newest entries in memory."""

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

    def open(self, log: MemoryLog) -> None:
        """Read all segments into `log`; Damaged when any of it cannot be trusted.

        On a directory without a journal the log stays as it is, and `reset` must come before
        `append`.
        """
        names = [n for n in self._disk.names(self._directory) if n.startswith(_PREFIX)]
        for position, name in enumerate(names):
            self._read_segment(self._directory / name, log, position == len(names) - 1)
        self._last_index = self._durable_index = log.last_index
        self._last_term = self._durable_term = log.last_term

    @property
    def empty(self) -> bool:
        return not self._segments

    def _read_segment(self, path: Path, log: MemoryLog, last: bool) -> None:
        file = self._disk.open(path)
        head = file.read(0, _SEGMENT.size)
        sound = len(head) == _SEGMENT.size and head[:8] == MAGIC
        if not sound or crc32(head[:-4]) != int.from_bytes(head[-4:], "big"):
            if last and file.size() <= _SEGMENT.size:
                self._drop_unborn(path, file)
                return
            file.close()
            raise Damaged(path, "its head is not that of a journal segment")
        _, first_index, previous_term, _ = _SEGMENT.unpack(head)
        if path.name != segment_name(first_index):
            file.close()
            raise Damaged(path, f"its name does not match its first index, {first_index}")
        if not self._segments:
            log.reset(first_index - 1, previous_term)
        elif (log.last_index, log.last_term) != (first_index - 1, previous_term):
            file.close()
            raise Damaged(path, f"it does not follow entry {log.last_index} of the one before")
        segment = _Segment(path, file, first_index, previous_term)
        self._segments.append(segment)
        self._read_records(segment, log, last)

    def _read_records(self, segment: _Segment, log: MemoryLog, last: bool) -> None:
        for entry in _sound_records(segment.file, segment.first_index, segment.previous_term):
            segment.grow(_RECORD.size + len(entry.data))
            log.append(entry)
            log.shed(entry.index)
        rest = segment.file.size() - segment.end
        if rest == 0:
            return
        raw = segment.file.read(segment.end, rest)
        if not last or _later_batch(raw, 0, log.last_index + 1) is not None:
            raise Damaged(
                segment.path, f"the record at byte {segment.end} is bad, and others follow it"
            )
        self._cut(segment.path, segment.file, segment.end, rest)

    def _cut(self, path: Path, file: DiskFile, offset: int, size: int) -> None:
        _logger.warning("%s: cut a torn tail of %d bytes at byte %d", path, size, offset)
        file.truncate(offset)
        file.sync()
        self.cut_bytes += size

    def _drop_unborn(self, path: Path, file: DiskFile) -> None:
        """A last segment without a whole head: its creation was cut short, nothing was in it."""
        _logger.warning("%s: removed, it was never completed", path)
        self.cut_bytes += file.size()
        file.close()
        self._disk.remove(path)
        self._disk.sync_directory(self._directory)

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
        if segment.offsets and (segment.damaged or segment.end >= self._segment_bytes):
            first = self._unwritten[0]
            segment = self._start_segment(first.index, self._durable_term)
        records = [encode_record(self._unwritten[0], BATCH_START)]
        records += [encode_record(entry, 0) for entry in self._unwritten[1:]]
        batch = b"".join(records)
        segment.file.append(batch)
        segment.file.sync()
        for record in records:
            segment.grow(len(record))
        self._unwritten.clear()
        self._durable_index = self._last_index
        self._durable_term = self._last_term
        return len(batch)

    @property
    def damaged(self) -> bool:
        """Whether a segment failed to give back what it holds."""
        return any(segment.damaged for segment in self._segments)

    def read(self, index: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Durable entries from `index` on, up to both limits, but at least one.

        They are verified; those before a bad record are given. Damaged when `index` itself cannot
        be read, and then nobody must be told what is there.
        """
        assert self.first_index <= index <= self._durable_index
        position = bisect_right(self._segments, index, key=lambda segment: segment.first_index)
        return self._segments[position - 1].read(index, max_entries, max_bytes)

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
            self._segments[-1].cut(index)
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

"""The journal: the log's entries on disk, in segment files that are only ever appended to.

A segment, `journal-<first index>`, all numbers big-endian:

    magic "TBJRNL02" | first index u64 | term of the entry before it u64 | CRC32 of these u32
    record: CRC32 u32 | length u32 | index u64 | term u64 | flags u8 | data
    record: ...
    zeros (see `padded`)

A record's CRC covers everything behind it. `sync` writes what was appended since the last one in
one write and makes it durable by one fdatasync: a batch. The flag BATCH_START marks its first
record.

Damage. Nothing that a batch holds is vouched for (acknowledged, counted, answered) before its
sync has returned, and the next batch is written only after that. So a bad record with no later
batch behind it is a torn tail: nobody relies on it, it is cut with a warning, and the leader sends
it again. The node refuses to start and names the file when the bad record was vouched for: a later
batch is behind it, or it is in an older segment, or the mark in the metadata tells so. It does the
same when a file does not end in zeros, or the journal ends before the mark: it has been cut short.

Not to be told from a torn tail is damage to the very last batch, since the last mark was made, if
it left the zeros behind. See decision 0013.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from timeball.cluster.raft.disk import Disk, finding_room
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import Damaged, DiskFull
from timeball.cluster.raft.padded import MARGIN, PaddedFile, ends_in_zeros

MAGIC = b"TBJRNL02"
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

    def __init__(self, path: Path, file: PaddedFile, first_index: int, previous_term: int) -> None:
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


def _is_cut_short(raw: bytes, end: int) -> bool:
    """Whether the end of a file is missing, that has no sound record at `end`.

    The zeros behind the data were durable before the data was written. Of a torn record there are
    parts, and zeros in between: its length is not told too high, so all of its place is there too.
    """
    claimed = 0
    if end + _RECORD.size <= len(raw) and (length := _RECORD.unpack_from(raw, end)[1]):
        claimed = _RECORD.size + length
    return end + claimed + MARGIN > len(raw) or not ends_in_zeros(raw)


def _only_zeros(raw: bytes, offset: int) -> bool:
    return raw.count(0, offset) == max(0, len(raw) - offset)


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


def _is_head(head: bytes) -> bool:
    sound = len(head) == _SEGMENT.size and head[: len(MAGIC)] == MAGIC
    return sound and crc32(head[:-4]) == int.from_bytes(head[-4:], "big")


class Journal:
    """The durable log of one data directory; the caller keeps the entries in memory."""

    def __init__(self, disk: Disk, directory: Path, segment_bytes: int, step_bytes: int) -> None:
        """Segments end when they pass `segment_bytes`; zeros are added in steps."""
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._step_bytes = step_bytes
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

    @property
    def newest_segment(self) -> int:
        """The first index of the last segment."""
        return self._segments[-1].first_index

    def open(self, vouched: int = 0, cutting: int = 0) -> MemoryLog:
        """Read all segments; Damaged when any of it cannot be trusted.

        All entries up to `vouched` must be there. The entries from `cutting` on, unless it is 0,
        were being cut: the last segment may lack the zeros behind the entries before it.

        On a directory without a journal the log is empty, and `reset` must come before `append`.
        """
        names = [n for n in self._disk.names(self._directory) if n.startswith(_PREFIX)]
        log: MemoryLog | None = None
        for name in names[:-1]:
            log = self._read_segment(self._directory / name, log)
        if names:
            log = self._read_last(self._directory / names[-1], log, vouched, cutting)
        log = log or MemoryLog()
        self._last_index = self._durable_index = log.last_index
        self._last_term = self._durable_term = log.last_term
        return log

    @property
    def empty(self) -> bool:
        return not self._segments

    def _read_segment(self, path: Path, log: MemoryLog | None) -> MemoryLog:
        """Read a segment that others follow: all of it was vouched for."""
        raw, segment = self._open_segment(path)
        log = self._join(segment, raw, log)
        if not _only_zeros(raw, segment.file.end):
            raise Damaged(path, f"the record at byte {segment.file.end} is bad")
        return log

    def _read_last(
        self, path: Path, log: MemoryLog | None, vouched: int, cutting: int
    ) -> MemoryLog | None:
        """Read the last segment, and cut what nobody relies on."""
        raw, segment = self._open_segment(path)
        if _only_zeros(raw, _SEGMENT.size) and not _is_head(raw[: _SEGMENT.size]):
            if path.name <= segment_name(vouched):
                raise Damaged(path, f"it is empty, though it held entries up to {vouched}")
            self._drop_unborn(segment, len(raw))
            return log
        log = self._join(segment, raw, log)
        file, end = segment.file, segment.file.end
        being_cut = cutting > 0 and log.last_index < cutting
        if _is_cut_short(raw, end) and not being_cut:
            raise Damaged(path, f"it has been cut short: it ends at byte {len(raw)}")
        if log.last_index < vouched:
            reason = f"the log ends at entry {log.last_index}, though it held more, up to {vouched}"
            raise Damaged(path, f"at byte {end} {reason}")
        if _only_zeros(raw, end):
            return log
        if _later_batch(raw, end, log.last_index + 1) is not None:
            raise Damaged(path, f"the record at byte {end} is bad, and others follow it")
        _logger.warning("%s: cut a torn tail at byte %d", path, end)
        self.cut_bytes += len(raw.rstrip(b"\0")) - end
        file.blank(end)
        return log

    def _open_segment(self, path: Path) -> tuple[bytes, _Segment]:
        """The content of a file, and a segment that knows nothing of it yet."""
        file = self._disk.open(path)
        raw = file.read(0, file.size())
        segment = _Segment(path, PaddedFile(file, self._step_bytes), 0, 0)
        self._segments.append(segment)
        return raw, segment

    def _join(self, segment: _Segment, raw: bytes, log: MemoryLog | None) -> MemoryLog:
        """Take the sound records of a segment into the log, up to the first that is none."""
        path, head = segment.path, raw[: _SEGMENT.size]
        if not _is_head(head):
            raise Damaged(path, "its head is not that of a journal segment")
        _, first_index, previous_term, _ = _SEGMENT.unpack(head)
        if path.name != segment_name(first_index):
            raise Damaged(path, f"its name does not match its first index, {first_index}")
        if log is None:
            log = MemoryLog(first_index - 1, previous_term)
        elif (log.last_index, log.last_term) != (first_index - 1, previous_term):
            raise Damaged(path, f"it does not follow entry {log.last_index} of the one before")
        segment.first_index, segment.previous_term = first_index, previous_term
        offset = _SEGMENT.size
        while record := _read_record(raw, offset, log.last_index + 1, log.last_term):
            log.append(record[0])
            offset += _RECORD.size + len(record[0].data)
        segment.file.end = offset
        return log

    def _drop_unborn(self, segment: _Segment, size: int) -> None:
        """A last segment without a whole head: its creation was cut short, nothing was in it."""
        _logger.warning("%s: removed, it was never completed", segment.path)
        self.cut_bytes += size
        self._segments.pop()
        self._remove_segment(segment)

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
        """Write and make durable what was appended; the bytes written.

        OSError stops the node. On DiskFull nothing has changed, and it may be called again.
        """
        if not self._unwritten:
            return 0
        segment = self._segments[-1]
        if segment.file.end >= self._segment_bytes:
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
        while offset < segment.file.end:
            _, length, index, _, _ = _RECORD.unpack(segment.file.read(offset, _RECORD.size))
            yield _Head(index, offset, length)
            offset += _RECORD.size + length

    def _start_segment(self, first_index: int, previous_term: int) -> _Segment:
        path = self._directory / segment_name(first_index)
        with finding_room():
            file = PaddedFile(self._disk.create(path), self._step_bytes)
        try:
            file.append(encode_segment_header(first_index, previous_term))
            file.sync()
        except DiskFull:
            file.close()
            self._disk.remove(path)
            raise
        self._disk.sync_directory(self._directory)
        segment = _Segment(path, file, first_index, previous_term)
        self._segments.append(segment)
        return segment

    @property
    def wants_zeros(self) -> bool:
        """Whether `prepare` has something to do."""
        if not self._segments:
            return False  # the journal is closed
        file = self._segments[-1].file
        return file.end < self._segment_bytes and file.lacks(self._step_bytes // 2)

    def prepare(self) -> None:
        """Add the zeros that the next batches will need, before they come."""
        if self.wants_zeros:
            self._segments[-1].file.reserve(self._step_bytes // 2)

    def reserve(self) -> None:
        """Try whether there is room for more; DiskFull when there is none."""
        self._segments[-1].file.reserve(self._step_bytes)

    def truncate_from(self, index: int, term_before: int) -> None:
        """Remove the entries from `index` on, durably; `term_before` is the term before them.

        A crash may leave a part of them, or a segment without zeros at its end (see `open`).
        """
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
                    segment.file.cut(record.offset)
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
        """Remove everything and continue after `base_index`; OSError, also for lack of space.

        Removed from the last segment to the first, so that what a crash leaves is still a log.
        """
        self._unwritten.clear()
        while self._segments:
            self._remove_segment(self._segments.pop())
        try:
            self._start_segment(base_index + 1, base_term)
        except DiskFull as full:  # there is nothing to go back to
            raise OSError(errno.ENOSPC, str(full)) from full
        self._last_index = self._durable_index = base_index
        self._last_term = self._durable_term = base_term

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()

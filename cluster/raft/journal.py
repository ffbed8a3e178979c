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

Where each record lies is kept in memory, 8 bytes an entry, so that entries which memory holds no
more are read again: `read` verifies them once more and gives back nothing that is not sound. A
segment that has shown damage gets no further records: it goes as a whole, as soon as a snapshot
covers it.
"""

from __future__ import annotations

import errno
import logging
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from timeball.cluster.raft.disk import Disk, finding_room
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import Damaged, DiskFull
from timeball.cluster.raft.padded import MARGIN, PaddedFile, ends_in_zeros

MAGIC = b"TBJRNL02"
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

    def __init__(self, path: Path, file: PaddedFile, first_index: int, previous_term: int) -> None:
        self.path = path
        self.file = file
        self.first_index = first_index
        self.previous_term = previous_term
        self.offsets = array("Q")
        """Where each of its durable records begins."""
        self.damaged = False
        """Whether it failed to give back a record."""

    @property
    def end(self) -> int:
        """Where its data ends."""
        return self.file.end

    def cut(self, index: int) -> None:
        """Remove the records from `index` on, durably."""
        position = index - self.first_index
        if position < len(self.offsets):
            self.file.cut(self.offsets[position])
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


def _sound_records(file: PaddedFile, index: int, min_term: int) -> Iterator[Entry]:
    """The entries of a segment, the first one `index`, up to its end or the first bad record."""
    offset, size = _SEGMENT.size, file.size
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


def _is_cut_short(rest: bytes) -> bool:
    """Whether the end of a file is missing, by what follows its last sound record.

    The zeros behind the data were durable before the data was written. Of a torn record there are
    parts, and zeros in between: its length is not told too high, so all of its place is there too.
    """
    claimed = 0
    if _RECORD.size <= len(rest) and (length := _RECORD.unpack_from(rest)[1]):
        claimed = _RECORD.size + length
    return claimed + MARGIN > len(rest) or not ends_in_zeros(rest)


def _only_zeros(file: PaddedFile, offset: int) -> bool:
    """Whether nothing but zeros follows, read in pieces."""
    while piece := file.read(offset, _WINDOW):
        if piece.count(0) < len(piece):
            return False
        offset += len(piece)
    return True


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
    """The durable log of one data directory; the caller keeps the newest entries in memory."""

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

    def open(self, log: MemoryLog, vouched: int = 0, cutting: int = 0) -> None:
        """Read all segments into `log`; Damaged when any of it cannot be trusted.

        All entries up to `vouched` must be there. The entries from `cutting` on, unless it is 0,
        were being cut: the last segment may lack the zeros behind the entries before it.

        On a directory without a journal the log stays as it is, and `reset` must come before
        `append`.
        """
        names = [n for n in self._disk.names(self._directory) if n.startswith(_PREFIX)]
        for name in names[:-1]:
            self._read_segment(self._directory / name, log)
        if names:
            self._read_last(self._directory / names[-1], log, vouched, cutting)
        self._secure()
        self._last_index = self._durable_index = log.last_index
        self._last_term = self._durable_term = log.last_term

    def _secure(self) -> None:
        """Make durable what was read: a process that died between writing and syncing has left
        its last batch, or the name of a segment, in the kernel's memory alone."""
        if self._segments:
            self._segments[-1].file.sync()
            self._disk.sync_directory(self._directory)

    @property
    def empty(self) -> bool:
        return not self._segments

    def _read_segment(self, path: Path, log: MemoryLog) -> None:
        """Read a segment that others follow: all of it was vouched for."""
        segment = self._open_segment(path)
        self._take_records(segment, log)
        if not _only_zeros(segment.file, segment.end):
            raise Damaged(path, f"the record at byte {segment.end} is bad")

    def _read_last(self, path: Path, log: MemoryLog, vouched: int, cutting: int) -> None:
        """Read the last segment, and cut what nobody relies on."""
        segment = self._open_segment(path)
        file = segment.file
        if not _is_head(file.read(0, _SEGMENT.size)) and _only_zeros(file, _SEGMENT.size):
            self._drop_unborn(segment, vouched)
            return
        self._take_records(segment, log)
        torn = not _only_zeros(file, segment.end)
        rest = file.read(segment.end, file.size if torn else MARGIN)
        being_cut = cutting > 0 and log.last_index < cutting
        if _is_cut_short(rest) and not being_cut:
            raise Damaged(path, f"it has been cut short: it ends at byte {file.size}")
        if log.last_index < vouched:
            reason = f"the log ends at entry {log.last_index}, though it held more, up to {vouched}"
            raise Damaged(path, f"at byte {segment.end} {reason}")
        if not torn:
            return
        if _later_batch(rest, 0, log.last_index + 1) is not None:
            raise Damaged(path, f"the record at byte {segment.end} is bad, and others follow it")
        _logger.warning("%s: cut a torn tail at byte %d", path, segment.end)
        self.cut_bytes += len(rest.rstrip(b"\0"))
        file.blank(segment.end)

    def _open_segment(self, path: Path) -> _Segment:
        """A segment that knows nothing of its content yet."""
        file = PaddedFile(self._disk.open(path), self._step_bytes)
        segment = _Segment(path, file, 0, 0)
        self._segments.append(segment)
        return segment

    def _take_records(self, segment: _Segment, log: MemoryLog) -> None:
        """Take the sound records of a segment, up to the first that is none."""
        path, file = segment.path, segment.file
        head = file.read(0, _SEGMENT.size)
        if not _is_head(head):
            raise Damaged(path, "its head is not that of a journal segment")
        _, first_index, previous_term, _ = _SEGMENT.unpack(head)
        if path.name != segment_name(first_index):
            raise Damaged(path, f"its name does not match its first index, {first_index}")
        if len(self._segments) == 1:
            log.reset(first_index - 1, previous_term)
        elif (log.last_index, log.last_term) != (first_index - 1, previous_term):
            raise Damaged(path, f"it does not follow entry {log.last_index} of the one before")
        segment.first_index, segment.previous_term = first_index, previous_term
        file.end = _SEGMENT.size
        for entry in _sound_records(file, first_index, previous_term):
            segment.offsets.append(file.end)
            file.end += _RECORD.size + len(entry.data)
            log.append(entry)
            log.shed(entry.index)

    def _drop_unborn(self, segment: _Segment, vouched: int) -> None:
        """A last segment without a whole head: its creation was cut short, nothing was in it."""
        if segment.path.name <= segment_name(vouched):
            raise Damaged(segment.path, f"it is empty, though it held entries up to {vouched}")
        _logger.warning("%s: removed, it was never completed", segment.path)
        self.cut_bytes += segment.file.size
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
        if segment.offsets and (segment.damaged or segment.end >= self._segment_bytes):
            first = self._unwritten[0]
            segment = self._start_segment(first.index, self._durable_term)
        records = [encode_record(self._unwritten[0], BATCH_START)]
        records += [encode_record(entry, 0) for entry in self._unwritten[1:]]
        batch = b"".join(records)
        offset = segment.end
        segment.file.append(batch)
        segment.file.sync()
        for record in records:
            segment.offsets.append(offset)
            offset += len(record)
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

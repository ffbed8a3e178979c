"""A file that is zero-filled ahead of its data, and so always ends in zeros.

    data | zeros, at least MARGIN of them, up to a whole number of steps

Data is written over zeros that are durable already. That has three uses: a full disk is met while
zeros are added, when nothing is half written; a sync of data commits no new size and no new blocks;
and a file that does not end in zeros has been cut short, for no crash can do that. Wherever it is
cut, even between two records, it is seen.
"""

from __future__ import annotations

from timeball.cluster.raft.disk import DiskFile, finding_room
from timeball.cluster.raft.errors import DiskFull

MARGIN = 64
"""The least number of zeros behind the data; no record has a head of so many."""


def ends_in_zeros(raw: bytes) -> bool:
    """Whether a file of this content has not been cut short."""
    return raw.endswith(bytes(MARGIN))


class PaddedFile:
    """The data of a file up to `end`, and zeros behind it."""

    def __init__(self, file: DiskFile, step: int, end: int = 0) -> None:
        self._file = file
        self._step = step
        self.end = end
        self._spoiled_to = 0
        """How far a write that failed may have come."""

    def reserve(self, length: int) -> None:
        """See that `length` bytes more have their place; DiskFull changes nothing.

        A sync that fails for lack of space is like a write that does: the zeros are taken away
        again, nobody relied on them. Any other failure of a sync stops the node, as ever.
        """
        if not self.lacks(length):
            return
        size = self._file.size()
        target = -(-(self.end + length + MARGIN) // self._step) * self._step
        try:
            with finding_room():
                self._file.append(bytes(target - size))
                self._file.sync()
        except DiskFull:
            self._file.truncate(size)
            raise

    @property
    def size(self) -> int:
        """Of data and zeros together."""
        return self._file.size()

    def lacks(self, length: int) -> bool:
        """Whether `length` bytes more have no place yet."""
        return self._file.size() < self.end + length + MARGIN

    def append(self, data: bytes) -> None:
        """Write behind the data; durable after `sync`.

        On DiskFull, which a file system that never writes in place may raise, the data ends where
        it did: the next append writes over what was written in part.
        """
        self.reserve(len(data))
        end = self.end + len(data)
        self._spoiled_to = max(self._spoiled_to, end)
        with finding_room():
            self._file.write(self.end, data + bytes(self._spoiled_to - end))
        self.end, self._spoiled_to = end, 0

    def blank(self, end: int) -> None:
        """Make zeros of all that follows `end`, durably; a crash may leave a part of it."""
        self._file.write(end, bytes(self._file.size() - end))
        self._file.sync()
        self.end = end

    def cut(self, end: int) -> None:
        """Take away all that follows `end`, durably and in one step.

        No zeros follow until the next `append`: whoever cuts remembers it elsewhere.
        """
        self._file.truncate(end)
        self._file.sync()
        self.end = end

    def read(self, offset: int, length: int) -> bytes:
        return self._file.read(offset, length)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

"""A queue whose content as of one moment can be read while it moves on.

Items lie in blocks that are only ever appended to; taking one from the left moves a mark.
So whoever holds the blocks of a moment holds its items, and a million of them are 16,000
blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_BLOCK: Final = 64
"""Items to a block; what has been taken stays in memory until the rest of its block has."""


class Fifo(Generic[T]):
    """Items in the order in which they were appended, taken from the left."""

    __slots__ = ("_blocks", "_last", "_taken")

    def __init__(self) -> None:
        self._last: list[T] = []
        self._blocks: deque[list[T]] = deque([self._last])
        self._taken = 0
        """How many items of the first block are gone."""

    def __len__(self) -> int:
        return (len(self._blocks) - 1) * _BLOCK + len(self._last) - self._taken

    def __iter__(self) -> Iterator[T]:
        """The items of this moment, whatever comes or goes while they are read."""
        return _read(list(self._blocks), self._taken, len(self._last))

    def append(self, item: T) -> None:
        """Add at the right."""
        last = self._last
        if len(last) == _BLOCK:
            last = self._last = []
            self._blocks.append(last)
        last.append(item)

    @property
    def oldest(self) -> T:
        """The leftmost item; there must be one."""
        return self._blocks[0][self._taken]

    @property
    def newest(self) -> T:
        """The rightmost item; there must be one."""
        return (self._last or self._blocks[-2])[-1]

    def take(self) -> T:
        """Remove the leftmost item; there must be one."""
        taken = self._taken
        item = self._blocks[0][taken]
        self._taken = taken + 1
        if taken + 1 == _BLOCK:
            self._taken = 0
            self._blocks.popleft()
            if not self._blocks:
                self._last = []
                self._blocks.append(self._last)
        return item


def _read(blocks: list[list[T]], start: int, end: int) -> Iterator[T]:
    blocks.reverse()
    while len(blocks) > 1:
        yield from islice(blocks.pop(), start, None)
        start = 0
    yield from islice(blocks.pop(), start, end)

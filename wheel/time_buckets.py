"""Time buckets: items grouped by due second, readable in order of time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_STALE_ENTRIES_ALLOWED: Final = 64


class TimeBuckets(Generic[T]):
    """A set of (due time, item) pairs, grouped into buckets of equal width.

    A bucket is named by its start: the due time rounded down to a multiple of
    the width. Buckets exist while they hold items. Within a bucket the items
    stand in the order in which they were added, the same on every node that
    adds and discards the same things.

    Costs: `add` and `discard` O(1) (O(log buckets) when a bucket is new),
    `first` O(1), reading k buckets O(k log k) plus what they hold. About 40 to
    75 bytes an item where buckets are full; a bucket with one item takes no
    container of its own.
    """

    __slots__ = ("_count", "_crowds", "_lone", "_starts", "_width_ms")

    def __init__(self, width_ms: int = 1000) -> None:
        """Start without items; each bucket lasts `width_ms` milliseconds."""
        assert width_ms >= 1
        self._width_ms = width_ms
        self._count = 0
        self._lone: dict[int, T] = {}  # buckets with one item
        self._crowds: dict[int, dict[T, None]] = {}  # buckets with more
        # Starts of all buckets, as a heap; some of buckets that are gone, some twice.
        self._starts: list[int] = []

    @property
    def width_ms(self) -> int:
        """How long a bucket lasts, in milliseconds."""
        return self._width_ms

    def __len__(self) -> int:
        """Items in all buckets."""
        return self._count

    def start_of(self, due_ms: int) -> int:
        """The start of the bucket to which `due_ms` belongs."""
        return due_ms - due_ms % self._width_ms

    def add(self, due_ms: int, item: T) -> None:
        """Put `item` into the bucket of `due_ms`; adding it there again changes nothing."""
        start = due_ms - due_ms % self._width_ms
        crowd = self._crowds.get(start)
        if crowd is not None:
            self._count += item not in crowd
            crowd[item] = None
        elif start in self._lone:
            other = self._lone[start]
            if other != item:
                del self._lone[start]
                self._crowds[start] = {other: None, item: None}
                self._count += 1
        else:
            self._lone[start] = item
            self._count += 1
            heappush(self._starts, start)

    def discard(self, due_ms: int, item: T) -> bool:
        """Take `item` out of the bucket of `due_ms`; False if it is not in there."""
        start = due_ms - due_ms % self._width_ms
        crowd = self._crowds.get(start)
        if crowd is not None:
            if item not in crowd:
                return False
            del crowd[item]
            if not crowd:
                del self._crowds[start]
        elif start in self._lone and self._lone[start] == item:
            del self._lone[start]
        else:
            return False
        self._count -= 1
        self._sweep_starts()
        return True

    def first(self) -> int | None:
        """The start of the earliest bucket; None when there is no item."""
        starts = self._starts
        while starts and not self._exists(starts[0]):
            heappop(starts)
        return starts[0] if starts else None

    def items(self, start_ms: int) -> list[T]:
        """A copy of what the bucket that starts at `start_ms` holds, in order of adding."""
        if start_ms in self._lone:
            return [self._lone[start_ms]]
        return list(self._crowds.get(start_ms, ()))

    def upto(self, end_ms: int, *, from_ms: int | None = None) -> Iterator[tuple[int, list[T]]]:
        """Read the buckets with `from_ms` <= start <= `end_ms`, earliest first.

        Yields (start, copy of the items). Which buckets there are is fixed by
        the call; what one holds is read when its turn comes, and one that has
        emptied by then is left out. So adding and discarding between steps is
        safe; a bucket that appears meanwhile is seen by the next call.
        """
        found = self._starts_upto(end_ms)
        starts = sorted(found if from_ms is None else (s for s in found if s >= from_ms))
        return ((start, items) for start in starts if (items := self.items(start)))

    def _exists(self, start_ms: int) -> bool:
        return start_ms in self._lone or start_ms in self._crowds

    def _starts_upto(self, end_ms: int) -> set[int]:
        """Starts at or before `end_ms`; beneath a later one the heap holds none."""
        heap, found, nodes = self._starts, set[int](), [0]
        while nodes:
            node = nodes.pop()
            if node < len(heap) and heap[node] <= end_ms:
                found.add(heap[node])
                nodes += (2 * node + 1, 2 * node + 2)
        return found

    def _sweep_starts(self) -> None:
        """Drop the starts of vanished buckets once they are the greater part."""
        buckets = len(self._lone) + len(self._crowds)
        if len(self._starts) > 2 * buckets + _STALE_ENTRIES_ALLOWED:
            self._starts = sorted((*self._lone, *self._crowds))

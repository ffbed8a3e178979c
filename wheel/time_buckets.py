"""Time buckets: items grouped by due second, readable in order of time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
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
        raise NotImplementedError

    def discard(self, due_ms: int, item: T) -> bool:
        """Take `item` out of the bucket of `due_ms`; False if it is not in there."""
        raise NotImplementedError

    def first(self) -> int | None:
        """The start of the earliest bucket; None when there is no item."""
        raise NotImplementedError

    def items(self, start_ms: int) -> list[T]:
        """A copy of what the bucket that starts at `start_ms` holds, in order of adding."""
        raise NotImplementedError

    def upto(self, end_ms: int, *, from_ms: int | None = None) -> Iterator[tuple[int, list[T]]]:
        """Read the buckets with `from_ms` <= start <= `end_ms`, earliest first.

        Yields (start, copy of the items). Which buckets there are is fixed by
        the call; what one holds is read when its turn comes, and one that has
        emptied by then is left out. So adding and discarding between steps is
        safe; a bucket that appears meanwhile is seen by the next call.
        """
        raise NotImplementedError

"""Time buckets: items grouped by due second, readable in order of time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_STALE_ENTRIES_ALLOWED: Final = 64
_SPAN_BITS: Final = 10
_ABSENT: Final = False
"""What an item's bucket says of it when it is not there; it says None of those that are."""


class _Span(Generic[T]):
    """The buckets of 1024 successive numbers, in two maps that share no number."""

    __slots__ = ("crowds", "lone")

    def __init__(self) -> None:
        self.lone: dict[int, T] = {}  # buckets that hold one item
        self.crowds: dict[int, dict[T, bool | None]] = {}  # buckets that hold more, or once did

    def numbers(self) -> list[int]:
        return [*self.lone, *self.crowds]

    def items(self, number: int) -> list[T]:
        return [self.lone[number]] if number in self.lone else list(self.crowds.get(number, ()))


class TimeBuckets(Generic[T]):
    """A set of (due time, item) pairs, grouped into buckets of equal width.

    A bucket is named by its start: the due time rounded down to a multiple of
    the width. Buckets exist while they hold items. Within a bucket the items
    stand in the order in which they were added, the same on every node that
    adds and discards the same things.

    Buckets lie in spans of 1024 (17 minutes of seconds), and only the spans
    are kept in order of time, by a heap. So however many buckets there are, no
    map is so large that its growth would hold up the caller.

    Costs: `add` and `discard` O(1) (O(log spans) when a span is new); `first`
    and each bucket read O(1) but for the sorting of one span's numbers. About
    40 to 75 bytes an item where buckets are full; a bucket with one item has
    no container of its own and takes about 90.
    """

    __slots__ = ("_count", "_latest", "_latest_crowd", "_span_numbers", "_spans", "_width_ms")

    def __init__(self, width_ms: int = 1000) -> None:
        """Start without items; each bucket lasts `width_ms` milliseconds."""
        assert width_ms >= 1
        self._width_ms = width_ms
        self._count = 0
        # The crowded bucket that was used last, unless it is gone (then this one is empty): the
        # next item mostly belongs to it, too.
        self._latest = 0
        self._latest_crowd: dict[T, bool | None] = {}
        self._spans: dict[int, _Span[T]] = {}
        # A heap; some numbers are of spans that are gone, some stand in it twice.
        self._span_numbers: list[int] = []

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
        number = due_ms // self._width_ms
        if self._use(number):
            crowd = self._latest_crowd
            held = len(crowd)
            crowd[item] = None
            if len(crowd) == held:  # one look at a map that no cache holds, in place of two
                return
        elif not self._add_alone(number, item):
            return
        self._count += 1

    def _use(self, number: int) -> bool:
        """Have a bucket at hand, if it is a crowd."""
        if number == self._latest and self._latest_crowd:
            return True
        span = self._spans.get(number >> _SPAN_BITS)
        crowd = None if span is None else span.crowds.get(number)
        if crowd is None:
            return False
        self._latest, self._latest_crowd = number, crowd
        return True

    def _add_alone(self, number: int, item: T) -> bool:
        """Add to a bucket that holds one item, or none; False if it is there already."""
        span = self._spans.get(number >> _SPAN_BITS)
        if span is None:
            span = self._spans[number >> _SPAN_BITS] = _Span()
            heappush(self._span_numbers, number >> _SPAN_BITS)
        if number not in span.lone:
            span.lone[number] = item
        elif span.lone[number] == item:
            return False
        else:
            span.crowds[number] = {span.lone.pop(number): None, item: None}
        return True

    def discard(self, due_ms: int, item: T) -> bool:
        """Take `item` out of the bucket of `due_ms`; False if it is not in there."""
        number = due_ms // self._width_ms
        if self._use(number):
            crowd = self._latest_crowd
            if crowd.pop(item, _ABSENT) is not None:
                return False
            if not crowd:
                self._close(number)
        else:
            span = self._spans.get(number >> _SPAN_BITS)
            if span is None or number not in span.lone or span.lone[number] != item:
                return False
            self._close(number)
        self._count -= 1
        return True

    def _close(self, number: int) -> None:
        """Forget a bucket that has emptied, or is about to."""
        span = self._spans[number >> _SPAN_BITS]
        span.crowds.pop(number, None)
        span.lone.pop(number, None)
        if not span.lone and not span.crowds:
            self._close_span(number >> _SPAN_BITS)

    def first(self) -> int | None:
        """The start of the earliest bucket; None when there is no item."""
        heap = self._span_numbers
        while heap and heap[0] not in self._spans:
            heappop(heap)
        return min(self._spans[heap[0]].numbers()) * self._width_ms if heap else None

    def items(self, start_ms: int) -> list[T]:
        """A copy of what the bucket that starts at `start_ms` holds, in order of adding."""
        number, remainder = divmod(start_ms, self._width_ms)
        assert remainder == 0, "a bucket is named by its start"
        span = self._spans.get(number >> _SPAN_BITS)
        return span.items(number) if span is not None else []

    def upto(self, end_ms: int, *, from_ms: int | None = None) -> Iterator[tuple[int, list[T]]]:
        """Read the buckets with `from_ms` <= start <= `end_ms`, earliest first.

        Yields (start, copy of the items). Which buckets there are is fixed by
        the call; what one holds is read when its turn comes, and one that has
        emptied by then is left out. So adding and discarding between steps is
        safe; a bucket that appears meanwhile is seen by the next call.
        """
        last = end_ms // self._width_ms
        spans = sorted(self._span_numbers_upto(last >> _SPAN_BITS))
        if from_ms is not None:
            spans = spans[bisect_left(spans, from_ms // self._width_ms >> _SPAN_BITS) :]
        starts: list[int] = []
        for span in spans:
            numbers = sorted(self._spans[span].numbers())
            starts += [number * self._width_ms for number in numbers if number <= last]
        if from_ms is not None:
            starts = starts[bisect_left(starts, from_ms) :]
        return self._read(starts)

    def _read(self, starts: list[int]) -> Iterator[tuple[int, list[T]]]:
        """The buckets that start then, each read when its turn comes (see `upto`)."""
        for start in starts:
            items = self.items(start)
            if items:
                yield start, items

    def _span_numbers_upto(self, last: int) -> set[int]:
        """The spans numbered `last` or less; beneath a higher number the heap holds none."""
        heap, found, nodes = self._span_numbers, set[int](), [0]
        while nodes:
            node = nodes.pop()
            if node < len(heap) and heap[node] <= last:
                found.add(heap[node])
                nodes += (2 * node + 1, 2 * node + 2)
        return found & self._spans.keys()

    def _close_span(self, span_number: int) -> None:
        """Forget an empty span; drop stale numbers once they are the greater part."""
        del self._spans[span_number]
        if len(self._span_numbers) > 2 * len(self._spans) + _STALE_ENTRIES_ALLOWED:
            self._span_numbers = sorted(self._spans)

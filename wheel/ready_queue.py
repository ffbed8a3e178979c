"""The ready queue: which due items a claim on one named queue gets, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeAlias, TypeVar
from zlib import crc32

from mypy_extensions import mypyc_attr

T = TypeVar("T", bound=Hashable)

PRIORITIES: Final = 10
"""Priorities are the integers from 0 to 9; 9 goes first."""

_STALE_ENTRIES_ALLOWED: Final = 64
# 2**64 divided by the golden ratio and by 1 + sqrt(2), made odd.
_GOLDEN_RATIO: Final = 0x9E3779B97F4A7C15
_SILVER_RATIO: Final = 0x6A09E667F3BCC909
_64_BITS: Final = (1 << 64) - 1


@mypyc_attr(acyclic=True)
class _Entry:
    """One push of an item; `push` is its number: no two have the same.

    Without a header of the collector, for which a hundred thousand that come due at once would be
    many young objects to walk."""

    __slots__ = ("due_ms", "item", "push", "sequence")

    def __init__(self, due_ms: int, sequence: int, push: int, item: Any) -> None:
        self.due_ms: Final = due_ms
        self.sequence: Final = sequence
        self.push: Final = push
        self.item: Final = item


# Due time, sequence, number of the push, entry: the first three decide.
_Place: TypeAlias = tuple[int, int, int, _Entry]


def partition_of(key: str | bytes | int, partitions: int) -> int:
    """The partition, 0 to `partitions` - 1, of a partition key.

    The same on every node, in every run and release (CRC-32 of the key's UTF-8
    or decimal text), unlike `hash`.
    """
    assert partitions >= 1
    data = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
    return crc32(data) % partitions


def partition_of_numbers(first: int, second: int, partitions: int) -> int:
    """The partition, 0 to `partitions` - 1, of what two numbers name and no key.

    The same on every node, in every run and release: multiplicative hashing (Knuth,
    The Art of Computer Programming, volume 3, section 6.4), each number by a ratio of
    its own. Takes a fraction of the time that a text and its CRC would take.
    """
    assert partitions >= 1
    spread = first * _GOLDEN_RATIO + second * _SILVER_RATIO
    return (spread & _64_BITS) * partitions >> 64


class _Lane(Generic[T]):
    """The entries of one partition and priority, in order.

    Most come in order, as the wheel fires by due time: these stand in a row, where adding
    and taking cost the same however many wait. Only what goes before one that came earlier
    takes the detour over a heap.
    """

    __slots__ = ("heap", "row")

    def __init__(self) -> None:
        self.row: deque[_Entry] = deque()
        self.heap: list[_Place] = []

    def __len__(self) -> int:
        return len(self.row) + len(self.heap)

    def add(self, entry: _Entry) -> None:
        """Add an entry that was pushed after all others."""
        row = self.row
        if row:
            last, due_ms = row[-1], entry.due_ms
            if due_ms < last.due_ms or (due_ms == last.due_ms and entry.sequence < last.sequence):
                heappush(self.heap, _place(entry))
                return
        row.append(entry)

    def first(self) -> _Entry | None:
        if self._heap_goes_first():
            return self.heap[0][3]
        return self.row[0] if self.row else None

    def pop(self) -> _Entry:
        return heappop(self.heap)[3] if self._heap_goes_first() else self.row.popleft()

    def _heap_goes_first(self) -> bool:
        row, heap = self.row, self.heap
        return bool(heap) and (not row or heap[0] < _place(row[0]))


def _next_partition(occupied: int, turn: int) -> int:
    """The next occupied partition from the turn on, else the first of all."""
    ahead = occupied >> turn << turn or occupied
    return (ahead & -ahead).bit_length() - 1


def _place(entry: _Entry) -> _Place:
    return (entry.due_ms, entry.sequence, entry.push, entry)


class ReadyQueue(Generic[T]):
    """Due items of one named queue.

    `take` gives, in this order:

    1. the higher priority first, over the whole queue;
    2. within one priority one item from each partition in turn, going on where
       the last `take` of that priority stopped, so that a flood in one
       partition delays another's next item by one item, not by the flood;
    3. within one partition and priority by (due time, sequence).

    Only the heads of the partitions are compared: a take costs O(1) an item
    that came in order within its partition, and O(log n) another, whatever
    waits behind the heads.
    """

    __slots__ = ("_entries", "_lanes", "_occupied", "_partitions", "_pushes", "_turns", "_waiting")

    def __init__(self, partitions: int = 16) -> None:
        """Start empty, with the given number of partitions."""
        assert partitions >= 1
        self._partitions = partitions
        self._waiting: dict[T, _Entry] = {}
        # By priority: a lane a partition (none before the priority is used), which
        # partitions have entries (bits), and which partition's turn it is.
        self._lanes: list[list[_Lane[T]]] = [[] for _ in range(PRIORITIES)]
        self._occupied = [0] * PRIORITIES
        self._turns = [0] * PRIORITIES
        self._entries = 0  # in all lanes, those of discarded items too
        self._pushes = 0

    def __len__(self) -> int:
        """Items that wait to be taken."""
        return len(self._waiting)

    def __contains__(self, item: T) -> bool:
        """Whether `item` waits to be taken."""
        return item in self._waiting

    def push(self, item: T, partition: int, priority: int, due_ms: int, sequence: int) -> None:
        """Let `item` wait; it must not be waiting already.

        `partition` is 0 to partitions - 1 (see `partition_of`), `priority` 0 to
        9. Items of equal due time and sequence go first in, first out.
        """
        assert 0 <= partition < self._partitions
        assert 0 <= priority < PRIORITIES
        assert item not in self._waiting
        self._pushes += 1
        self._entries += 1
        entry = self._waiting[item] = _Entry(due_ms, sequence, self._pushes, item)
        lanes = self._lanes[priority]
        if not lanes:
            lanes.extend([_Lane() for _ in range(self._partitions)])
        lanes[partition].add(entry)
        self._occupied[priority] |= 1 << partition

    def take(self, limit: int) -> list[T]:
        """Remove and return the next items in order, at most `limit`."""
        assert limit >= 0
        taken: list[T] = []
        for priority in range(PRIORITIES - 1, -1, -1):
            if self._occupied[priority]:
                self._take_of(priority, limit, taken)
                if len(taken) == limit:
                    break
        return taken

    def head(self) -> tuple[int, int, int] | None:
        """Where the item stands that `take` gives next: its priority, negated, its due time and
        its sequence. None when nothing waits."""
        for priority in range(PRIORITIES - 1, -1, -1):
            lanes = self._lanes[priority]
            while occupied := self._occupied[priority]:
                partition = _next_partition(occupied, self._turns[priority])
                lane = lanes[partition]
                entry = lane.first()
                assert entry is not None, "an occupied partition has an entry"
                if not self._is_stale(entry):
                    return -priority, entry.due_ms, entry.sequence
                lane.pop()
                self._entries -= 1
                if not lane:
                    self._occupied[priority] &= ~(1 << partition)
        return None

    def discard(self, item: T) -> bool:
        """Remove `item`, as when it is cancelled; False if it does not wait here."""
        if self._waiting.pop(item, None) is None:
            return False
        # Its entry stays behind in its lane: who meets it there sees that it is stale.
        if self._entries > 2 * len(self._waiting) + _STALE_ENTRIES_ALLOWED:
            self._sweep()
        return True

    def oldest_due_ms(self) -> int | None:
        """The earliest due time of all that wait; None when nothing does."""
        oldest: int | None = None
        for priority, lanes in enumerate(self._lanes):
            for partition, lane in enumerate(lanes):
                while (entry := lane.first()) is not None and self._is_stale(entry):
                    lane.pop()
                    self._entries -= 1
                if entry is None:
                    self._occupied[priority] &= ~(1 << partition)
                elif oldest is None or entry.due_ms < oldest:
                    oldest = entry.due_ms
        return oldest

    def _take_of(self, priority: int, limit: int, taken: list[T]) -> None:
        """Take from the partitions of one priority in turn until `taken` has `limit` items."""
        lanes, waiting = self._lanes[priority], self._waiting
        occupied, turn = self._occupied[priority], self._turns[priority]
        entries = self._entries
        while occupied and len(taken) < limit:
            partition = _next_partition(occupied, turn)
            lane = lanes[partition]
            row, heap = lane.row, lane.heap
            entry = lane.pop() if heap else row.popleft()
            entries -= 1
            if not row and not heap:
                occupied &= ~(1 << partition)
            item = entry.item
            if waiting.get(item) is entry:
                del waiting[item]
                taken.append(item)
                turn = partition + 1
        self._occupied[priority], self._turns[priority] = occupied, turn
        self._entries = entries

    def _is_stale(self, entry: _Entry) -> bool:
        return self._waiting.get(entry.item) is not entry

    def _sweep(self) -> None:
        """Drop all stale entries."""
        for priority, lanes in enumerate(self._lanes):
            for partition, lane in enumerate(lanes):
                lane.row = deque([entry for entry in lane.row if not self._is_stale(entry)])
                lane.heap = [place for place in lane.heap if not self._is_stale(place[3])]
                heapify(lane.heap)
                if not lane:
                    self._occupied[priority] &= ~(1 << partition)
        self._entries = len(self._waiting)

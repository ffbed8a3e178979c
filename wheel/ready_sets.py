"""Ready items that not everybody may take: a ready queue for each set of requirements."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, TypeVar

from timeball.wheel.ready_queue import ReadyQueue

T = TypeVar("T", bound=Hashable)

NOTHING: Final[frozenset[str]] = frozenset()

_IDLE_SETS_KEPT: Final = 64
_OFFERS_REMEMBERED: Final = 64


class ReadySets(Generic[T]):
    """Due items of one named queue, each with the tags that its taker must offer.

    `take` gives, among what requires nothing that is not offered, the higher priority first,
    then by (due time, sequence), between the sets of requirements; within one set the order is
    that of `ReadyQueue`, so that partitions take turns there. It is a bounded merge: only the
    first item of each set is compared. While no item requires anything there is one queue, and
    nothing to merge.
    """

    __slots__ = ("_fitting", "_partitions", "_plain", "_sets")

    def __init__(self, partitions: int = 16) -> None:
        """Start empty; each set of requirements has so many partitions."""
        self._partitions = partitions
        self._plain: ReadyQueue[T] = ReadyQueue(partitions)
        self._sets: dict[tuple[str, ...], ReadyQueue[T]] = {}
        # Which of these whoever offers something may take from; to be found anew when they change.
        self._fitting: dict[frozenset[str], list[ReadyQueue[T]]] = {}

    def __len__(self) -> int:
        """Items that wait to be taken, by whomever."""
        return len(self._plain) + sum(map(len, self._sets.values()))

    def of(self, requires: tuple[str, ...]) -> ReadyQueue[T]:
        """The queue to push items into that require exactly these tags (sorted), at once."""
        if not requires:
            return self._plain
        queue = self._sets.get(requires)
        if queue is None:
            if len(self._sets) >= _IDLE_SETS_KEPT:
                self._sets = {name: each for name, each in self._sets.items() if each}
            queue = self._sets[requires] = ReadyQueue(self._partitions)
            self._fitting.clear()
        return queue

    def has(self, offered: frozenset[str]) -> bool:
        """Whether something waits that may be taken with these tags."""
        return bool(self._plain) or (bool(self._sets) and any(self._fit(offered)))

    def count(self, offered: frozenset[str]) -> int:
        """How many items wait that may be taken with these tags."""
        return len(self._plain) + (sum(map(len, self._fit(offered))) if self._sets else 0)

    def take(self, limit: int, offered: frozenset[str] = NOTHING) -> list[T]:
        """Remove and return the next items in order that may be taken, at most `limit`."""
        if not self._sets:
            return self._plain.take(limit)
        queues = [queue for queue in (self._plain, *self._fit(offered)) if queue]
        if len(queues) == 1:
            return queues[0].take(limit)
        # No two places are equal in all parts, so queues are not compared.
        heads = [(*place, number) for number, queue in enumerate(queues) if (place := queue.head())]
        heapify(heads)
        taken: list[T] = []
        while heads and len(taken) < limit:
            number = heads[0][-1]
            taken += queues[number].take(1)
            place = queues[number].head()
            if place is None:
                heappop(heads)
            else:
                heapreplace(heads, (*place, number))
        return taken

    def discard(self, item: T, requires: tuple[str, ...]) -> bool:
        """Remove `item`, wherever it was put; False if it does not wait here.

        `requires` is where to look first: its requirements may have changed since.
        """
        first = self._sets.get(requires) if requires else self._plain
        if first is not None and first.discard(item):
            return True
        return any(queue.discard(item) for queue in (self._plain, *self._sets.values()))

    def oldest_due_ms(self) -> int | None:
        """The earliest due time of all that wait; None when nothing does."""
        oldest = [queue.oldest_due_ms() for queue in (self._plain, *self._sets.values())]
        return min((due_ms for due_ms in oldest if due_ms is not None), default=None)

    def _fit(self, offered: frozenset[str]) -> list[ReadyQueue[T]]:
        fitting = self._fitting.get(offered)
        if fitting is None:
            if len(self._fitting) >= _OFFERS_REMEMBERED:
                self._fitting.clear()
            fitting = self._fitting[offered] = [
                queue for requires, queue in self._sets.items() if offered.issuperset(requires)
            ]
        return fitting

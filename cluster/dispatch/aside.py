"""Due executions that stand aside, since as many of their concurrency key are leased as may be.

Who is met while its key is full waits here, out of the way of the others of its queue. When
there is room, as many as there is room for go back to the ready queue: of each key first the
higher priority, then by due time. Those that want other workers (`requires`) do not wait for
each other, for nobody may ever come for one of them; so there is room for each kind. Each costs
the logarithm of those that stand aside like it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from timeball.cluster.state.records import Execution, definition_of

_Place: TypeAlias = tuple[int, int, int, Execution]
"""Due time, sequence, number of the entry, and who it is: the first three decide."""
_Kind: TypeAlias = tuple[str, str, tuple[str, ...]]
"""A queue, a concurrency key, and what is required of a worker."""
_STALE_ALLOWED: Final = 64


class _Lane:
    """Those of one kind; if their job comes to require something else, they stay of it."""

    __slots__ = ("back", "entries", "heaps", "kind", "waiting")

    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.heaps: dict[int, list[_Place]] = {}
        """By priority."""
        self.entries = 0
        """In the heaps, with those of executions that have gone."""
        self.waiting = 0
        self.back = 0
        """How many went back and are still ready."""


class Aside:
    """The executions of all queues that stand aside."""

    def __init__(self) -> None:
        self._lanes: dict[str, dict[str, dict[tuple[str, ...], _Lane]]] = {}
        """By the parts of their kind."""
        self._places: dict[Execution, tuple[_Lane, _Place]] = {}
        self._back: dict[Execution, _Lane] = {}
        """Those that went back and are still ready."""
        self._depths: dict[str, int] = {}
        self._number = 0

    def depth(self, queue: str) -> int:
        """How many of a queue stand aside."""
        return self._depths.get(queue, 0)

    def put(self, execution: Execution) -> None:
        """Let one that was ready, and is no more, stand aside."""
        job = execution.job
        queue, key, requires = job.queue, job.options.concurrency_key, job.options.requires
        lanes = self._lanes.setdefault(queue, {}).setdefault(key, {})
        lane = lanes.get(requires)
        if lane is None:
            lane = lanes[requires] = _Lane((queue, key, requires))
        self._number += 1
        place = (execution.due_ms, execution.sequence, self._number, execution)
        self._places[execution] = lane, place
        heappush(lane.heaps.setdefault(definition_of(execution).priority, []), place)
        lane.entries += 1
        lane.waiting += 1
        self._depths[queue] = self._depths.get(queue, 0) + 1

    def take(self, queue: str, key: str, room: int, limit: int) -> list[Execution]:
        """Those that go back, where there is room for so many of the key: at most `limit`."""
        taken: list[Execution] = []
        for lane in self._lanes.get(queue, {}).get(key, {}).values():
            wanted = min(room - lane.back, limit - len(taken))
            for _ in range(min(wanted, lane.waiting)):
                execution = self._first(lane)
                self._back[execution] = lane
                lane.back += 1
                taken.append(execution)
        return taken

    def discard(self, execution: Execution) -> bool:
        """It is not to be handed out; False if it does not stand aside."""
        found = self._places.get(execution)
        if found is None:
            return False
        lane, _ = found
        self._gone(lane, execution)
        # Its entry stays behind: who meets it sees that it is stale.
        if lane.entries > 2 * lane.waiting + _STALE_ALLOWED:
            self._sweep(lane)
        self._drop_if_empty(lane)
        return True

    def left(self, executions: Iterable[Execution]) -> None:
        """Some that were ready are so no more: they may have been here before."""
        if not self._back:
            return
        for execution in executions:
            lane = self._back.pop(execution, None)
            if lane is not None:
                lane.back -= 1
                self._drop_if_empty(lane)

    def keys_of(self, queue: str) -> list[str]:
        """The keys of a queue that some stand aside for, or went back for and are ready."""
        return list(self._lanes.get(queue, ()))

    def oldest_due_ms(self, queue: str) -> int | None:
        """The earliest due time of those of a queue; None when there are none."""
        return min((place[0] for place in self._heads(queue)), default=None)

    def _heads(self, queue: str) -> Iterator[_Place]:
        for lanes in self._lanes.get(queue, {}).values():
            for lane in lanes.values():
                for heap in lane.heaps.values():
                    self._drop_stale(lane, heap)
                    if heap:
                        yield heap[0]

    def _first(self, lane: _Lane) -> Execution:
        """Take out who goes first; somebody waits."""
        for priority in sorted(lane.heaps, reverse=True):
            heap = lane.heaps[priority]
            self._drop_stale(lane, heap)
            if heap:
                execution = heappop(heap)[3]
                lane.entries -= 1
                self._gone(lane, execution)
                return execution
            del lane.heaps[priority]
        raise AssertionError("a lane counts more than it holds")

    def _gone(self, lane: _Lane, execution: Execution) -> None:
        del self._places[execution]
        lane.waiting -= 1
        queue = lane.kind[0]
        self._depths[queue] -= 1
        if not self._depths[queue]:
            del self._depths[queue]

    def _is_stale(self, place: _Place) -> bool:
        found = self._places.get(place[3])
        return found is None or found[1] is not place

    def _drop_stale(self, lane: _Lane, heap: list[_Place]) -> None:
        while heap and self._is_stale(heap[0]):
            heappop(heap)
            lane.entries -= 1

    def _sweep(self, lane: _Lane) -> None:
        for priority, heap in list(lane.heaps.items()):
            kept = [place for place in heap if not self._is_stale(place)]
            heapify(kept)
            lane.heaps[priority] = kept
        lane.entries = lane.waiting

    def _drop_if_empty(self, lane: _Lane) -> None:
        """Keep nothing of kinds of which there is none."""
        if lane.waiting or lane.back:
            return
        queue, key, requires = lane.kind
        keys = self._lanes[queue]
        del keys[key][requires]
        if not keys[key]:
            del keys[key]
            if not keys:
                del self._lanes[queue]

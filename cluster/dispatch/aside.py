"""Due executions that stand aside, since as many of their concurrency key are leased as may be.

Who is met while its key is full waits here, out of the way of the others of its queue. When
there is room, as many as there is room for go back to the ready queue: of each key first the
higher priority, then by due time. Those that want other workers (`requires`) do not wait for
each other, for nobody may ever come for one of them; so there is room for each kind. Each costs
the logarithm of those that stand aside like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from timeball.cluster.state.records import Execution, definition_of

_Place: TypeAlias = tuple[int, int, int, Execution]
"""Due time, sequence, number of the entry, and who it is: the first three decide."""
_STALE_ALLOWED: Final = 64


class _Lane:
    """Those of one queue and key that want the same of a worker."""

    __slots__ = ("back", "entries", "heaps", "waiting")

    def __init__(self) -> None:
        self.heaps: dict[int, list[_Place]] = {}
        """By priority."""
        self.entries = 0
        """In the heaps, with those of executions that have gone."""
        self.waiting = 0
        self.back: dict[Execution, None] = {}
        """Those that went back and are still ready."""


class Aside:
    """The executions of all queues that stand aside."""

    def __init__(self) -> None:
        self._lanes: dict[str, dict[str, dict[tuple[str, ...], _Lane]]] = {}
        """By queue, concurrency key, and what they require."""
        self._places: dict[Execution, _Place] = {}
        self._depths: dict[str, int] = {}
        self._number = 0

    def depth(self, queue: str) -> int:
        """How many of a queue stand aside."""
        return self._depths.get(queue, 0)

    def put(self, execution: Execution) -> None:
        """Let one that was ready stand aside."""
        job = execution.job
        options = job.options
        keys = self._lanes.setdefault(job.queue, {})
        lane = keys.setdefault(options.concurrency_key, {}).setdefault(options.requires, _Lane())
        lane.back.pop(execution, None)
        self._number += 1
        place = (execution.due_ms, execution.sequence, self._number, execution)
        self._places[execution] = place
        heappush(lane.heaps.setdefault(definition_of(execution).priority, []), place)
        lane.entries += 1
        lane.waiting += 1
        self._depths[job.queue] = self._depths.get(job.queue, 0) + 1

    def take(self, queue: str, key: str, room: int, limit: int) -> list[Execution]:
        """Those that go back, where there is room for so many of the key: at most `limit`."""
        taken: list[Execution] = []
        for lane in list(self._lanes.get(queue, {}).get(key, {}).values()):
            wanted = min(room - len(lane.back), limit - len(taken))
            for _ in range(min(wanted, lane.waiting)):
                execution = self._first(lane)
                lane.back[execution] = None
                taken.append(execution)
        return taken

    def discard(self, execution: Execution) -> bool:
        """It is not to be handed out; False if it does not stand aside."""
        if execution not in self._places:
            return False
        lane = self._lane_of(execution)
        assert lane is not None
        self._gone(lane, execution)
        # Its entry stays behind: who meets it sees that it is stale.
        if lane.entries > 2 * lane.waiting + _STALE_ALLOWED:
            self._sweep(lane)
        self._drop_if_empty(execution, lane)
        return True

    def left(self, execution: Execution) -> None:
        """One that was ready is so no more: it may have been here before."""
        if execution.job.queue in self._lanes:
            lane = self._lane_of(execution)
            if lane is not None:
                lane.back.pop(execution, None)
                self._drop_if_empty(execution, lane)

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
                execution = heap[0][3]
                self._gone(lane, execution)
                heappop(heap)
                lane.entries -= 1
                return execution
            del lane.heaps[priority]
        raise AssertionError("a lane counts more than it holds")

    def _gone(self, lane: _Lane, execution: Execution) -> None:
        del self._places[execution]
        lane.waiting -= 1
        queue = execution.job.queue
        self._depths[queue] -= 1
        if not self._depths[queue]:
            del self._depths[queue]

    def _drop_stale(self, lane: _Lane, heap: list[_Place]) -> None:
        while heap and self._places.get(heap[0][3]) is not heap[0]:
            heappop(heap)
            lane.entries -= 1

    def _sweep(self, lane: _Lane) -> None:
        for priority, heap in list(lane.heaps.items()):
            kept = [place for place in heap if self._places.get(place[3]) is place]
            heapify(kept)
            lane.heaps[priority] = kept
        lane.entries = lane.waiting

    def _lane_of(self, execution: Execution) -> _Lane | None:
        options = execution.job.options
        lanes = self._lanes.get(execution.job.queue, {}).get(options.concurrency_key)
        return None if lanes is None else lanes.get(options.requires)

    def _drop_if_empty(self, execution: Execution, lane: _Lane) -> None:
        """Keep nothing of keys that nobody waits for."""
        if lane.waiting or lane.back:
            return
        job = execution.job
        keys = self._lanes[job.queue]
        lanes = keys[job.options.concurrency_key]
        del lanes[job.options.requires]
        if not lanes:
            del keys[job.options.concurrency_key]
            if not keys:
                del self._lanes[job.queue]

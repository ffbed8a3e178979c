"""The timing wheel against a heap and a sorted list, on one and the same work.

Each holds a number of timers, due over an hour; a fifth is cancelled, as leases are that
end in time; the rest fires in steps of one millisecond's worth of timers at a time.
"""

from __future__ import annotations

import bisect
import heapq
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from timeball.bench.load.driver import Show
from timeball.bench.load.figures import Figures
from timeball.bench.load.surroundings import describe, measure_speed
from timeball.wheel import Timer, TimingWheel

SPAN_MS = 3_600_000
CANCELLED_IN = 5
"""Every fifth timer is cancelled."""
STEPS = 1_000
SORTED_LIST_LIMIT = 100_000
"""Beyond, a sorted list takes minutes: each insert moves half of it."""


class Contestant(Protocol):
    """What is compared."""

    def insert(self, due_ms: int, item: int) -> object: ...

    def cancel(self, handle: object) -> None: ...

    def advance(self, now_ms: int) -> list[int]: ...


class _Wheel:
    def __init__(self) -> None:
        self._wheel: TimingWheel[int] = TimingWheel(0)

    def insert(self, due_ms: int, item: int) -> object:
        return self._wheel.insert(due_ms, item)

    def cancel(self, handle: object) -> None:
        assert isinstance(handle, Timer)
        self._wheel.cancel(handle)

    def advance(self, now_ms: int) -> list[int]:
        fired: list[int] = []
        while True:
            fired += self._wheel.advance(now_ms)
            following = self._wheel.next_expiry()
            if following is None or following > now_ms:
                return fired


class _Heap:
    """heapq with cancelled timers left in until they come up, as schedulers do with it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._cancelled: set[object] = set()
        self._inserts = 0

    def insert(self, due_ms: int, item: int) -> object:
        self._inserts += 1
        heapq.heappush(self._heap, (due_ms, self._inserts, item))
        return self._inserts

    def cancel(self, handle: object) -> None:
        self._cancelled.add(handle)

    def advance(self, now_ms: int) -> list[int]:
        fired: list[int] = []
        heap, cancelled = self._heap, self._cancelled
        while heap and heap[0][0] <= now_ms:
            _, handle, item = heapq.heappop(heap)
            if handle in cancelled:
                cancelled.discard(handle)
            else:
                fired.append(item)
        return fired


class _SortedList:
    """A list kept in order by bisection."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, int]] = []
        self._inserts = 0

    def insert(self, due_ms: int, item: int) -> object:
        self._inserts += 1
        entry = (due_ms, self._inserts, item)
        bisect.insort(self._entries, entry)
        return entry

    def cancel(self, handle: object) -> None:
        assert isinstance(handle, tuple)
        del self._entries[bisect.bisect_left(self._entries, handle)]

    def advance(self, now_ms: int) -> list[int]:
        end = bisect.bisect_left(self._entries, (now_ms + 1, 0, 0))
        fired = [item for _, _, item in self._entries[:end]]
        del self._entries[:end]
        return fired


def compare_wheels(sizes: Sequence[int], show: Show) -> Figures:
    """Nanoseconds per operation, by size and contestant; `agree`: all fired the same in order."""
    with tempfile.TemporaryDirectory(prefix="timeball-bench-") as folder:
        speed = measure_speed(Path(folder))
    compared: Figures = {}
    agree = True
    for size in sizes:
        results: Figures = {}
        orders: list[list[int]] = []
        for name, contestant in _contestants(size):
            show(f"{name}, {size:,} timers", 0.5)
            results[name], order = _race(contestant, size)
            orders.append(order)
        agree = agree and all(order == orders[0] for order in orders)
        compared[f"{size}"] = results
    return {
        "ns_per_operation": compared,
        "agree": agree,
        **describe(speed),
    }


def _contestants(size: int) -> Iterator[tuple[str, Contestant]]:
    yield "wheel", _Wheel()
    yield "heapq", _Heap()
    if size <= SORTED_LIST_LIMIT:
        yield "sorted_list", _SortedList()


def _race(contestant: Contestant, size: int) -> tuple[dict[str, int], list[int]]:
    rng = random.Random(size)
    dues = [rng.randrange(SPAN_MS) for _ in range(size)]
    began = time.perf_counter_ns()
    handles = [contestant.insert(due_ms, item) for item, due_ms in enumerate(dues)]
    inserted = time.perf_counter_ns()
    for handle in handles[::CANCELLED_IN]:
        contestant.cancel(handle)
    cancelled = time.perf_counter_ns()
    fired: list[int] = []
    for step in range(1, STEPS + 1):
        fired += contestant.advance(SPAN_MS * step // STEPS)
    ended = time.perf_counter_ns()
    count = len(handles[::CANCELLED_IN])
    assert len(fired) == size - count
    figures = {
        "insert": (inserted - began) // size,
        "cancel": (cancelled - inserted) // count,
        "fire": (ended - cancelled) // len(fired),
    }
    return figures, fired

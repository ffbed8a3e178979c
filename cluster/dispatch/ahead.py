"""What claims are bound to before it is due: who gets what of it, and who waits for it to be due.

Of what comes due at one instant all is bound or nothing: if there is more of it than claims can
take, who goes first is decided when it is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from timeball.cluster.dispatch.leases import Lease
from timeball.cluster.dispatch.seams import DispatchSettings
from timeball.cluster.dispatch.waiting import Waiter
from timeball.cluster.state.records import Execution
from timeball.cluster.state.usual import NO_OPTIONS

_PATIENCE_MS: Final = 100
"""How much later than by the monotonic clock an answer may be due by the wall clock: one that is
set back by less is waited for."""


def by_queue(coming: Iterable[Sequence[Execution]], most: int) -> dict[str, list[Execution]]:
    """What comes due, given by instant in that order, for each queue; whole instants, with no
    more than `most` executions together.

    A queue is left out from the instant on at which something requires what not every claim
    offers: who gets what is decided when it is ready, then.
    """
    queues: dict[str, list[Execution]] = {}
    decided_ms: dict[str, int] = {}
    room = most
    for instant in coming:
        room -= len(instant)
        if room < 0:
            break
        for execution in instant:
            queue, options = execution.job.queue, execution.job.options
            if options is not NO_OPTIONS and options.requires:
                decided_ms.setdefault(queue, execution.due_ms)
            queues.setdefault(queue, []).append(execution)
    for queue, due_ms in decided_ms.items():
        queues[queue] = [one for one in queues[queue] if one.due_ms < due_ms]
    return queues


def shares(
    waiters: Iterable[Waiter],
    executions: Sequence[Execution],
    until_ms: int,
    settings: DispatchSettings,
) -> list[tuple[Waiter, list[Execution]]]:
    """Which claim gets what of all that comes due up to `until_ms`, up to the first instant of
    which there is more than the claims can take; a span that is not over yet is left to a later
    entry."""
    given: list[tuple[Waiter, list[Execution]]] = []
    at = 0
    for waiter in waiters:
        if at == len(executions):
            return given
        most = min(waiter.request.max_executions, settings.max_executions_per_claim)
        last_ms = executions[at].due_ms + settings.lead_span_ms
        taken = [one for one in executions[at : at + most] if one.due_ms <= last_ms]
        if last_ms > until_ms and len(taken) < most:
            return given
        at += len(taken)
        given.append((waiter, taken))
    if at < len(executions):
        full_ms = executions[at].due_ms
        given = [
            (waiter, before)
            for waiter, taken in given
            if (before := [one for one in taken if one.due_ms < full_ms])
        ]
    return given


class _Early(NamedTuple):
    """A claim with leases granted ahead of time, in the order of answering."""

    due_ms: int
    """When the last of its executions is due."""
    number: int
    """No two have the same, so nothing further is compared."""
    by_ms: int
    """When that should be, by the monotonic clock."""
    waiter: Waiter
    leases: list[Lease]


class EarlyAnswers:
    """Claims with their leases, until the executions of each are due."""

    def __init__(self) -> None:
        self._heap: list[_Early] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due_ms: int, by_ms: int, waiter: Waiter, leases: list[Lease]) -> None:
        """To be answered at `due_ms` of the wall clock, which should be at `by_ms` of the
        monotonic one."""
        self._number += 1
        heappush(self._heap, _Early(due_ms, self._number, by_ms, waiter, leases))

    def next_due_ms(self) -> int | None:
        """When to take `due` next, by the wall clock."""
        return self._heap[0].due_ms if self._heap else None

    def due(self, now_ms: int) -> Iterator[tuple[Waiter, list[Lease]]]:
        """Take out what is due by now, in order."""
        while self._heap and self._heap[0].due_ms <= now_ms:
            one = heappop(self._heap)
            yield one.waiter, one.leases

    def overdue(self, monotonic_ms: int) -> Iterator[tuple[Waiter, list[Lease]]]:
        """Take out what the wall clock, set back who knows how far, keeps from being due."""
        while self._heap and self._heap[0].by_ms + _PATIENCE_MS < monotonic_ms:
            one = heappop(self._heap)
            yield one.waiter, one.leases

    def take_all(self) -> list[Waiter]:
        """Take out every claim, whenever it would have been due."""
        waiters = [one.waiter for one in self._heap]
        self._heap.clear()
        return waiters

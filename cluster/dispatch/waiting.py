"""The claims that wait on a leader: in line for each queue, with those who listen for the answer.

A repeat of a claim joins it as one more listener. Every listener has a deadline of its own, at
which it is answered with nothing; a claim stands in line for as long as anybody listens.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

from timeball.cluster.dispatch.leases import Lease
from timeball.cluster.dispatch.messages import ClaimRequest
from timeball.wheel import Timer, TimingWheel


class Listener:
    """One caller that awaits the answer of a claim."""

    __slots__ = ("answer", "deadline_ms", "timer")

    def __init__(self, answer: asyncio.Future[list[Lease]], deadline_ms: int) -> None:
        self.answer = answer
        self.deadline_ms = deadline_ms
        """When it has waited long enough, by the monotonic clock. A claim that is bound to work by
        then tells it the verdict."""
        self.timer: Timer | None = None


class Waiter:
    """One claim, and everybody who listens for its answer."""

    __slots__ = ("in_line", "listeners", "place", "request")

    def __init__(self, request: ClaimRequest) -> None:
        self.request = request
        self.listeners: list[Listener] = []
        self.in_line = False
        """Whether it waits for work. If not, it has work, or is answered."""
        self.place = 0
        """Where it stands in line: those with lower ones have their turn before it."""


_Group: TypeAlias = OrderedDict[Waiter, None]
"""Claims of one queue that offer the same, in line."""


_NOBODY: Final[dict[frozenset[str], _Group]] = {}


class WaitingLine:
    """Claims without work, first come first served in each queue, among those that may take what
    there is: so those that offer the same stand together."""

    def __init__(self, monotonic_ms: int, earlier: Callable[[int], None]) -> None:
        """`earlier` is told of each new deadline on the monotonic clock."""
        self._queues: dict[str, dict[frozenset[str], _Group]] = {}
        self._deadlines: TimingWheel[tuple[Waiter, Listener]] = TimingWheel(monotonic_ms)
        self._earlier = earlier
        self.count = 0
        """Claims, over all queues."""
        self._first_place = self._last_place = 0

    @property
    def listening(self) -> int:
        """Those who listen for the answers of all these claims."""
        return len(self._deadlines)

    @property
    def to_spare(self) -> bool:
        """Whether more than one claim waits in some queue."""
        return self.count > len(self._queues)

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[Waiter]:
        for groups in self._queues.values():
            for waiters in groups.values():
                yield from waiters

    def depth(self, queue: str) -> int:
        """Claims that wait for work of a queue."""
        return sum(map(len, self._queues.get(queue, _NOBODY).values()))

    def offers(self, queue: str) -> Collection[frozenset[str]]:
        """What the claims that wait for work of a queue offer."""
        return self._queues.get(queue, _NOBODY).keys()

    def first(self, queue: str, may_take: Callable[[str, frozenset[str]], bool]) -> Waiter | None:
        """Whose turn it is among the claims that offer enough: `may_take` is asked about a
        queue and what is offered there."""
        first: Waiter | None = None
        for offered, waiters in self._queues.get(queue, _NOBODY).items():
            waiter = next(iter(waiters))
            if (first is None or waiter.place < first.place) and may_take(queue, offered):
                first = waiter
        return first

    def all_but_last(self, queue: str) -> Iterator[Waiter]:
        """The claims of a queue in the order of their turns, without the one that came last."""
        groups = self._queues.get(queue, _NOBODY)
        in_line = merge(*groups.values(), key=attrgetter("place"))
        return islice(in_line, max(self.depth(queue) - 1, 0))

    def join(self, waiter: Waiter, *, first: bool = False) -> None:
        """A claim begins to wait, behind all others of its queue or before them."""
        request = waiter.request
        groups = self._queues.setdefault(request.queue, {})
        waiters = groups.setdefault(request.offered, OrderedDict())
        waiters[waiter] = None
        if first:
            waiters.move_to_end(waiter, last=False)
            self._first_place -= 1
            waiter.place = self._first_place
        else:
            self._last_place += 1
            waiter.place = self._last_place
        waiter.in_line = True
        self.count += 1
        for listener in waiter.listeners:
            self._set_timer(waiter, listener)

    def leave(self, waiter: Waiter) -> None:
        """A claim waits no more; its listeners stay with it."""
        request = waiter.request
        groups = self._queues[request.queue]
        waiters = groups[request.offered]
        del waiters[waiter]
        if not waiters:
            del groups[request.offered]
            if not groups:
                del self._queues[request.queue]
        waiter.in_line = False
        self.count -= 1
        for listener in waiter.listeners:
            self._lift_timer(listener)

    def listen(self, waiter: Waiter, listener: Listener) -> None:
        """One more awaits the answer of a claim, wherever that stands."""
        waiter.listeners.append(listener)
        if waiter.in_line:
            self._set_timer(waiter, listener)

    def unlisten(self, waiter: Waiter, listener: Listener) -> bool:
        """One does not any more; True when it was the last one of a claim in line, which has
        left the line then."""
        waiter.listeners.remove(listener)
        self._lift_timer(listener)
        if waiter.listeners or not waiter.in_line:
            return False
        self.leave(waiter)
        return True

    def over(self, now_ms: int, limit: int) -> Sequence[tuple[Waiter, Listener]]:
        """Listeners whose time is over, each told once, `limit` at most."""
        fired = self._deadlines.advance(now_ms, limit)
        for _, listener in fired:
            listener.timer = None
        return fired

    def next_deadline_ms(self) -> int | None:
        """When to ask `over` next."""
        return self._deadlines.next_expiry()

    def _set_timer(self, waiter: Waiter, listener: Listener) -> None:
        listener.timer = self._deadlines.insert(listener.deadline_ms, (waiter, listener))
        self._earlier(listener.deadline_ms)

    def _lift_timer(self, listener: Listener) -> None:
        if listener.timer is not None:
            self._deadlines.cancel(listener.timer)
            listener.timer = None

"""The claims that wait on a leader: in line for each queue, with those who listen for the answer.

A repeat of a claim joins it as one more listener. Every listener has a deadline of its own, at
which it is answered with nothing; a claim stands in line for as long as anybody listens.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec

from timeball.cluster.dispatch.leases import Lease
from timeball.wheel import Timer, TimingWheel


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for; lengths in milliseconds."""

    queue: str
    worker: str
    request_id: str
    max_executions: int
    wait_ms: int
    lease_ms: int


class Listener:
    """One caller that awaits the answer of a claim."""

    __slots__ = ("answer", "deadline_ms", "timer")

    def __init__(self, answer: asyncio.Future[list[Lease]], deadline_ms: int) -> None:
        self.answer = answer
        self.deadline_ms = deadline_ms
        """When it has waited long enough, by the monotonic clock. A claim that is bound to work by
        then tells it the verdict."""
        self.timer: Timer[tuple[Waiter, Listener]] | None = None


class Waiter:
    """One claim, and everybody who listens for its answer."""

    __slots__ = ("in_line", "listeners", "request")

    def __init__(self, request: ClaimRequest) -> None:
        self.request = request
        self.listeners: list[Listener] = []
        self.in_line = False
        """Whether it waits for work. If not, it has work, or is answered."""


class WaitingLine:
    """Claims without work, first come first served in each queue."""

    def __init__(self, monotonic_ms: int, earlier: Callable[[int], None]) -> None:
        """`earlier` is told of each new deadline on the monotonic clock."""
        self._queues: dict[str, OrderedDict[Waiter, None]] = {}
        self._deadlines: TimingWheel[tuple[Waiter, Listener]] = TimingWheel(monotonic_ms)
        self._earlier = earlier
        self.count = 0
        """Claims, over all queues."""

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
        for waiters in self._queues.values():
            yield from waiters

    def depth(self, queue: str) -> int:
        """Claims that wait for work of a queue."""
        return len(self._queues.get(queue, ()))

    def first(self, queue: str) -> Waiter | None:
        """Whose turn it is."""
        return next(iter(self._queues.get(queue, ())), None)

    def all_but_last(self, queue: str) -> Iterator[Waiter]:
        """The claims of a queue in the order of their turns, without the one that came last."""
        return islice(self._queues.get(queue, ()), max(self.depth(queue) - 1, 0))

    def join(self, waiter: Waiter, *, first: bool = False) -> None:
        """A claim begins to wait, behind all others of its queue or before them."""
        waiters = self._queues.setdefault(waiter.request.queue, OrderedDict())
        waiters[waiter] = None
        if first:
            waiters.move_to_end(waiter, last=False)
        waiter.in_line = True
        self.count += 1
        for listener in waiter.listeners:
            self._set_timer(waiter, listener)

    def leave(self, waiter: Waiter) -> None:
        """A claim waits no more; its listeners stay with it."""
        queue = waiter.request.queue
        waiters = self._queues[queue]
        del waiters[waiter]
        if not waiters:
            del self._queues[queue]
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

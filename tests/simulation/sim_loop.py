"""An event loop under simulated time, whose callbacks belong to processes that can die or stop.

Time moves only when nothing is left to do at the present instant. Each callback belongs to the
process that was running when it was scheduled, so killing a process drops everything it would ever
have done, at whatever await it stood, and stopping one (SIGSTOP, a sync that takes long) holds all
of it back. Production code sees nothing but an asyncio loop.

Callbacks run in the order in which they were scheduled, timers in the order of their instants and
then of their setting: nothing depends on hashes, addresses or the real clock.
"""

from __future__ import annotations

import asyncio
import heapq
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

MAX_CALLBACKS_AN_INSTANT = 200_000
"""A loop that does more without time passing spins."""


class Spinning(Exception):
    """Callbacks schedule one another for ever, and no time passes."""


class Process:
    """What lives and dies as one: a life of a node, a client."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self._loop = loop
        self._holds = 0
        self._held: deque[SimHandle] = deque()
        self._rest: list[SimHandle] = []
        """What the callback that is stalled does later in its turn."""
        self._grave: list[Any] = loop.grave

    @property
    def stopped(self) -> bool:
        return self._holds > 0

    def kill(self) -> None:
        """It does nothing any more. What it was doing is kept, so that no destructor acts."""
        self.alive = False
        self._grave += [*self._rest, *self._held]
        self._rest.clear()
        self._held.clear()

    def keep(self, thing: object) -> None:
        """Keep something of a dead process from being destroyed."""
        self._grave.append(thing)

    def stop(self) -> None:
        """Like SIGSTOP. Stops add up."""
        self._holds += 1

    def resume(self) -> None:
        """Undo one stop; what was held back runs in its order."""
        self._holds -= 1
        if not self._holds and self.alive:
            self._loop.run_held(self._held)

    def end_turn(self) -> None:
        """The time that a callback consumed has passed: what it did after that comes first."""
        self._held.extendleft(reversed(self._rest))
        self._rest.clear()
        self.resume()

    def holds_back(self, handle: SimHandle) -> bool:
        if not self.alive:
            self._grave.append(handle)
            return True
        if self._holds:
            self._held.append(handle)
            return True
        return False

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> SimHandle:
        """Have something happen to this process, whoever causes it."""
        return self._loop.call_at_for(self, when, callback, *args)

    def call_now(self, callback: Callable[..., object], *args: Any) -> None:
        """Do what this process does at this very point, if it lives to reach it.

        A callback that has consumed time reaches its later parts later.
        """
        now = self._loop.time()
        if now > self._loop.present:
            self._rest.append(SimHandle(self, now, callback, args, None))
        else:
            callback(*args)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a part of this process; what it raises is a failure of the run."""
        self._loop.call_at_for(self, self._loop.time(), self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self._loop.create_task(work).add_done_callback(self._loop.report)


class SimHandle:
    """A call to come."""

    __slots__ = ("args", "callback", "context", "dropped", "owner", "when_s")

    def __init__(
        self,
        owner: Process | None,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Any,
    ) -> None:
        self.owner = owner
        self.when_s = when
        self.callback = callback
        self.args = args
        self.context = context
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.when_s


def _not_begun(things: Iterable[object]) -> list[Coroutine[Any, Any, Any]]:
    handles = [thing for thing in things if isinstance(thing, SimHandle)]
    return [arg for handle in handles for arg in handle.args if asyncio.iscoroutine(arg)]


def _begins_task(thing: object) -> bool:
    return isinstance(thing, SimHandle) and type(thing.callback).__name__.startswith("TaskStep")


class SimLoop(asyncio.AbstractEventLoop):
    """See the head of the module. `failures` holds what callbacks raised and nobody caught."""

    def __init__(self) -> None:
        self.current: Process | None = None
        self.failures: list[str] = []
        self.callbacks = 0
        self._now = 0.0
        self._ahead = 0.0
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._number = 0
        self._ending = False
        self.grave: list[Any] = []
        """What dead processes would have done, and what they were."""

    # --- time ----------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now + self._ahead

    @property
    def present(self) -> float:
        """The time outside of the callback that runs, which may have taken some."""
        return self._now

    def consume(self, seconds: float) -> None:
        """The running callback takes so long, and its process does nothing else meanwhile."""
        self._ahead += seconds

    # --- scheduling ----------------------------------------------------------------------------

    def call_soon(self, callback, *args, context=None):
        handle = SimHandle(self.current, self._now, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when, callback, *args, context=None):
        handle = SimHandle(self.current, when, callback, args, context)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def call_at_for(self, owner: Process | None, when, callback, *args) -> SimHandle:
        handle = SimHandle(owner, when, callback, args, None)
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def run_held(self, held: deque[SimHandle]) -> None:
        self._ready.extend(held)
        held.clear()

    # --- running -------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Run until the condition holds, which is looked at whenever time moves.

        Raises Spinning, and RuntimeError when nothing will ever happen any more.
        """
        events._set_running_loop(self)
        try:
            while not until():
                self._run_ready()
                self._advance()
        finally:
            events._set_running_loop(None)

    def _run_ready(self) -> None:
        ready, pop = self._ready, self._ready.popleft
        spent = 0
        while ready:
            handle = pop()
            if handle.dropped:
                continue
            owner = handle.owner
            if owner is not None and not self._ending and owner.holds_back(handle):
                continue
            spent += 1
            if spent > MAX_CALLBACKS_AN_INSTANT:
                raise Spinning(f"at {self._now:.6f} s: {handle.callback!r}")
            self.current = owner
            try:
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # noqa: BLE001 — whatever it was is told
                self._failed(owner, f"{type(error).__name__}: {error} in {handle.callback!r}")
            self.current = None
            if self._ahead:
                self._stall(owner)
        self.callbacks += spent

    def _stall(self, owner: Process | None) -> None:
        ends, self._ahead = self._now + self._ahead, 0.0
        if owner is not None and owner.alive:
            owner.stop()
            self.call_at_for(None, ends, owner.end_turn)

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].dropped:
            heapq.heappop(timers)
        if not timers:
            raise RuntimeError("nothing will ever happen any more")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def end(self) -> None:
        """Cancel every task, dead or alive, so that no destructor has anything to say."""
        self._ending = True
        waiting = [*self._ready, *(timer for _, _, timer in self._timers), *self.grave]
        for coroutine in _not_begun(waiting):
            coroutine.close()
        self._timers.clear()
        # A task that has not begun ends only if its first step is made.
        steps = [h for h in [*self._ready, *self.grave] if _begins_task(h)]
        self._ready = deque(steps)
        events._set_running_loop(self)
        try:
            for _ in range(20):
                tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                self._run_ready()
                self._timers.clear()
        finally:
            events._set_running_loop(None)

    def report(self, task: asyncio.Task[Any]) -> None:
        """A task has ended: how, if it should not have ended so."""
        if not task.cancelled() and (error := task.exception()) is not None:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._failed(
                self.current, f"{type(error).__name__}: {error} at {where.name}:{where.lineno}"
            )

    def _failed(self, owner: Process | None, what: str) -> None:
        if not self._ending:
            self.failures.append(f"{self._now:.6f} {owner.name if owner else '-'}: {what}")

    # --- what asyncio asks of a loop -----------------------------------------------------------

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        return asyncio.Task(coro, loop=self, name=name)

    def call_exception_handler(self, context):
        error = context.get("exception")
        self._failed(self.current, f"{context.get('message')}: {error!r}")

    def get_debug(self):
        return False

    def is_running(self):
        return True

    def is_closed(self):
        return False

"""Virtual time for one event loop: it passes only while everything waits, and costs nothing.

The loop stays whose it is, with its tasks and sockets; what is replaced is its clock and its wait:

    something can run                   it runs; no time passes
    all wait, the first for a timer     that timer's instant is now
    all wait, work goes on elsewhere    real time: a thread or process (see `elsewhere`)
    all wait, and no timer is set       real time, as in any loop

So `asyncio.sleep`, timeouts and long polls end at their exact instant, in their order, at once.
Time moves in whole microseconds, or chains of timers would drift, by what floating point rounds.

This module alone touches what is not public in asyncio: a loop's `_selector`, and its
`_clock_resolution`, within which a timer is due. (Its own, a nanosecond, is less than what a loop's
time can tell apart after 194 days: a timer whose very instant has come would never be due.)
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LONGEST_MS = 24 * 3_600_000
"""So much virtual time passes in vain at most while a test waits for something."""
_NUDGE_S = 1e-6
"""Instants lie so far behind whole milliseconds: who truncates the time must read what is meant."""
_RESOLUTION_S = 2e-6


class TimeStood(Exception):
    """A test waits for what does not come: a day of virtual time has passed, and it waits still."""


class VirtualTime:
    """The virtual time of the loop that runs, from its making to `release`.

    `patience_s` is how long, in real seconds, it stands still for each piece of work elsewhere.
    Raises RuntimeError for a loop that is not asyncio's own, or has one already.
    """

    def __init__(self, start_ms: int, patience_s: float) -> None:
        loop: Any = asyncio.get_running_loop()
        selector = getattr(loop, "_selector", None)
        if not isinstance(loop, asyncio.SelectorEventLoop) or selector is None:
            raise RuntimeError(
                f"virtual time needs asyncio's own event loop, not {type(loop).__module__}."
                f"{type(loop).__qualname__}: run these tests without uvloop"
            )
        if "select" in vars(selector):
            raise RuntimeError("this event loop has virtual time already: one cluster at a time")
        self._loop: Any = loop
        self._selector = selector
        self._wait_really: Callable[[float | None], list[Any]] = selector.select
        self._begin_s = math.ceil(loop.time()) + _NUDGE_S
        self._now_s = self._begin_s
        self._start_ms = start_ms
        self._patience_s = patience_s
        self._elsewhere: dict[object, float] = {}
        """Work that is waited for, and the real instant up to which."""
        self._at_rest: list[asyncio.Future[None]] = []
        self._asked = 0
        self._in_vain_s = 0.0
        self._take_over()

    def _take_over(self) -> None:
        loop = self._loop
        self._selector.select = self._select
        self._resolution_s, loop._clock_resolution = loop._clock_resolution, _RESOLUTION_S
        self._in_executor, loop.run_in_executor = loop.run_in_executor, self._run_in_executor
        loop.time = lambda: self._now_s

    def release(self) -> None:
        """Let real time pass again; the loop's clock goes on from where it stands."""
        if "select" not in vars(self._selector):
            return
        loop = self._loop
        del self._selector.select
        del loop.run_in_executor
        loop._clock_resolution = self._resolution_s
        really = type(loop).time
        ahead_s = self._now_s - really(loop)
        loop.time = lambda: really(loop) + ahead_s
        self._come_to_rest()

    # --- reading -----------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The wall clock, in epoch milliseconds."""
        return self._start_ms + int((self._now_s - self._begin_s) * 1_000 + 1e-3)

    # --- letting it pass ---------------------------------------------------------------------

    async def pass_until(self, instant_ms: int) -> None:
        """Let time pass up to an instant, and all be done that can be done by then."""
        reached = self._loop.create_future()
        at_s = self._begin_s + (instant_ms - self._start_ms) / 1_000
        timer = self._loop.call_at(at_s, _end, reached)
        with self.asked():
            try:
                await reached
            finally:
                timer.cancel()
        await self.rest()

    async def rest(self) -> None:
        """Wait until nothing is left to do at this instant."""
        future = self._loop.create_future()
        self._at_rest.append(future)
        await future

    @contextmanager
    def asked(self) -> Iterator[None]:
        """While the test itself has asked for time to pass, any length of it may."""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            self._in_vain_s = 0.0

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Work that the loop does not see goes on: time stands still, for as long as patience."""
        piece = object()
        self._elsewhere[piece] = time.monotonic() + self._patience_s
        try:
            yield
        finally:
            self._elsewhere.pop(piece, None)

    def _run_in_executor(
        self, executor: Any, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        waiting = self.elsewhere()
        waiting.__enter__()
        try:
            future: asyncio.Future[Any] = self._in_executor(executor, function, *args)
        except BaseException:
            waiting.__exit__(None, None, None)
            raise
        future.add_done_callback(lambda _: waiting.__exit__(None, None, None))
        return future

    # --- what the loop calls -----------------------------------------------------------------

    def _select(self, timeout: float | None = None) -> list[Any]:
        """Wait as a selector does; `timeout` is how far the next timer is away."""
        events = self._wait_really(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        while self._elsewhere:
            left_s = min(self._elsewhere.values()) - time.monotonic()
            events = self._wait_really(max(left_s, 0))
            if events:
                return events
            now = time.monotonic()
            self._elsewhere = {p: by for p, by in self._elsewhere.items() if by > now}
        if self._come_to_rest():
            return []
        if timeout is None:
            return self._wait_really(None)
        self._move(timeout)
        return []

    def _come_to_rest(self) -> bool:
        waiting, self._at_rest = self._at_rest, []
        for future in waiting:
            _end(future)
        return bool(waiting)

    def _move(self, by_s: float) -> None:
        if not self._asked:
            self._in_vain_s += by_s
            if self._in_vain_s * 1_000 > LONGEST_MS:
                self._in_vain_s = 0.0
                raise TimeStood(
                    f"the test waits, and {LONGEST_MS // 3_600_000} hours of virtual time have "
                    "passed: what it waits for does not come (to let more time pass, "
                    "advance the cluster)"
                )
        passed_us = round((self._now_s + by_s - self._begin_s) * 1_000_000)
        self._now_s = self._begin_s + passed_us / 1_000_000


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

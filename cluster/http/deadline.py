"""One deadline at a time, moved often and reached hardly ever, on a single lazy timer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Deadline:
    """Calls back unless it is moved or lifted before it is reached.

    Moving it later costs no timer: the timer wakes, finds the new moment, and sleeps on. It
    sleeps no longer than `longest_nap_s`, so that a nearer deadline rarely has to wake it.
    """

    __slots__ = ("_expire", "_longest_nap_s", "_loop", "_moment", "_timer", "_wakes_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, longest_nap_s: float) -> None:
        self._loop = loop
        self._longest_nap_s = longest_nap_s
        self._moment = math.inf
        self._expire: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf

    def set(self, seconds: float, expire: Callable[[], None]) -> None:
        """Call `expire` once, `seconds` from now, instead of what was set before."""
        now = self._loop.time()
        self._moment = now + seconds
        self._expire = expire
        if self._timer is None or self._moment < self._wakes_at:
            self._nap(now)

    def lift(self) -> None:
        """Call nothing; the timer is left to find that out."""
        self._moment = math.inf
        self._expire = None

    def end(self) -> None:
        """Call nothing ever again and leave no timer behind."""
        self.lift()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _nap(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = min(self._moment, now + self._longest_nap_s)
        self._timer = self._loop.call_at(self._wakes_at, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now = self._loop.time()
        expire = self._expire
        if expire is None:
            return
        if now < self._moment:
            self._nap(now)
            return
        self.lift()
        expire()

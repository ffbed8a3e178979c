"""Whether the wall clock steps: every node compares it with the monotonic one, once a second.

What is due follows the wall clock, so a step matters on a leader; on a follower it will as soon as
that leads. Nothing is set right here: log-time never goes back, and who is told of a step raises
an alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

PERIOD_S = 1.0
STEP_MS = 500
"""A wall clock that leaves the monotonic one by less between two looks is being slewed."""


class Loop(Protocol):
    """An event loop, as far as it is needed."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Any: ...


class ClockWatch:
    """Tells `stepped(step_ms)` of each step of the wall clock; negative: back."""

    def __init__(self, wall_clock_ms: Callable[[], int], stepped: Callable[[int], None]) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._stepped = stepped
        self._loop: Loop | None = None
        self._ahead_ms = 0
        """Of the wall clock, to the monotonic one."""
        self._timer: Any = None

    def start(self, loop: Loop) -> None:
        """Begin to watch, by the clock of a loop that runs."""
        self._loop = loop
        self._ahead_ms = self._measure(loop)
        self._timer = loop.call_later(PERIOD_S, self._look)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = self._loop
        assert loop is not None
        ahead_ms = self._measure(loop)
        step_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        if abs(step_ms) >= STEP_MS:
            self._stepped(step_ms)
        self._timer = loop.call_later(PERIOD_S, self._look)

    def _measure(self, loop: Loop) -> int:
        return self._wall_clock_ms() - int(loop.time() * 1000)

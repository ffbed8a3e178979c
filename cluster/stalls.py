"""How long the event loop is held up: by how much a timer that should ring rings late.

Everything of a node runs in one loop, so a turn that takes long delays heartbeats, fires
and answers alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

PERIOD_S = 0.01
"""A stall is seen if it covers an end of this; longer ones always are, to within it."""
WINDOW_S = 60


class Loop(Protocol):
    """An event loop, as far as it is watched."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Any: ...


class StallWatch:
    """Tells of every ring of its timer, and keeps the longest stall of each recent second."""

    def __init__(self) -> None:
        self._loop: Loop | None = None
        self._due_s = 0.0
        self._timer: Any = None
        self._worst: deque[tuple[int, float]] = deque()
        """(second, longest stall in it), oldest first; seconds without a stall are left out."""
        self.observe_ms: list[Callable[[float], None]] = []
        """Called every `PERIOD_S` with by how much the timer rang late, in milliseconds."""

    def start(self, loop: Loop) -> None:
        """Begin to watch a loop that runs."""
        self._loop = loop
        self._wait(loop)

    def stop(self) -> None:
        """Watch no more; what was seen can still be read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def longest_s(self) -> float:
        """The longest stall that ended in the last `WINDOW_S` seconds, in seconds."""
        if self._loop is not None:
            self._forget(int(self._loop.time()))
        return max((stall_s for _, stall_s in self._worst), default=0.0)

    def _wait(self, loop: Loop) -> None:
        self._due_s = loop.time() + PERIOD_S
        self._timer = loop.call_later(PERIOD_S, self._ring)

    def _ring(self) -> None:
        loop = self._loop
        assert loop is not None
        now_s = loop.time()
        late_s, second = now_s - self._due_s, int(now_s)
        for observe_ms in self.observe_ms:
            observe_ms(max(0.0, late_s) * 1000)
        if self._worst and self._worst[-1][0] == second:
            late_s = max(late_s, self._worst.pop()[1])
        if late_s > 0:
            self._worst.append((second, late_s))
        self._forget(second)
        self._wait(loop)

    def _forget(self, second: int) -> None:
        while self._worst and self._worst[0][0] <= second - WINDOW_S:
            self._worst.popleft()

"""How fast a runner sends to a server that says when it is too much: pure, with `now_ms` given.

    429 or 503     nothing is sent until the server's time is over; half as many at once after it
    success        one more at once, up to the most

So a server that is busy gets less work, and the executions wait in the cluster, where others
may take them, since the runner's slots are full.
"""

from __future__ import annotations

MAX_PAUSE_MS = 60_000
"""Longest time without a request, whatever the server says: then it is asked again."""


class Pace:
    """How many requests may be under way, and from which instant of the monotonic clock on."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.window = most
        self.under_way = 0
        self.open_ms = 0

    def wait_ms(self, now_ms: int) -> int | None:
        """Tell when a request may be sent: 0 now, after so long, or None when another has ended."""
        if self.open_ms > now_ms:
            return self.open_ms - now_ms
        return 0 if self.under_way < self.window else None

    def sent(self) -> None:
        """Take note that a request is under way."""
        self.under_way += 1

    def ended(self) -> None:
        """Take note that a request has ended, however."""
        self.under_way -= 1

    def went_well(self) -> None:
        """Take note of a success."""
        self.window = min(self.most, self.window + 1)

    def too_much(self, now_ms: int, pause_ms: int) -> None:
        """Take note that the server wants to be left alone for a while.

        Refusals of what was sent before the first one was seen count once.
        """
        if self.open_ms <= now_ms:
            self.window = max(1, self.window // 2)
        self.open_ms = max(self.open_ms, now_ms + min(pause_ms, MAX_PAUSE_MS))

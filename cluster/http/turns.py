"""Sharing the node's one loop: long work for requests lets everything else run in between."""

from __future__ import annotations

import asyncio

LONGEST_TURN_S = 0.005
"""A heartbeat is late by at most this, and what one item of the work costs."""


class Turns:
    """What all requests together take of the loop before they let others run.

    Many connections may bring a batch each in one turn of the loop, so they share one bound.
    `await turns.begin()` before the work, and look after each item of it:
    `if turns.clock() >= turns.ends_s: await turns.share()`.
    """

    __slots__ = ("_under_way", "clock", "ends_s")

    def __init__(self) -> None:
        """To be used within one loop."""
        self._under_way = False
        self.clock = _never
        self.ends_s = 0.0

    async def begin(self) -> None:
        """Take part in this turn of the loop, or in the next one if this one is over."""
        self._take_part()
        if self.clock() >= self.ends_s:
            await self.share()

    async def share(self) -> None:
        """Let others run, and go on in a later turn."""
        await asyncio.sleep(0)
        self._take_part()

    def _take_part(self) -> None:
        if not self._under_way:
            self._under_way = True
            loop = asyncio.get_running_loop()
            self.clock = loop.time
            self.ends_s = loop.time() + LONGEST_TURN_S
            loop.call_soon(self._end)

    def _end(self) -> None:
        self._under_way = False


def _never() -> float:
    raise AssertionError("begin comes first")

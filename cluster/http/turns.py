"""Sharing the node's one loop: long work for one request lets everything else run in between."""

from __future__ import annotations

import asyncio

LONGEST_TURN_S = 0.005
"""A heartbeat is late by at most this, and what one item of the work costs."""


class Turn:
    """What one request has taken of the loop since it last let others run.

    Look at it after each item of the work: `if turn.clock() >= turn.ends_s: await turn.share()`.
    """

    __slots__ = ("clock", "ends_s")

    def __init__(self) -> None:
        """The turn begins; call it within the running loop."""
        self.clock = asyncio.get_running_loop().time
        self.ends_s = self.clock() + LONGEST_TURN_S

    async def share(self) -> None:
        """Let others run, and begin a new turn."""
        await asyncio.sleep(0)
        self.ends_s = self.clock() + LONGEST_TURN_S

"""Sharing the node's one loop: long work for one request lets everything else run in between."""

from __future__ import annotations

import asyncio

LONGEST_TURN_S = 0.005
"""A heartbeat is late by at most this, and what one item of the work costs."""


class Turn:
    """What one request has taken of the loop since it last let others run."""

    def __init__(self) -> None:
        """The turn begins; call it within the running loop."""
        self._time = asyncio.get_running_loop().time
        self._began_s = self._time()

    @property
    def is_long(self) -> bool:
        """Whether to share it now: look after each item."""
        return self._time() - self._began_s >= LONGEST_TURN_S

    async def share(self) -> None:
        """Let others run, and begin a new turn."""
        await asyncio.sleep(0)
        self._began_s = self._time()

"""How much room a node's disk has, and what the node may do with it.

    plenty   everything
    low      under the mark: it neither leads nor stands for election; it follows, and votes
    full     under a quarter of the mark, or a write met a full disk: it takes no more entries

A disk that grows full is so noticed while a write still finds room. The marks to come back lie
above those to go, so that a node does not waver. What the file system tells may be wrong for this
process (a quota, a reserve): after a write that found no room, only a write that does ends `full`.
"""

from __future__ import annotations

from typing import Literal

from timeball.cluster.raft.settings import RaftSettings

Room = Literal["plenty", "low", "full"]

_FULL_SHARE = 0.25
_RETURN_SHARE = 1.25
"""How far above a mark the room must be to come back."""


class Space:
    """What is known of the room on one node's disk."""

    def __init__(self, settings: RaftSettings) -> None:
        self._mark = settings.min_free_bytes
        self._every_s = settings.disk_check_s
        self._next_look = float("-inf")
        self.free_bytes = 0
        self.room: Room = "plenty"
        self.refused = False
        """Whether a write has found no room, and none has since."""

    @property
    def low(self) -> bool:
        """Whether the node must not lead; also when it is full."""
        return self.room != "plenty"

    @property
    def full(self) -> bool:
        return self.room == "full"

    def due(self, now: float) -> bool:
        """Whether it is time to look; once for each time."""
        if now < self._next_look:
            return False
        self._next_look = now + self._every_s
        return True

    def found(self, free_bytes: int) -> None:
        """So much room there is now."""
        self.free_bytes = free_bytes
        self._judge()

    def found_none(self) -> None:
        """A write has met a full disk."""
        self.refused = True
        self._judge()

    def found_some(self) -> None:
        """A write has found room."""
        self.refused = False
        self._judge()

    def _judge(self) -> None:
        if self.refused or self._under(self._mark * _FULL_SHARE, self.full):
            self.room = "full"
        else:
            self.room = "low" if self._under(self._mark, self.low) else "plenty"

    def _under(self, mark: float, already: bool) -> bool:
        return self.free_bytes < mark * (_RETURN_SHARE if already else 1)

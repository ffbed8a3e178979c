"""How a node follows the room on its disk, and what it does when that gets scarce.

A leader gives its leadership away, to a follower that holds everything if there is one soon. What
found no room is tried again by its own rules once there is some: no node has to be started anew.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from timeball.cluster.raft.errors import DiskFull
from timeball.cluster.raft.space import Room, Space

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine

_logger = logging.getLogger(__name__)


class DiskWatch:
    """The part of an engine that looks after its disk."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lead_until: float | None = None
        self._written_at = self._marked_at = float("-inf")
        self.space = Space(engine.settings)

    def wrote(self, now: float) -> None:
        """Entries have become durable just now."""
        self._written_at = now

    def lost_leadership(self) -> None:
        self._lead_until = None

    def tick(self, now: float) -> None:
        engine, space, before = self._engine, self.space, self.space.room
        if space.due(now):
            space.found(engine.storage.free_bytes())
            if space.refused:
                self._probe()
            self._tell(before)
        if space.low and engine.leadership is not None:
            self._give_leadership_away(now)
        if not space.full:
            self._mark(now)

    def _mark(self, now: float) -> None:
        """Remember how far the log goes, once it rests, or now and then when it does not."""
        settings = self._engine.settings
        rests = now - self._written_at >= settings.mark_after_s
        if rests or now - self._marked_at >= settings.mark_every_s:
            self._engine.storage.mark()
            self._marked_at = now

    def found_no_room(self, error: DiskFull) -> None:
        """A write has met a full disk; nothing has changed by it."""
        before = self.space.room
        self.space.found_none()
        if before != "full":
            _logger.error("%s: %s", self._engine.name, error)
        self._tell(before)

    def _probe(self) -> None:
        """A write that finds room ends what one that found none began."""
        try:
            self._engine.storage.probe()
        except DiskFull as error:
            _logger.debug("%s: still: %s", self._engine.name, error)
        else:
            self.space.found_some()

    def _tell(self, before: Room) -> None:
        engine, space = self._engine, self.space
        if space.room == before:
            return
        _logger.warning(
            "%s: the room on the disk is %s, %d bytes are free",
            engine.name,
            space.room,
            space.free_bytes,
        )
        if before == "full":
            engine.schedule_flush()  # what waits for its place
        if space.room == "plenty":
            engine.snapshotting.try_again()

    def _give_leadership_away(self, now: float) -> None:
        engine = self._engine
        assert engine.leadership is not None
        if self._lead_until is None:
            self._lead_until = now + engine.settings.transfer_timeout_s
        if self.space.full or now >= self._lead_until:
            engine.step_down(engine.term)
        else:
            engine.leadership.hand_over()

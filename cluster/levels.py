"""The feature level of the cluster: what may be proposed at it, and when it rises.

A level is raised for good, so the leader waits until every member of the configuration is
connected and has said that it supports a higher one; a member that is away holds the level
where it is. Until then each node may go back to the release before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from timeball.cluster.raft.errors import LevelTooLow
from timeball.cluster.raft.interface import Replica
from timeball.cluster.state.levels import level_of
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Operation, RaiseLevel

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often a leader looks at the levels that the members support."""


def common_level(own_level: int, replica: Replica) -> int | None:
    """The highest level that all members support; None while one has not told its own.

    Known on a leader only.
    """
    levels = [peer.level for peer in replica.peers()]
    told = [level for level in levels if level is not None]
    return min([own_level, *told]) if len(told) == len(levels) else None


class LevelKeeper:
    """Keeps the operations of one node to the level of its state, and raises it as leader."""

    def __init__(
        self,
        state: StateMachine,
        replica: Replica,
        propose: Callable[[Operation], asyncio.Future[object]],
    ) -> None:
        self._state = state
        self._replica = replica
        self._propose = propose
        self._timer: asyncio.TimerHandle | None = None
        self._proposed: asyncio.Future[object] | None = None

    def start(self) -> None:
        """This node leads from now on, until `stop`."""
        self.stop()
        self._look()

    def stop(self) -> None:
        """It leads no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._proposed = None

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        common = common_level(self._state.supported_level, self._replica)
        level = self._state.level
        if common is not None and common > level and self._proposed is None:
            self._proposed = self._propose(RaiseLevel(level, common))
            self._proposed.add_done_callback(self._done)

    def _done(self, verdict: asyncio.Future[object]) -> None:
        error = verdict.exception()
        if error is not None:
            _log.warning("the feature level was not raised yet: %s", error)
        elif verdict.result():
            _log.info("the cluster is at feature level %d now", self._state.level)
        if self._proposed is verdict:
            self._proposed = None


def objection_at(state: StateMachine) -> Callable[[Operation], LevelTooLow | None]:
    """Tells of an operation why it must not be proposed at the state's level, if so."""

    def objection(operation: Operation) -> LevelTooLow | None:
        needed, level = level_of(operation), state.level
        if needed <= level:
            return None
        return LevelTooLow(type(operation).__name__, needed, level)

    return objection

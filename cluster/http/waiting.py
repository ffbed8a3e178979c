"""`Prefer: wait=`: an answer that waits until an execution has ended, for so long at most.

A preference (RFC 7240) is no demand: one that cannot be read, or that this node has no room for, is
passed over, and only an answer that honoured it says so. Who waits is told by the entry in which
the execution ends; an entry costs nothing while nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from timeball.cluster.raft.interface import Applied, Observer
from timeball.cluster.state.happenings import Happened
from timeball.cluster.state.machine import Applied as StateApplied
from timeball.cluster.state.records import Execution
from timeball.cluster.state.transitions import TERMINAL

MAX_WAIT_S = 60
MAX_WAITING = 4_096
"""Requests that wait on one node; as many as strong reads."""
APPLIED = "Preference-Applied"

_Hold = tuple[int, int]
_GONE = frozenset({Happened.WITHDRAWN, Happened.PURGED})


class Ends(Observer):
    """Those who wait for executions to end, by the executions' identity."""

    def __init__(self) -> None:
        self._waiting: dict[_Hold, set[asyncio.Future[None]]] = {}
        self._count = 0
        self._closed = False

    @property
    def has_room(self) -> bool:
        """Whether one more may wait."""
        return self._count < MAX_WAITING and not self._closed

    def on_applied(
        self,
        index: int,  # noqa: ARG002 — the interface of observers
        term: int,  # noqa: ARG002
        entry: bytes,  # noqa: ARG002
        applied: Applied,
    ) -> None:
        """Tell those whose execution has ended, or is gone."""
        if not self._waiting:
            return
        assert isinstance(applied, StateApplied), "the node's own state machine applied it"
        for what, state, _, job, nominal_ms, *_ in applied.happened:
            if what < Happened.JOB_CREATED and (state in TERMINAL or what in _GONE):
                self._end(self._waiting.get((job, nominal_ms), ()))

    def on_installed(self, index: int) -> None:  # noqa: ARG002
        """Anything may have ended in what a snapshot covers: those who wait look again."""
        for waiting in self._waiting.values():
            self._end(waiting)

    def close(self) -> None:
        """The node is stopping: nobody waits any longer."""
        self._closed = True
        for waiting in self._waiting.values():
            self._end(waiting)

    async def wait(self, execution: Execution, seconds: int) -> None:
        """Return when an execution has ended, or may have, or the time is over."""
        if execution.state in TERMINAL:
            return
        hold = execution.job.id, execution.nominal_ms
        loop = asyncio.get_running_loop()
        end: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, self._end, (end,))
        self._waiting.setdefault(hold, set()).add(end)
        self._count += 1
        try:
            await end
        finally:
            timer.cancel()
            self._count -= 1
            waiting = self._waiting[hold]
            waiting.discard(end)
            if not waiting:
                del self._waiting[hold]

    def _end(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        for end in waiting:
            if not end.done():
                end.set_result(None)


def preferred_wait_s(prefer: str) -> int:
    """How long a client would wait, at most `MAX_WAIT_S`; 0 when it would not, or cannot say."""
    for preference in prefer.split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            text = value.strip().strip('"')
            sound = text.isascii() and text.isdigit() and len(text) <= 9
            return min(int(text), MAX_WAIT_S) if sound else 0
    return 0

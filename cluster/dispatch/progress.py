"""How far holders have come, on its way from heartbeats into the log at a bounded rate.

What was told since the last writing goes into the log together, once in a while: so an attempt
has at most one write in such a time, whatever its worker sends, and of several reports the
latest wins. What the state has already is not written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from timeball.cluster.dispatch.outbox import BYTES_AN_ITEM, Outbox
from timeball.cluster.dispatch.seams import (
    Commit,
    DispatchSettings,
    Handle,
    Instruments,
    Timers,
)
from timeball.cluster.state.operations import ReportProgress
from timeball.cluster.state.records import Execution

Name = tuple[int, int, int]
"""Job, nominal time and token: a lease as operations call it."""


class ProgressReports:
    """The progress of live leases that the state does not have yet; bounded by their number."""

    def __init__(
        self,
        commit: Commit,
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
        *,
        holder: Callable[[Name], Execution | None],
    ) -> None:
        """`holder` tells the execution that a lease holds, None when it has ended."""
        self._timers = timers
        self._every_ms = settings.progress_ms
        self._holder = holder
        self._latest: dict[Name, bytes] = {}
        """What is not known to be in the state."""
        self._told: dict[Name, None] = {}
        """What came since the last writing, in order of coming."""
        self._under_way: Counter[Name] = Counter()
        """Writings that may still change what the state has."""
        self._next_ms = timers.monotonic_ms()
        self._timer: Handle | None = None
        self._closed = False
        self._outbox: Outbox[Name] = Outbox(
            "progress", commit, timers, settings, instruments,
            build=self._operation, wanted=self._is_news, ended=self._ended,
            settled=self._settled, weigh=self._weigh,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._latest)

    def tell(self, name: Name, progress: bytes) -> None:
        """A live lease has come so far."""
        self._latest[name] = progress
        self._told[name] = None
        if self._timer is None:
            wait_ms = max(self._next_ms - self._timers.monotonic_ms(), 0)
            self._timer = self._timers.call_later(wait_ms, self._write)

    def close(self) -> None:
        """Forget everything; what was told goes to the next leader with the next heartbeat."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._outbox.close()
        self._latest.clear()
        self._told.clear()
        self._under_way.clear()

    def _write(self) -> None:
        self._timer = None
        self._next_ms = self._timers.monotonic_ms() + self._every_ms
        told, self._told = self._told, {}
        for name in told:
            if self._is_news(name):
                self._outbox.put(name)

    def _is_news(self, name: Name) -> bool:
        """Whether it is to be written; what is not is forgotten."""
        progress = self._latest.get(name)
        if progress is None:
            return False
        execution = self._holder(name)
        if execution is not None and (
            execution.latest.progress != progress or name in self._under_way
        ):
            return True
        del self._latest[name]
        return False

    def _operation(self, names: Sequence[Name]) -> ReportProgress:
        self._under_way.update(names)
        return ReportProgress([(*name, self._latest[name]) for name in names])

    def _ended(self, names: Sequence[Name]) -> None:
        for name in names:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    def _settled(self, names: Sequence[Name], _verdicts: Sequence[object]) -> None:
        """What is in the state now, or was refused with its lease, is forgotten."""
        for name in names:
            self._is_news(name)

    def _weigh(self, name: Name) -> int:
        """In items of the usual size."""
        return 1 + len(self._latest[name]) // BYTES_AN_ITEM

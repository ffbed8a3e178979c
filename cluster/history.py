"""The latest of what happened to executions and jobs, kept in memory for whoever follows it.

Every node keeps it of what it applies itself, so what one node began to tell any other can go on
with: an event's id is its position in the log, and within the entry. Kept are the events of the
newest entries, up to a number and up to a size; a restart begins with those after its snapshot.

What an entry did is kept packed, whoever listens: 50 bytes an event, and nothing that the garbage
collector would walk. Readers come to the history at their own pace and are not known to it; one
that is slower than the log finds that its place is gone.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

import msgspec

from timeball.cluster.raft.interface import Applied, Observer
from timeball.cluster.state.happenings import Happening, Happenings
from timeball.cluster.state.machine import Applied as StateApplied
from timeball.cluster.state.machine import StateMachine

BATCH_BYTES = 200
"""What a batch counts for beside its packed events."""


class Position(NamedTuple):
    """A place in the stream: behind so many events of one entry, which has this index."""

    entry: int
    events: int


def behind(index: int) -> Position:
    """The place behind all events of an entry."""
    return Position(index, 2**31)


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What one entry did."""

    entry: int
    log_time_ms: int
    events: int
    packed: bytes
    """See `Happenings.pack`."""

    @property
    def bytes(self) -> int:
        """What it counts for."""
        return BATCH_BYTES + len(self.packed)


class Told(NamedTuple):
    """An event, at its place in what its entry did."""

    entry: int
    place: int
    log_time_ms: int
    happening: Happening


class Counts(msgspec.Struct):
    """How the streams of a node fare that read its history."""

    open: int = 0
    cut_off: int = 0
    """Ended because their client was too slow."""
    sent: int = 0
    """Events told."""


class History(Observer):
    """The batches kept, oldest first, each under a number that rises by one.

    It follows the state's progress before anybody else does who may ask it.
    """

    def __init__(self, state: StateMachine, max_events: int, max_bytes: int) -> None:
        self._state = state
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._batches: deque[Batch] = deque()
        self._first = 0
        self._index = 0
        self._oldest = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self.events = 0
        """How many events are kept."""
        self.bytes = 0
        """What they count for."""
        self.counts = Counts()
        self.closed = False
        """Nothing is added any more: the node is stopping."""

    def on_applied(
        self,
        index: int,
        term: int,  # noqa: ARG002 — the interface of observers
        entry: bytes,  # noqa: ARG002
        applied: Applied,
    ) -> None:
        """Keep what an entry did."""
        assert isinstance(applied, StateApplied), "the node's own state machine applied it"
        if applied.previous != self._index:
            self._begin(applied.previous)
        self._index = index
        if events := len(applied.happened):
            packed = applied.happened.pack()
            batch = Batch(index, self._state.log_time_ms, events, packed)
            self._batches.append(batch)
            self.events += events
            self.bytes += batch.bytes
            while self.events > self._max_events or self.bytes > self._max_bytes:
                self._drop_oldest()
        if self._waiting:
            self._wake()

    def on_installed(self, index: int) -> None:  # noqa: ARG002
        """What a snapshot covers was not told here: who reads must notice."""
        self._wake()

    @property
    def index(self) -> int:
        """The entry up to which everything is told."""
        self._follow_the_state()
        return self._index

    @property
    def oldest(self) -> int:
        """The entry behind which everything is kept."""
        self._follow_the_state()
        return self._oldest

    @property
    def next(self) -> int:
        """The number that the next batch will have."""
        self._follow_the_state()
        return self._first + len(self._batches)

    def find(self, position: Position) -> int:
        """The number of the first batch that may hold an event behind a position."""
        return self._first + bisect_right(
            self._batches, position.entry - 1, key=lambda batch: batch.entry
        )

    def batch(self, number: int) -> Batch | None:
        """The batch of that number, which has been; None when it is gone."""
        place = number - self._first
        return self._batches[place] if place >= 0 else None

    async def wait(self, seconds: float) -> None:
        """Return when there is more than now, or the time is over, or no more will come."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        news = loop.create_future()
        timer = loop.call_later(seconds, _end, news)
        self._waiting.add(news)
        try:
            await news
        finally:
            timer.cancel()
            self._waiting.discard(news)

    def close(self) -> None:
        """Add no more, and let those who wait know."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for news in waiting:
            _end(news)

    def _follow_the_state(self) -> None:
        """A snapshot may have taken the state on without a word about what it covers."""
        applied = self._state.applied_index
        if applied != self._index:
            self._begin(applied)

    def _begin(self, index: int) -> None:
        """Keep only what comes after an entry; what was known before is not to be told apart."""
        self._first += len(self._batches) + 1  # whoever stood at the end must notice
        self._batches.clear()
        self.events = self.bytes = 0
        self._index = self._oldest = index

    def _drop_oldest(self) -> None:
        batch = self._batches.popleft()
        self._first += 1
        self._oldest = batch.entry
        self.events -= batch.events
        self.bytes -= batch.bytes


class Reader:
    """One reader's place in a history."""

    def __init__(self, history: History, position: Position) -> None:
        """At a position that is not older than what is kept."""
        assert position.entry >= history.oldest
        self._history = history
        self._begun = position.entry
        self._number = history.find(position)
        self._place = 0
        self._unpacked: tuple[int, Happenings] | None = None
        """What happened in the batch of that number, the last that was looked at."""
        batch = None if self.at_end else history.batch(self._number)
        if batch is not None and batch.entry == position.entry:
            self._place = position.events
            self._leave_batch_when_read(batch)

    @property
    def at_end(self) -> bool:
        """Whether everything has been read."""
        return self._number >= self._history.next

    @property
    def told(self) -> int:
        """Up to which entry everything has been read, while it is at the end."""
        return max(self._history.index, self._begun)

    def next(self) -> Told | None:
        """The next event; None when it is not kept any more."""
        assert not self.at_end
        batch = self._history.batch(self._number)
        if batch is None:
            return None
        if self._unpacked is None or self._unpacked[0] != self._number:
            self._unpacked = self._number, Happenings.unpack(batch.packed)
        happening = self._unpacked[1][self._place]
        found = Told(batch.entry, self._place, batch.log_time_ms, happening)
        self._place += 1
        self._leave_batch_when_read(batch)
        return found

    def _leave_batch_when_read(self, batch: Batch) -> None:
        if self._place >= batch.events:
            self._number += 1
            self._place = 0


def _end(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)

"""The leader's own operations, gathered into batches and repeated until they are settled.

Expiries, starts, releases and timetable steps each name what they depend on (a token, an
instant), so that proposing one twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers

T = TypeVar("T")

BYTES_AN_ITEM: Final = 32
"""Of the log; items that take more weigh more."""


def _one(_item: object) -> int:
    return 1


def _at_any_time() -> int:
    return 0


class Outbox(Generic[T]):
    """Items of one kind on their way into the log.

    `build` makes one operation of many items. What failed is offered again after a pause
    while `wanted` says so. `settled` is told of each batch that was applied, with its
    verdicts, and before that `ended` of each that was built, whatever became of it. `as_of` tells
    the latest present by which items were decided, where the log must not say that it was
    earlier. Holds at most as many items as there are records that they are about.
    """

    def __init__(
        self,
        kind: str,
        commit: Commit,
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
        *,
        build: Callable[[Sequence[T]], object],
        wanted: Callable[[T], bool],
        settled: Callable[[Sequence[T], Sequence[object]], None] | None = None,
        ended: Callable[[Sequence[T]], None] | None = None,
        weigh: Callable[[T], int] = _one,
        as_of: Callable[[], int] = _at_any_time,
    ) -> None:
        self._kind = kind
        self._commit = commit
        self._timers = timers
        self._settings = settings
        self._instruments = instruments
        self._build = build
        self._wanted = wanted
        self._settled = settled
        self._ended = ended
        self._weigh = weigh
        self._as_of = as_of
        self._items: deque[T] = deque()
        self._scheduled = False
        self._closed = False

    def put(self, item: T) -> None:
        """Propose the item with all others of this turn."""
        self._items.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._flush)

    def close(self) -> None:
        """Forget everything; nothing is proposed any more."""
        self._closed = True
        self._items.clear()

    def _flush(self) -> None:
        self._scheduled = False
        while self._items:
            batch, weight = self._next_batch()
            if not batch:
                return
            verdict = self._commit.propose(
                self._build(batch),
                weight=weight,
                size=64 + BYTES_AN_ITEM * weight,
                as_of_ms=self._as_of(),
            )
            verdict.add_done_callback(partial(self._on_verdict, batch))

    def _next_batch(self) -> tuple[list[T], int]:
        batch: list[T] = []
        total = 0
        while self._items:
            item = self._items[0]
            if not self._wanted(item):
                self._items.popleft()
                continue
            weight = self._weigh(item)
            if batch and total + weight > self._settings.items_per_operation:
                break
            batch.append(self._items.popleft())
            total += weight
        return batch, total

    def _on_verdict(self, batch: list[T], verdict: asyncio.Future[object]) -> None:
        error = verdict.exception()
        if self._closed:
            return
        if self._ended is not None:
            self._ended(batch)
        if error is None:
            if self._settled is not None:
                answers = verdict.result()
                assert isinstance(answers, list)
                assert len(answers) == len(batch), "one verdict for each item"
                self._settled(batch, answers)
            return
        self._instruments.proposal_failed(self._kind, len(batch))
        self._timers.call_later(self._settings.retry_ms, partial(self._again, batch))

    def _again(self, batch: list[T]) -> None:
        if self._closed:
            return
        for item in batch:
            if self._wanted(item):
                self.put(item)

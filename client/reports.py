"""A worker's reports: gathered for a moment, sent in batches, repeated until answered.

A token makes a report safe to repeat, so a lane never gives up on one while its worker
lives. What waits in a lane is bounded by the worker's slots: a slot is free only once its
report has been answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Generic, Protocol, TypeVar

from timeball.client.errors import (
    InternalError,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
    TimeballError,
    Unavailable,
)
from timeball.client.failover import Backoff
from timeball.client.leases import Held
from timeball.client.messages import MAX_BATCH, Report

log = logging.getLogger("timeball.worker")

Item = TypeVar("Item")
Sent = TypeVar("Sent", contravariant=True)

_PASSING = (Unavailable, Overloaded, StorageFull, OutcomeUnknown, InternalError)


class Sender(Protocol[Sent]):
    """A method of the client that reports a batch."""

    def __call__(self, items: Sequence[Sent], /) -> Awaitable[list[Report]]:
        """Report the items; one answer per item, in order."""
        ...


class Lane(Generic[Item]):
    """One kind of report. `settled` is called once per report, with its answer or refusal."""

    def __init__(
        self,
        send: Sender[Item],
        settled: Callable[[Held, Report | TimeballError], None],
        gather_ms: int,
        rng: Random,
    ) -> None:
        self._send = send
        self._settled = settled
        self._gather_ms = gather_ms
        self._rng = rng
        self._waiting: list[tuple[Held, Item]] = []
        self._under_way = 0
        self._filled = asyncio.Event()

    def put(self, held: Held, item: Item) -> None:
        """Add a report."""
        self._waiting.append((held, item))
        self._filled.set()

    def __len__(self) -> int:
        return len(self._waiting) + self._under_way

    async def run(self) -> None:
        """Send what comes until cancelled."""
        while True:
            await self._filled.wait()
            await asyncio.sleep(self._gather_ms / 1_000)
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            self._under_way = len(batch)
            if not self._waiting:
                self._filled.clear()
            await self._deliver(batch)

    async def _deliver(self, batch: list[tuple[Held, Item]]) -> None:
        """Send a batch until it is answered; one that is refused whole is sent item by item."""
        failures = 0
        while True:
            try:
                answers = await self._send([item for _, item in batch])
            except _PASSING as error:
                log.warning("%d reports not answered yet: %s", len(batch), error)
                await asyncio.sleep(Backoff().draw_ms(failures, self._rng) / 1_000)
                failures += 1
            except TimeballError as error:
                if len(batch) == 1:
                    self._settle(batch[0][0], error)
                else:
                    for entry in batch:
                        await self._deliver([entry])
                return
            else:
                for (held, _), answer in zip(batch, answers, strict=True):
                    self._settle(held, answer)
                return

    def _settle(self, held: Held, answer: Report | TimeballError) -> None:
        self._under_way -= 1
        self._settled(held, answer)

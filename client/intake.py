"""One queue's intake: claims for the free slots and a few more, and what waits for a slot.

claim ──▶ waiting (at most `prefetch`; heartbeats keep it) ──▶ slot ──▶ free
             └ worker stops: released
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from timeball.client.client import Client
from timeball.client.errors import InvalidRequest, NotFound, TimeballError
from timeball.client.failover import Backoff
from timeball.client.leases import Held, LeaseKeeper, now_ms
from timeball.client.messages import MAX_BATCH, Claimed, Instruction

log = logging.getLogger("timeball.worker")

GIVE_BACK_MS = 2_000
"""How long a stopping worker asks what its last, cut claim was granted."""
QUIET_MS = 2_000
"""How long a worker that is told to claim no more waits before it asks whether it still is."""


class Terms(NamedTuple):
    """What all claims of a worker share."""

    client: Client
    worker: str
    lease_ms: int
    wait_ms: int
    tags: tuple[str, ...] = ()


class Unanswered(NamedTuple):
    """A claim whose answer has not come: what may have been granted under its request id."""

    request_id: str
    most: int
    sent_ms: int


class Intake:
    """Keeps the slots of one queue full.

    `begin` starts a handler, `give_back` releases what there is no room for. `told` hears what
    the worker is told, with every claim: None for nothing.
    """

    def __init__(
        self,
        terms: Terms,
        queue: str,
        concurrency: int,
        prefetch: int,
        keeper: LeaseKeeper,
        begin: Callable[[Held], None],
        give_back: Callable[[Held], None],
        counted: Callable[[int], None],
        told: Callable[[Instruction | None], None],
    ) -> None:
        self.queue = queue
        self.slots: dict[int, Held] = {}
        self._terms = terms
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._keeper = keeper
        self._begin = begin
        self._give_back = give_back
        self._counted = counted
        self._told = told
        self._waiting: deque[Held] = deque()
        self._unanswered: Unanswered | None = None
        self._freed = asyncio.Event()

    async def run(self) -> None:
        """Claim until cancelled. Raises `NotFound` and `InvalidRequest` when no claim can do."""
        failures = 0
        while True:
            while self._room() < 1:
                self._freed.clear()
                await self._freed.wait()
            try:
                instruction = await self._claim()
                failures = 0
                if instruction is not None:
                    await asyncio.sleep(QUIET_MS / 1_000)
            except (NotFound, InvalidRequest):
                raise
            except TimeballError as error:
                log.warning("no claim was answered: %s", error)
                rng = self._terms.client.rng
                await asyncio.sleep(Backoff().draw_ms(failures, rng) / 1_000)
                failures += 1

    def free(self, held: Held) -> None:
        """Forget an execution; its slot goes to the next that waits."""
        self.slots.pop(held.hold.token, None)
        while self._waiting and len(self.slots) < self._concurrency:
            self._take(self._waiting.popleft())
        self._freed.set()

    def withdraw(self, held: Held) -> bool:
        """Take back what waits for a slot; False if it does not wait."""
        if held not in self._waiting:
            return False
        self._waiting.remove(held)
        self._freed.set()
        return True

    def give_back_waiting(self) -> None:
        """Release all that waits for a slot."""
        while self._waiting:
            self._give_back(self._waiting.popleft())

    async def give_back_unanswered(self) -> None:
        """Release what the cancelled poll may have been granted (LEAS-05).

        A node that sees the connection go releases by itself; but the answer may have been
        written already. The same request id tells what is held under it.
        """
        if self._unanswered is None:
            return
        asked = self._unanswered
        try:
            claimed = await self._ask(asked, 0, GIVE_BACK_MS)
        except TimeballError as error:
            log.warning("what the last claim was granted is left to expire: %s", error)
            return
        for delivery in claimed.executions:
            self._give_back(Held(delivery, asked.sent_ms, self.queue))

    def _room(self) -> int:
        room = self._concurrency + self._prefetch - len(self.slots) - len(self._waiting)
        return min(room, MAX_BATCH)

    async def _claim(self) -> Instruction | None:
        """Claim once; tells what the worker is told.

        What an unanswered claim was granted is asked for by the next one, too. Its leases run
        from the moment that it was first sent, so what comes after their end is confirmed by a
        heartbeat first.
        """
        repeated = self._unanswered is not None
        client, lease_ms, wait_ms = self._terms.client, self._terms.lease_ms, self._terms.wait_ms
        asked = self._unanswered or Unanswered(client.new_request_id(), self._room(), now_ms())
        self._unanswered = asked
        try:
            claimed = await self._ask(asked, wait_ms, lease_ms - wait_ms)
        except TimeballError:
            if repeated:
                self._unanswered = None  # two leases later, what it was granted has ended
            raise
        self._counted(len(claimed.executions))
        fresh = [Held(each, asked.sent_ms, self.queue) for each in claimed.executions]
        for surplus in fresh[asked.most :]:
            self._give_back(surplus)
        del fresh[asked.most :]
        if late := [held for held in fresh if held.deadline_ms <= now_ms()]:
            confirmed = await self._keeper.confirm(late)
            fresh = [held for held in fresh if held not in late or held in confirmed]
        self._unanswered = None
        for held in fresh:
            self._keeper.keep(held)
            if len(self.slots) < self._concurrency:
                self._take(held)
            else:
                self._waiting.append(held)
        self._told(claimed.instruction)
        return claimed.instruction

    async def _ask(self, asked: Unanswered, wait_ms: int, timeout_ms: int) -> Claimed:
        """Claim; a repeat under the same request id is answered as the first was."""
        return await self._terms.client.claim(
            worker=self._terms.worker,
            queue=self.queue,
            max_executions=asked.most,
            wait_ms=wait_ms,
            lease_ms=self._terms.lease_ms,
            request_id=asked.request_id,
            timeout_ms=timeout_ms,
            tags=self._terms.tags,
        )

    def _take(self, held: Held) -> None:
        self.slots[held.hold.token] = held
        self._begin(held)

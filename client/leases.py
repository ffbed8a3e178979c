"""The leases that a worker holds: heartbeats while there is a network, local deadlines always.

A lease is measured on the worker's monotonic clock from the moment that the claim, or the
last answered heartbeat, was SENT. The cluster counts from a later moment, so a lease never
lives longer here than there: at its local deadline it is lost, network or not (LEAS-11). An
attempt's `timeout_ms` bounds it in the same way; the cluster's answers are clipped to what is
left of it, and after the first of them so is the deadline here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from timeball.client.client import Client
from timeball.client.context import ExecutionContext
from timeball.client.errors import TimeballError
from timeball.client.failover import Backoff
from timeball.client.messages import Beat, Delivery, Heartbeat, Hold, Instruction

log = logging.getLogger("timeball.worker")

BEATS_A_LEASE = 3
"""A heartbeat falls due after this part of the lease, so that two may fail."""
PROGRESS_MS = 1_000
"""Progress is told so soon after the latest heartbeat, at once if that is longer ago."""
_GATHER_PART = 12
"""Heartbeats that fall due within this part of a lease ride on one request."""


def now_ms() -> int:
    """Read the running loop's monotonic clock."""
    return int(asyncio.get_running_loop().time() * 1_000)


class Held:
    """One lease in this worker's hands. Instants are readings of the monotonic clock.

    `cancellable` tells whether cancelling the task ends the handler.
    """

    __slots__ = (
        "beat_ms", "beaten_ms", "cancellable", "context", "deadline_ms", "delivery", "has_news",
        "hold", "limit_ms", "news_ms", "queue", "started_ms", "task", "timed_out",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, sent_ms: int, queue: str = "") -> None:
        self.delivery = delivery
        self.queue = queue or delivery.queue
        self.context = ExecutionContext(delivery)
        self.hold = Hold(execution_id=delivery.execution_id, token=delivery.token)
        self.task: asyncio.Task[object] | None = None
        self.cancellable = True
        self.started_ms = 0
        self.beat_ms = 0
        self.beaten_ms = 0
        """When the latest heartbeat was sent, answered or not."""
        self.has_news = False
        """Whether its handler told progress that no heartbeat has carried; of any thread."""
        self.news_ms: int | None = None
        """When that is to be told at the latest."""
        self.deadline_ms = 0
        self.timed_out = False
        timeout_ms = delivery.timeout_ms
        self.limit_ms = now_ms() + timeout_ms if timeout_ms else None
        """The attempt began before this worker was told of it, so it ends before this."""
        self.extend(sent_ms, min(delivery.lease_ms, timeout_ms or delivery.lease_ms))

    def extend(self, sent_ms: int, lease_ms: int) -> None:
        """Run `lease_ms` from `sent_ms`; what is less than a whole lease ends with the attempt."""
        whole_ms = self.delivery.lease_ms
        self.timed_out = self.delivery.timeout_ms > 0 and lease_ms < whole_ms
        self.deadline_ms = sent_ms + lease_ms
        if self.limit_ms is not None and self.limit_ms <= self.deadline_ms:
            self.deadline_ms, self.timed_out = self.limit_ms, True
        # Nothing more can be had near the end of an attempt: beat at the usual pace even so.
        first = self.beat_ms == 0
        self.beat_ms = sent_ms + (min(lease_ms, whole_ms) if first else whole_ms) // BEATS_A_LEASE

    def beat(self, now: int) -> Hold | Beat:
        """A heartbeat that is sent now, with the latest progress."""
        self.beaten_ms, self.has_news, self.news_ms = now, False, None
        packed = self.context.packed_progress
        if packed is None:
            return self.hold
        return Beat(self.hold.execution_id, self.hold.token, msgspec.Raw(packed))

    @property
    def running(self) -> bool:
        """Whether its handler is at work."""
        return self.task is not None and not self.task.done()

    def interrupt(self, why: str) -> None:
        """End the handler: by cancelling its task, unless its context alone can tell it."""
        if self.task is not None and not self.task.done() and self.cancellable:
            self.task.cancel(why)


class LeaseKeeper:
    """Keeps leases alive until they are dropped; tells which were lost.

    One loop and at most one heartbeat request under way, whatever the number of leases.
    `lost` is called once for a lease that ended before its holder dropped it, `cancelled` once
    when its job was cancelled; `told` whenever the worker is told something.
    """

    def __init__(
        self,
        client: Client,
        lost: Callable[[Held, str], None],
        cancelled: Callable[[Held], None],
        told: Callable[[Instruction], None],
    ) -> None:
        self._client = client
        self._told = told
        self._lost = lost
        self._cancelled = cancelled
        self._held: dict[int, Held] = {}
        self._beating = False
        self._failures = 0
        self._wake = asyncio.Event()
        self._wake_ms = 0

    def keep(self, held: Held) -> None:
        """Keep a lease alive from now on."""
        self._held[held.hold.token] = held
        held.context.tell_progress = partial(self._has_news, held, asyncio.get_running_loop())
        if held.beat_ms < self._wake_ms:
            self._wake.set()

    def drop(self, held: Held) -> None:
        """Care no more for a lease."""
        self._held.pop(held.hold.token, None)

    async def run(self) -> None:
        """Beat and watch deadlines until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                now = now_ms()
                self._end_overdue(now)
                if not self._beating and (due := self._due(now)):
                    self._beating = True
                    group.create_task(self._beat(due))
                await self._sleep()

    async def confirm(self, late: list[Held]) -> list[Held]:
        """Ask whether leases whose answer came after their deadline are held still."""
        sent_ms = now_ms()
        try:
            answers = await self._client.heartbeat([held.hold for held in late])
        except TimeballError as error:
            log.warning("%d leases came too late and could not be confirmed: %s", len(late), error)
            return []
        for held, answer in zip(late, answers, strict=True):
            held.extend(sent_ms, answer.lease_remaining_ms)
        return [
            held
            for held, answer in zip(late, answers, strict=True)
            if answer.verdict == "extended" and held.deadline_ms > now_ms()
        ]

    def _has_news(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        """A handler told progress; called in any thread."""
        if not held.has_news:
            held.has_news = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the worker with it
                loop.call_soon_threadsafe(self._hear, held)

    def _hear(self, held: Held) -> None:
        if held.has_news and held.hold.token in self._held:
            held.news_ms = max(now_ms(), held.beaten_ms + PROGRESS_MS)
            if held.news_ms < self._wake_ms:
                self._wake.set()

    def _end_overdue(self, now: int) -> None:
        for held in [held for held in self._held.values() if held.deadline_ms <= now]:
            self.drop(held)
            over = f"the attempt's timeout_ms, {held.delivery.timeout_ms}, is over"
            unheard = "no heartbeat was answered within the lease"
            self._lost(held, over if held.timed_out else unheard)

    def _due(self, now: int) -> list[Held]:
        return [
            held
            for held in self._held.values()
            if held.beat_ms <= now + (held.deadline_ms - held.beat_ms) // _GATHER_PART
            or (held.news_ms is not None and held.news_ms <= now)
        ]

    async def _sleep(self) -> None:
        instants = [held.deadline_ms for held in self._held.values()]
        if not self._beating:
            instants += [held.beat_ms for held in self._held.values()]
            instants += [one.news_ms for one in self._held.values() if one.news_ms is not None]
        self._wake.clear()
        self._wake_ms = min(instants, default=now_ms() + 60_000)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(1, self._wake_ms - now_ms()) / 1_000):
                await self._wake.wait()

    async def _beat(self, due: list[Held]) -> None:
        sent_ms = now_ms()
        timeout_ms = min(held.delivery.lease_ms for held in due) // BEATS_A_LEASE
        try:
            answers = await self._client.heartbeat(
                [held.beat(sent_ms) for held in due], timeout_ms=timeout_ms
            )
        except TimeballError as error:
            log.warning("%d heartbeats failed: %s", len(due), error)
            pause = Backoff(50, max(50, timeout_ms // 2)).draw_ms(self._failures, self._client.rng)
            self._failures += 1
            for held in due:
                held.beat_ms = now_ms() + pause
        else:
            self._failures = 0
            for held, answer in zip(due, answers, strict=True):
                self._heed(held, answer, sent_ms)
        finally:
            self._beating = False
            self._wake.set()

    def _heed(self, held: Held, answer: Heartbeat, sent_ms: int) -> None:
        if answer.instruction is not None:
            self._told(answer.instruction)
        if held.hold.token not in self._held:
            return
        if answer.verdict in ("lost", "finished", "unknown"):
            self.drop(held)
            self._lost(held, f"the heartbeat was answered {answer.verdict!r}")
            return
        held.extend(sent_ms, answer.lease_remaining_ms)
        if answer.verdict == "cancel_requested" and not held.context.cancelled:
            self._cancelled(held)

"""The worker: claims executions for its free slots, runs the handler, reports what came of it.

    claim ──▶ handler's task ──▶ report ──▶ slot free
                  │ heartbeats go on until the report is answered
                  ├ returned            complete, with the value as its result
                  ├ raised              fail: RetryLater and NonRetryable steer what follows
                  ├ job cancelled       task cancelled; release, which ends the execution
                  ├ lease lost          task cancelled; nothing is reported
                  └ worker stops        after the grace: task cancelled; release

A worker outlives any outage: it repeats claims and reports with jitter until they are
answered. It ends when it is told to, or when the cluster says that its claims are wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec

from timeball.client.backtraces import backtrace_of
from timeball.client.client import Client
from timeball.client.context import ExecutionContext, NonRetryable, RetryLater
from timeball.client.errors import InvalidRequest, NotFound, TimeballError
from timeball.client.failover import Backoff
from timeball.client.flow import encode_request
from timeball.client.leases import Held, LeaseKeeper, now_ms
from timeball.client.messages import (
    MAX_BATCH,
    MAX_ERROR_MESSAGE,
    MAX_ERROR_TYPE,
    MAX_PAYLOAD_BYTES,
    Claimed,
    Delivery,
    Failure,
    Hold,
    Report,
    Success,
)
from timeball.client.reports import Lane

log = logging.getLogger("timeball.worker")

Handler = Callable[[ExecutionContext], Coroutine[Any, Any, Any]]

GRACE_MS = 10_000
"""How long running handlers may go on after a stop, unless told otherwise."""
REPORT_GRACE_MS = 5_000
"""How long a stopping worker tries to have its last reports answered."""
GIVE_BACK_MS = 2_000
"""How long a stopping worker asks what its last, cut claim was granted."""
CANCEL_GRACE_MS = 1_000
"""How long a cancelled handler may take to clean up while its worker stops."""


def wall_ms() -> int:
    """Read the wall clock, in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Worker:
    """Runs `handler` for the executions of one queue, at most `concurrency` at a time.

    Each delivery gets a lease of `lease_ms`, extended while its handler runs. `wait_ms`
    bounds a long poll, and is held to half the lease, since a lease is measured from the
    moment that its claim was sent. Reports are gathered for `gather_ms`.

    Use as ``await Worker(…).run()``, which ends on SIGTERM and SIGINT, or as an
    asynchronous context manager, or with `start` and `stop`. `counts` tells how many
    executions were claimed, completed, failed, released, lost and refused.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 10,
        lease_ms: int = 10_000,
        wait_ms: int = 5_000,
        gather_ms: int = 2,
        name: str | None = None,
        wall_clock_ms: Callable[[], int] = wall_ms,
    ) -> None:
        if not 1 <= concurrency <= 100_000:
            raise ValueError(f"concurrency is 1 to 100000, got {concurrency}")
        call = getattr(handler, "__call__", None)  # noqa: B004 - its kind matters, not its being
        if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(call):
            raise TypeError("the handler is an async function of one ExecutionContext")
        self.client = client
        self.queue = queue
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{client.new_request_id()[:8]}"
        self.counts: Counter[str] = Counter()
        self._handler = handler
        self._concurrency = concurrency
        self._lease_ms = lease_ms
        self._wait_ms = min(wait_ms, lease_ms // 2)
        self._wall_clock_ms = wall_clock_ms
        self._slots: dict[int, Held] = {}
        self._keeper = LeaseKeeper(client, self._lose)
        self._completions = Lane[Success](client.complete, self._completed, gather_ms, client.rng)
        self._failures = Lane[Failure](client.fail, self._failed, gather_ms, client.rng)
        self._releases = Lane[Hold](client.release, self._released, gather_ms, client.rng)
        self._unanswered: tuple[str, int] | None = None
        self._changed = asyncio.Event()
        self._stop_by_ms: int | None = None
        self._fatal: TimeballError | None = None
        self._main: asyncio.Task[None] | None = None

    # --- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin to claim."""
        if self._main is not None:
            raise RuntimeError("a worker starts once")
        self._main = asyncio.create_task(self._live(), name=f"worker {self.name}")

    async def run(self, *, grace_ms: int = GRACE_MS) -> None:
        """Work until SIGTERM, SIGINT or `stop`; a second signal ends the grace at once.

        Raises `NotFound` when the cluster does not serve the queue and `InvalidRequest` when
        it refuses the claims, after a graceful stop.
        """
        self.start()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._signalled, grace_ms)
        try:
            await self._ended()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def stop(self, grace_ms: int = GRACE_MS) -> None:
        """Stop: claim no more, let handlers finish for `grace_ms`, release the rest, report all."""
        self._ask_to_stop(grace_ms)
        await self._ended()

    def _signalled(self, grace_ms: int) -> None:
        self._ask_to_stop(grace_ms if self._stop_by_ms is None else 0)

    def _ask_to_stop(self, grace_ms: int) -> None:
        by_ms = now_ms() + grace_ms
        self._stop_by_ms = by_ms if self._stop_by_ms is None else min(by_ms, self._stop_by_ms)
        self._changed.set()

    async def _ended(self) -> None:
        if self._main is not None:
            await asyncio.shield(self._main) if self._stopping else await self._main
        if self._fatal is not None:
            raise self._fatal

    @property
    def _stopping(self) -> bool:
        return self._stop_by_ms is not None

    async def _live(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                claiming = group.create_task(self._claim_for_ever())
                serving = [
                    group.create_task(self._keeper.run()),
                    group.create_task(self._completions.run()),
                    group.create_task(self._failures.run()),
                    group.create_task(self._releases.run()),
                ]
                await self._until(lambda: self._stopping)
                claiming.cancel()
                await asyncio.wait([claiming])
                await self._wind_down(group)
                for task in serving:
                    task.cancel()
        finally:
            for held in self._slots.values():
                if held.task is not None:
                    held.task.cancel()

    async def _wind_down(self, group: asyncio.TaskGroup) -> None:
        giving_back = group.create_task(self._give_back_unanswered())
        if not await self._until(lambda: not self._running(), lambda: self._stop_by_ms):
            for held in self._running():
                assert held.task is not None
                held.task.cancel("the worker stops")
            patient_by_ms = now_ms() + CANCEL_GRACE_MS
            if not await self._until(lambda: not self._running(), lambda: patient_by_ms):
                log.warning("%d handlers ignore their cancellation", len(self._running()))
        await giving_back
        report_by_ms = now_ms() + REPORT_GRACE_MS
        if not await self._until(lambda: not self._unreported(), lambda: report_by_ms):
            log.warning("%d reports stay unanswered", self._unreported())

    def _unreported(self) -> int:
        return len(self._completions) + len(self._failures) + len(self._releases)

    def _running(self) -> list[Held]:
        return [held for held in self._slots.values() if held.running]

    async def _until(
        self, true: Callable[[], bool], by_ms: Callable[[], int | None] = lambda: None
    ) -> bool:
        """Wait for a condition on this worker's state; False when `by_ms` came first."""
        while not true():
            by = by_ms()
            if by is not None and by <= now_ms():
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if by is None else (by - now_ms()) / 1_000):
                    await self._changed.wait()
        return True

    # --- claims ------------------------------------------------------------------------------

    async def _claim_for_ever(self) -> None:
        failures = 0
        while True:
            await self._until(lambda: len(self._slots) < self._concurrency)
            try:
                await self._claim()
                failures = 0
            except (NotFound, InvalidRequest) as error:
                self._fatal = error
                self._ask_to_stop(GRACE_MS)
                return
            except TimeballError as error:
                log.warning("no claim was answered: %s", error)
                await asyncio.sleep(Backoff().draw_ms(failures, self.client.rng) / 1_000)
                failures += 1

    async def _claim(self) -> None:
        free = min(self._concurrency - len(self._slots), MAX_BATCH)
        sent_ms = now_ms()
        self._unanswered = (self.client.new_request_id(), free)
        # Repeated for one lease at most: what an early attempt was granted has ended by then.
        patience_ms = self._lease_ms - self._wait_ms
        claimed = await self._ask(*self._unanswered, self._wait_ms, patience_ms)
        self._unanswered = None
        self.counts["claimed"] += len(claimed.executions)
        for surplus in claimed.executions[free:]:
            self._give_back(surplus)
        fresh = [Held(delivery, sent_ms) for delivery in claimed.executions[:free]]
        if late := [held for held in fresh if held.deadline_ms <= now_ms()]:
            confirmed = await self._keeper.confirm(late)
            fresh = [held for held in fresh if held not in late or held in confirmed]
        for held in fresh:
            self._begin(held)

    async def _ask(self, request_id: str, free: int, wait_ms: int, timeout_ms: int) -> Claimed:
        """Claim; a repeat under the same request id is answered as the first was."""
        return await self.client.claim(
            worker=self.name,
            queue=self.queue,
            max_executions=free,
            wait_ms=wait_ms,
            lease_ms=self._lease_ms,
            request_id=request_id,
            timeout_ms=timeout_ms,
        )

    async def _give_back_unanswered(self) -> None:
        """Release what the cancelled poll may have been granted (LEAS-05).

        A node that sees the connection go releases by itself; but the answer may have been
        written already. The same request id tells what is held under it.
        """
        if self._unanswered is None:
            return
        try:
            claimed = await self._ask(*self._unanswered, 0, GIVE_BACK_MS)
        except TimeballError as error:
            log.warning("what the last claim was granted is left to expire: %s", error)
            return
        for delivery in claimed.executions:
            self._give_back(delivery)

    def _give_back(self, delivery: Delivery) -> None:
        held = Held(delivery, now_ms())
        self._releases.put(held, held.hold)

    def _begin(self, held: Held) -> None:
        held.started_ms = self._wall_clock_ms()
        held.task = asyncio.create_task(self._handler(held.context))
        held.task.add_done_callback(partial(self._handled, held))
        self._slots[held.hold.token] = held
        self._keeper.keep(held)

    # --- outcomes ----------------------------------------------------------------------------

    def _lose(self, held: Held, why: str) -> None:
        held.context.lose(why)
        if held.running:
            assert held.task is not None
            held.task.cancel("the lease was lost")

    def _handled(self, held: Held, task: asyncio.Task[object]) -> None:
        error = None if task.cancelled() else task.exception()
        self._changed.set()
        if held.context.error is not None:
            log.warning("lease lost: %s", held.context.error)
            self.counts["lost"] += 1
            self._free(held)
        elif task.cancelled() and (held.context.cancelled.is_set() or self._stopping):
            self._releases.put(held, held.hold)
        elif task.cancelled():
            self._fail(held, asyncio.CancelledError("the handler cancelled itself"))
        elif error is not None:
            self._fail(held, error)
        else:
            self._complete(held, task.result())

    def _complete(self, held: Held, result: object) -> None:
        try:
            encoded = encode_request(result)
        except InvalidRequest as error:
            self._fail(held, TypeError(f"the handler's result: {error}"))
            return
        if len(encoded) > MAX_PAYLOAD_BYTES:
            size = f"{len(encoded)} bytes, at most {MAX_PAYLOAD_BYTES}"
            self._fail(held, ValueError(f"the handler's result has {size}"))
            return
        success = Success(
            execution_id=held.hold.execution_id,
            token=held.hold.token,
            result=msgspec.Raw(encoded),
            started_ms=held.started_ms,
        )
        self._completions.put(held, success)

    def _fail(self, held: Held, error: BaseException) -> None:
        log.info("%s failed", held.hold.execution_id, exc_info=error)
        failure = Failure(
            execution_id=held.hold.execution_id,
            token=held.hold.token,
            error_type=type(error).__qualname__[:MAX_ERROR_TYPE],
            message=_message(error),
            retry_after_ms=error.after_ms if isinstance(error, RetryLater) else None,
            non_retryable=isinstance(error, NonRetryable),
            started_ms=held.started_ms,
            backtrace=backtrace_of(error),
        )
        self._failures.put(held, failure)

    def _completed(self, held: Held, answer: Report | TimeballError) -> None:
        if isinstance(answer, TimeballError):
            self._fail(held, answer)
        else:
            self._settled("completed", held, answer)

    def _failed(self, held: Held, answer: Report | TimeballError) -> None:
        self._settled("failed", held, answer)

    def _released(self, held: Held, answer: Report | TimeballError) -> None:
        self._settled("released", held, answer)

    def _settled(self, what: str, held: Held, answer: Report | TimeballError) -> None:
        """Count a report's answer. "finished" and "unknown" mean that it ended before: fine."""
        if isinstance(answer, TimeballError):
            log.error("a report was refused, its lease is left to expire: %s", answer)
            self.counts["refused"] += 1
        elif answer.verdict == "stale":
            log.warning("%s was granted anew: its report counts no more", answer.execution_id)
            self.counts["refused"] += 1
        else:
            self.counts[what] += 1
        self._free(held)

    def _free(self, held: Held) -> None:
        self._keeper.drop(held)
        self._slots.pop(held.hold.token, None)
        self._changed.set()


def _message(error: BaseException) -> str:
    """Render an exception's message for the wire: never raising, clipped, valid UTF-8."""
    text = "".join(traceback.format_exception_only(error)).strip()
    module = type(error).__module__
    kind = type(error).__qualname__
    for prefix in (f"{module}.{kind}", kind):
        if text.startswith(prefix):
            text = text[len(prefix) :].removeprefix(":").strip()
            break
    if len(text) > MAX_ERROR_MESSAGE:
        text = text[: MAX_ERROR_MESSAGE - 1] + "…"
    return text.encode("utf-8", "replace").decode()

"""Running handlers: each delivery's task, what came of it, and the report of that.

handler ended
    ├ returned             complete, with the value as its result
    ├ raised               fail: RetryLater and NonRetryable steer what follows
    ├ was told to end      release: which ends a cancelled job's execution
    └ its lease was lost   nothing is reported
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from timeball.client.client import Client
from timeball.client.context import ExecutionCancelled, ExecutionContext
from timeball.client.errors import TimeballError
from timeball.client.handlers import Executors, Handling
from timeball.client.leases import Held
from timeball.client.messages import Failure, Hold, Report, Success
from timeball.client.middleware import HandlerMiddleware, chain
from timeball.client.outcomes import encode_result, failed
from timeball.client.reports import Lane

log = logging.getLogger("timeball.worker")

Route = Callable[[ExecutionContext], Handling]
"""Chooses the handler of a delivery; raises when there is none."""


class Runs:
    """The handlers at work and their reports. `freed` is told when one is over and answered."""

    def __init__(
        self,
        client: Client,
        gather_ms: int,
        middleware: Sequence[HandlerMiddleware],
        wall_clock_ms: Callable[[], int],
        freed: Callable[[Held], None],
        changed: Callable[[], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._middleware = tuple(middleware)
        self._wall_clock_ms = wall_clock_ms
        self._freed = freed
        self._changed = changed
        self._completions = Lane[Success](client.complete, self._completed, gather_ms, client.rng)
        self._failures = Lane[Failure](client.fail, self._failed, gather_ms, client.rng)
        self._releases = Lane[Hold](client.release, self._released, gather_ms, client.rng)
        self.lanes = (self._completions, self._failures, self._releases)

    @property
    def unreported(self) -> int:
        """How many reports have not been answered."""
        return sum(len(lane) for lane in self.lanes)

    def begin(self, held: Held, route: Route, executors: Executors) -> None:
        """Start the handler of a delivery."""
        held.started_ms = self._wall_clock_ms()
        held.task = asyncio.create_task(self._handle(held, route, executors))
        held.task.add_done_callback(partial(self._handled, held))

    def give_back(self, held: Held) -> None:
        """Release an execution."""
        self._releases.put(held, held.hold)

    async def _handle(self, held: Held, route: Route, executors: Executors) -> object:
        async def last(context: ExecutionContext) -> object:
            chosen = route(context)
            held.cancellable = chosen.run_in == "loop"
            try:
                return await executors.run(chosen, context)
            finally:
                held.cancellable = True

        return await chain(self._middleware, last)(held.context)

    def _handled(self, held: Held, task: asyncio.Task[object]) -> None:
        context = held.context
        error = None if task.cancelled() else task.exception()
        self._changed()
        if context.error is not None:
            log.warning("lease lost: %s", context.error)
            self.counts["lost"] += 1
            self._freed(held)
        elif context.interrupted and (task.cancelled() or isinstance(error, ExecutionCancelled)):
            self.give_back(held)
        elif task.cancelled():
            self._fail(held, asyncio.CancelledError("the handler cancelled itself"))
        elif error is not None:
            self._fail(held, error)
        else:
            self._complete(held, task.result())

    def _complete(self, held: Held, result: object) -> None:
        try:
            encoded = encode_result(result)
        except (TypeError, ValueError) as error:
            self._fail(held, error)
            return
        success = Success(
            execution_id=held.hold.execution_id,
            token=held.hold.token,
            result=encoded,
            started_ms=held.started_ms,
        )
        self._completions.put(held, success)

    def _fail(self, held: Held, error: BaseException) -> None:
        log.info("%s failed", held.hold.execution_id, exc_info=error)
        told = failed(error)
        failure = Failure(
            execution_id=held.hold.execution_id,
            token=held.hold.token,
            error_type=told.error_type,
            message=told.message,
            retry_after_ms=told.retry_after_ms,
            non_retryable=told.non_retryable,
            started_ms=held.started_ms,
            backtrace=told.backtrace,
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
        self._freed(held)

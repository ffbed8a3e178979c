"""The worker: claims executions for its free slots, runs the handler, reports what came of it.

    claim ──▶ handler's task ──▶ report ──▶ slot free
                  │ heartbeats go on until the report is answered
                  ├ returned            complete, with the value as its result
                  ├ raised              fail: RetryLater and NonRetryable steer what follows
                  ├ job cancelled       handler told to end; release, which ends the execution
                  ├ lease lost          handler told to end; nothing is reported
                  └ worker stops        after the grace: handler told to end; release

A worker outlives any outage: it repeats claims and reports with jitter until they are
answered. It ends when it is told to, here or through the cluster, or when the cluster says that
its claims are wrong. Told to be quiet, it finishes what it has, and asks every 2 s whether it may
claim again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from timeball.client.calls import as_tags
from timeball.client.client import Client
from timeball.client.errors import InvalidRequest, NotFound, TimeballError
from timeball.client.handlers import Executors, Handler, RunIn, check_importable, handling
from timeball.client.intake import Intake, Terms
from timeball.client.leases import Held, LeaseKeeper, now_ms
from timeball.client.messages import Instruction
from timeball.client.middleware import HandlerMiddleware
from timeball.client.running import Route, Runs
from timeball.client.tasks import Task, TaskRoute

log = logging.getLogger("timeball.worker")

GRACE_MS = 10_000
"""How long running handlers may go on after a stop, unless told otherwise."""
REPORT_GRACE_MS = 5_000
"""How long a stopping worker tries to have its last reports answered."""
CANCEL_GRACE_MS = 1_000
"""How long a handler that is told to end may take to clean up while its worker stops."""
CONCURRENCY = 10
"""Executions of one queue at a time, unless told otherwise."""


class _Served(NamedTuple):
    """A queue of a worker."""

    intake: Intake
    route: Route
    executors: Executors


class Worker:
    """Runs handlers for the executions of one or several queues.

    ``Worker(client, "mail", send)`` runs `send` for one queue; ``Worker(client, tasks=[…])``
    runs tasks, each from its own queue; `serve` and `serve_tasks` add queues before the start.

    `concurrency` bounds how many executions of a queue run at a time: one number for each
    queue, or one by name. `prefetch` claims so many more than there are free slots; they wait
    here, kept by heartbeats (an attempt's `timeout_ms` runs meanwhile), and are released when
    the worker stops. An async handler runs in the event loop, a plain function in a thread, or
    with ``run_in="process"`` in a process of its own. `middleware` is called around each
    handler, the first outermost.

    Each delivery gets a lease of `lease_ms`, extended while its handler runs. `wait_ms`
    bounds a long poll, and is held to half the lease, since a lease is measured from the
    moment that its claim was sent. Reports are gathered for `gather_ms`, 2 unless told otherwise.
    `tags` are what the worker offers: executions of jobs that require more go to others.

    Use as ``await Worker(…).run()``, which ends on SIGTERM, SIGINT and when the cluster is asked
    to terminate it by its `name` (one for each process, if none is given), or as an
    asynchronous context manager, or with `start` and `stop`. `counts` tells how many
    executions were claimed, completed, failed, released, lost and refused.

    Raises ValueError and TypeError for options and handlers that can not work.
    """

    def __init__(
        self,
        client: Client,
        queue: str | None = None,
        handler: Handler | None = None,
        *,
        tasks: Sequence[Task[..., Any]] = (),
        concurrency: int | Mapping[str, int] = CONCURRENCY,
        prefetch: int = 0,
        run_in: RunIn | None = None,
        middleware: Sequence[HandlerMiddleware] = (),
        lease_ms: int = 10_000,
        wait_ms: int = 5_000,
        gather_ms: int | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        wall_clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self.client = client
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{client.new_request_id()[:8]}"
        offered = as_tags("tags", tags)
        self._terms = Terms(client, self.name, lease_ms, min(wait_ms, lease_ms // 2), offered)
        self._changed = asyncio.Event()
        self._served: dict[str, _Served] = {}
        self._keeper = LeaseKeeper(client, self._lose, self._cancel, self._instructed)
        around = client.surroundings
        self._runs = Runs(
            client,
            around.gather_ms if gather_ms is None else gather_ms,
            middleware,
            wall_clock_ms or around.wall_clock_ms,
            self._free,
            self._changed.set,
        )
        self._grace_ms = GRACE_MS
        self._told: Instruction | None = None
        self._stop_by_ms: int | None = None
        self._fatal: TimeballError | None = None
        self._main: asyncio.Task[None] | None = None
        if (queue is None) != (handler is None):
            raise TypeError("a queue and its handler are given together")
        if queue is not None and handler is not None:
            self.serve(queue, handler, concurrency=concurrency, prefetch=prefetch, run_in=run_in)
        if tasks:
            self.serve_tasks(tasks, concurrency=concurrency, prefetch=prefetch)

    # --- what is served ----------------------------------------------------------------------

    def serve(
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int | Mapping[str, int] = CONCURRENCY,
        prefetch: int = 0,
        run_in: RunIn | None = None,
    ) -> Self:
        """Run a handler for the executions of one more queue."""
        if isinstance(handler, Task):
            raise TypeError(f"{handler.name} is a task: hand it in with tasks=[{handler.name}]")
        chosen = check_importable(handling(handler, run_in))
        self._add(queue, lambda _: chosen, concurrency, prefetch)
        return self

    def serve_tasks(
        self,
        tasks: Sequence[Task[..., Any]],
        *,
        concurrency: int | Mapping[str, int] = CONCURRENCY,
        prefetch: int = 0,
    ) -> Self:
        """Run tasks, each for the executions of its queue that carry its name."""
        for queue, route in TaskRoute.by_queue(tasks).items():
            self._add(queue, route, concurrency, prefetch)
        return self

    def _add(
        self, queue: str, route: Route, concurrency: int | Mapping[str, int], prefetch: int
    ) -> None:
        if self._main is not None:
            raise RuntimeError("queues are added before a worker starts")
        if queue in self._served:
            raise ValueError(f"the queue {queue!r} has a handler already")
        slots = concurrency if isinstance(concurrency, int) else concurrency.get(queue, CONCURRENCY)
        if not 1 <= slots <= 100_000:
            raise ValueError(f"concurrency is 1 to 100000, got {slots}")
        if not 0 <= prefetch <= 100_000:
            raise ValueError(f"prefetch is 0 to 100000, got {prefetch}")
        elsewhere = self.client.surroundings.elsewhere
        executors = Executors(slots, f"{queue}-handler", elsewhere)
        intake = Intake(
            self._terms, queue, slots, prefetch, self._keeper,
            begin=lambda held: self._runs.begin(held, route, executors),
            give_back=self._runs.give_back,
            counted=self._count_claimed,
            told=self._instructed,
        )  # fmt: skip
        self._served[queue] = _Served(intake, route, executors)

    @property
    def counts(self) -> Counter[str]:
        """Executions claimed, completed, failed, released, lost and refused so far."""
        return self._runs.counts

    def _count_claimed(self, number: int) -> None:
        self.counts["claimed"] += number

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
        if not self._served:
            raise RuntimeError("a worker serves at least one queue: give it a handler or tasks")
        self._main = asyncio.create_task(self._live(), name=f"worker {self.name}")

    async def run(self, *, grace_ms: int = GRACE_MS) -> None:
        """Work until SIGTERM, SIGINT, `stop` or an instruction to terminate; a second signal ends
        the grace at once.

        Raises `NotFound` when the cluster does not serve the queue and `InvalidRequest` when
        it refuses the claims, after a graceful stop.
        """
        self._grace_ms = grace_ms
        self.start()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._signalled)
        try:
            await self._ended()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def stop(self, grace_ms: int = GRACE_MS) -> None:
        """Stop: claim no more, let handlers finish for `grace_ms`, release the rest, report all."""
        self._ask_to_stop(grace_ms)
        await self._ended()

    def _signalled(self) -> None:
        self._ask_to_stop(self._grace_ms if self._stop_by_ms is None else 0)

    def _instructed(self, instruction: Instruction | None) -> None:
        """The cluster tells this worker something, or nothing any more."""
        if instruction != self._told:
            self._told = instruction
            log.warning("%s is told: %s", self.name, instruction or "resume")
        if instruction == "terminate" and not self._stopping:
            self._ask_to_stop(self._grace_ms)

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
                claiming = [group.create_task(self._take_in(each)) for each in self._intakes()]
                serving = [group.create_task(self._keeper.run())]
                serving += [group.create_task(lane.run()) for lane in self._runs.lanes]
                await self._until(lambda: self._stopping)
                for task in claiming:
                    task.cancel()
                await asyncio.wait(claiming)
                await self._wind_down(group)
                for task in serving:
                    task.cancel()
        finally:
            for held in self._running():
                assert held.task is not None
                held.task.cancel()
            for served in self._served.values():
                served.executors.close()

    async def _take_in(self, intake: Intake) -> None:
        try:
            await intake.run()
        except (NotFound, InvalidRequest) as error:
            self._fatal = error
            self._ask_to_stop(GRACE_MS)

    async def _wind_down(self, group: asyncio.TaskGroup) -> None:
        giving_back = []
        for intake in self._intakes():
            intake.give_back_waiting()
            giving_back.append(group.create_task(intake.give_back_unanswered()))
        if not await self._until(lambda: not self._running(), lambda: self._stop_by_ms):
            for held in self._running():
                held.context.stop()
                held.interrupt("the worker stops")
            patient_by_ms = now_ms() + CANCEL_GRACE_MS
            if not await self._until(lambda: not self._running(), lambda: patient_by_ms):
                log.warning("%d handlers do not end: they are left", len(self._running()))
        await asyncio.wait(giving_back)
        report_by_ms = now_ms() + REPORT_GRACE_MS
        if not await self._until(lambda: not self._runs.unreported, lambda: report_by_ms):
            log.warning("%d reports stay unanswered", self._runs.unreported)

    def _intakes(self) -> list[Intake]:
        return [served.intake for served in self._served.values()]

    def _running(self) -> list[Held]:
        slots = (intake.slots.values() for intake in self._intakes())
        return [held for held in (held for each in slots for held in each) if held.running]

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

    # --- leases ------------------------------------------------------------------------------

    def _lose(self, held: Held, why: str) -> None:
        held.context.lose(why)
        if self._served[held.queue].intake.withdraw(held):
            log.warning("lease lost before its turn: %s", held.context.error)
            self.counts["lost"] += 1
        held.interrupt("the lease was lost")

    def _cancel(self, held: Held) -> None:
        held.context.cancel()
        if self._served[held.queue].intake.withdraw(held):
            self._runs.give_back(held)
        held.interrupt("the job was cancelled")

    def _free(self, held: Held) -> None:
        self._keeper.drop(held)
        self._served[held.queue].intake.free(held)
        self._changed.set()

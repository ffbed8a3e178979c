"""The virtual cluster for tests without asyncio: it has an event loop of its own.

The loop runs in the test's thread, and only while the test calls: for an answer, or to let time
pass. So between two calls everything stands still, workers too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from timeball.client.blocking import SyncClient
from timeball.client.client import Client
from timeball.client.testing.cluster import DAY, START, Instant, VirtualCluster
from timeball.client.testing.direct import SteppedTransport
from timeball.client.testing.node import URL
from timeball.client.worker import Worker

T = TypeVar("T")


class SyncVirtualCluster:
    """A `VirtualCluster` for plain functions: ``with SyncVirtualCluster() as cluster:``.

    Options, calls and exceptions are those of `VirtualCluster`. It can not be used where an event
    loop runs already.
    """

    def __init__(
        self,
        *,
        start: Instant = START,
        queues: Sequence[str] | None = None,
        seed: int = 0,
        patience_s: float = 5.0,
    ) -> None:
        self._cluster = VirtualCluster(start=start, queues=queues, seed=seed, patience_s=patience_s)
        self._rng = Random(seed + 1)
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._thread = threading.get_ident()

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        try:
            self._run(self._cluster.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._cluster.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def client(
        self,
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        read_your_writes: bool = False,
    ) -> SyncClient:
        """Make a client of this cluster, for the test and for handlers that run in threads."""
        loop = self._runner.get_loop()
        return SyncClient(
            URL,
            timeout_ms=timeout_ms,
            attempt_timeout_ms=attempt_timeout_ms,
            read_your_writes=read_your_writes,
            rng=Random(self._rng.getrandbits(64)),
            monotonic_ms=lambda: int(loop.time() * 1_000),
            transport=SteppedTransport(self._cluster.way, self._run),
        )

    @contextmanager
    def working(self, make: Callable[[Client], Worker]) -> Iterator[Worker]:
        """Have a worker at work whenever time passes; `make` makes it of a client:
        ``with cluster.working(lambda client: Worker(client, tasks=[send])):``.
        """

        async def begin() -> Worker:
            worker = make(self._cluster.client())
            worker.start()
            return worker

        worker = self._run(begin())
        try:
            yield worker
        finally:
            self._run(worker.stop())

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Cut the network between this cluster and all its clients, workers too."""
        cut = self._cluster.unreachable()

        async def begin() -> None:
            cut.__enter__()

        self._run(begin())
        try:
            yield
        finally:
            cut.__exit__(None, None, None)

    @property
    def now(self) -> datetime:
        """The present of the cluster, in UTC."""
        return self._cluster.now

    @property
    def now_ms(self) -> int:
        """The present of the cluster, in epoch milliseconds."""
        return self._cluster.now_ms

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Let time pass, and all be done that can be done by then."""
        self._run(
            self._cluster.advance(
                by,
                days=days,
                hours=hours,
                minutes=minutes,
                seconds=seconds,
                milliseconds=milliseconds,
            )
        )

    def advance_to(self, instant: Instant) -> None:
        """Like `advance`, up to an instant. Raises ValueError for one that has passed."""
        self._run(self._cluster.advance_to(instant))

    def run_due(self, *, within: timedelta = DAY) -> timedelta:
        """Let all be run that is due; see `VirtualCluster.run_due`."""
        return self._run(self._cluster.run_due(within=within))

    def run_until_idle(self, *, within: timedelta = DAY) -> timedelta:
        """Let everything be run that there is; see `VirtualCluster.run_until_idle`."""
        return self._run(self._cluster.run_until_idle(within=within))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the cluster's loop, from the test's thread or from a handler's."""
        if threading.get_ident() != self._thread:
            return asyncio.run_coroutine_threadsafe(work, self._runner.get_loop()).result()
        try:
            return self._runner.run(work)
        except RuntimeError:
            work.close()  # a loop runs here already: it was never begun
            raise

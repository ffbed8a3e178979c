"""The synchronous client: the calls of `Client`, each taken to its end before it returns.

No call is written twice. A method of `Client` waits for nothing but its transport, and the
transport here never waits for a loop; so one step of the method's coroutine takes it to its end.
`blocking` makes a method of that, and gives it the parameters and the result of the original,
for people and for type checkers. A test sees to it that no method is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from random import Random
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from timeball.client.blocking_transport import BlockingTransport
from timeball.client.calls import DEFAULT_URLS, Transport
from timeball.client.client import Client
from timeball.client.failover import Backoff

P = ParamSpec("P")
T = TypeVar("T")


class blocking(Generic[P, T]):  # noqa: N801 - used as a decorator is
    """A method of `Client` as one of `SyncClient`."""

    def __init__(self, method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, client: None, owner: type[SyncClient]) -> Self: ...
    @overload
    def __get__(self, client: SyncClient, owner: type[SyncClient]) -> Callable[P, T]: ...
    def __get__(self, client: SyncClient | None, owner: type[SyncClient]) -> Self | Callable[P, T]:
        if client is None:
            return self
        stepped = client.stepped

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return _to_its_end(self.method(stepped, *args, **kwargs))

        call.__doc__ = self.__doc__
        return call


class iterating(Generic[P, T]):  # noqa: N801 - used as a decorator is
    """A method of `Client` that iterates, as one of `SyncClient`."""

    def __init__(self, method: Callable[Concatenate[Client, P], AsyncIterator[T]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, client: None, owner: type[SyncClient]) -> Self: ...
    @overload
    def __get__(self, client: SyncClient, owner: type[SyncClient]) -> Callable[P, Iterator[T]]: ...
    def __get__(
        self, client: SyncClient | None, owner: type[SyncClient]
    ) -> Self | Callable[P, Iterator[T]]:
        if client is None:
            return self
        stepped = client.stepped

        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            items = self.method(stepped, *args, **kwargs)
            try:
                while True:
                    try:
                        item = _to_its_end(_next(items))
                    except StopAsyncIteration:
                        return
                    yield item
            finally:
                _to_its_end(_close(items))

        call.__doc__ = self.__doc__
        return call


class SyncClient:
    """A client for programs without an event loop; safe to share between threads.

    Options, calls, rules and exceptions are those of `Client`: ``SyncClient.create.__doc__`` is
    its text. A call blocks its thread, at most `timeout_ms` (and what a claim asks the node to
    wait). Connections are kept alive: at most `connections` idle ones.

    Use as ``with SyncClient(urls) as client``, or call `close`.
    """

    def __init__(
        self,
        urls: Sequence[str] | str = DEFAULT_URLS,
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        connections: int = 100,
        read_your_writes: bool = False,
        backoff: Backoff | None = None,
        rng: Random | None = None,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        pause: Callable[[float], None] = time.sleep,
        transport: Transport | None = None,
    ) -> None:
        self.stepped = _Stepped(
            urls,
            timeout_ms=timeout_ms,
            attempt_timeout_ms=attempt_timeout_ms,
            connections=connections,
            read_your_writes=read_your_writes,
            backoff=backoff,
            rng=rng,
            now_ms=monotonic_ms,
            transport=transport or BlockingTransport(connections, monotonic_ms, pause),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def seen_index(self) -> int:
        """The highest position of the log that this client was told."""
        return self.stepped.seen_index

    def new_request_id(self) -> str:
        """Make a request id: 128 random bits as a version-4 UUID in hexadecimal."""
        return self.stepped.new_request_id()

    close = blocking(Client.close)

    create = blocking(Client.create)
    create_many = blocking(Client.create_many)
    job = blocking(Client.job)
    jobs = iterating(Client.jobs)
    cancel = blocking(Client.cancel)

    update_job = blocking(Client.update_job)
    put_job = blocking(Client.put_job)
    job_by_name = blocking(Client.job_by_name)
    pause_job = blocking(Client.pause_job)
    resume_job = blocking(Client.resume_job)
    trigger_job = blocking(Client.trigger_job)
    backfill_job = blocking(Client.backfill_job)
    explain_job = blocking(Client.explain_job)
    preview_schedule = blocking(Client.preview_schedule)

    queue = blocking(Client.queue)
    queues = iterating(Client.queues)
    put_queue = blocking(Client.put_queue)
    update_queue = blocking(Client.update_queue)
    pause_queue = blocking(Client.pause_queue)
    drain_queue = blocking(Client.drain_queue)
    resume_queue = blocking(Client.resume_queue)

    worker = blocking(Client.worker)
    quiet_worker = blocking(Client.quiet_worker)
    terminate_worker = blocking(Client.terminate_worker)
    resume_worker = blocking(Client.resume_worker)

    execution = blocking(Client.execution)
    wait = blocking(Client.wait)
    executions = iterating(Client.executions)
    dead = iterating(Client.dead)
    replay = blocking(Client.replay)
    purge = blocking(Client.purge)
    replay_matching = blocking(Client.replay_matching)
    purge_matching = blocking(Client.purge_matching)

    claim = blocking(Client.claim)
    start = blocking(Client.start)
    heartbeat = blocking(Client.heartbeat)
    complete = blocking(Client.complete)
    fail = blocking(Client.fail)
    release = blocking(Client.release)

    events = iterating(Client.events)

    cluster = blocking(Client.cluster)
    replacement = blocking(Client.replacement)
    take_snapshot = blocking(Client.take_snapshot)


class _Stepped(Client):
    """A `Client` whose coroutines end with their first step."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._seeing = threading.Lock()
        super().__init__(*args, **options)

    def _saw(self, index: int) -> None:
        with self._seeing:
            super()._saw(index)


async def _close(items: AsyncIterator[Any]) -> None:
    """End an iteration that may be half way, with what it holds open."""
    if isinstance(items, AsyncGenerator):
        await items.aclose()


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


def _to_its_end(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise AssertionError("a call of the synchronous client waits for its transport alone")

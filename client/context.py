"""What a handler is given, and what it may raise to steer the next attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from timeball.client.errors import LeaseLost
from timeball.client.messages import Delivery
from timeball.client.progress import pack_progress


class RetryLater(Exception):
    """Raised by a handler: the attempt failed; try again after `after_ms`, not by the policy."""

    def __init__(self, after_ms: int, message: str = "") -> None:
        if after_ms < 0:
            raise ValueError(f"after_ms is at least 0, got {after_ms}")
        super().__init__(message or f"try again after {after_ms} ms")
        self.after_ms = after_ms


class NonRetryable(Exception):
    """Raised by a handler: the attempt failed and no other will do better."""


class ExecutionCancelled(Exception):
    """Raised by `ExecutionContext.raise_if_cancelled`: the job was cancelled, or the worker stops.

    A handler that lets it pass has its execution released, and no attempt is used.
    """


class Signal:
    """Something that happens once; seen from any thread, waited for in a loop or in a thread."""

    __slots__ = ("_in_loop", "_in_threads")

    def __init__(self) -> None:
        self._in_loop = asyncio.Event()
        self._in_threads = threading.Event()

    def __bool__(self) -> bool:
        return self._in_threads.is_set()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._in_threads.is_set()

    def set(self) -> None:
        """Let it happen (the worker does this, in its loop)."""
        self._in_threads.set()
        self._in_loop.set()

    async def wait(self) -> None:
        """Wait in the worker's loop until it happens."""
        await self._in_loop.wait()

    def wait_in_thread(self, timeout_ms: int | None = None) -> bool:
        """Wait in a thread or process of its own; False when `timeout_ms` passed before."""
        return self._in_threads.wait(None if timeout_ms is None else timeout_ms / 1_000)


class ExecutionContext:
    """One delivery in the hands of its handler.

    For effects outside, use `idempotency_key` (the same on every attempt) and `token` (the
    fencing token: rising with every grant, so a store can refuse an older holder).

    Three signals tell a handler to end; each is true once it happened (``if context.lost:``):

    `lost`       somebody else may hold the execution, or its `timeout_ms` is over: nothing it
                 does counts any more, and `error` says why
    `cancelled`  the job was cancelled while it ran
    `stopping`   the worker stops and its grace is over

    `interrupted` is true with any of them. The task of an async handler is cancelled then. A
    thread can not be: its handler calls `raise_if_cancelled` now and then. A process is told,
    and ended after a grace.
    """

    __slots__ = (
        "cancelled", "delivery", "error", "interrupted", "lost", "packed_progress", "stopping",
        "tell_progress",
    )  # fmt: skip

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.lost = Signal()
        self.cancelled = Signal()
        self.stopping = Signal()
        self.interrupted = Signal()
        self.error: LeaseLost | None = None
        self.packed_progress: bytes | None = None
        """The latest that the handler told, in MessagePack (for the worker)."""
        self.tell_progress: Callable[[], None] = lambda: None
        """Called when there is a new one, in whichever thread (the worker sets this)."""

    def progress(self, value: Any) -> None:
        """Tell how far this attempt has come, for people who look at the execution.

        `value` is anything that JSON has, at most 1 KiB of it: ``40``, ``{"rows": 12_000}``. The
        latest one rides on the next heartbeat, within a second or so, and on all after it; call
        this as often as you like, from any thread. What is told right before the end may not be
        seen any more. Raises TypeError and ValueError for what can not be sent.
        """
        self.packed_progress = pack_progress(value)
        self.tell_progress()

    @property
    def execution_id(self) -> str:
        """The occurrence, the same on every attempt."""
        return self.delivery.execution_id

    @property
    def job_id(self) -> str:
        """The job that it is an occurrence of."""
        return self.delivery.job_id

    @property
    def queue(self) -> str:
        """The queue that it came from."""
        return self.delivery.queue

    @property
    def payload(self) -> Any:
        """The job's payload."""
        return self.delivery.payload

    @property
    def token(self) -> int:
        """The fencing token of this attempt."""
        return self.delivery.token

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.delivery.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there can be."""
        return self.delivery.max_attempts

    @property
    def nominal_ms(self) -> int:
        """The instant that the schedule names, in epoch milliseconds."""
        return self.delivery.nominal_ms

    @property
    def idempotency_key(self) -> str:
        """A key for effects outside, the same on every attempt of this occurrence."""
        return self.delivery.idempotency_key

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if the lease is lost: call it before an effect outside."""
        if self.error is not None:
            raise self.error

    def raise_if_cancelled(self) -> None:
        """Raise `LeaseLost` or `ExecutionCancelled` if the handler is to end; from any thread."""
        self.raise_if_lost()
        if self.cancelled:
            raise ExecutionCancelled("the job was cancelled")
        if self.stopping:
            raise ExecutionCancelled("the worker stops")

    def lose(self, why: str) -> None:
        """Mark the lease as lost (the worker does this)."""
        if self.error is None:
            self.error = LeaseLost(f"{self.execution_id}, token {self.token}: {why}")
            self.lost.set()
            self.interrupted.set()

    def cancel(self) -> None:
        """Mark the job as cancelled (the worker does this)."""
        self.cancelled.set()
        self.interrupted.set()

    def stop(self) -> None:
        """Tell that the worker stops (the worker does this)."""
        self.stopping.set()
        self.interrupted.set()


_current: ContextVar[ExecutionContext] = ContextVar("timeball_execution")


def current_execution() -> ExecutionContext:
    """Tell what is being handled here: in a handler or task, of whichever kind.

    Raises RuntimeError outside of one. A thread that a handler starts by itself has none.
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("current_execution() is for handlers: nothing is handled here") from None


def enter_execution(context: ExecutionContext) -> None:
    """Make a delivery the current one of this task or thread (the worker does this)."""
    _current.set(context)

"""What a handler is given, and what it may raise to steer the next attempt."""

from __future__ import annotations

import asyncio
from typing import Any

from timeball.client.errors import LeaseLost
from timeball.client.messages import Delivery


class RetryLater(Exception):
    """Raised by a handler: the attempt failed; try again after `after_ms`, not by the policy."""

    def __init__(self, after_ms: int, message: str = "") -> None:
        if after_ms < 0:
            raise ValueError(f"after_ms is at least 0, got {after_ms}")
        super().__init__(message or f"try again after {after_ms} ms")
        self.after_ms = after_ms


class NonRetryable(Exception):
    """Raised by a handler: the attempt failed and no other will do better."""


class ExecutionContext:
    """One delivery in the hands of its handler.

    For effects outside, use `idempotency_key` (the same on every attempt) and `token` (the
    fencing token: rising with every grant, so a store can refuse an older holder). When
    `lost` is set, the handler's task has been cancelled because somebody else may hold the
    execution: nothing it does counts any more, and `error` says why. When `cancelled` is
    set, the job was cancelled while it ran.
    """

    __slots__ = ("cancelled", "delivery", "error", "lost")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.lost = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.error: LeaseLost | None = None

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

    def lose(self, why: str) -> None:
        """Mark the lease as lost (the worker does this)."""
        if self.error is None:
            self.error = LeaseLost(f"{self.execution_id}, token {self.token}: {why}")
            self.lost.set()

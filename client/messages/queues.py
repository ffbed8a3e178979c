"""Queues: their settings, and how they stand."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from timeball.client.messages.fields import Answer, Request

QueueState = Literal["active", "paused", "draining"]
"""A paused queue hands nothing out; a draining one takes no new jobs."""
HeldBackBy = Literal["paused", "max_concurrency", "rate_limit", "max_concurrency_per_key"]
"""Which setting of a queue keeps due executions from claims that wait."""
Concurrency = Annotated[int, Meta(ge=1, le=1_000_000)]


class RateLimit(Request, frozen=True, kw_only=True):
    """In the long run, at most `executions` are handed out in each `per_ms`; up to `burst` at
    once."""

    executions: Annotated[int, Meta(ge=1, le=1_000_000)]
    per_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 1_000
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """After a pause; None: as many as `executions`."""


class QueueSettings(Request, frozen=True, kw_only=True):
    """All settings of a queue; what is left out has no bound."""

    state: QueueState = "active"
    max_concurrency: Concurrency | None = None
    """Executions that workers hold at a time…"""
    max_concurrency_per_key: Concurrency | None = None
    """… and those of jobs with one `concurrency_key`."""
    rate_limit: RateLimit | None = None


class QueueUpdate(Request, frozen=True, kw_only=True):
    """New settings of a queue; what is left out stays as it is, and null takes a bound away."""

    state: QueueState | UnsetType = UNSET
    max_concurrency: Concurrency | UnsetType | None = UNSET
    max_concurrency_per_key: Concurrency | UnsetType | None = UNSET
    rate_limit: RateLimit | UnsetType | None = UNSET


class QueueStateRequest(Request, frozen=True):
    """The body of a pause, a drain or a resume, which need not have one: the path says it all."""


class QueueDetails(Answer, frozen=True, kw_only=True):
    """A queue: its settings with their version, and how much it holds.

    What only the leader knows is null elsewhere. A queue whose settings are the default, which
    bounds nothing, is at version 0.
    """

    name: str
    state: QueueState
    max_concurrency: int | None
    max_concurrency_per_key: int | None
    rate_limit: RateLimit | None
    version: int
    scheduled: int
    leased: int
    dead: int
    ready: int | None
    """Due executions that no claim has taken."""
    oldest_due_ms: int | None
    waiting_claims: int | None
    held_back_by: list[HeldBackBy] | None
    """Which settings keep ready executions from being handed out at the moment."""
    applied_index: int


class QueueList(Answer, frozen=True):
    """Queues by name; `cursor` leads to the next page."""

    queues: list[QueueDetails]
    cursor: str | None
    applied_index: int

"""The worker protocol: claims, deliveries, heartbeats and reports."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from timeball.client.messages.fields import (
    MAX_BATCH,
    MAX_DELAY_MS,
    MAX_INSTANT_MS,
    Answer,
    Limit,
    NamedQueue,
    Request,
    RequestId,
    Token,
    WorkerName,
)
from timeball.client.messages.options import MAX_OFFERED, Tag


class Claim(Request, frozen=True, kw_only=True):
    """Ask for at most `max_executions` due executions of a queue, waiting up to `wait_ms`.

    `tags` are what the worker offers: it gets what requires nothing else.
    """

    queue: NamedQueue = "default"
    worker: WorkerName
    max_executions: Limit = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    lease_ms: Annotated[int, Meta(ge=500, le=3_600_000)] = 10_000
    request_id: RequestId | None = None
    tags: Annotated[tuple[Tag, ...], Meta(max_length=MAX_OFFERED)] = ()


class Withdrawals(Request, frozen=True):
    """Claims that nobody waits for any more, by their request ids."""

    request_ids: Annotated[list[RequestId], Meta(min_length=1, max_length=MAX_BATCH)]


class Delivery(Answer, frozen=True):
    """A leased execution. `token` decides whose report counts: send it with every report.

    `idempotency_key` names this occurrence for effects outside, the same on every attempt.
    `lease_ms` is a length, to be measured on the worker's own monotonic clock from the
    moment that it sent the claim.
    """

    execution_id: str
    job_id: str
    queue: str
    token: int
    attempt: int
    max_attempts: int
    nominal_ms: int
    due_ms: int
    lease_ms: int
    timeout_ms: int
    idempotency_key: str
    payload: Any


Instruction = Literal["quiet", "terminate"]
"""What a worker can be told: to claim no more and finish what it has; and then to end."""


class Claimed(Answer, frozen=True, omit_defaults=True):
    """The answer to a claim; empty when nothing came due in time.

    A worker with an `instruction` gets nothing, and at once, until it is taken back.
    """

    request_id: str
    executions: list[Delivery]
    instruction: Instruction | None = None


class Hold(Request, frozen=True):
    """An execution as its holder names it."""

    execution_id: str
    token: Token


class Holds(Request, frozen=True):
    """A batch of holds: to start or to release."""

    items: Annotated[list[Hold], Meta(min_length=1, max_length=MAX_BATCH)]


class Beat(Request, frozen=True):
    """A heartbeat. `progress`, how far the attempt has come, is any small value; without it what
    was told before stands."""

    execution_id: str
    token: Token
    progress: Any = None


class Heartbeats(Request, frozen=True):
    """A batch of heartbeats."""

    items: Annotated[list[Beat], Meta(min_length=1, max_length=MAX_BATCH)]


class Success(Request, frozen=True):
    """An execution done. `result` is kept with it; `started_ms` is the worker's own stamp."""

    execution_id: str
    token: Token
    result: Any = None
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INSTANT_MS)] | None = None


class Successes(Request, frozen=True):
    """A batch of successes."""

    items: Annotated[list[Success], Meta(min_length=1, max_length=MAX_BATCH)]


class Failure(Request, frozen=True):
    """An attempt failed. `retry_after_ms` overrides the policy; `non_retryable` ends it.

    Of a `backtrace` that is too long the end is kept.
    """

    execution_id: str
    token: Token
    error_type: str = ""
    message: str = ""
    retry_after_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] | None = None
    non_retryable: bool = False
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INSTANT_MS)] | None = None
    backtrace: str = ""


class Failures(Request, frozen=True):
    """A batch of failures."""

    items: Annotated[list[Failure], Meta(min_length=1, max_length=MAX_BATCH)]


class SingleHold(Request, frozen=True):
    """A hold on the execution that the path names."""

    token: Token


class SingleBeat(Request, frozen=True):
    """A heartbeat of the execution that the path names; see `Beat`."""

    token: Token
    progress: Any = None


class SingleSuccess(Request, frozen=True):
    """The execution that the path names is done; see `Success`."""

    token: Token
    result: Any = None
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INSTANT_MS)] | None = None


class SingleFailure(Request, frozen=True):
    """An attempt at the execution that the path names failed; see `Failure`."""

    token: Token
    error_type: str = ""
    message: str = ""
    retry_after_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] | None = None
    non_retryable: bool = False
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INSTANT_MS)] | None = None
    backtrace: str = ""


ReportVerdict = Literal["accepted", "duplicate", "stale", "finished", "unknown"]


class Report(Answer, frozen=True):
    """The answer to one report. `status` is what a single request would have answered.

    accepted 200; duplicate 200 (the same report counted before); stale 409 (the lease was
    lost and granted anew); finished 409 (terminal with another outcome); unknown 404 (never
    existed, or trimmed after it finished).
    """

    execution_id: str
    verdict: ReportVerdict
    status: int


class Reports(Answer, frozen=True):
    """The answers to a batch of reports, in order."""

    results: list[Report]


class Heartbeat(Answer, frozen=True, omit_defaults=True):
    """The answer to one heartbeat.

    `extended`: go on, the lease runs `lease_remaining_ms` from now. `cancel_requested`: the
    same, but stop as soon as you can. `lost`: somebody else holds it; stop, report nothing.
    `finished`: it is terminal; stop beating. `instruction` is what its worker is told, if it
    still holds the lease.
    """

    execution_id: str
    verdict: Literal["extended", "cancel_requested", "lost", "finished", "unknown"]
    lease_remaining_ms: int
    instruction: Instruction | None = None


class HeartbeatAnswers(Answer, frozen=True):
    """The answers to a batch of heartbeats, in order."""

    results: list[Heartbeat]


class InstructionRequest(Request, frozen=True):
    """The body of what a worker is told, which need not have one: the path says it all."""


class WorkerDetails(Answer, frozen=True, kw_only=True):
    """What a worker is told: the workers that claim under this name, which need not exist."""

    name: str
    instruction: Instruction | None
    instructed_at: str | None
    """Since when; it is forgotten a day later."""
    applied_index: int

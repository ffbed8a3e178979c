"""Limits, names and small types that messages share, and what identifiers look like."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_PAYLOAD_BYTES = 64 * 1024
"""Largest payload of a job and result of an execution, as MessagePack."""
MAX_PROGRESS_BYTES = 1_024
"""Largest progress of an attempt, as MessagePack."""
MAX_BATCH = 1_000
"""Most items in one batch request, and most executions in one claim."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""Largest request body."""
MAX_ERROR_TYPE = 200
MAX_ERROR_MESSAGE = 2_000
MAX_BACKTRACE = 8_192
"""Longer error texts of an attempt are clipped, with a mark, rather than refused: a backtrace at
its beginning, the others at their end."""
MAX_DELAY_MS = 100 * 366 * 86_400_000
MAX_DIGITS = 16
"""Of the numbers that identifiers are made of."""
MAX_INSTANT_MS = 253_402_300_799_999
"""The end of the year 9999: the horizon of `at` and `after`."""
MAX_INDEX = 2**53 - 1
"""The highest position of the log that a read can ask for."""

QUEUE_NAME = r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"
QueueName = Annotated[str, Meta(pattern=QUEUE_NAME)]
NamedQueue = Annotated[str, Meta(max_length=64, extra_json_schema={"pattern": QUEUE_NAME})]
"""A `QueueName` of which a node matches the pattern once, however many jobs name it."""
Key = Annotated[str, Meta(min_length=1, max_length=255)]
"""An idempotency key, or such: any text, compared character by character."""
KeyScope = Literal["cluster", "queue"]
"""Where an idempotency key is known: anywhere, or in the queue of its job."""
KeyUntil = Literal["window_ends", "job_ends"]
"""How long an idempotency key holds."""
OnDuplicate = Literal["return", "reject"]
"""What a create is answered whose idempotency key has a job: that job, or a refusal."""
RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
WorkerName = Annotated[str, Meta(min_length=1, max_length=128)]
Token = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Limit = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
JobName = Annotated[str, Meta(pattern=QUEUE_NAME)]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64)]
CronText = Annotated[str, Meta(min_length=1, max_length=256)]
Instant = (
    Annotated[str, Meta(extra_json_schema={"maxLength": 64, "examples": ["2030-01-01T09:00:00Z"]})]
    | Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_INSTANT_MS})]
)
"""ISO 8601 with an offset, or epoch milliseconds; a node reads it, and says what is wrong."""
IntervalMs = Annotated[int, Meta(ge=100, le=MAX_DELAY_MS)]
CatchUp = Literal["none", "one", "all"]
"""What becomes of what was missed: nothing, one run for all of it, or a run each."""
Overlap = Literal["allow", "skip", "buffer_one", "cancel_running"]
"""What happens to an occurrence that comes due while another of its job is active."""
MissedInPause = Literal["skip", "catch_up"]
BackoffName = Literal["exponential", "linear", "fixed", "list"]
"""How the delays before retries follow each other."""
DeadReason = Literal[
    "attempts_exhausted",
    "attempts_exhausted:failed",
    "attempts_exhausted:lease_expired",
    "attempts_exhausted:timed_out",
    "non_retryable",
    "non_retryable_error",
]
"""Why an execution is dead; the first stands for the three that begin with it."""
Consistency = Literal["applied", "strong"]
"""How fresh a read is at least; see the protocol, "Reads"."""


ExecutionStateName = Literal[
    "scheduled", "retry", "leased", "running", "succeeded", "dead", "cancelled", "skipped"
]

ENDED = frozenset({"succeeded", "dead", "cancelled", "skipped"})
"""States that an execution does not leave by itself."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of everything that a client sends.

    Messages are trees, so reference counting alone frees them; the collector would walk
    thousands of them at a time.
    """


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Base of everything that a node answers."""


class FieldError(Answer, frozen=True):
    """One thing wrong with a request: where, and what would be right."""

    field: str
    detail: str


class Problem(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """A problem document (RFC 9457).

    `type` is stable and listed in the protocol; `outcome` says whether a failed write may
    have happened ("unknown") or certainly has not ("not_applied"). `job_id` is the job that stands
    in the way.
    """

    type: str
    title: str
    status: int
    detail: str = ""
    errors: list[FieldError] = []
    outcome: Literal["", "not_applied", "unknown"] = ""
    retry_after_ms: int = 0
    leader: str = ""
    job_id: str = ""
    oldest_index: int | None = None
    """Behind which events are kept."""


def encode_execution_id(job: int | str, nominal_ms: int) -> str:
    """Render an execution's identity (job id, or its text, and nominal time in epoch ms)."""
    return f"{job}-{nominal_ms}"


def decode_execution_id(text: str) -> tuple[int, int]:
    """Parse an execution id; raises ValueError when it cannot name any execution."""
    job, _, nominal = text.partition("-")
    if (
        job.isdigit()
        and nominal.isdigit()
        and len(job) <= MAX_DIGITS
        and len(nominal) <= MAX_DIGITS
        and text.isascii()
    ):
        return int(job), int(nominal)
    raise ValueError(f"not an execution id: {text[:80]!r}")


def decode_job_id(text: str) -> int:
    """Parse a job id; raises ValueError when it cannot name any job."""
    if text.isdigit() and len(text) <= MAX_DIGITS and text.isascii():
        return int(text)
    raise ValueError(f"not a job id: {text[:80]!r}")

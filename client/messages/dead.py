"""Dead letters: giving them a new attempt budget, and forgetting them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from timeball.client.messages.fields import (
    MAX_BATCH,
    MAX_ERROR_TYPE,
    Answer,
    DeadReason,
    Instant,
    Limit,
    NamedQueue,
    Request,
)

DeadIds = Annotated[list[str], Meta(min_length=1, max_length=MAX_BATCH)]


class Replay(Request, frozen=True):
    """Give dead executions a new attempt budget; their history stays."""

    execution_ids: DeadIds


class Replayed(Answer, frozen=True):
    """What a replay did to one execution.

    "expired": no attempt of it may begin any more. "key_taken": its job had ended, and another
    has its idempotency key by now.
    """

    execution_id: str
    status: Literal["replayed", "expired", "not_dead", "unknown", "key_taken"]


class ReplayAnswers(Answer, frozen=True):
    """The answers to a replay, in order."""

    results: list[Replayed]


class Purge(Request, frozen=True):
    """Forget dead executions."""

    execution_ids: DeadIds


class Purged(Answer, frozen=True):
    """What a purge did to one execution."""

    execution_id: str
    status: Literal["purged", "not_dead", "unknown"]


class PurgeAnswers(Answer, frozen=True):
    """The answers to a purge, in order."""

    results: list[Purged]


class DeadSelection(Request, frozen=True, kw_only=True):
    """Dead letters to which all that is given here applies; the newest `limit` of them.

    `error_type` is that of the last attempt, exactly ("" for none). `died_after` (included) and
    `died_before` (not included) are ISO 8601 instants with an offset, or epoch milliseconds.
    `cursor` goes on where a former answer ended.
    """

    queue: NamedQueue | None = None
    job_id: Annotated[str, Meta(max_length=16)] | None = None
    error_type: Annotated[str, Meta(max_length=MAX_ERROR_TYPE)] | None = None
    reason: DeadReason | None = None
    died_after: Instant | None = None
    died_before: Instant | None = None
    limit: Limit = MAX_BATCH
    cursor: str | None = None


class DeadMoved(Answer, frozen=True):
    """What became of a page of a selection: how many were found, and how many of these moved.

    The others had left the dead letters meanwhile, or are not replayed: they have expired, their
    job was cancelled, or its idempotency key is another job's by now. `cursor` leads to the next
    page; None: there are no more.
    """

    matched: int
    moved: int
    cursor: str | None
    applied_index: int

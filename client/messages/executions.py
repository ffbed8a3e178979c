"""Executions and dead letters, as people see them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from timeball.client.messages.fields import MAX_BATCH, Answer, ExecutionStateName, Request


class AttemptView(Answer, frozen=True):
    """One lease of an execution, with its outcome."""

    number: int
    worker: str
    token: int
    outcome: Literal[
        "open", "succeeded", "failed", "lease_expired", "timed_out", "released", "cancelled"
    ]
    claimed_at: str
    started_at: str | None
    finished_at: str | None
    error_type: str
    message: str


class ExecutionView(Answer, frozen=True):
    """One occurrence of a job. `retry` is a scheduled execution that has been tried before."""

    execution_id: str
    job_id: str
    queue: str
    state: ExecutionStateName
    reason: str
    origin: Literal["timetable", "trigger", "backfill"] | None
    """Who asked for an occurrence of a recurring job."""
    nominal_at: str
    due_at: str
    due: bool
    finished_at: str | None
    attempts_used: int
    max_attempts: int
    cancel_requested: bool
    result: Any
    attempts: list[AttemptView]


class ExecutionList(Answer, frozen=True):
    """One page of executions, newest first."""

    executions: list[ExecutionView]
    cursor: str | None
    applied_index: int


class Replay(Request, frozen=True):
    """Give dead executions a new attempt budget; their history stays."""

    execution_ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_BATCH)]


class Replayed(Answer, frozen=True):
    """What a replay did to one execution."""

    execution_id: str
    status: Literal["replayed", "not_dead", "unknown"]


class ReplayAnswers(Answer, frozen=True):
    """The answers to a replay, in order."""

    results: list[Replayed]

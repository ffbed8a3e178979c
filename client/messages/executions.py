"""Executions, as people see them."""

from __future__ import annotations

from typing import Any, Literal

from timeball.client.messages.fields import Answer, ExecutionStateName


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
    backtrace: str = ""
    progress: Any = None
    """The latest that its worker said of how far it had come; null: nothing."""


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
    expires_at: str | None = None
    """No attempt begins then or later."""


class ExecutionList(Answer, frozen=True):
    """One page of executions, newest first."""

    executions: list[ExecutionView]
    cursor: str | None
    applied_index: int

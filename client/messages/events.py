"""What happened to executions and jobs, as the event stream tells it."""

from __future__ import annotations

from typing import Literal

from timeball.client.messages.fields import Answer, ExecutionStateName

EventType = Literal[
    "execution.created",
    "execution.leased",
    "execution.started",
    "execution.succeeded",
    "execution.failed",
    "execution.expired",
    "execution.released",
    "execution.cancel_requested",
    "execution.cancelled",
    "execution.skipped",
    "execution.withdrawn",
    "execution.replayed",
    "execution.purged",
    "job.created",
    "job.updated",
    "job.paused",
    "job.resumed",
    "job.parked",
    "job.coalesced",
    "job.skipped",
    "job.missed",
    "job.cancelled",
    "job.completed",
    "job.reopened",
]
"""Each is explained in the protocol."""

OLDEST = "oldest"
"""Stands for the place behind which a node keeps everything."""


class Event(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened. Its id tells its place in the log; ids rise as they come.

    Events of an execution have `execution_id` and those that follow up to `error_type`, as far as
    they apply; `state` is the one that it is in now, None when it is gone. Events of a job have
    `version` and `name`; those that tell of nominal times without an execution have their
    `count`, and the first and the last of them.
    """

    id: str
    type: str
    """An `EventType`, or one that a newer node knows."""
    at: str
    """Log-time."""
    queue: str
    job_id: str
    execution_id: str | None = None
    state: ExecutionStateName | None = None
    due_at: str | None = None
    attempt: int | None = None
    """The number of the latest attempt."""
    token: int | None = None
    worker: str = ""
    error_type: str = ""
    reason: str = ""
    version: int | None = None
    name: str = ""
    count: int | None = None
    first_nominal_at: str | None = None
    last_nominal_at: str | None = None

"""Jobs: creating them, and how they look."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from timeball.client.messages.fields import (
    MAX_BATCH,
    MAX_DELAY_MS,
    Answer,
    Instant,
    Key,
    KeyScope,
    KeyUntil,
    NamedQueue,
    OnDuplicate,
    Problem,
    Request,
    RequestId,
)
from timeball.client.messages.options import JobOptions
from timeball.client.messages.schedules import Retry, Schedule


class Idempotency(Request, frozen=True):
    """How the idempotency key of a job holds, and what a request is answered that comes later.

    The key holds `until` its window ends (`window_ms` from the create; None: the cluster's
    `idempotency_window_ms`), or until its job has ended and nothing of it is under way. It is known
    in the whole cluster, or in the job's queue alone. `on_duplicate` is about this request: it is
    answered with the job that has the key, or refused (`DuplicateJob`).
    """

    window_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None
    scope: KeyScope = "cluster"
    until: KeyUntil = "window_ends"
    on_duplicate: OnDuplicate = "return"


class NewJob(JobOptions, frozen=True, omit_defaults=True):
    """A job to create. Without a schedule it is due at once.

    `idempotency` says how its `idempotency_key` holds, where the defaults do not fit.
    `expires_at` is for a job that runs once: an ISO 8601 instant with an offset, or epoch
    milliseconds. With `expires_after_ms` too, the earlier of both counts.
    """

    queue: NamedQueue = "default"
    payload: Any = None
    schedule: Schedule | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    partition_key: Annotated[str, Meta(max_length=255)] = ""
    retry: Retry = Retry()
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None
    idempotency_key: Key | None = None
    idempotency: Idempotency | None = None
    expires_at: Instant | None = None


class NewJobs(Request, frozen=True):
    """A batch of jobs. The request id makes an unknown outcome safe to repeat."""

    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=MAX_BATCH)]
    request_id: RequestId | None = None


class JobCreated(Answer, frozen=True, omit_defaults=True):
    """What became of one job of a create."""

    status: Literal["created", "duplicate", "refused"]
    job_id: str = ""
    execution_id: str = ""
    next_fires: list[str] = msgspec.field(default_factory=list)
    problem: Problem | None = None


class JobsCreated(Answer, frozen=True):
    """The answer to a batch create, one result per job in order."""

    results: list[JobCreated]
    applied_index: int


class Paused(Answer, frozen=True):
    """Since when a timetable makes no occurrences, and why."""

    since_at: str
    reason: str


class TimetableView(Answer, frozen=True):
    """How a recurring job's timetable stands. Each nominal time up to `planned_at` is in one
    of `fired` (a run of its own, made or to come), `coalesced`, `skipped` and `missed`."""

    name: str | None
    planned_at: str
    ended: bool
    paused: Paused | None
    parked: str | None
    """Why it stands still, if it failed: resume or edit it."""
    fired: int
    coalesced: int
    skipped: int
    missed: int


class KeyView(Answer, frozen=True):
    """How a job's idempotency key holds; `expires_at` is when its window ends (None: has none)."""

    scope: KeyScope
    until: KeyUntil
    expires_at: str | None


class JobView(Answer, frozen=True):
    """A job as people see it."""

    job_id: str
    queue: str
    state: Literal["active", "completed", "cancelled"]
    payload: Any
    schedule: Schedule | None
    priority: int
    partition_key: str
    retry: Retry
    timeout_ms: int | None
    idempotency_key: str | None
    created_at: str
    next_fires: list[str]
    execution_counts: dict[str, int]
    version: int
    """Counts the definitions that it has had; the `ETag` of the job."""
    timetable: TimetableView | None
    idempotency: KeyView | None = None
    """How its idempotency key holds; None without one, and once the key is free again."""
    concurrency_key: str = ""
    requires: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    expires_at: str | None = None
    expires_after_ms: int | None = None


class JobList(Answer, frozen=True):
    """One page of jobs, newest first; `cursor` asks for the next page (None: the last)."""

    jobs: list[JobView]
    cursor: str | None
    applied_index: int


class JobCancelled(Answer, frozen=True):
    """The answer to a cancel: "cancelled", "requested" (a worker still holds it) or "finished"."""

    job_id: str
    status: Literal["cancelled", "requested", "finished"]

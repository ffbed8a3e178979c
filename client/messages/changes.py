"""What is done to jobs: changes, pauses, triggers, backfills; and why they ran when they did."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from timeball.client.messages.fields import (
    MAX_DELAY_MS,
    Answer,
    ExecutionStateName,
    Instant,
    MissedInPause,
    NamedQueue,
    Request,
)
from timeball.client.messages.jobs import TimetableView
from timeball.client.messages.options import ExpiresAfter, JobOptions, Tags
from timeball.client.messages.schedules import Retry, Schedule, Timetable


class JobUpdate(Request, frozen=True, kw_only=True):
    """New parts of a job's definition; what is left out stays as it is.

    What an execution began with it keeps to its end; those to come follow the new definition.
    Requirements, tags and expiry are the job's own, at any moment: of what is not leased, all
    follows them. `expires_at` is for a job that runs once; None takes away what there was.
    """

    payload: Any = UNSET
    schedule: Schedule | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=9)] | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | UnsetType | None = UNSET
    requires: Tags | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    expires_at: Instant | UnsetType | None = UNSET
    expires_after_ms: ExpiresAfter | UnsetType | None = UNSET


class JobPut(JobOptions, frozen=True, kw_only=True):
    """The whole definition of a recurring job that has a name: created, or changed to this."""

    queue: NamedQueue = "default"
    payload: Any = None
    schedule: Timetable
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    partition_key: Annotated[str, Meta(max_length=255)] = ""
    retry: Retry = Retry()
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None


class JobChanged(Answer, frozen=True):
    """The answer to an update, a put, a pause or a resume."""

    status: Literal["created", "changed", "unchanged"]
    job_id: str
    version: int
    next_fires: list[str]


class PauseRequest(Request, frozen=True):
    """Why a timetable is paused, for those who find it so."""

    reason: Annotated[str, Meta(max_length=500)] = ""


class ResumeRequest(Request, frozen=True):
    """What becomes of the nominal times that fell into the pause: skipped, or caught up by the
    schedule's catch-up rule."""

    missed: MissedInPause = "skip"


class TriggerRequest(Request, frozen=True):
    """The body of a trigger, which need not have one: there is nothing to say."""


class JobTriggered(Answer, frozen=True):
    """The answer to a trigger; "skipped" by the overlap rule."""

    status: Literal["created", "duplicate", "skipped"]
    job_id: str
    execution_id: str


class BackfillRequest(Request, frozen=True):
    """The range of past nominal times to run, both ends included."""

    start: Instant
    until: Instant


class JobBackfilled(Answer, frozen=True):
    """Which executions a backfill made, and which of the range were there already."""

    job_id: str
    created: list[str]
    existing: list[str]


class FireView(Answer, frozen=True):
    """A nominal time to come: as UTC, on the wall clock of the rule that names it, and when it
    is due, with the jitter. `why` tells what is unusual about it; `excluded`: it will not run."""

    nominal_at: str
    local: str
    time_zone: str
    due_at: str
    excluded: bool
    why: list[str]


class FateView(Answer, frozen=True):
    """What became of `count` nominal times, from first to last.

    `fired` ones have an execution (`state` is its state) as long as it is kept.
    """

    first_at: str
    last_at: str
    count: int
    fate: Literal["fired", "coalesced", "skipped", "missed", "planned", "triggered", "backfilled"]
    reason: str
    execution_id: str | None
    state: ExecutionStateName | None


class JobExplained(Answer, frozen=True):
    """Why a recurring job ran when it did, and when it will: past fates, newest first."""

    job_id: str
    state: Literal["active", "completed", "cancelled"]
    version: int
    schedule: Schedule
    timetable: TimetableView
    past: list[FateView]
    next: list[FireView]
    applied_index: int


class SchedulePreview(Request, frozen=True, kw_only=True):
    """A schedule to look at, without creating anything."""

    schedule: Schedule
    after: Instant | None = None
    """Fires strictly later than this; default: now."""
    count: Annotated[int, Meta(ge=1, le=100)] = 5


class SchedulePreviewed(Answer, frozen=True):
    """The schedule as it is understood, with every default, and its next fires."""

    schedule: Schedule
    fires: list[FireView]

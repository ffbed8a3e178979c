"""What operations answer: small values that never travel through the log."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from timeball.cluster.state.queue_settings import (
    QueueSettings,
)


class Verdict(enum.IntEnum):
    """The answer to one item of a worker's report, an expiry, a replay or a purge."""

    ACCEPTED = 0
    """The report counted; the state changed."""
    DUPLICATE = 1
    """The same report with the same token counted before; nothing changed."""
    STALE = 2
    """The token holds nothing: another was granted since, or its holder gave it up."""
    FINISHED = 3
    """The execution is terminal with another outcome (or result) than the one reported."""
    UNKNOWN = 4
    """No such execution: never created, or its history has been trimmed."""
    NOT_DEAD = 5
    """A replay or a purge of an execution that is not dead, or has died anew since."""
    JOB_CANCELLED = 6
    """A replay of an execution whose job has been cancelled."""
    TOO_LARGE = 7
    """The result is beyond the limit of the state; nothing changed."""
    KEY_TAKEN = 8
    """A replay of an execution of a job that had ended, and whose key another job has by now."""
    EXPIRED = 9
    """A replay of an execution that has expired: no attempt of it may begin any more."""


class CreateStatus(enum.IntEnum):
    """What became of one job of a `CreateJobs`."""

    CREATED = 0
    DUPLICATE = 1
    """The idempotency key is known with the same fingerprint: the first job again."""
    KEY_REUSED = 2
    """The idempotency key is known with another fingerprint; nothing was created."""
    FULL = 3
    """The cluster holds as many pending executions, or queues, as it may."""
    INVALID = 4
    """The definition is beyond the limits of the state (see `limits`); nothing was created."""
    REJECTED = 5
    """As `DUPLICATE`, but the request wants none: the job that has the key."""
    KEYS_FULL = 6
    """As many keys are held until their jobs end as may be; nothing was created."""
    TOO_MANY_REQUIREMENTS = 7
    """The jobs of the queue require as many different sets of tags as they may."""
    DRAINING = 8
    """The queue is draining; nothing was created."""


class Created(msgspec.Struct, frozen=True, gc=False):
    """One job's answer: its status, job id and first nominal time (0 when none)."""

    status: CreateStatus
    job: int
    nominal_ms: int


class CancelStatus(enum.IntEnum):
    """What a cancel did."""

    CANCELLED = 0
    """No execution of the job is under way; none will ever start again."""
    REQUESTED = 1
    """An execution is leased: its worker is told at its next heartbeat."""
    FINISHED = 2
    """The job had already ended another way; nothing changed."""
    UNKNOWN = 3


class JobsCreated(msgspec.Struct, frozen=True, gc=False):
    """Verdict of `CreateJobs`; `repeated` when the request id had been answered before."""

    jobs: list[Created]
    repeated: bool = False


class Moved(enum.IntEnum):
    """What one step of a timetable did."""

    MOVED = 0
    STALE = 1
    """It does not stand where the planner saw it; nothing changed."""
    NO_BUDGET = 2
    """The cluster's budget of runs of the past has no room for it now; nothing changed."""
    UNSOUND = 3
    """The step contradicts itself or a limit; nothing changed."""


class ChangeStatus(enum.IntEnum):
    """What a change of a job did."""

    CREATED = 0
    """A put made a new job."""
    CHANGED = 1
    UNCHANGED = 2
    """It was so already."""
    UNKNOWN = 3
    """No such job."""
    OTHER_VERSION = 4
    """The job is at another version than the one asked for: at any, for a put of a new one."""
    ENDED = 5
    """The job has ended, or its timetable has."""
    BEGUN = 6
    """A one-shot job that was leased before can not be planned anew."""
    NOT_RECURRING = 7
    RECURRING = 8
    """Only a one-shot job can be given an instant."""
    FIXED = 9
    """A put named another queue, partition key or concurrency key than the job has."""
    INVALID = 10
    """Beyond the limits of the state."""
    FULL = 11
    """A put found no room for a new job, or settings none for another queue."""
    TOO_MANY_REQUIREMENTS = 12
    """The jobs of the queue require as many different sets of tags as they may."""
    DRAINING = 13
    """A put would have made a new job in a queue that is draining."""


class Changed(msgspec.Struct, frozen=True, gc=False):
    """Verdict of a change: what it did, and the job with its version as they are now."""

    status: ChangeStatus
    job: int = 0
    version: int = 0


class QueueConfigured(msgspec.Struct, frozen=True, gc=False):
    """Verdict of a change of a queue's settings: what it did, and the settings as they are now."""

    status: ChangeStatus
    version: int
    settings: QueueSettings


class TriggerStatus(enum.IntEnum):
    """What a trigger did."""

    CREATED = 0
    DUPLICATE = 1
    """The request id is known: the first execution again."""
    SKIPPED = 2
    """The overlap rule left it out; its record says so."""
    UNKNOWN = 3
    ENDED = 4
    NOT_RECURRING = 5
    FULL = 6
    KEY_REUSED = 7
    """The request id is known with another request."""


class Triggered(msgspec.Struct, frozen=True, gc=False):
    """Verdict of a trigger: what it did, and the nominal time of the execution (0: none)."""

    status: TriggerStatus
    nominal_ms: int = 0


class Backfilled(msgspec.Struct, frozen=True, gc=False):
    """Verdict of a backfill: as of a change, and which nominal times it made or found there."""

    status: ChangeStatus
    created: Sequence[int] = ()
    existing: Sequence[int] = ()

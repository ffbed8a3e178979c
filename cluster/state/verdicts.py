"""What operations answer: small values that never travel through the log."""

from __future__ import annotations

import enum

import msgspec


class Verdict(enum.IntEnum):
    """The answer to one item of a worker's report, an expiry or a replay."""

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
    """A replay of an execution that is not dead."""
    JOB_CANCELLED = 6
    """A replay of an execution whose job has been cancelled."""
    TOO_LARGE = 7
    """The result is beyond the limit of the state; nothing changed."""


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

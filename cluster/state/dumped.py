"""What a dump is made of: a header, and records of each kind as they lie in the stream.

`snapshot` writes them and `restore` reads them. Fields keep their places within a `VERSION`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from timeball.cluster.state.levels import FIRST_LEVEL
from timeball.cluster.state.operations import (
    ClusterSettings,
    Fate,
    Options,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.queue_settings import QueueSettings
from timeball.cluster.state.records import ExecutionState, JobState, Origin, Outcome
from timeball.cluster.state.values import AttemptError, Definition
from timeball.cluster.state.verdicts import Created

MAGIC = "timeball-state"
VERSION = 7
ENDED_JOB = -1
"""Stands for the nominal time where retention holds a job, not an execution."""

(
    HEADER,
    QUEUES,
    CONFIGURED,
    INSTRUCTED,
    JOBS,
    EXECUTIONS,
    FINISHED,
    DEAD,
    KEYS,
    REQUESTS,
    CLAIMS,
    END,
) = range(12)


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What the stream is, where in the log it stands, and what is no record.

    Its fields keep their places for ever, so that each release can tell which level it lacks.
    """

    magic: str
    version: int
    applied_index: int
    log_time_ms: int
    settings: ClusterSettings
    counters: tuple[int, ...]
    level: int = FIRST_LEVEL
    catch_up_us: int = 0


class QueueTotals(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A queue and its totals; its present counts follow from the records."""

    name: str
    created: int
    succeeded: int
    dead: int
    cancelled: int
    skipped: int


class ConfiguredRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The settings of a queue, as dumped."""

    name: str
    settings: QueueSettings
    version: int
    charged: int
    charged_ms: int


class InstructedRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a worker is told, as dumped."""

    worker: str
    instruction: str
    since_ms: int


class AttemptRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An attempt as dumped: the fields of `Attempt`; the snapshot writes them in this order."""

    token: int
    worker: str
    lease_ms: int
    claimed_ms: int
    started_ms: int
    finished_ms: int
    outcome: Outcome
    error: AttemptError | None
    number: int
    progress: bytes


class ExecutionRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An execution as dumped; the snapshot writes the same fields in the same order."""

    job: int
    nominal_ms: int
    due_ms: int
    sequence: int
    state: ExecutionState
    token: int
    attempts_used: int
    cancel_requested: bool
    finished_ms: int
    reason: str
    result: bytes
    attempts: list[AttemptRecord] | None


class RecurrenceRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far a recurring job has come, as dumped: the fields of `Recurrence`, less what derives
    from the executions."""

    timetable: Timetable
    planned_ms: int
    passed_ms: int
    name: str
    made: int
    fired: int
    coalesced: int
    skipped: int
    missed: int
    ended: bool
    paused_ms: int
    pause_reason: str
    parked: str
    skip_to_ms: int
    ledger: list[Fate]
    asked: dict[int, Origin]
    begun: dict[int, Definition]


class HeldKey(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a job's record does not tell of a key that it holds until it has ended."""

    within_queue: bool
    fingerprint: int
    nominal_ms: int


class KeyRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An idempotency key with a window as dumped: the fields of `Key`."""

    name: str | tuple[str, str]
    since_ms: int
    fingerprint: int
    job: int
    nominal_ms: int
    window_ms: int


class RequestRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A remembered request as dumped: the fields of `Request`."""

    key: str
    since_ms: int
    answer: list[Created]
    of_trigger: bool = False


class ClaimRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A remembered claim as dumped: the fields of `Granted`."""

    key: str
    since_ms: int
    tokens: list[int]


class JobRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A job as dumped, with the execution of a one-shot job."""

    id: int
    queue: str
    payload: bytes
    created_ms: int
    retry: RetryPolicy | None
    """None for the default, which most have."""
    priority: int
    partition_key: str
    timeout_ms: int
    idempotency_key: str
    state: JobState
    version: int
    options: Options | None
    """None for none, which most have."""
    held_key: HeldKey | None
    """How it holds its key, or held it, if until it has ended."""
    recurrence: RecurrenceRecord | None
    execution: ExecutionRecord | None


decode_frame = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode
"""A chunk: its kind, and the rest."""
RECORDS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(of)
    for kind, of in (
        (HEADER, Header),
        (QUEUES, list[QueueTotals]),
        (CONFIGURED, list[ConfiguredRecord]),
        (INSTRUCTED, list[InstructedRecord]),
        (JOBS, list[JobRecord]),
        (EXECUTIONS, list[ExecutionRecord]),
        (FINISHED, list[tuple[int, int, int]]),
        (DEAD, list[tuple[int, int]]),
        (KEYS, list[KeyRecord]),
        (REQUESTS, list[RequestRecord]),
        (CLAIMS, list[ClaimRecord]),
        (END, list[int]),
    )
}
"""How the rest of a chunk is read, by its kind."""

"""The records of the replicated state: jobs, executions and attempts.

Compiled, they hold their numbers within themselves and have no header of the garbage collector
(`acyclic`), since a node may hold millions of them; counts and timetables are fewer, and plain
dataclasses. Only the state machine changes a record; everyone else reads.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from mypy_extensions import mypyc_attr

from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.limits import MAX_REQUIREMENTS, MAX_TIME_MS
from timeball.cluster.state.operations import Fate, Options, RetryPolicy, Timetable
from timeball.cluster.state.queue_settings import QueueSettings
from timeball.cluster.state.usual import NO_OPTIONS
from timeball.cluster.state.values import AttemptError, Definition


class JobState(enum.IntEnum):
    """A job is active until it has no further occurrence and none is under way."""

    ACTIVE = 0
    COMPLETED = 1
    CANCELLED = 2


class ExecutionState(enum.IntEnum):
    """Where one occurrence of a job stands (see `transitions`)."""

    SCHEDULED = 0
    LEASED = 1
    RUNNING = 2
    SUCCEEDED = 3
    DEAD = 4
    CANCELLED = 5
    SKIPPED = 6


class Outcome(enum.IntEnum):
    """How an attempt ended."""

    OPEN = 0
    SUCCEEDED = 1
    FAILED = 2
    LEASE_EXPIRED = 3
    TIMED_OUT = 4
    RELEASED = 5
    CANCELLED = 6


# Names of the module, since reading a member off its class takes ten times as long.
_OPEN: Final = Outcome.OPEN
_ACTIVE: Final = JobState.ACTIVE


@mypyc_attr(acyclic=True)
class Attempt:
    """One lease of an execution, with its outcome. Times are log-time, epoch ms (0: not yet).

    It is claimed when its worker may begin: at the grant, or when the execution is due, if
    it was leased shortly before. `number` counts an execution's attempts from 1, through
    releases and replays too. Only the latest are kept, so the first number kept tells how
    many were dropped. `error` is None unless a worker said something: most attempts have none,
    and stay small. `progress` is the latest that its worker said of how far it had come, in
    MessagePack; b"": nothing.
    """

    __slots__ = (
        "claimed_ms",
        "error",
        "finished_ms",
        "lease_ms",
        "number",
        "outcome",
        "progress",
        "started_ms",
        "token",
        "worker",
    )

    def __init__(
        self, token: int, worker: str, lease_ms: int, claimed_ms: int, number: int = 1
    ) -> None:
        """A lease just granted."""
        self.token = token
        self.worker = worker
        self.lease_ms = lease_ms
        self.claimed_ms = claimed_ms
        self.started_ms = 0
        self.finished_ms = 0
        self.outcome = _OPEN
        self.error: AttemptError | None = None
        self.number = number
        self.progress = b""


@mypyc_attr(acyclic=True)
class Execution:
    """One occurrence of a job; its identity is (job id, nominal time).

    `due_ms` is the instant before which it is never handed out: the nominal time, or
    later after a backoff. `sequence` (rising in log order) breaks ties of due time; it is
    the job id for a job's first execution.
    `attempts_used` counts claims against the budget of the retry policy.
    `tries` are its attempts; most have one, which is held directly: a list for each would be an
    object for the collector to walk.
    """

    __slots__ = (
        "attempts_used",
        "cancel_requested",
        "due_ms",
        "finished_ms",
        "job",
        "nominal_ms",
        "reason",
        "result",
        "sequence",
        "state",
        "tries",
    )

    def __init__(
        self,
        job: Job,
        nominal_ms: int,
        due_ms: int,
        sequence: int,
        state: ExecutionState = ExecutionState.SCHEDULED,
    ) -> None:
        """One that was never claimed."""
        self.job = job
        self.nominal_ms = nominal_ms
        self.due_ms = due_ms
        self.sequence = sequence
        self.state = state
        self.attempts_used = 0
        self.cancel_requested = False
        self.finished_ms = 0
        self.reason = ""
        self.result = b""
        self.tries: Attempt | tuple[Attempt, ...] | None = None

    @property
    def token(self) -> int:
        """The latest fencing token granted, 0 before the first claim; it stays after the lease
        ends."""
        tries = self.tries
        if tries is None:
            return 0
        return tries.token if isinstance(tries, Attempt) else tries[-1].token

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts that are kept, the latest last."""
        tries = self.tries
        if tries is None:
            return ()
        return (tries,) if isinstance(tries, Attempt) else tries

    @property
    def latest(self) -> Attempt:
        """The latest attempt, whose token is the execution's; there must be one."""
        tries = self.tries
        if isinstance(tries, Attempt):
            return tries
        assert tries is not None, "a token was granted, so there is an attempt"
        return tries[-1]


class FateKind(enum.IntEnum):
    """What became of nominal times that have no record of their own (any more)."""

    COALESCED = 0
    """Folded into the one run that stands for all that were missed."""
    SKIPPED = 1
    """Left out by rule: overlap, a pause."""
    MISSED = 2
    """Past, and not to be caught up."""
    FIRED = 3
    """A run of its own, whose record has been dropped since; the reason is how it ended."""


class Origin(enum.IntEnum):
    """Who asked for an occurrence."""

    TIMETABLE = 0
    TRIGGER = 1
    BACKFILL = 2


@dataclass(eq=False)
class Recurrence:
    """How far a recurring job's timetable has come, and what became of its nominal times.

    Each nominal time up to `planned_ms` is in one of `fired` (a run of its own, made or to
    come), `coalesced`, `skipped` and `missed`.
    """

    timetable: Timetable
    planned_ms: int
    """The latest nominal time that it has reached (materialised or not)."""
    passed_ms: int = 0
    """The one before, whose turn has come: an edit never goes back behind it."""
    name: str = ""
    """By which it can be put; "" for none."""
    made: int = 0
    """Occurrences made by the timetable, which `max_runs` bounds."""
    fired: int = 0
    coalesced: int = 0
    skipped: int = 0
    missed: int = 0
    ended: bool = False
    """No further occurrence will come."""
    paused_ms: int = 0
    """Since when it is paused, log-time (0: it is not)."""
    pause_reason: str = ""
    parked: str = ""
    """Why it stands still; "" when it does not."""
    skip_to_ms: int = 0
    """Nominal times up to this fell into a pause that is over."""
    live: dict[int, Execution] = field(default_factory=dict)
    """Executions that have not ended, by nominal time; derived from the records."""
    ledger: list[Fate] = field(default_factory=list)
    """What became of the latest nominal times that hold no execution, in the order written."""
    asked: dict[int, Origin] = field(default_factory=dict)
    """Kept executions that the timetable did not make, by nominal time."""
    begun: dict[int, Definition] = field(default_factory=dict)
    """What kept executions that began before an edit run with, by nominal time."""

    @property
    def moves(self) -> bool:
        """Whether the planner is to move it on."""
        return not (self.ended or self.paused_ms or self.parked)


@mypyc_attr(acyclic=True)
class Job:
    """A job definition: what to run, where, when and how often to try.

    `executions` are by nominal time; a one-shot job holds its single execution directly.
    `recurrence` is None for a one-shot job. `version` counts the definitions that it has had.
    """

    __slots__ = (
        "created_ms",
        "executions",
        "id",
        "idempotency_key",
        "options",
        "partition_key",
        "payload",
        "priority",
        "queue",
        "recurrence",
        "retry",
        "state",
        "timeout_ms",
        "version",
    )

    def __init__(
        self,
        id: int,
        queue: str,
        payload: bytes,
        created_ms: int,
        retry: RetryPolicy,
        priority: int,
        partition_key: str,
        timeout_ms: int,
        idempotency_key: str,
        executions: dict[int, Execution],
        recurrence: Recurrence | None = None,
        options: Options = NO_OPTIONS,
    ) -> None:
        """An active job in its first version."""
        self.id = id
        self.queue = queue
        self.payload = payload
        self.created_ms = created_ms
        self.retry = retry
        self.partition_key = partition_key
        self.timeout_ms = timeout_ms
        self.idempotency_key = idempotency_key
        self.executions: dict[int, Execution] | Execution = executions
        self.recurrence = recurrence
        self.state = _ACTIVE
        self.version = 1
        self.priority = priority
        self.options = options

    @property
    def timetable(self) -> Timetable | None:
        """The schedule of a recurring job; None for a one-shot job."""
        recurrence = self.recurrence
        return None if recurrence is None else recurrence.timetable

    @property
    def planned_ms(self) -> int:
        """The latest nominal time that is planned, of a one-shot job its only one."""
        recurrence = self.recurrence
        if recurrence is not None:
            return recurrence.planned_ms
        assert isinstance(self.executions, Execution)
        return self.executions.nominal_ms

    @property
    def moves_at_ms(self) -> int:
        """When the planned occurrence is due, and the timetable moves on."""
        recurrence = self.recurrence
        assert recurrence is not None
        offset = jitter_offset(self.id, recurrence.timetable.jitter_ms)
        return min(recurrence.planned_ms + offset, MAX_TIME_MS)

    @property
    def timetable_ended(self) -> bool:
        """No further occurrence will come; always true for a one-shot job."""
        recurrence = self.recurrence
        return recurrence is None or recurrence.ended

    @property
    def timetable_moves(self) -> bool:
        """Whether the planner is to move it on: it has not ended, is not paused or parked."""
        recurrence = self.recurrence
        return recurrence is not None and recurrence.moves


def definition_of(execution: Execution) -> Job | Definition:
    """What an execution runs with: its job's definition, or the one that it began with."""
    job = execution.job
    recurrence = job.recurrence
    if recurrence is None or not recurrence.begun:
        return job
    return recurrence.begun.get(execution.nominal_ms, job)


def payload_of(execution: Execution) -> bytes:
    """The payload that an execution runs with."""
    job = execution.job
    return job.payload if job.recurrence is None else definition_of(execution).payload


def timeout_of(execution: Execution) -> int:
    """How long one of its attempts may take, in milliseconds; 0: no bound."""
    job = execution.job
    return job.timeout_ms if job.recurrence is None else definition_of(execution).timeout_ms


def retry_of(execution: Execution) -> RetryPolicy:
    """The policy that it is tried again by."""
    job = execution.job
    return job.retry if job.recurrence is None else definition_of(execution).retry


def origin_of(execution: Execution) -> Origin:
    """Who asked for an execution."""
    recurrence = execution.job.recurrence
    if recurrence is None:
        return Origin.TIMETABLE
    return recurrence.asked.get(execution.nominal_ms, Origin.TIMETABLE)


@dataclass
class QueueCounts:
    """How much a queue holds now, and what it has seen since it came into being.

    A queue exists as long as a job of it is kept. `leased` includes running executions.
    """

    name: str
    jobs: int = 0
    scheduled: int = 0
    leased: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    skipped: int = 0
    total_created: int = 0
    """Executions created, and those that came to each end, since the queue began."""
    total_succeeded: int = 0
    total_dead: int = 0
    total_cancelled: int = 0
    total_skipped: int = 0
    """Those withdrawn before their time among them."""
    leased_by_key: dict[str, int] = field(default_factory=dict)
    """Of `leased`, those of jobs with a concurrency key, by key."""
    requirements: dict[tuple[str, ...], int] = field(default_factory=dict)
    """How many jobs require each set of tags; those that require nothing are not counted."""

    def count_requirements(self, requires: tuple[str, ...], one: int) -> None:
        """A job requires these tags, or does not any more."""
        if requires:
            count = self.requirements.get(requires, 0) + one
            if count:
                self.requirements[requires] = count
            else:
                del self.requirements[requires]

    def has_room_for(self, requires: tuple[str, ...]) -> bool:
        """Whether a job may require these tags."""
        known = not requires or requires in self.requirements
        return known or len(self.requirements) < MAX_REQUIREMENTS


@dataclass
class ConfiguredQueue:
    """A queue whose settings are not the default, with or without jobs.

    What its rate limit has been charged was `charged` at `charged_ms` of log-time: each lease
    adds `per_ms`, and each millisecond takes `executions` off again (see `queues`).
    """

    settings: QueueSettings
    version: int
    charged: int = 0
    charged_ms: int = 0


@dataclass
class Counters:
    """Plain totals since the start of the log, the same on every node."""

    created: int = 0
    """Executions created, of one-shot and recurring jobs."""
    duplicates: int = 0
    """Creates answered with an earlier job: by idempotency key or by request id."""
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    expired: int = 0
    released: int = 0
    stale: int = 0
    """Reports refused since the token no longer held, or something else had ended it."""
    retried: int = 0
    died: int = 0
    replayed: int = 0
    cancelled: int = 0
    coalesced: int = 0
    missed: int = 0
    skipped: int = 0
    withdrawn: int = 0
    """Occurrences taken back before their time: by a pause, or an edit of the timetable."""
    caught_up: int = 0
    """Runs of the past that catch-up made."""
    purged: int = 0
    """Dead executions that somebody had forgotten."""
    rejected: int = 0
    """Creates refused since their idempotency key has a job, as they asked."""
    keys_forgotten: int = 0
    """Idempotency keys forgotten before their window was over, to make room for others."""
    skipped_expired: int = 0
    """Executions skipped since they expired, those of timetables too."""
    configured: int = 0
    """Changes of settings of queues; each gives its queue this number as its version."""

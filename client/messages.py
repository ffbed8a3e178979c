"""Wire types: one definition per message, shared by nodes, clients and workers.

JSON and MessagePack carry the same structures. Requests refuse unknown fields by
name; answers may gain fields, which older clients ignore. Instants are RFC 3339
strings in views that people read (`…_at`) and integers of epoch milliseconds on the
worker path (`…_ms`). Identifiers are opaque strings; a fencing token is an integer
below 2**53 that only ever rises.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_PAYLOAD_BYTES = 64 * 1024
"""Largest payload of a job and result of an execution, as MessagePack."""
MAX_BATCH = 1_000
"""Most items in one batch request, and most executions in one claim."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""Largest request body."""
MAX_ERROR_TYPE = 200
MAX_ERROR_MESSAGE = 2_000
"""Longer error texts of an attempt are clipped, with a mark, rather than refused."""
MAX_DELAY_MS = 100 * 366 * 86_400_000
MAX_DIGITS = 16
"""Of the numbers that identifiers are made of."""
MAX_INSTANT_MS = 253_402_300_799_999
"""The end of the year 9999: the horizon of `at` and `after`."""
MAX_INDEX = 2**53 - 1
"""The highest position of the log that a read can ask for."""

QUEUE_NAME = r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z"
QueueName = Annotated[str, Meta(pattern=QUEUE_NAME)]
NamedQueue = Annotated[str, Meta(max_length=64)]
"""A `QueueName` of which a node matches the pattern once, however many jobs name it."""
Key = Annotated[str, Meta(min_length=1, max_length=255)]
RequestId = Annotated[str, Meta(min_length=1, max_length=64)]
WorkerName = Annotated[str, Meta(min_length=1, max_length=128)]
Token = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Limit = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
JobName = Annotated[str, Meta(pattern=QUEUE_NAME)]
TimeZone = Annotated[str, Meta(min_length=1, max_length=64)]
CronText = Annotated[str, Meta(min_length=1, max_length=256)]
IntervalMs = Annotated[int, Meta(ge=100, le=MAX_DELAY_MS)]
CatchUp = Literal["none", "one", "all"]
"""What becomes of what was missed: nothing, one run for all of it, or a run each."""
Overlap = Literal["allow", "skip", "buffer_one", "cancel_running"]
"""What happens to an occurrence that comes due while another of its job is active."""
MissedInPause = Literal["skip", "catch_up"]
Consistency = Literal["applied", "strong"]
"""How fresh a read is at least; see the protocol, "Reads"."""


ExecutionStateName = Literal[
    "scheduled", "retry", "leased", "running", "succeeded", "dead", "cancelled", "skipped"
]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything that a client sends."""


class Answer(msgspec.Struct, frozen=True):
    """Base of everything that a node answers."""


# --- schedules -----------------------------------------------------------------------------


class At(Request, frozen=True, tag_field="type", tag="at"):
    """Once, at an instant: ISO 8601 with an offset, or epoch milliseconds. Past: due at once."""

    time: str | int


class After(Request, frozen=True, tag_field="type", tag="after"):
    """Once, `delay_ms` after the cluster accepted the job."""

    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]


class DatesExcluded(Request, frozen=True, tag_field="type", tag="dates"):
    """Whole days of a calendar, each `YYYY-MM-DD` or `YYYY-MM-DD/YYYY-MM-DD` (both included)."""

    dates: Annotated[list[Annotated[str, Meta(max_length=21)]], Meta(min_length=1, max_length=366)]
    time_zone: TimeZone | None = None
    """None: that of the schedule's first cron rule, or UTC."""


class WindowExcluded(Request, frozen=True, tag_field="type", tag="window"):
    """All times that a cron expression matches; whole minutes, if it has five fields."""

    expression: CronText
    time_zone: TimeZone | None = None


class Recurring(Request, frozen=True, kw_only=True):
    """What every timetable can have: bounds, jitter, exclusions, and rules for what goes amiss.

    `start` and `until` bound nominal times (both included), `max_runs` the occurrences made.
    `jitter_ms` delays all of a job's occurrences by one constant share of it, which differs
    from job to job.
    """

    start: str | int | None = None
    until: str | int | None = None
    max_runs: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    jitter_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    exclude: Annotated[list[DatesExcluded | WindowExcluded], Meta(max_length=16)] = []
    catch_up: CatchUp = "one"
    catch_up_window_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None
    """What was missed longer ago than this is not caught up; None: no bound."""
    catch_up_limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """How many missed occurrences `all` runs at most: the newest, oldest first."""
    overlap: Overlap = "allow"
    pause_on_failure: bool = False
    """Pause the timetable when an execution goes to the dead letters."""


class EveryRule(Request, frozen=True, tag_field="type", tag="every"):
    """Every `interval_ms`, counted from `anchor` (default: the creation), without drift."""

    interval_ms: IntervalMs
    anchor: str | int | None = None


class CronRule(Request, frozen=True, tag_field="type", tag="cron"):
    """By the wall clock of `time_zone` (IANA name); see `Cron`."""

    expression: CronText
    time_zone: TimeZone = "UTC"


class AtRule(Request, frozen=True, tag_field="type", tag="at"):
    """At given instants."""

    times: Annotated[list[str | int], Meta(min_length=1, max_length=1_000)]


class Every(Recurring, frozen=True, tag_field="type", tag="every"):
    """Every `interval_ms`, counted from `anchor` (default: the creation), without drift."""

    interval_ms: IntervalMs
    anchor: str | int | None = None


class Cron(Recurring, frozen=True, tag_field="type", tag="cron"):
    """By the wall clock of `time_zone` (IANA name).

    `expression` has five fields (minute hour day-of-month month day-of-week), or six with
    the seconds FIRST, or is a name such as `@daily` (docs/cron.md); the answer to a create
    echoes the next fires.
    """

    expression: CronText
    time_zone: TimeZone = "UTC"


class Union(Recurring, frozen=True, tag_field="type", tag="union"):
    """Several schedules of one job: the times that any of them names, equal ones once."""

    schedules: Annotated[list[EveryRule | CronRule | AtRule], Meta(min_length=1, max_length=16)]


Timetable = Every | Cron | Union
Schedule = At | After | Every | Cron | Union


class Retry(Request, frozen=True):
    """The retry policy: exponential backoff with a cap and deterministic jitter."""

    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] = 5
    initial_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] = 1_000
    multiplier_pct: Annotated[int, Meta(ge=100, le=10_000)] = 200
    max_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] = 3_600_000
    jitter_pct: Annotated[int, Meta(ge=0, le=100)] = 20


# --- jobs ------------------------------------------------------------------------------------


class NewJob(Request, frozen=True):
    """A job to create. Without a schedule it is due at once."""

    queue: NamedQueue = "default"
    payload: Any = None
    schedule: Schedule | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    partition_key: Annotated[str, Meta(max_length=255)] = ""
    retry: Retry = Retry()
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None
    idempotency_key: Key | None = None


class NewJobs(Request, frozen=True):
    """A batch of jobs. The request id makes an unknown outcome safe to repeat."""

    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=MAX_BATCH)]
    request_id: RequestId | None = None


class FieldError(Answer, frozen=True):
    """One thing wrong with a request: where, and what would be right."""

    field: str
    detail: str


class Problem(Answer, frozen=True, omit_defaults=True, kw_only=True):
    """A problem document (RFC 9457).

    `type` is stable and listed in the protocol; `outcome` says whether a failed write may
    have happened ("unknown") or certainly has not ("not_applied").
    """

    type: str
    title: str
    status: int
    detail: str = ""
    errors: list[FieldError] = []
    outcome: Literal["", "not_applied", "unknown"] = ""
    retry_after_ms: int = 0
    leader: str = ""


class JobCreated(Answer, frozen=True, omit_defaults=True):
    """What became of one job of a create."""

    status: Literal["created", "duplicate", "refused"]
    job_id: str = ""
    execution_id: str = ""
    next_fires: list[str] = []
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


class JobList(Answer, frozen=True):
    """One page of jobs, newest first; `cursor` asks for the next page (None: the last)."""

    jobs: list[JobView]
    cursor: str | None
    applied_index: int


class JobCancelled(Answer, frozen=True):
    """The answer to a cancel: "cancelled", "requested" (a worker still holds it) or "finished"."""

    job_id: str
    status: Literal["cancelled", "requested", "finished"]


class JobUpdate(Request, frozen=True, kw_only=True):
    """New parts of a job's definition; what is left out stays as it is.

    What an execution began with it keeps to its end; those to come follow the new definition.
    """

    payload: Any = UNSET
    schedule: Schedule | UnsetType = UNSET
    priority: Annotated[int, Meta(ge=0, le=9)] | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | UnsetType | None = UNSET


class JobPut(Request, frozen=True, kw_only=True):
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


class JobTriggered(Answer, frozen=True):
    """The answer to a trigger; "skipped" by the overlap rule."""

    status: Literal["created", "duplicate", "skipped"]
    job_id: str
    execution_id: str


class BackfillRequest(Request, frozen=True):
    """The range of past nominal times to run, both ends included."""

    start: str | int
    until: str | int


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
    after: str | int | None = None
    """Fires strictly later than this; default: now."""
    count: Annotated[int, Meta(ge=1, le=100)] = 5


class SchedulePreviewed(Answer, frozen=True):
    """The schedule as it is understood, with every default, and its next fires."""

    schedule: Schedule
    fires: list[FireView]


# --- executions ------------------------------------------------------------------------------


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


# --- the worker protocol ---------------------------------------------------------------------


class Claim(Request, frozen=True, kw_only=True):
    """Ask for at most `max_executions` due executions of a queue, waiting up to `wait_ms`."""

    queue: NamedQueue = "default"
    worker: WorkerName
    max_executions: Limit = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    lease_ms: Annotated[int, Meta(ge=500, le=3_600_000)] = 10_000
    request_id: RequestId | None = None


class Delivery(Answer, frozen=True):
    """A leased execution. `token` decides whose report counts: send it with every report.

    `idempotency_key` names this occurrence for effects outside, the same on every attempt.
    `lease_ms` is a length, to be measured on the worker's own monotonic clock from the
    moment that it sent the claim.
    """

    execution_id: str
    job_id: str
    queue: str
    token: int
    attempt: int
    max_attempts: int
    nominal_ms: int
    due_ms: int
    lease_ms: int
    timeout_ms: int
    idempotency_key: str
    payload: Any


class Claimed(Answer, frozen=True):
    """The answer to a claim; empty when nothing came due in time."""

    request_id: str
    executions: list[Delivery]


class Hold(Request, frozen=True):
    """An execution as its holder names it."""

    execution_id: str
    token: Token


class Holds(Request, frozen=True):
    """A batch of holds: to start or to release."""

    items: Annotated[list[Hold], Meta(min_length=1, max_length=MAX_BATCH)]


class Heartbeats(Request, frozen=True):
    """A batch of heartbeats."""

    items: Annotated[list[Hold], Meta(min_length=1, max_length=MAX_BATCH)]


class Success(Request, frozen=True):
    """An execution done. `result` is kept with it; `started_ms` is the worker's own stamp."""

    execution_id: str
    token: Token
    result: Any = None
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INSTANT_MS)] | None = None


class Successes(Request, frozen=True):
    """A batch of successes."""

    items: Annotated[list[Success], Meta(min_length=1, max_length=MAX_BATCH)]


class Failure(Request, frozen=True):
    """An attempt failed. `retry_after_ms` overrides the policy; `non_retryable` ends it."""

    execution_id: str
    token: Token
    error_type: str = ""
    message: str = ""
    retry_after_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] | None = None
    non_retryable: bool = False
    started_ms: Annotated[int, Meta(ge=0, le=MAX_INSTANT_MS)] | None = None


class Failures(Request, frozen=True):
    """A batch of failures."""

    items: Annotated[list[Failure], Meta(min_length=1, max_length=MAX_BATCH)]


ReportVerdict = Literal["accepted", "duplicate", "stale", "finished", "unknown"]


class Report(Answer, frozen=True):
    """The answer to one report. `status` is what a single request would have answered.

    accepted 200; duplicate 200 (the same report counted before); stale 409 (the lease was
    lost and granted anew); finished 409 (terminal with another outcome); unknown 404 (never
    existed, or trimmed after it finished).
    """

    execution_id: str
    verdict: ReportVerdict
    status: int


class Reports(Answer, frozen=True):
    """The answers to a batch of reports, in order."""

    results: list[Report]


class Heartbeat(Answer, frozen=True):
    """The answer to one heartbeat.

    `extended`: go on, the lease runs `lease_remaining_ms` from now. `cancel_requested`: the
    same, but stop as soon as you can. `lost`: somebody else holds it; stop, report nothing.
    `finished`: it is terminal; stop beating.
    """

    execution_id: str
    verdict: Literal["extended", "cancel_requested", "lost", "finished", "unknown"]
    lease_remaining_ms: int


class HeartbeatAnswers(Answer, frozen=True):
    """The answers to a batch of heartbeats, in order."""

    results: list[Heartbeat]


# --- dead letters ----------------------------------------------------------------------------


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


# --- the cluster -----------------------------------------------------------------------------


Standing = Literal["blank", "joining", "voter"]


class NodeView(Answer, frozen=True):
    """A node as the answering node sees it."""

    name: str
    http_url: str
    role: Literal["leader", "follower", "candidate", "unknown"]
    connected: bool
    match_index: int | None
    last_contact_ms: int | None
    standing: Standing | None = None
    """What its disk counts for; None when it has not said so."""
    supported_level: int | None = None
    """The highest feature level of its release: each tells its own, a leader that of all."""


class Replacement(Answer, frozen=True, kw_only=True):
    """How far a node with a new disk has come, as the leader sees it."""

    node: str
    connected: bool
    standing: Standing | None
    incarnation: int | None
    """The number of its disk; a new disk has another. None while the leader has not heard it."""
    match_index: int
    """What its disk is known to hold…"""
    commit_index: int
    """… of what is committed."""
    snapshot_percent: int | None
    """How much of the snapshot that it is being sent has arrived; None while there is none."""
    quorum: int
    """How many members must vote for anything to be committed."""
    voters: list[str]
    """The other members that vote and are in touch."""


class QueueView(Answer, frozen=True):
    """A queue's depth: replicated counts, and what only the leader knows (else None)."""

    name: str
    scheduled: int
    leased: int
    ready: int | None
    oldest_due_ms: int | None
    waiting_claims: int | None
    skipped: int = 0
    """Occurrences left out by rule, or taken back, since the queue began."""


class ClusterView(Answer, frozen=True, kw_only=True):
    """The cluster as the answering node sees it."""

    cluster: str
    node: str
    version: str
    role: Literal["leader", "follower", "candidate"]
    serving: bool
    leader: str | None
    term: int
    commit_index: int
    applied_index: int
    log_time_ms: int
    feature_level: int = 1
    """Which operations may be used; it rises once every node supports a higher one."""
    state_digest: str | UnsetType = UNSET
    nodes: list[NodeView]
    queues: list[QueueView]
    totals: dict[str, int]
    obstacle: str | None = None
    """What keeps the node from voting, or the cluster from a leader, in a sentence."""


class SnapshotBegun(Answer, frozen=True, kw_only=True):
    """A node has begun to write a snapshot; `index` is the log position that it covers."""

    node: str
    index: int


def encode_execution_id(job: int, nominal_ms: int) -> str:
    """Render an execution's identity (job id, nominal time in epoch ms) for the wire."""
    return f"{job}-{nominal_ms}"


def decode_execution_id(text: str) -> tuple[int, int]:
    """Parse an execution id; raises ValueError when it cannot name any execution."""
    job, _, nominal = text.partition("-")
    if (
        job.isdigit()
        and nominal.isdigit()
        and len(job) <= MAX_DIGITS
        and len(nominal) <= MAX_DIGITS
        and text.isascii()
    ):
        return int(job), int(nominal)
    raise ValueError(f"not an execution id: {text[:80]!r}")


def decode_job_id(text: str) -> int:
    """Parse a job id; raises ValueError when it cannot name any job."""
    if text.isdigit() and len(text) <= MAX_DIGITS and text.isascii():
        return int(text)
    raise ValueError(f"not a job id: {text[:80]!r}")

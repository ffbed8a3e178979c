"""The operations of the replicated log and the encoding of an entry.

An entry is what one turn of consensus carries: MessagePack of
``[log_time_ms, [operation, …]]``. Operations are positional and numbered by their
tag. **The table is append-only**: a number is never given a new meaning, a field
is only ever added at the end with a default, so that an old journal replays to
the same state under newer code.

An operation says everything that its effect depends on. Time comes from the
entry's log-time, timetables are evaluated by the leader and travel as instants;
applying an operation reads nothing else. Which release may propose which is told by `levels`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from timeball.cluster.state.cluster_settings import ClusterSettings as ClusterSettings
from timeball.cluster.state.queue_settings import QueueChange

NUMBERED_PER_ENTRY = 4096
"""An entry numbers at most this many items of any kind (jobs created, leases granted).

A number is ``index * NUMBERED_PER_ENTRY + position``: unique in the cluster, strictly
rising with the log, and below 2**53 (safe in JSON) for two trillion entries.
"""


class Operation(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of all operations: a frozen, positional, tagged record."""


EXPONENTIAL, LINEAR, FIXED, LIST = BACKOFFS = ("exponential", "linear", "fixed", "list")
"""How the delays before the attempts of an execution follow each other (see `backoff`)."""


class RetryPolicy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often and how soon a failed execution is tried again.

    The defaults are part of the log's format: see `NewJob.retry`. Delays come from
    `initial_ms`, by `multiplier_pct` if they grow exponentially, or from `delays_ms`; none is
    above `max_ms`, and `jitter_pct` per cent of each are replaced by a deterministic share. A
    failure whose error type is one of `non_retryable_errors` is the last.
    """

    max_attempts: int = 5
    initial_ms: int = 1_000
    multiplier_pct: int = 200
    max_ms: int = 3_600_000
    jitter_pct: int = 20
    backoff: str = EXPONENTIAL
    delays_ms: tuple[int, ...] = ()
    non_retryable_errors: tuple[str, ...] = ()


class Rule(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of what names the times of a timetable; only the planner evaluates it."""


class Every(Rule, frozen=True, tag=1):
    """Every `interval_ms` from `anchor_ms` (epoch milliseconds), drift-free."""

    interval_ms: int
    anchor_ms: int


class Cron(Rule, frozen=True, tag=2):
    """A cron expression on the wall clock of an IANA time zone."""

    expression: str
    time_zone: str = "UTC"


class At(Rule, frozen=True, tag=3):
    """Given instants (epoch milliseconds, rising)."""

    times_ms: tuple[int, ...]


class Exclusion(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of what takes times out of a timetable."""


class Dates(Exclusion, frozen=True, tag=1):
    """Whole days on the calendar of a time zone: pairs of proleptic ordinals, both included."""

    days: tuple[tuple[int, int], ...]
    time_zone: str = "UTC"


class Window(Exclusion, frozen=True, tag=2):
    """What a cron expression matches on the wall clock: whole minutes, if it has five fields."""

    expression: str
    time_zone: str = "UTC"


ALLOW, SKIP, BUFFER_ONE, CANCEL_RUNNING = OVERLAPS = (
    "allow",
    "skip",
    "buffer_one",
    "cancel_running",
)
"""What happens to an occurrence that comes due while another of its job is active."""


class Timetable(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a recurring job runs: the times that any of `rules` names, and no exclusion covers.

    Equal times of two rules are one. Times lie within `start_ms` and `until_ms` (both
    included; 0: no bound), and `max_runs` (0: no bound) counts the occurrences made. Each is
    due a constant part of `jitter_ms` after its nominal time (see `jitter`). The state reads
    `jitter_ms`, `overlap` and `pause_on_failure`; the rest is the planner's.
    """

    rules: tuple[Every | Cron | At, ...]
    start_ms: int = 0
    until_ms: int = 0
    max_runs: int = 0
    jitter_ms: int = 0
    exclusions: tuple[Dates | Window, ...] = ()
    catch_up: str = "one"
    """`none`, `one` or `all`."""
    catch_up_window_ms: int = 0
    """What was missed longer ago is not caught up (0: no bound)."""
    catch_up_limit: int = 1_000
    """Of what `all` catches up, the newest so many."""
    overlap: str = ALLOW
    pause_on_failure: bool = False


class Options(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What few jobs ask for, beside their queue, about when and to whom they are handed out.

    Of the jobs of a queue that have the same `concurrency_key` only so many are leased at a time
    (see the queue's settings). A claim must offer all that is in `requires`. No attempt begins
    at or after `expires_ms` (epoch ms), or `expires_after_ms` after the nominal time; 0: no
    bound. `tags` are for finding jobs. Both tuples are sorted and hold nothing twice.
    """

    concurrency_key: str = ""
    requires: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    expires_ms: int = 0
    expires_after_ms: int = 0


class KeyRule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an idempotency key holds, beyond what the defaults say.

    For `window_ms` (0: the cluster's `idempotency_window_ms`), or, if `until_ended`, until its job
    has ended. It is known in the whole cluster, or `within_queue` alone. `reject` has a duplicate
    refused, instead of answered with the job that the key made; it counts for this request.
    """

    window_ms: int = 0
    within_queue: bool = False
    reject: bool = False
    until_ended: bool = False


class NewJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job to create.

    `payload` is MessagePack. The first nominal time is `first_ms` (epoch ms), or, when
    that is 0, the entry's log-time plus `delay_ms`. `timetable` is None for a one-shot
    job. `retry` is None for the policy of `RetryPolicy()`, which most jobs have: it is neither
    carried nor compared for each. `idempotency_key` is "" for none; `fingerprint` identifies
    the request behind it, by its last 60 bits. `options` and
    `key_rule` are None for what most jobs have (see `usual`).
    """

    queue: str
    payload: bytes
    first_ms: int = 0
    delay_ms: int = 0
    timetable: Timetable | None = None
    priority: int = 5
    partition_key: str = ""
    retry: RetryPolicy | None = None
    timeout_ms: int = 0
    idempotency_key: str = ""
    fingerprint: bytes = b""
    options: Options | None = None
    key_rule: KeyRule | None = None


class CreateJobs(Operation, frozen=True, tag=1):
    """Create jobs. Verdict: `JobsCreated`.

    A repeat with the same non-empty `request_id` answers as the first did, changing
    nothing, for as long as requests are remembered (`request_memory_ms`).
    """

    request_id: str
    jobs: Sequence[NewJob]


class CancelJobs(Operation, frozen=True, tag=2):
    """Cancel jobs by id. Verdict: list of `Cancelled`, one per job."""

    jobs: Sequence[int]


class Claim(Operation, frozen=True, tag=3):
    """Lease executions, given as (job, nominal_ms), to a worker. Verdict: list of tokens.

    The verdict holds the fencing token per execution, or 0 where the lease was refused (not
    scheduled, not due within `limits.MAX_LEAD_MS`, expired, in need of more than is `offered`, or
    held back by its queue's settings). `request_id` is remembered for repeats.
    """

    worker: str
    request_id: str
    lease_ms: int
    executions: Sequence[tuple[int, int]]
    offered: tuple[str, ...] = ()


class Start(Operation, frozen=True, tag=4):
    """Holders (job, nominal_ms, token) report that they run. Verdict: list of `Verdict`."""

    holds: Sequence[tuple[int, int, int]]


class Success(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An execution done: its `result` (MessagePack) and when it started (0: unknown)."""

    job: int
    nominal_ms: int
    token: int
    result: bytes = b""
    started_ms: int = 0


class Succeed(Operation, frozen=True, tag=5):
    """Holders report success. Verdict: list of `Verdict`."""

    items: Sequence[Success]


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt failed. `retry_after_ms` of -1 leaves the delay to the retry policy."""

    job: int
    nominal_ms: int
    token: int
    error_type: str = ""
    message: str = ""
    retry_after_ms: int = -1
    non_retryable: bool = False
    started_ms: int = 0
    backtrace: str = ""


class Fail(Operation, frozen=True, tag=6):
    """Holders report failure. Verdict: list of `Verdict`."""

    items: Sequence[Failure]


class Release(Operation, frozen=True, tag=7):
    """Holders (job, nominal_ms, token) give executions back. Verdict: list of `Verdict`.

    A released execution is at once due again and its attempt does not count. It ends the
    hold: no later report with that token is accepted.
    """

    holds: Sequence[tuple[int, int, int]]


class Expire(Operation, frozen=True, tag=8):
    """The leader ends leases (job, nominal_ms, token, timed_out). Verdict: list of `Verdict`.

    `timed_out` says that the attempt's `timeout_ms` ran out, not its lease.
    """

    holds: Sequence[tuple[int, int, int, bool]]


class Fate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of `count` nominal times, from first to last, that hold no execution.

    `kind` is a `records.FateKind`.
    """

    first_ms: int
    last_ms: int
    count: int
    kind: int
    reason: str = ""


class Advance(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Move one timetable on, conditionally on its version and the instant that it stands at.

    Only if the job still is at `version` and its latest planned nominal time is `after_ms`:
    create the occurrences at `nominals` (rising, all later than `after_ms`), write down the
    `fates` of the others, and stand at `planned_ms` from now on; `ended` says that the
    timetable has no further instant. `pending` is the fate of the occurrence at `after_ms`
    itself, if catch-up gives it none of its own. `caught_up` of the occurrences are runs of
    the past, which the cluster's budget must have room for.
    """

    job: int
    version: int
    after_ms: int
    nominals: Sequence[int]
    planned_ms: int
    fates: Sequence[Fate] = ()
    pending: Fate | None = None
    caught_up: int = 0
    ended: bool = False


class AdvanceTimetables(Operation, frozen=True, tag=9):
    """Create the next occurrences of recurring jobs. Verdict: list of `Moved`."""

    items: Sequence[Advance]


class Replay(Operation, frozen=True, tag=10):
    """Give dead executions a new attempt budget. Verdict: list of `Verdict`.

    Each is given as (job, nominal_ms, token). With a token only the death is meant that its
    attempt came to, not a later one; 0 means whichever.
    """

    executions: Sequence[tuple[int, int, int]]


class Lead(Operation, frozen=True, tag=11):
    """A new leader begins: its settings become the cluster's. Verdict: None, or why not (str).

    The first operation of a leader; its duties begin once this is applied.
    """

    leader: str
    settings: ClusterSettings


class RaiseLevel(Operation, frozen=True, tag=12):
    """Raise the cluster's feature level. Verdict: bool (raised or not).

    Only if the state's level still is `current`, and to a higher one. Operations of the new
    level may follow from the next entry on; a node that does not support it stops here.
    """

    current: int
    level: int


class PauseJob(Operation, frozen=True, tag=13):
    """Make no further occurrence of a recurring job. Verdict: `Changed`.

    The one that is not due yet is withdrawn; what is due, leased or in retry goes on.
    """

    job: int
    reason: str = ""


class ResumeJob(Operation, frozen=True, tag=14):
    """Let a paused or parked timetable go on. Verdict: `Changed`.

    What fell into the pause is skipped, or, with `catch_up`, dealt with by the catch-up rule.
    """

    job: int
    catch_up: bool = False


class TriggerJob(Operation, frozen=True, tag=15):
    """Make one occurrence now, beside the timetable. Verdict: `Triggered`.

    A repeat with the same non-empty `request_id` answers as the first did.
    """

    job: int
    request_id: str = ""


class BackfillJob(Operation, frozen=True, tag=16):
    """Make the occurrences of past nominal times that have none. Verdict: `Backfilled`.

    Only if the job still is at `version`, whose timetable named them. They are due at once
    and go one after another, unless the overlap rule allows them side by side.
    """

    job: int
    version: int
    nominals: Sequence[int]


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New parts of a definition; None, or -1, for those that stay.

    `timetable` is for recurring jobs; a one-shot job is planned anew by `first_ms` (epoch ms;
    0: not) or `delay_ms` from the entry's log-time (-1: not).
    """

    payload: bytes | None = None
    retry: RetryPolicy | None = None
    priority: int = -1
    timeout_ms: int = -1
    timetable: Timetable | None = None
    first_ms: int = 0
    delay_ms: int = -1
    requires: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    expires_ms: int = -1
    expires_after_ms: int = -1


class UpdateJob(Operation, frozen=True, tag=17):
    """Change a job's definition, if it still is at `version` (0: at any). Verdict: `Changed`.

    Executions that were leased before keep the definition that they began with.
    """

    job: int
    version: int
    change: Change


class PutJob(Operation, frozen=True, tag=18):
    """Give the recurring job of this name this definition, or create it. Verdict: `Changed`.

    A job that has ended has no name any more. Queue, partition key and concurrency key can not
    change. With `only_new` one that is there stays as it is.
    """

    name: str
    job: NewJob
    only_new: bool = False


class ParkTimetables(Operation, frozen=True, tag=19):
    """Stop timetables that fail: (job, version, why). Verdict: list of bool (parked or not).

    Each stands still, visibly, until it is resumed or edited; the others go on.
    """

    items: Sequence[tuple[int, int, str]]


class PurgeDead(Operation, frozen=True, tag=20):
    """Forget dead executions, given as for `Replay`. Verdict: list of `Verdict`."""

    executions: Sequence[tuple[int, int, int]]


class ReportProgress(Operation, frozen=True, tag=21):
    """How far holders have come: (job, nominal_ms, token, a value in MessagePack), the latest of
    each. Verdict: list of `Verdict`.

    The leader's own, from heartbeats, at a bounded rate. It counts while the lease holds.
    """

    items: Sequence[tuple[int, int, int, bytes]]


class ConfigureQueue(Operation, frozen=True, tag=22):
    """Change a queue's settings, if at `version` (-1: any). Verdict: `QueueConfigured`."""

    queue: str
    version: int
    change: QueueChange


class SkipExpired(Operation, frozen=True, tag=23):
    """Skip executions (job, nominal_ms) that expired before an attempt. Verdict: list of `Verdict`.

    Only those that still are scheduled, and have expired by log-time.
    """

    executions: Sequence[tuple[int, int]]


QUIET, TERMINATE = INSTRUCTIONS = ("quiet", "terminate")
"""What a worker can be told: to claim no more and finish what it has; and then to end."""


class InstructWorker(Operation, frozen=True, tag=24):
    """Tell the worker of this name one of `INSTRUCTIONS`, or, by "", none any more. Verdict:
    `ChangeStatus`."""

    worker: str
    instruction: str = ""


AnyOperation = (
    CreateJobs
    | CancelJobs
    | Claim
    | Start
    | Succeed
    | Fail
    | Release
    | Expire
    | AdvanceTimetables
    | Replay
    | Lead
    | RaiseLevel
    | PauseJob
    | ResumeJob
    | TriggerJob
    | BackfillJob
    | UpdateJob
    | PutJob
    | ParkTimetables
    | PurgeDead
    | ReportProgress
    | ConfigureQueue
    | SkipExpired
    | InstructWorker
)


BEGINNING = (CreateJobs, PutJob, TriggerJob, BackfillJob)
"""What begins new work at the wish of a client. Everything else brings work on, or to its end."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One log entry: the leader's log-time (epoch ms) and its operations."""

    log_time_ms: int
    operations: list[AnyOperation]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode_entry(log_time_ms: int, operations: Sequence[AnyOperation]) -> bytes:
    """Encode one entry. The result is what the journal holds and every node applies."""
    return _encoder.encode((log_time_ms, operations))


def decode_entry(entry: bytes) -> Entry:
    """Decode one entry; raises `msgspec.DecodeError` for an unknown or damaged operation."""
    return _decoder.decode(entry)

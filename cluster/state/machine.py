"""The replicated state machine: one committed entry in, verdicts out.

Pure and deterministic: no clock, no random number, no input or output. Every node that
applies the same entries holds the same state, byte for byte (`digest`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timeball.cluster.state import (
    budget,
    changes,
    deadletters,
    instructions,
    jobs,
    leases,
    limits,
    listing,
    queues,
    restore,
    skips,
    snapshot,
    timetables,
)
from timeball.cluster.state.happenings import NOTHING, Happenings
from timeball.cluster.state.keys import Key
from timeball.cluster.state.levels import SUPPORTED_LEVEL, level_of
from timeball.cluster.state.operations import (
    NUMBERED_PER_ENTRY,
    AdvanceTimetables,
    AnyOperation,
    BackfillJob,
    CancelJobs,
    Claim,
    ClusterSettings,
    ConfigureQueue,
    CreateJobs,
    Entry,
    Expire,
    Fail,
    InstructWorker,
    Lead,
    ParkTimetables,
    PauseJob,
    PurgeDead,
    PutJob,
    RaiseLevel,
    Release,
    Replay,
    ReportProgress,
    ResumeJob,
    SkipExpired,
    Start,
    Succeed,
    TriggerJob,
    UpdateJob,
    decode_entry,
    encode_entry,
)
from timeball.cluster.state.records import (
    ConfiguredQueue,
    Counters,
    Execution,
    ExecutionState,
    Job,
    JobState,
    QueueCounts,
)
from timeball.cluster.state.retention import trim
from timeball.cluster.state.store import Store
from timeball.wheel import TimeBuckets

_ENCODED_KEPT = 8
"""Entries that were encoded here and are not applied: more than a leader has in flight."""


@dataclass
class Applied:
    """What applying one entry did.

    `halt` is None, or why this node must stop: it could not apply the entry as the others
    do. `verdicts` holds one answer per operation, in order. `touched` holds the records
    whose timers are to be derived again: executions that were scheduled, leased or ended,
    jobs whose timetable moved or ended. A record may be in it more than once; its state
    is the one after the whole entry. `queues` are those whose settings changed, `workers`
    those that were told something.
    """

    halt: str | None
    verdicts: list[object]
    touched: list[Execution | Job]
    queues: Sequence[str] = ()
    happened: Happenings = NOTHING
    """What the entry did, one by one and in order (see `happenings`)."""
    previous: int = 0
    """The index of the entry that was applied before; others in between carried nothing."""
    workers: Sequence[str] = ()


def _lead(store: Store, operation: Lead) -> str | None:
    settings = operation.settings
    for name in ClusterSettings.__struct_fields__:
        if not 0 <= getattr(settings, name) <= limits.MAX_SETTING:
            return f"{name} must be between 0 and {limits.MAX_SETTING}; the settings stay"
    store.settings = settings
    return None


def _raise_level(store: Store, operation: RaiseLevel) -> bool:
    if store.level != operation.current or operation.level <= store.level:
        return False
    store.level = operation.level
    return True


_RULES: dict[type, Callable[[Store, Any], object]] = {
    CreateJobs: jobs.create_jobs,
    CancelJobs: jobs.cancel_jobs,
    Claim: leases.claim,
    Start: leases.start,
    ReportProgress: leases.report_progress,
    Succeed: leases.succeed,
    Fail: leases.fail,
    Release: leases.release,
    Expire: leases.expire,
    AdvanceTimetables: timetables.advance_timetables,
    Replay: deadletters.replay,
    Lead: _lead,
    RaiseLevel: _raise_level,
    PauseJob: timetables.pause_job,
    ResumeJob: timetables.resume_job,
    TriggerJob: timetables.trigger_job,
    BackfillJob: timetables.backfill_job,
    UpdateJob: changes.update_job,
    PutJob: changes.put_job,
    ParkTimetables: timetables.park_timetables,
    PurgeDead: deadletters.purge_dead,
    ConfigureQueue: queues.configure_queue,
    SkipExpired: skips.skip_expired,
    InstructWorker: instructions.instruct_worker,
}


class StateMachine:
    """The state of the cluster, changed by `apply` and `load` alone.

    The collections that it shows (`pending`, `leased`, …) are read-only to everyone else,
    and are others after `load`: fetch them anew each time.
    """

    def __init__(self, supported_level: int = SUPPORTED_LEVEL) -> None:
        """An empty state, before the first entry of the log (index 1 or higher).

        `supported_level` is the highest feature level that it may come to.
        """
        self._store = Store()
        self.supported_level = supported_level
        self.halted: str | None = None
        """Why no further entry is applied; None while all is well."""
        self._encoded: deque[tuple[bytes, Entry]] = deque(maxlen=_ENCODED_KEPT)

    def encode(self, log_time_ms: int, operations: Sequence[AnyOperation]) -> bytes:
        """Encode an entry that is to be proposed here (see `operations.encode_entry`).

        If these very bytes are to be applied soon, they need not be decoded: what they mean is
        known. The operations must not change any more.
        """
        entry = encode_entry(log_time_ms, operations)
        self._encoded.append((entry, Entry(log_time_ms, list(operations))))
        return entry

    def _decode(self, entry: bytes) -> Entry:
        encoded = self._encoded
        while encoded:  # what was encoded before this one is not to come any more
            known, meaning = encoded.popleft()
            if known is entry:
                return meaning
        return decode_entry(entry)

    def apply(self, index: int, entry: bytes) -> Applied:
        """Apply the committed entry at `index`; never raises.

        Indexes rise, with gaps where consensus wrote entries of its own (a new leader's
        barrier), which carry nothing for the state. Whatever keeps this node from applying
        the entry as the others do (an operation it does not know, a repeat, a defect) halts
        it for good: a state that may differ must not go on.
        """
        if self.halted is None:
            # The only broad catch: an unforeseen error becomes the answer, and a full stop.
            try:
                self.halted = self._obstacle(index)
                if self.halted is None:
                    return self._apply(index, self._decode(entry))
            except Exception as error:  # noqa: BLE001
                self.halted = f"entry {index}: {type(error).__name__}: {error}"
        return Applied(self.halted, [], [])

    def _obstacle(self, index: int) -> str | None:
        previous = self._store.applied_index
        if index <= previous:
            return f"entry {index} does not follow entry {previous}"
        return None

    def _apply(self, index: int, entry: Entry) -> Applied:
        store = self._store
        self.halted = _beyond_limits(index, entry) or _beyond_level(
            index, entry, store.level, self.supported_level
        )
        if self.halted is not None:
            return Applied(self.halted, [], [])
        previous = store.applied_index
        store.begin_entry(index, entry.log_time_ms)
        verdicts = [_RULES[type(operation)](store, operation) for operation in entry.operations]
        trim(store)
        return Applied(
            None,
            verdicts,
            store.touched,
            store.reconfigured,
            store.happened,
            previous,
            store.instructed,
        )

    @property
    def settings(self) -> ClusterSettings:
        """The cluster's settings, as the latest leader gave them."""
        return self._store.settings

    @property
    def level(self) -> int:
        """The feature level at which the cluster stands."""
        return self._store.level

    @property
    def log_time_ms(self) -> int:
        """The log-time of the latest entry, epoch milliseconds."""
        return self._store.log_time_ms

    @property
    def applied_index(self) -> int:
        """The index of the latest entry applied; 0 before the first."""
        return self._store.applied_index

    @property
    def counters(self) -> Counters:
        """Totals since the start of the log."""
        return self._store.counters

    @property
    def queues(self) -> Mapping[str, QueueCounts]:
        """What each queue holds, by name."""
        return self._store.queues

    @property
    def configured(self) -> Mapping[str, ConfiguredQueue]:
        """The queues whose settings are not the default, by name; with or without jobs."""
        return self._store.configured

    @property
    def instructions(self) -> Mapping[str, tuple[str, int]]:
        """What workers are told (`operations.INSTRUCTIONS`) and since when, by name."""
        return self._store.instructions

    @property
    def pending(self) -> TimeBuckets[Execution]:
        """Every scheduled execution by its due time."""
        return self._store.pending

    @property
    def timetables(self) -> TimeBuckets[Job]:
        """Every job whose timetable goes on, by when its planned occurrence is due."""
        return self._store.timetables

    @property
    def leased(self) -> Mapping[int, Execution]:
        """Every leased or running execution by its token, in the order of the grants."""
        return self._store.leased

    def job(self, job_id: int) -> Job | None:
        """The job of this id; None if there never was one, or it has been trimmed."""
        return self._store.jobs.get(job_id)

    def named(self, name: str) -> Job | None:
        """The recurring job of this name, until its timetable ends."""
        return self._store.names.get(name)

    @property
    def paused_timetables(self) -> int:
        """How many timetables are paused."""
        return self._store.paused

    @property
    def parked_timetables(self) -> int:
        """How many timetables stand still because they failed."""
        return self._store.parked

    def catch_up_room(self, now_ms: int) -> int:
        """How many runs of the past the cluster's budget has room for."""
        return budget.room(self._store, now_ms)

    def execution(self, job_id: int, nominal_ms: int) -> Execution | None:
        """The execution of this identity; None if there never was one, or it was trimmed."""
        return self._store.execution(job_id, nominal_ms)

    def executions_of(self, job: Job) -> Sequence[Execution]:
        """The kept executions of a job by nominal time."""
        return self._store.executions_of(job)

    def key_of(self, job: Job) -> Key | None:
        """The idempotency key by which a job is known; None if it has none that still holds."""
        return self._store.keys.of_job(job, self._store.log_time_ms)

    @property
    def windowed_keys(self) -> int:
        """How many idempotency keys with a window are in memory."""
        return self._store.keys.windowed

    @property
    def held_keys(self) -> int:
        """How many idempotency keys hold until their jobs have ended."""
        return self._store.keys.held

    def remembered_claim(self, request_id: str) -> Sequence[tuple[int, int, int]] | None:
        """What the claim of this request id still holds, as (job, nominal_ms, token).

        None if no such claim is remembered; empty if all that it got has ended since.
        """
        return leases.remembered_claim(self._store, request_id)

    def list_jobs(
        self,
        *,
        after: int | None = None,
        limit: int = 100,
        queue: str | None = None,
        state: JobState | None = None,
        tag: str | None = None,
        created: listing.Span = listing.ALWAYS,
    ) -> listing.Page[Job, int]:
        """Jobs, newest first, beyond the cursor `after`."""
        return listing.list_jobs(self._store, after, limit, queue, state, tag, created)

    def list_executions(
        self,
        *,
        after: tuple[int, int] | None = None,
        limit: int = 100,
        queue: str | None = None,
        state: ExecutionState | None = None,
        tag: str | None = None,
        due: listing.Span = listing.ALWAYS,
    ) -> listing.Page[Execution, tuple[int, int]]:
        """Executions, those of the newest jobs first, then by falling nominal time."""
        return listing.list_executions(self._store, after, limit, queue, state, tag, due)

    def list_dead(
        self,
        *,
        after: tuple[int, int] | None = None,
        limit: int = 100,
        wanted: listing.DeadFilter = listing.ALL_DEAD,
    ) -> listing.Page[Execution, tuple[int, int]]:
        """Dead executions, the latest dead first."""
        return listing.list_dead(self._store, after, limit, wanted)

    def dump(self) -> snapshot.Dump:
        """The whole state of now as a stream of chunks; entries may be applied meanwhile.

        There is one at a time: it ends when it is read to its end, or closed.
        """
        assert self._store.dump is None, "one dump at a time"
        self._store.dump = dump = snapshot.Dump(self._store)
        return dump

    def load(self, chunks: Iterable[bytes]) -> None:
        """Become the state of a dump. Raises `ValueError`, unchanged, if it is not sound.

        Raises `restore.LevelTooHigh` if this release does not support its feature level.
        """
        loading = self.loading()
        for chunk in chunks:
            loading.add(chunk)
        for _ in loading.finish():
            pass

    def loading(self) -> Loading:
        """Begin to load a dump, while this state goes on."""
        return Loading(self._become, self.supported_level)

    def _become(self, store: Store) -> Store:
        """Hold another state; the one before is returned."""
        self._store, previous = store, self._store
        self.halted = None
        return previous

    def digest(self) -> str:
        """BLAKE2b of the dump in hex: equal on nodes that hold the same state."""
        return snapshot.digest(self._store)


class Loading:
    """A dump that is being loaded, a chunk at a time."""

    def __init__(self, become: Callable[[Store], Store], supported_level: int) -> None:
        self._become = become
        self._loader = restore.Loader(supported_level)

    def add(self, chunk: bytes) -> None:
        """Take the next chunk. Raises `ValueError` if it is not sound, and
        `restore.LevelTooHigh` if this release does not support its feature level."""
        self._loader.add(chunk)

    def finish(self) -> Iterator[None]:
        """Become the state of the dump. Raises `ValueError`, unchanged, if it is not whole.

        What remains to be done, to let go of the state before, is to iterate over the answer.
        """
        return restore.dismantle(self._become(self._loader.store()))


def _beyond_level(index: int, entry: Entry, level: int, supported: int) -> str | None:
    """Why an entry must not be applied at this feature level, or not by this release.

    An operation above the level is a defect of its proposer. Releases that know it could
    apply it, older ones could not: so all stop alike.
    """
    for operation in entry.operations:
        needed = level_of(operation)
        if needed > level:
            return (
                f"entry {index}: {type(operation).__name__} needs feature level {needed}; the"
                f" cluster is at level {level}, and this release supports level {supported}"
            )
        if (
            isinstance(operation, RaiseLevel)
            and operation.current == level
            and operation.level > supported
        ):
            return (
                f"entry {index} raises the cluster to feature level {operation.level}; this"
                f" release supports level {supported}: run one here that supports"
                f" level {operation.level}"
            )
    return None


def _beyond_limits(index: int, entry: Entry) -> str | None:
    """Why an entry must not be applied at all, although each operation is known."""
    if entry.log_time_ms > limits.MAX_TIME_MS:
        return f"entry {index}: log-time {entry.log_time_ms} is beyond the year 9999"
    created = claimed = 0
    for operation in entry.operations:
        if isinstance(operation, CreateJobs):
            created += len(operation.jobs)
        elif isinstance(operation, Claim):
            claimed += len(operation.executions)
    if max(created, claimed) > NUMBERED_PER_ENTRY:
        return (
            f"entry {index} numbers {created} jobs and {claimed} leases;"
            f" an entry may number {NUMBERED_PER_ENTRY} of a kind"
        )
    return None

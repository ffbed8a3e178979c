"""A store from its dump, checked against what the rules of the state guarantee."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final, NoReturn

import msgspec
from mypy_extensions import mypyc_attr

from timeball.cluster.state import limits
from timeball.cluster.state.dumped import (
    CONFIGURED,
    DEAD,
    END,
    ENDED_JOB,
    EXECUTIONS,
    FINISHED,
    HEADER,
    INSTRUCTED,
    JOBS,
    KEYS,
    MAGIC,
    QUEUES,
    RECORDS,
    REQUESTS,
    VERSION,
    AttemptRecord,
    ClaimRecord,
    ConfiguredRecord,
    ExecutionRecord,
    Header,
    HeldKey,
    InstructedRecord,
    JobRecord,
    KeyRecord,
    QueueTotals,
    RequestRecord,
    decode_frame,
)
from timeball.cluster.state.instructions import is_sound_instruction
from timeball.cluster.state.jobs import shared_policy
from timeball.cluster.state.keys import UNTIL_ENDED, Key, key_name, window_class
from timeball.cluster.state.levels import FIRST_LEVEL
from timeball.cluster.state.memory import Granted, Memory, Request
from timeball.cluster.state.operations import NUMBERED_PER_ENTRY, RetryPolicy
from timeball.cluster.state.queue_settings import (
    DEFAULT_QUEUE_SETTINGS,
)
from timeball.cluster.state.queues import is_soundly_charged
from timeball.cluster.state.records import (
    Attempt,
    ConfiguredQueue,
    Counters,
    Execution,
    ExecutionState,
    Job,
    JobState,
    Outcome,
    QueueCounts,
    Recurrence,
)
from timeball.cluster.state.sizes import kept_bytes
from timeball.cluster.state.soundness import is_sound_options, is_sound_queue
from timeball.cluster.state.store import NO_EXECUTIONS, EndedJob, Store, count_key, is_idle
from timeball.cluster.state.transitions import TERMINAL
from timeball.cluster.state.usual import NO_OPTIONS

_TEXTS_SHARED: Final = 10_000
_DISMANTLED_AT_ONCE: Final = 500
_HELD: Final = (ExecutionState.LEASED, ExecutionState.RUNNING)
# Names of the module, since reading a member off its class takes ten times as long.
_SCHEDULED: Final = ExecutionState.SCHEDULED
_ACTIVE: Final = JobState.ACTIVE


@mypyc_attr(native_class=False)
class LevelTooHigh(NotImplementedError):
    """A dump is of a feature level that this release does not support; not a damage."""


def _refuse(why: str) -> NoReturn:
    raise ValueError(f"state dump: {why}")


class Loader:
    """Builds a store from chunks in the order in which a dump gives them."""

    def __init__(self, supported_level: int) -> None:
        self._store = Store()
        self._supported_level = supported_level
        self._kind = -1
        self._counts = dict.fromkeys(range(QUEUES, END), 0)
        self._highest_number = 0
        self._last_job = -1
        self._last_key = (0, -1)
        self._texts: dict[str, str] = {}
        self._dead = 0
        self._last_death_ms = 0
        self._last_told_ms = 0
        self._finished = 0
        self._recurring: list[Job] = []
        self._ended_jobs = 0

    def add(self, chunk: bytes) -> None:
        """Take the next chunk. Raises `ValueError` if it is damaged, out of place or not sound,
        and `LevelTooHigh` if the dump is for a newer release."""
        try:
            self._chunk(chunk)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"state dump: {error}") from error

    def _chunk(self, data: bytes) -> None:
        kind, raw = decode_frame(data)
        if kind not in RECORDS:
            _refuse(f"unknown kind of chunk {kind}")
        # Jobs and executions come in turns, and each execution after its job.
        went_back = kind < self._kind and (kind, self._kind) != (JOBS, EXECUTIONS)
        if went_back or (kind in (HEADER, END) and kind == self._kind):
            _refuse(f"chunk of kind {kind} is out of place")
        if (kind == HEADER) is not (self._kind == -1):
            _refuse("the header must come first, and once")
        self._kind = kind
        content = RECORDS[kind].decode(raw)
        if kind == HEADER:
            self._header(content)
        elif kind == END:
            if content != list(self._counts.values()):
                _refuse(f"records are missing: {self._counts} of {content}")
        else:
            self._counts[kind] += len(content)
            self._section(kind, content)

    def _section(self, kind: int, content: list[Any]) -> None:
        store = self._store
        if kind == QUEUES:
            for totals in content:
                self._queue(totals)
        elif kind == CONFIGURED:
            for configured in content:
                self._configured(configured)
        elif kind == INSTRUCTED:
            for instructed in content:
                self._instructed(instructed)
        elif kind == JOBS:
            for record in content:
                self._job(record)
        elif kind == EXECUTIONS:
            for record in content:
                self._occurrence(record)
        elif kind == FINISHED:
            for place in content:
                self._finished_place(place)
        elif kind == DEAD:
            for place in content:
                self._dead_place(place)
        elif kind == KEYS:
            for key in content:
                self._key(key)
        elif kind == REQUESTS:
            for request in content:
                self._past(request.since_ms)
                store.requests.add(_request(request))
        else:
            for claim in content:
                self._past(claim.since_ms)
                store.claims.add(_granted(claim))

    def store(self) -> Store:
        """The store, once all chunks are there. Raises `ValueError` if it is not whole or sound."""
        store = self._store
        if self._kind != END:
            _refuse("the end is missing")
        if self._finished != len(store.finished) or self._dead != len(store.dead):
            _refuse("ended executions and the order of retention do not agree")
        if not all(counts.jobs for counts in store.queues.values()):
            _refuse("a queue without jobs")
        for job in self._recurring:
            self._check_whole(job)
            self._ended_jobs -= not job.executions and job.timetable_ended
        if self._ended_jobs:
            _refuse("ended jobs and the order of retention do not agree")
        store.leased = dict(sorted(store.leased.items()))
        return store

    def _check_whole(self, job: Job) -> None:
        recurrence = job.recurrence
        assert recurrence is not None
        if job.state is _ACTIVE and recurrence.ended and not recurrence.live:
            self._refuse_idle(job)
        kept = job.executions
        assert isinstance(kept, dict)
        if not (recurrence.asked.keys() <= kept.keys() and recurrence.begun.keys() <= kept.keys()):
            _refuse(f"job {job.id} tells of executions that it does not hold")
        self._hold_key(job)

    def _refuse_idle(self, job: Job) -> NoReturn:
        _refuse(f"job {job.id} is active, and nothing is to come")

    def _header(self, header: Header) -> None:
        if header.magic != MAGIC:
            _refuse("not a dump of Timeball's state")
        if header.level > self._supported_level:
            raise LevelTooHigh(
                f"the state is at feature level {header.level}; this release supports level"
                f" {self._supported_level}: run one here that supports level {header.level}"
            )
        if header.version != VERSION:
            _refuse(f"version {header.version} is not {VERSION}")
        if header.applied_index < 0 or not 0 <= header.log_time_ms <= limits.MAX_TIME_MS:
            _refuse("position or log-time is out of range")
        store = self._store
        store.applied_index = header.applied_index
        store.log_time_ms = header.log_time_ms
        if header.level < FIRST_LEVEL:
            _refuse(f"there is no feature level {header.level}")
        store.level = header.level
        store.settings = header.settings
        if len(header.counters) > len(fields(Counters)):
            _refuse("totals that are not known here")
        store.counters = Counters(*header.counters)
        store.catch_up_us = header.catch_up_us
        self._highest_number = (header.applied_index + 1) * NUMBERED_PER_ENTRY - 1

    def _queue(self, totals: QueueTotals) -> None:
        if totals.name in self._store.queues:
            _refuse(f"queue {totals.name!r} comes twice")
        self._store.queues[totals.name] = QueueCounts(
            totals.name,
            total_created=totals.created,
            total_succeeded=totals.succeeded,
            total_dead=totals.dead,
            total_cancelled=totals.cancelled,
            total_skipped=totals.skipped,
        )

    def _configured(self, record: ConfiguredRecord) -> None:
        store = self._store
        configured = ConfiguredQueue(
            record.settings, record.version, record.charged, record.charged_ms
        )
        if (
            record.name in store.configured
            or record.settings == DEFAULT_QUEUE_SETTINGS
            or not is_sound_queue(record.name, record.settings)
            or not 0 < record.version <= store.counters.configured
            or not is_soundly_charged(configured, store.log_time_ms)
        ):
            _refuse(f"the settings of queue {record.name!r} are not sound")
        store.configured[record.name] = configured

    def _instructed(self, record: InstructedRecord) -> None:
        store = self._store
        if (
            record.worker in store.instructions
            or not is_sound_instruction(record.worker, record.instruction)
            or not self._last_told_ms <= record.since_ms <= store.log_time_ms
            or len(store.instructions) >= limits.MAX_INSTRUCTIONS
        ):
            _refuse(f"what worker {record.worker!r} is told is not sound")
        self._last_told_ms = record.since_ms
        store.instructions[record.worker] = (record.instruction, record.since_ms)

    def _job(self, record: JobRecord) -> None:
        recurrence, execution = record.recurrence, record.execution
        if not self._last_job < record.id <= self._highest_number:
            _refuse(f"job id {record.id} does not rise within the log")
        if record.queue not in self._store.queues:
            _refuse(f"job {record.id} is of no known queue")
        if (recurrence is None) is (execution is None):
            _refuse(f"job {record.id} is neither one-shot nor recurring")
        if recurrence is not None:
            self._check_time(recurrence.planned_ms)
            if recurrence.name and recurrence.name in self._store.names:
                _refuse(f"the name {recurrence.name!r} comes twice")
            if not recurrence.ended and record.state is not JobState.ACTIVE:
                _refuse(f"job {record.id} has ended, and its timetable has not")
        self._check_time(record.created_ms)
        if record.options is not None and not is_sound_options(record.options):
            _refuse(f"job {record.id} has no sound options")
        if record.version < 1:
            _refuse(f"job {record.id} has no version {record.version}")
        self._last_job = record.id
        job = Job(
            record.id,
            record.queue,
            record.payload,
            record.created_ms,
            self._policy(record),
            record.priority,
            self._share(record.partition_key),
            record.timeout_ms,
            record.idempotency_key,
            NO_EXECUTIONS if recurrence is None else {},
            None if recurrence is None else Recurrence(**msgspec.structs.asdict(recurrence)),
            record.options or NO_OPTIONS,
        )
        job.state = record.state
        job.version = record.version
        self._store.add_job(job)
        if record.held_key is not None:
            self._keep_key(job, record.held_key)
        if execution is not None:
            if execution.job != job.id:
                _refuse(f"job {job.id} holds an execution that is not its own")
            job.executions = occurrence = self._execution(job, execution)
            if job.state is _ACTIVE and occurrence.state in TERMINAL:
                self._refuse_idle(job)
            self._hold_key(job)
        else:
            self._recurring.append(job)

    def _policy(self, record: JobRecord) -> RetryPolicy:
        """The policy that a job shares with the others that have it."""
        policy = shared_policy(self._store, record.retry)
        if policy is None:
            _refuse(f"job {record.id} has no sound retry policy")
        return policy

    def _occurrence(self, record: ExecutionRecord) -> None:
        job = self._store.jobs.get(record.job)
        if job is None or not isinstance(job.executions, dict) or job.recurrence is None:
            _refuse(f"execution {record.job}-{record.nominal_ms} is of no recurring job")
        latest = next(reversed(job.executions), -1)
        if record.nominal_ms <= latest:
            _refuse(f"execution {record.job}-{record.nominal_ms} is out of order")
        execution = job.executions[record.nominal_ms] = self._execution(job, record)
        if execution.state not in TERMINAL:
            job.recurrence.live[record.nominal_ms] = execution

    def _execution(self, job: Job, record: ExecutionRecord) -> Execution:
        self._check_execution(record)
        execution = Execution(job, record.nominal_ms, record.due_ms, record.sequence, record.state)
        execution.attempts_used = record.attempts_used
        execution.cancel_requested = record.cancel_requested
        execution.finished_ms = record.finished_ms
        execution.reason = self._share(record.reason)
        execution.result = record.result
        execution.tries = self._tries(record.attempts)
        self._index(execution)
        return execution

    def _tries(self, records: list[AttemptRecord] | None) -> Attempt | tuple[Attempt, ...] | None:
        """Attempts as an execution holds them."""
        if records is None:
            return None
        attempts = tuple([self._attempt(record) for record in records])
        return attempts[0] if len(attempts) == 1 else attempts

    def _attempt(self, record: AttemptRecord) -> Attempt:
        worker = self._share(record.worker)
        attempt = Attempt(record.token, worker, record.lease_ms, record.claimed_ms, record.number)
        attempt.started_ms = record.started_ms
        attempt.finished_ms = record.finished_ms
        attempt.outcome = record.outcome
        attempt.error = record.error
        attempt.progress = record.progress
        return attempt

    def _check_execution(self, record: ExecutionRecord) -> None:
        self._check_time(record.nominal_ms)
        self._check_time(record.due_ms)
        self._check_time(record.finished_ms)
        if not 0 < record.sequence <= self._highest_number:
            _refuse(f"execution {record.job}-{record.nominal_ms} was never created")
        attempts = record.attempts
        if attempts is None:
            sound = record.token == 0 and record.state not in _HELD
        else:
            sound = (
                0 < len(attempts) <= limits.ATTEMPTS_KEPT
                and attempts[-1].token == record.token <= self._highest_number
                and (attempts[-1].outcome is Outcome.OPEN) is (record.state in _HELD)
                and all(len(one.progress) <= limits.MAX_PROGRESS_BYTES for one in attempts)
            )
        if not sound or (record.state in TERMINAL) is not (record.finished_ms > 0):
            name = f"{record.job}-{record.nominal_ms}"
            _refuse(f"state, token and attempts of execution {name} do not agree")

    def _index(self, execution: Execution) -> None:
        store = self._store
        counts = store.queues[execution.job.queue]
        state = execution.state
        if state is _SCHEDULED:
            store.pending.add(execution.due_ms, execution)
            counts.scheduled += 1
        elif state in _HELD:
            if execution.token in store.leased:
                _refuse(f"token {execution.token} is held twice")
            store.leased[execution.token] = execution
            counts.leased += 1
            count_key(counts, execution.job, 1)
        elif state is ExecutionState.DEAD:
            self._dead += 1
            counts.dead += 1
        else:
            self._finished += 1
            if state is ExecutionState.SUCCEEDED:
                counts.succeeded += 1
            elif state is ExecutionState.SKIPPED:
                counts.skipped += 1
            else:
                counts.cancelled += 1

    def _finished_place(self, place: tuple[int, int, int]) -> None:
        job_id, nominal_ms, finished_ms = place
        store = self._store
        previous = store.finished.newest.finished_ms if store.finished else 0
        ended: Execution | EndedJob | None
        if nominal_ms == ENDED_JOB:
            job = store.jobs.get(job_id)
            ended = None if job is None or job.executions else EndedJob(job, finished_ms)
            self._finished += 1
            self._ended_jobs += 1
        else:
            ended = store.execution(job_id, nominal_ms)
            if ended is not None and (
                ended.state not in TERMINAL or ended.state is ExecutionState.DEAD
            ):
                ended = None
        if ended is None or ended.finished_ms != finished_ms or finished_ms < previous:
            _refuse(f"retention holds {job_id}-{nominal_ms}, which has not ended so")
        store.finished.append(ended)
        store.finished_bytes += kept_bytes(ended.job if isinstance(ended, EndedJob) else ended)

    def _dead_place(self, place: tuple[int, int]) -> None:
        store = self._store
        execution = store.execution(*place)
        if execution is None or execution.state is not ExecutionState.DEAD:
            _refuse(f"retention holds {place[0]}-{place[1]}, which is not dead")
        if execution in store.dead or execution.finished_ms < self._last_death_ms:
            _refuse(f"retention holds {place[0]}-{place[1]} out of order")
        self._last_death_ms = execution.finished_ms
        store.dead[execution] = None
        store.dead_bytes += kept_bytes(execution)

    def _keep_key(self, job: Job, held: HeldKey) -> None:
        """Remember the key that a job holds until it has ended."""
        if not job.idempotency_key:
            _refuse(f"job {job.id} holds no key")
        self._check_time(held.nominal_ms)
        name = key_name(job.idempotency_key, job.queue, within_queue=held.within_queue)
        self._store.keys.keep(
            Key(name, job.created_ms, held.fingerprint, job.id, held.nominal_ms, UNTIL_ENDED)
        )

    def _hold_key(self, job: Job) -> None:
        """Let a job that has not ended hold its key."""
        keys = self._store.keys
        record = keys.kept(job.id) if job.idempotency_key else None
        if record is not None and (job.state is _ACTIVE or not is_idle(job)):
            known = keys.find(record.name, self._store.log_time_ms)
            if known is not None and known.window_ms == UNTIL_ENDED:
                _refuse(f"the key of job {job.id} is held twice")
            keys.hold(record)

    def _key(self, record: KeyRecord) -> None:
        place = window_class(record.window_ms), record.job
        if not 0 < record.window_ms <= limits.MAX_SETTING or place <= self._last_key:
            _refuse("an idempotency key is out of order")
        self._past(record.since_ms)
        self._last_key = place
        name, since_ms, fingerprint, job_id, nominal_ms, window_ms = msgspec.structs.astuple(record)
        job = self._store.jobs.get(job_id)
        if job is not None:
            # Hold the same text as the job where they are equal, as after a create.
            within_queue = isinstance(name, tuple)
            of_job = key_name(job.idempotency_key, job.queue, within_queue=within_queue)
            name = of_job if name == of_job else name
        self._store.keys.add(Key(name, since_ms, fingerprint, job_id, nominal_ms, window_ms))

    def _past(self, since_ms: int) -> None:
        if since_ms > self._store.log_time_ms:
            _refuse("something is remembered from the future")

    def _share(self, text: str) -> str:
        if len(self._texts) >= _TEXTS_SHARED:
            self._texts.clear()
        return self._texts.setdefault(text, text)

    def _check_time(self, time_ms: int) -> None:
        if not 0 <= time_ms <= limits.MAX_TIME_MS:
            _refuse("a time is out of range")


def _request(record: RequestRecord) -> Request:
    try:
        return Request(record.key, record.since_ms, record.answer, record.of_trigger)
    except ValueError:
        _refuse(f"the answer to request {record.key!r} is none")


def _granted(record: ClaimRecord) -> Granted:
    try:
        return Granted(record.key, record.since_ms, record.tokens)
    except ValueError:
        _refuse(f"claim {record.key!r} was granted what is no token")


def dismantle(store: Store) -> Iterator[None]:
    """Take apart a store that nobody reads any more, a little at each step.

    To let go of it in one go would take long; and jobs and their executions refer to each
    other, unseen by the collector.
    """
    number = 0
    for shard in store.jobs.shards():
        for entry in store.jobs.entries_of(shard):
            for job in store.jobs.jobs_of(entry):
                for execution in store.executions_of(job):
                    store.pending.discard(execution.due_ms, execution)
                job.executions = NO_EXECUTIONS
                if job.recurrence is not None:
                    job.recurrence.live.clear()
                if job.idempotency_key:
                    store.keys.release(job.id)
                    store.keys.drop(job.id)
                store.jobs.remove(job)
                number += 1
                if number % _DISMANTLED_AT_ONCE == 0:
                    yield
    yield
    while store.keys.windowed:
        store.keys.trim(0, 0, _DISMANTLED_AT_ONCE)
        yield
    memories: tuple[Memory[Any], ...] = (store.requests, store.claims)
    for memory in memories:
        while len(memory):
            memory.trim(0, 0, -1, _DISMANTLED_AT_ONCE)
            yield

"""The state as a stream of bytes, as of one position of the log, while the state goes on.

A dump is a header, chunks of records and an end that counts them, each a MessagePack
``[kind, …]``. It holds everything that later behaviour depends on, in an order that is
the same on every node, so equal states dump to equal bytes. Indexes are not in it:
`restore` derives them anew.

The jobs are read in the order of their ids, a bounded number for each chunk, and entries
may be applied between two chunks. So whoever is about to change a job or an execution
says so first, and the dump keeps its record as it was, unless it is in the stream
already or is younger than the dump. The other collections are held as they were when the
dump began, at a cost that does not follow the number of jobs.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import astuple
from operator import attrgetter
from struct import Struct as Layout
from typing import Any, Final

import msgspec

from timeball.cluster.state.dumped import (
    CLAIMS,
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
    REQUESTS,
    VERSION,
    Header,
    RecurrenceRecord,
)
from timeball.cluster.state.keys import Key, Keys
from timeball.cluster.state.operations import NUMBERED_PER_ENTRY
from timeball.cluster.state.records import (
    Attempt,
    Execution,
    Job,
)
from timeball.cluster.state.store import NO_EXECUTIONS, EndedJob, Store
from timeball.cluster.state.usual import DEFAULT_POLICY, NO_OPTIONS

RECORDS_PER_CHUNK = 250
BYTES_PER_CHUNK = 262_144
"""A chunk ends with the record that reaches either; a node pauses for one chunk at a time."""
_encode = msgspec.msgpack.Encoder().encode
_CHUNK_HEAD: Final = Layout(">BBBI")
_PAIR, _ARRAY_32 = 0x92, 0xDD
"""MessagePack's marks of an array of two, and of one whose length follows in four bytes."""


def _attempt_fields(attempt: Attempt) -> tuple[Any, ...]:
    return (
        attempt.token,
        attempt.worker,
        attempt.lease_ms,
        attempt.claimed_ms,
        attempt.started_ms,
        attempt.finished_ms,
        attempt.outcome,
        attempt.error,
        attempt.number,
        attempt.progress,
    )


def _execution_fields(execution: Execution) -> tuple[Any, ...]:
    return (
        execution.job.id,
        execution.nominal_ms,
        execution.due_ms,
        execution.sequence,
        execution.state,
        execution.token,
        execution.attempts_used,
        execution.cancel_requested,
        execution.finished_ms,
        execution.reason,
        execution.result,
        [_attempt_fields(one) for one in execution.attempts] or None,
    )


def _execution_record(execution: Execution) -> bytes:
    return _encode(_execution_fields(execution))


_recurrence_fields = attrgetter(*RecurrenceRecord.__struct_fields__)


def _job_record(job: Job, keys: Keys) -> bytes:
    executions = job.executions
    recurrence = job.recurrence
    return _encode(
        (
            job.id,
            job.queue,
            job.payload,
            job.created_ms,
            None if job.retry is DEFAULT_POLICY else job.retry,
            job.priority,
            job.partition_key,
            job.timeout_ms,
            job.idempotency_key,
            job.state,
            job.version,
            None if job.options is NO_OPTIONS else job.options,
            _held_key(keys.kept(job.id)) if job.idempotency_key else None,
            None if recurrence is None else _recurrence_fields(recurrence),
            None if isinstance(executions, dict) else _execution_fields(executions),
        )
    )


def _held_key(record: Key | None) -> tuple[bool, int, int] | None:
    if record is None:
        return None
    return isinstance(record.name, tuple), record.fingerprint, record.nominal_ms


def _key_fields(key: Key) -> tuple[Any, ...]:
    return key.name, key.since_ms, key.fingerprint, key.job, key.nominal_ms, key.window_ms


def _place(ended: Execution | EndedJob) -> tuple[int, int, int]:
    """What never changes of what has ended, even when it is dropped."""
    if isinstance(ended, EndedJob):
        return ended.job.id, ENDED_JOB, ended.finished_ms
    return ended.job.id, ended.nominal_ms, ended.finished_ms


class Dump:
    """The state at the position where the dump began: an iterator of chunks.

    Reads what `store` holds as it goes on: `store.dump` must be this dump while anything
    may change, so that it is told beforehand (see `Store.job_to_change`).
    """

    def __init__(self, store: Store) -> None:
        """Begin at the store's present position."""
        self._store = store
        self._end = (store.applied_index + 1) * NUMBERED_PER_ENTRY
        """Jobs and executions of this position have lower numbers, later ones have not."""
        self._reading = -1
        """The job whose record was the last to be read."""
        self._open = -1
        """The job whose executions are being read, or will be next; -1 when none are."""
        self._jobs: dict[int, dict[int, bytes]] = {}
        """Records of jobs that changed before they were read, by entry and id."""
        self._executions: dict[int, dict[int, bytes]] = {}
        """The same of executions of recurring jobs, by job and nominal time."""
        self._chunks = self._stream()
        self._header = _encode(
            (
                HEADER,
                Header(
                    MAGIC,
                    VERSION,
                    store.applied_index,
                    store.log_time_ms,
                    store.settings,
                    astuple(store.counters),
                    store.level,
                    store.catch_up_us,
                ),
            )
        )
        self._queues = [
            (
                q.name,
                q.total_created,
                q.total_succeeded,
                q.total_dead,
                q.total_cancelled,
                q.total_skipped,
            )
            for q in store.queues.values()
        ]
        self._configured = [
            (name, one.settings, one.version, one.charged, one.charged_ms)
            for name, one in store.configured.items()
        ]
        self._instructed = [(name, *told) for name, told in store.instructions.items()]
        self._shards = store.jobs.shards()
        self._finished = iter(store.finished)
        self._dead = list(store.dead)
        self._keys = iter(store.keys)
        self._requests = iter(store.requests)
        self._claims = iter(store.claims)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next chunk, at the cost of reading its records."""
        try:
            return next(self._chunks)
        except StopIteration:
            self.close()
            raise

    def close(self) -> None:
        """End here; the state need not tell its changes any more."""
        self._chunks.close()
        if self._store.dump is self:
            self._store.dump = None

    # What is about to change.

    def keep_job(self, job: Job) -> None:
        """Keep the record of a job as it is, if it is still to be read."""
        job_id = job.id
        if self._reading < job_id < self._end:
            kept = self._jobs.setdefault(self._store.jobs.entry_of(job_id), {})
            if job_id not in kept:
                kept[job_id] = _job_record(job, self._store.keys)

    def keep_execution(self, execution: Execution) -> None:
        """Keep the record of an execution, and of its job, likewise."""
        job = execution.job
        self.keep_job(job)
        to_come = job.id > self._reading or job.id == self._open
        if to_come and job.recurrence is not None and execution.sequence < self._end:
            kept = self._executions.setdefault(job.id, {})
            if execution.nominal_ms not in kept:
                kept[execution.nominal_ms] = _execution_record(execution)

    # Reading.

    def _stream(self) -> Generator[bytes, None, None]:
        yield self._header
        counts = dict.fromkeys(range(QUEUES, END), 0)
        for batch in _batches(self._sections()):
            for kind, records in batch.items():
                counts[kind] += len(records)
                head = _CHUNK_HEAD.pack(_PAIR, kind, _ARRAY_32, len(records))
                yield head + b"".join(records)
        yield _encode((END, list(counts.values())))

    def _sections(self) -> Iterator[tuple[int, bytes]]:
        """Every record with its kind, in the order of the stream."""
        for totals in self._queues:
            yield QUEUES, _encode(totals)
        for configured in self._configured:
            yield CONFIGURED, _encode(configured)
        for instructed in self._instructed:
            yield INSTRUCTED, _encode(instructed)
        for shard in self._shards:
            for entry in self._store.jobs.entries_of(shard):
                yield from self._created_by(entry)
        for ended in self._finished:
            yield FINISHED, _encode(_place(ended))
        for execution in self._dead:
            yield DEAD, _encode((execution.job.id, execution.nominal_ms))
        for key in self._keys:
            yield KEYS, _encode(_key_fields(key))
        for request in self._requests:
            told = (request.key, request.since_ms, request.answer(), request.of_trigger)
            yield REQUESTS, _encode(told)
        for claim in self._claims:
            yield CLAIMS, _encode((claim.key, claim.since_ms, claim.numbers()))

    def _created_by(self, entry: int) -> Iterator[tuple[int, bytes]]:
        """The jobs that one entry created, each followed by the executions of its timetable."""
        jobs = self._store.jobs
        kept = self._jobs.setdefault(entry, {})
        ids = _merged([job.id for job in jobs.jobs_of(entry)], kept)
        del ids[bisect_left(ids, self._end) :]
        for job_id in ids:
            job = jobs.get(job_id)
            record = kept.get(job_id)
            if record is None:
                assert job is not None, "a job was dropped, and its record not kept"
                record = _job_record(job, self._store.keys)
            self._reading = self._open = job_id
            yield JOBS, record
            executions = NO_EXECUTIONS if job is None else job.executions
            if isinstance(executions, dict):
                yield from self._occurrences(job_id, executions)
            self._open = -1
        del self._jobs[entry]

    def _occurrences(
        self, job_id: int, executions: Mapping[int, Execution]
    ) -> Iterator[tuple[int, bytes]]:
        kept = self._executions.setdefault(job_id, {})
        for nominal_ms in _merged(list(executions), kept):
            record = kept.get(nominal_ms)
            if record is None:
                execution = executions.get(nominal_ms)
                if execution is None or execution.sequence >= self._end:
                    continue  # of a later position
                record = _execution_record(execution)
            yield EXECUTIONS, record
        del self._executions[job_id]


def _merged(numbers: list[int], kept: Mapping[int, bytes]) -> list[int]:
    """The numbers of both, rising as those that are present do."""
    if not kept:
        return numbers
    present = set(numbers)
    gone = sorted(number for number in kept if number not in present)
    # Sorting two runs that rise is merging them.
    return sorted(numbers + gone) if gone else numbers


def _batches(records: Iterable[tuple[int, bytes]]) -> Iterator[dict[int, list[bytes]]]:
    """Records in bounded numbers, by kind; lower kinds, on which higher ones build, first."""
    batch: dict[int, list[bytes]] = {}
    count = size = 0
    for kind, record in records:
        batch.setdefault(kind, []).append(record)
        count += 1
        size += len(record)
        if count >= RECORDS_PER_CHUNK or size >= BYTES_PER_CHUNK:
            yield dict(sorted(batch.items()))
            batch = {}
            count = size = 0
    yield dict(sorted(batch.items()))


def digest(store: Store) -> str:
    """BLAKE2b over a dump that nothing interrupts, in hex."""
    total = hashlib.blake2b(digest_size=32)
    for chunk in Dump(store):
        total.update(chunk)
    return total.hexdigest()

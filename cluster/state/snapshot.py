"""The state as a stream of bytes.

A dump is a header, chunks of records and an end that counts them, each a MessagePack
``[kind, …]``. It holds everything that later behaviour depends on, in an order that is
the same on every node, so equal states dump to equal bytes. Indexes are not in it:
`restore` derives them anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import astuple
from itertools import islice
from typing import Any

import msgspec

from timeball.cluster.state.operations import (
    ClusterSettings,
    Cron,
    Every,
    RetryPolicy,
)
from timeball.cluster.state.records import (
    Attempt,
    Execution,
    ExecutionState,
    Job,
    JobState,
    Recurrence,
)
from timeball.cluster.state.store import EndedJob, Store

MAGIC = "timeball-state"
VERSION = 1
RECORDS_PER_CHUNK = 500
ENDED_JOB = -1
"""Stands for the nominal time where retention holds a job, not an execution."""

HEADER, QUEUES, JOBS, EXECUTIONS, FINISHED, DEAD, KEYS, REQUESTS, CLAIMS, END = range(10)

_encode = msgspec.msgpack.Encoder().encode


class Header(msgspec.Struct, array_like=True, frozen=True):
    """What the stream is, where in the log it stands, and what is no record."""

    magic: str
    version: int
    applied_index: int
    log_time_ms: int
    settings: ClusterSettings
    counters: tuple[int, ...]


class QueueTotals(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A queue and its totals; its present counts follow from the records."""

    name: str
    created: int
    succeeded: int
    dead: int
    cancelled: int


class ExecutionRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An execution as dumped; `_execution_record` writes the same fields in the same order."""

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
    attempts: list[Attempt] | None


class RecurrenceRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How far a recurring job has come, as dumped."""

    timetable: Every | Cron
    planned_ms: int
    coalesced: int
    missed: int
    ended: bool


class JobRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A job as dumped, with the execution of a one-shot job (see `_job_record`)."""

    id: int
    queue: str
    payload: bytes
    created_ms: int
    retry: RetryPolicy
    priority: int
    partition_key: str
    timeout_ms: int
    idempotency_key: str
    state: JobState
    recurrence: RecurrenceRecord | None
    execution: ExecutionRecord | None


def _execution_record(execution: Execution) -> tuple[Any, ...]:
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
        execution.attempts,
    )


def _recurrence_record(recurrence: Recurrence) -> tuple[Any, ...]:
    return (
        recurrence.timetable,
        recurrence.planned_ms,
        recurrence.coalesced,
        recurrence.missed,
        recurrence.ended,
    )


def _job_record(job: Job) -> tuple[Any, ...]:
    executions = job.executions
    recurrence = job.recurrence
    return (
        job.id,
        job.queue,
        job.payload,
        job.created_ms,
        job.retry,
        job.priority,
        job.partition_key,
        job.timeout_ms,
        job.idempotency_key,
        job.state,
        None if recurrence is None else _recurrence_record(recurrence),
        None if isinstance(executions, dict) else _execution_record(executions),
    )


def _sections(store: Store) -> Iterator[tuple[int, Iterator[Any]]]:
    queues = store.queues.values()
    yield (
        QUEUES,
        (
            (q.name, q.total_created, q.total_succeeded, q.total_dead, q.total_cancelled)
            for q in queues
        ),
    )
    yield JOBS, (_job_record(job) for job in store.jobs.oldest_first())
    recurring = (job for job in store.jobs.oldest_first() if job.recurrence is not None)
    yield EXECUTIONS, (_execution_record(e) for job in recurring for e in store.executions_of(job))
    yield (
        FINISHED,
        (
            (ended.job.id, ENDED_JOB, ended.finished_ms)
            if isinstance(ended, EndedJob)
            else (ended.job.id, ended.nominal_ms, ended.finished_ms)
            for ended in store.finished
        ),
    )
    yield DEAD, ((e.job.id, e.nominal_ms, e.finished_ms) for e in store.dead)
    yield KEYS, iter(store.keys)
    yield REQUESTS, iter(store.requests)
    yield CLAIMS, iter(store.claims)


def dump(store: Store) -> Iterator[bytes]:
    """The state as chunks of at most `RECORDS_PER_CHUNK` records; it must not change meanwhile."""
    yield _encode(
        (
            HEADER,
            Header(
                MAGIC,
                VERSION,
                store.applied_index,
                store.log_time_ms,
                store.settings,
                astuple(store.counters),
            ),
        )
    )
    counts = []
    for kind, records in _sections(store):
        count = 0
        while chunk := list(islice(records, RECORDS_PER_CHUNK)):
            count += len(chunk)
            yield _encode((kind, chunk))
        counts.append(count)
    yield _encode((END, counts))


def digest(store: Store) -> str:
    """BLAKE2b over the dump, in hex."""
    total = hashlib.blake2b(digest_size=32)
    for chunk in dump(store):
        total.update(chunk)
    return total.hexdigest()

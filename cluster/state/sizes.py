"""What an operation takes: how many items, and how many bytes of the log (a quick guess, never
too low); and what an ended execution or job takes of the bytes that are kept.

Group commit limits entries and what waits by the former, before anything is encoded; retention
drops records by the latter, which is a part of the replicated rules.
"""

from __future__ import annotations

from timeball.cluster.state.operations import (
    AdvanceTimetables,
    AnyOperation,
    CancelJobs,
    Claim,
    CreateJobs,
    Expire,
    Fail,
    Lead,
    RaiseLevel,
    Release,
    Replay,
    Start,
    Succeed,
)
from timeball.cluster.state.records import Execution, Job

KEPT_RECORD = 400
"""What `kept_bytes` counts for a record without payload, result and errors."""

_HEAD = 256
"""Of the operation as a whole, with names of at most a few dozen characters."""
_HOLD = 32
"""Of one job id, nominal time and token."""
_REPORT = 64
_JOB = 320
"""Of a job without its payload, keys and timetable: numbers, the queue, the fingerprint."""
_TIMETABLE = 400
_CHARACTER = 4
"""The longest encoding of a character of text."""


def count_items(operation: AnyOperation) -> int:
    """How many jobs or executions the operation is about."""
    match operation:
        case CreateJobs(_, named) | Claim(_, _, _, named):
            return len(named)
        case Succeed(named) | Fail(named) | AdvanceTimetables(named) | CancelJobs(named):
            return len(named)
        case Start(named) | Release(named) | Expire(named) | Replay(named):
            return len(named)
        case Lead() | RaiseLevel():
            return 1


def guess_bytes(operation: AnyOperation) -> int:
    """The guess for one operation."""
    match operation:
        case CreateJobs(request_id, jobs):
            texts = len(request_id)
            rest = len(jobs) * _JOB
            for job in jobs:
                texts += len(job.partition_key) + len(job.idempotency_key)
                rest += len(job.payload)
                if job.timetable is not None:
                    rest += _TIMETABLE
            return _HEAD + rest + texts * _CHARACTER
        case Succeed(items):
            size = _HEAD + len(items) * _REPORT
            for item in items:
                size += len(item.result)
            return size
        case Fail(items):
            texts = sum(len(item.error_type) + len(item.message) for item in items)
            return _HEAD + len(items) * _REPORT + texts * _CHARACTER
        case Claim(worker, request_id, _, executions):
            return _HEAD + (len(worker) + len(request_id)) * _CHARACTER + len(executions) * _HOLD
        case AdvanceTimetables(items):
            return _HEAD + sum(_REPORT + len(item.nominals) * _HOLD for item in items)
        case CancelJobs(named) | Start(named) | Release(named) | Expire(named) | Replay(named):
            return _HEAD + len(named) * _HOLD
        case Lead():
            return _HEAD * 2
        case RaiseLevel():
            return _HEAD


def kept_bytes(ended: Execution | Job) -> int:
    """What an ended execution with its job counts for, or a job that ended without one.

    Its payload, result and error texts, and a flat share for the rest. The executions of a
    recurring job share its payload and yet count it each: the sum is a bound, not a measure.
    It stays the same for as long as the record is kept.
    """
    if isinstance(ended, Job):
        return KEPT_RECORD + len(ended.payload)
    size = KEPT_RECORD + len(ended.job.payload) + len(ended.result)
    for attempt in ended.attempts or ():
        size += _text_bytes(attempt.error_type) + _text_bytes(attempt.message)
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text) * _CHARACTER

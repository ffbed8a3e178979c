"""What an operation takes: how many items, and how many bytes of the log (a quick guess, never
too low).

Group commit limits entries and what waits by it, before anything is encoded.
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
    Release,
    Replay,
    Start,
    Succeed,
)

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
        case Lead():
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

"""What an operation takes: how many items, and how many bytes of the log (a quick guess, never
too low); and what an ended execution or job takes of the bytes that are kept.

Group commit limits entries and what waits by the former, before anything is encoded; retention
drops records by the latter, which is a part of the replicated rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import astuple

from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    AnyOperation,
    At,
    BackfillJob,
    CancelJobs,
    Claim,
    ConfigureQueue,
    CreateJobs,
    Dates,
    Expire,
    Fail,
    InstructWorker,
    Lead,
    NewJob,
    ParkTimetables,
    PauseJob,
    PurgeDead,
    PutJob,
    RaiseLevel,
    Release,
    Replay,
    ReportProgress,
    ResumeJob,
    RetryPolicy,
    SkipExpired,
    Start,
    Succeed,
    Timetable,
    TriggerJob,
    UpdateJob,
)
from timeball.cluster.state.records import Attempt, Execution, Job, payload_of

KEPT_RECORD: Final = 400
"""What `kept_bytes` counts for a record without payload, result and errors."""

_HEAD: Final = 256
"""Of the operation as a whole, with names of at most a few dozen characters."""
_HOLD: Final = 32
"""Of one job id, nominal time and token."""
_REPORT: Final = 64
_JOB: Final = 320
"""Of a job without its payload, keys and timetable: numbers, the queue, the fingerprint."""
_TIMETABLE: Final = 200
_PART: Final = 600
"""Of a rule or an exclusion: an expression and the name of a time zone, both ASCII."""
_NUMBER: Final = 9
_CHARACTER: Final = 4
"""The longest encoding of a character of text."""


def count_items(operation: AnyOperation) -> int:
    """How many jobs or executions the operation is about."""
    match operation:
        case CreateJobs(_, named) | Claim(_, _, _, named, _):
            return len(named)
        case Succeed(named) | Fail(named) | AdvanceTimetables(named) | CancelJobs(named):
            return len(named)
        case Start(named) | Release(named) | Expire(named) | ReportProgress(named):
            return len(named)
        case Replay(named) | PurgeDead(named) | SkipExpired(named):
            return len(named)
        case ParkTimetables(named) | BackfillJob(_, _, named):
            return len(named)
        case Lead() | RaiseLevel() | PauseJob() | ResumeJob() | TriggerJob():
            return 1
        case UpdateJob() | PutJob() | ConfigureQueue() | InstructWorker():
            return 1


def guess_bytes(operation: AnyOperation) -> int:
    """The guess for one operation."""
    match operation:
        case CreateJobs(request_id, jobs):
            return _HEAD + len(request_id) * _CHARACTER + sum(_job_bytes(job) for job in jobs)
        case Succeed(items):
            size = _HEAD + len(items) * _REPORT
            for item in items:
                size += len(item.result)
            return size
        case Fail(items):
            texts = sum(
                len(item.error_type) + len(item.message) + len(item.backtrace) for item in items
            )
            return _HEAD + len(items) * _REPORT + texts * _CHARACTER
        case Claim(worker, request_id, _, executions, offered):
            texts = len(worker) + len(request_id) + _tag_characters(offered)
            return _HEAD + texts * _CHARACTER + len(executions) * _HOLD
        case AdvanceTimetables(items):
            return _HEAD + sum(_advance_bytes(item) for item in items)
        case CancelJobs(named) | Start(named) | Release(named) | Expire(named):
            return _HEAD + len(named) * _HOLD
        case Replay(named) | PurgeDead(named) | SkipExpired(named):
            return _HEAD + len(named) * _HOLD
        case ReportProgress(items):
            return _HEAD + sum(_HOLD + _NUMBER + len(progress) for _, _, _, progress in items)
        case Lead():
            return _HEAD * 2
        case RaiseLevel() | ResumeJob():
            return _HEAD
        case ConfigureQueue(name):
            return 2 * _HEAD + len(name) * _CHARACTER
        case InstructWorker(worker, instruction):
            return _HEAD + (len(worker) + len(instruction)) * _CHARACTER
        case PauseJob(_, text) | TriggerJob(_, text):
            return _HEAD + len(text) * _CHARACTER
        case BackfillJob(_, _, nominals):
            return _HEAD + len(nominals) * _HOLD
        case ParkTimetables(items):
            return _HEAD + sum(_HOLD + len(why) * _CHARACTER for _, _, why in items)
        case UpdateJob(_, _, change):
            size = _HEAD + len(change.payload or b"") + _timetable_bytes(change.timetable)
            tags = (*(change.requires or ()), *(change.tags or ()))
            return size + _policy_bytes(change.retry) + _tag_characters(tags) * _CHARACTER
        case PutJob(name, job):
            return _HEAD + len(name) * _CHARACTER + _job_bytes(job)


def _advance_bytes(item: Advance) -> int:
    size = 2 * _REPORT + len(item.nominals) * _NUMBER
    for fate in item.fates if item.pending is None else (*item.fates, item.pending):
        size += _REPORT + len(fate.reason) * _CHARACTER
    return size


def _job_bytes(job: NewJob) -> int:
    _, payload, _, _, timetable, _, partition_key, retry, _, key, _, options, _ = astuple(job)
    texts = len(partition_key) + len(key)
    if options is not None:
        texts += len(options.concurrency_key)
        texts += _tag_characters(options.requires) + _tag_characters(options.tags)
    size = _JOB + len(payload) + texts * _CHARACTER + _policy_bytes(retry)
    return size if timetable is None else size + _timetable_bytes(timetable)


def _tag_characters(tags: Sequence[str]) -> int:
    return sum(1 + len(tag) for tag in tags)


def _policy_bytes(retry: RetryPolicy | None) -> int:
    """What a policy takes beyond its numbers, which are in those of its job."""
    if retry is None or not (retry.delays_ms or retry.non_retryable_errors):
        return 0
    names = retry.non_retryable_errors
    return len(retry.delays_ms) * _NUMBER + sum(_NUMBER + len(name) * _CHARACTER for name in names)


def _timetable_bytes(timetable: Timetable | None) -> int:
    size = 0
    if timetable is not None:
        size = _TIMETABLE
        for part in (*timetable.rules, *timetable.exclusions):
            size += _PART
            if isinstance(part, At):
                size += len(part.times_ms) * _NUMBER
            elif isinstance(part, Dates):
                size += len(part.days) * 3 * _NUMBER
    return size


def kept_bytes(ended: Execution | Job) -> int:
    """What an ended execution with its job counts for, or a job that ended without one.

    Its payload, result, progress and the texts of its errors, and a flat share for the rest. The
    executions of a recurring job share its payload and yet count it each: the sum is a bound,
    not a measure. It stays the same for as long as the record is kept and its job has this payload.
    """
    if isinstance(ended, Job):
        return KEPT_RECORD + len(ended.payload)
    tries = ended.tries
    size = KEPT_RECORD + len(payload_of(ended)) + len(ended.result)
    if type(tries) is Attempt and tries.error is None:
        return size + len(tries.progress)
    for attempt in ended.attempts:
        size += len(attempt.progress)
        error = attempt.error
        if error is not None:
            size += _text_bytes(error.error_type) + _text_bytes(error.message)
            size += _text_bytes(error.backtrace)
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text) * _CHARACTER

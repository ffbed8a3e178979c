"""What one entry did to executions and jobs, in order: what the event stream is made of.

A part of what `apply` answers, like its verdicts: equal on every node that applies the entry,
and in the same order, whatever the node held before it was restarted. There are some for each
execution and most are never looked at, so telling one is cheap and keeping it is nearly free.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import msgspec
from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_le, write_i64_le
from mypy_extensions import i32, i64

from timeball.cluster.state.records import Attempt, Execution, ExecutionState, FateKind, Job
from timeball.cluster.state.transitions import Event


class Happened(enum.IntEnum):
    """What happened to an execution or to a job."""

    CREATED = 0
    LEASED = 1
    STARTED = 2
    SUCCEEDED = 3
    FAILED = 4
    EXPIRED = 5
    RELEASED = 6
    CANCEL_REQUESTED = 7
    CANCELLED = 8
    SKIPPED = 9
    WITHDRAWN = 10
    REPLAYED = 11
    PURGED = 12
    JOB_CREATED = 13
    JOB_UPDATED = 14
    JOB_PAUSED = 15
    JOB_RESUMED = 16
    JOB_PARKED = 17
    JOB_COALESCED = 18
    """Nominal times of a timetable have no execution of their own: folded into another's …"""
    JOB_SKIPPED = 19
    """… left out by a pause or an exclusion …"""
    JOB_MISSED = 20
    """… or past, and given up."""
    JOB_CANCELLED = 21
    JOB_COMPLETED = 22
    JOB_REOPENED = 23
    """A dead execution of a job that had completed was replayed."""


Happening = tuple[int, int, str, int, int, int, int, int, str, str]
"""What happened (the number of a `Happened`); then of an execution

    state, queue, job id, nominal time, token, latest attempt's number, due time, who, why

the state being the one that it led to (an `ExecutionState`, or `RETRY`), who the worker of a
lease or the error type of a failure. Of a job

    0, queue, job id, last nominal time, 0, version or count, first nominal time, name, why

where nominal times and a count are those of an execution-less `JOB_COALESCED` and its like.
"""

_WIDTH: Final = 54
"""Bytes of one: what and state, then five numbers and the places of three texts."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, list[str]]).decode


class Happenings:
    """What happened, in order, written down as it comes.

    Numbers go into bytes one behind the other and never become objects, for there are thirty of
    them for each execution, on every node. A text is held once and goes by its place.
    """

    __slots__ = ("_places", "_queue", "_queue_place", "_read", "_texts", "_written")

    def __init__(self) -> None:
        """Nothing yet."""
        self._written = BytesWriter()
        self._read = b""
        """What was written, as of when it was last read."""
        self._texts = [""]
        self._places = {"": 0}
        self._queue = ""
        self._queue_place: i64 = 0

    @classmethod
    def unpack(cls, packed: bytes) -> Happenings:
        """What `pack` made bytes of."""
        happenings = cls()
        written, happenings._texts = _decode(packed)
        happenings._written.write(written)
        return happenings

    def pack(self) -> bytes:
        """All of it, about 60 bytes each."""
        return _encode((self._written.getvalue(), self._texts))

    def add(
        self,
        what: int,
        state: int,
        queue: str,
        job_id: int,
        nominal_ms: int,
        token: int,
        number: int,
        due_ms: int,
        who: str,
        why: str,
    ) -> None:
        """Add one; see `Happening`."""
        written = self._written
        written.append(what)
        written.append(state)
        write_i64_le(written, job_id)
        write_i64_le(written, nominal_ms)
        write_i64_le(written, token)
        write_i64_le(written, number)
        write_i64_le(written, due_ms)
        if queue is not self._queue:
            self._queue, self._queue_place = queue, self._place_of(queue)
        write_i32_le(written, i32(self._queue_place))
        write_i32_le(written, i32(self._place_of(who)) if who else 0)
        write_i32_le(written, i32(self._place_of(why)) if why else 0)

    def _place_of(self, text: str) -> i64:
        place = self._places.get(text)
        if place is None:
            place = self._places[text] = len(self._texts)
            self._texts.append(text)
        return place

    def moved(self, execution: Execution, event: Event, why: str) -> None:
        """An execution has made a transition that ends an attempt, its life or both."""
        if event is _SUCCEED:  # most do: no enum is hashed for them
            self.of_execution(execution, _SUCCEEDED, "", why)
        else:
            error = error_type_of(execution) if event is Event.FAIL else ""
            self.of_execution(execution, _BY_EVENT[event], error, why)

    def of_execution(
        self, execution: Execution, what: Happened, who: str = "", why: str = ""
    ) -> None:
        """Something happened to an execution, which is now as it is after it."""
        job, tries = execution.job, execution.tries
        retried = execution.state is _SCHEDULED and execution.attempts_used
        state: int = RETRY if retried else execution.state
        number = token = 0
        if tries is not None:
            latest = tries if isinstance(tries, Attempt) else tries[-1]
            number, token = latest.number, latest.token
        nominal_ms, due_ms = execution.nominal_ms, execution.due_ms
        self.add(what, state, job.queue, job.id, nominal_ms, token, number, due_ms, who, why)

    def of_job(self, job: Job, what: Happened, why: str = "") -> None:
        """Something happened to a job, which is now as it is after it."""
        self.add(what, 0, job.queue, job.id, 0, 0, job.version, 0, _name_of(job), why)

    def of_fate(
        self, job: Job, kind: FateKind, count: int, first_ms: int, last_ms: int, why: str
    ) -> None:
        """So many nominal times of a job have no execution of their own."""
        what, name = _BY_FATE[kind], _name_of(job)
        self.add(what, 0, job.queue, job.id, last_ms, 0, count, first_ms, name, why)

    def __len__(self) -> int:
        return len(self._written) // _WIDTH

    def __getitem__(self, place: int) -> Happening:
        """The one at a place, counted from 0."""
        if not 0 <= place < len(self):
            raise IndexError(place)
        if len(self._read) < len(self._written):
            self._read = self._written.getvalue()
        read, texts, at = self._read, self._texts, place * _WIDTH
        return (
            read[at],
            read[at + 1],
            texts[read_i32_le(read, at + 42)],
            read_i64_le(read, at + 2),
            read_i64_le(read, at + 10),
            read_i64_le(read, at + 18),
            read_i64_le(read, at + 26),
            read_i64_le(read, at + 34),
            texts[read_i32_le(read, at + 46)],
            texts[read_i32_le(read, at + 50)],
        )

    def __iter__(self) -> Iterator[Happening]:
        return map(self.__getitem__, range(len(self)))


NOTHING: Final = Happenings()
"""Of an entry that was not applied."""

RETRY: Final = len(ExecutionState)
"""The state of an execution that is scheduled again after an attempt that counts."""

# Names of the module, since reading a member off its class takes ten times as long.
_SCHEDULED: Final = ExecutionState.SCHEDULED
_SUCCEED: Final = Event.SUCCEED
_SUCCEEDED: Final = Happened.SUCCEEDED
_BY_EVENT: Final = {
    Event.SUCCEED: Happened.SUCCEEDED,
    Event.FAIL: Happened.FAILED,
    Event.RELEASE: Happened.RELEASED,
    Event.EXPIRE: Happened.EXPIRED,
    Event.CANCEL: Happened.CANCELLED,
    Event.REPLAY: Happened.REPLAYED,
    Event.SKIP: Happened.SKIPPED,
    Event.WITHDRAW: Happened.WITHDRAWN,
}
_BY_FATE: Final = {
    FateKind.COALESCED: Happened.JOB_COALESCED,
    FateKind.SKIPPED: Happened.JOB_SKIPPED,
    FateKind.MISSED: Happened.JOB_MISSED,
}


def _name_of(job: Job) -> str:
    return "" if job.recurrence is None else job.recurrence.name


def error_type_of(execution: Execution) -> str:
    """What its latest attempt failed with; "" if its worker named nothing, or never reported."""
    error = None if execution.tries is None else execution.latest.error
    return "" if error is None else error.error_type

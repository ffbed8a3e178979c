"""What one entry did to executions and jobs, in order: what the event stream is made of.

A part of what `apply` answers, like its verdicts: equal on every node that applies the entry,
and in the same order, whatever the node held before it was restarted. There are some for each
execution and most are never looked at, so telling one is cheap and keeping it is nearly free.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

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

_WIDTH: Final = 10
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class Happenings:
    """What happened, in order. Held flat: a tuple for each would be an object for the collector.

    What is kept for longer is packed: the collector would walk each element of each list, which
    held up a busy node for ten milliseconds and more.
    """

    __slots__ = ("_flat", "append")

    def __init__(self) -> None:
        """Nothing yet."""
        self._flat: list[object] = []
        self.append: Callable[[Happening], None] = self._flat.extend
        """Add one."""

    @classmethod
    def unpack(cls, packed: bytes) -> Happenings:
        """What `pack` made bytes of; what happened is then told by numbers."""
        happenings = cls()
        happenings._flat.extend(_decode(packed))
        return happenings

    def pack(self) -> bytes:
        """All of it as MessagePack, about 50 bytes each."""
        return _encode(self._flat)

    def __len__(self) -> int:
        return len(self._flat) // _WIDTH

    def __getitem__(self, place: int) -> Happening:
        """The one at a place, counted from 0."""
        happening: Any = tuple(self._flat[place * _WIDTH : (place + 1) * _WIDTH])
        if not happening:
            raise IndexError(place)
        return happening  # type: ignore[no-any-return]

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


def moved(execution: Execution, event: Event, why: str) -> Happening:
    """An execution has made a transition that ends an attempt, its life or both."""
    if event is _SUCCEED:  # most do: no enum is hashed for them
        return of_execution(execution, _SUCCEEDED, "", why)
    error = error_type_of(execution) if event is Event.FAIL else ""
    return of_execution(execution, _BY_EVENT[event], error, why)


def of_execution(
    execution: Execution, happened: Happened, who: str = "", why: str = ""
) -> Happening:
    """Something happened to an execution, which is now as it is after it."""
    job, tries = execution.job, execution.tries
    retried = execution.state is _SCHEDULED and execution.attempts_used
    state: int = RETRY if retried else execution.state
    if type(tries) is Attempt:
        number = tries.number
    else:
        number = 0 if tries is None else execution.latest.number
    due_ms = execution.due_ms
    nominal_ms, token = execution.nominal_ms, execution.token
    return happened, state, job.queue, job.id, nominal_ms, token, number, due_ms, who, why


def of_job(job: Job, happened: Happened, why: str = "") -> Happening:
    """Something happened to a job, which is now as it is after it."""
    name = "" if job.recurrence is None else job.recurrence.name
    return happened, 0, job.queue, job.id, 0, 0, job.version, 0, name, why


def of_fate(
    job: Job, kind: FateKind, count: int, first_ms: int, last_ms: int, why: str
) -> Happening:
    """So many nominal times of a job have no execution of their own."""
    name = "" if job.recurrence is None else job.recurrence.name
    return _BY_FATE[kind], 0, job.queue, job.id, last_ms, 0, count, first_ms, name, why


def error_type_of(execution: Execution) -> str:
    """What its latest attempt failed with; "" if its worker named nothing, or never reported."""
    error = None if execution.tries is None else execution.latest.error
    return "" if error is None else error.error_type

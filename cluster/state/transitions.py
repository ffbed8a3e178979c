"""The life of an execution as one table: which event moves it from where to where.

`move` is the only code that sets `Execution.state`, and it refuses whatever the table
does not hold. The diagram in the documentation is drawn from the same table (see `diagram`).
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from timeball.cluster.state.records import Execution, ExecutionState


class Event(enum.IntEnum):
    """What happens to an execution; each is an operation of the log."""

    CLAIM = 0
    START = 1
    SUCCEED = 2
    FAIL = 3
    RELEASE = 4
    EXPIRE = 5
    CANCEL = 6
    REPLAY = 7
    SKIP = 8
    WITHDRAW = 9


class Transition(NamedTuple):
    """One row: `event` takes an execution from `source` to `target` if `guard` holds."""

    source: ExecutionState
    event: Event
    target: ExecutionState
    guard: str


_SCHEDULED: Final = ExecutionState.SCHEDULED
_LEASED: Final = ExecutionState.LEASED
_RUNNING: Final = ExecutionState.RUNNING
_SUCCEEDED: Final = ExecutionState.SUCCEEDED
_DEAD: Final = ExecutionState.DEAD
_CANCELLED: Final = ExecutionState.CANCELLED
_SKIPPED: Final = ExecutionState.SKIPPED

_HOLDER: Final = "by the latest token"
_LATE: Final = "by the latest token, late: lease ended, not claimed since"
_RETRY: Final = "attempts left"
_EXHAUSTED: Final = "no attempts left, or not retryable"
_CANCEL_ASKED: Final = "cancel was requested"
_EXPIRED: Final = "it would be due again when it has expired"

TRANSITIONS: tuple[Transition, ...] = (
    Transition(_SCHEDULED, Event.CLAIM, _LEASED, "due by log-time, or nearly, and not expired"),
    Transition(_SCHEDULED, Event.SUCCEED, _SUCCEEDED, _LATE),
    Transition(_SCHEDULED, Event.FAIL, _SCHEDULED, f"{_LATE}, {_RETRY}"),
    Transition(_SCHEDULED, Event.FAIL, _DEAD, f"{_LATE}, {_EXHAUSTED}"),
    Transition(_SCHEDULED, Event.FAIL, _SKIPPED, f"{_LATE}, {_EXPIRED}"),
    Transition(_SCHEDULED, Event.RELEASE, _SCHEDULED, _LATE),
    Transition(_SCHEDULED, Event.RELEASE, _SKIPPED, f"{_LATE}, {_EXPIRED}"),
    Transition(_SCHEDULED, Event.CANCEL, _CANCELLED, ""),
    Transition(_SCHEDULED, Event.SKIP, _SKIPPED, "by the overlap or catch-up rule, never leased"),
    Transition(_SCHEDULED, Event.SKIP, _SKIPPED, "expired by log-time"),
    Transition(_SCHEDULED, Event.WITHDRAW, _SKIPPED, "not due, and paused or edited: forgotten"),
    Transition(_LEASED, Event.START, _RUNNING, _HOLDER),
    Transition(_LEASED, Event.SUCCEED, _SUCCEEDED, _HOLDER),
    Transition(_LEASED, Event.FAIL, _SCHEDULED, _RETRY),
    Transition(_LEASED, Event.FAIL, _DEAD, _EXHAUSTED),
    Transition(_LEASED, Event.FAIL, _SKIPPED, _EXPIRED),
    Transition(_LEASED, Event.FAIL, _CANCELLED, _CANCEL_ASKED),
    Transition(_LEASED, Event.RELEASE, _SCHEDULED, "attempt not counted"),
    Transition(_LEASED, Event.RELEASE, _SKIPPED, _EXPIRED),
    Transition(_LEASED, Event.RELEASE, _CANCELLED, _CANCEL_ASKED),
    Transition(_LEASED, Event.EXPIRE, _SCHEDULED, _RETRY),
    Transition(_LEASED, Event.EXPIRE, _DEAD, _EXHAUSTED),
    Transition(_LEASED, Event.EXPIRE, _SKIPPED, _EXPIRED),
    Transition(_LEASED, Event.EXPIRE, _CANCELLED, _CANCEL_ASKED),
    Transition(_RUNNING, Event.SUCCEED, _SUCCEEDED, _HOLDER),
    Transition(_RUNNING, Event.FAIL, _SCHEDULED, _RETRY),
    Transition(_RUNNING, Event.FAIL, _DEAD, _EXHAUSTED),
    Transition(_RUNNING, Event.FAIL, _SKIPPED, _EXPIRED),
    Transition(_RUNNING, Event.FAIL, _CANCELLED, _CANCEL_ASKED),
    Transition(_RUNNING, Event.RELEASE, _SCHEDULED, "attempt not counted"),
    Transition(_RUNNING, Event.RELEASE, _SKIPPED, _EXPIRED),
    Transition(_RUNNING, Event.RELEASE, _CANCELLED, _CANCEL_ASKED),
    Transition(_RUNNING, Event.EXPIRE, _SCHEDULED, _RETRY),
    Transition(_RUNNING, Event.EXPIRE, _DEAD, _EXHAUSTED),
    Transition(_RUNNING, Event.EXPIRE, _SKIPPED, _EXPIRED),
    Transition(_RUNNING, Event.EXPIRE, _CANCELLED, _CANCEL_ASKED),
    Transition(_DEAD, Event.REPLAY, _SCHEDULED, "new attempt budget"),
)

TERMINAL: Final = frozenset(
    {_SUCCEEDED, _DEAD, _CANCELLED, _SKIPPED},
)
"""States in which no report is accepted any more; a dead execution may be replayed."""


_EVENTS: Final = len(Event)
_STATES: Final = len(ExecutionState)


def _place(source: int, event: int, target: int) -> int:
    return (source * _EVENTS + event) * _STATES + target


def _legal() -> list[bool]:
    """The table, as `move` looks it up."""
    legal = [False] * (_STATES * _EVENTS * _STATES)
    for row in TRANSITIONS:
        legal[_place(row.source, row.event, row.target)] = True
    return legal


_LEGAL: Final = _legal()


@mypyc_attr(native_class=False)
class IllegalTransitionError(RuntimeError):
    """The state machine tried a move that the table does not hold: a bug, never an input."""


def move(execution: Execution, event: Event, target: ExecutionState) -> None:
    """Set the state of `execution`; raises `IllegalTransitionError` if the table forbids it."""
    source = execution.state
    if not _LEGAL[_place(source, event, target)]:
        raise IllegalTransitionError(f"{event.name} may not move {source.name} to {target.name}")
    execution.state = target

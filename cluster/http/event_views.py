"""Events on the wire: which may be asked for, how each looks, and its frame in the stream."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.client.messages import MAX_INDEX, OLDEST
from timeball.cluster.history import Position, Told, behind
from timeball.cluster.http.instants import render_instant
from timeball.cluster.http.paging import read_job, read_queue
from timeball.cluster.http.views import EXECUTION_STATE_NAMES
from timeball.cluster.state.happenings import RETRY, Happened, Happening

TYPES: dict[int, messages.EventType] = dict(
    zip(Happened, get_args(messages.EventType), strict=True)
)
EVENT_STREAM = "text/event-stream"
_NOUNS = ("execution", "job")
_STATES: dict[int, messages.ExecutionStateName] = {
    **{int(state): name for state, name in EXECUTION_STATE_NAMES.items()},
    RETRY: "retry",
}
STATE_WORDS = tuple(_STATES.values())
_GONE = frozenset({Happened.WITHDRAWN, Happened.PURGED})
_WITHOUT_EXECUTION = frozenset({Happened.JOB_COALESCED, Happened.JOB_SKIPPED, Happened.JOB_MISSED})
_TYPES_MEANT: dict[str, frozenset[int]] = {
    **{noun: frozenset(one for one in TYPES if TYPES[one].startswith(noun)) for noun in _NOUNS},
    **{name: frozenset({happened}) for happened, name in TYPES.items()},
}
TYPE_WORDS = tuple(_TYPES_MEANT)
"""What a query may ask for."""
_STATES_MEANT: dict[str, frozenset[int]] = {
    name: frozenset({state}) for state, name in _STATES.items()
}
_encode = msgspec.json.Encoder().encode


class EventFilter(msgspec.Struct, frozen=True):
    """Which events are wanted: those to which all applies; None: whichever."""

    queue: str | None = None
    job: int | None = None
    types: frozenset[int] | None = None
    states: frozenset[int] | None = None
    """Events of jobs lead to none."""

    def admits(self, happening: Happening) -> bool:
        """Whether an event is wanted."""
        what, state, queue, job, *_ = happening
        return (
            (self.queue is None or queue == self.queue)
            and (self.job is None or job == self.job)
            and (self.types is None or what in self.types)
            and (
                self.states is None
                or (what < Happened.JOB_CREATED and what not in _GONE and state in self.states)
            )
        )


def read_filter(parameters: dict[str, str]) -> EventFilter:
    """The filter that a query asks for; raises InvalidRequest naming the parameter."""
    return EventFilter(
        read_queue(parameters),
        read_job(parameters),
        _read_names(parameters, "type", _TYPES_MEANT),
        _read_names(parameters, "state", _STATES_MEANT),
    )


def _read_names(
    parameters: dict[str, str], name: str, known: dict[str, frozenset[int]]
) -> frozenset[int] | None:
    """What a list of words, separated by commas, means together."""
    text = parameters.get(name)
    if text is None:
        return None
    words = text.split(",")
    for word in words:
        if word not in known:
            expected = ", ".join(known)
            raise InvalidRequest.at(name, f"expected some of {expected}; got {word[:50]!r}")
    return frozenset().union(*(known[word] for word in words))


def read_position(text: str, field: str) -> Position | None:
    """The place that a text names; None for the oldest that is kept. Raises InvalidRequest."""
    if text == OLDEST:
        return None
    index, dash, place = text.partition("-")
    if _is_number(index, 16) and int(index) <= MAX_INDEX and (not dash or _is_number(place, 9)):
        return Position(int(index), int(place) + 1) if dash else behind(int(index))
    raise InvalidRequest.at(
        field, f"expected a position of the log, an event's id or {OLDEST!r}, got {text[:50]!r}"
    )


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def frame_event(told: Told) -> bytes:
    """One event of the stream."""
    view = event_view(told)
    return b"id: %b\ndata: %b\n\n" % (view.id.encode(), _encode(view))


def frame_position(index: int) -> bytes:
    """No event, but how far all events are told: whoever comes again goes on from there."""
    return b"id: %d\n\n" % index


def event_view(told: Told) -> messages.Event:
    """An event as its readers see it."""
    what, state, queue, job, nominal_ms, token, number, other_ms, who, why = told.happening
    head: dict[str, Any] = {
        "id": f"{told.entry}-{told.place}",
        "type": TYPES[what],
        "at": render_instant(told.log_time_ms),
        "queue": queue,
        "job_id": str(job),
        "reason": why,
    }
    if what < Happened.JOB_CREATED:
        return messages.Event(
            **head,
            execution_id=messages.encode_execution_id(job, nominal_ms),
            state=None if what in _GONE else _STATES[state],
            due_at=render_instant(other_ms),
            attempt=number or None,
            token=token or None,
            worker=who if what == Happened.LEASED else "",
            error_type=who if what == Happened.FAILED else "",
        )
    if what in _WITHOUT_EXECUTION:
        return messages.Event(
            **head,
            name=who,
            count=number,
            first_nominal_at=render_instant(other_ms),
            last_nominal_at=render_instant(nominal_ms),
        )
    return messages.Event(**head, name=who, version=number)

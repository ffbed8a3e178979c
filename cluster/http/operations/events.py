"""What the request for the event stream takes and answers."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from timeball.client import messages
from timeball.cluster.http.description import (
    EVENTS_GONE,
    NO_FORM,
    NOT_CAUGHT_UP,
    Operation,
    Parameter,
    Reply,
)
from timeball.cluster.http.event_views import EVENT_STREAM, STATE_WORDS, TYPE_WORDS
from timeball.cluster.http.operations.parameters import JOB, QUEUE

_PLACE = r"(oldest|[0-9]{1,16}(-[0-9]{1,9})?)"
Place = Annotated[str, Meta(pattern=rf"\A{_PLACE}\Z")]
LastPlace = Annotated[str, Meta(pattern=rf"\A{_PLACE}?\Z")]
"""Empty: none, as if it were not there."""
_TYPES = "|".join(map(re.escape, TYPE_WORDS))
_STATES = "|".join(STATE_WORDS)

EVENTS = {
    "GET /v1/events": Operation(
        id="followEvents",
        does="What happens to executions and jobs, as Server-Sent Events",
        kind="plain",
        parameters=(
            Parameter("after", Place, "Begin behind this event's id or position of the log."),
            Parameter("Last-Event-ID", LastPlace, "The same, and counts before it.", "header"),
            QUEUE,
            JOB,
            Parameter(
                "type",
                Annotated[str, Meta(pattern=rf"\A({_TYPES})(,({_TYPES}))*\Z")],
                "Of these types only, separated by commas.",
            ),
            Parameter(
                "state",
                Annotated[str, Meta(pattern=rf"\A({_STATES})(,({_STATES}))*\Z")],
                "Only what led to these states, separated by commas.",
            ),
            Parameter(
                "follow",
                Literal["true", "false"],
                "`false`: end when all has been told.",
                default="true",
            ),
        ),
        replies={200: Reply(messages.Event, "One a frame.", media_type=EVENT_STREAM)},
        problems=(*NO_FORM, EVENTS_GONE, NOT_CAUGHT_UP),
    ),
}

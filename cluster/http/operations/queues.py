"""What every request on queues takes and answers."""

from __future__ import annotations

from timeball.client import messages
from timeball.cluster.http.description import (
    FULL,
    NOT_FOUND,
    PRECONDITION,
    Operation,
    Parameter,
    Reply,
)
from timeball.cluster.http.operations.parameters import CURSOR, LIMIT, Tags

_SETTINGS = Reply(messages.QueueDetails, "The settings are so now; the tag is theirs.", ("ETag",))
_AT_SETTINGS = Parameter(
    "If-Match", Tags, "`*`, or entity tags: change the settings only at that version.", "header"
)
_CONFIGURING = (NOT_FOUND, PRECONDITION, FULL)

QUEUES = {
    "GET /v1/queues": Operation(
        id="listQueues",
        does="List queues by name",
        kind="read",
        parameters=(LIMIT, CURSOR),
        replies={200: Reply(messages.QueueList, "A page.")},
    ),
    "GET /v1/queues/{queue}": Operation(
        id="getQueue",
        does="Look at a queue",
        kind="read",
        replies={
            200: Reply(messages.QueueDetails, "The queue; the tag is of its settings.", ("ETag",))
        },
        problems=(NOT_FOUND,),
    ),
    "PUT /v1/queues/{queue}": Operation(
        id="putQueue",
        does="Give a queue all its settings",
        kind="write",
        body=messages.QueueSettings,
        parameters=(_AT_SETTINGS,),
        replies={200: _SETTINGS},
        problems=_CONFIGURING,
    ),
    "PATCH /v1/queues/{queue}": Operation(
        id="updateQueue",
        does="Change some settings of a queue",
        kind="write",
        body=messages.QueueUpdate,
        parameters=(_AT_SETTINGS,),
        replies={200: _SETTINGS},
        problems=_CONFIGURING,
    ),
    "POST /v1/queues/{queue}/pause": Operation(
        id="pauseQueue",
        does="Hand nothing of a queue out",
        kind="write",
        body=messages.QueueStateRequest,
        body_required=False,
        parameters=(_AT_SETTINGS,),
        replies={200: _SETTINGS},
        problems=_CONFIGURING,
    ),
    "POST /v1/queues/{queue}/drain": Operation(
        id="drainQueue",
        does="Take no new jobs into a queue",
        kind="write",
        body=messages.QueueStateRequest,
        body_required=False,
        parameters=(_AT_SETTINGS,),
        replies={200: _SETTINGS},
        problems=_CONFIGURING,
    ),
    "POST /v1/queues/{queue}/resume": Operation(
        id="resumeQueue",
        does="Let a queue take jobs and hand them out",
        kind="write",
        body=messages.QueueStateRequest,
        body_required=False,
        parameters=(_AT_SETTINGS,),
        replies={200: _SETTINGS},
        problems=_CONFIGURING,
    ),
}

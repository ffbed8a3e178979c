"""What every request on dead letters takes and answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from timeball.client import messages
from timeball.cluster.http.description import (
    NOT_FOUND,
    Operation,
    Parameter,
    Reply,
)
from timeball.cluster.http.operations.parameters import (
    CURSOR,
    JOB,
    LIMIT,
    QUEUE,
)

DEAD = {
    "GET /v1/dead": Operation(
        id="listDead",
        does="List dead executions, the latest dead first",
        kind="read",
        parameters=(
            QUEUE,
            JOB,
            Parameter(
                "error_type",
                Annotated[str, Meta(max_length=messages.MAX_ERROR_TYPE)],
                "Whose last attempt failed with exactly this; empty: that had none.",
            ),
            Parameter("reason", messages.DeadReason, "Dead for this reason only."),
            Parameter("died_after", messages.Instant, "Dead since this instant (included)."),
            Parameter("died_before", messages.Instant, "Dead since before this instant."),
            LIMIT,
            CURSOR,
        ),
        replies={200: Reply(messages.ExecutionList, "A page.")},
        problems=(NOT_FOUND,),
    ),
    "POST /v1/dead/replay": Operation(
        id="replayDead",
        does="Give dead executions a new attempt budget",
        kind="write",
        body=messages.Replay,
        replies={200: Reply(messages.ReplayAnswers, "One result per execution, in order.")},
    ),
    "POST /v1/dead/purge": Operation(
        id="purgeDead",
        does="Forget dead executions",
        kind="write",
        body=messages.Purge,
        replies={200: Reply(messages.PurgeAnswers, "One result per execution, in order.")},
    ),
    "POST /v1/dead/replay-matching": Operation(
        id="replayMatchingDead",
        does="Give all that died of something a new attempt budget, a page at a time",
        kind="write",
        body=messages.DeadSelection,
        replies={200: Reply(messages.DeadMoved, "How many were found, and how many moved.")},
        problems=(NOT_FOUND,),
    ),
    "POST /v1/dead/purge-matching": Operation(
        id="purgeMatchingDead",
        does="Forget all that died of something, a page at a time",
        kind="write",
        body=messages.DeadSelection,
        replies={200: Reply(messages.DeadMoved, "How many were found, and how many moved.")},
        problems=(NOT_FOUND,),
    ),
}

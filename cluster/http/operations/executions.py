"""What every look at executions takes and answers."""

from __future__ import annotations

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
    TAG,
)

EXECUTIONS = {
    "GET /v1/executions": Operation(
        id="listExecutions",
        does="List executions, those of the newest jobs first",
        kind="read",
        parameters=(
            QUEUE,
            JOB,
            Parameter("state", messages.ExecutionStateName, "In this state only."),
            TAG,
            Parameter("due_after", messages.Instant, "Due at this instant or later."),
            Parameter("due_before", messages.Instant, "Due before this instant."),
            LIMIT,
            CURSOR,
        ),
        replies={200: Reply(messages.ExecutionList, "A page.")},
        problems=(NOT_FOUND,),
    ),
    "GET /v1/executions/{execution_id}": Operation(
        id="getExecution",
        does="Look at an execution and its attempts",
        kind="read",
        parameters=(
            Parameter(
                "Prefer",
                str,
                "`wait=SECONDS`, at most 60: answer when the execution has ended, or so late.",
                "header",
            ),
        ),
        replies={200: Reply(messages.ExecutionView, "The execution.")},
        problems=(NOT_FOUND,),
    ),
}

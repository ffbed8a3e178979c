"""The table of requests, as `GET /v1/openapi.json` shows it: what each takes and answers.

Tests hold it against the routes, the handlers' decoders and queries, and docs/protocol.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta

from timeball.client import messages
from timeball.cluster.http.description import (
    CONFLICT,
    EVENTS_GONE,
    FULL,
    INVALID_KEY,
    LEASE_LOST,
    NO_FORM,
    NOT_CAUGHT_UP,
    NOT_FOUND,
    PRECONDITION,
    UNAVAILABLE,
    Operation,
    Parameter,
    Reply,
)
from timeball.cluster.http.event_views import EVENT_STREAM, STATE_WORDS, TYPE_WORDS
from timeball.cluster.http.explain import FIRES
from timeball.cluster.http.paging import DEFAULT_LIMIT, MAX_CURSOR
from timeball.cluster.http.schedule_views import NEXT_FIRES

Index = Annotated[int, Meta(ge=0, le=messages.MAX_INDEX)]
Identifier = Annotated[str, Meta(min_length=1)]
_TAG = r'(W/)?"[!#-~]*"'
Tags = Annotated[str, Meta(pattern=rf"\A(\*|{_TAG}( ?, ?{_TAG})*)\Z")]
"""A condition as RFC 9110 has it."""
Place = Annotated[str, Meta(pattern=r"\A(oldest|[0-9]{1,16}(-[0-9]{1,9})?)\Z")]
"""In the event stream."""
JobState = Literal["active", "completed", "cancelled"]
TEXT = "text/plain"

FRESHNESS = (
    Parameter("min_index", Index, "Wait until the node has applied this position of the log."),
    Parameter(
        "consistency",
        messages.Consistency,
        "`strong`: show all that anybody was answered before the read came.",
        default="applied",
    ),
)
"""What every read takes."""
PATHS = {
    "job_id": Parameter("job_id", Identifier, "As the create answered it.", "path"),
    "execution_id": Parameter("execution_id", Identifier, "As a create or a claim told.", "path"),
    "request_id": Parameter("request_id", Identifier, "As the claim's answer has it.", "path"),
    "name": Parameter("name", messages.JobName, "Of a job, or of a node.", "path"),
}
"""The parts of paths, by name."""

_QUEUE = Parameter("queue", messages.QueueName, "Of this queue only.")
_JOB = Parameter("job", Identifier, "Of this job only, by its id.")
_LIMIT = Parameter("limit", messages.Limit, "At most so many.", default=DEFAULT_LIMIT)
_CURSOR = Parameter(
    "cursor",
    Annotated[str, Meta(min_length=1, max_length=MAX_CURSOR)],
    "Go on where that page ended.",
)
_KEY = Parameter(
    "Idempotency-Key",
    messages.Key,
    "The same as the field `idempotency_key`; printable characters, in UTF-8.",
    "header",
)
_REQUEST_ID = Parameter(
    "Timeball-Request-Id",
    messages.RequestId,
    "Chosen by the client: makes the request repeatable. Printable characters, in UTF-8.",
    "header",
)
_IF_MATCH = Parameter(
    "If-Match", Tags, "`*`, or entity tags: change the job only at that version.", "header"
)
_IF_NONE_MATCH = Parameter(
    "If-None-Match", Literal["*"], "Create only: fail if the name is taken.", "header"
)
_CHANGED = Reply(messages.JobChanged, "Changed, or so already.", ("ETag",))
_CHANGING = (NOT_FOUND, CONFLICT)

JOBS = {
    "POST /v1/jobs": Operation(
        id="createJob",
        does="Create one job",
        kind="write",
        body=messages.NewJob,
        parameters=(_KEY, _REQUEST_ID),
        replies={
            201: Reply(messages.JobCreated, "Created.", ("Location",)),
            200: Reply(
                messages.JobCreated, "The key or request id is known: as at first.", ("Location",)
            ),
        },
        problems=(NOT_FOUND, INVALID_KEY, FULL),
    ),
    "POST /v1/jobs/batch": Operation(
        id="createJobs",
        does="Create up to 1,000 jobs",
        kind="write",
        body=messages.NewJobs,
        parameters=(_REQUEST_ID,),
        replies={200: Reply(messages.JobsCreated, "One result per job, in order.")},
        problems=(NOT_FOUND, INVALID_KEY),
    ),
    "GET /v1/jobs": Operation(
        id="listJobs",
        does="List jobs, newest first",
        kind="read",
        parameters=(
            _QUEUE,
            Parameter("state", JobState, "In this state only."),
            _LIMIT,
            _CURSOR,
        ),
        replies={200: Reply(messages.JobList, "A page.")},
        problems=(NOT_FOUND,),
    ),
    "GET /v1/jobs/{job_id}": Operation(
        id="getJob",
        does="Look at a job",
        kind="read",
        replies={200: Reply(messages.JobView, "The job; the tag is its version.", ("ETag",))},
        problems=(NOT_FOUND,),
    ),
    "GET /v1/jobs/by-name/{name}": Operation(
        id="getNamedJob",
        does="Look at the recurring job of a name",
        kind="read",
        replies={
            200: Reply(messages.JobView, "The job; the tag is its id and version.", ("ETag",))
        },
        problems=(NOT_FOUND,),
    ),
    "PUT /v1/jobs/by-name/{name}": Operation(
        id="putJob",
        does="Give a recurring job a name and a definition",
        kind="write",
        body=messages.JobPut,
        parameters=(_IF_MATCH, _IF_NONE_MATCH),
        replies={
            201: Reply(messages.JobChanged, "Created.", ("ETag", "Location")),
            200: _CHANGED,
        },
        problems=(NOT_FOUND, CONFLICT, PRECONDITION, FULL),
    ),
    "PATCH /v1/jobs/{job_id}": Operation(
        id="updateJob",
        does="Change a job",
        kind="write",
        body=messages.JobUpdate,
        parameters=(_IF_MATCH,),
        replies={200: _CHANGED},
        problems=(*_CHANGING, PRECONDITION),
    ),
    "POST /v1/jobs/{job_id}/cancel": Operation(
        id="cancelJob",
        does="Cancel a job",
        kind="write",
        replies={200: Reply(messages.JobCancelled, "Cancelled, asked to stop, or at its end.")},
        problems=(NOT_FOUND,),
    ),
    "DELETE /v1/jobs/{job_id}": Operation(
        id="deleteJob",
        does="Cancel a job",
        kind="write",
        replies={200: Reply(messages.JobCancelled, "Cancelled, asked to stop, or at its end.")},
        problems=(NOT_FOUND,),
    ),
}

TIMETABLES = {
    "POST /v1/jobs/{job_id}/pause": Operation(
        id="pauseJob",
        does="Make no further occurrences",
        kind="write",
        body=messages.PauseRequest,
        body_required=False,
        replies={200: _CHANGED},
        problems=_CHANGING,
    ),
    "POST /v1/jobs/{job_id}/resume": Operation(
        id="resumeJob",
        does="Let a paused or parked timetable go on",
        kind="write",
        body=messages.ResumeRequest,
        body_required=False,
        replies={200: _CHANGED},
        problems=_CHANGING,
    ),
    "POST /v1/jobs/{job_id}/trigger": Operation(
        id="triggerJob",
        does="Run a recurring job now",
        kind="write",
        body=messages.TriggerRequest,
        body_required=False,
        parameters=(_REQUEST_ID,),
        replies={
            201: Reply(messages.JobTriggered, "An execution, due at once.", ("Location",)),
            200: Reply(messages.JobTriggered, "The request id is known, or it was left out."),
        },
        problems=(*_CHANGING, INVALID_KEY, FULL),
    ),
    "POST /v1/jobs/{job_id}/backfill": Operation(
        id="backfillJob",
        does="Run the nominal times of a past range",
        kind="write",
        body=messages.BackfillRequest,
        replies={200: Reply(messages.JobBackfilled, "What was made, and what was there.")},
        problems=(*_CHANGING, FULL),
    ),
    "GET /v1/jobs/{job_id}/explain": Operation(
        id="explainJob",
        does="Why a recurring job ran when it did, and when it will",
        kind="read",
        parameters=(
            _LIMIT,
            Parameter(
                "fires",
                Annotated[int, Meta(ge=FIRES[0], le=FIRES[-1])],
                "How many times to come.",
                default=NEXT_FIRES,
            ),
        ),
        replies={200: Reply(messages.JobExplained, "Past fates, newest first, and next fires.")},
        problems=_CHANGING,
    ),
    "POST /v1/schedules/preview": Operation(
        id="previewSchedule",
        does="What a schedule means",
        kind="local",
        body=messages.SchedulePreview,
        replies={200: Reply(messages.SchedulePreviewed, "As understood, with its next fires.")},
    ),
}

EXECUTIONS = {
    "GET /v1/executions": Operation(
        id="listExecutions",
        does="List executions, those of the newest jobs first",
        kind="read",
        parameters=(
            _QUEUE,
            _JOB,
            Parameter("state", messages.ExecutionStateName, "In this state only."),
            _LIMIT,
            _CURSOR,
        ),
        replies={200: Reply(messages.ExecutionList, "A page.")},
        problems=(NOT_FOUND,),
    ),
    "GET /v1/executions/{execution_id}": Operation(
        id="getExecution",
        does="Look at an execution and its attempts",
        kind="read",
        replies={200: Reply(messages.ExecutionView, "The execution.")},
        problems=(NOT_FOUND,),
    ),
    "GET /v1/dead": Operation(
        id="listDead",
        does="List dead executions, the latest dead first",
        kind="read",
        parameters=(
            _QUEUE,
            _JOB,
            Parameter(
                "error_type",
                Annotated[str, Meta(max_length=messages.MAX_ERROR_TYPE)],
                "Whose last attempt failed with exactly this; empty: that had none.",
            ),
            Parameter("reason", messages.DeadReason, "Dead for this reason only."),
            Parameter("died_after", messages.Instant, "Dead since this instant (included)."),
            Parameter("died_before", messages.Instant, "Dead since before this instant."),
            _LIMIT,
            _CURSOR,
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


def _report(
    verb: str, does: str, batch: type[messages.Request], single: type[messages.Request]
) -> dict[str, Operation]:
    """A report of a worker, in its batch form and for one execution."""
    beats = verb == "heartbeat"
    many = messages.HeartbeatAnswers if beats else messages.Reports
    one = messages.Heartbeat if beats else messages.Report
    return {
        f"POST /v1/executions/{verb}": Operation(
            id=f"{verb}Executions",
            does=f"{does}: a batch",
            kind="write",
            body=batch,
            replies={200: Reply(many, "A verdict for each, in order.")},
        ),
        f"POST /v1/executions/{{execution_id}}/{verb}": Operation(
            id=f"{verb}Execution",
            does=does,
            kind="write",
            body=single,
            replies={200: Reply(one, "The report counts.")},
            problems=(NOT_FOUND, CONFLICT, LEASE_LOST),
        ),
    }


WORKERS = {
    "POST /v1/claims": Operation(
        id="claimExecutions",
        does="Lease due executions, waiting for them if need be",
        kind="write",
        body=messages.Claim,
        parameters=(_REQUEST_ID,),
        replies={200: Reply(messages.Claimed, "What was leased; empty: nothing came due in time.")},
        problems=(NOT_FOUND, FULL),
    ),
    "POST /v1/claims/{request_id}/withdraw": Operation(
        id="withdrawClaim",
        does="Give back what a claim still holds",
        kind="write",
        replies={200: Reply(messages.Reports, "A verdict for each execution that was held.")},
    ),
    **_report("start", "Tell that work has begun", messages.Holds, messages.SingleHold),
    **_report("heartbeat", "Extend a lease", messages.Heartbeats, messages.SingleHold),
    **_report("complete", "Report success", messages.Successes, messages.SingleSuccess),
    **_report("fail", "Report a failed attempt", messages.Failures, messages.SingleFailure),
    **_report("release", "Give an execution back", messages.Holds, messages.SingleHold),
}

CLUSTER = {
    "GET /v1/cluster": Operation(
        id="getCluster",
        does="The cluster as the node sees it",
        kind="read",
        parameters=(
            Parameter(
                "digest", Literal["true", "false"], "With the hash of the state.", default="false"
            ),
        ),
        replies={200: Reply(messages.ClusterView, "Members, roles, positions, queues and totals.")},
    ),
    "GET /v1/cluster/nodes/{name}": Operation(
        id="getNode",
        does="How far a node with a new disk has come",
        kind="leader",
        replies={200: Reply(messages.Replacement, "The leader's view of the node.")},
        problems=(NOT_FOUND,),
    ),
    "POST /v1/cluster/snapshot": Operation(
        id="takeSnapshot",
        does="Have the node asked write a snapshot",
        kind="local",
        replies={202: Reply(messages.SnapshotBegun, "It has begun.")},
        problems=(CONFLICT, UNAVAILABLE),
    ),
    "GET /healthz": Operation(
        id="getHealth",
        does="Whether the process serves",
        kind="plain",
        replies={200: Reply(None, "It does.", media_type=TEXT)},
    ),
    "GET /readyz": Operation(
        id="getReadiness",
        does="Whether the node is of use to clients",
        kind="local",
        replies={200: Reply(None, "It is.", media_type=TEXT)},
        problems=(UNAVAILABLE,),
    ),
    "GET /metrics": Operation(
        id="getMetrics",
        does="Metrics for Prometheus",
        kind="plain",
        replies={200: Reply(None, "As text.", media_type=TEXT)},
    ),
    "GET /v1/openapi.json": Operation(
        id="getDescription",
        does="This description",
        kind="plain",
        replies={200: Reply(None, "OpenAPI 3.1.", media_type="application/json")},
    ),
}

_WORDS = "|".join(map(re.escape, TYPE_WORDS))
_STATES = "|".join(STATE_WORDS)
EVENTS = {
    "GET /v1/events": Operation(
        id="followEvents",
        does="What happens to executions and jobs, as Server-Sent Events",
        kind="plain",
        parameters=(
            Parameter("after", Place, "Begin behind this event's id or position of the log."),
            Parameter("Last-Event-ID", Place, "The same, and counts before it.", "header"),
            _QUEUE,
            _JOB,
            Parameter(
                "type",
                Annotated[str, Meta(pattern=rf"\A({_WORDS})(,({_WORDS}))*\Z")],
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

OPERATIONS: dict[str, dict[str, Operation]] = {
    "jobs": JOBS,
    "timetables": TIMETABLES,
    "executions": EXECUTIONS,
    "workers": WORKERS,
    "events": EVENTS,
    "cluster": CLUSTER,
}
"""By noun, then by method and path."""

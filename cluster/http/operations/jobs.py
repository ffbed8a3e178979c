"""What every request on jobs takes and answers."""

from __future__ import annotations

from typing import Literal

from timeball.client import messages
from timeball.cluster.http.description import (
    CONFLICT,
    DRAINING,
    DUPLICATE,
    FULL,
    INVALID_KEY,
    NOT_FOUND,
    PRECONDITION,
    Operation,
    Parameter,
    Reply,
)
from timeball.cluster.http.operations.parameters import (
    CURSOR,
    IF_MATCH,
    IF_NONE_MATCH,
    KEY,
    LIMIT,
    QUEUE,
    REQUEST_ID,
    TAG,
)

JobState = Literal["active", "completed", "cancelled"]
CHANGED = Reply(messages.JobChanged, "Changed, or so already.", ("ETag",))
CHANGING = (NOT_FOUND, CONFLICT)
"""What every change of a job can meet."""

JOBS = {
    "POST /v1/jobs": Operation(
        id="createJob",
        does="Create one job",
        kind="write",
        body=messages.NewJob,
        parameters=(KEY, REQUEST_ID),
        replies={
            201: Reply(messages.JobCreated, "Created.", ("Location",)),
            200: Reply(
                messages.JobCreated, "The key or request id is known: as at first.", ("Location",)
            ),
        },
        problems=(NOT_FOUND, DRAINING, DUPLICATE, INVALID_KEY, FULL),
    ),
    "POST /v1/jobs/batch": Operation(
        id="createJobs",
        does="Create up to 1,000 jobs",
        kind="write",
        body=messages.NewJobs,
        parameters=(REQUEST_ID,),
        replies={200: Reply(messages.JobsCreated, "One result per job, in order.")},
        problems=(NOT_FOUND, INVALID_KEY),
    ),
    "GET /v1/jobs": Operation(
        id="listJobs",
        does="List jobs, newest first",
        kind="read",
        parameters=(
            QUEUE,
            Parameter("state", JobState, "In this state only."),
            TAG,
            Parameter("created_after", messages.Instant, "Created at this instant or later."),
            Parameter("created_before", messages.Instant, "Created before this instant."),
            LIMIT,
            CURSOR,
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
        parameters=(IF_MATCH, IF_NONE_MATCH),
        replies={
            201: Reply(messages.JobChanged, "Created.", ("ETag", "Location")),
            200: CHANGED,
        },
        problems=(NOT_FOUND, CONFLICT, DRAINING, PRECONDITION, FULL),
    ),
    "PATCH /v1/jobs/{job_id}": Operation(
        id="updateJob",
        does="Change a job",
        kind="write",
        body=messages.JobUpdate,
        parameters=(IF_MATCH,),
        replies={200: CHANGED},
        problems=(*CHANGING, PRECONDITION),
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

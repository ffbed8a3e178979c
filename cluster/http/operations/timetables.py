"""What every request on timetables takes and answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from timeball.client import messages
from timeball.cluster.http.description import (
    FULL,
    INVALID_KEY,
    Operation,
    Parameter,
    Reply,
)
from timeball.cluster.http.explain import FIRES
from timeball.cluster.http.operations.jobs import CHANGED, CHANGING
from timeball.cluster.http.operations.parameters import (
    LIMIT,
    REQUEST_ID,
)
from timeball.cluster.http.schedule_views import NEXT_FIRES

TIMETABLES = {
    "POST /v1/jobs/{job_id}/pause": Operation(
        id="pauseJob",
        does="Make no further occurrences",
        kind="write",
        body=messages.PauseRequest,
        body_required=False,
        replies={200: CHANGED},
        problems=CHANGING,
    ),
    "POST /v1/jobs/{job_id}/resume": Operation(
        id="resumeJob",
        does="Let a paused or parked timetable go on",
        kind="write",
        body=messages.ResumeRequest,
        body_required=False,
        replies={200: CHANGED},
        problems=CHANGING,
    ),
    "POST /v1/jobs/{job_id}/trigger": Operation(
        id="triggerJob",
        does="Run a recurring job now",
        kind="write",
        body=messages.TriggerRequest,
        body_required=False,
        parameters=(REQUEST_ID,),
        replies={
            201: Reply(messages.JobTriggered, "An execution, due at once.", ("Location",)),
            200: Reply(messages.JobTriggered, "The request id is known, or it was left out."),
        },
        problems=(*CHANGING, INVALID_KEY, FULL),
    ),
    "POST /v1/jobs/{job_id}/backfill": Operation(
        id="backfillJob",
        does="Run the nominal times of a past range",
        kind="write",
        body=messages.BackfillRequest,
        replies={200: Reply(messages.JobBackfilled, "What was made, and what was there.")},
        problems=(*CHANGING, FULL),
    ),
    "GET /v1/jobs/{job_id}/explain": Operation(
        id="explainJob",
        does="Why a recurring job ran when it did, and when it will",
        kind="read",
        parameters=(
            LIMIT,
            Parameter(
                "fires",
                Annotated[int, Meta(ge=FIRES[0], le=FIRES[-1])],
                "How many times to come.",
                default=NEXT_FIRES,
            ),
        ),
        replies={200: Reply(messages.JobExplained, "Past fates, newest first, and next fires.")},
        problems=CHANGING,
    ),
    "POST /v1/schedules/preview": Operation(
        id="previewSchedule",
        does="What a schedule means",
        kind="local",
        body=messages.SchedulePreview,
        replies={200: Reply(messages.SchedulePreviewed, "As understood, with its next fires.")},
    ),
}

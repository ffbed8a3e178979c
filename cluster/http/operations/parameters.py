"""The parameters that several requests share, and their types."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from timeball.client import messages
from timeball.cluster.http.description import Parameter
from timeball.cluster.http.paging import DEFAULT_LIMIT, MAX_CURSOR

Index = Annotated[int, Meta(ge=0, le=messages.MAX_INDEX)]
Identifier = Annotated[str, Meta(min_length=1)]
_TAG = r'(W/)?"[!#-~]*"'
Tags = Annotated[str, Meta(pattern=rf"\A(\*|{_TAG}( ?, ?{_TAG})*)\Z")]
"""A condition as RFC 9110 has it."""

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
    "queue": Parameter("queue", messages.QueueName, "By its name.", "path"),
    "worker": Parameter("worker", messages.WorkerName, "By its name.", "path"),
    "name": Parameter("name", messages.JobName, "Of a job, a queue or a node.", "path"),
}
"""The parts of paths, by name."""

QUEUE = Parameter("queue", messages.QueueName, "Of this queue only.")
JOB = Parameter("job", Identifier, "Of this job only, by its id.")
TAG = Parameter("tag", messages.Tag, "Of jobs that have this tag.")
LIMIT = Parameter("limit", messages.Limit, "At most so many.", default=DEFAULT_LIMIT)
CURSOR = Parameter(
    "cursor",
    Annotated[str, Meta(min_length=1, max_length=MAX_CURSOR)],
    "Go on where that page ended.",
)
KEY = Parameter(
    "Idempotency-Key",
    messages.Key,
    "The same as the field `idempotency_key`; printable characters, in UTF-8.",
    "header",
)
REQUEST_ID = Parameter(
    "Timeball-Request-Id",
    messages.RequestId,
    "Chosen by the client: makes the request repeatable. Printable characters, in UTF-8.",
    "header",
)
IF_MATCH = Parameter(
    "If-Match", Tags, "`*`, or entity tags: change the job only at that version.", "header"
)
IF_NONE_MATCH = Parameter(
    "If-None-Match", Literal["*"], "Create only: fail if the name is taken.", "header"
)

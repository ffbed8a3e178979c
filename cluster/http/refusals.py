"""Why the log refused to change a job, in words for its author."""

from __future__ import annotations

from timeball.client.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    Overloaded,
    PreconditionFailed,
    QueueDraining,
    TimeballError,
)
from timeball.client.messages import FieldError
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.problems import cluster_full
from timeball.cluster.state.limits import MAX_REQUIREMENTS
from timeball.cluster.state.records import Job
from timeball.cluster.state.verdicts import Changed, ChangeStatus

DRAINING = "this queue is draining: it takes no new jobs until it is resumed"
FULL = "the cluster holds as many pending executions or queues as it may"

KEYS_FULL = "the cluster holds as many idempotency keys until their jobs have ended as it may"


def change_refusal(changed: Changed, request: Request, job: Job | None) -> TimeballError:
    """The error that stands for what came of a change; `job` is the one that it was for."""
    match changed.status:
        case ChangeStatus.UNKNOWN:
            return no_such_job(request)
        case ChangeStatus.OTHER_VERSION:
            return PreconditionFailed(f"the job is at version {changed.version}")
        case ChangeStatus.ENDED:
            return Conflict("the job has ended")
        case ChangeStatus.BEGUN:
            return conflict_at("schedule", "the job has begun: it cannot be planned anew")
        case ChangeStatus.NOT_RECURRING:
            return not_recurring(request)
        case ChangeStatus.RECURRING:
            return conflict_at(
                "schedule", "the job recurs: it takes `every`, `cron` or `union`, not one instant"
            )
        case ChangeStatus.FIXED:
            return _fixed(job)
        case ChangeStatus.FULL:
            return cluster_full(FULL)
        case ChangeStatus.DRAINING:
            return QueueDraining.at("queue", DRAINING)
        case ChangeStatus.TOO_MANY_REQUIREMENTS:
            return too_many_requirements("")
        case status:
            assert status is ChangeStatus.INVALID, status
            return InvalidRequest.at("body", "beyond the cluster's limits")


def too_many_requirements(prefix: str) -> Overloaded:
    """The jobs of a queue require too many different sets of tags."""
    field = f"{prefix}requires"
    detail = f"the jobs of this queue require {MAX_REQUIREMENTS} different sets of tags already"
    error = cluster_full(f"{field}: {detail}")
    error.errors.append(FieldError(field=field, detail=detail))
    return error


def not_recurring(request: Request) -> TimeballError:
    """The job of the path runs once, and what was asked for is for those that recur."""
    if request.method in ("PATCH", "PUT"):
        return conflict_at("schedule", "the job runs once: it takes `at` or `after`")
    return conflict_at("job_id", "the job runs once: it has no timetable")


def no_such_job(request: Request) -> NotFound:
    """There is no job of the id, or the name, in the path (any more)."""
    field = "job_id" if "job_id" in request.parameters else "name"
    return NotFound.at(field, f"no job {request.parameters[field][:80]!r}")


def conflict_at(field: str, detail: str) -> Conflict:
    """A conflict that one field of the request is to blame for."""
    return Conflict(f"{field}: {detail}", errors=[FieldError(field=field, detail=detail)])


def _fixed(job: Job | None) -> Conflict:
    stays = "the queue, partition key and concurrency key of a job stay: cancel it, and put it anew"
    if job is None:
        return Conflict(stays)
    keys = f"{job.partition_key!r} and {job.options.concurrency_key!r}"
    return conflict_at("queue", f"{stays}; it is {job.queue!r}, with {keys}")

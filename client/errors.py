"""The exception tree: every way in which a request can fail.

    TimeballError
    ├── InvalidRequest          400/422  the request itself is wrong; names the fields
    │   ├── TooLarge            413      body, batch, payload or result over its limit
    │   └── KeyReused           422      idempotency key known with another request
    ├── NotFound                404      no such job, execution, queue or route
    ├── MethodNotAllowed        405
    ├── UnsupportedMediaType    415      neither JSON nor MessagePack
    ├── NotAcceptable           406
    ├── Conflict                409      the state of the thing forbids it
    │   ├── LeaseLost           409      the fencing token is not the latest
    │   ├── DuplicateJob        409      the idempotency key has a job, and no other was wanted
    │   └── QueueDraining       409      the queue takes no new jobs
    ├── EventsGone              410      the events after that position are not kept any more
    ├── PreconditionFailed      412      If-Match or If-None-Match does not hold
    ├── Overloaded              429/503  a limit is reached; repeat after `retry_after_ms`
    ├── Unavailable             503      no leader serves now; certainly not applied
    ├── NotCaughtUp             503      the node has not applied what the read asks for
    ├── StorageFull             507      the disks have no room left; certainly not applied
    ├── OutcomeUnknown          503      may or may not have been applied; safe to repeat
    └── InternalError           500

Each class carries its HTTP status and its problem type; nodes render a raised one as
a problem document (RFC 9457) and the client raises the same class from that document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec

from timeball.client.messages import FieldError, Problem

PROBLEM_PREFIX = "urn:timeball:problem:"


class TimeballError(Exception):
    """Base of all; `detail` says what was wrong, where, and what would be right."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "Something failed inside the node"
    outcome: ClassVar[Literal["", "not_applied", "unknown"]] = ""

    def __init__(
        self,
        detail: str = "",
        *,
        errors: Sequence[FieldError] = (),
        retry_after_ms: int = 0,
        leader: str = "",
        status: int | None = None,
        job_id: str = "",
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.errors = list(errors)
        self.retry_after_ms = retry_after_ms
        self.leader = leader
        self.job_id = job_id
        self.http_status = status if status is not None else self.status

    def problem(self) -> Problem:
        """Render as a problem document."""
        return Problem(
            type=PROBLEM_PREFIX + self.code,
            title=self.title,
            status=self.http_status,
            detail=self.detail,
            errors=self.errors,
            outcome=self.outcome,
            retry_after_ms=self.retry_after_ms,
            leader=self.leader,
            job_id=self.job_id,
        )


class InvalidRequest(TimeballError):
    """The request is wrong and would be wrong again; `errors` names the fields."""

    status = 400
    code = "invalid-request"
    title = "The request is not valid"
    outcome = "not_applied"

    @classmethod
    def at(cls, field: str, detail: str) -> InvalidRequest:
        """Make the error for one field."""
        return cls(f"{field}: {detail}", errors=[FieldError(field=field, detail=detail)])


class TooLarge(InvalidRequest):
    """A body, batch, payload or result is over its limit."""

    status = 413
    code = "too-large"
    title = "The request is too large"


class KeyReused(InvalidRequest):
    """The idempotency key is known with another request."""

    status = 422
    code = "idempotency-key-reused"
    title = "The idempotency key belongs to another request"


class NotFound(TimeballError):
    """No such job, execution, queue or route."""

    status = 404
    code = "not-found"
    title = "Not found"
    outcome = "not_applied"

    @classmethod
    def at(cls, field: str, detail: str) -> NotFound:
        """Make the error for the field that names the missing thing."""
        return cls(f"{field}: {detail}", errors=[FieldError(field=field, detail=detail)])


class MethodNotAllowed(TimeballError):
    """The route exists, with other methods."""

    status = 405
    code = "method-not-allowed"
    title = "The method is not allowed here"
    outcome = "not_applied"
    allow: str = ""
    """What the header `Allow` says."""

    @classmethod
    def among(cls, method: str, allowed: Iterable[str]) -> MethodNotAllowed:
        """Make the error for a path that takes other methods."""
        allow = ", ".join(sorted(allowed))
        error = cls(f"{method[:40]} is no method of this path, which takes {allow}")
        error.allow = allow
        return error


class NotAcceptable(TimeballError):
    """The Accept header allows neither JSON nor MessagePack."""

    status = 406
    code = "not-acceptable"
    title = "No acceptable representation"
    outcome = "not_applied"


class UnsupportedMediaType(TimeballError):
    """The body is neither JSON nor MessagePack."""

    status = 415
    code = "unsupported-media-type"
    title = "The content type is not supported"
    outcome = "not_applied"


class Conflict(TimeballError):
    """The state of the thing forbids what was asked."""

    status = 409
    code = "conflict"
    title = "The state forbids it"
    outcome = "not_applied"


class LeaseLost(Conflict):
    """The fencing token is not the latest granted: the lease was lost."""

    code = "lease-lost"
    title = "The lease was lost"


class QueueDraining(Conflict):
    """The queue is draining: it takes no new jobs until it is resumed."""

    code = "queue-draining"
    title = "The queue takes no new jobs"

    @classmethod
    def at(cls, field: str, detail: str) -> QueueDraining:
        """Make the error for the field that names the queue."""
        return cls(f"{field}: {detail}", errors=[FieldError(field=field, detail=detail)])


class DuplicateJob(Conflict):
    """The idempotency key has a job, `job_id`, and the create asked for no other."""

    code = "duplicate-job"
    title = "The idempotency key has a job already"


class EventsGone(TimeballError):
    """The node does not keep the events after that position (any more): read the state anew.

    `oldest_index` is the position behind which it keeps all.
    """

    status = 410
    code = "events-gone"
    title = "The events after that position are not kept any more"
    outcome = "not_applied"
    oldest_index: int | None = None

    @classmethod
    def before(cls, oldest_index: int, newest_index: int) -> EventsGone:
        """Make the error of a node that keeps what lies between the two."""
        error = cls(
            f"only events after position {oldest_index} are kept: read the state anew, and "
            f"go on after {newest_index}"
        )
        error.oldest_index = oldest_index
        return error

    def problem(self) -> Problem:
        """Render as a problem document."""
        return msgspec.structs.replace(super().problem(), oldest_index=self.oldest_index)


class PreconditionFailed(TimeballError):
    """The thing is not as `If-Match` or `If-None-Match` says: somebody else changed it."""

    status = 412
    code = "precondition-failed"
    title = "It is not at the version asked for"
    outcome = "not_applied"


class Overloaded(TimeballError):
    """A limit is reached and nothing was done; repeat after `retry_after_ms`."""

    status = 503
    code = "overloaded"
    title = "The cluster is at its limit"
    outcome = "not_applied"


class Unavailable(TimeballError):
    """No leader serves at the moment; certainly not applied."""

    status = 503
    code = "no-leader"
    title = "No leader serves at the moment"
    outcome = "not_applied"


class NotCaughtUp(TimeballError):
    """The node has not applied in time what a read asks for; another may have."""

    status = 503
    code = "not-caught-up"
    title = "This node has not applied that far"
    outcome = "not_applied"


class StorageFull(TimeballError):
    """The node has no room on its disk, and none that has leads; certainly not applied."""

    status = 507
    code = "storage-full"
    title = "The disk has no room left"
    outcome = "not_applied"


class OutcomeUnknown(TimeballError):
    """The write may or may not have been applied; repeat it with the same request id."""

    status = 503
    code = "outcome-unknown"
    title = "The outcome is unknown"
    outcome = "unknown"


class InternalError(TimeballError):
    """A defect of the node; its log tells more."""

    outcome = "unknown"


_CLASSES: dict[str, type[TimeballError]] = {
    PROBLEM_PREFIX + kind.code: kind
    for kind in (
        InvalidRequest,
        TooLarge,
        KeyReused,
        NotFound,
        MethodNotAllowed,
        NotAcceptable,
        UnsupportedMediaType,
        Conflict,
        LeaseLost,
        QueueDraining,
        DuplicateJob,
        EventsGone,
        PreconditionFailed,
        Overloaded,
        Unavailable,
        NotCaughtUp,
        StorageFull,
        OutcomeUnknown,
        InternalError,
    )
}


def from_problem(problem: Problem) -> TimeballError:
    """Make the exception that a problem document stands for."""
    kind = _CLASSES.get(problem.type, TimeballError)
    error = kind(
        problem.detail or problem.title,
        errors=problem.errors,
        retry_after_ms=problem.retry_after_ms,
        leader=problem.leader,
        job_id=problem.job_id,
        status=problem.status,
    )
    if isinstance(error, EventsGone):
        error.oldest_index = problem.oldest_index
    return error

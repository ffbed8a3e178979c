"""What every request is, for those who read it by machine: the words of the description.

`operations` is the table in these words; `openapi` makes the document of it. What follows from
the kind of a request (how fresh a read may be asked to be, which problems any write can meet)
is told here, once.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from timeball.client import errors
from timeball.client.errors import TimeballError

Kind = Literal["read", "write", "leader", "local", "plain"]
"""`read`: answered by any node, as fresh as asked for. `write`: by the leader, through the log.
`leader`: the leader alone knows. `local`: of the node asked, or the same on all. `plain`: the
same, in one form whatever the client accepts."""

Place = Literal["path", "query", "header"]


class Refusal(NamedTuple):
    """A way in which a request can fail: the problem and the status that it comes with."""

    kind: type[TimeballError]
    status: int


class Parameter(msgspec.Struct, frozen=True):
    """A part of a request outside of its body; `kind` is its type, as in a message."""

    name: str
    kind: Any
    about: str
    place: Place = "query"
    default: Any = None


class Reply(msgspec.Struct, frozen=True):
    """A good answer: a message, or text of a media type; and headers that it always has."""

    message: type[msgspec.Struct] | None
    when: str
    headers: tuple[str, ...] = ()
    media_type: str = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One request with every reply. `problems` are those of its own, beside those of its kind."""

    id: str
    does: str
    kind: Kind
    body: type[msgspec.Struct] | None = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    replies: dict[int, Reply]
    problems: tuple[Refusal, ...] = ()

    def all_problems(self) -> list[Refusal]:
        """Those of its own and of its kind, by status; each once."""
        general = [*ANY, *OF_A_KIND[self.kind]]
        return sorted({*self.problems, *general}, key=lambda each: (each.status, each.kind.code))


def _usual(*kinds: type[TimeballError]) -> tuple[Refusal, ...]:
    return tuple(Refusal(kind, kind.status) for kind in kinds)


NO_FORM = _usual(errors.NotAcceptable)
ANY = _usual(
    errors.InvalidRequest,
    errors.TooLarge,
    errors.UnsupportedMediaType,
    errors.Overloaded,
    errors.InternalError,
)
"""What any request can meet: each may have a body, and each needs a connection."""
OF_A_KIND: dict[Kind, tuple[Refusal, ...]] = {
    "read": (*NO_FORM, *_usual(errors.NotCaughtUp, errors.Unavailable)),
    "write": (
        *NO_FORM,
        *_usual(errors.Unavailable, errors.StorageFull, errors.OutcomeUnknown),
    ),
    "leader": (*NO_FORM, *_usual(errors.Unavailable)),
    "local": NO_FORM,
    "plain": (),
}

INVALID_KEY = Refusal(errors.KeyReused, 422)
NOT_FOUND = Refusal(errors.NotFound, 404)
CONFLICT = Refusal(errors.Conflict, 409)
DRAINING = Refusal(errors.QueueDraining, 409)
DUPLICATE = Refusal(errors.DuplicateJob, 409)
LEASE_LOST = Refusal(errors.LeaseLost, 409)
PRECONDITION = Refusal(errors.PreconditionFailed, 412)
FULL = Refusal(errors.Overloaded, 429)
EVENTS_GONE = Refusal(errors.EventsGone, 410)
NOT_CAUGHT_UP = Refusal(errors.NotCaughtUp, 503)
UNAVAILABLE = Refusal(errors.Unavailable, 503)

"""Exceptions to problem documents (RFC 9457) in the form that the client accepts."""

from __future__ import annotations

import logging

from timeball.client.errors import (
    Conflict,
    InternalError,
    MethodNotAllowed,
    NotCaughtUp,
    OutcomeUnknown,
    Overloaded,
    StorageFull,
    TimeballError,
    TooLarge,
    Unavailable,
)
from timeball.cluster.http.codec import PROBLEM_TYPES, encode
from timeball.cluster.http.exchange import Form, Response
from timeball.cluster.raft import errors as consensus

_log = logging.getLogger(__name__)

RETRY_MS = 500
"""What Retry-After suggests while a queue drains."""
ELECTION_MS = 200
"""… and while leadership moves, which takes some hundred milliseconds: who comes late to the next
leader has waited in vain, and asking costs little."""


STORAGE_RETRY_MS = 5_000
"""The same while a disk is full: somebody has to make room."""


FULL_RETRY_MS = 1_000
"""The same where a limit of the cluster is reached."""


def cluster_full(detail: str) -> Overloaded:
    """A limit of the cluster is reached, and nothing was done."""
    return Overloaded(detail, status=429, retry_after_ms=FULL_RETRY_MS)


def as_timeball_error(error: Exception, *, leader_url: str = "") -> TimeballError:
    """The public error that stands for `error`; an unexpected one is logged as a defect."""
    match error:
        case TimeballError():
            return error
        case consensus.NotLeader():
            return Unavailable("no leader serves", retry_after_ms=ELECTION_MS, leader=leader_url)
        case consensus.NotConfirmed():
            return Unavailable(str(error), retry_after_ms=ELECTION_MS, leader=leader_url)
        case consensus.NotCaughtUp():
            return NotCaughtUp(str(error), retry_after_ms=RETRY_MS)
        case consensus.LevelTooLow():
            return Conflict(str(error))
        case consensus.Overloaded() | consensus.Expired() | consensus.TooManyReads():
            return Overloaded(str(error), retry_after_ms=RETRY_MS)
        case consensus.DiskFull():
            return StorageFull(str(error), retry_after_ms=STORAGE_RETRY_MS)
        case consensus.EntryTooLarge():
            return TooLarge(str(error))
        case consensus.SnapshotUnderWay():
            return Conflict(str(error))
        case consensus.OutcomeUnknown():
            return OutcomeUnknown(str(error), retry_after_ms=ELECTION_MS)
        case consensus.Halted():
            return Unavailable("this node has stopped itself", retry_after_ms=RETRY_MS)
        case _:
            _log.error("a request failed inside the node", exc_info=error)
            return InternalError("the node's log tells more")


def problem_response(error: TimeballError, form: Form) -> Response:
    """Render an error, with Retry-After in whole seconds where the client should come again."""
    headers: dict[str, str] = {}
    if error.retry_after_ms:
        headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = error.allow
    return Response(
        status=error.http_status,
        body=encode(error.problem(), form),
        content_type=PROBLEM_TYPES[form],
        headers=headers,
    )

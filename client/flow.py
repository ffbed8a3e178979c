"""One request's way through the cluster, without input or output of its own.

`flow` is a generator: it yields what is to be done (`Send` a request, `Pause`), is sent what
came of it (`Reply`, `NoReply`), and returns the typed answer or raises an exception of
`timeball.client.errors`. Whoever drives it owns sockets and sleeping, so that an asynchronous
and a synchronous client share every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from timeball.client import errors
from timeball.client.failover import Attempts, Backoff, Nodes, Trouble
from timeball.client.messages import MAX_BATCH, MAX_BODY_BYTES, MAX_DIGITS, Problem

T = TypeVar("T")

MSGPACK = "application/msgpack"
_HEADERS = {"Accept": MSGPACK}
_HEADERS_WITH_BODY = {"Accept": MSGPACK, "Content-Type": MSGPACK}
_ENVELOPE_BYTES = 4 * 1024
"""Room that a batch's body leaves for what surrounds its items."""

encode = msgspec.msgpack.Encoder().encode


class Call(NamedTuple, Generic[T]):
    """A request and the type of its answer.

    `writes` tells that an attempt without an answer may have changed something. `wait_ms` is
    how long the node may rightly keep the request before it answers (a long poll). `if_version` is
    the version that the thing must be at for the request to have an effect. `prefer_wait_s` asks
    the node to wait so long for what is to come.
    """

    method: str
    path: str
    answer: type[T]
    body: bytes | None = None
    request_id: str = ""
    writes: bool = True
    wait_ms: int = 0
    if_version: int | None = None
    prefer_wait_s: int = 0


class Send(NamedTuple):
    """Send this request to a node and wait at most `timeout_ms` for the whole answer."""

    url: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    timeout_ms: int


class Pause(NamedTuple):
    """Let this much time pass."""

    pause_ms: int


class Reply(NamedTuple):
    """What a node answered."""

    status: int
    content_type: str
    body: bytes
    retry_after: str = ""
    applied_index: str = ""
    """How far the state was that it was given from."""


class NoReply(NamedTuple):
    """Why a node did not answer: UNREACHABLE, BROKEN or TIMED_OUT, with the cause."""

    trouble: Trouble
    cause: str


class Policy(NamedTuple):
    """What all calls of a client share."""

    nodes: Nodes
    backoff: Backoff
    rng: Random
    now_ms: Callable[[], int]
    seen: Callable[[int], None] = lambda _: None
    """Is told the position of the log that each answer tells."""


Steps = Generator[Send | Pause, Reply | NoReply | None, T]


def pausing(pause_ms: int) -> Steps[None]:
    """Let time pass."""
    yield Pause(pause_ms)


def flow(call: Call[T], policy: Policy, timeout_ms: int, attempt_timeout_ms: int) -> Steps[T]:
    """Drive one call to its answer, over as many attempts as its deadline allows.

    `timeout_ms` bounds the whole call, `attempt_timeout_ms` one attempt, both on top of the
    call's own `wait_ms`. A node that hangs never uses up more than half of the whole. Raises
    the problem that a node answered; `Unavailable` or `Overloaded` when the time ran out and
    certainly nothing happened; `OutcomeUnknown` when it ran out and something may have.
    """
    deadline_ms = policy.now_ms() + call.wait_ms + timeout_ms
    attempts = Attempts(policy.nodes, policy.backoff, policy.rng, deadline_ms)
    headers = _headers(call)
    while True:
        left_ms = deadline_ms - policy.now_ms()
        patience_ms = call.wait_ms + min(attempt_timeout_ms, max(1, timeout_ms // 2))
        reply = yield Send(
            attempts.url,
            call.method,
            call.path,
            headers,
            call.body,
            max(1, min(patience_ms, left_ms)),
        )
        assert reply is not None, "a Send is answered with a Reply or NoReply"
        if isinstance(reply, Reply):
            policy.seen(_number(reply.applied_index, MAX_DIGITS))
        trouble, error = judge(reply, attempts.url)
        if error is None:
            attempts.succeeded()
            assert isinstance(reply, Reply)
            return _decode(reply, call.answer)
        if trouble is None:
            raise _final(error, attempts, call)
        following = attempts.after(
            trouble, policy.now_ms(), retry_after_ms=error.retry_after_ms, leader=error.leader
        )
        if following is None:
            raise _last_word(error, attempts, call)
        if following.pause_ms:
            yield Pause(following.pause_ms)


def _headers(call: Call[Any]) -> dict[str, str]:
    headers = dict(_HEADERS if call.body is None else _HEADERS_WITH_BODY)
    if call.request_id:
        headers["Timeball-Request-Id"] = call.request_id
    if call.if_version is not None:
        headers["If-Match"] = f'"{call.if_version}"'
    if call.prefer_wait_s:
        headers["Prefer"] = f"wait={call.prefer_wait_s}"
    return headers


def judge(reply: Reply | NoReply, url: str) -> tuple[Trouble | None, errors.TimeballError | None]:
    """Tell success (no error), a trouble worth another attempt, and a final error apart."""
    if isinstance(reply, NoReply):
        return reply.trouble, errors.Unavailable(f"{url} {reply.trouble.value}: {reply.cause}")
    if 200 <= reply.status < 300:
        return None, None
    error = _error(reply, url)
    return _TROUBLES.get(type(error)), error


_TROUBLES: dict[type[errors.TimeballError], Trouble] = {
    errors.Unavailable: Trouble.NO_LEADER,
    errors.Overloaded: Trouble.OVERLOADED,
    errors.NotCaughtUp: Trouble.BEHIND,
    errors.StorageFull: Trouble.STORAGE_FULL,
    errors.OutcomeUnknown: Trouble.OUTCOME_UNKNOWN,
    errors.InternalError: Trouble.INTERNAL,
}


def _error(reply: Reply, url: str) -> errors.TimeballError:
    """Make the exception of an answer that is not a success.

    An answer without a problem document is not a node's: something stands between. From 500
    on nobody knows how far the request came.
    """
    problem: Problem | None = None
    if "problem+" in reply.content_type:
        try:
            problem = _decode(reply, Problem)
        except errors.InternalError as unreadable:
            return unreadable
    if problem is None:
        detail = f"{url} answered {reply.status} without a problem document"
        kind = errors.OutcomeUnknown if reply.status >= 500 else errors.TimeballError
        return kind(detail, status=reply.status, retry_after_ms=_seconds_ms(reply.retry_after))
    error = errors.from_problem(problem)
    if type(error) is errors.TimeballError and problem.status >= 500:
        # A newer node's problem: the safe reading is the one that promises least.
        error = errors.OutcomeUnknown(error.detail, retry_after_ms=problem.retry_after_ms)
    error.retry_after_ms = error.retry_after_ms or _seconds_ms(reply.retry_after)
    return error


def _seconds_ms(text: str) -> int:
    return _number(text, 7) * 1_000


def _number(text: str, most_digits: int) -> int:
    """Read a number of a header; 0 when it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most_digits else 0


def _final(
    error: errors.TimeballError, attempts: Attempts, call: Call[Any]
) -> errors.TimeballError:
    """Say what a refusal means: what moved the version on may be an earlier attempt of ours."""
    if not (isinstance(error, errors.PreconditionFailed) and attempts.maybe_applied):
        return error
    unknown = errors.OutcomeUnknown(
        f"{error.detail} ({call.method} {call.path}: by an earlier attempt whose answer was "
        f"lost, or by somebody else)"
    )
    unknown.__cause__ = error
    return unknown


def _last_word(
    error: errors.TimeballError, attempts: Attempts, call: Call[Any]
) -> errors.TimeballError:
    """Say what is known when no attempt is left: an early unknown outcome stays unknown."""
    told = f"{error.detail} ({call.method} {call.path}, {attempts.count} attempts)"
    kind = type(error)
    if call.writes and attempts.maybe_applied:
        kind = errors.OutcomeUnknown
    elif kind is errors.OutcomeUnknown:
        kind = errors.Unavailable
    last = kind(told, retry_after_ms=error.retry_after_ms, leader=error.leader)
    last.__cause__ = error
    return last


def _decode(reply: Reply, kind: type[T]) -> T:
    try:
        if "json" in reply.content_type:
            return msgspec.json.decode(reply.body, type=kind)
        return msgspec.msgpack.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.InternalError(
            f"the answer ({reply.status}, {reply.content_type or 'no content type'}) "
            f"is not a {kind.__name__}: {error}"
        ) from error


def encode_request(request: object) -> bytes:
    """Encode a request; raises `InvalidRequest` when it holds what MessagePack cannot."""
    try:
        return encode(request)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.InvalidRequest(f"the request cannot be encoded: {error}") from error


def in_batches(items: Iterable[object]) -> Iterator[list[msgspec.Raw]]:
    """Encode items and group them into batches that stay within both limits of a request.

    An item that is too large even alone makes a batch of its own, for the node to refuse.
    """
    batch: list[msgspec.Raw] = []
    size = 0
    for item in items:
        encoded = encode_request(item)
        full = len(batch) == MAX_BATCH or size + len(encoded) > MAX_BODY_BYTES - _ENVELOPE_BYTES
        if batch and full:
            yield batch
            batch, size = [], 0
        batch.append(msgspec.Raw(encoded))
        size += len(encoded)
    if batch:
        yield batch

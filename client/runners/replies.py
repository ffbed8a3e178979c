"""What a server's reply to a runner means for the execution.

2xx              success: the body is the result
429, 503         failure: slow down; the next attempt comes after its `Retry-After`
400, 410, …      failure for good (`fatal`): the request would be wrong again
any other        failure: the retry policy decides; redirects too, which are not followed
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from timeball.client.context import NonRetryable, RetryLater
from timeball.client.runners.results import last_words, result_of

FATAL_STATUSES = frozenset({400, 405, 410, 411, 413, 414, 415, 422, 431})
"""These speak of the request, which is the same at every attempt. Others among 4xx speak of
what may change meanwhile: a secret (401, 403), a deployment (404), somebody else (409, 423)."""
SLOW_DOWN = frozenset({429, 503})
MAX_RETRY_AFTER_MS = 24 * 3_600_000
"""A server that asks for more is asked again after a day."""
MAX_WORDS = 1_000
"""Characters of the body that a message quotes."""


class RequestFailed(Exception):
    """The server answered with a status that is no success."""


class RequestRefused(NonRetryable):
    """The server answered with a status that says: no retry will mend it."""


class ServerBusy(RetryLater):
    """The server answered 429 or 503."""


def judge(
    status: int,
    body: bytes,
    *,
    cut: bool,
    retry_after_ms: int,
    location: str,
    fatal: frozenset[int],
) -> object:
    """Give the result, or raise what the status stands for.

    `cut` tells that there was more of the body, which was not read.
    """
    if 200 <= status < 300:
        return result_of(body) if not cut else f"[cut] {body.decode('utf-8', 'ignore')}"
    told = f"status {status}"
    if 300 <= status < 400:
        told += f", a redirect to {location or 'nowhere'}, which is not followed"
    if words := last_words(body, MAX_WORDS):
        told += f": {words}"
    if status in SLOW_DOWN:
        raise ServerBusy(retry_after_ms, told)
    if status in fatal:
        raise RequestRefused(told)
    raise RequestFailed(told)


def retry_after(header: str, wall_ms: int, otherwise_ms: int) -> int:
    """Read `Retry-After`: seconds, or a date by the wall clock; without either, `otherwise_ms`."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:9]) * 1_000, MAX_RETRY_AFTER_MS)
    try:
        until_ms = int(parsedate_to_datetime(text).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return otherwise_ms
    return min(max(0, until_ms - wall_ms), MAX_RETRY_AFTER_MS)

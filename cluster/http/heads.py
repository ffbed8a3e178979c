"""Heads of requests that are known already: the same bytes mean the same again.

A client that stays sends the same head each time, but for the id by which it may repeat a
request. To parse one takes longer than all that is decided by it, so what httptools has made of
a head is kept: nothing is ever read here that it has not read before.
"""

from __future__ import annotations

import re

import msgspec

from timeball.cluster.http.exchange import IDEMPOTENCY_KEY, REQUEST_ID, Request

MAX_KNOWN = 512
"""Heads kept; clients that never send one twice push the others out, which costs no more."""
MAX_KNOWN_BYTES = 2_048
"""Of one of them."""

_HEAD_END = b"\r\n\r\n"
_OTHERWISE = frozenset({"transfer-encoding", "expect", "upgrade"})
"""Headers by which a request is more than its head and as many bytes as that announces."""
_OWN = tuple(
    (name, b"\r\n" + name.title().encode() + b": ") for name in (REQUEST_ID, IDEMPOTENCY_KEY)
)
"""Headers whose value is another in each request, written as they usually are."""
_is_sound = re.compile(rb"[!-~]+").fullmatch
"""Whether a value is one that no parser can see anything else in."""


class _Head(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int
    """Of the body."""


class KnownHeads:
    """What heads mean that were read before, for all connections of a server."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes | tuple[bytes, bytes], _Head] = {}
        """By their bytes; with a value of its own, by those before and after it."""

    def read(self, data: bytes) -> Request | None:
        """The request that `data` is from its first byte to its last; None where that takes a
        parser to tell."""
        body_at = data.find(_HEAD_END) + len(_HEAD_END)
        raw = data[:body_at]
        head = self._heads.get(raw)
        if head is not None:
            headers = head.headers
        else:
            own = _own_value(raw)
            if own is None:
                return None
            around, name, value = own
            head = self._heads.get(around)
            if head is None:
                return None
            headers = head.headers | {name: value}
        if len(data) - body_at != head.length:
            return None
        return Request(head.method, head.path, head.query, headers, data[body_at:])

    def learn(self, data: bytes, request: Request) -> None:
        """Keep what the head of `data` means, which was parsed as this request, if that is all."""
        body_at = data.find(_HEAD_END) + len(_HEAD_END)
        raw, headers = data[:body_at], request.headers
        if body_at > MAX_KNOWN_BYTES or data[body_at:] != request.body:
            return
        # No header stands there twice, or on two lines.
        if raw.count(b"\n") != len(headers) + 2 or not _OTHERWISE.isdisjoint(headers):
            return
        if all(name in headers for name, _ in _OWN):
            return  # such a head never comes again
        if not request.takes_chunks:
            return
        key: bytes | tuple[bytes, bytes] = raw
        own = _own_value(raw)
        if own is not None:
            key, name, _ = own
            headers = {other: value for other, value in headers.items() if other != name}
        if len(self._heads) >= MAX_KNOWN:
            self._heads.clear()
        self._heads[key] = _Head(
            request.method, request.path, request.query, dict(headers), len(request.body)
        )


def _own_value(raw: bytes) -> tuple[tuple[bytes, bytes], str, str] | None:
    """What stands around the value that this head has for itself, and the header's name and value;
    None for a head that has no such value, or one that has to be looked at more closely."""
    for name, line in _OWN:
        at = raw.find(line)
        if at >= 0:
            at += len(line)
            end = raw.find(b"\r\n", at)
            value = raw[at:end]
            if not _is_sound(value):
                return None
            return (raw[:at], raw[end:]), name, value.decode()
    return None

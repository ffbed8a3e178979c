"""Known heads: whatever was read before, a request means what httptools makes of it."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.cluster.http import heads as heads_module
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.heads import MAX_KNOWN, MAX_KNOWN_BYTES, KnownHeads
from timeball.cluster.http.wire import RequestParser

CREATE = b"POST /v1/jobs?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n%b\r\n%b"
HEADERS = [
    b"Timeball-Request-Id: one\r\n",
    b"Timeball-Request-Id: t/w\x00o\r\n",
    b"Timeball-Request-Id: \r\n",
    b"Timeball-Request-Id: a b \r\n",
    b"Timeball-Request-Id: \xc3\xa9\r\n",
    b"Timeball-Request-Id: one\n\r\n",
    b"timeball-request-id: two\r\n",
    b"Idempotency-Key: three\r\n",
    b"Idempotency-Key: 4\r\nTimeball-Request-Id: 5\r\n",
    b"Timeball-Request-Id: 6\r\nTimeball-Request-Id: 7\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: close\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b"Expect: 100-continue\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Content-Length: 3\r\n",
    b"Folded: a\r\n b\r\n",
    b"X: 1\r\nX: 2\r\n",
    b"",
]
REQUESTS = [
    CREATE % (header, body) for header in HEADERS for body in (b"abc", b"xyz", b"ab", b"abcd")
]
REQUESTS += [
    b"\r\n\r\n",
    b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\nContent-Length: 4\n\n\r\n\r\n",
    b"no HTTP\r\n\r\n",
]  # fmt: skip


class NoHeads(KnownHeads):
    """Knows nothing, ever."""

    def read(self, data: bytes) -> Request | None:
        return None


def told(heads: KnownHeads, data: bytes) -> list[tuple[object, ...]]:
    """All that a new connection makes of these bytes."""
    parser = RequestParser(heads)
    parser.feed(data)
    found: list[tuple[object, ...]] = [
        (
            arrival.request.method,
            arrival.request.path,
            arrival.request.query,
            dict(arrival.request.headers),
            arrival.request.body,
            arrival.keep_alive,
            repr(arrival.refusal),
        )
        for arrival in parser.arrivals
    ]
    return [*found, (parser.closed, parser.in_head, parser.in_body, parser.awaits_continue)]


@given(st.lists(st.sampled_from(REQUESTS), max_size=30))
def test_what_is_known_means_what_a_parser_makes_of_it(sent: list[bytes]) -> None:
    heads = KnownHeads()
    for data in sent:
        assert told(heads, data) == told(NoHeads(), data)


def test_each_sort_of_request_after_each_other() -> None:
    heads = KnownHeads()
    for data in REQUESTS + REQUESTS[::-1]:
        assert told(heads, data) == told(NoHeads(), data)


def learned(*sent: bytes) -> KnownHeads:
    heads = KnownHeads()
    for data in sent:
        RequestParser(heads).feed(data)
    return heads


def test_the_same_head_with_another_body_and_id_is_known() -> None:
    heads = learned(CREATE % (b"Timeball-Request-Id: one\r\n", b"abc"))
    request = heads.read(CREATE % (b"Timeball-Request-Id: two\r\n", b"xyz"))
    assert request is not None
    assert (request.method, request.path, request.query) == ("POST", "/v1/jobs", "a=1")
    assert request.body == b"xyz"
    assert request.headers == {"host": "x", "content-length": "3", "timeball-request-id": "two"}


@pytest.mark.parametrize(
    "other",
    [
        CREATE % (b"Timeball-Request-Id: two\r\n", b"ab"),
        CREATE % (b"Timeball-Request-Id: two\r\n", b"abcd"),
        CREATE % (b"Timeball-Request-Id: t o\r\n", b"abc"),
        CREATE % (b"Timeball-Request-Id: \r\n", b"abc"),
        CREATE % (b"Timeball-Request-Id: one\r\nX: 1\r\n", b"abc"),
        CREATE % (b"Idempotency-Key: one\r\n", b"abc"),
        CREATE % (b"", b"abc"),
    ],
)
def test_nothing_else_is(other: bytes) -> None:
    assert learned(CREATE % (b"Timeball-Request-Id: one\r\n", b"abc")).read(other) is None


@pytest.mark.parametrize(
    "data",
    [
        CREATE % (b"Expect: 100-continue\r\n", b"abc"),
        CREATE % (b"Connection: close\r\n", b"abc"),
        CREATE % (b"X: 1\r\nX: 2\r\n", b"abc"),
        CREATE % (b"Idempotency-Key: 4\r\nTimeball-Request-Id: 5\r\n", b"abc"),
        CREATE % (b"X: " + b"x" * MAX_KNOWN_BYTES + b"\r\n", b"abc"),
        b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_more_than_a_plain_request_is_never_known(data: bytes) -> None:
    assert learned(data, data).read(data) is None


def test_a_known_head_is_not_parsed() -> None:
    data = CREATE % (b"", b"abc")
    parser = RequestParser(learned(data))
    with patch.object(RequestParser, "_parse", side_effect=AssertionError):
        parser.feed(data)
    assert parser.arrivals[0].keep_alive


def test_so_many_heads_are_kept_and_no_more() -> None:
    heads = learned(*(CREATE % (b"X: %d\r\n" % number, b"abc") for number in range(MAX_KNOWN)))
    first = CREATE % (b"X: 0\r\n", b"abc")
    assert heads.read(first) is not None
    RequestParser(heads).feed(CREATE % (b"Y: 1\r\n", b"abc"))
    assert heads.read(first) is None
    assert len(heads._heads) == 1
    assert heads_module.MAX_KNOWN * MAX_KNOWN_BYTES <= 2**20


def test_an_empty_line_is_no_request_that_came_before_it() -> None:
    heads = KnownHeads()
    parser = RequestParser(heads)
    parser.feed(b"GET / HTTP/1.1\r\n\r\n")
    parser.feed(b"\r\n\r\n")
    assert heads.read(b"\r\n\r\n") is None
    assert len(parser.arrivals) == 1


def test_within_a_body_there_are_no_heads() -> None:
    data = CREATE % (b"", b"abc")
    parser = RequestParser(learned(data))
    parser.feed(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(data))
    parser.feed(data)
    assert [arrival.request.body for arrival in parser.arrivals] == [data]

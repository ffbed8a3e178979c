"""The parser of requests: limits, malformed bytes, and any cut of the same bytes."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.client.errors import InvalidRequest, TimeballError, TooLarge
from timeball.client.messages import MAX_BODY_BYTES
from timeball.cluster.http.exchange import Response
from timeball.cluster.http.heads import KnownHeads
from timeball.cluster.http.wire import (
    MAX_HEAD_BYTES,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    Arrival,
    RequestParser,
    render_head,
)

CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = (
    b"GET /a%20b?x=1&y HTTP/1.1\r\nHost: x\r\nX-Twice: 1\r\nX-Twice:  2 \r\nNothing:\r\n\r\n"
    b"\r\nPOST /c HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
    b"GET /u HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    + CHUNKED
    + b"1;ext=1\r\nd\r\n2\r\nef\r\n0\r\nTrailer: t\r\n\r\n"
    b"DELETE /last HTTP/1.1\r\nConnection: close\r\n\r\n"
    b"this is no HTTP"
)


def parse(*pieces: bytes) -> RequestParser:
    parser = RequestParser(KnownHeads())
    for piece in pieces:
        parser.feed(piece)
    return parser


def refusal(parser: RequestParser) -> TimeballError:
    error = parser.arrivals[-1].refusal
    assert error is not None
    assert parser.closed
    assert not parser.arrivals[-1].keep_alive
    return error


def told(arrival: Arrival) -> tuple[str, str, str, bytes, bool]:
    request = arrival.request
    assert arrival.refusal is None
    return request.method, request.path, request.query, request.body, arrival.keep_alive


@given(st.lists(st.integers(0, len(STREAM)), max_size=20).map(sorted))
def test_however_it_is_cut_a_stream_means_the_same(cuts: list[int]) -> None:
    edges = [0, *cuts, len(STREAM)]
    parser = parse(*(STREAM[a:b] for a, b in pairwise(edges)))
    assert [told(arrival) for arrival in parser.arrivals] == [
        ("GET", "/a%20b", "x=1&y", b"", True),
        ("POST", "/c", "", b"abc", True),
        ("GET", "/u", "", b"", True),
        ("POST", "/", "", b"def", True),
        ("DELETE", "/last", "", b"", False),
    ]
    assert parser.closed
    assert parser.arrivals[0].request.headers == {"host": "x", "x-twice": "2", "nothing": ""}
    assert parser.arrivals[3].request.headers == {"transfer-encoding": "chunked"}


@pytest.mark.parametrize("framing", ["Content-Length: 3", "Transfer-Encoding: chunked"])
def test_a_body_beside_an_offered_upgrade_is_read_and_ends_the_connection(framing: str) -> None:
    head = f"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n{framing}\r\n\r\n"
    body = b"abc" if "3" in framing else b"3\r\nabc\r\n0\r\n\r\n"
    for pieces in ([head.encode() + body + b"x"], [head.encode(), body[:2], body[2:]]):
        parser = parse(*pieces)
        assert [told(arrival) for arrival in parser.arrivals] == [("POST", "/", "", b"abc", False)]
        assert parser.closed


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"BREW / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: 1\n\r\n\r\n",
        b"GET / HTTP/1.1\r\nA : 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n1",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: 1\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    ],
)
def test_what_is_no_request_is_refused_once(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        parser = parse(*pieces)
        error = refusal(parser)
        assert isinstance(error, InvalidRequest)
        assert error.errors[0].field == "request"
        assert len(parser.arrivals) == 1
    assert not caplog.records


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nA: ", CHUNKED + b"1\r\na\r\n0\r\nA: "])
def test_a_header_without_end_is_refused_before_it_ends(start: bytes) -> None:
    parser = parse(start)
    fed = 0
    while not parser.closed and fed < 10 * MAX_HEAD_BYTES:
        parser.feed(b"x" * 1000)
        fed += 1000
    refusal(parser)
    assert fed <= MAX_HEAD_BYTES + 1000


def test_a_body_is_refused_where_it_exceeds_the_limit() -> None:
    exact = b"x" * MAX_BODY_BYTES
    head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    assert parse(head % MAX_BODY_BYTES, exact).arrivals[0].request.body == exact
    assert isinstance(refusal(parse(head % (MAX_BODY_BYTES + 1))), TooLarge)
    chunk = b"%x\r\n" % MAX_BODY_BYTES + exact + b"\r\n"
    assert parse(CHUNKED, chunk, b"0\r\n\r\n").arrivals[0].request.body == exact
    parser = parse(CHUNKED, chunk)
    assert parser.in_body
    parser.feed(b"1\r\nx")
    assert isinstance(refusal(parser), TooLarge)
    parser.feed(b"x" * 100)
    assert len(parser.arrivals) == 1


def test_a_head_has_what_is_known() -> None:
    response = Response(status=201, body=b"12", content_type="text/plain", headers={"A": "é"})
    assert render_head(response, date="now", connection="close") == (
        b"HTTP/1.1 201 Created\r\nDate: now\r\nContent-Type: text/plain\r\n"
        b"Connection: close\r\nContent-Length: 2\r\nA: \xc3\xa9\r\n\r\n"
    )
    bare = render_head(Response(status=204), date="", connection="")
    assert bare == b"HTTP/1.1 204 No Content\r\n\r\n"
    assert render_head(Response(status=799), date="", connection="").startswith(
        b"HTTP/1.1 799 \r\n"
    )


def test_no_header_smuggles_in_another() -> None:
    with pytest.raises(AssertionError, match="smuggle"):
        render_head(Response(status=200, headers={"A": "1\r\nB: 2"}), date="", connection="")

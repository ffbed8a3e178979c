"""HTTP-07: bodies of every size, however they are announced, are taken or refused by name.

Payloads at their limit and beyond, bodies with and without a length, with a wrong one, and behind
`Expect: 100-continue`; the same as results and error texts; and none of it moves the leader.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from timeball.client.messages import (
    MAX_BODY_BYTES,
    MAX_ERROR_MESSAGE,
    MAX_ERROR_TYPE,
    MAX_PAYLOAD_BYTES,
)
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

KIB, MIB = 1024, 1024 * 1024
HEADER_BYTES = 5
"""Of a text of more than 65,535 bytes as MessagePack; of one that is shorter, three."""
LIMIT_S = 20.0
JSON = {"Content-Type": "application/json"}
LATER = b'"schedule": {"type": "after", "delay_ms": 3600000}'


@pytest_asyncio.fixture(loop_scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers=JSON) as session:
        yield session


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body of unknown length: it goes in chunks."""
    for start in range(0, len(body), 64 * KIB):
        yield body[start : start + 64 * KIB]


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, *, length: bool
) -> tuple[int, Any]:
    data = io.BytesIO(body) if length else in_pieces(body)
    async with session.post(url, data=data) as answer:
        return answer.status, msgspec.json.decode(await answer.read())


async def terms(cluster: LocalCluster) -> set[int]:
    views = [await cluster.view(name) for name in cluster.names]
    return {view.term for view in views if view is not None}


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunks"])
async def test_http07_payloads_at_their_limit(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession, length: bool
) -> None:
    before = await terms(shared_cluster)
    for size, status in [
        (MAX_PAYLOAD_BYTES - 1, 201),
        (MAX_PAYLOAD_BYTES, 201),
        (MAX_PAYLOAD_BYTES + 1, 413),
        (MIB, 413),
    ]:
        text = b"x" * (size - (HEADER_BYTES if size - HEADER_BYTES > 0xFFFF else 3))
        body = b'{"queue": "sizes", "payload": "%s", %s}' % (text, LATER)
        for url in shared_cluster.urls:
            found, answer = await post(session, f"{url}/v1/jobs", body, length=length)
            assert found == status, (size, answer)
            if status == 413:
                assert answer["type"] == "urn:timeball:problem:too-large"
                assert answer["errors"][0]["field"] == "payload"
                assert f"{size} bytes" in answer["detail"]
    assert await terms(shared_cluster) == before, "there was an election"


async def test_http07_batches_are_limited_in_bytes(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    before = await terms(shared_cluster)
    job = b'{"queue": "sizes", "payload": "%s", %s}' % (b"x" * 40 * KIB, LATER)
    body = b'{"jobs": [%s]}' % b", ".join([job] * 500)
    for url in shared_cluster.urls:
        status, headers, raw = await speak(shared_cluster, url, head(len(body)))
        assert (status, headers["connection"]) == (413, "close")
        assert msgspec.json.decode(raw)["errors"][0]["field"] == "body"
    assert await terms(shared_cluster) == before, "there was an election"


def head(length: int | None, *more: str) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ("POST /v1/jobs HTTP/1.1", "Host: x", "Content-Type: application/json", framing, *more)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def speak(cluster: LocalCluster, url: str, *sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are, and take one answer; the server may well close meanwhile."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))

    async def send() -> None:
        for part in sent:
            writer.write(part)
            await writer.drain()

    sending = asyncio.ensure_future(send())
    try:
        async with asyncio.timeout(LIMIT_S):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            return int(lines[0].split()[1]), headers, body
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()


async def test_http07_what_is_announced_as_too_large_is_refused_unread(
    shared_cluster: LocalCluster,
) -> None:
    for size in (MAX_BODY_BYTES + 1, 64 * MIB, 2**63):
        for more in ((), ("Expect: 100-continue",)):
            for url in shared_cluster.urls:
                status, headers, body = await speak(shared_cluster, url, head(size, *more))
                assert status == 413, (size, more)
                assert headers["connection"] == "close"
                assert msgspec.json.decode(body)["errors"][0]["field"] == "body"


async def test_http07_what_is_not_announced_is_cut_off_where_it_is_too_large(
    shared_cluster: LocalCluster,
) -> None:
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for url in shared_cluster.urls:
        status, headers, body = await speak(
            shared_cluster, url, head(None), *[chunk] * (64 * MIB // 0x10000)
        )
        assert (status, headers["connection"]) == (413, "close")
        assert msgspec.json.decode(body)["errors"][0]["field"] == "body"


@pytest.mark.parametrize(
    ("announced", "field"),
    [(lambda size: size - 1, "body"), (lambda size: size + 3, "body")],
    ids=["less", "more"],
)
async def test_http07_a_wrong_length_makes_a_wrong_body(
    shared_cluster: LocalCluster, announced: Any, field: str
) -> None:
    """Less: the body ends amid its document. More: the next request's bytes belong to it."""
    body = b'{"queue": "sizes", %s}' % LATER
    status, _, raw = await speak(
        shared_cluster, shared_cluster.urls[0], head(announced(len(body))) + body + b"GET "
    )
    assert status == 400
    assert msgspec.json.decode(raw)["errors"][0]["field"] == field


@pytest.mark.parametrize("framing", ["-1", "1e3", "0x10", "1, 2", "99999999999999999999999"])
async def test_http07_what_is_no_length_is_refused(
    shared_cluster: LocalCluster, framing: str
) -> None:
    raw = head(0).replace(b"Content-Length: 0", f"Content-Length: {framing}".encode())
    status, headers, body = await speak(shared_cluster, shared_cluster.urls[0], raw)
    assert (status, headers["connection"]) == (400, "close")
    assert msgspec.json.decode(body)["errors"][0]["field"] == "request"


async def test_http07_results_have_the_limit_of_payloads_and_errors_are_clipped(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    url = shared_cluster.urls[0]
    before = await terms(shared_cluster)

    async def ask(path: str, body: Any) -> tuple[int, Any]:
        return await post(session, url + path, msgspec.json.encode(body), length=True)

    job = {"queue": "results", "retry": {"max_attempts": 2, "initial_ms": 0, "jitter_pct": 0}}
    _, created = await ask("/v1/jobs", job)
    path = f"/v1/executions/{created['execution_id']}"
    claim = {"queue": "results", "worker": "w", "wait_ms": 10_000}

    (held,) = (await ask("/v1/claims", claim))[1]["executions"]
    failure = {"token": held["token"], "error_type": "e" * MIB, "message": "m" * MIB}
    assert (await ask(f"{path}/fail", failure))[0] == 200

    (held,) = (await ask("/v1/claims", claim))[1]["executions"]
    for size, status in [(MIB, 413), (MAX_PAYLOAD_BYTES + 1, 413), (MAX_PAYLOAD_BYTES, 200)]:
        result = "x" * (size - (HEADER_BYTES if size - HEADER_BYTES > 0xFFFF else 3))
        found, answer = await ask(f"{path}/complete", {"token": held["token"], "result": result})
        assert found == status
        if status == 413:
            assert answer["errors"][0]["field"] == "result"

    index = {"min_index": (await terms_and_index(shared_cluster))[1]}
    async with session.get(url + path, params=index) as answer:
        view = await answer.json()
    assert view["result"] == result
    first, second = view["attempts"]
    assert (first["outcome"], second["outcome"]) == ("failed", "succeeded")
    assert first["error_type"] == "e" * (MAX_ERROR_TYPE - 4) + " […]"
    assert first["message"] == "m" * (MAX_ERROR_MESSAGE - 4) + " […]"
    assert await terms(shared_cluster) == before, "there was an election"


async def terms_and_index(cluster: LocalCluster) -> tuple[int, int]:
    view = await cluster.view(await cluster.leader())
    assert view is not None
    return view.term, view.applied_index

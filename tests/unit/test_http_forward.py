"""Passing requests on: what comes back, and what each loss is called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
import pytest_asyncio

from timeball.client import messages
from timeball.client.errors import OutcomeUnknown, Unavailable
from timeball.cluster.http import forward
from timeball.cluster.http.application import Application
from timeball.cluster.http.eager import Eager
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.routes import Route
from timeball.cluster.localcluster import LOOPBACK, free_ports
from timeball.cluster.raft.errors import NotLeader

LIMIT_S = 20.0
ME = "http://me"
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Leader:
    """Another node, as far as bytes show it."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.url: str | None = f"http://{LOOPBACK}:{self.port}"
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.gone = asyncio.Event()
        self.answer: bytes | None = None
        """None: close the connection after the request; empty: never answer."""
        self.asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head, body = await self._request(reader)
                self.heads.append(head)
                self.bodies.append(body)
                self.asked.set()
                if self.answer is None:
                    return
                writer.write(self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            self.gone.set()
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                return head, await reader.readexactly(int(line.split(b":")[1]))
        return head, b""


@pytest_asyncio.fixture
async def leader() -> AsyncIterator[Leader]:
    leader = Leader()
    server = await asyncio.start_server(leader.serve, LOOPBACK, leader.port)
    yield leader
    server.close()
    await server.wait_closed()


@pytest_asyncio.fixture
async def forwarder(leader: Leader) -> AsyncIterator[Forwarder]:
    forwarder = Forwarder(lambda: leader.url, ME)
    await forwarder.start()
    yield forwarder
    await forwarder.stop()


def request(path: str = "/v1/jobs", **headers: str) -> Request:
    return Request(method="POST", path=path, headers=headers, body=b"{}", body_form="json")


def answered(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_the_answer_comes_back_as_it_is(leader: Leader, forwarder: Forwarder) -> None:
    leader.answer = answered(
        "201 Created", b"\xc0", "Location: /v1/jobs/7", "Content-Type: application/msgpack"
    )
    sent = request("/v1/jobs/a%2Fb", **{"idempotency-key": "k", "cookie": "c"})
    sent.query = "digest=true"
    response = await forwarder.forward(sent, write=True)
    assert (response.status, response.body) == (201, b"\xc0")
    assert response.content_type == "application/msgpack"
    assert response.headers["Location"] == "/v1/jobs/7"
    head = leader.heads[0].lower()
    assert head.startswith(b"post /v1/jobs/a%2fb?digest=true http/1.1\r\n")
    assert b"timeball-hops: 1" in head
    assert b"idempotency-key: k" in head
    assert b"cookie" not in head


async def test_who_asks_for_the_head_is_told_its_length(
    leader: Leader, forwarder: Forwarder
) -> None:
    """The connection leaves out the body, as of an answer of its own node."""
    leader.answer = answered("200 OK", b"{}")
    head = Request(method="HEAD", path="/v1/cluster/nodes/a")
    response = await forwarder.forward(head, write=False)
    assert (response.status, response.body) == (200, b"{}")
    assert leader.heads[0].startswith(b"GET ")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/claims"])
async def test_it_needs_no_task_around_it(leader: Leader, forwarder: Forwarder, path: str) -> None:
    async def handle() -> None:
        statuses.append((await forwarder.forward(request(path), write=True)).status)

    statuses: list[int] = []
    ended = asyncio.Event()
    leader.answer = answered("200 OK", b"{}")
    Eager(asyncio.get_running_loop(), handle(), ended.set).start()
    await asyncio.wait_for(ended.wait(), LIMIT_S)
    assert statuses == [200]


async def test_an_answer_that_is_lost_leaves_a_write_unknown(
    leader: Leader, forwarder: Forwarder
) -> None:
    with pytest.raises(OutcomeUnknown):
        await forwarder.forward(request(), write=True)
    with pytest.raises(Unavailable):
        await forwarder.forward(request(), write=False)
    assert len(leader.heads) == 2, "a lost write is never sent twice by the node"


async def test_http_09_without_a_leader_nothing_is_sent(
    leader: Leader, forwarder: Forwarder
) -> None:
    for url in (None, ME, f"http://{LOOPBACK}:{free_ports(1)[0]}"):
        leader.url = url
        with pytest.raises(Unavailable) as caught:
            await forwarder.forward(request(), write=True)
        assert caught.value.outcome == "not_applied"
        assert caught.value.retry_after_ms > 0
    assert not leader.heads


async def test_a_client_that_leaves_is_seen_by_the_leader(
    leader: Leader, forwarder: Forwarder
) -> None:
    leader.answer = b""
    forwarding = asyncio.ensure_future(forwarder.forward(request(), write=False))
    await asyncio.wait_for(leader.asked.wait(), LIMIT_S)
    forwarding.cancel()
    await asyncio.wait_for(leader.gone.wait(), LIMIT_S)


async def test_leas_03_what_has_come_whole_is_passed_on_though_its_client_leaves(
    leader: Leader, forwarder: Forwarder
) -> None:
    """A worker that reports and is gone in the same turn has reported."""

    async def handle() -> None:
        await forwarder.forward(request("/v1/executions/complete"), write=True)

    leader.answer = answered("200 OK", b"{}")
    ended = asyncio.Event()
    handling = Eager(asyncio.get_running_loop(), handle(), ended.set)
    handling.start()
    handling.cancel()
    await asyncio.wait_for(ended.wait(), LIMIT_S)
    assert not leader.heads
    await heads(leader, 1)


def claim() -> Request:
    body = msgspec.json.encode(messages.Claim(worker="w", request_id="a b/c"))
    return Request(method="POST", path="/v1/claims", body=body, body_form="json")


async def heads(leader: Leader, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(leader.heads) < count:
            leader.asked.clear()
            await leader.asked.wait()


WITHDRAW = b"POST /v1/claims/withdraw HTTP/1.1\r\n"


async def test_the_claim_of_a_client_that_leaves_is_withdrawn(
    leader: Leader, forwarder: Forwarder
) -> None:
    leader.answer = b""
    claiming = asyncio.ensure_future(forwarder.forward(claim(), write=True))
    await heads(leader, 1)
    leader.answer = answered("200 OK", b"{}")
    claiming.cancel()
    await heads(leader, 2)
    assert leader.heads[1].startswith(WITHDRAW)
    body = msgspec.msgpack.decode(leader.bodies[1], type=messages.Withdrawals)
    assert body.request_ids == ["a b/c"]


async def test_a_withdrawal_survives_a_change_of_leader(
    leader: Leader, forwarder: Forwarder
) -> None:
    leader.answer = b""
    claiming = asyncio.ensure_future(forwarder.forward(claim(), write=True))
    await heads(leader, 1)
    url, leader.url = leader.url, None
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    leader.url, leader.answer = url, answered("200 OK", b"{}")
    await heads(leader, 2)
    assert leader.heads[1].startswith(WITHDRAW)


async def test_a_claim_that_is_repeated_here_is_withdrawn_no_more(
    leader: Leader, forwarder: Forwarder
) -> None:
    """Else what its client has by then would be taken away from it."""
    leader.answer = b""
    claiming = asyncio.ensure_future(forwarder.forward(claim(), write=True))
    await heads(leader, 1)
    url, leader.url = leader.url, None
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    await asyncio.sleep(0)
    assert len(forwarder._withdrawals) == 1
    leader.url, leader.answer = url, answered("200 OK", b"{}")
    await forwarder.forward(claim(), write=True)
    assert not forwarder._withdrawals
    assert WITHDRAW not in b"".join(leader.heads)


async def test_another_claim_changes_nothing_of_what_is_owed(
    leader: Leader, forwarder: Forwarder
) -> None:
    leader.answer = answered("200 OK", b"{}")
    response = await forwarder.forward(claim(), write=True)
    assert response.undelivered is not None
    response.undelivered()
    for other in (request("/v1/claims"), request("/v1/claims", **{"timeball-request-id": "a b"})):
        await forwarder.forward(other, write=True)
    await heads(leader, 4)
    assert sum(head.startswith(WITHDRAW) for head in leader.heads) == 1


async def test_a_malformed_claim_of_a_client_that_leaves_has_nothing_to_withdraw(
    leader: Leader, forwarder: Forwarder, caplog: pytest.LogCaptureFixture
) -> None:
    leader.answer = b""
    with caplog.at_level(logging.INFO):
        claiming = asyncio.ensure_future(forwarder.forward(request("/v1/claims"), write=True))
        await heads(leader, 1)
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        await asyncio.sleep(0)
    assert "a claim can hold nothing" in caplog.text
    assert len(leader.heads) == 1


async def test_an_answer_to_a_claim_that_is_undelivered_is_withdrawn(
    leader: Leader, forwarder: Forwarder
) -> None:
    leader.answer = answered("200 OK", b"{}")
    response = await forwarder.forward(claim(), write=True)
    assert response.undelivered is not None
    response.undelivered()
    await heads(leader, 2)
    assert leader.heads[1].startswith(WITHDRAW)


@pytest.mark.parametrize("next_leader", [None, ME, "http://another"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/claims"])
async def test_what_waits_for_a_node_that_leads_no_more_is_given_up(
    leader: Leader, forwarder: Forwarder, path: str, next_leader: str | None
) -> None:
    """A leader that is cut off or stopped breaks no connection."""
    leader.answer = b""
    writing = asyncio.ensure_future(forwarder.forward(request(path), write=True))
    reading = asyncio.ensure_future(forwarder.forward(request(), write=False))
    await heads(leader, 2)
    leader.url = next_leader
    with pytest.raises(OutcomeUnknown) as unknown:
        await asyncio.wait_for(writing, LIMIT_S)
    with pytest.raises(Unavailable) as unavailable:
        await asyncio.wait_for(reading, LIMIT_S)
    for caught in (unknown.value, unavailable.value):
        assert (caught.retry_after_ms > 0) == (next_leader is None)
    assert len(leader.heads) == 2, "the client's repeat finds a claim's grants: none is withdrawn"


async def test_what_waits_for_the_leader_waits_on_while_it_leads(
    leader: Leader, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LOOK_S", 0.0)
    leader.answer = b""
    claiming = asyncio.ensure_future(forwarder.forward(claim(), write=True))
    await heads(leader, 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not claiming.done()
    leader.url = None
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(claiming, LIMIT_S)
    assert not forwarder._under_way


async def test_the_limit_of_a_request_is_the_leadership_of_who_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def request() -> None:
        async with forwarder._while_it_leads("http://one"):
            for leader in ("http://one", "http://another"):
                leaders.append(leader)
                for _ in range(50):
                    await asyncio.sleep(0)
                outlived.append(leader)

    monkeypatch.setattr(forward, "LOOK_S", 0.0)
    leaders, outlived = ["http://one"], list[str]()
    forwarder = Forwarder(lambda: leaders[-1], ME)
    with pytest.raises(TimeoutError):
        await request()
    await forwarder.stop()
    assert outlived == ["http://one"], "given up when another leads, not before"


async def test_one_that_is_slow_to_give_up_stops_no_other_from_it(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that has expired cannot be moved again: the look at it must not fail."""

    async def looks() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def slow() -> None:
        async with forwarder._while_it_leads("http://one"):
            try:
                await asyncio.Event().wait()
            finally:
                await looks()

    async def quick() -> None:
        async with forwarder._while_it_leads("http://another"):
            await asyncio.Event().wait()

    monkeypatch.setattr(forward, "LOOK_S", 0.0)
    leaders = ["http://one"]
    forwarder = Forwarder(lambda: leaders[-1], ME)
    first = asyncio.ensure_future(slow())
    await looks()
    leaders.append("http://another")
    second = asyncio.ensure_future(quick())
    with pytest.raises(TimeoutError):
        await first
    leaders.append("http://third")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second, LIMIT_S)
    await forwarder.stop()


async def test_a_stopping_node_names_no_leader_and_withdraws_where_it_claimed(
    leader: Leader, forwarder: Forwarder
) -> None:
    leader.answer = b""
    claiming = asyncio.ensure_future(forwarder.forward(claim(), write=True))
    await heads(leader, 1)
    leader.url, leader.answer = None, answered("200 OK", b"{}")
    forwarder.end_claims()
    with pytest.raises(Unavailable):
        await claiming
    await heads(leader, 2)
    assert leader.heads[1].startswith(WITHDRAW)


async def test_what_is_under_way_when_a_node_stops_is_answered(
    leader: Leader, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LOOK_S", 0.0)
    leader.answer = b""
    creating = asyncio.ensure_future(forwarder.forward(request(), write=True))
    await heads(leader, 1)
    leader.url = None
    forwarder.end_claims()
    done, _ = await asyncio.wait({creating}, timeout=0.05)
    assert not done, "it is not given up"
    creating.cancel()


async def test_a_stopping_node_sends_long_polls_away(leader: Leader, forwarder: Forwarder) -> None:
    leader.answer = b""
    claiming = asyncio.ensure_future(forwarder.forward(claim(), write=True))
    await heads(leader, 1)
    forwarder.end_claims()
    with pytest.raises(Unavailable):
        await claiming
    with pytest.raises(Unavailable):
        await forwarder.forward(claim(), write=True)


@pytest.mark.parametrize("serving", [True, False])
async def test_http_09_a_forwarded_request_is_never_forwarded_again(
    leader: Leader, forwarder: Forwarder, serving: bool
) -> None:
    leader.answer = answered("200 OK", b"{}", "Content-Type: application/json")

    async def not_leading(_request: Request) -> Answered:
        raise NotLeader("b")

    route = Route(method="POST", pattern="/v1/jobs", handler=not_leading, leader=True)
    application = Application(
        [route],
        serving=lambda: serving,
        has_room=lambda: True,
        applied_index=lambda: 7,
        forwarder=forwarder,
    )
    first = request(**{"content-type": "application/json"})
    assert (await application.handle(first)).status == 200
    again = request(**{"content-type": "application/json", "timeball-hops": "1"})
    response = await application.handle(again)
    assert response.status == 503
    problem = msgspec.json.decode(response.body, type=messages.Problem)
    assert problem.type == "urn:timeball:problem:no-leader"
    assert problem.leader == leader.url
    assert response.headers["Retry-After"] == "1"
    assert len(leader.heads) == 1


@pytest.mark.parametrize(
    ("write", "room", "status"),
    [(True, False, 507), (True, True, 503), (False, False, 503)],
)
async def test_raft07_a_write_that_nobody_can_take_names_the_full_disk(
    write: bool, room: bool, status: int
) -> None:
    async def unreached(_request: Request) -> Answered:
        raise AssertionError("this node does not lead")

    route = Route(method="POST", pattern="/v1/jobs", handler=unreached, leader=True, write=write)
    application = Application(
        [route],
        serving=lambda: False,
        has_room=lambda: room,
        applied_index=lambda: 7,
        forwarder=Forwarder(lambda: None, "http://here"),
    )
    response = await application.handle(request(**{"content-type": "application/json"}))
    assert response.status == status
    assert "Retry-After" in response.headers

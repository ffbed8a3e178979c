"""Withdrawals: in batches, one at a time, until they are taken or long enough tried."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from timeball.client import messages
from timeball.client.errors import Unavailable
from timeball.cluster.http import withdrawals
from timeball.cluster.http.exchange import Request, Response
from timeball.cluster.http.withdrawals import PATH, Withdrawals
from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state import operations

DONE = Response(status=200)


class Leader:
    """Takes batches when it is let, with the answers that it is told."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers: list[Response | Exception] = []
        """The next first; `DONE` when there is none."""
        self.let = asyncio.Event()
        self.let.set()

    async def send(self, request: Request) -> Response:
        assert (request.method, request.path) == ("POST", "/v1/claims/withdraw")
        assert request.headers["content-type"] == "application/msgpack"
        body = msgspec.msgpack.decode(request.body, type=messages.Withdrawals)
        self.asked.append(body.request_ids)
        await self.let.wait()
        answer = self.answers.pop(0) if self.answers else DONE
        if isinstance(answer, Exception):
            raise answer
        return answer


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(withdrawals, "FIRST_PAUSE_S", 0.0)
    return Leader()


async def test_what_gathers_while_one_is_under_way_goes_together(leader: Leader) -> None:
    owed = Withdrawals(leader.send)
    leader.let.clear()
    owed.add("first")
    await turns()
    for name in ("a", "b", "a"):
        owed.add(name)
    await turns()
    assert leader.asked == [["first"]], "one at a time"
    leader.let.set()
    await turns()
    assert leader.asked == [["first"], ["a", "b"]]
    owed.add("later")
    await turns()
    assert leader.asked[2:] == [["later"]]
    await owed.stop()


async def test_a_batch_is_no_larger_than_the_leader_takes(leader: Leader) -> None:
    owed = Withdrawals(leader.send)
    names = [str(number) for number in range(messages.MAX_BATCH + 1)]
    for name in names:
        owed.add(name)
    await turns()
    assert leader.asked == [names[:-1], names[-1:]]


@pytest.mark.parametrize(
    "trouble", [Unavailable("no leader is known"), Response(status=503), Response(status=429)]
)
async def test_what_fails_is_tried_again(leader: Leader, trouble: Response | Exception) -> None:
    owed = Withdrawals(leader.send)
    leader.answers = [trouble, trouble]
    owed.add("first")
    await turns(1)
    owed.add("second")
    await turns()
    assert leader.asked == [["first"], ["first", "second"], ["first", "second"]]


async def test_a_claim_that_is_left_again_meanwhile_is_withdrawn_again(leader: Leader) -> None:
    owed = Withdrawals(leader.send)
    leader.let.clear()
    owed.add("again")
    await turns()
    owed.add("again")
    leader.let.set()
    await turns()
    assert leader.asked == [["again"], ["again"]]


async def test_a_claim_that_is_waited_for_again_is_withdrawn_no_more(leader: Leader) -> None:
    """Neither what is owed, nor what the leader has been asked for, and may not take."""
    owed = Withdrawals(leader.send)
    leader.let.clear()
    leader.answers = [Unavailable("no leader is known")]
    for name in ("asked", "gone"):
        owed.add(name)
    await turns()
    owed.add("owed")
    assert len(owed) == 3
    for name in ("asked", "owed", "unknown"):
        owed.forget(name)
    leader.let.set()
    await turns()
    assert leader.asked == [["asked", "gone"], ["gone"]]
    assert not owed


async def test_what_was_tried_for_long_enough_is_left_to_its_lease(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(withdrawals, "PATIENCE_S", 0.0)
    owed = Withdrawals(leader.send)
    leader.answers = [Unavailable("no leader is known")]
    with caplog.at_level(logging.WARNING):
        owed.add("first")
        await turns()
    assert leader.asked == [["first"]]
    assert "1 claims that nobody takes are left to their leases" in caplog.text
    monkeypatch.undo()
    owed.add("second")
    await turns()
    assert leader.asked[1:] == [["second"]]


async def test_what_is_owed_is_bounded(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(withdrawals, "MAX_OWED", 2)
    owed = Withdrawals(leader.send)
    with caplog.at_level(logging.WARNING):
        for name in ("a", "b", "c"):
            owed.add(name)
        await turns()
    assert leader.asked == [["a", "b"]]
    assert "left to its lease" in caplog.text


async def test_a_node_that_stops_owes_nothing(leader: Leader) -> None:
    owed = Withdrawals(leader.send)
    leader.let.clear()
    owed.add("first")
    await turns()
    owed.add("second")
    await owed.stop()
    leader.let.set()
    await turns()
    owed.add("late")
    await turns()
    assert leader.asked == [["first"]]


async def leased(desk: Any, *request_ids: str) -> list[str]:
    """Executions that these claims hold, three each."""
    held: list[str] = []
    for request_id in request_ids:
        jobs = [int(await desk.create(), 10) for _ in range(3)]
        due_ms = desk.log.now_ms
        desk.log.apply(operations.Claim("w", request_id, 10_000, [(job, due_ms) for job in jobs]))
        held += [messages.encode_execution_id(job, due_ms) for job in jobs]
    desk.proposed.clear()
    return held


async def test_a_leader_gives_back_a_batch_of_executions_at_a_time(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims may hold a thousand each, and there may be a thousand of them."""
    monkeypatch.setattr(messages, "MAX_BATCH", 5)
    names = ["a", "b", "c", "d", "e"]
    held = await leased(desk, *names)
    reply = await desk.ask("POST", PATH, {"request_ids": [*names, "a", "unknown"]})
    assert reply.status == 200
    assert [result["execution_id"] for result in reply.body["results"]] == held
    assert {result["verdict"] for result in reply.body["results"]} == {"accepted"}
    assert [len(operation.holds) for operation in desk.proposed] == [6, 6, 3]


@pytest.mark.parametrize(("failing", "problem"), [(1, "overloaded"), (2, "outcome-unknown")])
async def test_what_fails_after_a_part_was_given_back_leaves_the_outcome_open(
    desk: Any, monkeypatch: pytest.MonkeyPatch, failing: int, problem: str
) -> None:
    monkeypatch.setattr(messages, "MAX_BATCH", 3)
    await leased(desk, "a", "b")

    def fail(_operation: object) -> None:
        if len(desk.proposed) == failing - 1:
            raise Overloaded

    desk.before = fail
    reply = await desk.ask("POST", PATH, {"request_ids": ["a", "b"]})
    assert reply.body["type"] == f"urn:timeball:problem:{problem}"

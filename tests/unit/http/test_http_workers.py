"""Workers over HTTP: what they are told, and what is no worker's name."""

from __future__ import annotations

import pytest

from timeball.cluster.state import limits

WORKER = "/v1/workers/w%2F1"
NOTHING = {"name": "w/1", "instruction": None, "instructed_at": None, "applied_index": 7}


async def test_a_worker_is_told_something_and_nothing_any_more(desk) -> None:
    reply = await desk.ask("GET", WORKER)
    assert (reply.status, reply.body) == (200, NOTHING)
    for verb in ("quiet", "terminate"):
        reply = await desk.ask("POST", f"{WORKER}/{verb}")
        assert (reply.status, reply.body["instruction"]) == (200, verb)
        assert reply.body["instructed_at"].endswith("Z")
        assert (await desk.ask("GET", WORKER)).body == reply.body
    for _ in range(2):
        reply = await desk.ask("POST", f"{WORKER}/resume", {})
        assert (reply.status, reply.body) == (200, NOTHING)


async def test_one_too_many_is_refused_and_told_why(desk, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 1)
    await desk.ask("POST", f"{WORKER}/quiet")
    reply = await desk.ask("POST", "/v1/workers/another/quiet")
    assert (reply.status, reply.body["type"]) == (429, "urn:timeball:problem:overloaded")
    assert "resume some" in reply.body["detail"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_no_name_is_refused(desk, method) -> None:
    verb = "/quiet" if method == "POST" else ""
    reply = await desk.ask(method, f"/v1/workers/{'w' * 129}{verb}")
    assert (reply.status, reply.field) == (400, "worker")
    assert not desk.proposed


async def test_a_field_and_a_parameter_that_it_does_not_know_are_refused(desk) -> None:
    reply = await desk.ask("POST", f"{WORKER}/quiet", {"for_ms": 5})
    assert (reply.status, reply.field) == (400, "for_ms")
    reply = await desk.ask("POST", f"{WORKER}/quiet?for_ms=5")
    assert (reply.status, reply.field) == (400, "for_ms")

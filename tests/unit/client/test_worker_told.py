"""Workers that are told to be quiet or to end: the worker, the calls and the command line."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from click.testing import CliRunner

from timeball.client import Client, SyncClient, Worker
from timeball.client.cli import main

CLAIMS = "/v1/claims"
BEAT = "/v1/executions/heartbeat"
COMPLETE = "/v1/executions/complete"
RELEASE = "/v1/executions/release"
TOLD = {
    "name": "w 1", "instruction": "quiet", "instructed_at": "2025-11-30T00:00:00.000Z",
    "applied_index": 3,
}  # fmt: skip


def telling(kit, instruction):
    """An empty answer to a claim that tells the worker something."""

    async def play(seen):
        body = {"request_id": seen.body["request_id"], "executions": []}
        return kit.Answer(200, {**body, "instruction": instruction})

    return play


def beating(kit, instruction):
    async def play(seen):
        answer = kit.beats(seen, "extended")
        for result in answer.body["results"]:
            result["instruction"] = instruction
        return answer

    return play


async def nothing(context) -> None:
    """Succeed."""


def test_a_quiet_worker_asks_seldom_and_works_again_when_it_is_resumed(kit, caplog) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, *[telling(kit, "quiet")] * 3, kit.granted(kit.delivery(1)))
            async with Worker(client, "default", nothing, name="w"):
                await peer.until(lambda: peer.to(COMPLETE))
            at = [seen.at for seen in peer.to(CLAIMS)]
            assert [round(after - before) for before, after in pairwise(at[:4])] == [2, 2, 2]

    kit.run(scenario())
    said = [record.message for record in caplog.records]
    assert said == ["w is told: quiet", "w is told: resume"]


def test_a_quiet_worker_finishes_what_it_has(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            go_on = asyncio.Event()

            async def handler(context):
                await go_on.wait()

            peer.then(CLAIMS, kit.granted(kit.delivery(1), kit.delivery(2)))
            peer.usual[CLAIMS] = telling(kit, "quiet")
            peer.usual[BEAT] = beating(kit, "quiet")
            async with Worker(
                client, "default", handler, concurrency=1, prefetch=1, lease_ms=3_000
            ) as worker:
                await peer.until(lambda: len(peer.to(BEAT)) == 3)
                go_on.set()
                await peer.until(lambda: len(peer.to(CLAIMS)) == 3)
                assert worker.counts == {"claimed": 2, "completed": 2}

    kit.run(scenario())


@pytest.mark.parametrize("by", ["claim", "heartbeat"])
def test_a_worker_that_is_told_to_end_drains_and_returns(kit, by) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            go_on = asyncio.Event()

            async def handler(context):
                await go_on.wait()

            slots = 2 if by == "claim" else 1
            peer.then(CLAIMS, kit.granted(kit.delivery(1), kit.delivery(2)))
            peer.usual[CLAIMS] = telling(kit, "terminate")
            if by == "heartbeat":
                peer.usual[BEAT] = beating(kit, "terminate")
            worker = Worker(
                client, "default", handler, concurrency=slots, prefetch=1, lease_ms=3_000
            )
            running = asyncio.create_task(worker.run(grace_ms=20_000))
            if by == "heartbeat":  # and what waits for a slot is given back
                await peer.until(lambda: peer.to(RELEASE))
            else:
                await peer.until(lambda: len(peer.to(BEAT)) == 2)
            assert not running.done()
            go_on.set()
            await running
            expected = {"claimed": 2, "completed": 2}
            if by == "heartbeat":
                expected = {"claimed": 2, "completed": 1, "released": 1}
            assert worker.counts == expected

    kit.run(scenario())


def test_a_handler_that_goes_on_beyond_the_grace_is_told_to_end(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:

            async def handler(context):
                await asyncio.Event().wait()

            peer.then(CLAIMS, kit.granted(kit.delivery(1)))
            peer.usual[CLAIMS] = telling(kit, "terminate")
            worker = Worker(client, "default", handler, lease_ms=3_000)
            began = asyncio.get_running_loop().time()
            await worker.run(grace_ms=4_000)
            assert 4 <= asyncio.get_running_loop().time() - began < 5
            assert worker.counts == {"claimed": 1, "released": 1}

    kit.run(scenario())


def test_the_calls_name_the_worker_and_what_it_is_told(kit) -> None:
    with kit.serving() as peer:
        path = "/v1/workers/w%201"
        peer.then(path, kit.Answer(200, {**TOLD, "instruction": None, "instructed_at": None}))
        for verb in ("quiet", "terminate", "resume"):
            peer.then(f"{path}/{verb}", kit.Answer(200, {**TOLD, "instruction": None}))
        with SyncClient(peer.url) as client:
            assert client.worker("w 1", min_index=2).instruction is None
            for call in (client.quiet_worker, client.terminate_worker, client.resume_worker):
                assert call("w 1").name == "w 1"
        asked = [(seen.method, seen.path, seen.query, seen.body) for seen in peer.seen]
    assert asked == [
        ("GET", path, {"min_index": "2"}, None),
        *(("POST", f"{path}/{verb}", {}, None) for verb in ("quiet", "terminate", "resume")),
    ]


@pytest.mark.parametrize("verb", ["show", "quiet", "terminate", "resume"])
def test_workers_on_the_command_line(kit, verb) -> None:
    with kit.serving() as peer:
        path = "/v1/workers/w%201" + ("" if verb == "show" else f"/{verb}")
        peer.then(path, *[kit.Answer(200, TOLD)] * 2)
        env = {"TIMEBALL_URLS": peer.url}
        shown = CliRunner().invoke(main, ["workers", verb, "w 1"], env=env)
        assert shown.exit_code == 0, shown.output
        assert "quiet" in shown.output
        told = CliRunner().invoke(main, ["workers", verb, "w 1", "--json"], env=env)
        assert json.loads(told.output) == TOLD

"""Progress that handlers tell: what can be sent, and that it rides on heartbeats."""

from __future__ import annotations

import asyncio
import datetime
import itertools

import msgspec
import pytest
from kinds import tell_and_wait

from timeball.client import Client, Worker
from timeball.client.progress import pack_progress

BEAT, CLAIMS, COMPLETE = "/v1/executions/heartbeat", "/v1/claims", "/v1/executions/complete"


def extending(kit, lease_ms):
    """Heartbeats answered as by a cluster that grants such leases."""

    async def answer(seen):
        return kit.beats(seen, "extended", lease_ms=lease_ms)

    return answer


def told(peer):
    return [item.get("progress") for seen in peer.to(BEAT) for item in seen.body["items"]]


@pytest.mark.parametrize("value", [40, 0.5, "half", {"rows": 12_000, "of": [1, None]}, True, []])
def test_what_json_has_is_packed(value) -> None:
    assert msgspec.msgpack.decode(pack_progress(value)) == value


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (object(), TypeError, "the progress"),
        ({1: 2}, TypeError, "keys"),
        (msgspec.msgpack.Ext(1, b"x"), TypeError, "holds a Ext"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), TypeError, "holds a datetime"),
        (2**64, TypeError, "the progress"),
        (float("nan"), ValueError, "not a number"),
        ({"a": [float("inf")]}, ValueError, "not a number"),
        ("x" * 1_023, ValueError, "1026 bytes as MessagePack, at most 1024"),
        ([[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]], ValueError, "deep"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:12],
)
def test_what_the_node_would_refuse_is_refused_in_the_handler(value, error, said) -> None:
    with pytest.raises(error, match=said):
        pack_progress(value)


def test_progress_rides_on_a_heartbeat_a_second_at_most_and_on_all_that_follow(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            for number in range(40):
                context.progress(number)
                await asyncio.sleep(0.1)
            await asyncio.Event().wait()

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(1, lease_ms=60_000)))
            peer.usual[BEAT] = extending(kit, 60_000)
            async with Worker(client, "default", handler, concurrency=1) as worker:
                # Of a minute's lease the first heartbeat would come after twenty seconds.
                await peer.until(lambda: len(peer.to(BEAT)) == 5)
                assert told(peer)[0] == 0
                assert told(peer)[1:4] == sorted(told(peer)[1:4])
                assert told(peer)[4] == 39
                times = [seen.at for seen in peer.to(BEAT)]
                gaps = [after - before for before, after in itertools.pairwise(times)]
                assert all(gap >= 0.99 for gap in gaps)
                await peer.until(lambda: len(peer.to(BEAT)) == 6)
                assert told(peer)[5] == 39
                assert peer.to(BEAT)[5].at - peer.to(BEAT)[4].at > 10
                await worker.stop(0)

    kit.run(scenario())


def test_progress_that_a_failed_heartbeat_carried_is_told_again(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            context.progress({"done": 7})
            await asyncio.Event().wait()

        async with kit.peers(1) as [peer], Client(peer.url, attempt_timeout_ms=500) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(1, lease_ms=3_000)))

            async def silent(seen):
                await asyncio.sleep(3_600)

            peer.then(BEAT, silent)
            async with Worker(client, "default", handler, concurrency=1) as worker:
                await peer.until(lambda: len(peer.to(BEAT)) >= 3)
                assert told(peer)[:3] == [{"done": 7}] * 3
                await worker.stop(0)

    kit.run(scenario())


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_threads_and_processes_tell_progress_too(kit, run_in) -> None:
    async with kit.peers(1) as [peer], Client(peer.url) as client:
        peer.then(CLAIMS, kit.granted(kit.delivery(1, lease_ms=60_000)))
        peer.usual[BEAT] = extending(kit, 60_000)
        worker = Worker(client, "default", tell_and_wait, concurrency=1, run_in=run_in)
        async with worker:
            await peer.until(lambda: "last" in told(peer))
            await worker.stop(0)
        assert not peer.to(COMPLETE)

"""Handlers in threads and processes: real ones, against scripted peers, in real time."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
from kinds import describe, mark_then_hang, misbehave, obedient, outlive_a_signal, stubborn

from timeball.client import Client, Worker

CLAIMS = "/v1/claims"
BEAT = "/v1/executions/heartbeat"
COMPLETE = "/v1/executions/complete"
FAIL = "/v1/executions/fail"
RELEASE = "/v1/executions/release"


async def work(kit, handler, *grants, then, stop_ms=5_000, **options):
    """Run a worker on scripted claims until `then(peer, worker)` is over; give the peer."""
    options = {"lease_ms": 3_000, "wait_ms": 200, **options}
    async with kit.peers(1) as [peer], Client(peer.url) as client:
        peer.then(CLAIMS, *grants)
        async with asyncio.timeout(30):
            worker = Worker(client, "default", handler, **options)
            worker.start()
            await then(peer, worker)
            await worker.stop(stop_ms)
        return peer, worker


def seen(path, count=1):
    async def wait(peer, _):
        await peer.until(lambda: sum(len(s.body["items"]) for s in peer.to(path)) >= count)

    return wait


def items(peer, path):
    return [item for request in peer.to(path) for item in request.body["items"]]


async def test_a_plain_function_runs_in_threads_of_a_bounded_pool(kit) -> None:
    together = threading.Barrier(3)

    def handler(context):
        together.wait(10)  # three at a time, or nobody goes on
        return describe(context)

    grant = kit.granted(*[kit.delivery(n) for n in range(9)])
    peer, _ = await work(kit, handler, grant, then=seen(COMPLETE, 9), concurrency=3, prefetch=6)
    results = [item["result"] for item in items(peer, COMPLETE)]
    assert {pid for pid, *_ in results} == {os.getpid()}
    idents = {ident for _, ident, *_ in results}
    assert len(idents) == 3
    assert threading.get_ident() not in idents
    assert sorted(payload["number"] for _, _, payload, *_ in results) == list(range(9))


async def test_processes_are_others_and_are_kept_for_the_next(kit) -> None:
    grant = kit.granted(*[kit.delivery(n) for n in range(6)])
    peer, _ = await work(
        kit, describe, grant, then=seen(COMPLETE, 6), concurrency=2, prefetch=4, run_in="process"
    )
    results = [item["result"] for item in items(peer, COMPLETE)]
    pids = {pid for pid, *_ in results}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    assert sorted(token for *_, token, _ in results) == list(range(1_000, 1_006))


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_exceptions_steer_the_next_attempt_from_anywhere(kit, run_in) -> None:
    payloads = ["later", "poison", "leaves", "unkept", "fine"]
    grant = kit.granted(*[kit.delivery(n, payload=what) for n, what in enumerate(payloads)])

    async def then(peer, worker):
        await seen(FAIL, 4)(peer, worker)
        await seen(COMPLETE, 1)(peer, worker)

    few = {"concurrency": 1, "prefetch": 5}
    peer, _ = await work(kit, misbehave, grant, then=then, run_in=run_in, **few)
    told = {item["token"] - 1_000: item for item in items(peer, FAIL)}
    assert (told[0]["error_type"], told[0]["retry_after_ms"]) == ("RetryLater", 250)
    assert (told[1]["non_retryable"], told[1]["message"]) == (True, "never")
    assert "SystemExit" in told[2]["error_type"] + told[2]["message"]
    assert "result" in told[3]["message"]
    assert items(peer, COMPLETE)[0]["result"][1] == "fine"


@pytest.mark.parametrize(("what", "how"), [("dies", "SIGKILL"), ("exits", "exit code 139")])
async def test_retr_03_a_handler_that_kills_its_process_fails_and_the_worker_lives(
    kit, what, how
) -> None:
    first, second = (
        kit.granted(kit.delivery(1, payload=what)),
        kit.granted(kit.delivery(2, payload="fine")),
    )
    peer, worker = await work(
        kit, misbehave, first, second, then=seen(COMPLETE), concurrency=1, run_in="process"
    )
    [failure] = items(peer, FAIL)
    assert failure["error_type"] == "ProcessDied"
    assert how in failure["message"]
    assert not failure["non_retryable"]
    assert worker.counts == {"claimed": 2, "failed": 1, "completed": 1}


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_leas_11_a_lost_lease_is_told_in_threads_and_processes(kit, run_in) -> None:
    """Heartbeats have no answer; LeaseLost is raised at the local deadline all the same."""

    async def silent(seen):
        await asyncio.sleep(30)

    async def then(peer, worker):
        peer.usual[BEAT] = silent
        await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
        assert worker.counts["lost"] == 1

    grant = kit.granted(kit.delivery(1, lease_ms=1_000))
    peer, _ = await work(kit, obedient, grant, then=then, run_in=run_in, concurrency=1)
    assert not peer.to(COMPLETE) + peer.to(FAIL) + peer.to(RELEASE)


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_a_cancelled_job_is_told_in_threads_and_processes(kit, run_in) -> None:
    async def cancel(seen):
        return kit.beats(seen, "cancel_requested")

    async def then(peer, worker):
        peer.usual[BEAT] = cancel
        await seen(RELEASE)(peer, worker)

    grant = kit.granted(kit.delivery(1, lease_ms=600))
    peer, worker = await work(kit, obedient, grant, then=then, run_in=run_in)
    assert not peer.to(COMPLETE) + peer.to(FAIL)
    assert worker.counts["released"] == 1


async def test_a_process_that_does_not_end_when_told_to_is_ended(kit, tmp_path) -> None:
    mark = tmp_path / "pid"

    async def cancel(seen):
        return kit.beats(seen, "cancel_requested")

    async def then(peer, worker):
        await asyncio.to_thread(_until_written, mark)
        peer.usual[BEAT] = cancel
        await seen(RELEASE)(peer, worker)

    grant = kit.granted(kit.delivery(1, lease_ms=900, payload=str(mark)))
    await work(kit, mark_then_hang, grant, then=then, run_in="process")
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


async def test_a_signal_to_the_whole_group_ends_no_handler(kit) -> None:
    """The worker drains: its processes must not die of the same SIGTERM."""
    grant = kit.granted(kit.delivery(1))
    peer, _ = await work(kit, outlive_a_signal, grant, then=seen(COMPLETE), run_in="process")
    assert items(peer, COMPLETE)[0]["result"] == "drained"


async def test_a_stopping_worker_releases_what_its_processes_leave_undone(kit) -> None:
    async def then(peer, worker):
        await peer.until(lambda: peer.to(BEAT))

    grant = kit.granted(kit.delivery(1, lease_ms=900))
    peer, worker = await work(kit, stubborn, grant, then=then, stop_ms=0, run_in="process")
    assert [item["token"] for item in items(peer, RELEASE)] == [1_001]
    assert worker.counts["released"] == 1


async def test_a_thread_that_hangs_is_left_and_its_lease_is_not_released(kit) -> None:
    async def then(peer, worker):
        await peer.until(lambda: peer.to(BEAT))

    grant = kit.granted(kit.delivery(1, lease_ms=900))
    began = time.monotonic()
    peer, _ = await work(kit, stubborn, grant, then=then, stop_ms=0)
    assert time.monotonic() - began < 15
    assert not peer.to(RELEASE)


async def test_a_slot_is_free_only_once_its_thread_is(kit) -> None:
    """A lost lease does not end a thread: another handler must not run beyond the bound."""
    go, told = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def handler(context):
        if context.token == 1_001:
            assert context.lost.wait_in_thread(20_000)
            loop.call_soon_threadsafe(told.set)
            go.wait(20)

    async def lost(seen):
        return kit.beats(seen, "lost")

    async def then(peer, worker):
        peer.then(BEAT, lost)
        await told.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (len(peer.to(CLAIMS)), worker.counts["lost"]) == (1, 0)
        go.set()
        await seen(COMPLETE)(peer, worker)

    first, second = (kit.granted(kit.delivery(n, lease_ms=600)) for n in (1, 2))
    peer, worker = await work(kit, handler, first, second, then=then, concurrency=1)
    assert [item["token"] for item in items(peer, COMPLETE)] == [1_002]
    assert worker.counts["lost"] == 1


async def test_a_plain_function_that_makes_a_coroutine_is_told_so(kit) -> None:
    async def meant(context):
        return 1

    grant = kit.granted(kit.delivery(1))
    peer, _ = await work(kit, lambda context: meant(context), grant, then=seen(FAIL))
    assert "make it async" in items(peer, FAIL)[0]["message"]


def _until_written(path) -> None:
    while not (path.exists() and path.read_text()):
        time.sleep(0.005)

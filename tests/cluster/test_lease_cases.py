"""Leases on real nodes: zombies, lost answers, workers that end too early, bounds."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from leaving import send_and_leave

from timeball.client import Client
from timeball.client.messages import Hold, Success
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEASE_LOST = (409, "urn:timeball:problem:lease-lost")
LONG_LEASE_MS = 600_000
CLAIMS_THEN_HANGS = """
import asyncio, sys
from timeball.client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        claimed = await client.claim(
            worker="first", queue=sys.argv[2], wait_ms=20_000, lease_ms=1_500
        )
        print(claimed.executions[0].token, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
POLLS = """
import asyncio, sys
from timeball.client import Client, Worker

async def handler(context):
    pass

async def main():
    async with Client(sys.argv[1]) as client:
        worker = Worker(client, sys.argv[2], handler, lease_ms=600_000, wait_ms=30_000)
        print("begins", flush=True)
        await worker.run()

asyncio.run(main())
"""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition of the cluster, within a bound that only a failure reaches."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 (the condition lives in other processes)
            await asyncio.sleep(0.02)


async def post(url: str, body: object) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return answer.status, await answer.json(content_type=None)


async def claim(client: Client, queue: str, **rest: Any) -> Any:
    claimed = await client.claim(worker="w", queue=queue, wait_ms=10_000, **rest)
    return claimed.executions[0]


async def test_leas_01_all_that_a_zombie_sends_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    """Its lease ran out and another worker holds the execution; tokens rise over a fail-over."""
    async with LocalCluster.in_folder(tmp_path) as cluster, Client(cluster.urls) as client:
        await client.create(queue="zombies")
        first = await claim(client, "zombies", lease_ms=500)
        second = await claim(client, "zombies", lease_ms=LONG_LEASE_MS)
        assert second.execution_id == first.execution_id
        assert second.token > first.token
        before = await client.execution(first.execution_id, consistency="strong")
        for url in cluster.urls:
            for verb, more in (
                ("complete", {"result": 1}),
                ("fail", {"message": "late"}),
                ("heartbeat", {}),
                ("heartbeat", {"progress": 1}),
                ("start", {}),
                ("release", {}),
            ):
                path = f"{url}/v1/executions/{first.execution_id}/{verb}"
                status, problem = await post(path, {"token": first.token, **more})
                assert (status, problem["type"]) == LEASE_LOST, verb
        assert await client.execution(first.execution_id, consistency="strong") == before
        await cluster.kill(await cluster.leader())
        (released,) = await client.release([Hold(second.execution_id, second.token)])
        assert released.verdict == "accepted"
        third = await claim(client, "zombies")
        assert third.token > second.token
        (late,) = await client.complete([Success(first.execution_id, first.token)])
        assert late.verdict == "stale"
        (done,) = await client.complete([Success(third.execution_id, third.token)])
        assert done.verdict == "accepted"


async def test_leas_03_a_completion_whose_answer_is_lost_can_be_repeated_anywhere(
    tmp_path: Path,
) -> None:
    """The connection goes after the commit; then another result; then after the trimming."""
    limits = {"keep_finished": 1}
    cluster = LocalCluster.in_folder(tmp_path, limits=limits)
    async with cluster, Client(cluster.urls, read_your_writes=True) as client:
        for node in cluster.settings.nodes:  # one of them leads, the others pass it on
            await client.create(queue="repeats")
            held = await claim(client, "repeats", lease_ms=LONG_LEASE_MS)
            item = Success(held.execution_id, held.token, result={"n": 1})
            body = msgspec.json.encode({"items": [item]})
            send_and_leave(node.http.port, "/v1/executions/complete", body)

            async def is_done(execution_id: str = held.execution_id) -> bool:
                return (await client.execution(execution_id)).state == "succeeded"

            await until(is_done)
        path = f"/v1/executions/{held.execution_id}/complete"
        for url in cluster.urls:
            status, answer = await post(url + path, {"token": held.token, "result": {"n": 1}})
            assert (status, answer["verdict"]) == (200, "duplicate")
            status, answer = await post(url + path, {"token": held.token, "result": {"n": 2}})
            assert (status, answer["type"]) == (409, "urn:timeball:problem:conflict")
        view = await client.execution(held.execution_id, consistency="strong")
        assert view.result == {"n": 1}
        for _ in range(3):
            await client.create(queue="repeats")
            other = await claim(client, "repeats")
            await client.complete([Success(other.execution_id, other.token)])
        status, answer = await post(cluster.urls[1] + path, {"token": held.token, "result": 1})
        assert (status, answer["type"]) == (404, "urn:timeball:problem:not-found")
        (again,) = await client.complete([item])
        assert again.verdict == "unknown", "which a worker counts as done long ago"


async def test_leas_05_a_worker_that_is_killed_when_its_claim_is_answered_holds_for_one_lease(
    shared_cluster: LocalCluster,
) -> None:
    async with Client(shared_cluster.urls) as client:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLAIMS_THEN_HANGS, ",".join(shared_cluster.urls), "killed"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert worker.stdout is not None
        try:
            created = await client.create(queue="killed")
            token = int(await worker.stdout.readline())
        finally:
            worker.kill()
            await worker.wait()
        # Sooner than by its lease nobody can know; by then the backoff has begun, and ends.
        again = await claim(client, "killed")
        assert again.execution_id == created.execution_id
        assert again.token > token
        view = await client.execution(created.execution_id, consistency="strong")
        assert [one.outcome for one in view.attempts] == ["lease_expired", "open"]
        await client.complete([Success(again.execution_id, again.token)])


async def test_leas_05_a_worker_that_ends_with_a_poll_under_way_leaves_nothing_behind(
    shared_cluster: LocalCluster,
) -> None:
    """SIGTERM, and work comes in that very moment: its lease would last ten minutes."""
    async with Client(shared_cluster.urls, read_your_writes=True) as client:
        for _ in range(5):
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", POLLS, ",".join(shared_cluster.urls), "ended"),
                stdout=asyncio.subprocess.PIPE,
            )
            assert worker.stdout is not None
            try:
                await worker.stdout.readline()

                async def polls() -> bool:
                    view = await shared_cluster.view(await shared_cluster.leader())
                    assert view is not None
                    return any(one.name == "ended" and one.waiting_claims for one in view.queues)

                first = await client.create(queue="ended")

                async def is_done(execution_id: str = first.execution_id) -> bool:
                    return (await client.execution(execution_id)).state == "succeeded"

                await until(is_done)
                await until(polls)
                worker.send_signal(signal.SIGTERM)
                created = await client.create(queue="ended")
                async with asyncio.timeout(30):
                    assert await worker.wait() == 0
            finally:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()
            view = await client.execution(created.execution_id, consistency="strong")
            if view.state != "succeeded":  # it came too late for the worker, or was released
                left = await claim(client, "ended")
                assert (left.execution_id, left.attempt) == (created.execution_id, 1)
                await client.complete([Success(left.execution_id, left.token)])


@pytest.mark.parametrize("lease_ms", [3_600_001, 10 * 366 * 86_400_000, 499, True, "5000"])
async def test_leas_11_a_lease_is_bounded_and_told_as_a_length(
    shared_cluster: LocalCluster, lease_ms: object
) -> None:
    body = {"queue": "bounded", "worker": "w", "lease_ms": lease_ms}
    for url in shared_cluster.urls:
        status, problem = await post(f"{url}/v1/claims", body)
        assert status == 400
        assert problem["errors"][0]["field"] == "lease_ms"


async def test_leas_11_past_its_timeout_an_attempt_is_lost_however_long_its_lease(
    shared_cluster: LocalCluster,
) -> None:
    async with Client(shared_cluster.urls, read_your_writes=True) as client:
        await client.create(queue="timed", timeout_ms=1_000)
        held = await claim(client, "timed", lease_ms=3_600_000)
        path = f"{shared_cluster.urls[0]}/v1/executions/{held.execution_id}/heartbeat"
        status, answer = await post(path, {"token": held.token})
        assert (status, answer["verdict"]) == (200, "extended")
        assert 0 < answer["lease_remaining_ms"] <= 1_001

        async def is_over() -> bool:
            return (await post(path, {"token": held.token}))[0] == 409

        await until(is_over)

        async def is_timed_out() -> bool:
            view = await client.execution(held.execution_id)
            return [one.outcome for one in view.attempts] == ["timed_out"]

        await until(is_timed_out)
        await client.cancel(held.job_id)

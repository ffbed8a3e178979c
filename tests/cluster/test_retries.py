"""Retries on real nodes: what a policy may be, workers that die, and many dead letters at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from timeball.client import Client, NewJob, NonRetryable, Retry, Worker
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOST_WORKER = """
import asyncio, os, sys
from timeball.client import Client, Worker

async def handler(context):
    if context.payload == "kill":
        os._exit(139)

async def main():
    async with Client(sys.argv[1]) as client:
        await Worker(client, "fatal", handler, concurrency=4, lease_ms=1_000, wait_ms=200).run()

asyncio.run(main())
"""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition of the cluster, within a bound that only a failure reaches."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 (the condition lives in other processes)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("where", ["/v1/jobs", "/v1/jobs/batch"])
async def test_retr_02_max_attempts_is_an_integer_of_at_least_one(
    shared_cluster: LocalCluster, where: str
) -> None:
    prefix = "" if where == "/v1/jobs" else "jobs[0]."
    async with aiohttp.ClientSession() as session, Client(shared_cluster.urls) as client:
        before = (await client.cluster(consistency="strong")).totals["created"]
        for wrong in (0, -1, True, False, "3", 2**31, 2**64, 1.0, 2.5, None):
            job = {"queue": "retr", "retry": {"max_attempts": wrong}}
            body = job if where == "/v1/jobs" else {"jobs": [job]}
            for url in shared_cluster.urls:
                async with session.post(url + where, json=body) as answer:
                    problem = await answer.json(content_type=None)
                assert answer.status == 400, (wrong, problem)
                assert problem["errors"][0]["field"] == f"{prefix}retry.max_attempts", wrong
        assert (await client.cluster(consistency="strong")).totals["created"] == before
        for right in (1, 2, 10_000):
            created = await client.create(queue="retr", retry=Retry(max_attempts=right))
            view = await client.job(created.job_id, consistency="strong")
            assert view.retry.max_attempts == right


async def test_retr_03_a_job_that_kills_its_workers_is_dead_after_its_attempts(
    tmp_path: Path,
) -> None:
    """Three workers whose supervisors start them again; the other jobs go on meanwhile."""
    cluster = LocalCluster.in_folder(tmp_path)
    deaths = 0

    async def supervise() -> None:
        nonlocal deaths
        while True:
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", LOST_WORKER, ",".join(cluster.urls))
            )
            try:
                assert await worker.wait() == 139
                deaths += 1
            finally:
                if worker.returncode is None:
                    worker.kill()
                    await worker.wait()

    async with cluster, Client(cluster.urls, read_your_writes=True) as client:
        retry = Retry(max_attempts=5, initial_ms=50, backoff="fixed")
        killer = await client.create(queue="fatal", payload="kill", retry=retry)
        others = [await client.create(queue="fatal", retry=retry) for _ in range(20)]

        async def all_have_ended() -> bool:
            views = [await client.execution(job.execution_id) for job in (killer, *others)]
            return [view.state for view in views] == ["dead", *["succeeded"] * len(others)]

        async with asyncio.TaskGroup() as group:
            supervisors = [group.create_task(supervise()) for _ in range(3)]
            await until(all_have_ended)
            for task in supervisors:
                task.cancel()
        view = await client.execution(killer.execution_id, consistency="strong")
        assert view.reason == "attempts_exhausted:lease_expired"
        assert [one.outcome for one in view.attempts] == ["lease_expired"] * 5
        assert deaths == 5


async def test_many_dead_letters_are_replayed_and_purged_by_what_they_died_of(
    tmp_path: Path,
) -> None:
    failing = True

    async def handler(context):
        if failing:
            raise NonRetryable("down") if context.payload % 2 else KeyError("wrong")

    cluster = LocalCluster.in_folder(tmp_path)
    async with cluster, Client(cluster.urls, read_your_writes=True) as client:
        retry = Retry(max_attempts=1)
        await client.create_many([NewJob(payload=number, retry=retry) for number in range(2_500)])

        async def count(**wanted):
            found = [one async for one in client.dead(**wanted, page_size=1_000)]
            return len(found)

        async def reached(total: str, least: int) -> bool:
            return (await client.cluster()).totals[total] >= least

        async with Worker(client, "default", handler, concurrency=500):
            await until(lambda: reached("died", 2_500))
            letter = await anext(client.dead(error_type="KeyError", consistency="strong"))
            assert "in handler" in letter.attempts[0].backtrace
            assert await count(reason="non_retryable") == 1_250
            assert await client.purge_matching(error_type="NonRetryable", limit=1_100) == 1_100
            assert await count(error_type="NonRetryable", consistency="strong") == 150
            failing = False
            assert await client.replay_matching(error_type="KeyError") == 1_250
            assert await client.replay_matching(error_type="KeyError") == 0
            assert await client.purge_matching(queue="default") == 150
            await until(lambda: reached("succeeded", 1_250))
        assert await count(consistency="strong") == 0
        assert (await client.cluster(consistency="strong")).totals["purged"] == 1_250

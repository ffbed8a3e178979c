"""The client library against a real cluster: three processes, real sockets, SIGKILL."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from timeball.client import After, Client, Every, NewJob, NonRetryable, Retry, Worker
from timeball.client.cli import main
from timeball.cluster.localcluster import LocalCluster

QUICK = Retry(max_attempts=3, initial_ms=50, max_ms=100, jitter_pct=0)
LATER = After(delay_ms=3_600_000)


async def until(client: Client, job_id: str, state: str) -> None:
    """Wait until a job's only execution is in a state, as the cluster tells it."""
    async with asyncio.timeout(30):
        while True:
            async for execution in client.executions(job=job_id):
                if execution.state == state:
                    return
            await asyncio.sleep(0.02)


async def test_jobs_run_fail_die_replay_and_are_cancelled(tmp_path: Path) -> None:
    attempts: Counter[str] = Counter()
    held = asyncio.Event()

    async def handler(context):
        kind = context.payload
        attempts[kind] += 1
        if kind == "flaky" and attempts[kind] < 3:
            raise ValueError("not yet")
        if kind == "poison" and attempts[kind] == 1:
            raise NonRetryable("never")
        if kind == "endless":
            held.set()
            await context.cancelled.wait()
            await asyncio.Event().wait()
        return kind

    cluster = LocalCluster.in_folder(tmp_path)
    async with cluster, Client(cluster.urls) as client:
        async with Worker(client, "default", handler, lease_ms=1_500):
            plain = await client.create(payload="plain")
            flaky = await client.create(payload="flaky", retry=QUICK)
            poison = await client.create(payload="poison", schedule=After(delay_ms=100))
            endless = await client.create(payload="endless")
            for job, state in ((plain, "succeeded"), (flaky, "succeeded"), (poison, "dead")):
                await until(client, job.job_id, state)
            assert attempts["flaky"] == 3
            [letter] = [letter async for letter in client.dead()]
            assert letter.attempts[-1].message == "never"
            [replayed] = await client.replay([letter.execution_id])
            assert replayed.status == "replayed"
            await until(client, poison.job_id, "succeeded")
            await held.wait()
            assert (await client.cancel(endless.job_id)).status == "requested"
            await until(client, endless.job_id, "cancelled")
        view = await client.execution(plain.execution_id)
        assert (view.result, view.attempts[0].outcome) == ("plain", "succeeded")
        told = await asyncio.to_thread(
            CliRunner().invoke, main, ["execution", "list", "--url", cluster.urls[1]]
        )
        assert told.exit_code == 0
        assert plain.execution_id in told.stdout


async def test_creates_under_way_when_the_leader_dies_make_one_job_each(tmp_path: Path) -> None:
    """IDEM-04: no idempotency key, only the request ids that the library makes."""
    cluster = LocalCluster.in_folder(tmp_path)
    async with cluster, Client(cluster.urls) as client:
        leader = await cluster.leader()
        job_ids: set[str] = set()
        under_way = asyncio.Event()

        async def create(number: int) -> None:
            for part in range(10):
                created = await client.create(payload=[number, part], schedule=LATER)
                job_ids.add(created.job_id)
                if len(job_ids) == 50:
                    under_way.set()

        creating = [asyncio.create_task(create(number)) for number in range(20)]
        await under_way.wait()
        await cluster.kill(leader)
        await asyncio.gather(*creating)
        # A read tells what its node has applied, and the leader has applied what it acknowledged.
        async with Client(cluster.url(await cluster.leader())) as reader:
            payloads = Counter([tuple(job.payload) async for job in reader.jobs(page_size=37)])
        assert payloads == Counter((n, part) for n in range(20) for part in range(10))
        assert len(job_ids) == 200


async def test_a_worker_outlives_its_leader_and_nothing_is_lost(tmp_path: Path) -> None:
    done: set[str] = set()
    wanted: set[str] = set()
    hundred, all_done = asyncio.Event(), asyncio.Event()

    async def handler(context):
        await asyncio.sleep(0.01)
        done.add(context.execution_id)
        if len(done) >= 100:
            hundred.set()
        if wanted and wanted <= done:
            all_done.set()

    cluster = LocalCluster.in_folder(tmp_path)
    async with cluster, Client(cluster.urls) as client:
        leader = await cluster.leader()
        async with Worker(client, "default", handler, lease_ms=2_000, concurrency=50) as worker:
            ticking = await client.create(schedule=Every(interval_ms=100))
            created = await client.create_many(
                [NewJob(schedule=After(delay_ms=10 * n)) for n in range(300)]
            )
            await hundred.wait()
            await cluster.kill(leader)
            wanted.update(job.execution_id for job in created)
            async with asyncio.timeout(30):
                await all_done.wait()
            await client.cancel(ticking.job_id)
        async with Client(cluster.url(await cluster.leader())) as reader:
            states = Counter([e.state async for e in reader.executions(page_size=500)])
        assert set(states) <= {"succeeded", "cancelled"}
        assert states["succeeded"] >= 300
        assert worker.counts["lost"] == 0

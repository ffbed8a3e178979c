"""The client library against a real cluster: three processes, real sockets, SIGKILL."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from timeball.client import (
    After,
    Client,
    Conflict,
    Cron,
    Every,
    NewJob,
    NonRetryable,
    NotFound,
    PreconditionFailed,
    Retry,
    Worker,
)
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
    async with cluster, Client(cluster.urls, read_your_writes=True) as client:
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
        words = ["execution", "list", "--consistency", "strong", "--url", cluster.urls[1]]
        told = await asyncio.to_thread(CliRunner().invoke, main, words)
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


async def test_the_life_of_a_timetable(tmp_path: Path) -> None:
    """Submit, explain, pause, resume, update, trigger, backfill, cancel: each on any node."""
    runs: asyncio.Queue[tuple[str, object]] = asyncio.Queue()

    async def handler(context):
        await runs.put((context.execution_id, context.payload))

    # At new year, so that nothing comes due by itself while this runs.
    yearly = Cron("0 0 1 1 *", "Europe/Berlin", start="2020-06-01T00:00:00Z", overlap="buffer_one")
    cluster = LocalCluster.in_folder(tmp_path)
    async with cluster, Client(cluster.urls, read_your_writes=True) as client:
        put = await client.put_job("yearly", schedule=yearly, payload="old")
        assert (put.status, put.version) == ("created", 1)
        job_id = put.job_id
        assert (await client.job_by_name("yearly")).job_id == job_id

        explained = await client.explain_job(job_id, fires=2)
        assert [fate.fate for fate in explained.past] == ["planned"]
        assert [fire.local[4:19] for fire in explained.next] == ["-01-01T00:00:00"] * 2
        previewed = await client.preview_schedule(yearly, count=2)
        assert [f.nominal_at for f in previewed.fires] == [f.nominal_at for f in explained.next]

        assert (await client.pause_job(job_id, reason="holiday")).status == "changed"
        assert (await client.pause_job(job_id)).status == "unchanged"
        explained = await client.explain_job(job_id)
        assert explained.timetable.paused is not None
        assert (explained.timetable.paused.reason, explained.past) == ("holiday", [])
        assert (await client.resume_job(job_id)).status == "changed"
        assert (await client.resume_job(job_id)).status == "unchanged"

        updated = await client.update_job(job_id, payload="new", if_version=1)
        assert (updated.status, updated.version) == ("changed", 2)
        with pytest.raises(PreconditionFailed, match="version 2"):
            await client.update_job(job_id, payload="late", if_version=1)

        triggered = await client.trigger_job(job_id, request_id="once")
        repeated = await client.trigger_job(job_id, request_id="once")
        assert (triggered.status, repeated.status) == ("created", "duplicate")
        assert repeated.execution_id == triggered.execution_id
        past = {"start": "2021-01-01T00:00:00Z", "until": "2024-06-01T00:00:00Z"}
        filled = await client.backfill_job(job_id, **past)
        assert len(filled.created) == 3
        again = await client.backfill_job(job_id, **past)
        assert (again.created, sorted(again.existing)) == ([], sorted(filled.created))

        asked = {triggered.execution_id, *filled.created}
        async with Worker(client, "default", handler, concurrency=10), asyncio.timeout(30):
            ran = dict([await runs.get() for _ in asked])
        assert ran == dict.fromkeys(asked, "new")
        origins = Counter([e.origin async for e in client.executions(job=job_id)])
        assert origins == {"timetable": 1, "trigger": 1, "backfill": 3}

        assert (await client.cancel(job_id)).status == "cancelled"
        with pytest.raises(NotFound):
            await client.job_by_name("yearly")
        with pytest.raises(Conflict):
            await client.trigger_job(job_id)

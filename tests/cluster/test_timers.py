"""Timers of a real cluster, as an enemy would set and cancel them (TIMR)."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import aiohttp
import msgspec
import pytest

from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ask(session: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Any:
    """An answer that is none of an error of the node."""
    data = None if body is None else msgspec.json.encode(body)
    headers = {"Content-Type": "application/json"}
    async with session.request(method, url, data=data, headers=headers) as answer:
        raw = await answer.read()
        assert answer.status < 500, raw
        return msgspec.json.decode(raw)


async def test_timr_10_cancels_from_three_nodes_around_the_due_instant(
    shared_cluster: LocalCluster,
) -> None:
    """Each job is cancelled or handed out, and who was told `cancelled` is right."""
    rng = random.Random(10)
    urls = shared_cluster.urls
    start_ms = time.time_ns() // 1_000_000 + 1_500
    jobs = [
        {"queue": "timr-10", "schedule": {"type": "at", "time": start_ms + place}}
        for place in range(600)
    ]
    said: dict[str, list[str]] = {}
    fired: list[str] = []
    stop = asyncio.Event()

    async def work(session: aiohttp.ClientSession, url: str) -> None:
        request = {"queue": "timr-10", "worker": "w", "max_executions": 20, "wait_ms": 300}
        while not stop.is_set():
            answer = await ask(session, "POST", f"{url}/v1/claims", request)
            fired.extend(execution["job_id"] for execution in answer["executions"])

    async def cancel(session: aiohttp.ClientSession, job_id: str, at_ms: int) -> None:
        await asyncio.sleep(max(at_ms / 1000 - time.time(), 0))
        answer = await ask(session, "DELETE", f"{rng.choice(urls)}/v1/jobs/{job_id}")
        said.setdefault(job_id, []).append(answer["status"])

    async with aiohttp.ClientSession() as session:
        answer = await ask(session, "POST", f"{urls[0]}/v1/jobs/batch", {"jobs": jobs})
        ids = [result["job_id"] for result in answer["results"]]
        workers = [asyncio.create_task(work(session, url)) for url in urls * 2]
        await asyncio.gather(
            *(
                cancel(session, job_id, start_ms + place + rng.choice([-1, 0, 1]))
                for place, job_id in enumerate(ids)
                for _ in range(rng.choice([1, 1, 2]))
            )
        )
        stop.set()
        await asyncio.gather(*workers)
        for job_id, answers in said.items():
            assert set(answers) <= {"cancelled", "requested"}
            if answers[0] == "cancelled":
                assert job_id not in fired, "cancelled, and handed out"
        assert fired
        assert sorted(set(fired)) == sorted(fired)
        states = [
            (await ask(session, "GET", f"{urls[1]}/v1/jobs/{job_id}?consistency=strong"))["state"]
            for job_id in rng.sample(ids, 50)
        ]
        assert set(states) == {"cancelled"}
    assert len(said) == len(ids)

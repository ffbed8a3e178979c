"""IDEM-04: the leader dies within 20 ms of creates that are under way, over and over."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from timeball.client import Client, DuplicateJob, Idempotency
from timeball.client.messages import After
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")
LATER = After(delay_ms=3_600_000)
UNIQUE = Idempotency(until="job_ends")
ONCE = Idempotency(on_duplicate="reject", window_ms=3_600_000)
DELAYS_MS = (0, 3, 7, 12, 20)
EACH = 8


async def test_idem_04_creates_whose_leader_is_killed_make_one_job_each(tmp_path: Path) -> None:
    """With a key and without: the library makes a request id for every create."""
    cluster = LocalCluster.in_folder(tmp_path)
    answered: dict[tuple[str, int, int], str] = {}
    async with cluster, Client(cluster.urls, timeout_ms=60_000) as client:

        async def create(kind: str, number: int, part: int) -> None:
            key = None if kind == "none" else f"{kind}-{number}-{part}"
            rule = {"unique": UNIQUE, "once": ONCE}.get(kind)
            created = await client.create(
                payload=[kind, number, part],
                schedule=LATER,
                idempotency_key=key,
                idempotency=rule,
            )
            answered[kind, number, part] = created.job_id

        for number, delay_ms in enumerate(DELAYS_MS):
            leader = await cluster.leader()
            creating = [
                asyncio.create_task(create(kind, number, part))
                for kind in ("none", "plain", "unique", "once")
                for part in range(EACH)
            ]
            await asyncio.sleep(delay_ms / 1_000)  # the moment of the kill is what is tried
            await cluster.kill(leader)
            await asyncio.gather(*creating)
            await cluster.restart(leader)

        # Who asks again later, in another process, is told of the same job.
        again = await client.create(
            payload=["plain", 0, 0], schedule=LATER, idempotency_key="plain-0-0"
        )
        assert (again.status, again.job_id) == ("duplicate", answered["plain", 0, 0])
        with pytest.raises(DuplicateJob) as refused:
            await client.create(
                payload=["once", 0, 0],
                schedule=LATER,
                idempotency_key="once-0-0",
                idempotency=ONCE,
            )
        assert refused.value.job_id == answered["once", 0, 0]
        jobs = {tuple(job.payload): job.job_id async for job in client.jobs(consistency="strong")}
        count = Counter([tuple(job.payload) async for job in client.jobs(consistency="strong")])
    assert jobs == answered
    assert set(count.values()) == {1}
    assert len(answered) == len(DELAYS_MS) * EACH * 4

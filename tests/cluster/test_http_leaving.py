"""HTTP on real nodes: clients that leave at any moment, and many of them without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from leaving import send_and_leave

from timeball.client import Client, NewJob, OutcomeUnknown, Unavailable
from timeball.client.errors import TimeballError
from timeball.client.messages import Success
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_LEASE_MS = 600_000


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition of the cluster, within a bound that only a failure reaches."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 (the condition lives in other processes)
            await asyncio.sleep(0.02)


async def post(url: str, body: object) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_http_02_what_a_client_that_leaves_has_asked_for_is_done_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    """Creates, claims and completions in batches of three, whose clients leave at any moment."""
    async with LocalCluster.in_folder(tmp_path) as cluster, Client(cluster.urls) as client:
        ports = [node.http.port for node in cluster.settings.nodes]
        batch = msgspec.json.encode({"jobs": [NewJob(queue="left")] * 3})
        poll = msgspec.json.encode(
            {"queue": "left", "worker": "w", "wait_ms": 60_000, "lease_ms": LONG_LEASE_MS}
        )
        for turn in range(60):
            send_and_leave(ports[turn % 3], "/v1/jobs/batch", batch, reset=turn % 2 == 0)
            send_and_leave(ports[turn % 3], "/v1/claims", poll, reset=turn % 2 == 1)
            await asyncio.sleep(0.0005 * (turn % 7))

        async def nothing_is_under_way() -> bool:
            view = await cluster.view(await cluster.leader())
            assert view is not None
            queues = [one for one in view.queues if one.name == "left"]
            return all(not one.leased and not one.waiting_claims for one in queues)

        await until(nothing_is_under_way)
        created = (await client.cluster(consistency="strong")).totals["created"]
        assert created > 0
        assert created % 3 == 0
        held: list[Any] = []
        while len(held) < created:
            claimed = await client.claim(
                worker="w", queue="left", max_executions=300, lease_ms=LONG_LEASE_MS, wait_ms=2_000
            )
            held += claimed.executions
        assert {one.attempt for one in held} == {1}
        for place in range(0, created, 3):
            items = [Success(one.execution_id, one.token) for one in held[place : place + 3]]
            body = msgspec.json.encode({"items": items})
            reset = place % 2 == 0
            send_and_leave(ports[place % 3], "/v1/executions/complete", body, reset=reset)

        async def as_many_as_before() -> bool:
            """Nothing comes any more of what was sent."""
            nonlocal done
            before, done = done, (await client.cluster(consistency="strong")).totals["succeeded"]
            await asyncio.sleep(0.3)
            return done == before

        done = -1
        await until(as_many_as_before)
        assert done > 0
        assert done % 3 == 0
        await client.complete([Success(one.execution_id, one.token) for one in held])
        for name in cluster.names:
            log = cluster.log_path(name).read_text("utf-8")
            assert "never retrieved" not in log
            assert "Traceback" not in log


async def test_http_09_without_a_leader_every_call_ends_in_time_and_after_few_requests(
    tmp_path: Path,
) -> None:
    """500 clients against one node of three, which knows no leader for ten seconds."""
    async with LocalCluster.in_folder(tmp_path) as cluster:
        left, *others = cluster.names
        for name in others:
            await cluster.kill(name)
        clients = [Client(cluster.urls, timeout_ms=10_000) for _ in range(500)]
        try:

            async def create(client: Client) -> TimeballError | None:
                try:
                    await client.create(queue="leaderless")
                except TimeballError as error:
                    return error
                return None

            async def refused_at_once() -> bool:
                status, problem = await post(f"{cluster.url(left)}/v1/jobs", {"queue": "q"})
                return (status, problem["type"]) == (503, "urn:timeball:problem:no-leader")

            await until(refused_at_once)
            async with asyncio.timeout(60):
                errors = await asyncio.gather(*map(create, clients))
            # What the deadline cut off, the last time, may have been taken for all that is known.
            assert {type(error) for error in errors} <= {Unavailable, OutcomeUnknown}
            metrics = f"{cluster.url(left)}/metrics"
            async with aiohttp.ClientSession() as session, session.get(metrics) as answer:
                lines = (await answer.text()).splitlines()
            asked = sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith("timeball_http_requests_total") and "/v1/jobs" in line
            )
            assert 0 < asked <= 500 * 25
            for name in others:
                await cluster.start_node(name)
            await cluster.wait_ready()
            assert await asyncio.gather(*map(create, clients)) == [None] * 500
        finally:
            for client in clients:
                await client.close()

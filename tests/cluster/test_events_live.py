"""The event stream of a real cluster: complete and in order, whichever node is killed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner

from timeball.client import Client, Event, EventsGone, Success, SyncClient
from timeball.client.cli import main
from timeball.cluster.localcluster import LocalCluster

JOBS = 300


async def lives(client: Client) -> None:
    """Jobs that are created, leased and completed, a few at a time."""
    for number in range(JOBS // 10):
        for _ in range(10):
            await client.create(queue="told", payload=number)
        left = 10
        while left:
            claimed = await client.claim(
                worker="w", queue="told", max_executions=10, wait_ms=2_000, lease_ms=60_000
            )
            await client.complete([Success(d.execution_id, d.token) for d in claimed.executions])
            left -= len(claimed.executions)


def places(events: list[Event]) -> list[tuple[int, ...]]:
    return [tuple(map(int, event.id.split("-"))) for event in events]


async def test_a_killed_node_leaves_no_gap_and_no_repeat(tmp_path: Path) -> None:
    cluster = LocalCluster.in_folder(tmp_path)
    async with cluster, Client(cluster.urls) as client:
        leader = await cluster.leader()
        follower = next(name for name in cluster.names if name != leader)
        # It asks the follower first; the other one is to go on.
        urls = [cluster.url(follower)] + [u for u in cluster.urls if u != cluster.url(follower)]
        async with Client(urls) as reader:
            living = asyncio.create_task(lives(client))
            seen: list[Event] = []
            async with (
                asyncio.timeout(60),
                aclosing(reader.events(after="oldest", queue="told")) as events,
            ):
                async for event in events:
                    seen.append(event)
                    if len(seen) == JOBS:
                        await cluster.kill(follower)
                    if sum(e.type == "execution.succeeded" for e in seen) == JOBS:
                        break
            await living
        assert places(seen) == sorted(set(places(seen)))
        by_execution: dict[str | None, list[str]] = {}
        for event in seen:
            by_execution.setdefault(event.execution_id, []).append(event.type)
        assert len(by_execution) == JOBS
        life = ["execution.created", "execution.leased", "execution.succeeded"]
        assert all(types == life for types in by_execution.values())

        # Every node tells the same under the same ids, the restarted one of what came since.
        last = seen[-1].id
        await cluster.start_node(follower)
        await client.create(queue="told")
        async with Client(cluster.url(await cluster.leader())) as one:
            told = [e async for e in one.events(after="oldest", queue="told", follow=False)]
        assert told[: len(seen)] == seen
        async with (
            asyncio.timeout(30),
            Client(cluster.url(follower)) as other,
            aclosing(other.events(after=last, queue="told")) as events,
        ):
            assert (await anext(events)).id == told[-1].id


async def test_what_is_not_kept_is_gone_and_limits_hold(tmp_path: Path) -> None:
    process = {"event_history": 5, "event_streams": 1}
    cluster = LocalCluster.in_folder(tmp_path, process=process)
    async with cluster, Client(cluster.urls) as client:
        await cluster.leader()
        for _ in range(10):
            await client.create()
        await cluster.caught_up()  # one that is behind would still keep what is asked for
        with pytest.raises(EventsGone):
            await anext(client.events(after=1))
        kept = client.events(after="oldest", follow=False)
        assert 1 <= len([event async for event in kept]) <= 10
        leader = cluster.url(await cluster.leader())

        def follow() -> list[str]:
            with SyncClient(leader) as sync:
                return [e.type for e in sync.events(after="oldest", follow=False)]

        assert (await asyncio.to_thread(follow))[-1] == "execution.created"
        told = await asyncio.to_thread(
            CliRunner().invoke, main, ["events", "--url", leader, "--type", "execution.created"]
        )
        assert told.exit_code == 0, told.output
        assert 1 <= len(told.stdout.splitlines()) <= 5
        assert "execution.created  → scheduled" in told.stdout

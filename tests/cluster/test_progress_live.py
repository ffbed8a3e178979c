"""Progress, from a handler over the log to whoever looks at the execution."""

from __future__ import annotations

import asyncio

import pytest

from timeball.client import Client, Worker
from timeball.client.context import ExecutionContext
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_progress_of_a_handler_is_in_the_views_of_its_execution(
    shared_cluster: LocalCluster,
) -> None:
    """Told in the handler, read from every node while it runs; the last of an attempt stays."""
    go_on = asyncio.Event()

    async def handler(context: ExecutionContext) -> None:
        context.progress({"rows": 10})
        context.progress({"rows": 20, "of": [1.5, None, "é"]})
        await go_on.wait()

    async with Client(shared_cluster.urls, read_your_writes=True) as client:
        created = await client.create(queue="progress")
        async with Worker(client, "progress", handler, lease_ms=60_000):
            for url in shared_cluster.urls:
                async with Client(url) as reader:
                    async with asyncio.timeout(20):
                        while True:
                            view = await reader.execution(
                                created.execution_id, min_index=client.seen_index
                            )
                            if view.attempts and view.attempts[-1].progress is not None:
                                break
                            await asyncio.sleep(0.02)
                assert view.attempts[-1].progress == {"rows": 20, "of": [1.5, None, "é"]}
                assert view.state == "running"
            go_on.set()
            async with asyncio.timeout(20):
                while True:
                    view = await client.execution(created.execution_id)
                    if view.state == "succeeded":
                        break
                    await asyncio.sleep(0.02)
        assert view.attempts[-1].progress == {"rows": 20, "of": [1.5, None, "é"]}

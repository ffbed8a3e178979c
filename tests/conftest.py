"""The cluster of real processes that tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from timeball.cluster.localcluster import LocalCluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Three started nodes, for tests that end none of them. Each test uses queues of its own.

    Tests that use it run in the session's loop: `pytest.mark.asyncio(loop_scope="session")`.
    """
    cluster = LocalCluster.in_folder(tmp_path_factory.mktemp("cluster"))
    async with cluster:
        yield cluster
    for name in cluster.names:
        log = cluster.log_path(name).read_text("utf-8")
        assert "Traceback" not in log, f"node {name}: {log[-3000:]}"

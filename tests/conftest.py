"""What tests share: the cluster of real processes, and the list of what is compiled."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

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


@pytest.fixture(scope="session")
def compiled_modules() -> list[Path]:
    """The sources that are compiled ahead of time, relative to the root (see `setup.py`)."""
    spec = importlib.util.spec_from_file_location(
        "timeball_setup", Path(__file__).resolve().parents[1] / "setup.py"
    )
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    listed: list[Path] = setup.compiled_modules()
    return listed

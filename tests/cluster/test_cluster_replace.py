"""Disks that are emptied under real nodes: one is filled again, two found no new cluster."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from click.testing import CliRunner
from msgspec import json, msgpack

from timeball.client import Client
from timeball.client.errors import NotFound
from timeball.cluster.commands import main
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")
LIMIT_S = 30.0


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three nodes of the test's own."""
    async with LocalCluster.in_folder(tmp_path) as cluster:
        yield cluster


class Load:
    """Creates jobs at any node that answers, and knows which were acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.acknowledged: list[str] = []
        self._cluster = cluster
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        number = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                number += 1
                url = self._cluster.urls[number % 3]
                body = msgpack.encode({"jobs": [{"queue": "load", "payload": number}] * 5})
                headers = {"Content-Type": "application/msgpack"}
                try:
                    async with session.post(
                        f"{url}/v1/jobs/batch", data=body, headers=headers
                    ) as answer:
                        if answer.status == 200:
                            results = msgpack.decode(await answer.read())["results"]
                            self.acknowledged += [result["job_id"] for result in results]
                except (aiohttp.ClientError, TimeoutError):
                    await asyncio.sleep(0.01)

    async def more(self, count: int = 200) -> None:
        """Wait until so many more are acknowledged."""
        enough = len(self.acknowledged) + count
        async with asyncio.timeout(LIMIT_S):
            while len(self.acknowledged) < enough:  # noqa: ASYNC110 — other tasks set no event
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def check(self, name: str) -> None:
        """All that was acknowledged is there, on a node that has had the time to apply it."""
        await self._cluster.caught_up([name])
        url = self._cluster.url(name)
        async with aiohttp.ClientSession() as session:
            for job in self.acknowledged:
                async with session.get(f"{url}/v1/jobs/{job}") as answer:
                    assert answer.status == 200, f"job {job} was acknowledged and is lost"


async def readiness(cluster: LocalCluster, name: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"{cluster.url(name)}/readyz") as answer:
                body = await answer.read()
                return answer.status, "" if answer.status == 200 else json.decode(body)["detail"]
        except aiohttp.ClientError:
            return 0, ""


def empty(cluster: LocalCluster, name: str) -> None:
    shutil.rmtree(cluster.settings.data_dir(name))


async def test_a_node_with_an_empty_disk_joins_under_load_and_nothing_is_lost(
    cluster: LocalCluster,
) -> None:
    load = Load(cluster)
    await load.more()
    leader = await cluster.leader()
    name, other = (each for each in cluster.names if each != leader)
    async with Client(cluster.urls) as client:
        before = await client.replacement(name)
        assert (before.standing, sorted(before.voters)) == ("voter", sorted([leader, other]))
        with pytest.raises(NotFound, match="no node is named 'z'; the nodes are a, b, c"):
            await client.replacement("z")
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from timeball.client.cli import main; main()"),
            *("cluster", "replace", name),
            *("--wait-s", "60", "--url", ",".join(cluster.urls)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert command.stderr is not None
        assert b"can spare" in await asyncio.wait_for(command.stderr.readline(), LIMIT_S)
        assert b"still votes" in await asyncio.wait_for(command.stderr.readline(), LIMIT_S)
        await cluster.kill(name)
        empty(cluster, name)
        await load.more()
        async with asyncio.timeout(LIMIT_S):  # no other may be spared now
            while (await client.replacement(other)).voters != [leader]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await cluster.restart(name)
        out, told = await asyncio.wait_for(command.communicate(), LIMIT_S)
        assert (command.returncode, out) == (0, f"{name} votes\n".encode()), told
        after = await client.replacement(name)
        assert after.standing == "voter"
        assert after.incarnation != before.incarnation
    await load.more()
    await cluster.kill(leader)  # what joined is needed now
    await load.more()
    await load.end()
    await load.check(await cluster.leader())


async def test_two_empty_disks_of_three_found_no_cluster_and_lose_nothing(
    cluster: LocalCluster,
) -> None:
    load = Load(cluster)
    await load.more()
    await load.end()
    survivor, mislaid, lost = cluster.names
    for name in cluster.names:
        await cluster.kill(name)
    kept = cluster.config.parent / "kept"
    cluster.settings.data_dir(mislaid).rename(kept)
    empty(cluster, lost)
    for name in (mislaid, lost):
        await cluster.start_node(name)

    async def says(name: str, words: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while words not in (await readiness(cluster, name))[1]:  # noqa: ASYNC110 — see above
                await asyncio.sleep(0.05)

    await says(mislaid, f"not seen so: {survivor}")
    await says(lost, f"not seen so: {survivor}")
    await cluster.start_node(survivor)
    for name in cluster.names:
        await says(name, "no leader can be elected")
        view = await cluster.view(name)
        assert view is not None
        assert view.leader is None
        assert "no leader can be elected" in str(view.obstacle)
    await cluster.stop_node(mislaid)
    empty(cluster, mislaid)
    kept.rename(cluster.settings.data_dir(mislaid))
    await cluster.start_node(mislaid)
    await cluster.wait_ready()
    await load.check(lost)


async def test_a_cluster_goes_on_from_the_one_disk_that_is_left(cluster: LocalCluster) -> None:
    load = Load(cluster)
    await load.more()
    await load.end()
    survivor, *lost = cluster.names
    await cluster.caught_up([survivor])  # what it has not received would be lost
    for name in cluster.names:
        await cluster.kill(name)
    for name in lost:
        empty(cluster, name)
    asked = ("recover", "--config", str(cluster.config), "--survivor", survivor)
    refused = CliRunner().invoke(main, asked)
    assert (refused.exit_code, "nothing was done" in refused.output) == (2, True)
    done = CliRunner().invoke(main, [*asked, "--force-new-cluster"])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(main, [*asked, "--force-new-cluster"])
    assert (again.exit_code, "is not empty" in again.output) == (3, True)
    for name in cluster.names:
        await cluster.start_node(name)
    await cluster.wait_ready()
    await load.check(lost[0])

"""RAFT-07 with real processes on file systems of a few megabytes, filled up and freed again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")
LIMIT_S = 30.0
SIZE = 8 * 1024 * 1024
MARK = 2 * 1024 * 1024
NAMES = ("a", "b", "c")


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[Path]:
    """A folder whose folders `a`, `b` and `c` are file systems of their own."""
    mounted: list[Path] = []
    try:
        for name in NAMES:
            place = tmp_path / name
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "timeball-test", str(place)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                pytest.skip("there is no mount command")
            if done.returncode:
                pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
            mounted.append(place)
        yield tmp_path
    finally:
        for place in mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(folder: Path, leave: int) -> None:
    """Take all the room of a file system but so much."""
    found = os.statvfs(folder)
    with (folder / "ballast").open("ab") as file:
        file.write(bytes(max(0, found.f_bavail * found.f_frsize - leave)))


def free(folder: Path) -> None:
    (folder / "ballast").unlink()


async def create(session: aiohttp.ClientSession, url: str, payload: Any) -> tuple[int, Any, Any]:
    body = {"queue": "q", "payload": payload}
    async with session.post(f"{url}/v1/jobs", json=body) as answer:
        return answer.status, msgspec.json.decode(await answer.read()), answer.headers


async def status_of(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        return answer.status


async def metric(session: aiohttp.ClientSession, url: str, name: str) -> float:
    async with session.get(f"{url}/metrics") as answer:
        for line in (await answer.text()).splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"{name} is not there")


async def full(session: aiohttp.ClientSession, url: str) -> None:
    """Wait until a node has seen that its disk is full."""
    async with asyncio.timeout(LIMIT_S):
        while not await metric(session, url, "timeball_disk_full"):  # noqa: ASYNC110 — a process
            await asyncio.sleep(0.05)


async def create_until(
    session: aiohttp.ClientSession, urls: list[str], wanted: int
) -> tuple[str, Any, Any]:
    """Create jobs until each node in turn has answered with a status; the last answer."""
    async with asyncio.timeout(LIMIT_S):
        for url in urls:
            found = await create(session, url, "again")
            while found[0] != wanted:
                await asyncio.sleep(0.05)
                found = await create(session, url, "again")
    return url, found[1], found[2]


async def test_raft07_full_disks_are_told_as_507_and_come_back_by_themselves(
    small_disks: Path,
) -> None:
    options = {"names": NAMES, "process": {"min_free_mib": MARK // 1024 // 1024}}
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        LocalCluster.in_folder(small_disks, **options) as cluster,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        await cluster.wait_ready()
        pids = {name: cluster.pid(name) for name in NAMES}
        leader = await cluster.leader()
        jobs = []
        for number in range(20):
            status, job, _ = await create(session, cluster.url(leader), number)
            assert status == 201
            jobs.append(job["job_id"])
        await cluster.caught_up()  # what a node has not received it cannot take once it is full

        # One is low: another leads, and nobody but who looks at its readiness notices.
        fill(small_disks / leader, MARK // 2)
        async with asyncio.timeout(LIMIT_S):
            while await cluster.leader() == leader:  # noqa: ASYNC110 — another process
                await asyncio.sleep(0.05)
        url = cluster.url(leader)
        await create_until(session, [url], 201)
        assert await status_of(session, f"{url}/readyz") == 503
        assert await status_of(session, f"{url}/healthz") == 200
        assert await metric(session, url, "timeball_disk_low") == 1
        assert await metric(session, url, "timeball_disk_free_bytes") < MARK

        # All are full, to the last byte.
        for name in NAMES:
            fill(small_disks / name, 0)
        _, problem, headers = await create_until(session, cluster.urls, 507)
        assert problem["type"] == "urn:timeball:problem:storage-full"
        assert problem["outcome"] == "not_applied"
        assert int(headers["Retry-After"]) > 0
        for url in cluster.urls:
            assert await status_of(session, f"{url}/healthz") == 200
            assert await status_of(session, f"{url}/v1/jobs/{jobs[0]}") == 200
            assert await status_of(session, f"{url}/readyz") == 503
            await full(session, url)

        # One is killed meanwhile: it starts on its full disk, and serves what it holds.
        await cluster.kill("b")
        await cluster.start_node("b")
        pids["b"] = cluster.pid("b")

        for name in NAMES:
            free(small_disks / name)
        await cluster.wait_ready()
        assert {name: cluster.pid(name) for name in NAMES} == pids, "nobody had to be restarted"
        assert all(cluster.running(name) for name in NAMES)
        await create_until(session, cluster.urls, 201)
        await cluster.caught_up(["b"])
        for job in jobs:
            assert await status_of(session, f"{cluster.urls[1]}/v1/jobs/{job}") == 200


async def test_raft07_a_disk_that_fills_up_in_mid_write_loses_nothing_acknowledged(
    small_disks: Path,
) -> None:
    """Nobody has time to notice: the disk is full between two looks at it."""
    options = {"names": ("a",), "process": {"min_free_mib": 1}}
    payload = "x" * 20_000
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        LocalCluster.in_folder(small_disks, **options) as cluster,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        await cluster.wait_ready()
        url = cluster.urls[0]
        acknowledged: list[str] = []
        for round_ in range(3):
            for number in range(60):
                if number == 5:
                    fill(small_disks / "a", 0)
                status, answer, _ = await create(session, url, payload)
                if status == 201:
                    acknowledged.append(answer["job_id"])
                else:
                    assert status in (503, 507)
            await create_until(session, [url], 507)
            if round_ == 1:
                await cluster.kill("a")
                await cluster.start_node("a")
            free(small_disks / "a")
            await cluster.wait_ready()
        assert len(acknowledged) >= 15
        for job in acknowledged:
            assert await status_of(session, f"{url}/v1/jobs/{job}") == 200

"""Virtual time itself: what it takes over, what it waits for in earnest, and how it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest
import uvloop
from handlers_elsewhere import pid

from timeball.client import Client, ExecutionContext, Worker
from timeball.client.testing import TimeStood, VirtualCluster
from timeball.client.testing.virtual_time import VirtualTime

REAL_S = 0.2
"""Longer than any of these takes without its sleep, and than what a test may wait by mistake."""


async def test_timers_fire_in_their_order_each_at_its_instant() -> None:
    loop = asyncio.get_running_loop()
    virtual = VirtualTime(1_000, patience_s=0)
    seen: list[tuple[str, int]] = []
    try:
        began_s = loop.time()
        for name, after_s in (("c", 86_400 * 300), ("a", 0.001), ("b", 0.029), ("b", 0.029)):
            loop.call_later(after_s, lambda name=name: seen.append((name, virtual.now_ms)))
        await virtual.pass_until(1_000 + 86_400_000 * 300)
        assert seen == [("a", 1_001), ("b", 1_029), ("b", 1_029), ("c", 1_000 + 86_400_000 * 300)]
        assert loop.time() - began_s == pytest.approx(86_400 * 300)
    finally:
        virtual.release()


class Young(asyncio.SelectorEventLoop):
    """The loop of a machine that has just started: 1.001 × 1000 is less than 1001 there."""

    def time(self) -> float:
        return 0.5


def test_who_truncates_the_loops_time_reads_each_millisecond() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        virtual = VirtualTime(0, patience_s=0)
        for passed_ms in range(1, 100):
            await virtual.pass_until(passed_ms)
            assert (int(loop.time() * 1_000), virtual.now_ms) == (1_000 + passed_ms, passed_ms)
        virtual.release()

    with asyncio.Runner(loop_factory=Young) as runner:
        runner.run(story())


async def test_a_year_of_short_sleeps_does_not_drift() -> None:
    """A chain of timers, each a third of a second after the other, over what 2**24 s can tell."""
    virtual = VirtualTime(0, patience_s=0)
    try:
        await virtual.pass_until(365 * 86_400_000)
        with virtual.asked():
            for _ in range(3_000):
                await asyncio.sleep(0.333)
        assert virtual.now_ms == 365 * 86_400_000 + 999_000
    finally:
        virtual.release()


async def test_after_it_real_time_passes_and_the_clock_has_not_gone_back() -> None:
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    for _ in range(2):
        async with VirtualCluster() as cluster:
            await cluster.advance(days=1)
        assert loop.time() >= before_s + 86_400
        before_s = loop.time()
    began = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - began >= 0.04
    assert "select" not in vars(loop._selector)
    assert loop._clock_resolution == time.get_clock_info("monotonic").resolution


async def test_one_cluster_at_a_time_has_the_loop() -> None:
    async with VirtualCluster() as cluster:
        with pytest.raises(RuntimeError, match="one cluster at a time"):
            await VirtualCluster().__aenter__()
        await cluster.advance(hours=1)
    with pytest.raises(RuntimeError, match="a cluster is used once"):
        await cluster.__aenter__()
    with pytest.raises(RuntimeError, match="use it with `async with`"):
        VirtualCluster().client()


def test_a_loop_that_is_not_asyncios_is_refused() -> None:
    async def story() -> None:
        with pytest.raises(RuntimeError, match=r"not uvloop\.Loop: run these tests without uvloop"):
            async with VirtualCluster():
                pass

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_a_test_that_waits_for_what_does_not_come_is_ended() -> None:
    async def story() -> None:
        async with VirtualCluster() as cluster:
            worker = Worker(cluster.client(), "q", pid, lease_ms=120_000, wait_ms=60_000)
            worker.start()
            await asyncio.Event().wait()

    with pytest.raises(TimeStood, match="24 hours of virtual time"):
        asyncio.run(story())


async def test_after_the_cluster_its_clients_are_told_at_once() -> None:
    async with VirtualCluster() as cluster:
        client = cluster.client()
        waiting = asyncio.create_task(client.claim(worker="w", wait_ms=60_000))
        await cluster.advance(seconds=1)
    for asking in (waiting, client.create()):
        with pytest.raises(RuntimeError, match="the cluster has ended"):
            await asking
    await client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        await client.create()


# --- work that the loop does not see -----------------------------------------------------------


async def test_time_stands_still_while_a_handler_runs_in_a_thread() -> None:
    def in_thread(_context: ExecutionContext) -> str:
        time.sleep(REAL_S)
        return threading.current_thread().name

    async with VirtualCluster() as cluster:
        client = cluster.client()
        job = await client.create()
        async with Worker(client, "default", in_thread, lease_ms=500):
            assert (await cluster.run_due()).total_seconds() == 0
        execution = await client.execution(job.execution_id)
    assert (execution.state, execution.result) == ("succeeded", "default-handler-1")


@pytest.mark.timeout(60)
async def test_time_stands_still_while_a_handler_runs_in_a_process() -> None:
    async with VirtualCluster(patience_s=50) as cluster:
        client = cluster.client()
        job = await client.create()
        async with Worker(client, "default", pid, run_in="process"):
            assert (await cluster.run_due()).total_seconds() == 0
        execution = await client.execution(job.execution_id)
    assert execution.state == "succeeded"
    assert execution.result != os.getpid()


async def test_a_thread_that_does_not_end_holds_time_no_longer_than_patience() -> None:
    def until_told(context: ExecutionContext) -> None:
        context.interrupted.wait_in_thread()
        context.raise_if_cancelled()

    async with VirtualCluster(patience_s=REAL_S) as cluster:
        client = cluster.client()
        job = await client.create()
        async with Worker(client, "default", until_told):
            began = time.monotonic()
            await cluster.advance(hours=1)
            assert time.monotonic() - began >= REAL_S
            assert (await client.execution(job.execution_id)).state == "running"
            await client.cancel(job.job_id)
            await cluster.run_due()
        assert (await client.execution(job.execution_id)).state == "cancelled"


async def test_time_stands_still_for_what_is_run_in_a_thread_or_covered() -> None:
    async with VirtualCluster() as cluster:
        async with asyncio.timeout(60):
            await asyncio.to_thread(time.sleep, REAL_S)
        reading, writing = os.pipe()
        read = asyncio.Event()
        asyncio.get_running_loop().add_reader(reading, read.set)
        threading.Timer(REAL_S, os.write, (writing, b"x")).start()
        async with asyncio.timeout(60):
            with cluster.elsewhere():
                await read.wait()
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
        os.close(writing)
        assert cluster.now.isoformat() == "2026-01-01T00:00:00+00:00"


async def test_what_is_covered_for_longer_than_patience_lets_time_pass() -> None:
    async with VirtualCluster(patience_s=0.01) as cluster:
        with cluster.elsewhere(), pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        assert cluster.now.isoformat() == "2026-01-01T00:01:00+00:00"


# --- what users import -------------------------------------------------------------------------


def test_the_client_does_not_import_its_tests() -> None:
    program = (
        "import sys, timeball.client, timeball.client.cli\n"
        "assert not [m for m in sys.modules if m.startswith('timeball.client.testing')]\n"
        "assert not [m for m in sys.modules if m.startswith('timeball.cluster')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_pytest_does_not_collect_it(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("python_classes")
    for kind in (VirtualCluster, Client, TimeStood):
        assert not any(kind.__name__.startswith(pattern) for pattern in patterns)

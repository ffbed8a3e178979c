"""The virtual cluster in plain tests: its loop runs only while the test calls."""

from __future__ import annotations

import inspect
import threading
from datetime import timedelta

import pytest

from timeball.client import (
    After,
    Cron,
    ExecutionContext,
    Retry,
    SyncClient,
    Unavailable,
    Worker,
    task,
)
from timeball.client.testing import NotIdle, SyncVirtualCluster, VirtualCluster


@pytest.fixture
def cluster():
    with SyncVirtualCluster(start="2026-03-08T06:00Z") as cluster:
        yield cluster


@pytest.fixture
def client(cluster) -> SyncClient:
    return cluster.client()


@task(queue="mail", retry=Retry(max_attempts=3, initial_ms=60_000, jitter_pct=0))
async def send(to: str) -> str:
    if to == "nobody":
        raise ValueError("there is nobody")
    return f"sent to {to}"


def test_a_plain_test_creates_lets_time_pass_and_reads(cluster, client) -> None:
    job = send.with_options(schedule=After(delay_ms=3_600_000)).submit(client, "ann")
    with cluster.working(lambda client: Worker(client, tasks=[send])) as worker:
        cluster.advance(minutes=59)
        assert client.execution(job.execution_id).state == "scheduled"
        cluster.advance(timedelta(minutes=1))
        assert client.execution(job.execution_id).state == "succeeded"
    assert worker.counts["completed"] == 1
    assert cluster.now.isoformat() == "2026-03-08T07:00:00+00:00"


def test_retries_and_dead_letters(cluster, client) -> None:
    job = send.submit(client, "nobody")
    with cluster.working(lambda client: Worker(client, tasks=[send])):
        assert cluster.run_due() == timedelta()
        assert cluster.run_until_idle() == timedelta(minutes=3)
    assert [letter.execution_id for letter in client.dead()] == [job.execution_id]
    assert client.execution(job.execution_id).attempts_used == 3
    client.replay([job.execution_id])
    with pytest.raises(NotIdle):
        cluster.run_due(within=timedelta(seconds=1))


def test_a_long_poll_of_the_test_lets_time_pass(cluster, client) -> None:
    client.create(schedule=Cron("0 * * * *"))
    cluster.advance_to("2026-03-08T06:59:40Z")
    [delivery] = client.claim(worker="w", wait_ms=60_000).executions
    assert cluster.now.isoformat() == "2026-03-08T07:00:00+00:00"
    assert delivery.attempt == 1


def test_a_handler_in_a_thread_uses_the_clusters_client(cluster, client) -> None:
    def more(context: ExecutionContext) -> str:
        if context.payload > 0:
            client.create(queue="more", payload=context.payload - 1)
        return threading.current_thread().name

    client.create(queue="more", payload=3)
    with cluster.working(lambda client: Worker(client, "more", more)):
        cluster.run_until_idle()
    results = [execution.result for execution in client.executions(queue="more")]
    assert len(results) == 4
    assert threading.current_thread().name not in results


def test_the_network_can_be_cut(cluster, client) -> None:
    with cluster.unreachable(), pytest.raises(Unavailable, match="the network is cut"):
        client.create()
    client.create()


async def test_it_refuses_to_run_within_a_loop() -> None:
    with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
        SyncVirtualCluster().__enter__()


def test_it_has_what_the_asynchronous_one_has() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(VirtualCluster) - public(SyncVirtualCluster) == {"way", "elsewhere"}
    for name in ("advance", "advance_to", "run_due", "run_until_idle", "__init__"):
        theirs = inspect.signature(getattr(VirtualCluster, name)).parameters
        ours = inspect.signature(getattr(SyncVirtualCluster, name)).parameters
        assert ours == theirs, name


def test_events_are_told_to_plain_tests(client) -> None:
    job = client.create()
    events = client.events(after="oldest")
    assert next(events).execution_id == job.execution_id
    events.close()
    assert [each.type for each in client.events(after="oldest", follow=False)] == [
        "execution.created"
    ]

"""A cluster in operation, in real processes: restarts one by one, overload, a lost quorum.

Times are measured and printed (`-s` shows them). What is asserted of them is generous, for a
machine that is busy with other things.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from timeball.cluster.localcluster import LocalCluster
from timeball.cluster.raft.disk import RealDisk
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.metadata import cluster_id
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.storage import Storage
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import RaiseLevel, encode_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")
LIMIT_S = 30.0
Body = dict[str, Any]


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three nodes of the test's own."""
    async with LocalCluster.in_folder(tmp_path) as cluster:
        yield cluster


class Asking:
    """A client that knows all nodes, and asks the next one when one fails."""

    def __init__(self, urls: list[str], session: aiohttp.ClientSession) -> None:
        self._urls = urls
        self._session = session
        self._at = 0

    async def post(self, path: str, body: Body, timeout_s: float = 2.0) -> tuple[int, Any]:
        """One try, at the node of the last success; status 0 when no answer came."""
        url = self._urls[self._at % len(self._urls)]
        try:
            async with self._session.post(
                url + path,
                data=msgspec.msgpack.encode(body),
                headers={"Content-Type": "application/msgpack"},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                status, content = answer.status, msgspec.msgpack.decode(await answer.read())
        except (aiohttp.ClientError, TimeoutError):
            status, content = 0, None
        if status == 0 or status >= 500:
            self._at += 1
        return status, content

    async def until_answered(self, path: str, body: Body) -> Any:
        """Repeat until a node answers something definite."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                status, answer = await self.post(path, body)
                if 0 < status < 500:
                    return answer
                await asyncio.sleep(0.02)


class Load:
    """Jobs at a steady rate, and workers that complete them; what was promised to whom."""

    def __init__(self, urls: list[str], session: aiohttp.ClientSession) -> None:
        self._urls = urls
        self._session = session
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.created: set[str] = set()
        """Job ids that a node has acknowledged."""
        self.completed: set[str] = set()
        """Jobs whose completion a node has accepted; two acceptances fail at once."""
        self.answers: list[float] = []
        """When creates were acknowledged."""

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, rate: int = 200, creators: int = 4, workers: int = 2) -> None:
        for number in range(creators):
            self._tasks.append(asyncio.ensure_future(self._create(number, creators / rate)))
        for number in range(workers):
            self._tasks.append(asyncio.ensure_future(self._work(number)))

    async def _create(self, number: int, every_s: float) -> None:
        asking = Asking(self._urls, self._session)
        count = 0
        while not self._stop.is_set():
            began = time.monotonic()
            body = {"queue": "load", "payload": count, "idempotency_key": f"{number}-{count}"}
            answer = await asking.until_answered("/v1/jobs", body)
            self.created.add(answer["job_id"])
            self.answers.append(time.monotonic())
            count += 1
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))

    async def _work(self, number: int) -> None:
        asking = Asking(self._urls, self._session)
        count = 0
        while not (self._stop.is_set() and self.created <= self.completed):
            claim = {
                "queue": "load",
                "worker": f"w{number}",
                "max_executions": 50,
                "wait_ms": 500,
                "lease_ms": 10_000,
                "request_id": f"w{number}-{count}",
            }
            count += 1
            claimed = await asking.until_answered("/v1/claims", claim)
            done = [
                {"execution_id": each["execution_id"], "token": each["token"], "result": 1}
                for each in claimed["executions"]
            ]
            if not done:
                continue
            answer = await asking.until_answered("/v1/executions/complete", {"items": done})
            for each, result in zip(claimed["executions"], answer["results"], strict=True):
                if result["verdict"] == "accepted":
                    assert each["job_id"] not in self.completed, "a job was completed twice"
                assert result["verdict"] in ("accepted", "duplicate"), result
                self.completed.add(each["job_id"])

    def check(self) -> None:
        """Raise what has gone wrong in any client so far."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def pause_since(self, since: float) -> float:
        """The longest time without an acknowledged create since then, in seconds."""
        times = [since, *(at for at in self.answers if at > since), time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    async def end(self) -> None:
        """No more jobs; returns when all that were acknowledged are completed."""
        self._stop.set()
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._tasks)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 — the condition lives in other processes
            await asyncio.sleep(0.02)


async def metric(session: aiohttp.ClientSession, url: str, name: str) -> float:
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, f"no metric {name}"
    return float(found.group(1))


async def digests_agree(cluster: LocalCluster) -> None:
    async def agreed() -> bool:
        views = [await cluster.view(name, digest=True) for name in cluster.names]
        if None in views or len({view.applied_index for view in views if view}) != 1:
            return False
        assert len({view.state_digest for view in views if view}) == 1
        return True

    await eventually(agreed)


def log_of(cluster: LocalCluster) -> Iterator[str]:
    for name in cluster.names:
        yield cluster.log_path(name).read_text("utf-8")


async def test_oper_04_nodes_are_restarted_one_by_one_under_load(cluster: LocalCluster) -> None:
    """SIGTERM each, the leader too, waiting for /readyz alone: nothing is lost, exit code 0."""
    async with aiohttp.ClientSession() as session, Load(cluster.urls, session) as load:
        load.start()
        await eventually(lambda: _reached(load, 100))
        steps: list[tuple[str, bool, float]] = []
        for name in cluster.names:
            led = await cluster.leader() == name
            before = await cluster.view(name)
            began = time.monotonic()
            assert await cluster.stop_node(name) == 0
            if led:
                assert await cluster.leader() != name
            await cluster.start_node(name)
            await eventually(lambda name=name: cluster.is_ready(name))  # type: ignore[misc]
            goal = len(load.created) + 20
            await eventually(lambda goal=goal: _reached(load, goal))  # type: ignore[misc]
            steps.append((name, led, load.pause_since(began)))
            after = await cluster.view(name)
            assert before is not None
            assert after is not None
            if not led:
                assert after.term == before.term, "a follower's restart costs no election"
        print("\nrestart of (node, leader, longest pause of creates in s):", steps)
        await load.end()
        assert load.created <= load.completed
    await digests_agree(cluster)
    for text in log_of(cluster):
        assert "has ended" in text
        assert "Traceback" not in text
    assert all(pause < 2 for _, _, pause in steps), steps


async def _reached(load: Load, count: int) -> bool:
    load.check()
    return len(load.created) >= count


async def test_oper_04_all_nodes_end_at_once_in_the_middle_of_commits_and_snapshots(
    cluster: LocalCluster,
) -> None:
    async with aiohttp.ClientSession() as session, Load(cluster.urls, session) as load:
        load.start(rate=400, creators=8)
        await eventually(lambda: _reached(load, 200))
        body = {"jobs": [{"queue": "kept", "payload": "x" * 1_000}] * 1_000}
        for _ in range(5):  # so that a snapshot takes its time
            await Asking(cluster.urls, session).until_answered("/v1/jobs/batch", body)
        for url in cluster.urls:
            async with session.post(f"{url}/v1/cluster/snapshot") as answer:
                assert answer.status in (202, 409)
        under_way = await asyncio.gather(
            *(metric(session, url, "timeball_raft_snapshot_under_way") for url in cluster.urls)
        )
        assert any(under_way), "SIGTERM comes in the middle of a snapshot"
        codes = await asyncio.gather(*(cluster.stop_node(name) for name in cluster.names))
        assert codes == [0, 0, 0]
        await asyncio.gather(*(cluster.start_node(name) for name in cluster.names))
        await cluster.wait_ready()
        await load.end()
        assert load.created <= load.completed
    await digests_agree(cluster)
    assert not any("Traceback" in text for text in log_of(cluster))


SPACING_MS, ENTRY_ITEMS = 250, 250
RATE = 2_500
"""Jobs a second that a node commits whose full entries are 100 ms apart and hold 250, whatever
the machine: fewer they never hold."""


async def test_oper_07_overload_is_refused_early_and_what_ends_work_goes_on(
    tmp_path: Path,
) -> None:
    """Five times what the node can do, for some seconds, by clients that repeat after 2 s."""
    slow = {"commit_spacing_ms": SPACING_MS, "commit_entry_items": ENTRY_ITEMS}
    one = LocalCluster.in_folder(tmp_path, names=("solo",), process=slow)
    async with one, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        (url,) = one.urls
        asking = Asking(one.urls, session)
        for _ in range(20):
            await asking.until_answered("/v1/jobs", {"queue": "held"})
        claim = {"queue": "held", "worker": "w", "max_executions": 20, "lease_ms": 60_000}
        claim["wait_ms"] = 5_000
        held = (await asking.until_answered("/v1/claims", claim))["executions"]
        assert len(held) == 20

        committed = refused = lost = 0
        stop = asyncio.Event()
        pending: list[float] = []

        async def create(number: int) -> None:
            nonlocal committed, refused, lost
            await asyncio.sleep(number * 0.02)
            asked = Asking(one.urls, session)
            while not stop.is_set():
                batch = {"jobs": [{"queue": "flood", "schedule": LATER}] * 100}
                status, answer = await asked.post("/v1/jobs/batch", batch)
                if status == 200:
                    committed += 100
                elif status == 503:
                    refused += 100
                    assert answer["retry_after_ms"] > 0
                    await asyncio.sleep(0.2)
                else:
                    lost += 100

        async def watch() -> None:
            while not stop.is_set():
                pending.append(await metric(session, url, "timeball_proposals_pending"))
                await asyncio.sleep(0.1)

        creating = [asyncio.ensure_future(create(number)) for number in range(100)]
        watching = asyncio.ensure_future(watch())
        began = time.monotonic()
        waits: list[float] = []
        for at, each in enumerate(held):
            named = {"execution_id": each["execution_id"], "token": each["token"]}
            asked_at = time.monotonic()
            beat = await asking.until_answered("/v1/executions/heartbeat", {"items": [named]})
            assert beat["results"][0]["verdict"] == "extended", beat
            if at % 4 == 0:
                ended = await asking.until_answered("/v1/executions/complete", {"items": [named]})
                assert ended["results"][0]["verdict"] in ("accepted", "duplicate"), ended
            waits.append(time.monotonic() - asked_at)
            await asyncio.sleep(0.2)
        seconds = time.monotonic() - began
        goodput = committed / seconds
        stop.set()
        ended_at = time.monotonic()
        await asyncio.gather(*creating, watching)
        async with asyncio.timeout(10):
            while (await asking.post("/v1/jobs", {"queue": "after"}))[0] != 201:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        print(
            f"\ncommitted {goodput:.0f}/s of {RATE}/s, refused {refused}, unanswered {lost};"
            f" longest heartbeat or completion {max(waits):.2f} s; most pending {max(pending)};"
            f" recovered after {time.monotonic() - ended_at:.2f} s"
        )
        assert refused > committed, "most of what was offered is refused"
        assert lost < 0.1 * committed, "early, not by letting clients wait in vain"
        assert goodput > 0.7 * RATE
        assert max(waits) < 5
        assert max(pending) > 0, "the queue is visible"


LATER = {"type": "after", "delay_ms": 3_600_000}


async def test_leas_09_workers_keep_their_leases_over_a_time_without_a_quorum(
    cluster: LocalCluster,
) -> None:
    """Leases of 4 s, nobody leads for 6 s: all heartbeats that come back find their leases."""
    leader = await cluster.leader()
    others = [name for name in cluster.names if name != leader]
    async with aiohttp.ClientSession() as session:
        asking = Asking(cluster.urls, session)
        await asking.until_answered("/v1/jobs/batch", {"jobs": [{"queue": "leased"}] * 200})
        claim = {"queue": "leased", "worker": "w", "max_executions": 200, "lease_ms": 4_000}
        held = (await asking.until_answered("/v1/claims", claim))["executions"]
        assert len(held) == 200
        named = [{"execution_id": e["execution_id"], "token": e["token"]} for e in held]
        for name in others:
            cluster.signal(name, signal.SIGSTOP)
        stopped = time.monotonic()
        while time.monotonic() < stopped + 6:
            await asking.post("/v1/executions/heartbeat", {"items": named}, timeout_s=0.5)
            await asyncio.sleep(0.2)
        for name in others:
            cluster.signal(name, signal.SIGCONT)
        beats = await asking.until_answered("/v1/executions/heartbeat", {"items": named})
        assert {each["verdict"] for each in beats["results"]} == {"extended"}
        serving = cluster.url(await cluster.leader())
        assert await metric(session, serving, "timeball_leases_taken_over_total") >= 200
        ended = await asking.until_answered("/v1/executions/complete", {"items": named})
        assert {each["verdict"] for each in ended["results"]} <= {"accepted", "duplicate"}
        assert await metric(session, serving, "timeball_expired_total") == 0


async def test_oper_03_a_node_that_is_too_old_for_its_data_ends_with_code_4_and_says_why(
    tmp_path: Path,
) -> None:
    """A newer release has raised the level on this disk; then the old one is started again."""
    one = LocalCluster.in_folder(tmp_path, names=("solo",))
    async with one:
        assert await one.stop_node("solo") == 0
    raise_level_on(one)
    for _ in range(2):  # at the entry in the journal, each time
        code, output = await run_to_its_end(one)
        assert code == 4, output
        line = "raises the cluster to feature level 2; this release supports level 1"
        assert line in output.splitlines()[-1], output
        assert "Traceback" not in output


def raise_level_on(one: LocalCluster) -> None:
    (node,) = one.settings.nodes
    members = {node.name: (node.raft.host, node.raft.port)}
    settings = RaftSettings(cluster=one.settings.name)
    storage = Storage(RealDisk(), one.settings.data_dir(node.name), settings)
    storage.open(cluster_id(settings.cluster, members), node.name, StateMachine())
    log = storage.log
    entry = encode_entry(0, [RaiseLevel(1, 2)])
    storage.append(Entry(entry, log.last_index + 1, log.last_term))
    storage.journal.sync()
    storage.close()


async def run_to_its_end(one: LocalCluster) -> tuple[int | None, str]:
    (name,) = one.names
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "timeball.cluster.commands", "server"),
        *("--config", str(one.config), "--node", name),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, output.decode()

"""The one driver behind all benches: a cluster, load generators, a window that is measured.

The cluster's nodes, the workers, the submitters and this driver are separate processes. The
driver fixes the start, looks at the processes when the measured window begins and ends, and
otherwise stays out of the way; no process outlives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import msgspec

from timeball.bench.load.accounting import Merged, merge
from timeball.bench.load.children import Generator, GeneratorFailed
from timeball.bench.load.plan import Plan
from timeball.bench.load.probes import SNAPSHOTS, Samples, Usage, read_usage, scrape
from timeball.bench.load.records import (
    SubmitterRecord,
    WorkerRecord,
    read_submitter,
    read_worker,
)
from timeball.bench.load.surroundings import (
    Processors,
    Speed,
    measure_speed,
    read_processors,
)
from timeball.client.messages import ClusterView
from timeball.cluster.localcluster import LocalCluster

LEAD_MS = 1_000
"""From the word to go until the first batch is sent."""
LOOK_S = 0.05
VIEW_S = 30.0
"""How long a leader is looked for."""
SCRAPE_AHEAD_S = 0.4
"""Metrics are read so long outside of the window: the reading costs the node some time."""
RESTART_S = 600.0
SNAPSHOT_S = 300.0
"""Longer, a restart or a snapshot does not take."""
SNAPSHOT_PAUSE_S = 0.5
"""Before a node is asked again that took no snapshot, because another node does, for instance."""
ACCEPTED = 202
QUIET_MARGIN_S = 5.0
"""A run that makes no progress for a lease and this is over."""

Show = Callable[[str, float], None]
"""Shows what happens, and which share of it is done."""


class RunFailed(Exception):
    """The run could not show what it should: why."""


class Kill(msgspec.Struct, frozen=True):
    """A leader that was killed, and how long it took to be ready after its restart."""

    node: str
    at_us: int
    restart_s: float


class Moment(msgspec.Struct, frozen=True):
    """The processes at one instant, by name; generators of a role summed up."""

    nodes: dict[str, Usage]
    generators: dict[str, Usage]
    processors: Processors


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen of a run."""

    plan: Plan
    start_ms: int
    window_ms: tuple[int, int]
    """The measured window; the executions due in it count for the figures."""
    go_ms: int
    """When the workers were told to begin."""
    leader: str | None
    """Who led from the window's begin to its end; None: it changed."""
    began: Moment
    ended: Moment
    metrics_before: dict[str, Samples]
    metrics_after: dict[str, Samples]
    merged: Merged
    workers: list[WorkerRecord]
    submitters: list[SubmitterRecord]
    kills: list[Kill]
    terms: int
    """Changes of term during the run."""


class Driver:
    """A cluster to put under load, and the runs on it."""

    def __init__(
        self,
        folder: Path,
        urls: Sequence[str],
        cluster: LocalCluster | None,
        speed: Speed,
        show: Show,
    ) -> None:
        self.folder = folder
        self.urls = list(urls)
        self.cluster = cluster
        self.show = show
        self.speed = speed
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0))
        self._runs = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(
        cls,
        folder: Path,
        show: Show,
        *,
        urls: Sequence[str] = (),
        limits: Mapping[str, int] | None = None,
        process: Mapping[str, str | int] | None = None,
    ) -> AsyncIterator[Driver]:
        """Drive the cluster at `urls`; without any, one of three nodes started here."""
        async with AsyncExitStack() as stack:
            cluster = None
            speed = measure_speed(folder)
            if not urls:
                show("Starting three nodes", 0.0)
                cluster = LocalCluster.in_folder(
                    folder, cluster="bench", limits=limits, process=process
                )
                await stack.enter_async_context(cluster)
            driver = cls(folder, urls or (cluster.urls if cluster else ()), cluster, speed, show)
            stack.push_async_callback(driver.close)
            yield driver

    async def close(self) -> None:
        """Release what the driver itself holds."""
        await self._session.close()

    async def view(self) -> ClusterView:
        """The cluster as its leader sees it; raises RunFailed when none serves."""
        until = time.monotonic() + VIEW_S
        while time.monotonic() < until:
            for url in self.urls:
                view = await self._view(url)
                if view is not None and view.serving:
                    return view
            await asyncio.sleep(LOOK_S)
        raise RunFailed("no node leads")

    async def _view(self, url: str) -> ClusterView | None:
        try:
            async with self._session.get(f"{url}/v1/cluster") as answer:
                body = await answer.read()
                return msgspec.json.decode(body, type=ClusterView) if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def metrics(self) -> dict[str, Samples]:
        """The metrics of each node, by its name; empty for a node that doesn't answer."""
        view = await self.view()
        names = {node.http_url: node.name for node in view.nodes}
        found = await asyncio.gather(*(scrape(self._session, url) for url in self.urls))
        return {names.get(url, url): samples for url, samples in zip(self.urls, found, strict=True)}

    async def take_snapshot(self, url: str) -> Samples:
        """Have a node take a snapshot; its metrics then, or nothing when it takes none."""
        self.show("Taking a snapshot", 0.5)
        taken = (await scrape(self._session, url)).get(SNAPSHOTS, 0)
        until = time.monotonic() + SNAPSHOT_S
        if not await self.begin_snapshot(url):
            return {}
        while time.monotonic() < until:
            samples = await scrape(self._session, url)
            if samples.get(SNAPSHOTS, 0) > taken:
                return samples
            await asyncio.sleep(SNAPSHOT_PAUSE_S)
        return {}

    async def restart(self, *names: str) -> None:
        """Start nodes again that have ended; they may have much to load."""
        assert self.cluster is not None
        for name in names:
            await self.cluster.start_node(name)
        await self.cluster.wait_ready(names, RESTART_S)

    async def begin_snapshot(self, url: str) -> bool:
        """Ask a node to take a snapshot; whether it begins one."""
        try:
            async with self._session.post(f"{url}/v1/cluster/snapshot") as answer:
                return answer.status == ACCEPTED
        except (aiohttp.ClientError, TimeoutError):
            return False

    def usage(self) -> dict[str, Usage]:
        """CPU time and memory of each node, as far as they are processes of this machine."""
        if self.cluster is None:
            return {}
        usages = {
            name: read_usage(self.cluster.pid(name))
            for name in self.cluster.names
            if self.cluster.running(name)
        }
        return {name: usage for name, usage in usages.items() if usage is not None}

    async def run(
        self,
        plan: Plan,
        *,
        lead_ms: int = LEAD_MS,
        window_s: tuple[float, float],
        hold_workers_ms: int = 0,
        kill_leader_every_s: float = 0.0,
        snapshots: bool = False,
    ) -> Observed:
        """Run a plan; the first execution is due `lead_ms` from its begin.

        `window_s` is what is measured, from the first due instant on. `hold_workers_ms`
        makes the workers begin so long after it. With `snapshots`, each node is asked for
        one in the window. Raises GeneratorFailed or RunFailed.
        """
        if kill_leader_every_s and self.cluster is None:
            raise RunFailed("only nodes that were started here can be killed")
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        folder.mkdir()
        plan = msgspec.structs.replace(plan, folder=str(folder))
        plan.save(folder / "plan.json")
        async with AsyncExitStack() as stack:
            run = _Run(self, plan, folder)
            stack.push_async_callback(run.end)
            return await run.observe(
                lead_ms, window_s, hold_workers_ms, kill_leader_every_s, snapshots
            )


class _Run:
    """One run of a plan."""

    def __init__(self, driver: Driver, plan: Plan, folder: Path) -> None:
        self._driver = driver
        self._plan = plan
        self._folder = folder
        path = folder / "plan.json"
        self._workers = [Generator("worker", n, path) for n in range(plan.workers)]
        self._submitters = [Generator("submitter", n, path) for n in range(plan.submitters)]
        self._kills: list[Kill] = []

    @property
    def _generators(self) -> list[Generator]:
        return [*self._workers, *self._submitters]

    async def end(self) -> None:
        await asyncio.gather(*(generator.end() for generator in self._generators))

    async def observe(
        self,
        lead_ms: int,
        window_s: tuple[float, float],
        hold_workers_ms: int,
        kill_leader_every_s: float,
        snapshots: bool,
    ) -> Observed:
        driver, plan = self._driver, self._plan
        driver.show("Starting the load generators", 0.0)
        await asyncio.gather(*(generator.start() for generator in self._generators))
        start_ms = _now_ms() + lead_ms
        first, last = (start_ms + int(seconds * 1000) for seconds in window_s)
        for generator in self._submitters:
            generator.go(start_ms)
        go_ms = await self._begin_work(start_ms, hold_workers_ms)
        await self._until(first - SCRAPE_AHEAD_S * 1000, start_ms, last)
        # A cluster that is overloaded answers late, which must not shift the window.
        asking = asyncio.create_task(self._ask())
        beside = [asyncio.create_task(self._kill_leaders(kill_leader_every_s, first, last))]
        if snapshots:
            beside.append(asyncio.create_task(self._take_snapshots(first, last)))
        try:
            await self._until(first, start_ms, last)
            began = self._moment()
            await self._until(last, start_ms, last)
            ended = self._moment()
            before, metrics_before = await asking
            await asyncio.gather(*beside)
        finally:
            for task in (asking, *beside):
                task.cancel()
        await asyncio.sleep(SCRAPE_AHEAD_S)
        metrics_after = await driver.metrics()
        await self._drained()
        after = await driver.view()
        workers, submitters = await self._records()
        return Observed(
            plan=plan,
            start_ms=start_ms,
            window_ms=(first, last),
            go_ms=go_ms,
            leader=before.node if before.term == after.term else None,
            began=began,
            ended=ended,
            metrics_before=metrics_before,
            metrics_after=metrics_after,
            merged=merge(plan, start_ms, workers, submitters),
            workers=workers,
            submitters=submitters,
            kills=self._kills,
            terms=after.term - before.term,
        )

    async def _ask(self) -> tuple[ClusterView, dict[str, Samples]]:
        return await self._driver.view(), await self._driver.metrics()

    async def _begin_work(self, start_ms: int, hold_workers_ms: int) -> int:
        """Have the workers begin, once what must be submitted before is."""
        if self._plan.mode == "preloaded":
            await self._preloaded(start_ms)
        if hold_workers_ms:
            await _sleep_until(start_ms + hold_workers_ms)
        for generator in self._workers:
            generator.go(start_ms)
        return _now_ms()

    async def _preloaded(self, start_ms: int) -> None:
        """Wait until everything is submitted; raises RunFailed when that took too long."""
        while not all(submitter.sent for submitter in self._submitters):
            self._check()
            done = sum(submitter.progress for submitter in self._submitters)
            self._driver.show(f"Submitting ({done:,})", done / self._plan.total)
            await asyncio.sleep(LOOK_S)
        if self._workers and _now_ms() > start_ms:
            raise RunFailed("the first execution was due before all were submitted: give more time")

    async def _until(self, instant_ms: float, start_ms: int, end_ms: int) -> None:
        while (left_ms := instant_ms - time.time_ns() / 1e6) > 0:
            self._check()
            gone = (_now_ms() - start_ms) / max(1, end_ms - start_ms)
            done = sum(worker.progress for worker in self._workers)
            self._driver.show(f"Running ({done:,} done)", min(1.0, max(0.0, gone)))
            await asyncio.sleep(min(left_ms / 1000, 0.2))

    async def _drained(self) -> None:
        """Wait until all that was acknowledged is completed, or nothing moves any more."""
        quiet_s = self._plan.lease_ms / 1000 + QUIET_MARGIN_S
        moved_at, seen = time.monotonic(), (-1, -1)
        while time.monotonic() - moved_at < quiet_s:
            self._check()
            created = sum(submitter.progress for submitter in self._submitters)
            settled = sum(worker.progress for worker in self._workers)
            if all(s.sent for s in self._submitters) and (settled >= created or not self._workers):
                return
            if (created, settled) != seen:
                moved_at, seen = time.monotonic(), (created, settled)
            self._driver.show(f"Draining ({created - settled:,} to go)", settled / max(1, created))
            await asyncio.sleep(LOOK_S)

    async def _records(self) -> tuple[list[WorkerRecord], list[SubmitterRecord]]:
        for generator in self._generators:
            generator.stop()
        await asyncio.gather(*(generator.wait() for generator in self._generators))
        self._driver.show("Counting", 1.0)
        folder, plan = self._folder, self._plan
        workers = [read_worker(folder / f"worker-{n}.record") for n in range(plan.workers)]
        submitters = [
            read_submitter(folder / f"submitter-{n}.record") for n in range(plan.submitters)
        ]
        return workers, submitters

    async def _kill_leaders(self, every_s: float, begin_ms: int, end_ms: int) -> None:
        """Kill whoever leads, again and again until the window ends, and restart it."""
        cluster = self._driver.cluster
        if not every_s:
            return
        assert cluster is not None
        following_ms = begin_ms + every_s * 1000
        while max(following_ms, _now_ms()) < end_ms:
            await _sleep_until(following_ms)
            leader = await cluster.leader()
            at_us = time.time_ns() // 1000
            await cluster.kill(leader)
            began = time.monotonic()
            await self._driver.restart(leader)
            self._kills.append(Kill(leader, at_us, round(time.monotonic() - began, 3)))
            following_ms += every_s * 1000

    async def _take_snapshots(self, begin_ms: int, end_ms: int) -> None:
        """Have each node take a snapshot, one after another, in a part of the window of its own."""
        urls = self._driver.urls
        for place, url in enumerate(urls):
            await _sleep_until(begin_ms + (end_ms - begin_ms) * place / len(urls))
            until_ms = begin_ms + (end_ms - begin_ms) * (place + 1) / len(urls)
            while not await self._driver.begin_snapshot(url):
                if _now_ms() + SNAPSHOT_PAUSE_S * 1000 > until_ms:
                    break
                await asyncio.sleep(SNAPSHOT_PAUSE_S)

    def _check(self) -> None:
        for generator in self._generators:
            generator.check()

    def _moment(self) -> Moment:
        own = read_usage(os.getpid())
        generators: dict[str, Usage] = {} if own is None else {"driver": own}
        for generator in self._generators:
            usage = generator.usage()
            if usage is not None:
                so_far = generators.get(generator.role, Usage(0.0, 0.0))
                generators[generator.role] = Usage(
                    so_far.cpu_s + usage.cpu_s, so_far.rss_mb + usage.rss_mb
                )
        return Moment(self._driver.usage(), generators, read_processors())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _sleep_until(instant_ms: float) -> None:
    while (left_ms := instant_ms - time.time_ns() / 1e6) > 0:  # noqa: ASYNC110 - the wall clock
        await asyncio.sleep(left_ms / 1000)


__all__ = ["Driver", "GeneratorFailed", "Kill", "Moment", "Observed", "RunFailed", "Show"]

"""The trial: waves of pollers that hang up while jobs come in, and what is left of each wave.

Jobs are completed by workers that live. Of a wave nothing may be leased a second after its last
poller has hung up. In the end every job is done, at its first attempt: a lease that was left
behind would outlast the run, and an attempt that was used up would be counted in the delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import aiohttp
import msgspec

from timeball.bench.hangups.ghosts import QUEUE, Ghosts, Manner
from timeball.bench.load.probes import Samples, read_usage, scrape
from timeball.client.client import Client
from timeball.client.messages import Hold, NewJob, Success
from timeball.cluster.localcluster import LocalCluster

AFTER_S = 1.0
"""How soon after a wave nothing may be leased to it."""
WAVE_S = 1.0
CREATES_S = 0.05
WORKERS = 4
WORKERS_TAKE = 50
DRAIN_S = 20.0
SHARE = 0.25
"""Of the waves: memory before it has settled, and at the end."""
GROWTH = 1.2
GROWTH_MB = 16.0
"""Memory is flat if it grows by no more than this factor and this addend, from the end of the
first share of the waves to the end of the last: allocators take and return it in steps."""
LIMITS = {"claim_memory_ms": 5_000, "keep_finished": 2_000, "request_memory": 1_000}
"""What a node remembers of the past has settled well within the first share of a minute."""

Tell = Callable[[str], None]


class Memory(msgspec.Struct, frozen=True):
    """Resident memory of a node in MiB, medians of a share of the waves."""

    first: float
    last: float

    @property
    def flat(self) -> bool:
        """Whether it has not grown but for what is in the nature of allocators."""
        return self.last <= self.first * GROWTH + GROWTH_MB


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a trial."""

    pollers: int
    waves: int
    hung_up: dict[Manner, int]
    refused: int
    """Pollers whose connection no node took."""
    overslept: int
    """Pollers that the harness woke too late to tell anything; what they hold is given back."""
    created: int
    completed: int
    given_back: int
    """Executions that were granted to pollers and released."""
    left_by_wave: dict[str, int]
    """Leases without a living holder a second after each wave; waves without any are left out."""
    attempts_burnt: int
    expired: int
    waiting_claims: int
    """At the end, over all nodes."""
    leased: int
    rss_mb: dict[str, Memory]

    @property
    def violations(self) -> list[str]:
        """Why the trial failed, one sentence each; empty when it succeeded."""
        left = sum(self.left_by_wave.values())
        found = [
            (left, f"{left} leases had no living holder a second after their pollers hung up"),
            (self.attempts_burnt, f"{self.attempts_burnt} attempts were used up by pollers"),
            (self.expired, f"{self.expired} leases ended by their length"),
            (self.waiting_claims, f"{self.waiting_claims} claims wait at the end"),
            (self.leased, f"{self.leased} executions are leased at the end"),
            (self.created - self.completed, f"{self.completed} of {self.created} jobs were done"),
            (self.refused, f"{self.refused} pollers found no connection"),
            (
                self.overslept >= self.pollers * self.waves,
                "every poller was woken too late: nothing was tried in time",
            ),
            (not self.given_back, "no poller was ever granted anything: nothing was tried"),
        ]
        reasons = [text for wrong, text in found if wrong]
        return reasons + [
            f"node {name} grew from {memory.first} to {memory.last} MiB"
            for name, memory in self.rss_mb.items()
            if not memory.flat
        ]


class Trial:
    """One run against three nodes of its own."""

    def __init__(self, pollers: int, waves: int, jobs_per_s: int, tell: Tell) -> None:
        self._pollers = pollers
        self._waves = waves
        self._jobs_per_s = jobs_per_s
        self._tell = tell
        self._left: dict[str, int] = {}
        self._rss: dict[str, list[float]] = {}
        self._created = 0
        self._done: set[str] = set()
        self._burnt = 0

    async def run(self, folder: Path) -> Report:
        """Run it with all files in `folder`; raises what the cluster does when it cannot start,
        and what its clients do when it cannot serve."""
        async with AsyncExitStack() as stack:
            self._tell("Starting three nodes")
            cluster = await stack.enter_async_context(
                LocalCluster.in_folder(folder, cluster="hangups", limits=LIMITS)
            )
            client = await stack.enter_async_context(Client(cluster.urls))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            ghosts = Ghosts([node.http for node in cluster.settings.nodes], seed=0)
            leader = cluster.url(await cluster.leader())
            before = await scrape(session, leader)
            await self._haunt(cluster, client, ghosts)
            await cluster.caught_up()  # a node that is behind would still show leases
            after = await scrape(session, leader)
            at_end = [await scrape(session, url) for url in cluster.urls]
        return Report(
            pollers=self._pollers,
            waves=self._waves,
            hung_up=dict(ghosts.hung_up),
            refused=ghosts.refused,
            overslept=len(ghosts.overslept),
            created=self._created,
            completed=len(self._done),
            given_back=_grown("timeball_released_total", before, after),
            left_by_wave={wave: left for wave, left in self._left.items() if left},
            attempts_burnt=self._burnt,
            expired=_grown("timeball_expired_total", before, after),
            waiting_claims=sum(round(one.get("timeball_waiting_claims", 0)) for one in at_end),
            leased=max(round(one["timeball_leased_executions"]) for one in at_end),
            rss_mb={name: self._memory(samples) for name, samples in self._rss.items()},
        )

    async def _haunt(self, cluster: LocalCluster, client: Client, ghosts: Ghosts) -> None:
        """All waves, with their jobs and their workers, to the end of the last job."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(self._create(client, stop))
            for number in range(WORKERS):
                group.create_task(self._work(client, f"living-{number}", stop, creating))
            async with asyncio.TaskGroup() as waves:
                for wave in range(self._waves):
                    waves.create_task(self._wave(client, ghosts, f"ghost-{wave}"))
                    await asyncio.sleep(WAVE_S)
                    self._weigh(cluster)
                    self._tell(f"Wave {wave + 1}: {len(self._done)} of {self._created} jobs done")
            stop.set()
            await asyncio.sleep(AFTER_S)
            held = await _held_by(client, "ghost-")  # what was granted to them after their wave
            await client.release([hold for worker, hold in held if worker in ghosts.overslept])

    async def _wave(self, client: Client, ghosts: Ghosts, name: str) -> None:
        await ghosts.wave(name, self._pollers)
        await asyncio.sleep(AFTER_S)
        held = await _held_by(client, f"{name}-")
        slow = [hold for worker, hold in held if worker in ghosts.overslept]
        self._left[name] = len(held) - len(slow)
        await client.release(slow)

    async def _create(self, client: Client, stop: asyncio.Event) -> None:
        """Create jobs that are due at once, evenly, until told to stop."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while not stop.is_set():
            await asyncio.sleep(CREATES_S)
            owed = round((loop.time() - begin_s) * self._jobs_per_s) - self._created
            if owed > 0:
                jobs = [NewJob(queue=QUEUE) for _ in range(owed)]
                self._created += len(await client.create_many(jobs))

    async def _work(
        self, client: Client, name: str, stop: asyncio.Event, creating: asyncio.Task[None]
    ) -> None:
        """Complete what comes, until all is done, or too long after the last wave."""
        loop = asyncio.get_running_loop()
        until_s: float | None = None
        while not (creating.done() and len(self._done) >= self._created):
            if stop.is_set():
                until_s = until_s or loop.time() + DRAIN_S
                if loop.time() > until_s:
                    return
            claimed = await client.claim(
                worker=name, queue=QUEUE, max_executions=WORKERS_TAKE, wait_ms=500
            )
            self._burnt += sum(one.attempt - 1 for one in claimed.executions)
            if claimed.executions:
                await client.complete(
                    [Success(one.execution_id, one.token) for one in claimed.executions]
                )
                self._done.update(one.execution_id for one in claimed.executions)

    def _weigh(self, cluster: LocalCluster) -> None:
        for name in cluster.names:
            usage = read_usage(cluster.pid(name))
            if usage is not None:
                self._rss.setdefault(name, []).append(usage.rss_mb)

    @staticmethod
    def _memory(samples: list[float]) -> Memory:
        share = max(1, int(len(samples) * SHARE))
        return Memory(
            first=median(samples[share - 1 : 2 * share - 1] or samples[-1:]),
            last=median(samples[-share:]),
        )


async def _held_by(client: Client, name: str) -> list[tuple[str, Hold]]:
    """What workers hold whose names begin so, as the leader sees it now."""
    held: list[tuple[str, Hold]] = []
    for state in ("leased", "running"):
        async for execution in client.executions(
            queue=QUEUE, state=state, page_size=1_000, consistency="strong"
        ):
            attempt = execution.attempts[-1]
            if attempt.worker.startswith(name):
                held.append((attempt.worker, Hold(execution.execution_id, attempt.token)))
    return held


def _grown(name: str, before: Samples, after: Samples) -> int:
    return round(after[name] - before.get(name, 0.0))

"""The load that faults fall into: submitters, workers that suffer too, zombies, status readers.

Something is due every few milliseconds whatever becomes of creates meanwhile, for most jobs are
submitted seconds ahead. Everybody reaches the cluster over the clients' links. What is drawn at
random comes from the run's seed; when things happen depends on the cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from timeball.bench import workload
from timeball.bench.history import Recorder, StatusRead, WorkerReady
from timeball.bench.processes import WorkerProcess
from timeball.bench.recording import RecordingClient
from timeball.bench.watching import Watch
from timeball.client.errors import (
    NotFound,
    OutcomeUnknown,
    Overloaded,
    TimeballError,
    Unavailable,
)
from timeball.client.messages import (
    After,
    At,
    Cron,
    Every,
    ExecutionList,
    NewJob,
    Retry,
    Schedule,
    Success,
)

SUBMITTERS = 4
WORKERS = 3
ZOMBIES = 2
READERS = 2
LEASE_MS = 2_000
ZOMBIE_LEASE_MS = 1_000
ZOMBIE_HOLDS_S = (1.2, 2.5)
AHEAD_MS = 8_000
"""Jobs are due up to so long after their creation: longer than most outages."""
FAR_MS = 3_600_000
BATCH = (2, 12)
REPEATED = 0.15
"""The share of creates that are sent once more although they were answered."""
LAST_CREATES_S = 60.0
"""How long creates may take to be answered when the load ends."""
TIMEOUT_MS = 2_500
"""Of a submitter's call, with all its attempts: short, so that outcomes stay unknown."""
CREW_REST_S = (3.0, 8.0)
WORKER_FROZEN_S = (2.5, 4.0)
SIDECAR_REST_S = 0.1
SIDECAR_TIMEOUT_MS = 1_000
START_S = 30.0
"""How long workers may take to start."""
REMEMBERED = 1_000
"""One-shot jobs whose status may be asked for."""
READ_SPACING_S = 0.1
RETRY = Retry(max_attempts=100, initial_ms=100, max_ms=1_000)
"""Attempts end with killed and frozen workers all the time: none is to die of that."""

_executions = msgspec.json.Decoder(ExecutionList)


class Submitter:
    """Creates jobs of all kinds until told to stop; repeats what was not answered."""

    def __init__(
        self, client: RecordingClient, rng: random.Random, rate: float, remembered: deque[str]
    ) -> None:
        """`rate` is in jobs a second; one-shot jobs are added to `remembered`."""
        self._client = client
        self._rng = rng
        self._rate = rate
        self._remembered = remembered

    async def run(self, stop: asyncio.Event) -> None:
        """Submit until `stop`; returns when the last create is answered."""
        while not stop.is_set():
            jobs = await self._submit()
            await asyncio.sleep(self._rng.expovariate(self._rate / jobs))

    async def _submit(self) -> int:
        """Make one request, whatever it takes; how many jobs it was for."""
        rng = self._rng
        match rng.choices(("single", "batch", "keyed", "cancelled", "recurring"), _SHARES)[0]:
            case "single":
                await self._answered(workload.STREAM, [self._one_shot()], single=True)
                return 1
            case "batch":
                jobs = [self._one_shot() for _ in range(rng.randint(*BATCH))]
                await self._answered(workload.DELAYED, jobs)
                return len(jobs)
            case "keyed":
                key = f"key-{rng.getrandbits(64):x}"
                job = msgspec.structs.replace(self._one_shot(), idempotency_key=key)
                for _ in range(2):
                    await self._answered(workload.KEYED, [job], single=True)
                return 1
            case "cancelled":
                later = workload.job(workload.UNWANTED, After(FAR_MS), RETRY)
                (job_id,) = await self._answered(workload.UNWANTED, [later], single=True)
                await self._cancelled(job_id)
                return 1
            case _:
                job = workload.job(workload.INTERVAL, self._timetable(), RETRY)
                await self._answered(workload.INTERVAL, [job], single=True)
                return 1

    def _one_shot(self) -> NewJob:
        rng = self._rng
        delay_ms = rng.randint(0, AHEAD_MS)
        schedule: Schedule | None = rng.choice(
            (After(delay_ms), At(self._now_ms() + delay_ms), None)
        )
        label = rng.choices((workload.STREAM, workload.SLOW, workload.FLAKY), (90, 7, 3))[0]
        return workload.job(label, schedule, RETRY)

    def _timetable(self) -> Schedule:
        """A short one, half-way between two nominal times at its end, so that all can be asked."""
        rng = self._rng
        until_ms = (self._now_ms() + rng.randint(3_000, AHEAD_MS)) // 1000 * 1000 + 550
        if rng.random() < 0.5:
            return Cron("* * * * * *", until=until_ms, catch_up="all")
        return Every(rng.choice((300, 700, 1_100)), until=until_ms, catch_up="all")

    async def _answered(self, label: str, jobs: list[NewJob], *, single: bool = False) -> list[str]:
        """Submit until it is answered, and now and then once more; the job ids."""
        request_id = self._client.name_request()
        async with asyncio.timeout(LAST_CREATES_S):
            again = True
            while again:
                try:
                    created = await self._client.submit(
                        label, jobs, single=single, request_id=request_id
                    )
                except (OutcomeUnknown, Unavailable, Overloaded):
                    continue
                again = self._rng.random() < REPEATED
        ids = [each.job_id for each in created]
        if not isinstance(jobs[0].schedule, Every | Cron):
            self._remembered.extend(ids)
        return ids

    async def _cancelled(self, job_id: str) -> None:
        async with asyncio.timeout(LAST_CREATES_S):
            while True:
                try:
                    await self._client.cancel(job_id)
                    return
                except (OutcomeUnknown, Unavailable, Overloaded):
                    continue

    def _now_ms(self) -> int:
        return self._client.recorder.clock_us() // 1000


_SHARES = (55, 33, 4, 4, 4)


async def zombie(
    client: RecordingClient, name: str, rng: random.Random, stop: asyncio.Event
) -> None:
    """Claim, say nothing until the lease is over, and complete then, as if nothing had been."""
    while not stop.is_set():
        try:
            claimed = await client.claim(
                worker=name, max_executions=2, wait_ms=500, lease_ms=ZOMBIE_LEASE_MS
            )
            await asyncio.sleep(rng.uniform(*ZOMBIE_HOLDS_S))
            late = [Success(execution_id=e.execution_id, token=e.token) for e in claimed.executions]
            if late:
                await client.complete(late)
        except TimeballError:  # no answer came in time: what it may have done is recorded as sent
            await asyncio.sleep(0.2)


async def sidecar(client: RecordingClient, name: str, stop: asyncio.Event) -> None:
    """Claim and complete at once, over one node alone, like a worker that runs beside it.

    Workers wander to where they are answered, and may all hang on a node that falls silent; with
    one of these at every node, the first fire tells of the cluster and not of their luck.
    """
    while not stop.is_set():
        try:
            claimed = await client.claim(
                worker=name, max_executions=10, wait_ms=1_000, lease_ms=LEASE_MS
            )
            done = [Success(execution_id=e.execution_id, token=e.token) for e in claimed.executions]
            if done:
                await client.complete(done)
        except TimeballError:  # its node is gone, or knows no leader
            await asyncio.sleep(SIDECAR_REST_S)


async def sidecars(
    urls: Mapping[str, str], recorder: Recorder, stop: asyncio.Event, stack: AsyncExitStack
) -> list[Coroutine[Any, Any, None]]:
    """One at every node, by name, each to run as a task of its own; `stack` closes its client."""
    parts = []
    for name, url in urls.items():
        client = RecordingClient([url], recorder, timeout_ms=SIDECAR_TIMEOUT_MS)
        await stack.enter_async_context(client)
        parts.append(sidecar(client, f"sidecar-{name}", stop))
    return parts


class Crew:
    """Worker processes, of which one after another is killed or frozen past its lease."""

    def __init__(
        self, urls: Sequence[str], folder: Path, recorder: Recorder, rng: random.Random
    ) -> None:
        self._urls = list(urls)
        self._folder = folder
        self._recorder = recorder
        self._rng = rng
        self._workers: list[WorkerProcess] = []
        self._hired = 0
        self.histories: list[Path] = []

    async def start(self) -> None:
        """Start the workers, each of which prefers another node; raises NotSeen."""
        watch = Watch()
        for _ in range(WORKERS):
            await self._hire()
        for worker in self._workers:
            watch.follow(worker.history)
            await watch.event(f"{worker.name} at work", WorkerReady, _ready(worker.name), START_S)

    async def _hire(self) -> None:
        self._hired += 1
        first = self._hired % len(self._urls)
        worker = WorkerProcess(f"worker-{self._hired}", self._folder, self._recorder)
        self._workers.append(worker)
        self.histories.append(worker.history)
        urls = self._urls[first:] + self._urls[:first]
        await worker.start(urls, self._folder / "cured", LEASE_MS)

    async def suffer(self, stop: asyncio.Event) -> None:
        """Kill or freeze one worker after another until `stop`."""
        rng = self._rng
        while not stop.is_set():
            await asyncio.sleep(rng.uniform(*CREW_REST_S))
            worker = self._workers[rng.randrange(len(self._workers))]
            if rng.random() < 0.5:
                worker.send("kill")
                await worker.wait()
                self._workers.remove(worker)
                await self._hire()
            else:
                worker.send("stop")
                await asyncio.sleep(rng.uniform(*WORKER_FROZEN_S))
                worker.send("continue")

    async def end(self) -> None:
        """End every worker; safe to repeat."""
        await asyncio.gather(*(worker.end() for worker in self._workers))


def _ready(name: str) -> Callable[[WorkerReady], bool]:
    return lambda event: event.source == name


async def read_statuses(
    urls: dict[str, str],
    recorder: Recorder,
    rng: random.Random,
    remembered: deque[str],
    stop: asyncio.Event,
) -> None:
    """Ask one node after another, by name, what has become of one-shot jobs."""
    limit = aiohttp.ClientTimeout(total=1.0)
    async with aiohttp.ClientSession(timeout=limit) as session:
        while not stop.is_set():
            await asyncio.sleep(READ_SPACING_S)
            if not remembered:
                continue
            job_id = remembered[rng.randrange(len(remembered))]
            for node, url in urls.items():
                read = await _read(session, node, url, job_id, recorder)
                if read is not None:
                    recorder.record(read)


async def _read(
    session: aiohttp.ClientSession, node: str, url: str, job_id: str, recorder: Recorder
) -> StatusRead | None:
    """What a node says; None when it does not answer."""
    try:
        async with session.get(f"{url}/v1/executions?job={job_id}") as answer:
            body = await answer.read()
            state = None
            if answer.status == 200:
                (execution,) = _executions.decode(body).executions
                state = execution.state
            elif answer.status != NotFound.status:
                return None
            return StatusRead(
                **recorder.stamp(),
                node=node,
                job_id=job_id,
                applied_index=int(answer.headers["Timeball-Applied-Index"]),
                state=state,
            )
    except (aiohttp.ClientError, TimeoutError):
        return None

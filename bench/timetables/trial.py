"""The trial of timetables: many that beat alike, workers that complete, faults on the mark."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from timeball.bench import workload
from timeball.bench.chaos import load
from timeball.bench.chaos.nemesis import Nemesis
from timeball.bench.chaos.proxied import ProxiedCluster
from timeball.bench.chaos.rules import check_complaints, check_ended, check_overcome
from timeball.bench.checkers import Finding, check
from timeball.bench.evidence import Run
from timeball.bench.history import Recorder, wall_clock_us
from timeball.bench.recording import RecordingClient
from timeball.bench.timetables.occurrences import check_occurrences
from timeball.bench.timetables.reference import beats, timetables
from timeball.bench.timetables.strikes import strikes

CREATED_WITHIN_MS = 5_000
"""A timetable whose only time is sooner may be created after it."""
SETTLE_MS = 2_000
"""From the creation of the timetables to the first strike."""


class Timetables:
    """The timetables, worker processes, and a sidecar at every node."""

    def __init__(
        self,
        cluster: ProxiedCluster,
        folder: Path,
        recorder: Recorder,
        counts: dict[str, int],
        seconds: float,
    ) -> None:
        self._urls = cluster.client_urls
        self._by_name = dict(zip(cluster.names, self._urls, strict=True))
        self._recorder = recorder
        self._counts = counts
        self._seconds = seconds
        self._crew = load.Crew(self._urls, folder, recorder, random.Random(0))

    @property
    def histories(self) -> list[Path]:
        """What the worker processes wrote."""
        return self._crew.histories

    async def start(self) -> None:
        """Start the workers and create the timetables; raises NotSeen.

        They end half-way between two full seconds: whether the last one counts is no question.
        Those that would not beat even once in so short a run are left out: the cluster refuses
        them.
        """
        await self._crew.start()
        now_ms = self._recorder.clock_us() // 1000
        until_ms = (now_ms + round(self._seconds * 1000)) // 1000 * 1000 + 500
        async with RecordingClient(self._urls, self._recorder) as client:
            for label, count in self._counts.items():
                jobs = [
                    workload.job(label, schedule, load.RETRY)
                    for schedule in timetables(label, count, until_ms)
                ]
                if jobs and beats(label, now_ms + CREATED_WITHIN_MS, until_ms):
                    await client.submit(label, jobs)

    async def parts(
        self, stop: asyncio.Event, stack: AsyncExitStack
    ) -> list[Coroutine[Any, Any, None]]:
        """The sidecars; the workers are processes, and go on by themselves."""
        return await load.sidecars(self._by_name, self._recorder, stop, stack)

    async def end(self) -> None:
        """End every worker."""
        await self._crew.end()


class TimetablesTrial:
    """Has the leader struck on the mark, for as long as the timetables run."""

    def __init__(
        self, seed: int, seconds: float, counts: dict[str, int], spacing_s: int, pause_s: float
    ) -> None:
        """`counts` says how many timetables there are of each label of the reference."""
        self._seed = seed
        self._seconds = seconds
        self._counts = counts
        self._spacing_s = spacing_s
        self._pause_s = pause_s

    def load(self, cluster: ProxiedCluster, folder: Path, recorder: Recorder) -> Timetables:
        """The timetables and who works on them."""
        return Timetables(cluster, folder, recorder, self._counts, self._seconds)

    async def strike(self, nemesis: Nemesis) -> None:
        """One strike after another until the timetables end; raises NotOvercome."""
        now_ms = wall_clock_us() // 1000
        until_ms = now_ms + round(self._seconds * 1000)
        planned = strikes(
            self._seed,
            now_ms + SETTLE_MS,
            until_ms,
            spacing_s=self._spacing_s,
            pause_s=self._pause_s,
        )
        await nemesis.strike(planned)
        await asyncio.sleep(until_ms / 1000 - wall_clock_us() / 1e6)

    def judge(self, run: Run) -> dict[str, Finding]:
        """What must hold of every run, of every node under faults, and of these timetables."""
        conduct = {
            "overcome": check_overcome(run),
            "ended": check_ended(run),
            "complaints": check_complaints(run),
        }
        return check(run) | conduct | check_occurrences(run)

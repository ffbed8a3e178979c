"""The trial of chaos proper: a mixture of all kinds of use, under faults of every kind."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from timeball.bench.chaos import load
from timeball.bench.chaos.nemesis import Nemesis
from timeball.bench.chaos.plan import Fault
from timeball.bench.chaos.proxied import ProxiedCluster
from timeball.bench.chaos.rules import check_conduct
from timeball.bench.checkers import Finding, check
from timeball.bench.evidence import Run
from timeball.bench.history import Recorder
from timeball.bench.recording import RecordingClient


class Mixture:
    """Submitters, workers that suffer too, zombies, sidecars and status readers."""

    def __init__(
        self,
        cluster: ProxiedCluster,
        folder: Path,
        recorder: Recorder,
        rng: random.Random,
        rate: float,
    ) -> None:
        self._urls = cluster.client_urls
        self._by_name = dict(zip(cluster.names, self._urls, strict=True))
        self._recorder = recorder
        self._rng = rng
        self._rate = rate
        self._crew = load.Crew(self._urls, folder, recorder, self._child())

    @property
    def histories(self) -> list[Path]:
        """What the worker processes wrote."""
        return self._crew.histories

    async def start(self) -> None:
        """Start the worker processes; raises NotSeen."""
        await self._crew.start()

    async def parts(
        self, stop: asyncio.Event, stack: AsyncExitStack
    ) -> list[Coroutine[Any, Any, None]]:
        """Everybody, each to run as a task of its own until `stop`."""
        urls, recorder = self._urls, self._recorder
        remembered: deque[str] = deque(maxlen=load.REMEMBERED)
        parts: list[Coroutine[Any, Any, None]] = [self._crew.suffer(stop)]
        for place in range(load.SUBMITTERS):
            client = RecordingClient(
                urls[place % 3 :] + urls[: place % 3],
                recorder,
                timeout_ms=load.TIMEOUT_MS,
                attempt_timeout_ms=1_000,
                name=f"{recorder.source}-{place}",
            )
            await stack.enter_async_context(client)
            rate = self._rate / load.SUBMITTERS
            parts.append(load.Submitter(client, self._child(), rate, remembered).run(stop))
        for place in range(load.ZOMBIES):
            client = RecordingClient(urls, recorder, timeout_ms=load.TIMEOUT_MS)
            await stack.enter_async_context(client)
            parts.append(load.zombie(client, f"zombie-{place}", self._child(), stop))
        parts += await load.sidecars(self._by_name, recorder, stop, stack)
        for _ in range(load.READERS):
            reading = load.read_statuses(self._by_name, recorder, self._child(), remembered, stop)
            parts.append(reading)
        return parts

    async def end(self) -> None:
        """End every worker."""
        await self._crew.end()

    def _child(self) -> random.Random:
        return random.Random(self._rng.random())


class MixtureTrial:
    """Lets faults strike the mixture for some seconds, one after another."""

    def __init__(
        self, rng: random.Random, rate: float, faults: Iterator[Fault], seconds: float
    ) -> None:
        """`rate` is in one-shot jobs a second; `faults` go on in the next trial."""
        self._rng = rng
        self._rate = rate
        self._faults = faults
        self._seconds = seconds

    def load(self, cluster: ProxiedCluster, folder: Path, recorder: Recorder) -> Mixture:
        """The mixture, drawn from the trial's seed."""
        return Mixture(cluster, folder, recorder, self._rng, self._rate)

    async def strike(self, nemesis: Nemesis) -> None:
        """One fault after another; raises NotOvercome."""
        await nemesis.rage(self._faults, asyncio.get_running_loop().time() + self._seconds)

    def judge(self, run: Run) -> dict[str, Finding]:
        """What must hold of every run, and of every run under faults."""
        return check(run) | check_conduct(run)

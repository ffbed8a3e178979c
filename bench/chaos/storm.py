"""One round of chaos: a fresh cluster, load, faults, quiet, and the checkers' judgement.

A long run is several rounds, so that what is recorded and compared stays bounded; the schedule
of faults goes on from one to the next.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from timeball.bench.chaos import load
from timeball.bench.chaos.gaps import Gap, gaps
from timeball.bench.chaos.nemesis import Nemesis, NotOvercome
from timeball.bench.chaos.plan import Fault
from timeball.bench.chaos.proxied import ProxiedCluster
from timeball.bench.chaos.rules import check_conduct
from timeball.bench.checkers import Finding, Violation, check
from timeball.bench.evidence import Run
from timeball.bench.history import (
    FinalAnswers,
    NodeComplained,
    Recorder,
    read_history,
    wall_clock_us,
)
from timeball.bench.recording import RecordingClient
from timeball.bench.watching import Nodes, NotSeen, asking, final_answers

ROUND_S = 180.0
"""The longest round."""
IDLE_S = 60.0
"""How long the last executions may take once nothing is broken any more."""
AGREE_S = 10.0
END_S = 90.0
"""How long the load may take to end after the last fault."""
CLIENT = "client"
LIMITS = {
    "keep_finished": 1_000_000,
    "keep_dead": 1_000_000,
}
"""Nothing is trimmed: checkers ask for all of it at the end."""
COMPLAINTS = (" ERROR ", " CRITICAL ", "Traceback")


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a round."""

    number: int
    folder: Path
    seconds: float
    findings: dict[str, Finding]
    gaps: list[Gap]
    counts: Counter[str]
    """Events of the history, by kind, and the final executions."""

    @property
    def violations(self) -> list[Violation]:
        """All of them."""
        return [v for finding in self.findings.values() for v in finding.violations]


class Storm:
    """A round under way."""

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        rate: float,
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._rng = rng
        self._rate = rate
        self._tell = tell
        self._history = folder / f"{CLIENT}.history.jsonl"

    async def blow(self, number: int, faults: Iterator[Fault], seconds: float) -> Round:
        """Run the round; no process outlives it. Raises what processes raise that can't start."""
        began = wall_clock_us()
        stuck: str | None = None
        final = FinalAnswers(asked_us=0, jobs=[], executions=[], nodes=[], expected_nodes=3)
        async with AsyncExitStack() as stack:
            recorder = stack.enter_context(Recorder(self._history, CLIENT))
            cluster = ProxiedCluster.in_folder(self._folder, cluster="chaos", limits=LIMITS)
            await stack.enter_async_context(cluster)
            urls = {name: cluster.url(name) for name in cluster.names}
            nodes = await stack.enter_async_context(asking(urls, recorder))
            client = await stack.enter_async_context(RecordingClient(cluster.urls, recorder))
            crew = load.Crew(cluster.client_urls, self._folder, recorder, self._child())
            stack.push_async_callback(crew.end)
            nemesis = Nemesis(cluster, nodes, recorder, self._tell)
            try:
                await crew.start()
                await self._rage(nemesis, faults, seconds, cluster, crew, recorder)
                await self._settle(nodes)
                await crew.end()
                final = await final_answers(client, nodes, len(urls), recorder.clock_us(), AGREE_S)
            except (NotOvercome, NotSeen) as error:
                stuck = str(error)
        return self._judge(number, crew.histories, final, stuck, wall_clock_us() - began)

    def _child(self) -> random.Random:
        return random.Random(self._rng.random())

    async def _rage(
        self,
        nemesis: Nemesis,
        faults: Iterator[Fault],
        seconds: float,
        cluster: ProxiedCluster,
        crew: load.Crew,
        recorder: Recorder,
    ) -> None:
        """Let the nemesis rage over the load; the load ends in order afterwards."""
        stop = asyncio.Event()
        remembered: deque[str] = deque(maxlen=load.REMEMBERED)
        urls = cluster.client_urls
        by_name = dict(zip(cluster.names, urls, strict=True))
        async with AsyncExitStack() as clients:
            loads = [crew.suffer(stop)]
            for place in range(load.SUBMITTERS):
                client = RecordingClient(
                    urls[place % 3 :] + urls[: place % 3],
                    recorder,
                    timeout_ms=load.TIMEOUT_MS,
                    attempt_timeout_ms=1_000,
                    name=f"{CLIENT}-{place}",
                )
                await clients.enter_async_context(client)
                rate = self._rate / load.SUBMITTERS
                loads.append(load.Submitter(client, self._child(), rate, remembered).run(stop))
            for place in range(load.ZOMBIES):
                client = RecordingClient(urls, recorder, timeout_ms=load.TIMEOUT_MS)
                await clients.enter_async_context(client)
                loads.append(load.zombie(client, f"zombie-{place}", self._child(), stop))
            for name, url in by_name.items():
                client = RecordingClient([url], recorder, timeout_ms=load.SIDECAR_TIMEOUT_MS)
                await clients.enter_async_context(client)
                loads.append(load.sidecar(client, f"sidecar-{name}", stop))
            for _ in range(load.READERS):
                reading = load.read_statuses(by_name, recorder, self._child(), remembered, stop)
                loads.append(reading)
            tasks = [asyncio.create_task(one) for one in loads]
            try:
                until_s = asyncio.get_running_loop().time() + seconds
                raging = asyncio.create_task(nemesis.rage(faults, until_s))
                tasks.append(raging)
                # A load that ends before it is told to has failed: no use in going on.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                stop.set()
                if raging.done():
                    raging.result()
                await self._ended(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ended(self, tasks: list[asyncio.Task[None]]) -> None:
        try:
            async with asyncio.timeout(END_S):
                await asyncio.gather(*tasks)
        except TimeoutError as error:
            raise NotOvercome("the load does not end: a request is never answered") from error

    async def _settle(self, nodes: Nodes) -> None:
        self._tell("waiting for the last executions")
        try:
            await nodes.idle(IDLE_S)
        except NotSeen as error:
            self._tell(str(error))  # the checkers name what is left, and why it should not be

    def _judge(
        self,
        number: int,
        workers: list[Path],
        final: FinalAnswers,
        stuck: str | None,
        took_us: int,
    ) -> Round:
        self._tell("checking the recorded history")
        events = read_history([self._history, *workers])
        events += [
            NodeComplained(at_us=0, source=CLIENT, node=path.stem, line=line)
            for path in sorted(self._folder.glob("[abc].log"))
            for line in path.read_text("utf-8", "replace").splitlines()
            if any(mark in line for mark in COMPLAINTS)
        ]
        run = Run(events, final)
        findings = check_conduct(run)
        if stuck is None:
            findings = check(run) | findings
        else:
            stuck_there = Violation("overcome", "run", stuck)
            known = findings["overcome"]
            findings["overcome"] = Finding(
                known.rule, known.examined, [stuck_there, *known.violations]
            )
        counts = Counter(type(event).__name__ for event in events)
        counts["executions"] = len(final.executions)
        return Round(
            number=number,
            folder=self._folder,
            seconds=round(took_us / 1e6, 1),
            findings=findings,
            gaps=gaps(run),
            counts=counts,
        )

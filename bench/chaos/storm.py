"""One round of chaos: a fresh cluster, load, faults, quiet, and the checkers' judgement.

What the load is, what strikes it and what must hold is the round's trial.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import msgspec

from timeball.bench.chaos.gaps import Gap, gaps
from timeball.bench.chaos.nemesis import Nemesis, NotOvercome
from timeball.bench.chaos.proxied import ProxiedCluster
from timeball.bench.chaos.rules import check_conduct
from timeball.bench.checkers import Finding, Violation
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


class Load(Protocol):
    """Who uses the cluster during a round. Everything that they see is recorded."""

    @property
    def histories(self) -> list[Path]:
        """What its processes wrote, beside what they record with the round's own recorder."""

    async def start(self) -> None:
        """Have everybody at work before the first fault; raises NotSeen."""

    async def parts(
        self, stop: asyncio.Event, stack: AsyncExitStack
    ) -> list[Coroutine[Any, Any, None]]:
        """What runs until `stop`, and then ends in order; `stack` closes what they hold."""

    async def end(self) -> None:
        """End every process; safe to repeat."""


class Trial(Protocol):
    """What a round is made of: its load, what strikes meanwhile, and what must hold of it."""

    def load(self, cluster: ProxiedCluster, folder: Path, recorder: Recorder) -> Load:
        """Who uses the cluster."""

    async def strike(self, nemesis: Nemesis) -> None:
        """Have the nemesis do its deeds for as long as the round lasts; raises NotOvercome."""

    def judge(self, run: Run) -> dict[str, Finding]:
        """Check what everybody saw and what the cluster says in the end; findings by rule."""


class Storm:
    """A round under way."""

    def __init__(self, folder: Path, trial: Trial, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._trial = trial
        self._tell = tell
        self._history = folder / f"{CLIENT}.history.jsonl"
        self.run: Run | None = None
        """What was seen, once the round is over, for who measures more than its rules do."""

    async def blow(self, number: int) -> Round:
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
            load = self._trial.load(cluster, self._folder, recorder)
            stack.push_async_callback(load.end)
            nemesis = Nemesis(cluster, nodes, recorder, self._tell)
            try:
                await load.start()
                await self._rage(nemesis, load)
                await self._settle(nodes)
                await load.end()
                final = await final_answers(client, nodes, len(urls), recorder.clock_us(), AGREE_S)
            except (NotOvercome, NotSeen) as error:
                stuck = str(error)
        return self._judge(number, load.histories, final, stuck, wall_clock_us() - began)

    async def _rage(self, nemesis: Nemesis, load: Load) -> None:
        """Let the nemesis rage over the load; the load ends in order afterwards."""
        stop = asyncio.Event()
        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(part) for part in await load.parts(stop, stack)]
            try:
                raging = asyncio.create_task(self._trial.strike(nemesis))
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
        run = self.run = Run(events, final)
        if stuck is None:
            findings = self._trial.judge(run)
        else:  # what the cluster would say in the end is not known: its conduct alone is judged
            findings = check_conduct(run)
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

"""The demo: a cluster, three workers, a story of failures, and the proof that all held.

`run_demo` starts the processes, lets the story run, asks every node for its final state,
ends the processes in every case, and checks the recorded history.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from timeball.bench.checkers import Finding, check
from timeball.bench.evidence import Run
from timeball.bench.history import Recorder, read_history
from timeball.bench.metrics import Figures, measure
from timeball.bench.planned import Planned, judge
from timeball.bench.recording import RecordingClient
from timeball.bench.scenario import Scenario
from timeball.bench.watching import asking, final_answers
from timeball.cluster.localcluster import LocalCluster

LEAST_EXECUTIONS = 500
FAILOVER_LIMIT_MS = 1_500
AGREE_S = 5.0
CLIENT = "client"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a demo: the findings of the checkers, the planned failures, the figures."""

    findings: dict[str, Finding]
    planned: list[Planned]
    figures: Figures
    run: Run
    seconds: float

    @property
    def failures(self) -> list[str]:
        """Why the demo failed, one sentence each; empty when it succeeded."""
        reasons = [
            f"{violation.rule}: {violation.subject}: {violation.detail}"
            for finding in self.findings.values()
            for violation in finding.violations
        ]
        reasons += [
            f"{rule}: the checker had nothing to look at"
            for rule, finding in self.findings.items()
            if not finding.examined
        ]
        reasons += [f"{p.name}: {p.what}: {p.seen}" for p in self.planned if not p.survived]
        figures = self.figures
        if figures.executions < LEAST_EXECUTIONS:
            reasons.append(f"only {figures.executions} executions, not {LEAST_EXECUTIONS}")
        if figures.failover_gap_ms is None or figures.failover_gap_ms > FAILOVER_LIMIT_MS:
            reasons.append(
                f"the fail-over took {figures.failover_gap_ms} ms, not at most {FAILOVER_LIMIT_MS}"
            )
        return reasons

    def as_json(self) -> bytes:
        """Render as one JSON object."""
        counts = {rule: len(finding.violations) for rule, finding in self.findings.items()}
        figures = msgspec.structs.asdict(self.figures)
        report = {
            "ok": not self.failures,
            "executions": figures.pop("executions"),
            **counts,
            "digests_agree": not self.findings["replicas"].violations,
            **figures,
            "planned": {planned.name: planned.survived for planned in self.planned},
            "failures": self.failures[:100],
            "examined": {rule: finding.examined for rule, finding in self.findings.items()},
            "seconds": self.seconds,
            "versions": versions(),
            "machine": machine(),
        }
        return msgspec.json.encode(report)


async def run_demo(folder: Path, tell: Callable[[str], None]) -> Outcome:
    """Run the demo with all its files in `folder`.

    Raises `NotSeen` when a step of the story had not the consequence that it must have, and
    what the cluster's processes raise when they can't start. No process outlives the call.
    """
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        history = folder / f"{CLIENT}.history.jsonl"
        recorder = stack.enter_context(Recorder(history, CLIENT))
        tell("Starting three nodes")
        cluster = await stack.enter_async_context(LocalCluster.in_folder(folder, cluster="demo"))
        urls = {name: cluster.url(name) for name in cluster.names}
        nodes = await stack.enter_async_context(asking(urls, recorder))
        client = await stack.enter_async_context(RecordingClient(cluster.urls, recorder))
        scenario = Scenario(cluster, nodes, client, folder, tell)
        stack.push_async_callback(scenario.end)
        await scenario.run()
        tell("Stopping the workers, comparing the nodes")
        await scenario.end()
        final = await final_answers(client, nodes, len(urls), recorder.clock_us(), AGREE_S)
    tell("Checking the recorded history")
    run = Run(read_history([history, *scenario.histories()]), final)
    return Outcome(
        findings=check(run),
        planned=judge(run),
        figures=measure(run),
        run=run,
        seconds=round(time.monotonic() - began, 1),
    )


def versions() -> dict[str, str]:
    """The versions of what the figures depend on."""
    packages = ("timeball", "pysyncobj", "aiohttp", "msgspec", "uvloop")
    return {
        "python": platform.python_version(),
        "core": _core(),
        **{name: version(name) for name in packages},
    }


def _core() -> str:
    """Whether this installation runs its core compiled (decision 0022)."""
    spec = find_spec("timeball.cluster.state.store")
    compiled = spec is not None and str(spec.origin).endswith(".so")
    return "compiled" if compiled else "interpreted"


def machine() -> dict[str, str | int]:
    """The machine that the figures were measured on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"

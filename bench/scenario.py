"""The demo's story: load all along, and one failure after another.

Each step waits for what it has caused to be *seen* (in a worker's history, or in a node's
answer) before the next begins; only the load follows the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from timeball.bench import workload
from timeball.bench.history import (
    Delivered,
    HandlerStarted,
    ProcessSignalled,
    Recorder,
    ReportAnswered,
    Signal,
    WorkerReady,
)
from timeball.bench.processes import WorkerProcess
from timeball.bench.recording import RecordingClient
from timeball.bench.watching import GLANCE_S, Nodes, NotSeen, Watch, in_time
from timeball.client.messages import At, ExecutionView, NewJob, Retry
from timeball.cluster.localcluster import LocalCluster

WORKERS = 3
LEASE_MS = 2_000
LOAD_MS = 22_000
"""How long the base load lasts; the faults fit in."""
FAR_MS = 600_000
STEP_S = 15.0
"""How long any single consequence may take to be seen."""
STREAM_AFTER_RETURN_S = 1.0


class Scenario:
    """Runs the story once. `tell` hears what happens, for whoever looks on."""

    def __init__(
        self,
        cluster: LocalCluster,
        nodes: Nodes,
        client: RecordingClient,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.watch = Watch()
        self.workers: dict[str, WorkerProcess] = {}
        self._cluster = cluster
        self._nodes = nodes
        self._client = client
        self._recorder: Recorder = client.recorder
        self._folder = folder
        self._tell = tell
        self._cure = folder / "poison-cured"

    async def run(self) -> None:
        """Run from the first leader to the last execution; raises NotSeen when a step fails."""
        self._tell("Waiting for a first leader")
        await self._nodes.leader()
        await asyncio.gather(*(self._add_worker() for _ in range(WORKERS)))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            begin_ms = self._now_ms()
            self._tell("Submitting immediate, delayed, interval and every-second jobs")
            await workload.submit_base_load(self._client, begin_ms, begin_ms + LOAD_MS)
            group.create_task(workload.submit_stream(self._client, stop))
            await self._submit_specials()
            await self._fail_twice()
            await self._replay_poison()
            await self._kill_worker()
            await self._stop_worker()
            await self._kill_leader()
            await asyncio.sleep(STREAM_AFTER_RETURN_S)
            stop.set()
        self._tell("Waiting for the last executions")
        await asyncio.sleep(max(0, begin_ms + LOAD_MS - self._now_ms()) / 1000)
        await self._nodes.idle(STEP_S)

    async def end(self) -> None:
        """End every worker process; safe to repeat."""
        await asyncio.gather(*(worker.end() for worker in self.workers.values()))

    def histories(self) -> list[Path]:
        """The files that all workers recorded in."""
        return [worker.history for worker in self.workers.values()]

    # --- steps -------------------------------------------------------------------------------

    async def _submit_specials(self) -> None:
        self._tell("Creating one job twice, and cancelling another")
        retry = Retry(max_attempts=workload.POISON_ATTEMPTS, initial_ms=200, max_ms=400)
        await self._one(workload.POISON, workload.job(workload.POISON, retry=retry))
        keyed = NewJob(payload={"label": workload.KEYED}, idempotency_key=workload.KEY)
        for _ in range(2):
            await self._one(workload.KEYED, keyed)
        later = workload.job(workload.UNWANTED, At(self._now_ms() + FAR_MS))
        await self._client.cancel(await self._one(workload.UNWANTED, later))

    async def _fail_twice(self) -> None:
        self._tell("Waiting for the job that fails twice")
        execution, _ = await self._started(workload.FLAKY)
        await self._succeeded(execution)

    async def _kill_worker(self) -> None:
        execution, victim = await self._started(workload.CRASH)
        self._tell(f"SIGKILL to {victim.name} in mid-job")
        victim.send("kill")
        await victim.wait()
        await self._add_worker()
        await self._succeeded(execution)

    async def _stop_worker(self) -> None:
        execution, victim = await self._started(workload.ZOMBIE)
        self._tell(f"SIGSTOP to {victim.name}, past its lease")
        victim.send("stop")
        again = await self.watch.event(
            "another worker with the execution",
            HandlerStarted,
            lambda e: e.execution_id == execution and e.source != victim.name,
            STEP_S,
        )
        self._tell(f"{again.source} works on it; SIGCONT to {victim.name}, which completes it late")
        victim.send("continue")
        await self.watch.event(
            "the answer to the late report",
            ReportAnswered,
            lambda e: e.execution_id == execution and e.source == victim.name,
            STEP_S,
        )
        await self._succeeded(execution)

    async def _replay_poison(self) -> None:
        self._tell("Waiting for the poison job to die")
        dead = await self._first_dead()
        self._tell("Curing and replaying the dead letter")
        self._cure.touch()
        (answer,) = await self._client.replay([dead.execution_id])
        if answer.status != "replayed":
            raise NotSeen(f"the replay of {dead.execution_id}: {answer.status}")
        await self._succeeded(dead.execution_id)

    async def _kill_leader(self) -> None:
        leader = await self._nodes.leader()
        await workload.submit_wave(self._client, self._now_ms())
        await self.watch.event(
            "deliveries of the wave",
            HandlerStarted,
            lambda e: e.label == workload.WAVE,
            STEP_S,
        )
        self._tell(f"SIGKILL to the leader, {leader.node}, under load")
        self._signalled(leader.node, "kill", led=True)
        await self._cluster.kill(leader.node)
        following = await self._nodes.leader(above_term=leader.term)
        killed_us = self._recorder.clock_us()
        await self.watch.event(
            "a delivery by the next leader",
            Delivered,
            lambda e: e.claim_sent_us > killed_us,
            STEP_S,
        )
        self._tell(f"{following.node} leads; restarting {leader.node}")
        self._signalled(leader.node, "start")
        await self._cluster.restart(leader.node)
        await self._nodes.caught_up(leader.node, STEP_S)

    # --- what steps are made of --------------------------------------------------------------

    async def _add_worker(self) -> None:
        name = f"worker-{len(self.workers) + 1}"
        worker = WorkerProcess(name, self._folder, self._recorder)
        self.workers[name] = worker
        self.watch.follow(worker.history)
        await worker.start(self._cluster.urls, self._cure, LEASE_MS)
        await self.watch.event(f"{name} at work", WorkerReady, lambda e: e.source == name, STEP_S)

    async def _one(self, label: str, job: NewJob | None = None) -> str:
        (created,) = await self._client.submit(label, [job or workload.job(label)], single=True)
        return created.job_id

    async def _started(self, label: str) -> tuple[str, WorkerProcess]:
        """Submit a job of that label; the execution and the worker whose handler has it."""
        await self._one(label)
        started = await self.watch.event(
            f"the start of the {label} job", HandlerStarted, lambda e: e.label == label, STEP_S
        )
        return started.execution_id, self.workers[started.source]

    async def _succeeded(self, execution_id: str) -> None:
        await self.watch.event(
            f"an accepted completion of {execution_id}",
            ReportAnswered,
            lambda e: (
                e.execution_id == execution_id
                and e.kind == "complete"
                and e.verdict in ("accepted", "duplicate")
            ),
            STEP_S,
        )

    async def _first_dead(self) -> ExecutionView:
        async def look() -> ExecutionView:
            while True:
                async for execution in self._client.dead():
                    return execution
                await asyncio.sleep(GLANCE_S)

        return await in_time("a dead letter", look(), STEP_S)

    def _signalled(self, node: str, what: Signal, *, led: bool = False) -> None:
        self._recorder.record(
            ProcessSignalled(
                at_us=self._recorder.clock_us(),
                source=self._recorder.source,
                process=node,
                signal=what,
                led=led,
            )
        )

    def _now_ms(self) -> int:
        return self._recorder.clock_us() // 1000

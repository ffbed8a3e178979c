"""One simulated run, from a plan to a verdict: one plan gives one trace, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import random
from collections.abc import Iterator
from typing import Any

import msgspec
from sim_checkers import JudgesClock, Ledger, judge
from sim_clients import Client, Submitter, Surroundings, Worker
from sim_faults import MOST_SKEW_MS, Plan, node_names
from sim_http import Web
from sim_injector import Injector
from sim_loop import SimLoop, Spinning
from sim_net import Network
from sim_node import EPOCH_MS, Place, settings_for
from sim_queues import LimitsJudge, Operator
from sim_states import complaints
from sim_timekeeper import Closing, Timekeeper
from sim_timetable_events import QUEUE
from sim_timetables import judge_timetables

from timeball.bench.history import AnyEvent, FinalAnswers
from timeball.client import messages
from timeball.cluster.raft.errors import Halted, SnapshotUnderWay
from timeball.cluster.raft.interface import Applied, Observer
from timeball.cluster.raft.settings import RaftSettings

SETTLE_S = 90.0
"""How long a cluster in which nothing goes wrong any more has to finish all that is due."""
OPERATED_EVERY = 3
"""In the runs of every so many seeds somebody pauses and bounds queues."""
DIGEST_EVERY = 500
"""Entries between two looks at the hash of each node's state."""


class Outcome(msgspec.Struct):
    """What became of a run."""

    plan: Plan
    violations: list[str]
    trace: str
    trace_hash: str
    simulated_s: float
    deliveries: int
    applied_entries: int
    leaderships: int
    callbacks: int
    demands: int
    """How often something was as a job asked for: who got it, and until when."""
    expired: int
    """Executions that were skipped because they expired."""
    limited: int
    """Leases that nodes granted in queues with settings, all nodes together."""


class Simulation:
    """All places, clients, faults and judges of one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self.healed = False
        self.done = False
        self._rng = random.Random(f"{plan.seed}/run")
        self._trace: list[str] = []
        self.events: list[AnyEvent] = []
        """What clients and workers recorded."""
        self.final: FinalAnswers | None = None
        """What the cluster answered in the end."""
        self._ledger = Ledger()
        self._clock = JudgesClock()
        self.network = Network(self.loop, self._chance())
        self.web = Web(self.network)
        self.places = self._make_places()
        self._skewed = any(plan.skews_ms) or any(f.kind == "clock" for f in plan.faults)
        self._around = Surroundings(
            loop=self.loop,
            web=self.web,
            nodes=list(self.places),
            judge_us=self._clock.read_us,
            true_ms=self._true_ms,
            earliest_lead_ms=-MOST_SKEW_MS if self._skewed else 0,
            record=self._record,
            log=self.log,
            broken=self._broken,
            ends_ms=EPOCH_MS + plan.length_ms,
            skewed=self._skewed,
        )
        self._workers: dict[str, Worker] = {}
        self._worker_number = 0
        self._submitters: list[Submitter | Timekeeper | Operator] = []
        self.limited = 0
        """Leases that were judged by the limits of their queue."""
        self._injector = Injector(self, self._chance())
        self._auditor: Client

    def _chance(self) -> random.Random:
        """A source of chance of its own for each part, so that none disturbs another."""
        return random.Random(self._rng.random())

    def _make_places(self) -> dict[str, Place]:
        plan = self.plan
        names = node_names(plan.nodes)
        settings = settings_for(names)
        raft = RaftSettings(
            cluster=settings.name,
            tick_s=0.04,
            max_entry_bytes=65_536,
            log_memory_bytes=65_536,
            snapshot_entries=plan.snapshot_entries,
            trailing_entries=max(1, plan.snapshot_entries // 10),
            segment_bytes=20_000,
            journal_step_bytes=4_096,
            min_free_bytes=8_192,
            snapshot_chunk_bytes=3_000,
        )
        places = {}
        for name, skew_ms in zip(names, plan.skews_ms, strict=True):
            place = Place(
                self.loop,
                self.network,
                self.web,
                name,
                settings,
                raft,
                self._chance(),
                lambda place: _Witness(self, place),
                self.log,
            )
            place.skew_ms = skew_ms
            places[name] = place
        return places

    # --- the run -------------------------------------------------------------------------------

    def run(self) -> Outcome:
        plan = self.plan
        for place in self.places.values():
            place.start()
        self._injector.schedule(plan.faults)
        for _ in range(plan.workers):
            self._start_worker()
        for number in range(plan.submitters):
            pause_s = self._rng.choice([0.6, 1.5, 4.0])
            self._submitters.append(
                Submitter(self._around, f"c{number + 1}", self._chance(), pause_s)
            )
        self._auditor = Client(self._around, "auditor", self._chance())
        if plan.timekeepers:
            self._start_worker((QUEUE,))
        for number in range(plan.timekeepers):
            keeper = Timekeeper(self._around, f"t{number + 1}", self._chance(), number + 1)
            self._submitters.append(keeper)
        if plan.seed % OPERATED_EVERY == 0:
            rng = random.Random(f"{plan.seed}/operator")
            self._submitters.append(Operator(self._around, "operator", rng))
        self._auditor.process.start(self._audit())
        try:
            ends_s = self.plan.length_ms / 1000 + SETTLE_S + 60
            self.loop.run(lambda: self.done or self.loop.time() > ends_s)
        except Spinning as error:
            self._ledger.violated(f"spinning: {error}")
        if not self.done and not self.loop.failures:
            self._ledger.violated("stuck: the cluster gives no final answers")
        for failure in self.loop.failures:
            self._ledger.violated(f"failure: {failure}")
        self.log("messages", self.network.messages, f"{self.network.checksum:08x}")
        for violation in self._ledger.violations:
            self.log("VIOLATION", violation)
        self.loop.end()
        return self._outcome()

    def _outcome(self) -> Outcome:
        trace = "\n".join([*self._trace, ""])
        return Outcome(
            plan=self.plan,
            violations=self._ledger.violations,
            trace=trace,
            trace_hash=hashlib.sha256(trace.encode()).hexdigest(),
            simulated_s=self.loop.time(),
            deliveries=sum(1 for event in self.events if type(event).__name__ == "Delivered"),
            applied_entries=self._ledger.applied_entries,
            leaderships=self._ledger.leaderships,
            callbacks=self.loop.callbacks,
            demands=self._around.demands.examined,
            expired=self._around.demands.skipped,
            limited=self.limited,
        )

    async def _audit(self) -> None:
        """Heal when the time has come, let everything come to rest, and judge."""
        await asyncio.sleep(self.plan.length_ms / 1000)
        self.log("heal")
        self.healed = self._around.honest = True
        self._injector.heal()
        if not self._workers:
            self._start_worker()
        await self._all_ended()
        if self.plan.timekeepers:
            self._ledger.violations += await Closing(self._auditor).close()
        at_rest = await self._rest()
        self.final = final = await self._final_answers() if at_rest else None
        if final is None:
            self._ledger.violated(f"stuck: {self._standing()}")
        else:
            self._ledger.violations += judge(self.events, final)
            self._ledger.violations += self._around.demands.judge(final)
            self._ledger.violations += judge_timetables(self.events, final, skewed=self._skewed)
        self.done = True

    async def _all_ended(self) -> None:
        """Wait until nobody asks for more; each of them has an end to its patience."""
        for submitter in self._submitters:
            await submitter.ended.wait()

    async def _rest(self) -> bool:
        """Wait until nothing is scheduled or leased, and all nodes agree."""
        ends = self.loop.time() + SETTLE_S
        while self.loop.time() < ends:
            await asyncio.sleep(0.5)
            leader = self.leader_name()
            view = None if leader is None else await self._view(leader)
            if view is None or any(queue.scheduled or queue.leased for queue in view.queues):
                continue
            nodes = [place.joined for place in self.places.values()]
            if None not in nodes and len({node.consensus.applied_index for node in nodes}) == 1:
                return True
        return False

    def _standing(self) -> str:
        told = []
        for place in self.places.values():
            node = place.joined
            if node is None:
                told.append(f"{place.name} down")
                continue
            c, q = node.consensus, node.state.queues
            depth = {name: (counts.scheduled, counts.leased) for name, counts in q.items()}
            told.append(
                f"{place.name} {c.role} term {c.term} leader {c.leader} serving {node.serving}"
                f" last {c.last_index} commit {c.commit_index} applied {c.applied_index} {depth}"
            )
        return "; ".join(told)

    async def _view(self, name: str, *, digest: bool = False) -> messages.ClusterView | None:
        auditor = self._auditor
        auditor._node = name
        path = "/v1/cluster" + ("?digest=true" if digest else "")
        view = await auditor.ask("GET", path, kind=messages.ClusterView, patience_s=0.0)
        return view if isinstance(view, messages.ClusterView) else None

    async def _final_answers(self) -> FinalAnswers | None:
        asked_us = self._true_ms() * 1000
        nodes = []
        for name in self.places:
            view = await self._view(name, digest=True)
            if view is not None:
                nodes.append(view)
        jobs = await self._all("/v1/jobs", messages.JobList)
        executions = await self._all("/v1/executions", messages.ExecutionList)
        if jobs is None or executions is None:
            return None
        return FinalAnswers(
            asked_us=asked_us,
            jobs=jobs,
            executions=executions,
            nodes=nodes,
            expected_nodes=self.plan.nodes,
        )

    async def _all(self, path: str, kind: Any) -> list[Any] | None:
        """Every page, from one node."""
        found: list[Any] = []
        cursor = ""
        while True:
            page = await self._auditor.ask("GET", f"{path}?limit=1000{cursor}", kind=kind)
            if not isinstance(page, kind):
                return None
            found += page.jobs if kind is messages.JobList else page.executions
            if page.cursor is None:
                return found
            cursor = f"&cursor={page.cursor}"

    # --- what faults act upon ------------------------------------------------------------------

    def leader_name(self) -> str | None:
        """The node that leads in the highest term, if one does."""
        leaders = [place for place in self.places.values() if place.leads]
        if not leaders:
            return None
        return max(leaders, key=lambda place: place.node.consensus.term).name

    def kill(self, place: Place, *, power: bool = False) -> None:
        self._clock.ends(place.name)
        place.kill(power=power)

    def terminate(self, place: Place) -> None:
        """SIGTERM: the node leaves in good order, and its process ends."""
        process, node = place.process, place.joined
        if node is None:
            return

        async def leave() -> None:
            await node._leave()
            self.log("left", place.name)
            self.loop.call_at_for(None, self.loop.time(), place._end, process)

        process.start(leave())

    def ask_snapshot(self, place: Place) -> None:
        def ask() -> None:
            if place.joined is not None:
                with contextlib.suppress(SnapshotUnderWay, Halted):
                    place.joined.consensus.take_snapshot()

        if place.up:
            place.process.call_at(self.loop.time(), ask)

    def others_hold_everything(self, place: Place) -> bool:
        """Whether every other node has a past: then one node may lose its disk."""
        return all(
            other.joined is not None and other.joined.consensus._engine.membership.votes
            for other in self.places.values()
            if other is not place
        )

    def set_skew(self, place: Place, skew_ms: int) -> None:
        self._clock.read_us()
        place.skew_ms = max(-MOST_SKEW_MS, min(MOST_SKEW_MS, skew_ms))

    def client_names(self) -> list[str]:
        return [*self._workers, *(submitter.name for submitter in self._submitters)]

    def _start_worker(self, queues: tuple[str, ...] = ("even", "odd")) -> None:
        self._worker_number += 1
        name = f"w{self._worker_number}"
        mischief = self._rng.choice([0.0, 0.2, 0.6])
        self._workers[name] = Worker(self._around, name, self._chance(), mischief, queues)

    def crash_worker(self) -> None:
        """One worker is killed, and another takes its place."""
        name = next(iter(self._workers))
        worker = self._workers.pop(name)
        worker.process.kill()
        self.web.client_died(worker.process)
        self._start_worker(worker.queues)

    # --- evidence ------------------------------------------------------------------------------

    def _true_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * 1000)

    def log(self, what: str, *details: object) -> None:
        """One line of the trace."""
        told = " ".join(str(detail) for detail in details)
        self._trace.append(f"{self.loop.time():.6f} {what} {told}")

    def _record(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.log("saw", msgspec.json.encode(event).decode())

    def _broken(self, what: str) -> None:
        self._ledger.violated(f"answer: {what}")


class _Witness(Observer):
    """Tells the judges what one life of a node does."""

    def __init__(self, run: Simulation, place: Place) -> None:
        self._run = run
        self._place = place
        self._life = place.lives
        self._limits = LimitsJudge()

    def on_applied(self, index: int, term: int, entry: bytes, applied: Applied) -> None:
        digest = self._place.node.state.digest() if index % DIGEST_EVERY == 0 else None
        state, judge = self._place.node.state, self._limits
        told = list(complaints(state, index, applied.touched))
        examined = judge.examined
        told += judge.complaints(state, index, applied)
        self._run.limited += judge.examined - examined
        self._place.process.call_now(self._applied, index, term, entry, digest, told)

    def _applied(
        self, index: int, term: int, entry: bytes, digest: str | None, told: list[str]
    ) -> None:
        run, name = self._run, self._place.name
        for complaint in told:
            run._ledger.violated(f"{complaint}, at {index} on {name}")
        run._ledger.applied(name, self._life, index, term, entry)
        run.log("applied", name, index, term, len(entry))
        if digest is not None:
            run._ledger.digest(name, index, digest)

    def on_installed(self, index: int) -> None:
        self._place.process.call_now(self._installed, index)

    def _installed(self, index: int) -> None:
        self._run._ledger.installed(self._place.name, self._life, index)
        self._run.log("installed", self._place.name, index)

    def on_leadership(self, term: int | None) -> None:
        self._place.process.call_now(self._leadership, term)

    def _leadership(self, term: int | None) -> None:
        run, place = self._run, self._place
        run.log("leads", place.name, term)
        if term is None:
            run._clock.ends(place.name)
        else:
            run._ledger.leads(place.name, term)
            run._clock.begins(place.name, lambda: place.wall_clock_us())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Runs as they should be: no log on the terminal, no collector at moments of its own."""
    collecting = gc.isenabled()
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        gc.collect()
        logging.disable(logging.NOTSET)
        if collecting:
            gc.enable()


def simulate(plan: Plan) -> Outcome:
    """Run a plan."""
    with quiet():
        return Simulation(plan).run()

"""Clients and workers of the simulator: they speak the protocol, and record what they saw.

Submitters create jobs of every kind, repeat what they heard no answer to under the same request id,
and cancel and replay some. Workers claim, beat, complete, fail, release, fall silent and complete
late, or go away in the middle. What they record is the history that the checkers of `bench` read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
from sim_http import Answer, Lost, Refused, Web, render_request
from sim_loop import Process, SimLoop
from sim_options import OFFERS, Demands, draw_from, with_options
from sim_timetable_events import QUEUE, Handed

from timeball.bench.history import (
    AnyEvent,
    CancelAcknowledged,
    CreateSent,
    Delivered,
    JobAcknowledged,
    ReplayAcknowledged,
    ReportAnswered,
)
from timeball.client import messages

TYPE = "application/msgpack"
_encode = msgspec.msgpack.Encoder().encode

_ASK_AGAIN = (429, 503, 507)
"""Statuses that say: not now."""


class Surroundings(msgspec.Struct, eq=False):
    """What every client of a run shares."""

    loop: SimLoop
    web: Web
    nodes: list[str]
    judge_us: Callable[[], int]
    """The highest instant that the clock of any leader has shown; see `sim_checkers`."""
    true_ms: Callable[[], int]
    earliest_lead_ms: int
    """How far behind the true time the slowest clock of the run may be (0 or less)."""
    record: Callable[[AnyEvent], None]
    log: Callable[..., None]
    broken: Callable[[str], None]
    """Is told of an answer that no node may give."""
    ends_ms: int
    """When submitters stop, and recurring jobs with them."""
    honest: bool = False
    """Whether workers have ceased to do any mischief."""
    skewed: bool = False
    demands: Demands = msgspec.field(default_factory=Demands)


class Client:
    """Asks one node after the other until one answers."""

    def __init__(self, around: Surroundings, name: str, rng: random.Random) -> None:
        self.around = around
        self.name = name
        self.rng = rng
        self.process = Process(around.loop, name)
        self.doubts = 0
        """How many tries went without an answer to whether anything was done."""
        self._node = rng.choice(around.nodes)
        self._requests = 0

    def new_id(self) -> str:
        self._requests += 1
        return f"{self.name}-{self._requests}"

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: Any = None,
        headers: dict[str, str] | None = None,
        patience_s: float = 8.0,
        timeout_s: float = 1.5,
    ) -> Any:
        """The decoded answer; a Problem that is final; or None when patience has run out.

        `timeout_s` bounds each try. What may have been done is asked again: every request of
        these clients names what makes that safe.
        """
        around, loop = self.around, self.around.loop
        raw = b"" if body is None else _encode(body)
        sent = {"accept": TYPE, **(headers or {})}
        if raw:
            sent["content-type"] = TYPE
        request = render_request(method, path, raw, sent)
        ends = loop.time() + patience_s
        while True:
            node = self._node
            try:
                answer = await around.web.ask(self.name, self.process, node, request, timeout_s)
            except (Refused, Lost) as error:
                around.log("unanswered", self.name, node, path, type(error).__name__)
                self.doubts += isinstance(error, Lost)
            else:
                around.log("answer", self.name, node, path, answer.status)
                if answer.status not in _ASK_AGAIN:
                    return self._decoded(path, answer, kind)
                self.doubts += _problem(answer).outcome == "unknown"
            self._node = self.rng.choice(around.nodes)
            if loop.time() >= ends:
                return None
            await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    def _decoded(self, path: str, answer: Answer, kind: Any) -> Any:
        if answer.status < 300:
            return msgspec.msgpack.decode(answer.body, type=kind)
        problem = _problem(answer)
        if answer.status >= 500 and problem.outcome != "unknown":
            self.around.broken(f"{path} was answered with {answer.status}: {problem.detail}")
        return problem


def _problem(answer: Answer) -> messages.Problem:
    return msgspec.msgpack.decode(answer.body, type=messages.Problem)


class Submitter(Client):
    """Creates, cancels and replays until the run's end."""

    def __init__(self, around: Surroundings, name: str, rng: random.Random, pause_s: float) -> None:
        super().__init__(around, name, rng)
        self._pause_s = pause_s
        self._jobs: list[str] = []
        self._keyed: list[messages.NewJob] = []
        self._demanding = draw_from(rng)
        self.ended = asyncio.Event()
        """Whether it will ask for nothing any more."""
        self.process.start(self._submit())

    async def _submit(self) -> None:
        around, rng = self.around, self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._pause_s))
            if around.true_ms() >= around.ends_ms:
                break
            chance = rng.random()
            if chance < 0.72 or not self._jobs:
                await self._create([self._new_job()])
            elif chance < 0.82:
                await self._create([self._new_job() for _ in range(rng.randint(2, 6))])
            elif chance < 0.87 and self._keyed:
                await self._create([rng.choice(self._keyed)])
            elif chance < 0.95:
                await self._cancel(rng.choice(self._jobs))
            elif not around.skewed:
                await self._replay()
        self.ended.set()

    def _new_job(self) -> messages.NewJob:
        rng, around = self.rng, self.around
        schedule: messages.Schedule | None
        chance = rng.random()
        if chance < 0.25:
            schedule = None
        elif chance < 0.6:
            schedule = messages.After(rng.choice([0, 1, 50, 500, 3_000, 8_000]))
        elif chance < 0.85:
            schedule = messages.At(around.true_ms() + rng.randint(-1_000, 8_000))
        else:
            schedule = messages.Every(
                rng.choice([500, 1_000, 2_000]),
                until=around.true_ms() + rng.randint(2_000, 6_000),
                catch_up=rng.choice(["none", "one", "all"]),
            )
            if chance > 0.97:
                schedule = messages.Cron("*/2 * * * * *", until=schedule.until)
        job = messages.NewJob(
            queue=rng.choice(["even", "even", "odd"]),
            payload=rng.randrange(1000),
            schedule=schedule,
            priority=rng.choice([5, 5, 5, 1, 9]),
            partition_key=rng.choice(["", "", "a", "b"]),
            retry=messages.Retry(
                max_attempts=rng.choice([1, 3, 5, 8]),
                initial_ms=rng.choice([0, 50, 400]),
                max_ms=1_000,
            ),
            timeout_ms=rng.choice([None, None, None, 1_500]),
        )
        job = with_options(job, self._demanding)
        if isinstance(schedule, messages.At) and rng.random() < 0.4:
            key = f"{self.name}-key-{len(self._keyed)}"
            job = msgspec.structs.replace(job, idempotency_key=key)
            self._keyed.append(job)
        return job

    async def _create(self, jobs: list[messages.NewJob]) -> None:
        around = self.around
        request_id = self.new_id()
        sent_us = around.true_ms() * 1000 + around.earliest_lead_ms * 1000
        around.record(
            CreateSent(
                at_us=sent_us,
                source=self.name,
                request_id=request_id,
                jobs=len(jobs),
            )
        )
        if len(jobs) == 1:
            headers = {"timeball-request-id": request_id}
            answer = await self.ask(
                "POST", "/v1/jobs", jobs[0], headers=headers, kind=messages.JobCreated
            )
            results = [answer]
        else:
            batch = messages.NewJobs(jobs, request_id)
            answer = await self.ask("POST", "/v1/jobs/batch", batch, kind=messages.JobsCreated)
            whole = isinstance(answer, messages.JobsCreated)
            results = answer.results if whole else [answer] * len(jobs)
        if answer is None:
            return
        for position, (job, result) in enumerate(zip(jobs, results, strict=True)):
            if not isinstance(result, messages.JobCreated) or result.status == "refused":
                if not _too_late(result):
                    around.broken(f"a create was refused: {result}")
                continue
            self._jobs.append(result.job_id)
            around.demands.created(result.job_id, job)
            around.record(
                JobAcknowledged(
                    at_us=around.judge_us(),
                    source=self.name,
                    request_id=request_id,
                    position=position,
                    job_id=result.job_id,
                    status=result.status,
                    sent_us=sent_us,
                    idempotency_key=job.idempotency_key,
                    schedule=job.schedule,
                    next_fires=result.next_fires,
                )
            )

    async def _cancel(self, job_id: str) -> None:
        around = self.around
        sent_us = around.judge_us()
        answer = await self.ask("POST", f"/v1/jobs/{job_id}/cancel", kind=messages.JobCancelled)
        if isinstance(answer, messages.JobCancelled):
            around.record(
                CancelAcknowledged(
                    at_us=around.judge_us(),
                    source=self.name,
                    job_id=job_id,
                    status=answer.status,
                    sent_us=sent_us,
                )
            )

    async def _replay(self) -> None:
        around = self.around
        page = await self.ask("GET", "/v1/executions?state=dead", kind=messages.ExecutionList)
        if not isinstance(page, messages.ExecutionList) or not page.executions:
            return
        execution_id = self.rng.choice(page.executions).execution_id
        sent_us = around.judge_us()
        answer = await self.ask(
            "POST",
            "/v1/dead/replay",
            messages.Replay([execution_id]),
            kind=messages.ReplayAnswers,
        )
        if isinstance(answer, messages.ReplayAnswers):
            around.record(
                ReplayAcknowledged(
                    at_us=around.judge_us(),
                    source=self.name,
                    execution_id=execution_id,
                    status=answer.results[0].status,
                    sent_us=sent_us,
                )
            )


def _too_late(result: Any) -> bool:
    """Whether a recurring job was over before the cluster came to see it."""
    problem = result.problem if isinstance(result, messages.JobCreated) else result
    errors = problem.errors if isinstance(problem, messages.Problem) else []
    return any(error.field.endswith("schedule.until") for error in errors)


class Worker(Client):
    """Claims and works, not always as it should."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        rng: random.Random,
        mischief: float,
        queues: tuple[str, ...] = ("even", "odd"),
    ) -> None:
        super().__init__(around, name, rng)
        self.queues = queues
        self._mischief = mischief
        self._offering = draw_from(rng)
        self.process.start(self._claim())

    async def _claim(self) -> None:
        around, rng = self.around, self.rng
        while True:
            wait_ms = rng.choice([0, 1_500, 4_000, 8_000])
            offered = self._offering.choice(OFFERS)
            if around.honest:
                offered = OFFERS[-1]  # all that any job requires: everything is to end
            claim = messages.Claim(
                queue=rng.choice(self.queues),
                worker=self.name,
                max_executions=rng.choice([1, 1, 4, 20]),
                wait_ms=wait_ms,
                lease_ms=rng.choice([500, 1_000, 3_000]),
                request_id=self.new_id(),
                tags=offered,
            )
            sent_us = around.judge_us()
            patience_s = rng.choice([0.0, 2.0, 8.0])
            timeout_s = wait_ms / 1000 + (0.02 if rng.random() < self._spite() / 4 else 1.0)
            answer = await self.ask(
                "POST",
                "/v1/claims",
                claim,
                kind=messages.Claimed,
                patience_s=patience_s,
                timeout_s=timeout_s,
            )
            if not isinstance(answer, messages.Claimed):
                continue
            for delivery in answer.executions:
                around.demands.handed(delivery, claim.tags)
                around.record(
                    Delivered(
                        at_us=around.judge_us(),
                        source=self.name,
                        execution_id=delivery.execution_id,
                        job_id=delivery.job_id,
                        token=delivery.token,
                        attempt=delivery.attempt,
                        nominal_ms=delivery.nominal_ms,
                        due_ms=delivery.due_ms,
                        claim_sent_us=sent_us,
                    )
                )
                if delivery.queue == QUEUE:
                    around.record(
                        Handed(
                            at_us=around.judge_us(),
                            source=self.name,
                            execution_id=delivery.execution_id,
                            token=delivery.token,
                            attempt=delivery.attempt,
                            payload=delivery.payload,
                            due_ms=delivery.due_ms,
                        )
                    )
                self.process.start(self._work(delivery))
            if not wait_ms:
                await asyncio.sleep(rng.uniform(0.3, 1.5))

    def _spite(self) -> float:
        return 0.0 if self.around.honest else self._mischief

    async def _work(self, delivery: messages.Delivery) -> None:
        rng = self.rng
        lease_s = delivery.lease_ms / 1000
        chance = rng.random() if rng.random() < self._spite() else 1.0
        await asyncio.sleep(rng.choice([0.0, 0.002, 0.05, 0.2]))
        if chance < 0.15:
            return  # nobody ever hears of it again
        if chance < 0.4:
            await asyncio.sleep(lease_s * rng.uniform(0.8, 3.0))  # a zombie
            await self._report("complete", delivery)
        elif chance < 0.6:
            for _ in range(rng.randint(1, 6)):
                await self._beat(delivery)
                await asyncio.sleep(lease_s / 3)
            await self._report("complete", delivery)
        elif chance < 0.85:
            await self._report("fail", delivery)
            if rng.random() < 0.2:
                await self._report("complete", delivery)
        elif chance < 0.95:
            await self._report("release", delivery)
        else:
            await self._report("complete", delivery)
            if rng.random() < 0.1:
                await self._report("complete", delivery)

    async def _beat(self, delivery: messages.Delivery) -> None:
        hold = messages.Hold(delivery.execution_id, delivery.token)
        await self.ask(
            "POST",
            "/v1/executions/heartbeat",
            messages.Heartbeats([hold]),
            kind=messages.HeartbeatAnswers,
            patience_s=0.0,
        )

    async def _report(self, kind: Any, delivery: messages.Delivery) -> None:
        around, rng = self.around, self.rng
        item: Any
        batch: Any
        identity = delivery.execution_id, delivery.token
        if kind == "complete":
            batch = messages.Successes([messages.Success(*identity, rng.randrange(100))])
        elif kind == "fail":
            item = messages.Failure(
                *identity,
                "Simulated",
                "it failed",
                rng.choice([None, None, 0, 700]),
                rng.random() < 0.1,
            )
            batch = messages.Failures([item])
        else:
            batch = messages.Holds([messages.Hold(*identity)])
        sent_us = around.judge_us()
        answer = await self.ask("POST", f"/v1/executions/{kind}", batch, kind=messages.Reports)
        if isinstance(answer, messages.Reports):
            around.record(
                ReportAnswered(
                    at_us=around.judge_us(),
                    source=self.name,
                    kind=kind,
                    execution_id=delivery.execution_id,
                    token=delivery.token,
                    verdict=answer.results[0].verdict,
                    sent_us=sent_us,
                )
            )

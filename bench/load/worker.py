"""One worker process under load: ``python -m timeball.bench.load.worker PLAN NUMBER``.

Several claims wait at the same time; what arrives is stamped when its answer is decoded,
when a handler could begin, and completed in batches, several of them under way at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path

import msgspec

from timeball.bench.load.connection import BUSY, Leaders, Line, watching
from timeball.bench.load.control import Control, run_generator
from timeball.bench.load.plan import Plan, read_payload
from timeball.bench.load.records import Tally, write_record
from timeball.client.messages import Claim

BUSY_PAUSE_S = 0.05
"""Before a request is repeated that the cluster had no room for."""
FINISH_S = 10.0
"""How long the last completions may take after the word to stop."""


class _Delivery(msgspec.Struct, frozen=True, gc=False):
    """What the load needs of a delivery."""

    execution_id: str
    job_id: str
    token: int
    attempt: int
    due_ms: int
    payload: str


class _Claimed(msgspec.Struct, frozen=True, gc=False):
    executions: list[_Delivery]


class _Success(msgspec.Struct, frozen=True, gc=False):
    execution_id: str
    token: int


class _Successes(msgspec.Struct, frozen=True, gc=False):
    items: list[_Success]


class _Report(msgspec.Struct, frozen=True, gc=False):
    verdict: str


class _Reports(msgspec.Struct, frozen=True, gc=False):
    results: list[_Report]


_encoder = msgspec.msgpack.Encoder()
_claimed = msgspec.msgpack.Decoder(_Claimed)
_reports = msgspec.msgpack.Decoder(_Reports)


class LoadWorker:
    """Claims, stamps and completes."""

    def __init__(self, plan: Plan, number: int, start_ms: int) -> None:
        self._plan = plan
        self._name = f"{plan.name}-w{number}"
        self._start_ms = start_ms
        self.tally = Tally(plan.total)
        self.claims = 0
        self.reports = 0
        self._done: deque[tuple[int, _Success]] = deque()
        self._work = asyncio.Event()
        self._reporting = 0
        self._idle = asyncio.Event()

    async def poll(self, line: Line) -> None:
        """Claim until cancelled."""
        plan = self._plan
        while True:
            self.claims += 1
            claim = Claim(
                queue=plan.queue,
                worker=self._name,
                max_executions=plan.executions_per_claim,
                wait_ms=plan.wait_ms,
                lease_ms=plan.lease_ms,
                request_id=f"{self._name}-{self.claims}",
            )
            status, body = await line.post(b"/v1/claims", _encoder.encode(claim))
            if status == 200:
                self._deliver(_claimed.decode(body).executions)
            elif status in BUSY:
                await asyncio.sleep(BUSY_PAUSE_S)
            else:
                raise AssertionError(f"claim: {status} {body[:500]!r}")

    def _deliver(self, executions: list[_Delivery]) -> None:
        now_ns = time.time_ns()
        plan, tally, start_ms, done = self._plan, self.tally, self._start_ms, self._done
        for execution in executions:
            number = read_payload(execution.payload)
            tally.delivered(
                number,
                int(execution.job_id),
                execution.token,
                execution.attempt,
                plan.due_ms(start_ms, number),
                execution.due_ms,
                now_ns,
            )
            done.append((number, _Success(execution.execution_id, execution.token)))
        if executions:
            self._work.set()

    async def report(self, line: Line) -> None:
        """Complete what was delivered, until cancelled."""
        done, most = self._done, self._plan.completions_per_post
        while True:
            while not done:
                self._work.clear()
                if not self._reporting:
                    self._idle.set()
                await self._work.wait()
            batch = [done.popleft() for _ in range(min(len(done), most))]
            self._idle.clear()
            self._reporting += 1
            try:
                await self._complete(line, batch)
            finally:
                self._reporting -= 1

    async def _complete(self, line: Line, batch: list[tuple[int, _Success]]) -> None:
        body = _encoder.encode(_Successes([success for _, success in batch]))
        while True:
            self.reports += 1
            status, answer = await line.post(b"/v1/executions/complete", body)
            if status == 200:
                break
            assert status in BUSY, f"complete: {status} {answer[:500]!r}"
            await asyncio.sleep(BUSY_PAUSE_S)
        results = _reports.decode(answer).results
        for (number, _), result in zip(batch, results, strict=True):
            self.tally.reported(number, result.verdict)

    async def finished(self) -> None:
        """Wait until everything that was delivered is completed."""
        while self._done or self._reporting:
            self._idle.clear()
            await self._idle.wait()


async def work(plan: Plan, number: int, control: Control) -> None:
    """Work from the driver's word to its word."""
    leaders = Leaders(plan.urls)
    pollers = [Line(leaders) for _ in range(plan.pollers)]
    reporters = [Line(leaders) for _ in range(plan.reporters)]
    lines = [*pollers, *reporters]
    async with watching(lines):
        for line in lines:
            await line.connect()
        start_ms = await control.ready()
        worker = LoadWorker(plan, number, start_ms)
        await _until_stopped(worker, control, pollers, reporters)
    record = worker.tally.record(
        claims=worker.claims,
        reports=worker.reports,
        repeats=sum(line.repeats for line in lines),
        internal_errors=sum(line.internal_errors for line in lines),
    )
    write_record(Path(plan.folder) / f"worker-{number}.record", record)
    control.done(worker.tally.settled)


async def _until_stopped(
    worker: LoadWorker, control: Control, pollers: list[Line], reporters: list[Line]
) -> None:
    loop = asyncio.get_running_loop()
    claiming = [loop.create_task(worker.poll(line)) for line in pollers]
    others = [loop.create_task(worker.report(line)) for line in reporters]
    others.append(loop.create_task(control.report(lambda: worker.tally.settled)))
    stopped = loop.create_task(control.stopped())
    try:
        await asyncio.wait([stopped, *claiming, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, *claiming, *others):
            if task.done():
                task.result()  # a defect of the generator is told, not hidden
        for task in claiming:
            task.cancel()
        async with asyncio.timeout(FINISH_S):
            await worker.finished()
    finally:
        for task in (stopped, *claiming, *others):
            task.cancel()


if __name__ == "__main__":
    run_generator(work)

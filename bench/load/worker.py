"""One worker process under load: ``python -m timeball.bench.load.worker PLAN NUMBER``.

Several claims wait at the same time; what arrives is stamped when its answer is decoded,
when a handler could begin, and completed in batches, several of them under way at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from timeball.bench.load.connection import BUSY, Leaders, Line, watching
from timeball.bench.load.control import Control, run_generator
from timeball.bench.load.plan import NUMBER_DIGITS, Plan
from timeball.bench.load.records import Log, write_record
from timeball.client.messages import Claim, ReportVerdict

OK = 200
REQUEST_DIGITS = 10
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
    verdict: ReportVerdict


class _Reports(msgspec.Struct, frozen=True, gc=False):
    results: list[_Report]


_encoder = msgspec.msgpack.Encoder()
_claimed = msgspec.msgpack.Decoder(_Claimed)
_reports = msgspec.msgpack.Decoder(_Reports)


class LoadWorker:
    """Claims, stamps and completes; from callback to callback, with no task of its own."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        reporters: Iterable[Line],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._plan = plan
        self._name = f"{plan.name}-w{number}"
        self._call_later = call_later
        claim = Claim(
            queue=plan.queue,
            worker=self._name,
            max_executions=plan.executions_per_claim,
            wait_ms=plan.wait_ms,
            lease_ms=plan.lease_ms,
            request_id=f"{self._name}-{0:0{REQUEST_DIGITS}d}",
        )
        fields = msgspec.structs.asdict(claim)
        fields["request_id"] = fields.pop("request_id")  # now the last
        self._claim_head = _encoder.encode(fields)[:-REQUEST_DIGITS]
        """A claim up to the number that ends its request id."""
        self.log = Log()
        self.claims = 0
        self.reports = 0
        self._numbers: list[int] = []
        self._successes: list[_Success] = []
        """What was delivered and is not reported yet, with its numbers beside."""
        self._gathering = False
        self._free = list(reporters)
        self._reporters = len(self._free)
        self._stopping = False
        self._finished = asyncio.Event()

    def poll(self, line: Line) -> None:
        """Claim on this line, again and again until `finish`."""

        def claim() -> None:
            if self._stopping:
                return
            self.claims += 1
            line.post(b"/v1/claims", b"%b%010d" % (self._claim_head, self.claims), answered)

        def answered(status: int, body: bytes) -> None:
            if status == OK:
                executions = _claimed.decode(body).executions
                if executions:
                    self._deliver(executions)
                claim()
            else:
                assert status in BUSY, f"claim: {status} {body[:500]!r}"
                self._call_later(BUSY_PAUSE_S, claim)

        claim()

    async def finish(self) -> None:
        """Claim no more, and wait until everything that was delivered is completed."""
        self._stopping = True
        self._look_whether_finished()
        await self._finished.wait()

    def _deliver(self, executions: list[_Delivery]) -> None:
        now_ns = time.time_ns()
        numbers = [int(execution.payload[:NUMBER_DIGITS]) for execution in executions]
        self.log.delivered(now_ns, numbers, executions)
        self._numbers += numbers
        self._successes += [_Success(e.execution_id, e.token) for e in executions]
        if not self._gathering:
            self._gathering = True
            self._call_later(self._plan.gather_ms / 1000, self._report)

    def _report(self) -> None:
        """Complete what was gathered, as far as reporters are free; others go on when they are."""
        most = self._plan.completions_per_post
        self._gathering = False
        while self._successes and self._free:
            body = _encoder.encode(_Successes(self._successes[:most]))
            self._complete(self._free.pop(), self._numbers[:most], body)
            del self._numbers[:most], self._successes[:most]
        self._gathering = bool(self._successes)

    def _complete(self, line: Line, numbers: list[int], body: bytes) -> None:
        def complete() -> None:
            self.reports += 1
            line.post(b"/v1/executions/complete", body, answered)

        def answered(status: int, answer: bytes) -> None:
            if status != OK:
                assert status in BUSY, f"complete: {status} {answer[:500]!r}"
                self._call_later(BUSY_PAUSE_S, complete)
                return
            self.log.reported(numbers, [r.verdict for r in _reports.decode(answer).results])
            self._free.append(line)
            if len(self._free) == 1 and self._gathering:
                self._report()
            self._look_whether_finished()

        complete()

    def _look_whether_finished(self) -> None:
        if self._stopping and not self._successes and len(self._free) == self._reporters:
            self._finished.set()


async def work(plan: Plan, number: int, control: Control) -> None:
    """Work from the driver's word to its word."""
    leaders = Leaders(plan.urls)
    pollers = [Line(leaders) for _ in range(plan.pollers)]
    reporters = [Line(leaders) for _ in range(plan.reporters)]
    lines = [*pollers, *reporters]
    async with watching(lines):
        for line in lines:
            await line.connect()
        worker = LoadWorker(plan, number, reporters, asyncio.get_running_loop().call_later)
        await control.ready()
        for line in pollers:
            worker.poll(line)
        telling = asyncio.create_task(control.report(lambda: worker.log.settled))
        try:
            await control.stopped()
            with contextlib.suppress(TimeoutError):  # the account tells what is missing
                async with asyncio.timeout(FINISH_S):
                    await worker.finish()
        finally:
            telling.cancel()
    record = worker.log.record(
        claims=worker.claims,
        reports=worker.reports,
        repeats=sum(line.repeats for line in lines),
        internal_errors=sum(line.internal_errors for line in lines),
    )
    write_record(Path(plan.folder) / f"worker-{number}.record", record)
    control.done(worker.log.settled)


if __name__ == "__main__":
    run_generator(work)

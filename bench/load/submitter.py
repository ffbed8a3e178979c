"""One submitter process under load: ``python -m timeball.bench.load.submitter PLAN NUMBER``.

In steady mode each batch has its instant, and is sent then whether earlier ones are
answered or not. In preloaded mode as many batches are under way as there are connections.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from pathlib import Path

import msgspec

from timeball.bench.load.connection import BUSY, Leaders, Line, watching
from timeball.bench.load.control import Control, run_generator
from timeball.bench.load.plan import Plan, write_payload
from timeball.bench.load.records import ACKNOWLEDGED, REFUSED, SubmitterRecord, write_record
from timeball.client.messages import At

PRELOADING = 8
"""Creates under way in preloaded mode."""
MOST_US = 0xFFFF_FFFF


class _Job(msgspec.Struct, frozen=True, gc=False):
    queue: str
    payload: str
    schedule: At
    partition_key: str


class _Jobs(msgspec.Struct, frozen=True, gc=False):
    jobs: list[_Job]
    request_id: str


class _Created(msgspec.Struct, frozen=True, gc=False):
    status: str


class _AllCreated(msgspec.Struct, frozen=True, gc=False):
    results: list[_Created]


_encoder = msgspec.msgpack.Encoder()
_created = msgspec.msgpack.Decoder(_AllCreated)


class Submitter:
    """Sends its share of the batches."""

    def __init__(self, plan: Plan, number: int, start_ms: int, lines: list[Line]) -> None:
        self._plan = plan
        self._name = f"{plan.name}-s{number}"
        self._start_ms = start_ms
        self._batches = range(number, plan.batches, plan.submitters)
        self._lines = lines
        self._outcomes = bytearray(plan.total)
        self._lateness_us: array[int] = array("I")
        self._latency_us: array[int] = array("I")
        self._sent_after_due = 0
        self.acknowledged = 0

    async def submit_all(self) -> None:
        """Send everything and wait for every answer."""
        free: asyncio.Queue[Line] = asyncio.Queue()
        steady = self._plan.mode == "steady"
        for line in self._lines if steady else self._lines[:PRELOADING]:
            free.put_nowait(line)
        async with asyncio.TaskGroup() as sending:
            for batch in self._batches:
                planned_ns = await self._instant(batch) if steady else 0
                line = await free.get()
                sending.create_task(self._submit(line, free, batch, planned_ns))

    async def _instant(self, batch: int) -> int:
        """Wait for the batch's instant, epoch nanoseconds."""
        plan = self._plan
        first = plan.numbers(batch)[0]
        offset_ms = first * 1000 / plan.rate - plan.ahead_ms
        planned_ns = self._start_ms * 1_000_000 + int(offset_ms * 1_000_000)
        while (wait_ns := planned_ns - time.time_ns()) > 0:  # noqa: ASYNC110 - wall clock
            await asyncio.sleep(wait_ns / 1e9)
        return planned_ns

    async def _submit(
        self, line: Line, free: asyncio.Queue[Line], batch: int, planned_ns: int
    ) -> None:
        plan = self._plan
        numbers = plan.numbers(batch)
        sent_ns = time.time_ns()
        if planned_ns:
            self._lateness_us.append(_us(sent_ns - planned_ns))
        self._sent_after_due += sum(
            plan.due_ms(self._start_ms, number) * 1_000_000 < sent_ns for number in numbers
        )
        try:
            outcomes = await self._post(line, batch, numbers)
        finally:
            free.put_nowait(line)
        self._latency_us.append(_us(time.time_ns() - sent_ns))
        self._outcomes[numbers.start : numbers.stop] = outcomes
        self.acknowledged += outcomes.count(ACKNOWLEDGED)

    async def _post(self, line: Line, batch: int, numbers: range) -> bytes:
        plan, start_ms = self._plan, self._start_ms
        jobs = [
            _Job(plan.queue, write_payload(n), At(plan.due_ms(start_ms, n)), plan.partition_key)
            for n in numbers
        ]
        request_id = f"{self._name}-{batch}"
        if plan.jobs_per_post == 1:
            extra = b"Timeball-Request-Id: %s\r\n" % request_id.encode()
            status, answer = await line.post(b"/v1/jobs", _encoder.encode(jobs[0]), extra)
            if status in (200, 201):
                return bytes([ACKNOWLEDGED])
        else:
            body = _encoder.encode(_Jobs(jobs, request_id))
            status, answer = await line.post(b"/v1/jobs/batch", body)
            if status == 200:
                return bytes(
                    REFUSED if result.status == "refused" else ACKNOWLEDGED
                    for result in _created.decode(answer).results
                )
        assert status in BUSY, f"create: {status} {answer[:500]!r}"
        return bytes([REFUSED]) * len(numbers)

    def record(self, began_ns: int, ended_ns: int) -> SubmitterRecord:
        """All of it, to be written down; `ended_ns` is 0 when it was stopped before its end."""
        return SubmitterRecord(
            outcomes=bytes(self._outcomes),
            lateness_us=self._lateness_us.tobytes(),
            latency_us=self._latency_us.tobytes(),
            sent_after_due=self._sent_after_due,
            began_ns=began_ns,
            ended_ns=ended_ns,
            repeats=sum(line.repeats for line in self._lines),
            internal_errors=sum(line.internal_errors for line in self._lines),
        )


def _us(span_ns: int) -> int:
    return min(max(0, span_ns // 1000), MOST_US)


async def submit(plan: Plan, number: int, control: Control) -> None:
    """Submit from the driver's word until everything is answered."""
    leaders = Leaders(plan.urls)
    lines = [Line(leaders) for _ in range(plan.submitter_connections)]
    async with watching(lines):
        for line in lines[:PRELOADING]:
            await line.connect()
        start_ms = await control.ready()
        submitter = Submitter(plan, number, start_ms, lines)
        began_ns = time.time_ns()
        ended_ns = 0
        loop = asyncio.get_running_loop()
        sending = loop.create_task(submitter.submit_all())
        telling = loop.create_task(control.report(lambda: submitter.acknowledged))
        stopped = loop.create_task(control.stopped())
        try:
            await asyncio.wait([sending, stopped], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                ended_ns = time.time_ns()
                control.sent(submitter.acknowledged)
            await stopped
        finally:
            for task in (sending, telling, stopped):
                task.cancel()
        record = submitter.record(began_ns, ended_ns)
    write_record(Path(plan.folder) / f"submitter-{number}.record", record)
    control.done(submitter.acknowledged)


if __name__ == "__main__":
    run_generator(submit)

"""One submitter process under load: ``python -m timeball.bench.load.submitter PLAN NUMBER``.

In steady mode each batch has its instant, and is sent then whether earlier ones are
answered or not. In preloaded mode as many batches are under way as there are connections.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from timeball.bench.load.connection import BUSY, Leaders, Line, watching
from timeball.bench.load.control import Control, run_generator
from timeball.bench.load.plan import NUMBER_DIGITS, Plan, write_payload
from timeball.bench.load.records import ACKNOWLEDGED, REFUSED, SubmitterRecord, write_record
from timeball.client.messages import At

NUMBER_SAMPLE = 7_000_000_007
DUE_SAMPLE_MS = 2**48 + 0x0102_0304_0506
"""Values that no other part of an encoded job contains."""
KEY_CHARACTERS = 36
PRELOADING = 8
"""Creates under way in preloaded mode."""
LEAST_SLEEP_S = 0.001
"""The loop's timers have whole milliseconds: it would go round and round in a shorter sleep."""
MOST_US = 0xFFFF_FFFF
OK = (200, 201)
UNAVAILABLE = 503
BUSY_PAUSE_S = 0.05
"""Before a create is repeated in preloaded mode that the node had no room for at present."""

CallLater = Callable[[float, Callable[[], None]], object]


class _Job(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    queue: str
    payload: str
    schedule: At
    partition_key: str
    idempotency_key: str | None = None


class _Jobs(msgspec.Struct, frozen=True, gc=False):
    jobs: msgspec.Raw
    request_id: str


class _Created(msgspec.Struct, frozen=True, gc=False):
    status: Literal["created", "duplicate", "refused"]


class _AllCreated(msgspec.Struct, frozen=True, gc=False):
    results: list[_Created]


_encoder = msgspec.msgpack.Encoder()
_created = msgspec.msgpack.Decoder(_AllCreated)


class Jobs:
    """Writes jobs: one is encoded, and for each other only what differs is replaced."""

    def __init__(self, plan: Plan) -> None:
        digits = f"{NUMBER_SAMPLE:0{NUMBER_DIGITS}d}"
        sample = _encoder.encode(
            _Job(
                queue=plan.queue,
                payload=write_payload(NUMBER_SAMPLE),
                schedule=At(DUE_SAMPLE_MS),
                partition_key=plan.partition_key,
                idempotency_key=f"{plan.name}-{digits}".ljust(KEY_CHARACTERS, "k")
                if plan.keyed
                else None,
            )
        )
        parts = sample.replace(b"%", b"%%").replace(digits.encode(), b"%(number)010d")
        self._template = parts.replace(DUE_SAMPLE_MS.to_bytes(8, "big"), b"%(due)b")

    def one(self, number: int, due_ms: int) -> bytes:
        """One job."""
        return self._template % {b"number": number, b"due": due_ms.to_bytes(8, "big")}

    def several(self, numbers: range, dues_ms: Sequence[int]) -> bytes:
        """An array of jobs."""
        template = self._template
        jobs = [
            template % {b"number": number, b"due": due_ms.to_bytes(8, "big")}
            for number, due_ms in zip(numbers, dues_ms, strict=True)
        ]
        return b"\xdc" + len(jobs).to_bytes(2, "big") + b"".join(jobs)


class Submitter:
    """Sends its share of the batches."""

    def __init__(
        self, plan: Plan, number: int, start_ms: int, lines: Sequence[Line], call_later: CallLater
    ) -> None:
        self._plan = plan
        self._call_later = call_later
        self._name = f"{plan.name}-s{number}"
        self._start_ms = start_ms
        self._steady = plan.mode == "steady"
        self._batches = range(number, plan.batches, plan.submitters)
        self._lines = lines if self._steady else lines[:PRELOADING]
        self._free = list(self._lines)
        self._freed = asyncio.Event()
        self._jobs = Jobs(plan)
        self._outcomes = bytearray(plan.total)
        self._lateness_us: array[int] = array("I")
        self._latency_us: array[int] = array("I")
        self._sent_after_due = 0
        self.acknowledged = 0

    async def submit_all(self) -> None:
        """Send everything and wait for every answer."""
        for batch in self._batches:
            planned_ns = await self._instant(batch) if self._steady else 0
            while not self._free:
                await self._one_freed()
            self._submit(self._free.pop(), batch, planned_ns)
        while len(self._free) < len(self._lines):
            await self._one_freed()

    async def _one_freed(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    async def _instant(self, batch: int) -> int:
        """Wait for the batch's instant, epoch nanoseconds; there is no wait if it has come."""
        plan = self._plan
        first = batch * plan.jobs_per_post
        offset_ms = first * 1000 / plan.rate - plan.ahead_ms
        planned_ns = self._start_ms * 1_000_000 + int(offset_ms * 1_000_000)
        while (wait_ns := planned_ns - time.time_ns()) > 0:  # noqa: ASYNC110 - wall clock
            await asyncio.sleep(max(wait_ns / 1e9, LEAST_SLEEP_S))
        return planned_ns

    def _submit(self, line: Line, batch: int, planned_ns: int) -> None:
        plan = self._plan
        numbers = plan.numbers(batch)
        dues_ms = plan.dues_ms(self._start_ms, numbers)
        sent_ns = time.time_ns()
        if planned_ns:
            self._lateness_us.append(_us(sent_ns - planned_ns))
        self._sent_after_due += bisect_left(dues_ms, -(-sent_ns // 1_000_000))

        def answered(status: int, answer: bytes) -> None:
            if status == UNAVAILABLE and not self._steady:
                self._call_later(BUSY_PAUSE_S, send)  # nothing hurries, and all must exist
                return
            self._latency_us.append(_us(time.time_ns() - sent_ns))
            self._account(numbers, status, answer)
            self._free.append(line)
            self._freed.set()

        request_id = f"{self._name}-{batch}"
        if plan.jobs_per_post == 1:
            path, body = b"/v1/jobs", self._jobs.one(batch, dues_ms[0])
            extra = b"Timeball-Request-Id: %b\r\n" % request_id.encode()
        else:
            jobs = msgspec.Raw(self._jobs.several(numbers, dues_ms))
            path, body, extra = b"/v1/jobs/batch", _encoder.encode(_Jobs(jobs, request_id)), b""

        def send() -> None:
            line.post(path, body, answered, extra)

        send()

    def _account(self, numbers: range, status: int, answer: bytes) -> None:
        """Note what became of a batch. In an open loop, what is refused is not sent again."""
        if status not in OK:
            assert status in BUSY, f"create: {status} {answer[:500]!r}"
            outcomes = bytes([REFUSED]) * len(numbers)
        elif self._plan.jobs_per_post == 1:
            outcomes = bytes([ACKNOWLEDGED])
        else:
            outcomes = bytes(
                [
                    REFUSED if result.status == "refused" else ACKNOWLEDGED
                    for result in _created.decode(answer).results
                ]
            )
        assert len(outcomes) == len(numbers)
        self._outcomes[numbers.start : numbers.stop] = outcomes
        self.acknowledged += outcomes.count(ACKNOWLEDGED)

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
        loop = asyncio.get_running_loop()
        submitter = Submitter(plan, number, start_ms, lines, loop.call_later)
        began_ns = time.time_ns()
        ended_ns = 0
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

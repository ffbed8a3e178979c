"""Worker and submitter against lines that a test answers: what they send, gather and repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from timeball.bench.load.control import until_broken
from timeball.bench.load.plan import Plan, read_payload, write_payload
from timeball.bench.load.records import ACKNOWLEDGED, REFUSED, UNKNOWN, numbers
from timeball.bench.load.submitter import Jobs, Submitter
from timeball.bench.load.worker import LoadWorker
from timeball.client.messages import (
    At,
    Claim,
    Claimed,
    Delivery,
    JobCreated,
    JobsCreated,
    NewJob,
    NewJobs,
    Report,
    Reports,
    Successes,
)

START_MS = 1_764_480_000_000
OVERLOADED = b'{"type": "urn:timeball:problem:overloaded"}'
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode


class FakeLine:
    """A line whose requests wait for the test to answer them."""

    repeats = 0
    internal_errors = 0

    def __init__(self, respond: Callable[[bytes, bytes], tuple[int, bytes]] | None = None) -> None:
        self.respond = respond
        self.requests: list[tuple[bytes, bytes, bytes]] = []
        self.then: Callable[[int, bytes], None] | None = None

    def post(
        self, path: bytes, body: bytes, then: Callable[[int, bytes], None], extra: bytes = b""
    ) -> None:
        assert self.then is None, "one request at a time"
        self.requests.append((path, body, extra))
        self.then = then
        if self.respond is not None:
            self.answer(*self.respond(path, body))

    def answer(self, status: int, body: bytes) -> None:
        then, self.then = self.then, None
        assert then is not None
        then(status, body)


class Later:
    """Timers that ring when the test says."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.waiting.append((delay_s, callback))

    def ring(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback()


def make_plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "urls": ["http://127.0.0.1:1"],
        "folder": "",
        "name": "run",
        "queue": "bench",
        "total": 6,
        "rate": 1_000.0,
        "mode": "steady",
        "jobs_per_post": 2,
        "workers": 1,
        "executions_per_claim": 10,
    }
    return msgspec.convert({**fields, **changes}, Plan)


# --- the submitter -------------------------------------------------------------------------


@pytest.mark.parametrize("partition_key", ["", "100%"])
def test_jobs_are_written_as_the_client_would(partition_key: str) -> None:
    jobs = Jobs(make_plan(partition_key=partition_key))
    for number, due_ms in ((0, START_MS), (9_999_999_999, 2**48 - 1), (17, START_MS + 1)):
        assert decode(jobs.one(number, due_ms), type=NewJob) == NewJob(
            queue="bench",
            payload=write_payload(number),
            schedule=At(due_ms),
            partition_key=partition_key,
        )
    dues_ms = list(range(START_MS, START_MS + 1_000))
    several = decode(jobs.several(range(1_000), dues_ms), type=list[NewJob])
    assert [read_payload(job.payload) for job in several] == list(range(1_000))
    assert [job.schedule for job in several] == [At(due_ms) for due_ms in dues_ms]


def test_keyed_jobs_have_a_key_each_of_36_characters() -> None:
    jobs = Jobs(make_plan(keyed=True))
    several = decode(jobs.several(range(5), [START_MS] * 5), type=list[NewJob])
    keys = {job.idempotency_key for job in several}
    assert len(keys) == 5
    assert {len(key or "") for key in keys} == {36}


def created(statuses: list[str]) -> bytes:
    results = [JobCreated(status) for status in statuses]  # type: ignore[arg-type]
    return encode(JobsCreated(results, 1))


async def test_what_is_refused_is_counted_and_not_sent_again() -> None:
    def respond(path: bytes, body: bytes) -> tuple[int, bytes]:
        assert path == b"/v1/jobs/batch"
        first = read_payload(decode(body, type=NewJobs).jobs[0].payload)
        return {
            0: (200, created(["created", "refused"])),
            2: (429, OVERLOADED),
            4: (200, created(["duplicate", "created"])),
        }[first]

    line = FakeLine(respond)
    submitter = Submitter(make_plan(), 0, START_MS, [line], Later())
    await submitter.submit_all()
    assert len(line.requests) == 3
    requests = [decode(body, type=NewJobs).request_id for _, body, _ in line.requests]
    assert len(set(requests)) == 3
    outcomes = submitter.record(0, 0).outcomes
    assert list(outcomes) == [
        *(ACKNOWLEDGED, REFUSED, REFUSED),
        *(REFUSED, ACKNOWLEDGED, ACKNOWLEDGED),
    ]
    assert submitter.acknowledged == 3
    assert submitter.record(0, 0).sent_after_due == 6  # all were due long ago


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [((201, b""), ACKNOWLEDGED), ((200, b""), ACKNOWLEDGED), ((503, OVERLOADED), REFUSED)],
)
async def test_single_jobs_carry_their_request_id_in_a_header(
    answer: tuple[int, bytes], outcome: int
) -> None:
    line = FakeLine(lambda _path, _body: answer)
    submitter = Submitter(make_plan(jobs_per_post=1, total=2), 0, START_MS, [line], Later())
    await submitter.submit_all()
    assert [path for path, _, _ in line.requests] == [b"/v1/jobs"] * 2
    assert [extra for _, _, extra in line.requests] == [
        b"Timeball-Request-Id: run-s0-0\r\n",
        b"Timeball-Request-Id: run-s0-1\r\n",
    ]
    assert list(submitter.record(0, 0).outcomes) == [outcome] * 2


async def test_a_submitter_sends_its_share_whether_earlier_batches_are_answered_or_not() -> None:
    lines = [FakeLine(), FakeLine()]
    submitter = Submitter(make_plan(submitters=2, total=8), 1, START_MS, lines, Later())
    sending = asyncio.create_task(submitter.submit_all())
    await asyncio.sleep(0)
    firsts = [
        read_payload(decode(body, type=NewJobs).jobs[0].payload)
        for line in lines
        for _, body, _ in line.requests
    ]
    assert sorted(firsts) == [2, 6]
    lines[0].answer(200, created(["created", "created"]))
    await asyncio.sleep(0)
    assert not sending.done()
    lines[1].answer(200, created(["created", "created"]))
    await sending
    assert submitter.record(0, 0).outcomes.count(UNKNOWN) == 4


async def test_what_is_preloaded_is_sent_again_when_the_node_has_no_room_at_present() -> None:
    line, later = FakeLine(), Later()
    submitter = Submitter(make_plan(mode="preloaded", total=2), 0, START_MS, [line], later)
    sending = asyncio.create_task(submitter.submit_all())
    await asyncio.sleep(0)
    line.answer(503, OVERLOADED)
    assert len(line.requests) == 1
    later.ring()
    assert line.requests == [line.requests[0]] * 2  # under the same request id
    line.answer(200, created(["created", "created"]))
    await sending
    assert submitter.acknowledged == 2
    full = FakeLine(lambda _path, _body: (429, OVERLOADED))
    submitter = Submitter(make_plan(mode="preloaded", total=2), 0, START_MS, [full], later)
    await submitter.submit_all()
    assert list(submitter.record(0, 0).outcomes) == [REFUSED] * 2


# --- the worker ----------------------------------------------------------------------------


class Bench:
    """A worker with two pollers and a number of reporters, and the timers it set."""

    def __init__(self, reporters: int = 2, **changes: Any) -> None:
        self.later = Later()
        self.pollers = [FakeLine(), FakeLine()]
        self.reporters = [FakeLine() for _ in range(reporters)]
        self.worker = LoadWorker(make_plan(**changes), 0, self.reporters, self.later)
        for line in self.pollers:
            self.worker.poll(line)

    def deliver(self, *executions: int) -> None:
        """The first poller's claim is answered with these."""
        deliveries = [
            Delivery(
                execution_id=f"{100 + number}-{START_MS}",
                job_id=str(100 + number),
                queue="bench",
                token=1_000 + number,
                attempt=1,
                max_attempts=5,
                nominal_ms=START_MS,
                due_ms=START_MS,
                lease_ms=10_000,
                timeout_ms=0,
                idempotency_key="",
                payload=write_payload(number),
            )
            for number in executions
        ]
        self.pollers[0].answer(200, encode(Claimed("", deliveries)))

    @property
    def reports(self) -> list[list[int]]:
        """The tokens of all completions sent, by request."""
        return [
            [success.token for success in decode(body, type=Successes).items]
            for line in self.reporters
            for _, body, _ in line.requests
        ]

    def accept(self, line: FakeLine, *verdicts: str) -> None:
        reports = [Report("", verdict, 200) for verdict in verdicts]  # type: ignore[arg-type]
        line.answer(200, encode(Reports(reports)))


def test_claims_wait_on_every_line_each_under_its_own_request_id() -> None:
    bench = Bench()
    bench.deliver()
    claims = [decode(body, type=Claim) for line in bench.pollers for _, body, _ in line.requests]
    assert [claim.request_id for claim in claims] == [
        *("run-w0-0000000001", "run-w0-0000000003", "run-w0-0000000002"),
    ]
    assert {(claim.queue, claim.max_executions) for claim in claims} == {("bench", 10)}


def test_a_claim_that_finds_no_room_is_repeated_later() -> None:
    bench = Bench()
    bench.pollers[0].answer(429, OVERLOADED)
    assert len(bench.pollers[0].requests) == 1
    bench.later.ring()
    assert len(bench.pollers[0].requests) == 2


def test_completions_are_gathered_and_written_down_when_answered() -> None:
    bench = Bench()
    bench.deliver(0, 1)
    bench.deliver(2)
    assert bench.reports == []
    bench.later.ring()
    assert bench.reports == [[1_000, 1_001, 1_002]]
    assert bench.worker.log.settled == 0
    bench.accept(bench.reporters[1], "accepted", "stale", "accepted")
    record = bench.worker.log.record(claims=0, reports=0, repeats=0, internal_errors=0)
    assert list(numbers(record.accepted, "I")) == [0, 2]
    assert list(numbers(record.numbers, "I")) == [0, 1, 2]
    assert list(numbers(record.sizes, "I")) == [2, 1]
    assert list(numbers(record.jobs, "Q")) == [100, 101, 102]
    assert record.verdicts == {"accepted": 2, "stale": 1}


def test_full_batches_go_over_the_free_lines_and_the_rest_when_one_is_free() -> None:
    bench = Bench(reporters=1, completions_per_post=2)
    bench.deliver(0, 1, 2)
    bench.later.ring()
    assert bench.reports == [[1_000, 1_001]]
    bench.deliver(3)
    bench.accept(bench.reporters[0], "accepted", "accepted")
    assert bench.reports == [[1_000, 1_001], [1_002, 1_003]]
    bench.deliver(4)
    bench.later.ring()
    bench.accept(bench.reporters[0], "accepted", "accepted")
    bench.later.ring()
    assert bench.reports[-1] == [1_004]


def test_completions_that_find_no_room_are_repeated_as_they_were() -> None:
    bench = Bench(reporters=1)
    bench.deliver(0, 1)
    bench.later.ring()
    bench.reporters[0].answer(503, OVERLOADED)
    bench.later.ring()
    assert bench.reports == [[1_000, 1_001]] * 2
    bench.accept(bench.reporters[0], "accepted", "accepted")
    assert bench.worker.log.settled == 2
    assert bench.worker.reports == 2


async def test_a_worker_finishes_when_all_that_was_delivered_is_answered() -> None:
    bench = Bench(reporters=1)
    bench.deliver(0)
    finishing = asyncio.create_task(bench.worker.finish())
    await asyncio.sleep(0)
    bench.later.ring()
    bench.deliver()
    assert bench.pollers[0].then is None  # claims no more
    await asyncio.sleep(0)
    assert not finishing.done()
    bench.accept(bench.reporters[0], "accepted")
    await finishing
    await Bench().worker.finish()  # nothing was delivered


async def test_a_worker_finishes_not_before_the_answer_to_what_it_has_sent() -> None:
    bench = Bench()
    bench.deliver(0)
    bench.later.ring()
    finishing = asyncio.create_task(bench.worker.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    bench.accept(bench.reporters[1], "accepted")
    await finishing


@pytest.mark.parametrize("path", ["claim", "complete"])
def test_an_answer_that_no_node_should_give_is_a_defect(path: str) -> None:
    bench = Bench(reporters=1)
    bench.deliver(0)
    bench.later.ring()
    line = bench.pollers[0] if path == "claim" else bench.reporters[0]
    with pytest.raises(AssertionError, match=f"{path}: 422"):
        line.answer(422, b"")


async def test_what_goes_wrong_in_a_callback_ends_a_generator() -> None:
    def fail() -> None:
        raise ArithmeticError("in a callback")

    async def generate() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.Event().wait()

    with pytest.raises(ArithmeticError, match="in a callback"):
        await until_broken(generate())

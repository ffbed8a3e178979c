"""A leader's dispatch in virtual time: real state machine, wheels and dispatcher, instant log."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

import pytest

from timeball.cluster.dispatch.dispatcher import ClaimRequest, Dispatcher
from timeball.cluster.dispatch.seams import DispatchSettings, Instruments
from timeball.cluster.raft.errors import NotLeader, OutcomeUnknown
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    CancelJobs,
    ClusterSettings,
    CreateJobs,
    Fail,
    Failure,
    Lead,
    NewJob,
    Release,
    RetryPolicy,
    Succeed,
    Success,
    encode_entry,
)

EPOCH_MS = 1_764_480_000_000
ROOM = 4096


class VirtualTimers:
    """Timers whose time only moves when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 5_000_000
        self._calls: list[tuple[int, int, Callback]] = []
        self._numbers = itertools.count()

    def monotonic_ms(self) -> int:
        return self.now_ms

    def call_soon(self, callback: Callable[[], None]) -> Callback:
        return self.call_later(0, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callback:
        call = Callback(callback)
        heapq.heappush(self._calls, (self.now_ms + delay_ms, next(self._numbers), call))
        return call

    def next_at_ms(self) -> int | None:
        while self._calls and self._calls[0][2].cancelled:
            heapq.heappop(self._calls)
        return self._calls[0][0] if self._calls else None

    def run_one(self) -> None:
        at_ms, _, call = heapq.heappop(self._calls)
        self.now_ms = max(self.now_ms, at_ms)
        if not call.cancelled:
            call.callback()


class Callback:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class InstantCommit:
    """Group commit without consensus: what is proposed in a turn is one entry, applied at once.

    While `stalled`, entries are written but not applied; `error`, while set, is the answer
    to every proposal.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sources = []
        self._pending: list[tuple[object, int, asyncio.Future[object]]] = []
        self._written: list[tuple[bytes, list[asyncio.Future[object]]]] = []
        self._scheduled = False
        self.stalled = False
        self.room = ROOM
        """What sources may take of an entry."""
        self.error: Exception | None = None
        self.index = 0
        self.entries: list[list[object]] = []
        self._log_time_ms = 0

    def add_source(self, source) -> None:
        self._sources.append(source)

    def wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._world.timers.call_soon(self._flush)

    def propose(self, op, *, weight=1, size=256, as_of_ms=0):
        assert 0 <= weight <= ROOM
        verdict = asyncio.get_running_loop().create_future()
        if self.error is not None:
            verdict.set_exception(self.error)
        else:
            self._log_time_ms = max(self._log_time_ms, as_of_ms)
            self._pending.append((op, weight, verdict))
            self.wake()
        return verdict

    def _flush(self) -> None:
        self._scheduled = False
        log_time_ms = max(self._log_time_ms, self._world.state.log_time_ms, self._world.wall_ms())
        self._log_time_ms = log_time_ms
        gathered, self._pending = self._pending, []
        room = ROOM - sum(weight or 1 for _, weight, _ in gathered)
        refused = []
        for source in self._sources:
            for op, weight, verdict in source(log_time_ms, min(room, self.room)):
                if self.error is not None:
                    refused.append(verdict)
                    continue
                if weight > room:
                    self._pending.append((op, weight, verdict))
                    self.wake()
                    break
                room -= weight
                gathered.append((op, weight, verdict))
        for verdict in refused:
            verdict.set_exception(self.error)
        if gathered:
            entry = encode_entry(log_time_ms, [op for op, _, _ in gathered])
            self.entries.append([op for op, _, _ in gathered])
            self._written.append((entry, [verdict for _, _, verdict in gathered]))
        if not self.stalled:
            self.commit()

    def commit(self) -> None:
        """Apply what is written."""
        written, self._written = self._written, []
        for entry, verdicts in written:
            self.index += 1
            applied = self._world.state.apply(self.index, entry)
            assert applied.halt is None, applied.halt
            assert len(applied.verdicts) == len(verdicts)
            for verdict, answer in zip(verdicts, applied.verdicts, strict=True):
                if not verdict.done():
                    verdict.set_result(answer)
            self._world.dispatcher.applied(applied)

    def lose_leadership(self, *, applied_elsewhere: bool) -> None:
        """Fail what is open; what is written may be committed by the next leader."""
        for _, verdicts in self._written:
            for verdict in verdicts:
                if not verdict.done():
                    verdict.set_exception(OutcomeUnknown("the leadership was lost"))
        for _, _, verdict in self._pending:
            if not verdict.done():
                verdict.set_exception(NotLeader(None))
        self._pending = []
        if applied_elsewhere:
            self.commit()
        self._written = []


class Recorder(Instruments):
    def __init__(self) -> None:
        self.lags: list[tuple[int, int]] = []
        self.parked: list[int] = []
        self.expired = 0
        self.taken_over = 0
        self.released = 0
        self.failed: list[str] = []
        self.refused = 0

    def leases_refused(self, count):
        self.refused += count

    def observe_wheel(self, lags_ms):
        self.lags.append((max(lags_ms), len(lags_ms)))

    def timetable_parked(self, job):
        self.parked.append(job)

    def leases_expired(self, count):
        self.expired += count

    def leases_taken_over(self, count):
        self.taken_over += count

    def unused_released(self, count):
        self.released += count

    def proposal_failed(self, kind, items):
        self.failed.append(kind)


class World:
    """One leader, its clocks and its log."""

    def __init__(self) -> None:
        self.timers = VirtualTimers()
        self.wall_offset_ms = EPOCH_MS - self.timers.now_ms
        self.state = StateMachine()
        self.commit = InstantCommit(self)
        self.seen = Recorder()
        self.dispatcher = self._new_dispatcher()
        self._tasks: set[asyncio.Task[object]] = set()

    def _new_dispatcher(self, **settings) -> Dispatcher:
        self.commit._sources.clear()
        return Dispatcher(
            self.state,
            self.commit,
            self.wall_ms,
            timers=self.timers,
            settings=DispatchSettings(**settings),
            instruments=self.seen,
        )

    def wall_ms(self) -> int:
        return self.timers.now_ms + self.wall_offset_ms

    # --- time ----------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let the event loop come to rest, and do what is due now."""
        while True:
            for _ in range(8):
                await asyncio.sleep(0)
            at_ms = self.timers.next_at_ms()
            if at_ms is None or at_ms > self.timers.now_ms:
                return
            self.timers.run_one()

    async def pass_ms(self, ms: int) -> None:
        """Let time pass, doing what comes due on the way."""
        end_ms = self.timers.now_ms + ms
        await self.settle()
        while (at_ms := self.timers.next_at_ms()) is not None and at_ms <= end_ms:
            self.timers.run_one()
            await self.settle()
        self.timers.now_ms = end_ms
        await self.settle()

    # --- leadership ----------------------------------------------------------------------

    async def lead(self, term: int = 1, **settings) -> None:
        """A new leader takes over from the applied state."""
        self.dispatcher = self._new_dispatcher(**settings)
        await self.write(Lead("n1", ClusterSettings()))
        self.dispatcher.start(term)
        await self.settle()

    async def lose_leadership(self, *, applied_elsewhere: bool = True) -> None:
        self.dispatcher.stop()
        self.commit.lose_leadership(applied_elsewhere=applied_elsewhere)
        await self.settle()

    # --- operations ----------------------------------------------------------------------

    async def write(self, *operations):
        verdicts = [self.commit.propose(operation) for operation in operations]
        await self.settle()
        return [verdict.result() for verdict in verdicts]

    async def create(self, *jobs: NewJob) -> list[tuple[int, int]]:
        (verdict,) = await self.write(CreateJobs("", jobs))
        return [(created.job, created.nominal_ms) for created in verdict.jobs]

    async def job(self, queue="q", *, retry=None, **rest) -> tuple[int, int]:
        policy = retry or RetryPolicy(max_attempts=3, initial_ms=1_000, jitter_pct=0)
        (hold,) = await self.create(NewJob(queue, b"\xc0", retry=policy, **rest))
        return hold

    def asking(
        self,
        queue="q",
        *,
        n=1,
        wait_ms=60_000,
        request_id="",
        lease_ms=10_000,
        offered=(),
        worker="w",
    ):
        """A claim under way: its task."""
        request = ClaimRequest(
            queue=queue,
            worker=worker,
            request_id=request_id,
            max_executions=n,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            offered=frozenset(offered),
        )
        task = asyncio.get_running_loop().create_task(self.dispatcher.claim(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def claim(self, queue="q", **rest):
        """A claim that takes what is there and does not wait."""
        task = self.asking(queue, wait_ms=rest.pop("wait_ms", 0), **rest)
        await self.settle()
        await self.pass_ms(0 if task.done() else 200)
        return task.result()

    async def succeed(self, grant) -> object:
        execution = grant.execution
        item = Success(execution.job.id, execution.nominal_ms, grant.token)
        return (await self.write(Succeed([item])))[0][0]

    async def fail(self, grant, **rest) -> object:
        execution = grant.execution
        item = Failure(execution.job.id, execution.nominal_ms, grant.token, **rest)
        return (await self.write(Fail([item])))[0][0]

    async def release(self, grant) -> object:
        execution = grant.execution
        hold = (execution.job.id, execution.nominal_ms, grant.token)
        return (await self.write(Release([hold])))[0][0]

    async def cancel_job(self, job: int) -> object:
        return (await self.write(CancelJobs([job])))[0][0]

    def heartbeat(self, grant, progress=None):
        job, nominal_ms = grant.execution.job.id, grant.execution.nominal_ms
        return self.dispatcher.heartbeat(job, nominal_ms, grant.token, progress)

    def execution(self, hold):
        return self.state.execution(*hold)

    @property
    def now_ms(self) -> int:
        return max(self.wall_ms(), self.state.log_time_ms)


@pytest.fixture
async def world():
    world = World()
    await world.lead()
    yield world
    world.dispatcher.stop()
    await world.settle()

"""Claims that wait, and their binding to ready work at the moment an entry is put together.

A claim waits in its queue until there is work or its time is over. It is bound to
executions only when the log asks for operations, so that each entry takes what is first
by then; from there on the executions are in nobody else's reach until the verdict. An
answer that nobody is left to take gives its leases back at once.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from timeball.cluster.dispatch.errors import NotServing, TooManyClaims
from timeball.cluster.dispatch.leases import HELD, Leases
from timeball.cluster.dispatch.ready import ReadyWork
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.raft.errors import Expired, NotLeader, Overloaded
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Claim
from timeball.cluster.state.records import Execution
from timeball.wheel import Timer, TimingWheel


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for; lengths in milliseconds."""

    queue: str
    worker: str
    request_id: str
    max_executions: int
    wait_ms: int
    lease_ms: int


class Grant(msgspec.Struct, frozen=True, eq=False):
    """One execution leased to the claim's worker, under its fencing token."""

    execution: Execution
    token: int
    attempt: int
    lease_ms: int


Listener = asyncio.Future[list[Grant]]


class _Stage(enum.Enum):
    WAITING = enum.auto()
    BOUND = enum.auto()
    ANSWERED = enum.auto()


class _Waiter:
    """One claim, and everybody who waits for its answer (repeats of it join)."""

    __slots__ = ("deadline_ms", "listeners", "request", "stage", "timer")

    def __init__(self, request: ClaimRequest, deadline_ms: int) -> None:
        self.request = request
        self.deadline_ms = deadline_ms
        self.stage = _Stage.WAITING
        self.listeners: list[Listener] = []
        self.timer: Timer[_Waiter] | None = None


class WaitingClaims:
    """The claims that wait on this leader, first come first served in each queue."""

    def __init__(
        self,
        state: StateMachine,
        ready: ReadyWork,
        leases: Leases,
        commit: Commit,
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
        *,
        now_ms: Callable[[], int],
        derive: Callable[[Sequence[Execution]], None],
        earlier: Callable[[int], None],
    ) -> None:
        """`now_ms` is the present for due times; `derive` is asked to place executions anew
        whose claim came to nothing; `earlier` is told of a deadline on the monotonic clock."""
        self._state = state
        self._ready = ready
        self._leases = leases
        self._commit = commit
        self._timers = timers
        self._settings = settings
        self._instruments = instruments
        self._now_ms = now_ms
        self._derive = derive
        self._earlier = earlier
        self._queues: dict[str, OrderedDict[_Waiter, None]] = {}
        self._by_request: dict[str, _Waiter] = {}
        self._matched: OrderedDict[str, None] = OrderedDict()
        """Queues with both claims and work, the one whose turn it is first."""
        self._deadlines: TimingWheel[_Waiter] = TimingWheel(timers.monotonic_ms())
        self._closed = False
        self.in_flight: set[Execution] = set()
        """Executions bound to a claim whose verdict is not known yet."""
        self.count = 0
        """Claims that wait, over all queues."""

    def depth(self, queue: str) -> int:
        """Claims that wait for work of a queue."""
        return len(self._queues.get(queue, ()))

    async def claim(self, request: ClaimRequest) -> list[Grant]:
        """Wait for executions; empty when none came in time.

        Raises TooManyClaims, NotServing, or OutcomeUnknown: then repeat with the same
        request id. Cancelling leaves no lease behind.
        """
        recalled = self._recall(request.request_id)
        if recalled is not None:
            for grant in recalled:
                self._leases.answered(grant.execution)
            return recalled
        waiter = self._by_request.get(request.request_id)
        if waiter is None:
            if not request.wait_ms and not self._ready.depth(request.queue):
                return []
            waiter = self._enter(request)
        else:
            self._prolong(waiter, request.wait_ms)
        listener: Listener = asyncio.get_running_loop().create_future()
        waiter.listeners.append(listener)
        try:
            return await listener
        except asyncio.CancelledError:
            self._leave(waiter, listener)
            raise

    def work_came(self, queue: str) -> None:
        """There is ready work in a queue: wake the log if a claim waits for it."""
        if queue in self._queues:
            self._match(queue)

    def bind(self) -> Iterator[tuple[Claim, int, asyncio.Future[object]]]:
        """Bind waiting claims to ready work, one operation each, as long as asked."""
        while self._matched and not self._closed:
            queue = next(iter(self._matched))
            waiters = self._queues.get(queue)
            taken: list[Execution] = []
            if waiters:
                waiter = next(iter(waiters))
                most = self._settings.max_executions_per_claim
                taken = self._ready.take(queue, min(waiter.request.max_executions, most))
            if not taken:
                del self._matched[queue]
                continue
            self._matched.move_to_end(queue)
            self._unqueue(waiter)
            waiter.stage = _Stage.BOUND
            self.in_flight.update(taken)
            verdict: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            verdict.add_done_callback(partial(self._settle, waiter, taken))
            request = waiter.request
            operation = Claim(
                request.worker,
                request.request_id,
                request.lease_ms,
                [(execution.job.id, execution.nominal_ms) for execution in taken],
            )
            yield operation, len(taken), verdict

    def expire(self, limit: int) -> bool:
        """Answer claims whose time is over, with nothing; True when more may be over."""
        fired = self._deadlines.advance(self._timers.monotonic_ms(), limit)
        for waiter in fired:
            waiter.timer = None
            if waiter.stage is _Stage.WAITING:
                self._unqueue(waiter)
                self._answer(waiter, [])
        return len(fired) >= limit

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next, on the monotonic clock."""
        return self._deadlines.next_expiry()

    def close(self) -> None:
        """End of the leadership: who waits is told; who is bound learns its verdict yet."""
        self._closed = True
        for waiters in list(self._queues.values()):
            for waiter in list(waiters):
                self._unqueue(waiter)
                self._fail(waiter, NotServing("this node leads no more"))
        self._matched.clear()

    def _enter(self, request: ClaimRequest) -> _Waiter:
        if self.count >= self._settings.max_waiting_claims:
            raise TooManyClaims(f"{self.count} claims wait already; try again later")
        wait_ms = request.wait_ms or self._settings.at_once_ms
        waiter = _Waiter(request, self._timers.monotonic_ms() + wait_ms)
        if request.request_id:
            self._by_request[request.request_id] = waiter
        self._queue(waiter)
        return waiter

    def _prolong(self, waiter: _Waiter, wait_ms: int) -> None:
        """A repeat waits as long as it says, with the claim that it repeats."""
        deadline_ms = self._timers.monotonic_ms() + wait_ms
        if waiter.stage is _Stage.WAITING and deadline_ms > waiter.deadline_ms:
            self._unqueue(waiter)
            waiter.deadline_ms = deadline_ms
            self._queue(waiter)

    def _queue(self, waiter: _Waiter, *, first: bool = False) -> None:
        queue = waiter.request.queue
        waiters = self._queues.setdefault(queue, OrderedDict())
        waiters[waiter] = None
        if first:
            waiters.move_to_end(waiter, last=False)
        waiter.stage = _Stage.WAITING
        waiter.timer = self._deadlines.insert(waiter.deadline_ms, waiter)
        self.count += 1
        self._earlier(waiter.deadline_ms)
        if self._ready.depth(queue):
            self._match(queue)

    def _unqueue(self, waiter: _Waiter) -> None:
        queue = waiter.request.queue
        waiters = self._queues[queue]
        del waiters[waiter]
        if not waiters:
            del self._queues[queue]
        self.count -= 1
        if waiter.timer is not None:
            self._deadlines.cancel(waiter.timer)
            waiter.timer = None

    def _match(self, queue: str) -> None:
        if queue not in self._matched:
            self._matched[queue] = None
        self._commit.wake()

    def _settle(
        self, waiter: _Waiter, taken: list[Execution], verdict: asyncio.Future[object]
    ) -> None:
        """The verdict on a bound claim: hand out the grants, put back what came to nothing."""
        self.in_flight.difference_update(taken)
        error = verdict.exception()
        if error is not None:
            self._put_back(taken)
            self._settle_failure(waiter, error)
            return
        tokens = verdict.result()
        assert isinstance(tokens, list)
        grants: list[Grant] = []
        refused: list[Execution] = []
        for execution, token in zip(taken, tokens, strict=True):
            if token and execution.token == token and execution.state in HELD:
                grants.append(_grant(execution))
            else:
                refused.append(execution)
        self._put_back(refused)
        now_ms = self._now_ms()
        self._instruments.observe_claim(
            [now_ms - grant.execution.due_ms for grant in grants], len(refused)
        )
        recalled = grants or self._recall(waiter.request.request_id)
        if recalled is None:
            self._try_again(waiter)
        else:
            self._answer(waiter, recalled)

    def _recall(self, request_id: str) -> list[Grant] | None:
        """What the claim of this id was granted before and still holds; None if unknown."""
        remembered = self._state.remembered_claim(request_id) if request_id else None
        if remembered is None:
            return None
        held = [self._state.execution(job, nominal_ms) for job, nominal_ms, _ in remembered]
        return [_grant(execution) for execution in held if execution is not None]

    def _settle_failure(self, waiter: _Waiter, error: BaseException) -> None:
        if isinstance(error, Overloaded | Expired) and not self._closed:
            self._try_again(waiter)
        elif isinstance(error, NotLeader):
            self._fail(waiter, NotServing("this node leads no more"))
        else:
            self._fail(waiter, error)

    def _put_back(self, executions: Sequence[Execution]) -> None:
        if executions and not self._closed:
            self._derive(executions)

    def _try_again(self, waiter: _Waiter) -> None:
        """Nothing was granted: wait on in front of the others, if anybody still does."""
        if self._closed:
            self._fail(waiter, NotServing("this node leads no more"))
        elif not waiter.listeners or waiter.deadline_ms <= self._timers.monotonic_ms():
            self._answer(waiter, [])
        else:
            self._queue(waiter, first=True)

    def _answer(self, waiter: _Waiter, grants: list[Grant]) -> None:
        self._finish(waiter)
        listeners = [listener for listener in waiter.listeners if not listener.done()]
        if not self._closed:
            for grant in grants:
                for _ in listeners:
                    self._leases.answered(grant.execution)
                if not listeners:
                    self._leases.give_back(grant.execution, grant.token)
        for listener in listeners:
            listener.set_result(grants)

    def _fail(self, waiter: _Waiter, error: BaseException) -> None:
        self._finish(waiter)
        for listener in waiter.listeners:
            if not listener.done():
                listener.set_exception(error)

    def _finish(self, waiter: _Waiter) -> None:
        waiter.stage = _Stage.ANSWERED
        request_id = waiter.request.request_id
        if self._by_request.get(request_id) is waiter:
            del self._by_request[request_id]

    def _leave(self, waiter: _Waiter, listener: Listener) -> None:
        """A caller has gone away, at whatever stage."""
        if listener.done() and not listener.cancelled():
            if listener.exception() is None and not self._closed:
                for grant in listener.result():
                    self._leases.give_back(grant.execution, grant.token)
            return
        waiter.listeners.remove(listener)
        if not waiter.listeners and waiter.stage is _Stage.WAITING:
            self._unqueue(waiter)
            self._finish(waiter)


def _grant(execution: Execution) -> Grant:
    assert execution.attempts is not None
    lease_ms = execution.attempts[-1].lease_ms
    return Grant(execution, execution.token, execution.attempts_used, lease_ms)

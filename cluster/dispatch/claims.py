"""Claims that wait, and their binding to ready work at the moment an entry is put together.

A claim waits in its queue until there is work or its time is over. It is bound to
executions only when the log asks for operations, so that each entry takes what is first
by then; from there on the executions are in nobody else's reach until the verdict. It is
answered in the very call that tells its verdict. An answer that nobody is left to take
gives its leases back at once.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from timeball.cluster.dispatch.errors import NotServing, TooManyClaims
from timeball.cluster.dispatch.leases import HELD, Lease, Leases
from timeball.cluster.dispatch.ready import ReadyWork
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.raft.errors import Expired, NotLeader, Overloaded
from timeball.cluster.raft.interface import Proposer
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


Listener = asyncio.Future[list[Lease]]


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


class _Bound:
    """A waiting claim bound to executions, on its way into the log and to its verdict.

    It takes the place of a future, whose callbacks would run a turn of the loop later.
    """

    __slots__ = ("_claims", "_settled", "taken", "waiter")

    def __init__(self, claims: WaitingClaims, waiter: _Waiter, taken: list[Execution]) -> None:
        self._claims = claims
        self._settled = False
        self.waiter = waiter
        self.taken = taken

    def done(self) -> bool:
        return self._settled

    def set_result(self, tokens: object) -> None:
        assert isinstance(tokens, list)
        self._settle()
        self._claims.granted(self.waiter, self.taken, tokens)

    def set_exception(self, error: BaseException) -> None:
        self._settle()
        self._claims.not_granted(self.waiter, self.taken, error)

    def _settle(self) -> None:
        assert not self._settled, "one verdict for each"
        self._settled = True


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
        let_go: Callable[[Sequence[Execution]], None],
        derive: Callable[[Sequence[Execution]], None],
        earlier: Callable[[int], None],
    ) -> None:
        """`now_ms` is the present for due times. `let_go` is told of executions that were
        bound to a claim and are no more; then `derive` places those anew whose claim came
        to nothing. `earlier` is told of a deadline on the monotonic clock."""
        self._state = state
        self._ready = ready
        self._leases = leases
        self._commit = commit
        self._timers = timers
        self._settings = settings
        self._instruments = instruments
        self._now_ms = now_ms
        self._let_go = let_go
        self._derive = derive
        self._earlier = earlier
        self._queues: dict[str, OrderedDict[_Waiter, None]] = {}
        self._by_request: dict[str, _Waiter] = {}
        self._matched: OrderedDict[str, None] = OrderedDict()
        """Queues with both claims and work, the one whose turn it is first."""
        self._deadlines: TimingWheel[_Waiter] = TimingWheel(timers.monotonic_ms())
        self._closed = False
        self.count = 0
        """Claims that wait, over all queues."""

    def depth(self, queue: str) -> int:
        """Claims that wait for work of a queue."""
        return len(self._queues.get(queue, ()))

    async def claim(self, request: ClaimRequest) -> list[Lease]:
        """Wait for executions; empty when none came in time.

        Raises TooManyClaims, NotServing, or OutcomeUnknown: then repeat with the same
        request id. Cancelling leaves no lease behind.
        """
        recalled = self._recall(request.request_id)
        if recalled is not None:
            for lease in recalled:
                lease.answers += 1
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

    def bind(self) -> Iterator[tuple[Claim, int, Proposer]]:
        """Bind waiting claims to ready work for one entry, one operation each."""
        room = self._settings.executions_per_entry
        while self._matched and not self._closed:
            if room <= 0:
                # In the next turn: what is bound now is not written yet.
                self._timers.call_soon(self._commit.wake)
                break
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
            room -= len(taken)
            self._matched.move_to_end(queue)
            self._unqueue(waiter)
            waiter.stage = _Stage.BOUND
            request = waiter.request
            operation = Claim(
                request.worker,
                request.request_id,
                request.lease_ms,
                [(execution.job.id, execution.nominal_ms) for execution in taken],
            )
            yield operation, len(taken), _Bound(self, waiter, taken)

    def granted(self, waiter: _Waiter, taken: list[Execution], tokens: list[int]) -> None:
        """The verdict on a bound claim: hand out the leases, put back what came to nothing."""
        self._let_go(taken)
        hold, monotonic_ms, now_ms = self._leases.hold, self._timers.monotonic_ms(), self._now_ms()
        leases: list[Lease] = []
        lags_ms: list[int] = []
        refused: list[Execution] = []
        for execution, token in zip(taken, tokens, strict=True):
            if token and execution.token == token and execution.state in HELD:
                leases.append(hold(execution, monotonic_ms))
                lags_ms.append(now_ms - execution.due_ms)
            else:
                refused.append(execution)
        self._put_back(refused)
        self._instruments.observe_claim(lags_ms, len(refused))
        recalled = leases or self._recall(waiter.request.request_id)
        if recalled is None:
            self._try_again(waiter)
        else:
            self._answer(waiter, recalled)

    def not_granted(self, waiter: _Waiter, taken: list[Execution], error: BaseException) -> None:
        """There is no verdict on a bound claim; unless the outcome is open, it waits on."""
        self._let_go(taken)
        self._put_back(taken)
        if isinstance(error, Overloaded | Expired) and not self._closed:
            self._try_again(waiter)
        elif isinstance(error, NotLeader):
            self._fail(waiter, NotServing("this node leads no more"))
        else:
            self._fail(waiter, error)

    def expire(self, now_ms: int, limit: int) -> bool:
        """Answer claims whose time is over by the monotonic clock, with nothing; True when
        more may be over."""
        fired = self._deadlines.advance(now_ms, limit)
        for waiter in fired:
            waiter.timer = None
            if waiter.stage is _Stage.WAITING:
                self._unqueue(waiter)
                self._answer(waiter, [])
        return len(fired) >= limit

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next."""
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

    def _recall(self, request_id: str) -> list[Lease] | None:
        """What the claim of this id was granted before and still holds; None if unknown."""
        remembered = self._state.remembered_claim(request_id) if request_id else None
        if remembered is None:
            return None
        monotonic_ms = self._timers.monotonic_ms()
        held = [self._state.execution(job, nominal_ms) for job, nominal_ms, _ in remembered]
        return [self._leases.hold(one, monotonic_ms) for one in held if one is not None]

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

    def _answer(self, waiter: _Waiter, leases: list[Lease]) -> None:
        self._finish(waiter)
        listeners = [listener for listener in waiter.listeners if not listener.done()]
        answers = len(listeners)
        for lease in leases:
            lease.answers += answers
        if not listeners and not self._closed:
            for lease in leases:
                self._leases.give_back(lease.execution, lease.token)
        for listener in listeners:
            listener.set_result(leases)

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
                for lease in listener.result():
                    self._leases.give_back(lease.execution, lease.token)
            return
        waiter.listeners.remove(listener)
        if not waiter.listeners and waiter.stage is _Stage.WAITING:
            self._unqueue(waiter)
            self._finish(waiter)

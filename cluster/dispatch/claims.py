"""Claims that wait, and their binding to ready work at the moment an entry is put together.

A claim waits in its queue until there is work or its time is over. It is bound to
executions only when the log asks for operations, so that each entry takes what is first
by then; from there on the executions are in nobody else's reach until the verdict. It is
answered in the very call that tells its verdict. An answer that nobody is left to take
gives its leases back at once.

Where more than one claim waits and nothing is ready, claims are bound to what comes due
next, ahead of time: such a lease is committed by then, and its claim is answered when the
last of its executions is due. The last claim of a queue is kept for what comes at once. Of
what comes due at one instant all is bound or nothing: if there is more of it than claims
can take, who goes first is decided when it is ready.
"""

from __future__ import annotations

import asyncio
import enum
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

import msgspec

from timeball.cluster.dispatch.errors import NotServing, TooManyClaims
from timeball.cluster.dispatch.leases import HELD, Lease, Leases
from timeball.cluster.dispatch.ready import ReadyWork
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.raft.errors import Expired, NotLeader, OutcomeUnknown, Overloaded
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


_PATIENCE_MS = 100
"""How much later than by the monotonic clock an answer may be due by the wall clock: one that is
set back by less is waited for."""

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


class _Early(NamedTuple):
    """A claim with leases granted ahead of time, in the order of answering."""

    due_ms: int
    """When the last of its executions is due."""
    number: int
    """No two have the same, so nothing further is compared."""
    by_ms: int
    """When that should be, by the monotonic clock."""
    waiter: _Waiter
    leases: list[Lease]


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
        foresee: Callable[[Sequence[Execution]], None],
        let_go: Callable[[Sequence[Execution]], None],
        derive: Callable[[Sequence[Execution]], None],
        earlier: Callable[[int], None],
    ) -> None:
        """`now_ms` is the present for due times. `foresee` is told of executions that are
        bound ahead of time, `let_go` of those that were bound to a claim and are no more;
        then `derive` places those anew whose claim came to nothing. `earlier` is told of a
        deadline on the monotonic clock."""
        self._state = state
        self._ready = ready
        self._leases = leases
        self._commit = commit
        self._timers = timers
        self._settings = settings
        self._instruments = instruments
        self._now_ms = now_ms
        self._foresee = foresee
        self._let_go = let_go
        self._derive = derive
        self._earlier = earlier
        self._queues: dict[str, OrderedDict[_Waiter, None]] = {}
        self._by_request: dict[str, _Waiter] = {}
        self._matched: OrderedDict[str, None] = OrderedDict()
        """Queues with both claims and work, the one whose turn it is first."""
        self._deadlines: TimingWheel[_Waiter] = TimingWheel(timers.monotonic_ms())
        self._early: list[_Early] = []
        """A heap."""
        self._early_number = 0
        self._closed = False
        self.count = 0
        """Claims that wait, over all queues."""

    @property
    def to_spare(self) -> bool:
        """Whether more than one claim waits in some queue."""
        return self.count > len(self._queues)

    def depth(self, queue: str) -> int:
        """Claims that wait for work of a queue."""
        return len(self._queues.get(queue, ()))

    async def claim(self, request: ClaimRequest) -> list[Lease]:
        """Wait for executions; empty when none came in time.

        Raises TooManyClaims, NotServing, or OutcomeUnknown: then repeat with the same
        request id. Cancelling leaves no lease behind.
        """
        waiter = self._by_request.get(request.request_id)
        listener: Listener = asyncio.get_running_loop().create_future()
        if waiter is not None:
            waiter.listeners.append(listener)
            self._prolong(waiter, request.wait_ms)
        elif (recalled := self._recall(request.request_id)) is not None:
            waiter = self._remember(request, _Stage.BOUND)
            waiter.listeners.append(listener)
            self._hand_over(waiter, recalled)
        else:
            if not request.wait_ms and not self._ready.depth(request.queue):
                return []
            waiter = self._enter(request)
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
            yield self._bound(waiter, taken)

    def bind_ahead(
        self, coming: Iterable[Sequence[Execution]], until_ms: int
    ) -> Iterator[tuple[Claim, int, Proposer]]:
        """Bind claims to executions that come due up to `until_ms`, given by instant in that
        order; one of each queue's claims is left waiting."""
        queues: dict[str, list[Execution]] = {}
        room = self._settings.executions_per_entry
        for instant in coming:
            room -= len(instant)
            if room < 0:
                break
            for execution in instant:
                queues.setdefault(execution.job.queue, []).append(execution)
        for queue, executions in queues.items():
            if not self._ready.depth(queue):  # else that goes first
                for waiter, taken in self._shares(queue, executions, until_ms):
                    self._foresee(taken)
                    yield self._bound(waiter, taken)

    def _shares(
        self, queue: str, executions: list[Execution], until_ms: int
    ) -> list[tuple[_Waiter, list[Execution]]]:
        """Which claim gets what of all that comes due, up to the first instant of which there
        is more than the claims can take; a span that is not over yet is left to a later entry."""
        shares: list[tuple[_Waiter, list[Execution]]] = []
        at = 0
        for waiter in islice(self._queues.get(queue, ()), max(self.depth(queue) - 1, 0)):
            if at == len(executions):
                return shares
            most = min(waiter.request.max_executions, self._settings.max_executions_per_claim)
            last_ms = executions[at].due_ms + self._settings.lead_span_ms
            taken = [one for one in executions[at : at + most] if one.due_ms <= last_ms]
            if last_ms > until_ms and len(taken) < most:
                return shares
            at += len(taken)
            shares.append((waiter, taken))
        if at < len(executions):
            full_ms = executions[at].due_ms
            shares = [
                (waiter, before)
                for waiter, taken in shares
                if (before := [one for one in taken if one.due_ms < full_ms])
            ]
        return shares

    def _bound(self, waiter: _Waiter, taken: list[Execution]) -> tuple[Claim, int, Proposer]:
        """The operation that leases these executions to this claim."""
        self._unqueue(waiter)
        waiter.stage = _Stage.BOUND
        request = waiter.request
        operation = Claim(
            request.worker,
            request.request_id,
            request.lease_ms,
            [(execution.job.id, execution.nominal_ms) for execution in taken],
        )
        return operation, len(taken), _Bound(self, waiter, taken)

    def granted(self, waiter: _Waiter, taken: list[Execution], tokens: list[int]) -> None:
        """The verdict on a bound claim: hand out the leases, put back what came to nothing."""
        self._let_go(taken)
        hold, monotonic_ms = self._leases.hold, self._timers.monotonic_ms()
        leases: list[Lease] = []
        refused: list[Execution] = []
        for execution, token in zip(taken, tokens, strict=True):
            if token and execution.token == token and execution.state in HELD:
                leases.append(hold(execution, monotonic_ms))
            else:
                refused.append(execution)
        self._put_back(refused)
        if refused:
            self._instruments.leases_refused(len(refused))
        recalled = leases or self._recall(waiter.request.request_id)
        if recalled is None:
            self._try_again(waiter)
        else:
            self._hand_over(waiter, recalled)

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

    def hand_over(self, now_ms: int) -> None:
        """Answer the claims whose executions, leased ahead of time, are due by now."""
        early = self._early
        while early and early[0].due_ms <= now_ms:
            one = heappop(early)
            leases = self._still_wanted(one.leases)
            if leases:
                lags_ms = [now_ms - lease.execution.due_ms for lease in leases]
                self._instruments.observe_wheel(lags_ms)
                self._instruments.observe_claim(lags_ms)
            self._answer(one.waiter, leases)

    def next_due_ms(self) -> int | None:
        """When to call `hand_over` next."""
        return self._early[0].due_ms if self._early else None

    def _hand_over(self, waiter: _Waiter, leases: list[Lease]) -> None:
        """Answer a claim with its leases, as soon as all of their executions are due."""
        # What an answer has carried was due by then, wherever the clock stands now.
        due_ms = max((one.execution.due_ms for one in leases if one.answers <= 0), default=0)
        now_ms = self._now_ms()
        if due_ms <= now_ms:
            self._instruments.observe_claim([now_ms - one.execution.due_ms for one in leases])
            self._answer(waiter, leases)
        elif self._closed:
            self._fail(waiter, _led_no_more())
        else:
            self._early_number += 1
            by_ms = self._timers.monotonic_ms() + due_ms - now_ms
            heappush(self._early, _Early(due_ms, self._early_number, by_ms, waiter, leases))
            self._earlier(by_ms)

    def _still_wanted(self, leases: list[Lease]) -> list[Lease]:
        """Those that still hold; what was cancelled before it was due goes to nobody."""
        wanted: list[Lease] = []
        for lease in leases:
            execution = lease.execution
            if execution.token != lease.token or execution.state not in HELD:
                continue
            if execution.cancel_requested:
                self._leases.give_back(execution, lease.token)
            else:
                wanted.append(lease)
        return wanted

    def expire(self, now_ms: int, limit: int) -> bool:
        """Answer claims whose time is over by the monotonic clock, with nothing; True when
        more may be over. To be called after `hand_over`."""
        while self._early and self._early[0].by_ms + _PATIENCE_MS < now_ms:
            # The wall clock was set back, who knows how far: no claim waits for that.
            one = heappop(self._early)
            for lease in one.leases:
                self._leases.give_back(lease.execution, lease.token)
            self._answer(one.waiter, [])
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
        """End of the leadership: who waits is told, and who has leases before they are due to
        ask for them again; who is bound learns its verdict yet."""
        self._closed = True
        for waiters in list(self._queues.values()):
            for waiter in list(waiters):
                self._unqueue(waiter)
                self._fail(waiter, NotServing("this node leads no more"))
        self._matched.clear()
        for one in self._early:
            self._fail(one.waiter, _led_no_more())
        self._early.clear()

    def _enter(self, request: ClaimRequest) -> _Waiter:
        if self.count >= self._settings.max_waiting_claims:
            raise TooManyClaims(f"{self.count} claims wait already; try again later")
        waiter = self._remember(request, _Stage.WAITING)
        self._queue(waiter)
        return waiter

    def _remember(self, request: ClaimRequest, stage: _Stage) -> _Waiter:
        """A new claim, which repeats can join."""
        wait_ms = request.wait_ms or self._settings.at_once_ms
        waiter = _Waiter(request, self._timers.monotonic_ms() + wait_ms)
        waiter.stage = stage
        if request.request_id:
            self._by_request[request.request_id] = waiter
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


def _led_no_more() -> OutcomeUnknown:
    return OutcomeUnknown("this node leads no more; leases were granted, and not handed over")

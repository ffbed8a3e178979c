"""The binding of claims that wait to ready work, at the moment an entry is put together.

A claim waits in its queue until there is work or its time is over. It is bound to
executions only when the log asks for operations, so that each entry takes what is first
by then; from there on the executions are in nobody else's reach until the verdict. It is
answered in the very call that tells its verdict. An answer that nobody is left to take
gives its leases back at once.

Where more than one claim waits and nothing is ready, claims are bound to what comes due
next, ahead of time: such a lease is committed by then, and its claim is answered when the
last of its executions is due. The last claim of a queue is kept for what comes at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from timeball.cluster.dispatch.admission import Admission, Gate
from timeball.cluster.dispatch.ahead import EarlyAnswers, by_queue, shares
from timeball.cluster.dispatch.errors import NotServing, TooManyClaims
from timeball.cluster.dispatch.leases import HELD, Lease, Leases
from timeball.cluster.dispatch.messages import ClaimRequest
from timeball.cluster.dispatch.ready import ReadyWork
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.dispatch.waiting import Listener, Waiter, WaitingLine
from timeball.cluster.raft.errors import Expired, NotLeader, OutcomeUnknown, Overloaded
from timeball.cluster.raft.interface import Proposer
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Claim
from timeball.cluster.state.records import Execution


class _Bound:
    """A waiting claim bound to executions, on its way into the log and to its verdict.

    It takes the place of a future, whose callbacks would run a turn of the loop later.
    """

    __slots__ = ("_claims", "_settled", "gate", "taken", "waiter")

    def __init__(
        self, claims: WaitingClaims, waiter: Waiter, taken: list[Execution], gate: Gate | None
    ) -> None:
        self._claims = claims
        self._settled = False
        self.waiter = waiter
        self.taken = taken
        self.gate = gate
        """Where they are counted as bound, if their queue has settings."""

    def done(self) -> bool:
        return self._settled

    def set_result(self, tokens: object) -> None:
        assert isinstance(tokens, list)
        self._settle()
        self._claims.let_go(self.taken, self.gate)
        self._claims.granted(self.waiter, self.taken, tokens)

    def set_exception(self, error: BaseException) -> None:
        self._settle()
        self._claims.let_go(self.taken, self.gate)
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
        admission: Admission,
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
        self._admission = admission
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
        self._line = WaitingLine(timers.monotonic_ms(), earlier)
        self._by_request: dict[str, Waiter] = {}
        """Claims that are not answered yet, in line or not, which repeats join."""
        self._matched: OrderedDict[str, None] = OrderedDict()
        """Queues with work that a claim in line may take, the one whose turn it is first."""
        self._early = EarlyAnswers()
        self._closed = False

    @property
    def count(self) -> int:
        """Claims that wait, over all queues."""
        return self._line.count

    @property
    def to_spare(self) -> bool:
        """Whether more than one claim waits in some queue."""
        return self._line.to_spare

    def depth(self, queue: str) -> int:
        """Claims that wait for work of a queue."""
        return self._line.depth(queue)

    async def claim(self, request: ClaimRequest) -> list[Lease]:
        """Wait for executions; empty when none came in time.

        Raises TooManyClaims, NotServing, or OutcomeUnknown: then repeat with the same
        request id. Cancelling leaves no lease behind.
        """
        waiter = self._by_request.get(request.request_id)
        recalled = self._recall(request.request_id) if waiter is None else None
        if recalled is None and (waiter is None or waiter.in_line):
            if self._is_instructed(request):
                return []
            if not request.wait_ms and not self._has_work(request):
                return []
            if (listening := self._line.listening) >= self._settings.max_waiting_claims:
                raise TooManyClaims(f"{listening} claims wait already; try again later")
            offers = self._line.offers(request.queue)
            if request.offered not in offers and len(offers) >= self._settings.max_offers:
                raise TooManyClaims(
                    f"claims wait in this queue with {len(offers)} different sets of tags already"
                )
        deadline_ms = self._timers.monotonic_ms() + (request.wait_ms or self._settings.at_once_ms)
        listener = Listener(asyncio.get_running_loop().create_future(), deadline_ms)
        if waiter is not None:
            self._line.listen(waiter, listener)
        else:
            waiter = self._remember(request)
            self._line.listen(waiter, listener)
            if recalled is None:
                self._wait(waiter)
            else:
                self._hand_over(waiter, recalled)
        try:
            return await listener.answer
        except asyncio.CancelledError:
            self._leave(waiter, listener)
            raise

    def work_came(self, queue: str) -> None:
        """There is more ready work in a queue: wake the log if a claim waits that may take it."""
        if self._line.first(queue, self._ready.has) is not None:
            self._match(queue)

    def dismiss(self, workers: Collection[str]) -> None:
        """Answer the waiting claims of those of these workers that are told something: they get
        no work, and their answers say why. What is bound already goes to them yet."""
        told = [name for name in workers if name in self._state.instructions]
        for waiter in [one for one in self._line if one.request.worker in told]:
            self._line.leave(waiter)
            self._answer(waiter, [])

    def _is_instructed(self, request: ClaimRequest) -> bool:
        """Whether its worker is told to claim no more."""
        instructions = self._state.instructions
        return bool(instructions) and request.worker in instructions

    def _has_work(self, request: ClaimRequest) -> bool:
        """Whether a claim can have something at once."""
        if not self._ready.has(request.queue, request.offered):
            return False
        gate = self._admission.gate(request.queue)
        return gate is None or gate.room(self._now_ms()) > 0

    def bind(self, now_ms: int, room: int) -> Iterator[tuple[Claim, int, Proposer]]:
        """Bind waiting claims to ready work for one entry, one operation each, at most `room`
        executions: what did not fit would be overtaken by what is bound for the next entry. A
        claim that could have more than is left waits for that entry, unless it is the first."""
        left = room
        while self._matched and not self._closed:
            queue = next(iter(self._matched))
            gate = self._admission.gate(queue)
            waiter = self._line.first(queue, self._ready.has)
            allowed = self._settings.max_executions_per_claim
            if gate is not None and waiter is not None:
                allowed = min(allowed, self._admission.room(gate, now_ms))
            if waiter is None or not allowed:
                del self._matched[queue]
                continue
            request = waiter.request
            most = min(request.max_executions, self._ready.count(queue, request.offered))
            most = min(most, allowed)
            if most > left and (left < room or not room):
                # In the next turn: what is bound now is not written yet.
                self._timers.call_soon(self._commit.wake)
                break
            if gate is None:
                taken = self._ready.take(queue, min(most, left), request.offered)
                left -= len(taken)
            else:
                taken, looked = self._admission.take(gate, min(most, left), left, request.offered)
                left -= looked
                if not taken:
                    continue
            self._matched.move_to_end(queue)
            yield self._bound(waiter, taken, gate)

    def bind_ahead(
        self, coming: Iterable[Sequence[Execution]], now_ms: int, until_ms: int, room: int
    ) -> Iterator[tuple[Claim, int, Proposer]]:
        """Bind claims to at most `room` executions that come due up to `until_ms`, given by
        instant in that order; one of each queue's claims is left waiting."""
        for queue, executions in by_queue(coming, room).items():
            if queue not in self._matched:  # else what is ready goes first
                gate = self._admission.gate(queue)
                if gate is not None:
                    executions = self._admission.ahead(gate, executions, now_ms)
                waiters = self._line.all_but_last(queue)
                for waiter, taken in shares(waiters, executions, until_ms, self._settings):
                    self._foresee(taken)
                    if gate is not None:
                        gate.bind(taken)
                    yield self._bound(waiter, taken, gate)

    def _bound(
        self, waiter: Waiter, taken: list[Execution], gate: Gate | None
    ) -> tuple[Claim, int, Proposer]:
        """The operation that leases these executions to this claim."""
        self._line.leave(waiter)
        request = waiter.request
        operation = Claim(
            request.worker,
            request.request_id,
            request.lease_ms,
            [(execution.job.id, execution.nominal_ms) for execution in taken],
            tuple(sorted(request.offered)),
        )
        return operation, len(taken), _Bound(self, waiter, taken, gate)

    def let_go(self, taken: list[Execution], gate: Gate | None) -> None:
        """A bound claim has its verdict."""
        self._let_go(taken)
        if gate is not None:
            self._admission.let_go(gate, taken)

    def granted(self, waiter: Waiter, taken: list[Execution], tokens: list[int]) -> None:
        """The verdict on a bound claim: hand out the leases, put back what came to nothing."""
        held, monotonic_ms = self._leases, self._timers.monotonic_ms()
        leases: list[Lease] = []
        refused: list[Execution] = []
        for execution, token in zip(taken, tokens, strict=True):
            if token and execution.token == token and execution.state in HELD:
                leases.append(held.hold(execution, monotonic_ms))
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

    def not_granted(self, waiter: Waiter, taken: list[Execution], error: BaseException) -> None:
        """There is no verdict on a bound claim; unless the outcome is open, it waits on."""
        self._put_back(taken)
        if isinstance(error, Overloaded | Expired) and not self._closed:
            self._try_again(waiter)
        elif isinstance(error, NotLeader):
            self._fail(waiter, NotServing("this node leads no more"))
        else:
            self._fail(waiter, error)

    def hand_over(self, now_ms: int) -> None:
        """Answer the claims whose executions, leased ahead of time, are due by now."""
        for waiter, granted in self._early.due(now_ms):
            leases = self._still_wanted(granted)
            if leases:
                lags_ms = [now_ms - lease.execution.due_ms for lease in leases]
                self._instruments.observe_wheel(lags_ms)
                self._instruments.observe_claim(lags_ms)
            self._answer(waiter, leases)

    def next_due_ms(self) -> int | None:
        """When to call `hand_over` next."""
        return self._early.next_due_ms()

    def _hand_over(self, waiter: Waiter, leases: list[Lease]) -> None:
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
            by_ms = self._timers.monotonic_ms() + due_ms - now_ms
            self._early.put(due_ms, by_ms, waiter, leases)
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
        """Answer those whose time is over by the monotonic clock, with nothing; True when more
        may be over. To be called after `hand_over`."""
        for waiter, leases in self._early.overdue(now_ms):
            for lease in leases:
                self._leases.give_back(lease.execution, lease.token)
            self._answer(waiter, [])
        over = self._line.over(now_ms, limit)
        for waiter, listener in over:
            self._dismiss(waiter, listener)
        return len(over) >= limit

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next."""
        return self._line.next_deadline_ms()

    def close(self) -> None:
        """End of the leadership: who waits is told, and who has leases before they are due to
        ask for them again; who is bound learns its verdict yet."""
        self._closed = True
        for waiter in list(self._line):
            self._line.leave(waiter)
            self._fail(waiter, NotServing("this node leads no more"))
        self._matched.clear()
        for waiter in self._early.take_all():
            self._fail(waiter, _led_no_more())

    def _remember(self, request: ClaimRequest) -> Waiter:
        """A new claim, which repeats can join."""
        waiter = Waiter(request)
        if request.request_id:
            self._by_request[request.request_id] = waiter
        return waiter

    def _wait(self, waiter: Waiter, *, first: bool = False) -> None:
        """A claim has no work, or none any more, and gets in line for it."""
        self._line.join(waiter, first=first)
        if self._ready.has(waiter.request.queue, waiter.request.offered):
            self._match(waiter.request.queue)

    def _match(self, queue: str) -> None:
        gate = self._admission.gate(queue)
        if gate is not None and gate.held:
            return
        if queue not in self._matched:
            self._matched[queue] = None
        self._commit.wake()

    def _recall(self, request_id: str) -> list[Lease] | None:
        """What the claim of this id was granted before and still holds, but for what is about to
        end, as when it is being given back; None if unknown."""
        remembered = self._state.remembered_claim(request_id) if request_id else None
        if remembered is None:
            return None
        monotonic_ms = self._timers.monotonic_ms()
        held = [self._state.execution(job, nominal_ms) for job, nominal_ms, _ in remembered]
        leases = [self._leases.hold(one, monotonic_ms) for one in held if one is not None]
        return [lease for lease in leases if not lease.ending]

    def _put_back(self, executions: Sequence[Execution]) -> None:
        if executions and not self._closed:
            self._derive(executions)

    def _try_again(self, waiter: Waiter) -> None:
        """Nothing was granted: those whose time is not over wait on, in front of the others."""
        if self._closed:
            self._fail(waiter, NotServing("this node leads no more"))
            return
        now_ms = self._timers.monotonic_ms()
        for listener in list(waiter.listeners):
            if listener.deadline_ms <= now_ms:
                self._dismiss(waiter, listener)
        if waiter.listeners and self._is_instructed(waiter.request):
            self._answer(waiter, [])
        elif waiter.listeners:
            self._wait(waiter, first=True)
        else:
            self._finish(waiter)

    def _dismiss(self, waiter: Waiter, listener: Listener) -> None:
        """The time of one listener is over; the claim goes on for the others."""
        if not listener.answer.done():  # else it is leaving by itself
            if self._line.unlisten(waiter, listener):
                self._finish(waiter)
            listener.answer.set_result([])

    def _answer(self, waiter: Waiter, leases: list[Lease]) -> None:
        self._finish(waiter)
        listeners = [one.answer for one in waiter.listeners if not one.answer.done()]
        answers = len(listeners)
        for lease in leases:
            lease.answers += answers
        if not listeners and not self._closed:
            for lease in leases:
                self._leases.give_back(lease.execution, lease.token)
        for listener in listeners:
            listener.set_result(leases)

    def _fail(self, waiter: Waiter, error: BaseException) -> None:
        self._finish(waiter)
        for listener in waiter.listeners:
            if not listener.answer.done():
                listener.answer.set_exception(error)

    def _finish(self, waiter: Waiter) -> None:
        request_id = waiter.request.request_id
        if self._by_request.get(request_id) is waiter:
            del self._by_request[request_id]

    def _leave(self, waiter: Waiter, listener: Listener) -> None:
        """A caller has gone away, at whatever moment."""
        answer = listener.answer
        if answer.done() and not answer.cancelled():
            if answer.exception() is None and not self._closed:
                for lease in answer.result():
                    self._leases.give_back(lease.execution, lease.token)
        elif self._line.unlisten(waiter, listener):
            self._finish(waiter)


def _led_no_more() -> OutcomeUnknown:
    return OutcomeUnknown("this node leads no more; leases were granted, and not handed over")

"""What the settings of queues let claims have at the moment, foreseen by the leader.

The state grants leases by the same bounds (see `state.queues`). Here, what is bound to claims and
has no verdict yet counts as leased already, so that the log is not asked for what it would
refuse. Where a queue lets nothing go, its claims wait: it is looked at again when a lease of it
ends, a claim under way comes to nothing, its settings change, or, for a rate limit, when there
will be room by the clock; never in between. Executions whose key is full stand aside. Of queues
without settings nothing is kept here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from timeball.cluster.dispatch.leases import HELD
from timeball.cluster.dispatch.ready import ReadyWork
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.queue_settings import PAUSED
from timeball.cluster.state.queues import rate_room, rate_room_ms
from timeball.cluster.state.records import Execution, Job
from timeball.wheel import Timer, TimingWheel

HELD_BACK_BY: Final = ("paused", "max_concurrency", "rate_limit", "max_concurrency_per_key")
"""The settings that can keep due executions from claims."""

_UNBOUNDED: Final = 1 << 40


class Gate:
    """One queue with settings: what of it is bound to claims, and whether it is looked at."""

    __slots__ = ("_state", "bound", "bound_by_key", "held", "queue", "timer")

    def __init__(self, state: StateMachine, queue: str) -> None:
        self._state = state
        self.queue = queue
        self.bound = 0
        self.bound_by_key: dict[str, int] = {}
        self.held = False
        """Nothing may go, and nothing is looked for until something changes."""
        self.timer: Timer | None = None
        """When the rate limit has room again."""

    def room(self, now_ms: int) -> int:
        """How many executions may be bound now, whatever their keys."""
        configured = self._state.configured.get(self.queue)
        if configured is None:
            return _UNBOUNDED
        settings, room = configured.settings, _UNBOUNDED
        if settings.state == PAUSED:
            return 0
        if settings.max_concurrency:
            room = settings.max_concurrency - self._leased() - self.bound
        if settings.rate_limit is not None:
            room = min(room, rate_room(configured, now_ms) - self.bound)
        return max(room, 0)

    def room_of_key(self, key: str) -> int:
        """How many executions of a key may be bound now."""
        configured = self._state.configured.get(self.queue)
        most = 0 if configured is None else configured.settings.max_concurrency_per_key
        if not most or not key:
            return _UNBOUNDED
        counts = self._state.queues.get(self.queue)
        leased = 0 if counts is None else counts.leased_by_key.get(key, 0)
        return max(most - leased - self.bound_by_key.get(key, 0), 0)

    @property
    def bounds_keys(self) -> bool:
        """Whether some executions may have to stand aside."""
        configured = self._state.configured.get(self.queue)
        return configured is not None and configured.settings.max_concurrency_per_key > 0

    def refill_ms(self, now_ms: int) -> int | None:
        """When the rate limit has room again; None if that is not what nothing goes for."""
        configured = self._state.configured.get(self.queue)
        if configured is None or configured.settings.rate_limit is None:
            return None
        wanted = self.bound + 1
        if rate_room(configured, now_ms) >= wanted or configured.settings.rate_limit.burst < wanted:
            return None
        return rate_room_ms(configured, wanted)

    def reasons(self, now_ms: int) -> list[str]:
        """Which settings let nothing go."""
        configured = self._state.configured.get(self.queue)
        if configured is None:
            return []
        settings = configured.settings
        found: list[str] = []
        if settings.state == PAUSED:
            found.append(HELD_BACK_BY[0])
        if settings.max_concurrency and settings.max_concurrency <= self._leased() + self.bound:
            found.append(HELD_BACK_BY[1])
        if settings.rate_limit is not None and rate_room(configured, now_ms) <= self.bound:
            found.append(HELD_BACK_BY[2])
        return found

    def bind(self, executions: Iterable[Execution]) -> None:
        """Count executions that are bound to a claim."""
        for execution in executions:
            self.bound += 1
            key = execution.job.options.concurrency_key
            if key:
                self.bound_by_key[key] = self.bound_by_key.get(key, 0) + 1

    def let_go(self, executions: Iterable[Execution]) -> None:
        """They are bound no more: the state counts those that it has leased."""
        for execution in executions:
            self.bound -= 1
            key = execution.job.options.concurrency_key
            if key:
                left = self.bound_by_key[key] - 1
                if left:
                    self.bound_by_key[key] = left
                else:
                    del self.bound_by_key[key]

    def _leased(self) -> int:
        counts = self._state.queues.get(self.queue)
        return 0 if counts is None else counts.leased


class Taken(NamedTuple):
    """What a claim gets of a queue with settings."""

    executions: list[Execution]
    looked: int
    """How many executions were looked at for it."""


class Admission:
    """The queues with settings, as a leader foresees what they allow."""

    def __init__(
        self,
        state: StateMachine,
        ready: ReadyWork,
        *,
        step: int,
        now_ms: Callable[[], int],
        work_came: Callable[[str], None],
        earlier: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        """`work_came` is told of queues whose claims may have something now, `earlier` of an
        instant on the clock of due times at which to `advance`, and `wake` asks for it soon."""
        self._state = state
        self._ready = ready
        self._step = step
        self._now_ms = now_ms
        self._work_came = work_came
        self._earlier = earlier
        self._wake = wake
        self._gates: dict[str, Gate] = {name: Gate(state, name) for name in state.configured}
        self._refills: TimingWheel[Gate] = TimingWheel(max(now_ms(), 0))
        self._looks: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Keys of which some may go back to the ready queue."""

    def gate(self, queue: str) -> Gate | None:
        """What bounds a queue; None for most."""
        return self._gates.get(queue)

    def room(self, gate: Gate, now_ms: int) -> int:
        """How many executions claims may have now, whatever their keys. If none, its claims are
        not looked at again until that may have changed."""
        room = gate.room(now_ms)
        if not room:
            self._hold(gate, now_ms)
        return room

    def take(self, gate: Gate, limit: int, looks: int, offered: frozenset[str]) -> Taken:
        """The next executions for a claim that offers these tags, where there is room for
        `limit`; what may not go since its key is full stands aside. At most `looks` are looked
        at."""
        if not gate.bounds_keys:
            executions = self._ready.take(gate.queue, limit, offered)
            gate.bind(executions)
            return Taken(executions, len(executions))
        taken: list[Execution] = []
        looked = 0
        while len(taken) < limit:
            found = self._ready.take(gate.queue, min(limit - len(taken), looks - looked), offered)
            if not found:
                break
            looked += len(found)
            for execution in found:
                if gate.room_of_key(execution.job.options.concurrency_key):
                    gate.bind((execution,))
                    taken.append(execution)
                else:
                    self._ready.aside.put(execution)
        return Taken(taken, looked)

    def ahead(self, gate: Gate, executions: Sequence[Execution], now_ms: int) -> list[Execution]:
        """Which of those that come due next may go ahead of time: of each instant all or none."""
        if self._looks:
            return []  # who stands aside goes first
        room = gate.room(now_ms)
        of_key: dict[str, int] = {}
        for at, execution in enumerate(executions):
            key = execution.job.options.concurrency_key
            of_key[key] = of_key.get(key, 0) + 1
            if at == room or of_key[key] > gate.room_of_key(key):
                return [one for one in executions[:at] if one.due_ms < execution.due_ms]
        return list(executions)

    def let_go(self, gate: Gate, executions: Sequence[Execution]) -> None:
        """A claim under way has its verdict: what it was refused may go to others."""
        gate.let_go(executions)
        if self._gates.get(gate.queue) is gate:
            self._look(gate, executions)

    def applied(self, touched: Iterable[Execution | Job], queues: Iterable[str]) -> None:
        """The log changed these records, and the settings of these queues."""
        for queue in queues:
            self._reconfigured(queue)
        if not self._gates:
            return
        ended: dict[Gate, list[Execution]] = {}
        for record in touched:
            if type(record) is Execution and record.state not in HELD:
                gate = self._gates.get(record.job.queue)
                if gate is not None:
                    ended.setdefault(gate, []).append(record)
        for gate, executions in ended.items():
            self._look(gate, executions)

    def left(self, execution: Execution) -> None:
        """An execution is not ready any more, without a claim: others of its key may go."""
        self._ready.aside.left((execution,))
        gate = self._gates.get(execution.job.queue)
        if gate is not None:
            self._look(gate, (execution,))

    def advance(self, now_ms: int) -> bool:
        """Look at what has room by now; True when there is more to look at."""
        for gate in self._refills.advance(now_ms, self._step):
            gate.timer = None
            self._release(gate, now_ms)
        self._bring_back()
        return bool(self._looks)

    def next_due_ms(self) -> int | None:
        """When to call `advance` next."""
        return self._refills.next_expiry()

    def reasons(self, queue: str) -> list[str]:
        """Which settings of a queue keep due executions from claims."""
        gate = self._gates.get(queue)
        found = gate.reasons(self._now_ms()) if gate is not None else []
        if not self._ready.at_hand(queue):
            found = []
        if self._ready.aside.depth(queue):
            found.append(HELD_BACK_BY[3])
        return found

    def close(self) -> None:
        """End of the leadership."""
        self._looks.clear()
        self._gates.clear()

    def _look(self, gate: Gate, executions: Iterable[Execution]) -> None:
        """Something of a queue is held, or was bound, no more."""
        queue = gate.queue
        if self._ready.aside.depth(queue):
            for execution in executions:
                key = execution.job.options.concurrency_key
                if key:
                    self._looks[queue, key] = None
            self._bring_back()
        if gate.held:
            self._release(gate, self._now_ms())

    def _bring_back(self) -> None:
        """Let as many as there is room for go back to the ready queue, a bounded number a turn."""
        left = self._step
        while self._looks and left > 0:
            (queue, key), _ = self._looks.popitem(last=False)
            gate = self._gates.get(queue)
            room = _UNBOUNDED if gate is None else gate.room_of_key(key)
            back = self._ready.aside.take(queue, key, room, left)
            left -= 1 + len(back)
            if left <= 0:
                self._looks[queue, key] = None  # there may be more of it
            for name in self._ready.push(back):
                self._work_came(name)
        if self._looks:
            self._wake()

    def _reconfigured(self, queue: str) -> None:
        gate = self._gates.get(queue)
        if queue not in self._state.configured:
            gate = self._gates.pop(queue, None)
        elif gate is None:
            gate = self._gates[queue] = Gate(self._state, queue)
        for key in self._ready.aside.keys_of(queue):
            self._looks[queue, key] = None
        self._bring_back()
        if gate is not None:
            self._release(gate, self._now_ms())

    def _hold(self, gate: Gate, now_ms: int) -> None:
        """Nothing of a queue may go: see that it is looked at when that changes."""
        gate.held = True
        if gate.timer is not None:
            self._refills.cancel(gate.timer)
            gate.timer = None
        at_ms = gate.refill_ms(now_ms)
        if at_ms is not None:
            gate.timer = self._refills.insert(at_ms, gate)
            self._earlier(at_ms)

    def _release(self, gate: Gate, now_ms: int) -> None:
        """Let claims have what there is room for now, if there is any."""
        if not gate.held:
            return
        if not gate.room(now_ms):
            self._hold(gate, now_ms)
            return
        gate.held = False
        if gate.timer is not None:
            self._refills.cancel(gate.timer)
            gate.timer = None
        self._work_came(gate.queue)

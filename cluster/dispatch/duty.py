"""What a leader does in one term: due work from buckets to wheel to ready queues to claims.

Everything here is derived from the replicated state and thrown away with the term. Three
wheels run: due times on the wall clock, leases and waiting claims on the monotonic one.
One timer wakes the earliest of them; no execution has a task or an await of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from timeball.cluster.dispatch.admission import Admission
from timeball.cluster.dispatch.catchup import is_undecided
from timeball.cluster.dispatch.claims import WaitingClaims
from timeball.cluster.dispatch.expiries import Expiries
from timeball.cluster.dispatch.leases import HELD, Leases
from timeball.cluster.dispatch.planner import Planner
from timeball.cluster.dispatch.ready import ReadyWork
from timeball.cluster.dispatch.seams import (
    Commit,
    DispatchSettings,
    Handle,
    Instruments,
    Timers,
)
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.overlap import waits
from timeball.cluster.state.records import Execution, ExecutionState, Job
from timeball.cluster.state.usual import NO_OPTIONS
from timeball.wheel import Timer, TimingWheel

Item: TypeAlias = Execution | Job

_SCHEDULED: Final = ExecutionState.SCHEDULED
_LEASED: Final = ExecutionState.LEASED
_RUNNING: Final = ExecutionState.RUNNING


class Duty:
    """The dispatch of one leadership, from `start` to `close`."""

    def __init__(
        self,
        state: StateMachine,
        commit: Commit,
        wall_clock_ms: Callable[[], int],
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
    ) -> None:
        self._state = state
        self._commit = commit
        self._wall_clock_ms = wall_clock_ms
        self._timers = timers
        self._settings = settings
        self._instruments = instruments
        self._wheel: TimingWheel[Item] = TimingWheel(max(self.now_ms(), 0))
        self._places: dict[Item, Timer | None] = {}
        """Where each scheduled execution and timetable is that has left its bucket: its one
        live timer in the wheel, or None: it is ready, or bound to a claim under way."""
        self._loaded_to_ms = 0
        """Due times before this are in the wheel or on their way; later ones in the buckets."""
        self._led_to_ms = 0
        """The log has asked for what comes due until then, to lease it ahead of time."""
        self._firing_to_ms: int | None = None
        """What is due by then is made ready in several steps, and claims wait for the last."""
        self._to_load: deque[Iterator[Item]] = deque()
        self._undecided: dict[Job, Execution] = {}
        """Due occurrences that wait until catch-up has decided about them."""
        self._wakeup: Handle | None = None
        self._wake_at_ms = 0
        self._closed = False
        self.ready = ReadyWork(settings.partitions)
        self.leases = Leases(state, commit, timers, settings, instruments)
        self.admission = Admission(
            state, self.ready, step=settings.step, now_ms=self.now_ms,
            work_came=self._work_came, earlier=self._wake_at, wake=self._wake_now,
        )  # fmt: skip
        self.claims = WaitingClaims(
            state, self.ready, self.admission, self.leases, commit, timers, settings, instruments,
            now_ms=self.now_ms, foresee=self._bind_ahead, let_go=self._let_go,
            derive=self.applied, earlier=self._wake_by,
        )  # fmt: skip
        self.expiries = Expiries(
            commit, timers, settings, instruments,
            now_ms=max(self.now_ms(), 0), take_out=self._take_out_expired, derive=self.applied,
        )  # fmt: skip
        self.planner = Planner(
            state, commit, timers, settings, instruments,
            derive=self._derive_job, wake=self._wake_now,
        )  # fmt: skip

    def now_ms(self) -> int:
        """The present for due times: it never goes back behind what the log has seen."""
        return max(self._state.log_time_ms, self._wall_clock_ms())

    def start(self) -> None:
        """Rebuild from the state, in bounded steps: leases first, then what is near."""
        self._to_load.append(iter(list(self._state.leased.values())))
        self._tick()

    def close(self) -> None:
        """End of the leadership: nothing derived survives it."""
        self._closed = True
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None
        self.claims.close()
        self.admission.close()
        self.planner.close()
        self.expiries.close()
        self.leases.close()
        self._to_load.clear()
        self._places.clear()
        self._undecided.clear()

    def applied(self, touched: Sequence[Item], queues: Iterable[str] = ()) -> None:
        """The log changed these records, and the settings of these queues: derive anew what is to
        happen to each."""
        now_ms, monotonic_ms = self.now_ms(), self._timers.monotonic_ms()
        leases, places = self.leases, self._places
        scheduled: dict[Execution, None] = {}  # an entry may touch one more than once
        expiries = self.expiries
        for record in touched:
            if type(record) is not Execution:
                assert isinstance(record, Job)
                self.planner.moved(record)
                self._derive_job(record)
                undecided = self._undecided.pop(record, None)
                if undecided is not None and undecided.state is _SCHEDULED:
                    scheduled[undecided] = None
                continue
            state = record.state
            if expiries:
                expiries.forget(record)
            if state is _SCHEDULED:
                if record.token:  # else it was never leased
                    leases.drop(record)
                scheduled[record] = None
            elif state is _LEASED or state is _RUNNING:
                if record in places:
                    self._take_out(record)
                leases.hold(record, monotonic_ms)
            elif not leases.drop(record):
                self._withdraw(record)
        self._place(scheduled, now_ms)
        self.admission.applied(touched, queues)
        self.claims.hand_over(now_ms)
        self._arm(now_ms, monotonic_ms)

    def source(self, log_time_ms: int, room: int) -> Iterator[tuple[Any, int, Any]]:
        """What goes into the entry that is put together now, at most `room` executions: claims,
        bound to what is due."""
        if not self._closed:
            wall_ms = self._wall_clock_ms()
            now_ms = min(max(self._state.log_time_ms, wall_ms), log_time_ms)
            self.claims.hand_over(now_ms)
            if self._firing_to_ms is None:
                self._fire(now_ms)
            if self.planner.has_due:
                self._wake_now()
            if not self._all_is_in(now_ms):
                self._wake_now()
                return
            self._firing_to_ms = None
            if self.expiries:
                self.expiries.advance(log_time_ms, self._settings.step)
            room = min(room, self._settings.executions_per_entry)
            for bound in self.claims.bind(now_ms, room):
                room -= bound[1]
                yield bound
            # While log-time is ahead of the clock, nobody can say when the next is due.
            if wall_ms >= log_time_ms and self.claims.to_spare:
                until_ms = now_ms + self._settings.lead_ms
                self._led_to_ms = until_ms - self._settings.lead_span_ms
                coming = self._coming(now_ms, until_ms)
                yield from self.claims.bind_ahead(coming, now_ms, until_ms, room)

    def _coming(self, now_ms: int, until_ms: int) -> Iterator[list[Execution]]:
        """What comes due by then, instant by instant; nothing while more is due now."""
        first_ms = self._wheel.next_expiry()
        if first_ms is not None and first_ms > now_ms:
            for due_ms in range(first_ms, until_ms + 1):
                instant = [
                    item
                    for item in self._wheel.at(due_ms)
                    if type(item) is Execution and (item.job.recurrence is None or not waits(item))
                ]
                if instant:
                    yield instant

    def _bind_ahead(self, executions: Sequence[Execution]) -> None:
        """A claim under way has them before they are due."""
        for execution in executions:
            timer = self._places[execution]
            assert timer is not None
            self._wheel.cancel(timer)
            self._places[execution] = None

    def _place(self, executions: Iterable[Execution], now_ms: int) -> None:
        """Scheduled executions, each once: to the ready queue, the wheel, or left in buckets."""
        places, wheel, loaded_to_ms = self._places, self._wheel, self._loaded_to_ms
        due: list[Execution] = []
        for execution in executions:
            if execution in places and not self._take_out(execution):
                continue
            due_ms = execution.due_ms
            if due_ms <= now_ms:
                if self._has_expired(execution, now_ms):
                    continue
                if execution.job.recurrence is None or not self._is_held_back(execution, now_ms):
                    due.append(execution)
            elif due_ms < loaded_to_ms:
                places[execution] = wheel.insert(due_ms, execution)
        if due:
            self._make_ready(due)

    def _has_expired(self, execution: Execution, now_ms: int) -> bool:
        """Whether a due execution is only to be skipped; else that is seen to for later."""
        return execution.job.options is not NO_OPTIONS and self.expiries.watch(execution, now_ms)

    def _is_held_back(self, execution: Execution, now_ms: int) -> bool:
        """Whether a due occurrence of a timetable is not to be ready yet.

        The state touches it when the overlap rule lets it go; and whatever moves its
        timetable, or stops it, touches the job.
        """
        if waits(execution):
            return True
        if is_undecided(execution, now_ms, self._settings.catch_up_grace_ms):
            self._undecided[execution.job] = execution
            return True
        return False

    def _make_ready(self, executions: Sequence[Execution]) -> None:
        self._places.update(dict.fromkeys(executions))
        for queue in self.ready.push(executions):
            self.claims.work_came(queue)

    def _withdraw(self, item: Item) -> None:
        """Neither ready nor to become so."""
        if item in self._places:
            self._take_out(item)

    def _take_out(self, item: Item) -> bool:
        """Take an item out of its place; False if a claim has it, whose verdict decides."""
        timer = self._places[item]
        if timer is not None:
            self._wheel.cancel(timer)
        else:
            assert type(item) is Execution, "timetables have timers"
            if not self.ready.discard(item):
                return False
            self.admission.left(item)
        del self._places[item]
        return True

    def _take_out_expired(self, execution: Execution) -> bool:
        """Have what has expired no more be ready; False if a claim has it."""
        return execution not in self._places or self._take_out(execution)

    def _let_go(self, executions: Sequence[Execution]) -> None:
        """A claim under way has them no more."""
        if not self._closed:
            for execution in executions:
                del self._places[execution]

    def _derive_job(self, job: Job) -> None:
        self._withdraw(job)
        if not job.timetable_moves or self.planner.is_under_way(job):
            return
        moves_at_ms = job.moves_at_ms
        if moves_at_ms <= self.now_ms():
            self.planner.due(job)
        elif moves_at_ms < self._loaded_to_ms:
            self._places[job] = self._wheel.insert(moves_at_ms, job)

    def _fire(self, now_ms: int) -> bool:
        """Take what is due out of the wheel; True when there is more.

        What has come due by the first of several steps is all made ready before claims get any
        of it; what comes due meanwhile makes them wait no longer.
        """
        fired = self._wheel.advance(now_ms, self._settings.step)
        due: list[Execution] = []
        for item in fired:
            if type(item) is Execution:
                assert item.state is _SCHEDULED, "a timer outlived its reason"
                assert item.due_ms <= now_ms, "never early"
                if self._has_expired(item, now_ms):
                    del self._places[item]
                elif item.job.recurrence is None:
                    due.append(item)
                elif self._is_held_back(item, now_ms):
                    del self._places[item]
                else:
                    due.append(item)
            else:
                assert isinstance(item, Job)
                del self._places[item]
                self.planner.due(item)
        if due:
            self._make_ready(due)
            self._instruments.observe_wheel([now_ms - execution.due_ms for execution in due])
        more = len(fired) >= self._settings.step
        if self._firing_to_ms is None:
            self._firing_to_ms = now_ms if more else None
        elif self._all_is_in(now_ms):
            self._commit.wake()
        return more

    def _all_is_in(self, now_ms: int) -> bool:
        """Whether all is ready among which a choice is to be made."""
        if self._firing_to_ms is None:
            return True
        first_ms = self._wheel.next_expiry()
        # What the clock, set back, says is not due any more is not waited for.
        return first_ms is None or first_ms > min(self._firing_to_ms, now_ms)

    def _tick(self) -> None:
        """One turn of the leader's own work, and the timer for the next."""
        self._wakeup = None
        if self._closed:
            return
        now_ms, monotonic_ms = self.now_ms(), self._timers.monotonic_ms()
        step = self._settings.step
        self._look_ahead(now_ms)
        self._load(now_ms, monotonic_ms)
        self.claims.hand_over(now_ms)
        more = self._fire(now_ms)
        more |= self.admission.advance(now_ms)
        self.planner.step(now_ms)
        more |= self.expiries.advance(now_ms, step)
        more |= self.leases.advance(monotonic_ms, step)
        more |= self.claims.expire(monotonic_ms, step)
        self._arm(now_ms, monotonic_ms, soon=more)

    def _look_ahead(self, now_ms: int) -> None:
        """Put the buckets that come up within the horizon on the list to load."""
        if now_ms + self._settings.horizon_ms < self._loaded_to_ms:
            return
        pending, timetables = self._state.pending, self._state.timetables
        width_ms = pending.width_ms
        assert timetables.width_ms == width_ms, "one frontier serves both"
        last_ms = pending.start_of(now_ms + self._settings.horizon_ms)
        from_ms = self._loaded_to_ms or None
        self._to_load.append(_items(pending.upto(last_ms, from_ms=from_ms)))
        self._to_load.append(_items(timetables.upto(last_ms, from_ms=from_ms)))
        self._loaded_to_ms = last_ms + width_ms

    def _load(self, now_ms: int, monotonic_ms: int) -> None:
        """Take up some of the records on the list."""
        room = self._settings.step
        while self._to_load and room:
            records = list(islice(self._to_load[0], room))
            if not records:
                self._to_load.popleft()
            room -= len(records)
            self._take_up(records, now_ms, monotonic_ms)

    def _take_up(self, records: Iterable[Item], now_ms: int, monotonic_ms: int) -> None:
        """Derive what an earlier leader, or a far bucket, left to be done with records."""
        scheduled: list[Execution] = []
        taken_over = 0
        for record in records:
            if type(record) is not Execution:
                assert isinstance(record, Job)
                self._derive_job(record)
            elif record.state in HELD:
                self.leases.hold(record, monotonic_ms, now_ms=now_ms)
                taken_over += 1
            elif record.state is _SCHEDULED:
                scheduled.append(record)
        if taken_over:
            self._instruments.leases_taken_over(taken_over)
        self._place(scheduled, now_ms)

    def _arm(self, now_ms: int, monotonic_ms: int, *, soon: bool = False) -> None:
        """See that the next tick comes when there is something to do, or to look at."""
        if soon or self._to_load or self.planner.has_due:
            self._wake_by(monotonic_ms)
            return
        if self._wakeup is not None and self._wake_at_ms <= monotonic_ms + 1:
            return  # nothing that lies ahead can be sooner
        at_ms = monotonic_ms + self._settings.longest_wait_ms
        for due_ms in (
            self._next_due_ms(now_ms),
            self.claims.next_due_ms(),
            self.admission.next_due_ms(),
            self.expiries.next_ms(),
        ):
            if due_ms is not None:
                at_ms = min(at_ms, monotonic_ms + due_ms - now_ms)
        for expiry_ms in (self.leases.next_expiry_ms(), self.claims.next_deadline_ms()):
            if expiry_ms is not None:
                at_ms = min(at_ms, expiry_ms)
        self._wake_by(at_ms)

    def _next_due_ms(self, now_ms: int) -> int | None:
        """When the wheel has something, be it to lease ahead; the log is woken for that."""
        due_ms = self._wheel.next_expiry()
        if due_ms is None or due_ms <= self._led_to_ms:
            return due_ms
        # What the span lets wait is leased together with what comes next.
        look_ms = due_ms - max(self._settings.lead_ms - self._settings.lead_span_ms, 0)
        if look_ms > now_ms:
            return look_ms
        if self.claims.to_spare:
            self._commit.wake()
        return due_ms

    def _work_came(self, queue: str) -> None:
        self.claims.work_came(queue)

    def _wake_at(self, due_ms: int) -> None:
        """Have a tick at an instant of the clock of due times."""
        self._wake_by(self._timers.monotonic_ms() + due_ms - self.now_ms())

    def _wake_now(self) -> None:
        self._wake_by(self._timers.monotonic_ms())

    def _wake_by(self, at_ms: int) -> None:
        """Have a tick at an instant of the monotonic clock, at the latest."""
        if self._closed:
            return
        if self._wakeup is not None:
            if self._wake_at_ms <= at_ms:
                return
            self._wakeup.cancel()
        delay_ms = at_ms - self._timers.monotonic_ms()
        self._wake_at_ms = at_ms
        if delay_ms <= 0:
            self._wakeup = self._timers.call_soon(self._tick)
        else:
            self._wakeup = self._timers.call_later(delay_ms, self._tick)


def _items(buckets: Iterable[tuple[int, Sequence[Item]]]) -> Iterator[Item]:
    for _, items in buckets:
        yield from items

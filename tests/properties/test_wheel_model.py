"""The timing wheel against a sorted list, under clocks that step both ways."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from timeball.wheel import Timer, TimingWheel

EDGES = [1, 2, 255, 256, 257, 2**14, 2**20, 2**26, 2**27, 2**31, 2**53, 2**63]

starts = st.one_of(
    st.integers(0, 1000),
    st.just(1_764_480_000_123),
    st.builds(lambda edge, back: max(0, edge - back), st.sampled_from(EDGES), st.integers(0, 300)),
)
offsets = st.one_of(
    st.integers(-20, 20),
    st.integers(-400, 400),
    st.builds(
        lambda sign, edge, near: sign * edge + near,
        st.sampled_from([1, 1, 1, -1]),
        st.sampled_from(EDGES),
        st.integers(-3, 3),
    ),
    st.integers(0, 2**64),
)


class WheelAgainstSortedList(RuleBasedStateMachine):
    """The model keeps (due, sequence) pairs and sorts them whenever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: set[tuple[int, int]] = set()
        self.timers: dict[tuple[int, int], Timer[tuple[int, int]]] = {}
        self.sequence = 0

    @initialize(start=starts, moves_limit=st.sampled_from([1, 2, 3, 5000]))
    def begin(self, start: int, moves_limit: int) -> None:
        self.now = start
        self.wheel = TimingWheel[tuple[int, int]](start, moves_limit=moves_limit)

    def insert_at(self, due_ms: int) -> None:
        self.sequence += 1
        item = (due_ms, self.sequence)
        self.pending.add(item)
        self.timers[item] = self.wheel.insert(due_ms, item)

    @rule(offset=offsets, count=st.integers(1, 4))
    def insert(self, offset: int, count: int) -> None:
        for _ in range(count):
            self.insert_at(self.now + offset)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), near=st.integers(-2, 2))
    def insert_beside_another(self, data: st.DataObject, near: int) -> None:
        due_ms, _ = data.draw(st.sampled_from(sorted(self.pending)))
        self.insert_at(due_ms + near)

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.timers)))
        self.cancel_one(item)

    def cancel_one(self, item: tuple[int, int]) -> None:
        assert (self.timers[item] in self.wheel) == (item in self.pending)
        assert self.wheel.cancel(self.timers[item]) == (item in self.pending)
        self.pending.discard(item)

    @precondition(lambda self: self.pending)
    @rule(offset=offsets)
    def cancel_and_reschedule_all(self, offset: int) -> None:
        for item in sorted(self.pending):
            self.cancel_one(item)
            self.insert_at(self.now + offset)

    @rule(step=offsets)
    def set_the_clock(self, step: int) -> None:
        self.now = max(0, self.now + step)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), near=st.integers(-1, 1))
    def set_the_clock_to_a_due_time(self, data: st.DataObject, near: int) -> None:
        due_ms, _ = data.draw(st.sampled_from(sorted(self.pending)))
        self.now = max(0, due_ms + near)

    @precondition(lambda self: self.wheel.next_expiry() is not None)
    @rule()
    def sleep_until_the_next_expiry(self) -> None:
        expiry = self.wheel.next_expiry()
        assert expiry is not None
        self.now = max(self.now, expiry)

    @rule(limit=st.integers(1, 6))
    def advance_once(self, limit: int) -> None:
        due = sorted(item for item in self.pending if item[0] <= self.now)
        fired = self.wheel.advance(self.now, limit)
        assert fired == due[: len(fired)]
        assert len(fired) <= limit
        self.pending.difference_update(fired)
        if len(fired) < min(limit, len(due)):
            expiry = self.wheel.next_expiry()
            assert expiry is not None
            assert expiry <= self.now

    @rule(limit=st.sampled_from([1, 3, 2000]))
    def advance_until_done(self, limit: int) -> None:
        due = sorted(item for item in self.pending if item[0] <= self.now)
        fired: list[tuple[int, int]] = []
        calls = 0
        while (expiry := self.wheel.next_expiry()) is not None and expiry <= self.now:
            step = self.wheel.advance(self.now, limit)
            assert len(step) <= limit
            fired += step
            calls += 1
            assert calls <= 6 * len(self.timers) + 6, "it must not spin"
        assert fired == due
        self.pending.difference_update(fired)

    @invariant()
    def agree(self) -> None:
        if self.sequence == 0:
            return
        expiry = self.wheel.next_expiry()
        assert len(self.wheel) == len(self.pending)
        assert (expiry is None) == (not self.pending)
        if expiry is not None:
            first_ms, _ = min(self.pending)
            assert expiry <= first_ms
            assert list(self.wheel.at(first_ms)) == sorted(
                item for item in self.pending if item[0] == first_ms
            )


WheelAgainstSortedList.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase

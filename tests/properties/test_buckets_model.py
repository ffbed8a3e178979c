"""Time buckets against a plain mapping of start to list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timeball.wheel import TimeBuckets

dues = st.one_of(
    st.integers(-50, 50),
    st.builds(
        lambda edge, near: edge + near,
        st.sampled_from([1024, 7168, 1_024_000, 2**31, 2**53, 2**63]),
        st.integers(-2, 2),
    ),
)
items = st.integers(0, 3)
Change = tuple[bool, int, int]


class BucketsAgainstMapping(RuleBasedStateMachine):
    """The model finds a bucket's start by counting and sorts all starts at each reading."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[int, list[int]] = {}

    @initialize(width_ms=st.sampled_from([1, 7, 1000]))
    def begin(self, width_ms: int) -> None:
        self.width_ms = width_ms
        self.buckets = TimeBuckets[int](width_ms)

    def change(self, *, adding: bool, due_ms: int, item: int) -> None:
        start = due_ms // self.width_ms * self.width_ms
        held = self.model.setdefault(start, [])
        if adding:
            self.buckets.add(due_ms, item)
            if item not in held:
                held.append(item)
        else:
            assert self.buckets.discard(due_ms, item) == (item in held)
            if item in held:
                held.remove(item)
        if not held:
            del self.model[start]

    @rule(due_ms=dues, item=items)
    def add(self, due_ms: int, item: int) -> None:
        self.change(adding=True, due_ms=due_ms, item=item)

    @rule(due_ms=dues, item=items)
    def discard(self, due_ms: int, item: int) -> None:
        self.change(adding=False, due_ms=due_ms, item=item)

    @rule(due_ms=dues, item=items, rounds=st.integers(1, 90))
    def add_and_discard_storm(self, due_ms: int, item: int, rounds: int) -> None:
        for _ in range(rounds):
            self.change(adding=True, due_ms=due_ms, item=item)
            self.change(adding=False, due_ms=due_ms, item=item)

    @rule(
        end_ms=dues,
        from_ms=st.none() | dues,
        changes=st.lists(st.tuples(st.booleans(), dues, items), max_size=6),
    )
    def read_while_it_changes(
        self, end_ms: int, from_ms: int | None, changes: list[Change]
    ) -> None:
        visits = [
            start
            for start in sorted(self.model)
            if start <= end_ms and (from_ms is None or start >= from_ms)
        ]
        reading = self.buckets.upto(end_ms, from_ms=from_ms)
        for start in visits:
            if start not in self.model:
                continue
            assert next(reading) == (start, self.model[start])
            if changes:
                adding, due_ms, item = changes.pop()
                self.change(adding=adding, due_ms=due_ms, item=item)
        assert next(reading, None) is None

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "buckets"):
            return
        assert len(self.buckets) == sum(map(len, self.model.values()))
        assert self.buckets.first() == min(self.model, default=None)


BucketsAgainstMapping.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestBucketsAgainstMapping = BucketsAgainstMapping.TestCase

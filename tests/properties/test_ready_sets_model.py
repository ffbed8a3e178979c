"""Ready work with requirements against a plain list that is searched with the written rule."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timeball.wheel import ReadySets

TAGS = ("a", "b", "c")
SETS = st.sets(st.sampled_from(TAGS), max_size=3).map(lambda tags: tuple(sorted(tags)))


class Waiting(NamedTuple):
    name: int
    requires: tuple[str, ...]
    partition: int
    priority: int
    due_ms: int


class SetsAgainstPlainList(RuleBasedStateMachine):
    """The model looks at everything that waits, for each item that is taken.

    Names rise, so that they are sequence numbers that differ.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Waiting] = []
        self.names = 0
        self.turns: dict[tuple[tuple[str, ...], int], int] = {}

    @initialize(partitions=st.sampled_from([1, 2, 3]))
    def begin(self, partitions: int) -> None:
        self.partitions = partitions
        self.sets = ReadySets[int](partitions)

    def first_of(self, requires: tuple[str, ...]) -> Waiting:
        """What goes first of one set: by priority, partition in turn, due time."""
        rivals = [one for one in self.waiting if one.requires == requires]
        priority = max(one.priority for one in rivals)
        rivals = [one for one in rivals if one.priority == priority]
        turn = self.turns.get((requires, priority), 0)
        partitions = [(turn + step) % self.partitions for step in range(self.partitions)]
        partition = next(p for p in partitions if any(one.partition == p for one in rivals))
        rivals = [one for one in rivals if one.partition == partition]
        return min(rivals, key=lambda one: (one.due_ms, one.name))

    def take_by_the_rule(self, limit: int, offered: frozenset[str]) -> list[int]:
        taken: list[int] = []
        while len(taken) < limit:
            sets = {one.requires for one in self.waiting if offered.issuperset(one.requires)}
            if not sets:
                break
            heads = [self.first_of(requires) for requires in sets]
            one = min(heads, key=lambda one: (-one.priority, one.due_ms, one.name))
            self.turns[one.requires, one.priority] = one.partition + 1
            self.waiting.remove(one)
            taken.append(one.name)
        return taken

    @rule(
        requires=SETS,
        partition=st.integers(0, 2),
        priority=st.sampled_from([0, 5, 9]),
        due_ms=st.integers(0, 9),
        count=st.integers(1, 3),
    )
    def push(
        self, requires: tuple[str, ...], partition: int, priority: int, due_ms: int, count: int
    ) -> None:
        for _ in range(count):
            self.names += 1
            place = partition % self.partitions
            self.sets.of(requires).push(self.names, place, priority, due_ms, self.names)
            self.waiting.append(Waiting(self.names, requires, place, priority, due_ms))

    @rule(limit=st.integers(0, 6), offered=SETS)
    def take(self, limit: int, offered: tuple[str, ...]) -> None:
        tags = frozenset(offered)
        assert self.sets.take(limit, tags) == self.take_by_the_rule(limit, tags)

    @rule(data=st.data(), as_required_now=SETS)
    def discard(self, data: st.DataObject, as_required_now: tuple[str, ...]) -> None:
        """Its requirements may have changed since it was pushed."""
        assert not self.sets.discard(self.names + 1, as_required_now)
        if self.waiting:
            one = data.draw(st.sampled_from(self.waiting))
            assert self.sets.discard(one.name, as_required_now)
            self.waiting.remove(one)

    @invariant()
    def it_tells_what_waits(self) -> None:
        if not hasattr(self, "sets"):
            return
        assert len(self.sets) == len(self.waiting)
        oldest = min((one.due_ms for one in self.waiting), default=None)
        assert self.sets.oldest_due_ms() == oldest
        for tags in ((), ("a",), ("b", "c"), TAGS):
            offered = frozenset(tags)
            fits = any(offered.issuperset(one.requires) for one in self.waiting)
            assert self.sets.has(offered) == fits


TestSetsAgainstPlainList = SetsAgainstPlainList.TestCase
TestSetsAgainstPlainList.settings = settings(stateful_step_count=40)


def test_sets_that_ran_empty_make_room_and_those_that_did_not_stay() -> None:
    sets = ReadySets[int](1)
    sets.of(("kept",)).push(-1, 0, 5, 0, 0)
    for number in range(1_000):
        sets.of((f"host-{number}",)).push(number, 0, 5, 1, number)
        assert sets.take(2, frozenset({f"host-{number}"})) == [number]
    assert len(sets._sets) <= 64
    assert len(sets._fitting) <= 64
    assert sets.take(1, frozenset({"kept", "more"})) == [-1]

"""The ready queue against a plain list that is searched with the written rule."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from timeball.wheel import ReadyQueue


@dataclass(frozen=True)
class Waiting:
    name: int
    partition: int
    priority: int
    due_ms: int
    sequence: int
    arrival: int


class QueueAgainstPlainList(RuleBasedStateMachine):
    """The model reads the order rule of the queue's docstring, word for word."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Waiting] = []
        self.gone: list[Waiting] = []
        self.names = 0
        self.arrivals = 0
        self.turn = dict.fromkeys(range(10), 0)

    @initialize(partitions=st.sampled_from([1, 2, 3, 16]))
    def begin(self, partitions: int) -> None:
        self.partitions = partitions
        self.queue = ReadyQueue[int](partitions)

    def next_by_the_rule(self) -> Waiting:
        priority = max(one.priority for one in self.waiting)
        rivals = [one for one in self.waiting if one.priority == priority]
        partition = self.turn[priority] % self.partitions
        while not any(one.partition == partition for one in rivals):
            partition = (partition + 1) % self.partitions
        self.turn[priority] = partition + 1
        return min(
            (one for one in rivals if one.partition == partition),
            key=lambda one: (one.due_ms, one.sequence, one.arrival),
        )

    def arrive(self, name: int, partition: int, priority: int, due_ms: int, sequence: int) -> None:
        self.arrivals += 1
        self.queue.push(
            name, partition=partition, priority=priority, due_ms=due_ms, sequence=sequence
        )
        self.waiting.append(
            Waiting(name, partition, priority, due_ms, sequence, arrival=self.arrivals)
        )

    @rule(
        count=st.integers(1, 8),
        partition=st.integers(0, 15),
        priority=st.one_of(st.sampled_from([0, 5, 9]), st.integers(0, 9)),
        due_ms=st.one_of(st.integers(-3, 9), st.integers(0, 2**64)),
        sequence=st.integers(0, 5),
    )
    def push(self, count: int, partition: int, priority: int, due_ms: int, sequence: int) -> None:
        for _ in range(count):
            self.names += 1
            self.arrive(self.names, partition % self.partitions, priority, due_ms, sequence)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def push_again_as_before(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.gone))
        self.gone.remove(one)
        self.arrive(one.name, one.partition, one.priority, one.due_ms, one.sequence)

    @rule(limit=st.integers(0, 12))
    def take(self, limit: int) -> None:
        expected: list[int] = []
        while self.waiting and len(expected) < limit:
            one = self.next_by_the_rule()
            self.waiting.remove(one)
            self.gone.append(one)
            expected.append(one.name)
        assert self.queue.take(limit) == expected

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        assert self.queue.discard(one.name)
        self.waiting.remove(one)
        self.gone.append(one)

    @precondition(lambda self: self.waiting)
    @rule(rounds=st.integers(1, 90))
    def discard_storm(self, rounds: int) -> None:
        one = self.waiting.pop()
        assert self.queue.discard(one.name)
        for _ in range(rounds):
            self.queue.push(
                one.name,
                partition=one.partition,
                priority=one.priority,
                due_ms=one.due_ms,
                sequence=one.sequence,
            )
            assert self.queue.discard(one.name)
        self.arrive(one.name, one.partition, one.priority, one.due_ms, one.sequence)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def discard_what_does_not_wait(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.gone))
        assert one.name not in self.queue
        assert not self.queue.discard(one.name)

    @rule()
    def ask_for_the_oldest(self) -> None:
        oldest = min((one.due_ms for one in self.waiting), default=None)
        assert self.queue.oldest_due_ms() == oldest

    @invariant()
    def agree(self) -> None:
        if self.names == 0:
            return
        assert len(self.queue) == len(self.waiting)
        # Counted too high it would sweep at each discard, too low never.
        lanes = [lane for lanes in self.queue._lanes for lane in lanes]
        assert self.queue._entries == sum(map(len, lanes))
        assert all(one.name in self.queue for one in self.waiting)


QueueAgainstPlainList.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestQueueAgainstPlainList = QueueAgainstPlainList.TestCase

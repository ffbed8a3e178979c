"""What is due on this leader, by named queue and by what it requires of a claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from timeball.cluster.dispatch.aside import Aside
from timeball.cluster.state.records import Execution, definition_of
from timeball.cluster.state.usual import NO_OPTIONS
from timeball.wheel import (
    NOTHING,
    ReadyQueue,
    ReadySets,
    partition_of,
    partition_of_numbers,
)

_IDLE_QUEUES_KEPT: Final = 256


class ReadyWork:
    """Due executions by queue, in the order in which claims take them."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._queues: dict[str, ReadySets[Execution]] = {}
        self.aside = Aside()
        """Those that a claim may not have yet, and that are not in its way."""

    def push(self, executions: Iterable[Execution]) -> Iterable[str]:
        """Let due executions wait, none of which does yet; the queues that they wait in."""
        partitions = self._partitions
        plain: dict[str, ReadyQueue[Execution]] = {}
        demanding: dict[str, None] = {}
        latest_key, latest_partition = "", 0
        for execution in executions:
            job = execution.job
            name, key, one_shot = job.queue, job.partition_key, job.recurrence is None
            if job.options is not NO_OPTIONS and job.options.requires:
                demanding[name] = None
                queue = self._queue_named(name).of(job.options.requires)
            elif (known := plain.get(name)) is not None:
                queue = known
            else:
                queue = plain[name] = self._queue_named(name).of(())
            if not key:
                # The occurrences of a timetable keep their order.
                number = execution.nominal_ms if one_shot else 0
                partition = partition_of_numbers(job.id, number, partitions)
            elif key == latest_key:
                partition = latest_partition
            else:
                latest_key = key
                latest_partition = partition = partition_of(key, partitions)
            priority = job.priority if one_shot else definition_of(execution).priority
            queue.push(execution, partition, priority, execution.due_ms, execution.sequence)
        return dict.fromkeys((*plain, *demanding)) if demanding else plain

    def discard(self, execution: Execution) -> bool:
        """It is not to be handed out; False if it was not ready."""
        queue = self._queues.get(execution.job.queue)
        if queue is not None and queue.discard(execution, execution.job.options.requires):
            return True
        return self.aside.discard(execution)

    def take(self, queue: str, limit: int, offered: frozenset[str] = NOTHING) -> list[Execution]:
        """The next executions of a queue that require nothing else; they wait no more."""
        ready = self._queues.get(queue)
        if ready is None:
            return []
        taken = ready.take(limit, offered)
        self.aside.left(taken)  # whatever bounds their keys by now, if anything does
        return taken

    def has(self, queue: str, offered: frozenset[str] = NOTHING) -> bool:
        """Whether there is an execution in a queue that requires nothing else."""
        ready = self._queues.get(queue)
        return ready is not None and ready.has(offered)

    def count(self, queue: str, offered: frozenset[str]) -> int:
        """How many executions of a queue there are that require nothing else."""
        ready = self._queues.get(queue)
        return 0 if ready is None else ready.count(offered)

    def depth(self, queue: str) -> int:
        """Due executions that wait for a claim."""
        return self.at_hand(queue) + self.aside.depth(queue)

    def at_hand(self, queue: str) -> int:
        """Of these, the ones that do not stand aside."""
        ready = self._queues.get(queue)
        return 0 if ready is None else len(ready)

    def oldest_due_ms(self, queue: str) -> int | None:
        """The earliest due time of all that wait; None when nothing does."""
        ready = self._queues.get(queue)
        first_ms = None if ready is None else ready.oldest_due_ms()
        aside_ms = self.aside.oldest_due_ms(queue)
        if first_ms is None or aside_ms is None:
            return aside_ms if first_ms is None else first_ms
        return min(first_ms, aside_ms)

    def _queue_named(self, name: str) -> ReadySets[Execution]:
        queue = self._queues.get(name)
        return self._add_queue(name) if queue is None else queue

    def _add_queue(self, name: str) -> ReadySets[Execution]:
        if len(self._queues) >= _IDLE_QUEUES_KEPT:
            # A queue takes some kilobytes: those that ran empty make room.
            for idle in [name for name, queue in self._queues.items() if not queue]:
                del self._queues[idle]
        queue = self._queues[name] = ReadySets(self._partitions)
        return queue

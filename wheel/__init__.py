"""Timing: the hierarchical wheel, time buckets and ready queues. Pure.

Nothing here reads a clock, draws a random number or does input or output: the
present instant is always an argument, in epoch milliseconds.

An execution passes through three in turn. `TimeBuckets` hold every
scheduled execution by its due second, `TimingWheel` holds the near ones to the
millisecond, and `ReadyQueue` holds those whose due time has come, in the order
in which claims take them. `ReadySets` are the ready queues of work that not every
claim may take.
"""

from timeball.wheel.ready_queue import PRIORITIES, ReadyQueue, partition_of, partition_of_numbers
from timeball.wheel.ready_sets import NOTHING, ReadySets
from timeball.wheel.time_buckets import TimeBuckets
from timeball.wheel.timing_wheel import Timer, TimingWheel

__all__ = [
    "NOTHING",
    "PRIORITIES",
    "ReadyQueue",
    "ReadySets",
    "TimeBuckets",
    "Timer",
    "TimingWheel",
    "partition_of",
    "partition_of_numbers",
]

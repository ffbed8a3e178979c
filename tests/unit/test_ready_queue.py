"""The ready queue, rule by rule: given items that wait, a take gives these in this order."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from timeball.wheel import PRIORITIES, ReadyQueue, partition_of, partition_of_numbers


def push(
    queue: ReadyQueue[str],
    item: str,
    *,
    partition: int = 0,
    priority: int = 5,
    due_ms: int = 100,
    sequence: int = 0,
) -> None:
    queue.push(item, partition=partition, priority=priority, due_ms=due_ms, sequence=sequence)


def test_an_empty_queue_gives_nothing() -> None:
    queue = ReadyQueue[str]()
    assert queue.take(10) == []
    assert queue.oldest_due_ms() is None
    assert len(queue) == 0


def test_a_take_removes_what_it_gives_and_no_more_than_the_limit() -> None:
    queue = ReadyQueue[str]()
    for n in range(5):
        push(queue, f"{n}", sequence=n)
    assert queue.take(0) == []
    assert queue.take(2) == ["0", "1"]
    assert len(queue) == 3
    assert "1" not in queue
    assert "2" in queue
    assert queue.take(9) == ["2", "3", "4"]
    assert queue.take(9) == []


def test_within_a_partition_the_due_time_decides_then_the_sequence_then_arrival() -> None:
    queue = ReadyQueue[str]()
    push(queue, "d", due_ms=300, sequence=1)
    push(queue, "c", due_ms=200, sequence=9)
    push(queue, "b", due_ms=200, sequence=7)
    push(queue, "a", due_ms=100, sequence=8)
    push(queue, "e", due_ms=300, sequence=1)
    assert queue.take(9) == ["a", "b", "c", "d", "e"]


def test_a_higher_priority_goes_first_over_the_whole_queue() -> None:
    queue = ReadyQueue[str]()
    push(queue, "lowest", partition=0, priority=0, due_ms=1)
    push(queue, "middle", partition=1, priority=5, due_ms=2)
    push(queue, "high, partition 3", partition=3, priority=9, due_ms=9)
    push(queue, "high, partition 3, later", partition=3, priority=9, due_ms=10)
    push(queue, "high, partition 2", partition=2, priority=9, due_ms=11)
    assert queue.take(4) == [
        "high, partition 2",
        "high, partition 3",
        "high, partition 3, later",
        "middle",
    ]
    push(queue, "urgent", partition=7, priority=8, due_ms=99)
    assert queue.take(9) == ["urgent", "lowest"]


def test_one_tenants_flood_delays_another_by_one_item() -> None:
    queue = ReadyQueue[str]()
    for n in range(1000):
        push(queue, f"flood {n}", partition=4, due_ms=n, sequence=n)
    assert queue.take(3) == ["flood 0", "flood 1", "flood 2"]
    for n in range(2):
        push(queue, f"small {n}", partition=9, due_ms=5000 + n, sequence=n)
    assert queue.take(5) == ["small 0", "flood 3", "small 1", "flood 4", "flood 5"]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_the_turn_goes_on_over_successive_takes(limit: int) -> None:
    queue = ReadyQueue[str](partitions=3)
    for n in range(4):
        for partition in range(3):
            push(queue, f"{partition}:{n}", partition=partition, due_ms=n)
    taken = []
    while queue:
        taken += queue.take(limit)
    assert [item[0] for item in taken] == ["0", "1", "2"] * 4


def test_each_priority_keeps_its_own_turn() -> None:
    queue = ReadyQueue[str]()
    for partition in range(3):
        for n in range(2):
            push(queue, f"low {partition}{n}", partition=partition, priority=1, due_ms=n)
    assert queue.take(1) == ["low 00"]
    push(queue, "high", partition=2, priority=2)
    assert queue.take(3) == ["high", "low 10", "low 20"]
    assert queue.take(3) == ["low 01", "low 11", "low 21"]


def test_a_discarded_item_leaves_and_may_come_back() -> None:
    queue = ReadyQueue[str]()
    for n in range(4):
        push(queue, f"{n}", partition=n % 2, due_ms=n)
    assert queue.discard("0")
    assert not queue.discard("0")
    assert not queue.discard("stranger")
    assert len(queue) == 3
    assert queue.oldest_due_ms() == 1
    push(queue, "0", partition=0, due_ms=0)
    assert queue.discard("2")
    push(queue, "2", partition=1, due_ms=2)
    assert queue.take(9) == ["0", "1", "2", "3"]
    assert not queue.discard("1")


def test_a_stale_entry_does_not_use_up_its_partitions_turn() -> None:
    queue = ReadyQueue[str]()
    push(queue, "cancelled", partition=0, due_ms=1)
    push(queue, "a", partition=0, due_ms=2)
    push(queue, "b", partition=1, due_ms=2)
    assert queue.discard("cancelled")
    assert queue.take(2) == ["a", "b"]


def test_the_oldest_due_time_is_that_of_the_whole_queue() -> None:
    queue = ReadyQueue[str]()
    push(queue, "a", partition=3, priority=9, due_ms=50)
    push(queue, "b", partition=1, priority=0, due_ms=-7)
    push(queue, "c", partition=1, priority=0, due_ms=20)
    assert queue.oldest_due_ms() == -7
    assert queue.discard("b")
    assert queue.oldest_due_ms() == 20
    assert queue.take(1) == ["a"]
    assert queue.take(1) == ["c"]
    assert queue.oldest_due_ms() is None


def test_timr_09_many_items_of_one_instant_leave_in_sequence() -> None:
    queue = ReadyQueue[int]()
    for n in range(20_000):
        queue.push(n, partition=3, priority=5, due_ms=1, sequence=n)
    taken: list[int] = []
    while queue:
        taken += queue.take(700)
    assert taken == list(range(20_000))


def test_push_and_discard_traffic_does_not_grow_memory(
    bytes_grown_by: Callable[[Callable[[int], None]], int],
) -> None:
    queue = ReadyQueue[int]()
    for n in range(50):
        queue.push(-n - 1, partition=n % 16, priority=n % 10, due_ms=n, sequence=n)

    def traffic(rounds: int) -> None:
        for n in range(rounds):
            queue.push(n, partition=n % 16, priority=n % 10, due_ms=1000 + n, sequence=n)
            assert queue.discard(n)

    assert bytes_grown_by(traffic) < 50_000
    assert len(queue) == 50


def test_order_holds_after_most_items_were_discarded() -> None:
    random = Random(8)
    queue = ReadyQueue[int]()
    for n in random.sample(range(1000), 1000):
        queue.push(n, partition=2, priority=5, due_ms=n, sequence=0)
    kept = set(range(1000))
    for n in random.sample(range(1000), 700):
        assert queue.discard(n)
        kept.remove(n)
    assert queue.oldest_due_ms() == min(kept)
    assert queue.take(1000) == sorted(kept)


def test_a_push_asserts_its_arguments() -> None:
    queue = ReadyQueue[str](partitions=4)
    push(queue, "a", partition=3, priority=PRIORITIES - 1)
    with pytest.raises(AssertionError):
        push(queue, "a")
    for partition in (-1, 4):
        with pytest.raises(AssertionError):
            push(queue, "b", partition=partition)
    for priority in (-1, 10):
        with pytest.raises(AssertionError):
            push(queue, "b", priority=priority)
    with pytest.raises(AssertionError):
        ReadyQueue[str](partitions=0)
    with pytest.raises(AssertionError):
        partition_of("a", 0)
    with pytest.raises(AssertionError):
        partition_of_numbers(1, 2, 0)
    with pytest.raises(AssertionError):
        queue.take(-1)
    assert queue.take(9) == ["a"]


@pytest.mark.parametrize(
    ("key", "partition"),
    [("", 0), ("tenant-1", 15), ("Zürich", 14), (b"tenant-1", 15), (8392704, 6), ("\ud800", 8)],
)
def test_the_partition_of_a_key_never_changes(key: str | bytes | int, partition: int) -> None:
    """Written down, because a release that hashed otherwise would reorder running queues."""
    assert partition_of(key, 16) == partition
    assert 0 <= partition_of(key, 7) < 7


@pytest.mark.parametrize(
    ("numbers", "partition"),
    [((0, 0), 0), ((1, 0), 9), ((8392704, 1764480000123), 5)],
)
def test_the_partition_of_numbers_never_changes(numbers: tuple[int, int], partition: int) -> None:
    assert partition_of_numbers(*numbers, 16) == partition
    assert 0 <= partition_of_numbers(*numbers, 7) < 7
    assert partition_of_numbers(*numbers, 1) == 0


def test_the_hash_is_the_standard_crc_32_with_its_check_value() -> None:
    assert partition_of("any", 1) == 0
    assert partition_of("123456789", 1 << 32) == 0xCBF43926
    assert partition_of(123456789, 1 << 32) == 0xCBF43926


def test_the_partition_of_a_key_does_not_depend_on_the_process() -> None:
    script = "from timeball.wheel import partition_of; print(partition_of('tenant-77', 1 << 30))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{partition_of('tenant-77', 1 << 30)}\n"}


@pytest.mark.parametrize("keys", [range(10_000), [f"{n * 4096}-{n}" for n in range(10_000)]])
def test_keys_spread_over_the_partitions(keys: list[int] | list[str]) -> None:
    counts = Counter(partition_of(key, 16) for key in keys)
    assert len(counts) == 16
    assert max(counts.values()) < 2 * min(counts.values())


@pytest.mark.parametrize("step", [1, 4096])
@pytest.mark.parametrize("due_step", [0, 1, 1000])
def test_numbers_spread_over_the_partitions(step: int, due_step: int) -> None:
    start, due_ms = 8_392_704, 1_764_480_000_000
    counts = Counter(
        partition_of_numbers(start + n * step, due_ms + n * due_step, 16) for n in range(10_000)
    )
    assert len(counts) == 16
    assert max(counts.values()) < 2 * min(counts.values())

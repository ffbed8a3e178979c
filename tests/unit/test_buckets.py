"""Time buckets, rule by rule."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from timeball.wheel import TimeBuckets


def test_items_are_grouped_by_due_second() -> None:
    buckets = TimeBuckets[str]()
    for due_ms, item in [(1000, "a"), (1999, "b"), (2000, "c"), (999, "d"), (-1, "e")]:
        buckets.add(due_ms, item)
    assert list(buckets.upto(10_000)) == [
        (-1000, ["e"]),
        (0, ["d"]),
        (1000, ["a", "b"]),
        (2000, ["c"]),
    ]
    assert len(buckets) == 5
    assert buckets.first() == -1000


def test_the_width_is_an_argument() -> None:
    buckets = TimeBuckets[str](width_ms=250)
    assert buckets.width_ms == 250
    assert [buckets.start_of(due_ms) for due_ms in (0, 249, 250, 2**63)] == [0, 0, 250, 2**63 - 58]
    buckets.add(999, "a")
    assert list(buckets.upto(750)) == [(750, ["a"])]
    with pytest.raises(AssertionError):
        TimeBuckets[str](width_ms=0)


def test_timr_01_far_and_near_stand_in_order() -> None:
    buckets = TimeBuckets[int](width_ms=1)
    dues = [2**63, 2**31, 0, 2**53, -5, 10**30]
    for due_ms in dues:
        buckets.add(due_ms, due_ms)
    assert [start for start, _ in buckets.upto(10**31)] == sorted(dues)


def test_an_empty_bucket_vanishes() -> None:
    buckets = TimeBuckets[str]()
    for due_ms, item in [(1, "a"), (1500, "b"), (1600, "c"), (1700, "d")]:
        buckets.add(due_ms, item)
    assert buckets.discard(2, "a")
    assert buckets.first() == 1000
    assert [buckets.discard(1000, item) for item in "bcd"] == [True] * 3
    assert buckets.first() is None
    assert list(buckets.upto(2**64)) == []
    assert len(buckets) == 0


def test_discard_tells_whether_the_item_was_in_the_bucket_of_that_due_time() -> None:
    buckets = TimeBuckets[str]()
    buckets.add(1500, "a")
    assert not buckets.discard(1500, "b")
    assert not buckets.discard(2500, "a")
    buckets.add(1500, "b")
    assert not buckets.discard(1500, "c")
    assert not buckets.discard(2500, "b")
    assert len(buckets) == 2
    assert buckets.discard(1500, "a")
    assert not buckets.discard(1500, "a")
    assert buckets.discard(1500, "b")
    assert not buckets.discard(1500, "b")
    assert len(buckets) == 0


def test_adding_twice_changes_nothing() -> None:
    buckets = TimeBuckets[str]()
    for item in ("a", "a", "b", "a", "b"):
        buckets.add(5, item)
    assert list(buckets.upto(0)) == [(0, ["a", "b"])]
    assert len(buckets) == 2
    buckets.discard(5, "a")
    assert list(buckets.upto(0)) == [(0, ["b"])]


def test_upto_reads_starts_up_to_and_with_the_end() -> None:
    buckets = TimeBuckets[int]()
    for n in range(5):
        buckets.add(n * 1000 + 500, n)
    assert [start for start, _ in buckets.upto(2000)] == [0, 1000, 2000]
    assert [start for start, _ in buckets.upto(2999)] == [0, 1000, 2000]
    assert [start for start, _ in buckets.upto(3000, from_ms=1000)] == [1000, 2000, 3000]
    assert [start for start, _ in buckets.upto(3000, from_ms=1001)] == [2000, 3000]
    assert list(buckets.upto(-1)) == []
    assert len(buckets) == 5


def test_reading_is_safe_while_buckets_change() -> None:
    buckets = TimeBuckets[str]()
    for n in range(6):
        buckets.add(n * 1000, f"{n}")
    seen = []
    for start_ms, items in buckets.upto(9000):
        seen.append((start_ms, items))
        if start_ms == 1000:
            buckets.discard(1000, "1")
            buckets.discard(2000, "2")
            buckets.add(0, "in the past")
            buckets.add(3000, "3, second")
            buckets.add(6000, "seen next time")
            items.append("the copy is the caller's")
    assert seen == [
        (0, ["0"]),
        (1000, ["1", "the copy is the caller's"]),
        (3000, ["3", "3, second"]),
        (4000, ["4"]),
        (5000, ["5"]),
    ]
    assert [start for start, _ in buckets.upto(9000)] == [0, 3000, 4000, 5000, 6000]
    assert buckets.items(1000) == []
    assert buckets.items(3000) == ["3", "3, second"]
    assert buckets.items(4000) == ["4"]


def test_the_buckets_are_fixed_when_upto_is_called_not_at_the_first_step() -> None:
    buckets = TimeBuckets[str]()
    buckets.add(0, "a")
    reading = buckets.upto(5000)
    buckets.add(1000, "b")
    assert list(reading) == [(0, ["a"])]


def test_a_bucket_that_comes_back_is_read_once() -> None:
    buckets = TimeBuckets[str]()
    buckets.add(9000, "keep")
    for _ in range(3):
        buckets.add(1000, "a")
        buckets.discard(1000, "a")
    buckets.add(1000, "a")
    assert list(buckets.upto(9000)) == [(1000, ["a"]), (9000, ["keep"])]


def test_a_bucket_that_vanished_far_ahead_is_not_read() -> None:
    buckets = TimeBuckets[str]()
    for due_ms in (0, 5_000_000, 9_000_000):
        buckets.add(due_ms, "a")
    assert buckets.discard(5_000_000, "a")
    assert list(buckets.upto(9_000_000)) == [(0, ["a"]), (9_000_000, ["a"])]
    assert buckets.items(5_000_000) == []


def test_add_and_discard_traffic_does_not_grow_memory(
    bytes_grown_by: Callable[[Callable[[int], None]], int],
) -> None:
    random = Random(5)
    buckets = TimeBuckets[int]()
    for n in range(100):
        buckets.add(n * 700, n)

    def traffic(rounds: int) -> None:
        for _ in range(rounds):
            due_ms = random.randrange(2**50)
            buckets.add(due_ms, 1)
            assert buckets.discard(due_ms, 1)

    assert bytes_grown_by(traffic) < 50_000
    assert len(buckets) == 100


@pytest.mark.parametrize(
    ("spacing_ms", "bytes_an_item"), [(1, 75), (10, 75), (200, 90), (1000, 140)]
)
def test_buckets_are_compact(spacing_ms: int, bytes_an_item: int) -> None:
    pairs = [(n * spacing_ms, n) for n in range(20_000)]
    tracemalloc.start()
    try:
        buckets = TimeBuckets[int]()
        for due_ms, item in pairs:
            buckets.add(due_ms, item)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < bytes_an_item * len(pairs)

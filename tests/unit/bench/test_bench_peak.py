"""The search for the highest rate: it rises, halves the gap, and says why a rate is not held."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.bench.load.peak import GROWTH, RESOLUTION, Search, find_peak, shortfalls


class Cluster:
    """Holds every rate up to its own."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.tried: list[float] = []

    async def holds(self, rate: float) -> bool:
        self.tried.append(rate)
        return rate <= self.capacity


@pytest.mark.parametrize("capacity", [10_000, 10_400, 14_999, 15_000, 41_234, 59_000])
async def test_the_peak_is_found_to_within_the_resolution(capacity: float) -> None:
    cluster = Cluster(capacity)
    found = await find_peak(cluster.holds, 10_000, 60_000)
    assert found.held is not None
    assert found.not_held is not None
    assert found.held <= capacity < found.not_held
    assert found.not_held - found.held <= found.held * RESOLUTION + 1
    assert len(cluster.tried) == len(set(cluster.tried)) <= 10
    rising = [rate for rate in cluster.tried if rate <= capacity]
    assert rising == sorted(rising)


async def test_rates_rise_by_steps_and_not_beyond_the_highest() -> None:
    cluster = Cluster(1e9)
    assert await find_peak(cluster.holds, 10_000, 25_000) == Search(25_000, None)
    assert cluster.tried == [10_000, 10_000 * GROWTH, 10_000 * GROWTH**2, 25_000]


async def test_a_lowest_rate_that_is_not_held_ends_the_search() -> None:
    cluster = Cluster(9_999)
    assert await find_peak(cluster.holds, 10_000, 60_000) == Search(None, 10_000)
    assert cluster.tried == [10_000]


def figures(**changes: Any) -> dict[str, Any]:
    nothing = ("refused", "unanswered", "lost", "early", "double_accepted", "duplicates")
    fields = {"rate_requested": 1_000.0, "rate_achieved": 995.0, "fire_lag_ms": {"p99": 25.0}}
    return {**fields, **dict.fromkeys(nothing, 0), **changes}


def test_a_rate_is_held_at_its_bounds() -> None:
    assert shortfalls(figures(), 25.0) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rate_achieved": 994.0}, "99.4% of the rate achieved"),
        ({"fire_lag_ms": {"p99": 25.1}}, "p99 25.1 ms"),
        ({"refused": 1}, "1 refused"),
        ({"unanswered": 2}, "2 unanswered"),
        ({"lost": 1}, "1 lost"),
        ({"early": 1}, "1 early"),
        ({"double_accepted": 1}, "1 double_accepted"),
        ({"duplicates": 1}, "1 duplicates"),
    ],
)
def test_why_a_rate_is_not_held_is_told(changes: dict[str, Any], why: str) -> None:
    assert shortfalls(figures(**changes), 25.0) == [why]

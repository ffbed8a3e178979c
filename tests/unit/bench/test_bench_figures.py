"""Percentiles, buckets and gaps: what is told is never better than what was seen."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
from hdrh.histogram import HdrHistogram

from timeball.bench.load.driver import Kill
from timeball.bench.load.figures import failover_figures, snapshot_figures, stall_figures
from timeball.bench.load.percentiles import DIGITS, LONGEST_US, Lags
from timeball.bench.load.probes import (
    LONGEST_STALL,
    LOOP_STALL,
    SNAPSHOT_S,
    SNAPSHOTS,
    Buckets,
    read_usage,
)
from timeball.bench.load.render import failures
from timeball.bench.load.surroundings import measure_speed, read_processors
from timeball.bench.load.wheels import compare_wheels


def test_percentiles_of_a_known_distribution() -> None:
    lags = Lags(range(1, 100_001))
    told = lags.summary("p50", "p90", "p99", "p999", "max")
    for name, exact in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p999", 99.9)):
        assert exact <= told[name] <= exact * (1 + 10**-DIGITS)
    assert told["max"] == 100.0
    assert lags.count == 100_000


def test_no_percentile_exceeds_the_maximum() -> None:
    lags = Lags([4_432_001])
    assert lags.at_ms(99) == lags.max_ms == 4_432.001


def test_no_values_are_all_zero() -> None:
    assert Lags().summary("p50", "max") == {"p50": 0.0, "max": 0.0}


def test_the_encoded_histogram_is_one_that_others_can_merge() -> None:
    merged = HdrHistogram(1, LONGEST_US, DIGITS)
    for lags in (Lags([1_000] * 3), Lags([2_000])):
        merged.decode_and_add(lags.encoded())
    assert merged.get_total_count() == 4


def scraped(*counts: float) -> dict[str, float]:
    return dict(
        zip(("lag_bucket{0.001}", "lag_bucket{0.003}", "lag_bucket{+Inf}"), counts, strict=True)
    )


def test_buckets_count_what_came_between_two_scrapes() -> None:
    found = Buckets("lag", scraped(100, 100, 100), scraped(150, 200, 200))
    assert found.count == 100
    assert found.bound_ms(50) == 1.0
    assert found.bound_ms(51) == 3.0
    assert found.bound_ms(100) == 3.0
    assert found.interpolated_ms(50) == 1.0
    assert found.interpolated_ms(75) == 2.0


def test_beyond_the_last_bucket_nothing_is_claimed() -> None:
    found = Buckets("lag", {}, scraped(0, 0, 5))
    assert found.bound_ms(50) is None
    assert found.interpolated_ms(50) is None


def test_no_observations_are_no_figure() -> None:
    assert Buckets("lag", scraped(7, 7, 7), scraped(7, 7, 7)).bound_ms(99) is None
    assert Buckets("other", scraped(1, 1, 1), scraped(7, 7, 7)).interpolated_ms(99) is None


def test_the_highest_is_told_exactly_when_the_hint_may_be_it() -> None:
    found = Buckets("lag", scraped(0, 0, 0), scraped(5, 9, 9))
    assert found.highest_ms(2.5) == 2.5
    assert found.highest_ms(3.0) == 3.0
    assert found.highest_ms(1.0) == 3.0  # it lies in a lower bucket: not of this window
    assert found.highest_ms(60.0) == 3.0  # from before the window
    assert Buckets("lag", {}, scraped(5, 5, 5)).highest_ms(0.25) == 0.25
    assert Buckets("lag", {}, scraped(0, 0, 5)).highest_ms(70.0) == 70.0
    assert Buckets("lag", scraped(5, 5, 5), scraped(5, 5, 5)).highest_ms(0.25) is None


def test_what_is_above_a_bound_is_counted() -> None:
    found = Buckets("lag", scraped(1, 2, 3), scraped(11, 14, 20))
    assert (found.above(0.001), found.above(0.003)) == (7, 5)


class Seen(msgspec.Struct):
    """What the figures of nodes are made of."""

    leader: str | None
    metrics_before: dict[str, dict[str, float]]
    metrics_after: dict[str, dict[str, float]]
    kills: list[Kill] = []


def stalls(low: int, high: int, longest_s: float, snapshots: int = 0) -> dict[str, float]:
    return {
        f"{LOOP_STALL}_bucket{{0.01}}": low,
        f"{LOOP_STALL}_bucket{{0.02}}": low,
        f"{LOOP_STALL}_bucket{{0.05}}": low + high,
        f"{LOOP_STALL}_bucket{{+Inf}}": low + high,
        LONGEST_STALL: longest_s,
        SNAPSHOTS: snapshots,
        SNAPSHOT_S: 1.5,
    }


def test_stalls_are_those_of_the_window_and_of_a_node() -> None:
    before = {name: stalls(100, 3, 0.045) for name in ("a", "b", "c")}
    after = {
        "a": stalls(200, 3, 0.045),
        "b": stalls(200, 5, 0.03),
        "c": stalls(200, 4, 0.045),
    }
    told = stall_figures(Seen("a", before, after))
    assert told["by_node"] == {"a": 10.0, "b": 30.0, "c": 45.0}
    assert (told["max"], told["node"], told["role"], told["over_20_ms"]) == (
        *(45.0, "c", "follower"),
        3,
    )
    told = stall_figures(Seen("c", before, after))
    assert told["role"] == "leader"
    told = stall_figures(Seen(None, before, after))
    assert (told["node"], told["role"]) == ("c", None)


def test_a_node_that_was_restarted_or_does_not_answer_tells_no_stalls() -> None:
    before = {"a": stalls(9, 9, 0.045), "b": stalls(5, 0, 0.0), "c": {}}
    after = {"a": stalls(1, 0, 0.0), "b": stalls(9, 0, 0.004), "c": stalls(1, 1, 0.05)}
    told = stall_figures(Seen("b", before, after, [Kill("a", 0, 1.0)]))
    assert told["by_node"] == {"b": 4.0}
    nothing = stall_figures(Seen(None, {"a": {}}, {"a": {}}))
    assert (nothing["max"], nothing["over_20_ms"]) == (None, None)


def test_snapshots_of_all_nodes_are_counted() -> None:
    before = {name: stalls(0, 0, 0.0, snapshots=2) for name in ("a", "b", "c")}
    before["a"][SNAPSHOT_S] = 9.0  # it took one before
    after = {
        **before,
        "b": stalls(0, 0, 0.0, snapshots=3),
        "c": {**stalls(0, 0, 0.0, snapshots=3), SNAPSHOT_S: 2.5},
    }
    assert snapshot_figures(Seen("a", before, after)) == {"taken": 2, "seconds_max": 2.5}
    assert snapshot_figures(Seen("a", before, before)) == {"taken": 0, "seconds_max": None}


def test_the_gap_is_the_longest_silence_around_a_kill() -> None:
    arrivals = array("Q", [0, 10_000, 20_000, 720_000, 730_000, 20_000_000, 40_000_000])
    told = failover_figures([Kill("a", 15_000, 1.5)], arrivals)
    assert told["gaps_ms"] == [19_270.0]  # it began within ten seconds of the kill
    told = failover_figures([Kill("a", 15_000, 1.5)], arrivals[:5])
    assert told["gap_ms"] == {"min": 700.0, "median": 700.0, "max": 700.0}
    assert failover_figures([Kill("a", 50_000_000, 1.5)], arrivals)["gap_ms"] is None


def test_what_must_never_be_fails_a_bench() -> None:
    clean = {"early": 0, "lost": 0, "double_accepted": 0, "duplicates": 0, "redelivered": 3}
    assert failures(clean) == []
    for name in ("early", "lost", "double_accepted", "duplicates"):
        assert failures({**clean, name: 1}) == [f"{name} = 1"]


def test_a_process_that_is_gone_has_no_usage() -> None:
    assert read_usage(2**22 + 1) is None


def test_wheel_heap_and_list_fire_the_same_in_the_same_order() -> None:
    told = compare_wheels([1_000, 3_000], lambda _text, _share: None)
    assert told["agree"] is True
    assert set(told["ns_per_operation"]["3000"]) == {"wheel", "heapq", "sorted_list"}


def test_the_speed_of_the_machine_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    speed = measure_speed(tmp_path)
    assert speed.loop_ns > 0
    assert 0 < speed.fdatasync_ms["p50"] <= speed.fdatasync_ms["max"]
    assert not list(tmp_path.iterdir())
    assert read_processors().busy_s > 0

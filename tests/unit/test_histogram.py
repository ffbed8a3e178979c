"""The batch histogram shows what prometheus_client's own would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from timeball.cluster.histogram import BatchHistogram

BOUNDS_S = (0.001, 0.005, 0.25, 2.0)


@given(st.lists(st.lists(st.integers(0, 5_000), max_size=20), max_size=5), st.integers(1, 4))
def test_it_counts_like_the_reference(batches: list[list[int]], repeat: int):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = BatchHistogram("lag_seconds", "A lag", BOUNDS_S)
    ours.register(histogram)
    reference = Histogram("lag_seconds", "A lag", buckets=BOUNDS_S, registry=theirs)
    for batch in batches:
        histogram.observe_all_ms(batch)
        for value_ms in batch:
            reference.observe(value_ms / 1000)
    histogram.observe_ms(5, repeat)
    for _ in range(repeat):
        reference.observe(0.005)
    assert samples(ours) == samples(theirs)


def samples(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    kept = [line.rsplit(" ", 1) for line in lines if line and "_created" not in line]
    return {name: round(float(value), 6) for name, value in kept if not name.startswith("#")}

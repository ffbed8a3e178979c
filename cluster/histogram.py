"""A histogram that takes observations by the batch, for distributions of the hot path.

prometheus_client's own takes several microseconds an observation, much of what a whole
execution may cost; here one costs a binary search. Rendered as the same metric family.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class BatchHistogram(Collector):
    """Counts milliseconds into buckets that are shown in seconds.

    A value equal to a bound belongs to that bound's bucket ("less or equal").
    """

    def __init__(self, name: str, text: str, bounds_s: Sequence[float]) -> None:
        """`bounds_s` must rise; the bucket beyond the last is added."""
        assert list(bounds_s) == sorted(bounds_s)
        self._name = name
        self._text = text
        self._labels = [str(float(bound)) for bound in bounds_s] + ["+Inf"]
        self._bounds_ms = [bound * 1000 for bound in bounds_s]
        self._counts = [0] * len(self._labels)
        self._sum_ms = 0.0

    def observe_ms(self, value_ms: float, count: int = 1) -> None:
        """Count one value, or `count` that are equal."""
        self._counts[bisect_left(self._bounds_ms, value_ms)] += count
        self._sum_ms += value_ms * count

    def observe_all_ms(self, values_ms: Sequence[float]) -> None:
        """Count several values, most of which are equal to others."""
        if len(values_ms) == 1:
            self.observe_ms(values_ms[0])
            return
        for value_ms, count in Counter(values_ms).items():
            self.observe_ms(value_ms, count)

    def describe(self) -> Iterable[Metric]:
        """The family without samples."""
        return [HistogramMetricFamily(self._name, self._text)]

    def collect(self) -> Iterator[Metric]:
        """The family with its cumulative buckets."""
        cumulative = 0
        buckets: list[tuple[str, float]] = []
        for label, count in zip(self._labels, self._counts, strict=True):
            cumulative += count
            buckets.append((label, float(cumulative)))
        yield HistogramMetricFamily(
            self._name, self._text, buckets=buckets, sum_value=self._sum_ms / 1000
        )

"""Percentiles of lags, from HDR histograms with three significant digits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hdrh.histogram import HdrHistogram

LONGEST_US = 3_600_000_000
DIGITS = 3


class Lags:
    """A histogram of microseconds, read in milliseconds."""

    def __init__(self, values_us: Iterable[int] = ()) -> None:
        self._histogram = HdrHistogram(1, LONGEST_US, DIGITS)
        for value, count in Counter(values_us).items():
            self._histogram.record_value(min(value, LONGEST_US), count)

    @property
    def count(self) -> int:
        """Values recorded."""
        return int(self._histogram.get_total_count())

    def at_ms(self, percentile: float) -> float:
        """The value at a percentile (0-100); 0 when nothing was recorded."""
        value = int(self._histogram.get_value_at_percentile(percentile))
        return round(min(value, int(self._histogram.max_value)) / 1000, 3)

    @property
    def max_ms(self) -> float:
        """The highest value recorded, exactly."""
        return round(int(self._histogram.max_value) / 1000, 3)

    def summary(self, *names: str) -> dict[str, float]:
        """`p50`, `p999`, `max`… by name: the digits behind `p` are a percentile's."""
        return {
            name: self.max_ms if name == "max" else self.at_ms(_percentile(name)) for name in names
        }

    def encoded(self) -> str:
        """In the common compressed form (base64), which HDR tools of all languages read."""
        return str(self._histogram.encode().decode())


def _percentile(name: str) -> float:
    digits = name.removeprefix("p")
    return float(digits[:2] + "." + (digits[2:] or "0"))

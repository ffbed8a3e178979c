"""What is read from outside of the processes: CPU time, memory, and the nodes' own metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

TICKS_S = os.sysconf("SC_CLK_TCK")
COMMIT = "timeball_commit_seconds"
WHEEL_LAG = "timeball_wheel_lag_seconds"
LOOP_STALL = "timeball_loop_stall_seconds"
LONGEST_STALL = "timeball_loop_stall_seconds_max"
"""Of the last minute, exactly, whether it lies between the scrapes or not."""
SNAPSHOTS = "timeball_raft_snapshots_taken_total"
SNAPSHOT_BYTES = "timeball_raft_snapshot_bytes"
SNAPSHOT_S = "timeball_raft_snapshot_seconds"

Samples = Mapping[str, float]
"""A node's metrics: by name, with the bucket's bound (`name_bucket{0.001}`) where there is one."""


class Usage(msgspec.Struct, frozen=True):
    """A process so far: user and system CPU time, and resident memory now."""

    cpu_s: float
    rss_mb: float


def read_usage(pid: int) -> Usage | None:
    """Read it from /proc; None when the process is gone. Its CPU time counts in steps of 10 ms."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    rss_kb = next(
        (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0
    )
    return Usage(ticks / TICKS_S, round(rss_kb / 1024, 1))


async def scrape(session: aiohttp.ClientSession, url: str) -> Samples:
    """Read a node's metrics; empty when it doesn't answer."""
    try:
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
    except (aiohttp.ClientError, TimeoutError):
        return {}
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            bound = sample.labels.get("le")
            name = sample.name if bound is None else f"{sample.name}{{{bound}}}"
            samples[name] = samples.get(name, 0.0) + sample.value
    return samples


class Buckets:
    """What a node's histogram counted between two scrapes; as exact as its buckets are."""

    def __init__(self, name: str, before: Samples, after: Samples) -> None:
        prefix = f"{name}_bucket{{"
        counts = {
            float(key[len(prefix) : -1]): value - before.get(key, 0.0)
            for key, value in after.items()
            if key.startswith(prefix)
        }
        self._cumulated = sorted(counts.items())

    @property
    def count(self) -> float:
        """Observations between the scrapes."""
        return self._cumulated[-1][1] if self._cumulated else 0.0

    def bound_ms(self, percentile: float) -> float | None:
        """The upper bound of the bucket that holds the percentile: it was at most this."""
        place = self._place(percentile)
        return None if place is None else _finite_ms(self._cumulated[place][0])

    def highest_ms(self, hint_ms: float) -> float | None:
        """The highest observation: `hint_ms` if that may be it, else its bucket's upper bound."""
        place = self._place(100)
        if place is None:
            return None
        lower_s = self._cumulated[place - 1][0] if place else 0.0
        if lower_s * 1000 < hint_ms <= self._cumulated[place][0] * 1000:
            return round(hint_ms, 2)
        return _finite_ms(self._cumulated[place][0])

    def above(self, bound_s: float) -> int:
        """How many observations were higher than one of the buckets' bounds."""
        return round(self.count - dict(self._cumulated).get(bound_s, 0.0))

    def interpolated_ms(self, percentile: float) -> float | None:
        """The percentile as if the observations lay evenly within their bucket."""
        place = self._place(percentile)
        if place is None:
            return None
        bound, cumulated = self._cumulated[place]
        lower, below = self._cumulated[place - 1] if place else (0.0, 0.0)
        if not math.isfinite(bound):
            return None
        share = (self.count * percentile / 100 - below) / (cumulated - below)
        return round((lower + (bound - lower) * max(0.0, share)) * 1000, 2)

    def _place(self, percentile: float) -> int | None:
        if not self.count:
            return None
        wanted = self.count * percentile / 100
        return next(
            place
            for place, (_, cumulated) in enumerate(self._cumulated)
            if cumulated >= wanted and cumulated > 0
        )


def _finite_ms(bound_s: float) -> float | None:
    return round(bound_s * 1000, 2) if math.isfinite(bound_s) else None

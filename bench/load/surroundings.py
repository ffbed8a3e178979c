"""The machine that a figure is of: how fast it is at the moment, and who else uses it.

A figure of a shared or throttled machine says little by itself. Each bench therefore
measures a fixed piece of Python work and a disk sync before it begins, and tells how much of
the processors the run itself used and how much others did.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from timeball.bench.demo import machine, versions
from timeball.bench.load.probes import TICKS_S

LOOPS = 200_000
ROUNDS = 3
SYNCS = 50
SYNC_BYTES = 8 * 1024


class Speed(msgspec.Struct, frozen=True):
    """How fast the machine was before the run."""

    loop_ns: float
    """One turn of an empty-handed Python loop, the best of a few rounds."""
    fdatasync_ms: dict[str, float]
    """Of 8 KiB appended, in the folder that the nodes write to."""
    load: float


class Processors(msgspec.Struct, frozen=True):
    """All processors of the machine so far, in seconds."""

    busy_s: float
    stolen_s: float
    """Taken by other guests of the same host."""


def measure_speed(folder: Path) -> Speed:
    """Take a quarter of a second to see how fast processor and disk are."""
    load = round(os.getloadavg()[0], 2)
    loop_ns = min(_timed(_loop) for _ in range(ROUNDS)) / LOOPS
    path = folder / "sync-speed"
    with path.open("wb", buffering=0) as file:

        def sync() -> None:
            file.write(b"\0" * SYNC_BYTES)
            os.fdatasync(file.fileno())

        syncs = sorted(_timed(sync) / 1e6 for _ in range(SYNCS))
    path.unlink()
    at = {"p50": syncs[SYNCS // 2], "max": syncs[-1]}
    return Speed(round(loop_ns, 1), {name: round(value, 2) for name, value in at.items()}, load)


def read_processors() -> Processors:
    """Read them from /proc."""
    fields = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(f) for f in fields[:8])
    return Processors((user + nice + system + irq + softirq) / TICKS_S, stolen / TICKS_S)


def describe(speed: Speed) -> dict[str, Any]:
    """Versions and machine, for the report."""
    return {
        "versions": {**versions(), "hdrhistogram": version("hdrhistogram")},
        "machine": {
            **machine(),
            "loop_ns": speed.loop_ns,
            "fdatasync_ms": speed.fdatasync_ms,
            "load_before": speed.load,
            "load_after": round(os.getloadavg()[0], 2),
        },
    }


def _loop() -> None:
    total = 0
    for turn in range(LOOPS):
        total += turn


def _timed(work: Callable[[], None]) -> int:
    began = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - began

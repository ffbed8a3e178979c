"""The picture of a run: lag over time, and the percentile curve."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from timeball.bench.load.driver import Observed
from timeball.bench.load.figures import Figures, fire_lags, measured
from timeball.bench.load.records import NEVER

BIN_MS = 100
CURVE = (0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999)
_BLUE, _ORANGE, _RED, _GREY = "#2f6fde", "#e58a00", "#c8372d", "#777777"


class PlotUnavailable(Exception):
    """The library that draws is not installed."""


def plot(figures: Figures, observed: Observed, path: Path) -> None:
    """Draw into a PNG file; raises PlotUnavailable without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotUnavailable("pip install 'timeball[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (over_time, curve) = pyplot.subplots(
        1, 2, figsize=(13, 4.6), width_ratios=(3, 2), layout="constrained"
    )
    _draw_over_time(over_time, observed)
    _draw_curve(curve, observed)
    lag, machine = figures["fire_lag_ms"], figures["machine"]
    figure.suptitle(
        f"Timeball, {figures['rate_achieved']:,.0f} executions/s for {figures['seconds']:g} s"
        f" · p50 {lag['p50']:.1f}, p99 {lag['p99']:.1f}, p99.9 {lag['p999']:.1f} ms"
        f" · three nodes, fsync, workers and load on {machine['cores']} cores",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_over_time(axes: Any, observed: Observed) -> None:
    bins: dict[int, list[int]] = defaultdict(list)
    plan, start_ms = observed.plan, observed.start_ms
    first_ms = observed.window_ms[0]
    for number in measured(observed):
        lag_us = observed.merged.lags_us[number]
        if lag_us != NEVER:
            bins[(plan.due_ms(start_ms, number) - first_ms) // BIN_MS].append(lag_us)
    times = [place * BIN_MS / 1000 for place in sorted(bins)]
    ordered = [sorted(bins[place]) for place in sorted(bins)]
    for share, label, colour in ((1.0, "max", _RED), (0.99, "p99", _ORANGE), (0.5, "p50", _BLUE)):
        values = [lags[min(len(lags) - 1, int(len(lags) * share))] / 1000 for lags in ordered]
        axes.plot(times, values, label=label, color=colour, linewidth=1.1)
    for kill in observed.kills:
        axes.axvline((kill.at_us / 1000 - first_ms) / 1000, color=_GREY, linestyle=":", linewidth=1)
    axes.set_title(f"Fire lag over time, by {BIN_MS} ms of due time", fontsize=10)
    axes.set_xlabel("seconds into the measured window")
    axes.set_ylabel("milliseconds after the due instant")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.legend(loc="upper right", fontsize=8)
    axes.grid(alpha=0.3)


def _draw_curve(axes: Any, observed: Observed) -> None:
    lags = fire_lags(observed)
    shown = [p for p in CURVE if lags.count * (100 - p) >= 100]
    axes.plot(
        [1 / (1 - p / 100) for p in shown], [lags.at_ms(p) for p in shown], color=_BLUE, marker="."
    )
    axes.set_xscale("log")
    ticks = [p for p in (0, 90, 99, 99.9, 99.99, 99.999) if p in shown]
    axes.set_xticks([1 / (1 - p / 100) for p in ticks], [f"{p:g} %" for p in ticks])
    axes.minorticks_off()
    axes.set_title(f"Percentiles of {lags.count:,} executions", fontsize=10)
    axes.set_xlabel("percentile")
    axes.set_ylabel("fire lag, milliseconds")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)

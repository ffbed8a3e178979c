"""The picture of a run: lag over time, and the percentile curve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timeball.bench.load.driver import Observed
from timeball.bench.load.figures import Figures, fire_lags, measured
from timeball.bench.load.records import NEVER

SPANS_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000)
MOST_POINTS = 150
"""Points of a line over time; what a point stands for grows with the run."""
CURVE = (0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999)
MARKED = (50, 90, 99, 99.9, 99.99, 99.999)
ROUND_MS = [step * 10**power for power in range(-1, 6) for step in (1, 2, 5)]
_BLUE, _ORANGE, _RED, _GREY, _INK = "#2563c9", "#e08600", "#b3372e", "#8a8f98", "#22262e"


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
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure, (over_time, curve) = pyplot.subplots(
        *(1, 2),
        figsize=(13, 5.2),
        width_ratios=(3, 2),
        layout=ConstrainedLayoutEngine(rect=(0.005, 0.01, 0.99, 0.86), wspace=0.04),
    )
    _draw_over_time(over_time, observed)
    _draw_curve(curve, observed)
    for axes in (over_time, curve):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_GREY)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(axis="y", alpha=0.35, linewidth=0.7)
        axes.set_axisbelow(True)
    lag, machine, settings = figures["fire_lag_ms"], figures["machine"], figures["settings"]
    pending = settings.get("pending")
    figure.text(
        *(0.012, 0.945),
        f"{figures['rate_achieved']:,.0f} executions a second, submitted, fired, claimed and"
        f" completed: fire lag p50 {lag['p50']:.1f} ms · p99 {lag['p99']:.1f} ms"
        f" · p99.9 {lag['p999']:.1f} ms",
        fontsize=13,
        fontweight="bold",
        color=_INK,
    )
    figure.text(
        *(0.012, 0.9),
        f"Timeball, three nodes with fsync, workers and load generators on {machine['cores']}"
        f" cores; {figures['seconds']:g} s, open loop"
        + (f", beside {pending:,} pending jobs" if pending else "")
        + f"; lost {figures['lost']}, early {figures['early']},"
        f" completed twice {figures['double_accepted']}",
        fontsize=10,
        color=_GREY,
    )
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _draw_over_time(axes: Any, observed: Observed) -> None:
    times, ordered, span_ms = _by_due_time(observed)
    worst = [lags[-1] / 1000 for lags in ordered]
    p99 = [_at(lags, 0.99) for lags in ordered]
    p50 = [_at(lags, 0.5) for lags in ordered]
    axes.fill_between(times, p50, p99, color=_ORANGE, alpha=0.14, linewidth=0)
    axes.scatter(times, worst, label="highest", color=_RED, s=7, alpha=0.75, linewidths=0)
    axes.plot(times, p99, label="p99", color=_ORANGE, linewidth=1.3)
    axes.plot(times, p50, label="p50", color=_BLUE, linewidth=1.6)
    for place, kill in enumerate(observed.kills):
        at_s = (kill.at_us / 1000 - observed.window_ms[0]) / 1000
        label = "leader killed" if not place else None
        axes.axvline(at_s, color=_INK, linestyle=":", linewidth=1, label=label)
    axes.set_title(
        f"Fire lag over time, ms, by {span_ms / 1000:g} s of due time", fontsize=10, loc="left"
    )
    axes.set_xlabel("seconds into the measured window", fontsize=9)
    axes.set_xlim(0, (observed.window_ms[1] - observed.window_ms[0]) / 1000)
    if worst:
        _scale(axes, min(p50), max(worst))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, fontsize=9, frameon=False)


def _by_due_time(observed: Observed) -> tuple[list[float], list[list[int]], int]:
    """Middles of the spans of due time in seconds, the lags of each in order, and their length."""
    plan, (first_ms, last_ms) = observed.plan, observed.window_ms
    length_ms = last_ms - first_ms
    span_ms = next((s for s in SPANS_MS if length_ms <= s * MOST_POINTS), SPANS_MS[-1])
    chosen = measured(observed)
    times: list[float] = []
    ordered: list[list[int]] = []
    for begin_ms in range(0, length_ms, span_ms):
        first = chosen.start + int(begin_ms * plan.rate / 1000)
        last = min(chosen.stop, chosen.start + int((begin_ms + span_ms) * plan.rate / 1000))
        lags = sorted(lag for lag in observed.merged.lags_us[first:last] if lag != NEVER)
        if lags:
            times.append((begin_ms + span_ms / 2) / 1000)
            ordered.append(lags)
    return times, ordered, span_ms


def _at(ordered: Sequence[int], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000


def _scale(axes: Any, lowest_ms: float, highest_ms: float) -> None:
    """A logarithmic axis of milliseconds from one round value to another."""
    below = max((tick for tick in ROUND_MS if tick <= lowest_ms), default=ROUND_MS[0])
    above = min((tick for tick in ROUND_MS if tick > highest_ms), default=ROUND_MS[-1])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_yticks([tick for tick in ROUND_MS if below <= tick <= above])
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(below, above)


def _draw_curve(axes: Any, observed: Observed) -> None:
    lags = fire_lags(observed)
    shown = [p for p in CURVE if lags.count * (100 - p) >= 100]
    places = [_place(p) for p in shown]
    values = [lags.at_ms(p) for p in shown]
    axes.fill_between(places, values, color=_BLUE, alpha=0.08, linewidth=0)
    axes.plot(places, values, color=_BLUE, linewidth=1.8)
    marked = [p for p in MARKED if p in shown]
    axes.plot([_place(p) for p in marked], [lags.at_ms(p) for p in marked], "o", color=_BLUE, ms=4)
    for p in marked:
        axes.annotate(
            f"{lags.at_ms(p):.1f}",
            (_place(p), lags.at_ms(p)),
            xytext=(-4, 6),
            textcoords="offset points",
            ha="right",
            fontsize=9,
            color=_INK,
        )
    axes.set_xscale("log")
    axes.set_xticks([_place(p) for p in marked], [f"{p:g} %" for p in marked])
    axes.minorticks_off()
    axes.set_title(f"Percentiles of {lags.count:,} executions, ms", fontsize=10, loc="left")
    axes.set_xlabel("share of executions that were no later", fontsize=9)
    axes.set_xlim(1, 1.3 * max(places, default=2.0))
    axes.set_ylim(0, 1.12 * max(values, default=1.0))


def _place(percentile: float) -> float:
    """Where a percentile stands on the axis: each nine takes as much room as the one before."""
    return 1 / (1 - percentile / 100)

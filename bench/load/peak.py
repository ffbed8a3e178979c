"""The highest steady rate: which rates are tried, and when one counts as held.

Each rate is tried on a cluster of its own (unless one is given): what an overloaded probe
leaves behind, a backlog, leases that run out and the journal of all that, would disturb the
next. Rates rise by steps until one is not held; then the gap is halved.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from timeball.bench.load.figures import MUST_NOT_BE, Figures

GROWTH = 1.5
"""From one rising rate to the next."""
RESOLUTION = 0.03
"""Halving ends when the gap is this share of the rate."""
LEAST_ACHIEVED = 0.995

NONE_OF = ("refused", "unanswered", *MUST_NOT_BE)
"""A rate at which any of these happened is not held."""


class Search(msgspec.Struct, frozen=True):
    """What was found: the highest rate that was held, and the lowest one that was not."""

    held: float | None
    not_held: float | None


async def find_peak(
    holds: Callable[[float], Awaitable[bool]], lowest: float, highest: float
) -> Search:
    """Find the highest rate between the two that holds, if `lowest` does."""
    held: float | None = None
    rate = lowest
    while await holds(rate):
        held = rate
        if rate >= highest:
            return Search(held, None)
        rate = min(highest, round(rate * GROWTH))
    failed = rate
    while held is not None and failed - held > max(1.0, held * RESOLUTION):
        rate = round((held + failed) / 2)
        if await holds(rate):
            held = rate
        else:
            failed = rate
    return Search(held, failed)


def shortfalls(figures: Figures, p99_ms: float) -> list[str]:
    """Why a rate was not held, one line each; empty: it was."""
    found = [f"{figures[name]} {name}" for name in NONE_OF if figures[name]]
    share = figures["rate_achieved"] / figures["rate_requested"]
    if share < LEAST_ACHIEVED:
        found.append(f"{share:.1%} of the rate achieved")
    if figures["fire_lag_ms"]["p99"] > p99_ms:
        found.append(f"p99 {figures['fire_lag_ms']['p99']:.1f} ms")
    return found


def probe_figures(figures: Figures, why_not: Sequence[str]) -> Figures:
    """What is told of each rate that was tried."""
    lag = figures["fire_lag_ms"]
    return {
        "rate": figures["rate_requested"],
        "achieved": figures["rate_achieved"],
        **{f"{name}_ms": lag[name] for name in ("p50", "p99", "p999", "max")},
        "refused": figures["refused"],
        "lost": figures["lost"],
        "cores": figures["cores_used"]["all"],
        "held": not why_not,
        "why_not": why_not,
    }

"""Gaps around faults, as workers saw them.

The gap of a fault is the time from its instant to the first delivery of something that fell due
after it: the first fire by whoever leads then. Where no majority was left it is counted from the
healing (the start of the nodes' processes included). The silence is the longest time without any
delivery until the fault was overcome.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

import msgspec

from timeball.bench.chaos.plan import KINDS
from timeball.bench.evidence import Run
from timeball.bench.history import Delivered, FaultHealed, FaultOvercome, FaultStruck

AHEAD_US = 25_000
"""What is due within this may have been granted before the fault, ahead of its time."""


class Gap(msgspec.Struct, frozen=True):
    """What one fault cost, in milliseconds; None: nothing came any more."""

    kind: str
    number: int
    first_fire_ms: float | None
    silence_ms: float | None


def gaps(run: Run) -> list[Gap]:
    """Measure every fault that was overcome, in order."""
    received = sorted(run.of(Delivered), key=lambda delivery: delivery.at_us)
    instants = [delivery.at_us for delivery in received]
    healed = {event.number: event.at_us for event in run.of(FaultHealed)}
    overcome = {event.number: event.at_us for event in run.of(FaultOvercome)}
    found = []
    for struck in run.of(FaultStruck):
        if struck.number not in overcome:
            continue
        since = struck.at_us
        if KINDS[struck.kind].gap_from == "healing":
            since = healed[struck.number]
        first = next(
            (
                delivery.at_us - since
                for delivery in received[bisect_right(instants, since) :]
                if delivery.due_ms * 1000 >= since + AHEAD_US
            ),
            None,
        )
        inside = instants[
            bisect_right(instants, struck.at_us) : bisect_right(instants, overcome[struck.number])
            + 1
        ]
        silence = max(
            (later - earlier for earlier, later in itertools.pairwise([struck.at_us, *inside])),
            default=None,
        )
        found.append(Gap(struck.kind, struck.number, _ms(first), _ms(silence)))
    return found


def _ms(span_us: int | None) -> float | None:
    return None if span_us is None else round(span_us / 1000, 1)

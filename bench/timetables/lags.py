"""How late occurrences were, by the fault that stood when they fell due."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from timeball.bench.evidence import Run
from timeball.bench.history import Delivered, FaultOvercome, FaultStruck
from timeball.bench.timetables.strikes import BEFORE_MS

QUIET = "none"
"""Stands for no fault in what follows."""


def lags_ms(run: Run) -> dict[str, list[float]]:
    """From each nominal time to the first delivery of its occurrence, by kind of fault.

    Where two faults stand, it is the later one's. What fell due just before a fault counts as its:
    the grant was under way.
    """
    struck = run.of(FaultStruck)
    starts = [event.at_us - BEFORE_MS * 1000 for event in struck]
    ends = {event.number: event.at_us for event in run.of(FaultOvercome)}
    first: dict[str, Delivered] = {}
    for delivery in run.of(Delivered):
        first.setdefault(delivery.execution_id, delivery)
    found: dict[str, list[float]] = defaultdict(list)
    for delivery in first.values():
        nominal_us = delivery.nominal_ms * 1000
        place = bisect_right(starts, nominal_us) - 1
        kind = QUIET
        if place >= 0 and nominal_us <= ends.get(struck[place].number, nominal_us):
            kind = struck[place].kind
        found[kind].append((delivery.at_us - nominal_us) / 1000)
    return dict(found)

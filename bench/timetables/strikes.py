"""When faults strike the leader of timetables: at the very instants that these name.

A strike falls on each mark of the wall clock that is a multiple of the spacing, by turns 100 ms
before it and upon it, so that over the minutes both meet the full minute: :59.9 when the next
occurrence is about to be due, :00.0 when it is being granted and its timetable moves on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from timeball.bench.chaos.plan import Fault

BEFORE_MS = 100
SPACING_S = 15
PAUSE_S = 20.0
"""Longer than the spacing: the next leader is struck while this one stands still, and for the rest
of the pause no majority is left."""
KILLED_S = (0.5, 3.0)
CUT_S = (4.0, 8.0)
CUTS = ("isolate_leader", "vanish_leader")
"""Both directions to its peers; clients reach it, or nobody does."""


def strikes(
    seed: int, from_ms: int, until_ms: int, *, spacing_s: int, pause_s: float
) -> Iterator[tuple[int, Fault]]:
    """Yield faults with their instants (epoch ms), from the first mark after `from_ms` on.

    The three kinds take turns; which begins, and how long each stands, is drawn from the seed.
    """
    rng = random.Random(seed)
    turns = ["kill_leader", "freeze_leader", "cut"]
    rng.shuffle(turns)
    spacing_ms = spacing_s * 1000
    first_ms = (from_ms + BEFORE_MS) // spacing_ms * spacing_ms + spacing_ms
    for place, mark_ms in enumerate(range(first_ms, until_ms, spacing_ms)):
        kind = turns[place % len(turns)]
        if kind == "cut":
            kind = CUTS[place // len(turns) % len(CUTS)]
        minute, into_ms = divmod(mark_ms, 60_000)
        before = (minute + into_ms // spacing_ms) % 2 == 0
        yield (
            mark_ms - BEFORE_MS if before else mark_ms,
            Fault(
                number=place + 1,
                kind=kind,
                hold_s=_hold_s(kind, rng, spacing_s, pause_s),
                rest_s=0.0,
                pick=rng.randrange(60),
            ),
        )


def _hold_s(kind: str, rng: random.Random, spacing_s: int, pause_s: float) -> float:
    if kind == "freeze_leader":
        return pause_s
    shortest_s, longest_s = KILLED_S if kind == "kill_leader" else CUT_S
    return round(min(rng.uniform(shortest_s, longest_s), spacing_s / 2), 2)

"""Shortens a schedule of faults that breaks something (delta debugging, Zeller and Hildebrandt).

The faults of a plan can be left out one by one, since each carries its own end. What is left when
no single one can be left out any more is where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[list[T]], bool], most_tries: int = 400) -> list[T]:
    """A part of `items`, in their order, that still fails and of which no single one can go.

    `fails` must hold for all of them. With `most_tries` runs spent, the best part so far.
    """
    kept = list(items)
    pieces = 2
    tries = 0
    while kept and tries < most_tries:
        size = max(1, -(-len(kept) // pieces))
        for start in range(0, len(kept), size):
            tries += 1
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept = rest
                pieces = max(pieces - 1, 2)
                break
            if tries >= most_tries:
                break
        else:
            if size == 1:
                break
            pieces = min(pieces * 2, len(kept))
    return kept

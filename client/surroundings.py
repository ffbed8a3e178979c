"""What surrounds a client and its workers: the wall clock, and what else a test replaces."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

GATHER_MS = 2
"""How long reports are gathered, unless told otherwise."""


def wall_ms() -> int:
    """Read the wall clock, in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class Surroundings(NamedTuple):
    """What a worker takes from its client unless told otherwise; a test hands in its own.

    `elsewhere` is entered around each handler that runs in a thread or a process, since the
    event loop does not see that work.
    """

    wall_clock_ms: Callable[[], int] = wall_ms
    gather_ms: int = GATHER_MS
    elsewhere: Callable[[], AbstractContextManager[None]] = nullcontext

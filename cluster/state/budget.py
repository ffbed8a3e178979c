"""The cluster's budget of runs of the past, so that a long outage brings no storm.

A bucket that refills by log-time, kept as one number: the instant at which it will be whole
again (the generic cell rate algorithm of ITU-T I.371, in its virtual scheduling form).
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.store import Store

BURST_S: Final = 10
"""The whole bucket holds the runs of so many seconds."""


def room(store: Store, now_ms: int) -> int:
    """How many runs of the past there is room for; a rate of 0 allows any number."""
    rate = store.settings.catch_up_per_s
    if not rate:
        return store.settings.max_pending
    owed_us = max(store.catch_up_us - now_ms * 1_000, 0)
    return max(BURST_S * rate - -(-owed_us * rate // 1_000_000), 0)


def spend(store: Store, runs: int) -> None:
    """Take that many out."""
    rate = store.settings.catch_up_per_s
    if rate and runs:
        now_us = store.log_time_ms * 1_000
        store.catch_up_us = max(store.catch_up_us, now_us) + -(-runs * 1_000_000 // rate)

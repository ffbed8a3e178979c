"""How long a failed execution waits before it may be claimed again."""

from __future__ import annotations

import hashlib

from timeball.cluster.state.limits import MAX_DURATION_MS
from timeball.cluster.state.operations import RetryPolicy

_MOST_STEPS = 1_000
"""Growth stops after so many attempts, which bounds the size of the integers."""


def backoff_ms(policy: RetryPolicy, job: int, nominal_ms: int, attempt: int) -> int:
    """The delay in milliseconds after the attempt of number `attempt` (from 1) failed.

    Grows exponentially from `initial_ms` to `max_ms`; of that, `jitter_pct` per cent are
    replaced by a share that depends on execution and attempt alone, so that every node
    computes the same instant and executions that failed together return spread out.
    """
    steps = min(max(attempt, 1) - 1, _MOST_STEPS)
    growth: int = policy.multiplier_pct**steps
    scale: int = 100**steps
    grown = policy.initial_ms * growth // scale
    delay = min(grown, policy.max_ms, MAX_DURATION_MS)
    span = delay * policy.jitter_pct // 100
    if span == 0:
        return delay
    name = b"%d-%d-%d" % (job, nominal_ms, attempt)
    share = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    return delay - span + share % (span + 1)

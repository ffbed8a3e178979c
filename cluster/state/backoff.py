"""How long a failed execution waits before it may be claimed again."""

from __future__ import annotations

import hashlib
from typing import Final

from timeball.cluster.state.limits import MAX_DURATION_MS
from timeball.cluster.state.operations import EXPONENTIAL, FIXED, LINEAR, RetryPolicy

_MOST_STEPS: Final = 1_000
"""Growth stops after so many attempts, which bounds the size of the integers."""


def backoff_ms(policy: RetryPolicy, job: int, nominal_ms: int, attempt: int) -> int:
    """The delay in milliseconds after the attempt of number `attempt` (from 1) failed.

    At most `max_ms`. Of that, `jitter_pct` per cent are replaced by a share that depends on
    execution and attempt alone, so that every node computes the same instant and executions
    that failed together return spread out: with 100 over the whole window from now on.
    """
    delay = min(_plain_ms(policy, max(attempt, 1)), policy.max_ms, MAX_DURATION_MS)
    span = delay * policy.jitter_pct // 100
    if span == 0:
        return delay
    name = b"%d-%d-%d" % (job, nominal_ms, attempt)
    share = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    return delay - span + share % (span + 1)


def _plain_ms(policy: RetryPolicy, attempt: int) -> int:
    """The delay before it is capped: the last of a list stands for all that follow."""
    backoff = policy.backoff
    if backoff == EXPONENTIAL:
        steps = min(attempt - 1, _MOST_STEPS)
        growth: int = policy.multiplier_pct**steps
        scale: int = 100**steps
        return policy.initial_ms * growth // scale
    if backoff == LINEAR:
        return policy.initial_ms * attempt
    if backoff == FIXED:
        return policy.initial_ms
    delays_ms = policy.delays_ms
    return delays_ms[min(attempt, len(delays_ms)) - 1]

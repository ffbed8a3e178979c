"""Why an execution is dead: stable words, by which dead letters are also chosen.

The table is what the protocol documents and what its filters accept.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.records import Outcome

NON_RETRYABLE: Final = "non_retryable"
NON_RETRYABLE_ERROR: Final = "non_retryable_error"
ATTEMPTS_EXHAUSTED: Final = "attempts_exhausted"
"""A family: what follows after a colon tells how the last attempt ended."""

EXHAUSTED_BY: Final[dict[Outcome, str]] = {
    outcome: f"{ATTEMPTS_EXHAUSTED}:{outcome.name.lower()}"
    for outcome in (Outcome.FAILED, Outcome.LEASE_EXPIRED, Outcome.TIMED_OUT)
}

REASONS: Final[dict[str, str]] = {
    EXHAUSTED_BY[Outcome.FAILED]: "no attempts left; its worker reported the last as failed",
    EXHAUSTED_BY[Outcome.LEASE_EXPIRED]: "no attempts left; the lease of the last ran out",
    EXHAUSTED_BY[Outcome.TIMED_OUT]: "no attempts left; the last exceeded `timeout_ms`",
    NON_RETRYABLE: "its worker said that trying again is no use",
    NON_RETRYABLE_ERROR: "the retry policy names the type of its error as not worth a retry",
}
"""Each reason, and what it says."""


def is_of(reason: str, asked: str) -> bool:
    """Whether a reason is the one asked for, or of the family asked for."""
    return reason == asked or reason.startswith(f"{asked}:")

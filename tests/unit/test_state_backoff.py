"""The delay before a retry."""

from __future__ import annotations

import pytest

from timeball.cluster.state.backoff import backoff_ms
from timeball.cluster.state.limits import MAX_DURATION_MS
from timeball.cluster.state.operations import BACKOFFS, RetryPolicy


def delays(policy, attempts, job=7, nominal_ms=1_000):
    return [backoff_ms(policy, job, nominal_ms, attempt) for attempt in attempts]


def test_grows_exponentially_up_to_the_cap():
    policy = RetryPolicy(initial_ms=100, multiplier_pct=300, max_ms=5_000, jitter_pct=0)
    assert delays(policy, range(1, 7)) == [100, 300, 900, 2_700, 5_000, 5_000]


def test_growth_is_exact_where_each_step_is_less_than_a_millisecond():
    policy = RetryPolicy(initial_ms=1, multiplier_pct=150, max_ms=1_000, jitter_pct=0)
    assert delays(policy, range(1, 8)) == [1, 1, 2, 3, 5, 7, 11]


def test_attempt_ten_thousand_does_not_overflow():
    policy = RetryPolicy(initial_ms=1_000, multiplier_pct=10_000, max_ms=3_600_000, jitter_pct=0)
    assert delays(policy, [10_000, 2**31]) == [3_600_000, 3_600_000]
    boundless = RetryPolicy(initial_ms=1_000, multiplier_pct=200, max_ms=2**60, jitter_pct=0)
    assert delays(boundless, [10_000]) == [MAX_DURATION_MS]


def test_jitter_stays_within_its_share_and_below_the_cap():
    policy = RetryPolicy(initial_ms=1_000, multiplier_pct=100, max_ms=1_000, jitter_pct=20)
    found = [backoff_ms(policy, job, 1_000, 1) for job in range(500)]
    assert min(found) >= 800
    assert max(found) <= 1_000


def test_full_jitter_spreads_what_failed_together():
    policy = RetryPolicy(initial_ms=600_000, multiplier_pct=100, max_ms=600_000, jitter_pct=100)
    per_minute = [0] * 11
    for job in range(10_000):
        per_minute[backoff_ms(policy, job * 4096, 1_764_480_000_000, 1) // 60_000] += 1
    assert max(per_minute) < 3 * 1_000
    assert min(per_minute[:10]) > 500


def test_jitter_depends_on_execution_and_attempt_alone():
    policy = RetryPolicy(jitter_pct=100, initial_ms=10_000, multiplier_pct=100, max_ms=10_000)
    first = backoff_ms(policy, 1, 2, 3)
    assert first == backoff_ms(policy, 1, 2, 3)
    others = {backoff_ms(policy, *place) for place in ((2, 2, 3), (1, 3, 3), (1, 2, 4))}
    assert first not in others


def test_linear_fixed_and_listed_delays_are_capped_too():
    linear = RetryPolicy(initial_ms=300, max_ms=1_000, jitter_pct=0, backoff="linear")
    assert delays(linear, range(1, 6)) == [300, 600, 900, 1_000, 1_000]
    fixed = RetryPolicy(initial_ms=300, max_ms=1_000, jitter_pct=0, backoff="fixed")
    assert delays(fixed, [1, 2, 10_000]) == [300, 300, 300]
    listed = RetryPolicy(max_ms=1_000, jitter_pct=0, backoff="list", delays_ms=(0, 5_000, 70))
    assert delays(listed, range(1, 6)) == [0, 1_000, 70, 70, 70], "the last stands for the rest"


@pytest.mark.parametrize("backoff", BACKOFFS)
@pytest.mark.parametrize("attempt", [0, 1, 10_000, 2**31, 2**62])
def test_no_policy_overflows_at_any_attempt(backoff, attempt):
    delays_ms = (MAX_DURATION_MS,) if backoff == "list" else ()
    policy = RetryPolicy(*(2**31 - 1, MAX_DURATION_MS, 10_000, 2**62, 100, backoff, delays_ms))
    assert 0 <= backoff_ms(policy, 2**53, 2**47, attempt) <= MAX_DURATION_MS


@pytest.mark.parametrize("backoff", ["linear", "fixed", "list"])
def test_every_policy_has_jitter(backoff):
    delays_ms = (1_000,) if backoff == "list" else ()
    policy = RetryPolicy(jitter_pct=50, backoff=backoff, delays_ms=delays_ms)
    found = [backoff_ms(policy, job, 1_000, 1) for job in range(500)]
    assert 500 <= min(found) < 520
    assert 980 < max(found) <= 1_000


def test_the_delays_are_part_of_the_replicated_rules():
    """Another result than this on any version or platform would let replicas diverge."""
    policy = RetryPolicy()
    assert delays(policy, range(1, 6), job=8_392_704, nominal_ms=1_764_480_000_123) == PINNED


PINNED = [974, 1_710, 3_758, 6_486, 14_123]

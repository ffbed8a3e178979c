"""The checkers see what they are for: faults put back into production break seeds."""

from __future__ import annotations

import pytest
from sim_faults import plan
from sim_run import simulate
from sim_unsafe import UNSAFE, unsafe

MOST_SEEDS = 25
DISKS = ("power", "blackout", "kill", "slow_disk")
PATHS = ("unordered", "repeating", "lossy", "break", "kill", "isolate", "stop")

SEEN: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "acks-before-sync": (DISKS, {"lost", "applied"}),
    "rewind-and-truncate": (PATHS, {"applied", "lost", "stuck", "failure"}),
    "stale-tokens-count": ((), {"stale_accepted", "lost", "double_accepted"}),
    "early-answers": ((), {"early"}),
    "leases-never-end": (("crash_worker",), {"stuck"}),
    "replica-reads-its-clock": ((), {"digests", "replicas"}),
}
"""What is put back: the kinds of faults that bring it out (none: any), and the rules it breaks."""

BEYOND_RANDOM_SEEDS = {
    "any-log-may-lead",
    "no-barrier",
    "start-without-sync",
    "terms-ignored-on-acks",
    "votes-not-durable",
}
"""Each has a directed schedule in `tests/raft`; random seeds see them rarely or never."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SEEN)
def test_the_checkers_see_what_is_unsafe(name: str):
    kinds, rules = SEEN[name]
    for seed in range(MOST_SEEDS):
        with unsafe(name):
            violations = simulate(plan(seed, kinds)).violations
        broken = {violation.partition(":")[0] for violation in violations}
        if broken & rules:
            return
    pytest.fail(f"{MOST_SEEDS} seeds and nobody has seen {name}")


def test_every_fault_put_back_is_accounted_for():
    assert set(SEEN) | BEYOND_RANDOM_SEEDS == set(UNSAFE)
    assert not set(SEEN) & BEYOND_RANDOM_SEEDS

"""The checkers see what they are for: faults put back into production break seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_faults import plan
from sim_run import simulate
from sim_unsafe import UNSAFE, unsafe

RAFT_TESTS = Path(__file__).parents[1] / "raft"
MOST_SEEDS = 25
DISKS = ("power", "blackout", "kill", "slow_disk")
PATHS = ("unordered", "repeating", "lossy", "break", "kill", "isolate", "stop")

FIRST_SEED = {"rewind-and-truncate": 39}
"""Where to begin, for what one seed in twenty brings out: there is no need to try the others."""

SEEN: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "acks-before-sync": (DISKS, {"lost", "applied"}),
    "rewind-and-truncate": (PATHS, {"applied", "lost", "stuck", "failure"}),
    "stale-tokens-count": ((), {"stale_accepted", "lost", "double_accepted"}),
    "early-answers": ((), {"early"}),
    "leases-never-end": (("crash_worker",), {"stuck"}),
    "followers-differ": ((), {"digests", "replicas"}),
}
"""What is put back: the kinds of faults that bring it out (none: any), and the rules it breaks."""

BEYOND_RANDOM_SEEDS = {
    "any-log-may-lead": "test_f8_a_shorter_log_gets_no_vote",
    "no-barrier": "test_o1_raft13_a_leader_is_announced_only_behind_its_own_barrier",
    "start-without-sync": "test_what_a_start_has_read_does_not_go_with_the_power",
    "terms-ignored-on-acks": "test_f6_an_acknowledgement_of_an_older_term_does_not_count",
    "votes-not-durable": "test_f1_raft05_a_vote_survives_a_loss_of_power",
}
"""Random seeds see these rarely or never: the directed test of each in `tests/raft`."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SEEN)
def test_the_checkers_see_what_is_unsafe(name: str):
    kinds, rules = SEEN[name]
    first = FIRST_SEED.get(name, 0)
    for seed in range(first, first + MOST_SEEDS):
        with unsafe(name):
            violations = simulate(plan(seed, kinds)).violations
        broken = {violation.partition(":")[0] for violation in violations}
        if broken & rules:
            return
    pytest.fail(f"{MOST_SEEDS} seeds and nobody has seen {name}")


def test_every_fault_put_back_is_accounted_for():
    assert {*SEEN, *BEYOND_RANDOM_SEEDS} == set(UNSAFE)
    assert not SEEN.keys() & BEYOND_RANDOM_SEEDS.keys()
    directed = "".join(path.read_text("utf-8") for path in RAFT_TESTS.glob("test_*.py"))
    for name in BEYOND_RANDOM_SEEDS.values():
        assert f"def {name}(" in directed

"""The schedule of faults: repeated by its seed, and complete."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from timeball.bench.chaos.plan import KINDS, REST_S, schedule

DECK = sum(kind.weight for kind in KINDS.values())


def test_a_seed_repeats_its_schedule_and_another_has_another() -> None:
    first, again, other = (list(itertools.islice(schedule(s), 3 * DECK)) for s in (7, 7, 8))
    assert first == again
    assert first != other


def test_each_deck_holds_every_kind_as_often_as_it_weighs() -> None:
    faults = schedule(7)
    for _ in range(3):
        deck = Counter(fault.kind for fault in itertools.islice(faults, DECK))
        assert deck == {name: kind.weight for name, kind in KINDS.items()}


def test_faults_stand_and_rest_within_their_bounds() -> None:
    for fault in itertools.islice(schedule(7), 10 * DECK):
        kind = KINDS[fault.kind]
        assert kind.shortest_s <= fault.hold_s <= kind.longest_s
        assert REST_S[0] <= fault.rest_s <= REST_S[1]


def test_only_the_kinds_that_are_asked_for_strike() -> None:
    faults = itertools.islice(schedule(7, ["power_off", "cut_link"]), 10)
    assert {fault.kind for fault in faults} == {"power_off", "cut_link"}
    with pytest.raises(KeyError):
        next(schedule(7, ["power_off", "meteor"]))


def test_pauses_and_freezes_lie_on_either_side_of_an_election() -> None:
    """Shorter than the shortest election timeout, longer than the fallback and a lease."""
    from timeball.bench.chaos import load
    from timeball.cluster.raft.settings import RaftSettings

    settings = RaftSettings()
    longest = max(settings.leader_fallback_s, settings.election_max_s, load.LEASE_MS / 1000)
    for whom in ("leader", "follower"):
        assert KINDS[f"pause_{whom}"].longest_s < settings.election_min_s
        assert KINDS[f"freeze_{whom}"].shortest_s > longest

"""Which faults strike, and in which order: drawn from a seed, so that a seed repeats them.

The kinds come in decks: each deck holds every kind as often as its weight says, shuffled, so
that a long run meets all of them and a short one no kind twice. A seed fixes the order, the
lengths and the choice among candidates; who leads when a fault strikes is up to the cluster.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

From = Literal["fault", "healing"]


class Kind(msgspec.Struct, frozen=True):
    """One kind of fault."""

    what: str
    """What is done, for who reads the report."""
    shortest_s: float
    longest_s: float
    """How long it stands; drawn between the two."""
    weight: int = 1
    """How many of it a deck holds."""
    gap_from: From = "fault"
    """From when the gap counts: a cluster without a majority can fire only when healed."""
    deposes: bool = False
    """Whether the leader is lost for good, and another must take over in time."""


REST_S = (0.8, 2.0)
"""The quiet between a recovery and the next fault."""

KINDS: dict[str, Kind] = {
    "kill_leader": Kind("SIGKILL to the leader", 0.5, 3.0, weight=2, deposes=True),
    "kill_follower": Kind("SIGKILL to a follower", 0.5, 3.0),
    "kill_two": Kind("SIGKILL to two nodes at once", 0.5, 2.5, gap_from="healing"),
    "power_off": Kind("SIGKILL to all nodes at once", 0.2, 1.0, gap_from="healing"),
    "kill_in_snapshot": Kind("SIGKILL to a node that writes a snapshot", 0.5, 2.0),
    "pause_leader": Kind("SIGSTOP to the leader, shorter than an election", 0.1, 0.35),
    "freeze_leader": Kind(
        "SIGSTOP to the leader, longer than leases and the fallback", 3.0, 5.0, deposes=True
    ),
    "pause_follower": Kind("SIGSTOP to a follower, shorter than an election", 0.1, 0.35),
    "freeze_follower": Kind("SIGSTOP to a follower, longer than leases", 3.0, 5.0),
    "isolate_leader": Kind(
        "leader cut from its peers, in silence; clients reach it", 2.0, 5.0, deposes=True
    ),
    "refuse_leader": Kind("leader's links to its peers broken and refused", 2.0, 4.0, deposes=True),
    "vanish_leader": Kind("leader cut from peers and clients, in silence", 2.0, 5.0, deposes=True),
    "isolate_follower": Kind("follower cut from its peers, in silence", 2.0, 5.0),
    "mute_leader": Kind("nothing that the leader sends reaches its peers", 2.0, 4.0, deposes=True),
    "deaf_leader": Kind("nothing that its peers send reaches the leader", 2.0, 4.0),
    "one_way_link": Kind("one way between two nodes is cut", 2.0, 4.0),
    "cut_link": Kind("leader and one follower cut from each other", 2.0, 4.0),
    "cut_clients": Kind("clients cut from the leader, which keeps its peers", 2.0, 4.0),
    "slow_links": Kind("20 to 60 ms on every way between nodes", 2.0, 4.0),
    "lossy_links": Kind("packets lost and links breaking between nodes", 2.0, 4.0),
    "stop_leader": Kind("SIGTERM to the leader", 0.5, 2.0),
    "rolling_restart": Kind("SIGTERM and restart, one node after another", 0.0, 0.0),
}


class Fault(msgspec.Struct, frozen=True):
    """One fault to come: `pick` chooses among candidates, `hold_s` is how long it stands."""

    number: int
    """Counts the faults of a run from 1."""
    kind: str
    hold_s: float
    rest_s: float
    pick: int


def schedule(seed: int, kinds: Collection[str] = KINDS.keys()) -> Iterator[Fault]:
    """Yield faults without end; raises KeyError for a kind that does not exist."""
    rng = random.Random(seed)
    deck = [name for name in KINDS if name in kinds for _ in range(KINDS[name].weight)]
    for name in kinds:
        KINDS[name]
    numbers = itertools.count(1)
    while deck:
        rng.shuffle(deck)
        for name in deck:
            kind = KINDS[name]
            yield Fault(
                number=next(numbers),
                kind=name,
                hold_s=round(rng.uniform(kind.shortest_s, kind.longest_s), 2),
                rest_s=round(rng.uniform(*REST_S), 2),
                pick=rng.randrange(60),
            )

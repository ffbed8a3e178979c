"""What goes wrong in a run: a schedule made from the seed before the run begins.

A schedule is plain data. Each fault carries its own end, so any of them can be left out: that is
how a failing run is shortened. Which kinds a run draws from, and how often, differs from seed to
seed ("swarm testing"): a run of nothing but slow disks sees what a run of everything hides.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec

LEADER = "leader"
"""Stands for the node that leads when the fault comes."""

NODE_FAULTS = {
    "kill": 3,  # the process; its host lives on
    "power": 3,  # the host, and what its disk had not synced
    "terminate": 1,  # in good order
    "stop": 2,  # SIGSTOP, and on again
    "slow_disk": 2,
    "full_disk": 1,
    "failing_disk": 1,
    "clock": 2,  # the wall clock steps
    "isolate": 3,  # from all other nodes
    "deafen": 2,  # hears nobody, is heard
    "snapshot": 1,
}
PAIR_FAULTS = {"cut": 2, "break": 1, "slow": 1, "flap": 1}
WIDE_FAULTS = {
    "blackout": 1,  # power goes everywhere
    "kill_all": 1,
    "partition": 2,
    "lossy": 2,
    "unordered": 2,
    "repeating": 1,
    "crash_worker": 2,
    "cut_client": 1,
}
VICTIM_FAULTS = {"rot": 2, "wipe": 1}
"""Destroy what a node vouched for: they hit one node only, which a majority survives."""

MOST_SKEW_MS = 8_000
"""No clock is further from the true time."""

TIMEKEEPERS = (0, 2, 4)
"""How many recurring jobs are kept all through a run."""

QUIET_MS = 2_000
"""Nothing goes wrong before."""


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that goes wrong at an instant of the run, for a time."""

    at_ms: int
    kind: str
    who: str = ""
    other: str = ""
    for_ms: int = 0
    amount: float = 0.0


class Plan(msgspec.Struct, frozen=True):
    """All that a run is made of, apart from the code: the seed gives it, a file may keep it."""

    seed: int
    nodes: int
    workers: int
    submitters: int
    length_ms: int
    snapshot_entries: int
    skews_ms: list[int]
    faults: list[Fault]
    timekeepers: int = 0


EVERYTHING = NODE_FAULTS | PAIR_FAULTS | WIDE_FAULTS | VICTIM_FAULTS


def plan(seed: int, only: Collection[str] = ()) -> Plan:
    """The run of a seed; with `only`, of these kinds of faults."""
    rng = random.Random(f"{seed}/plan")
    nodes = 5 if rng.random() < 0.15 else 3
    length_ms = rng.choice([20_000, 40_000, 60_000])
    names = node_names(nodes)
    kinds = _kinds(rng)
    if only:
        kinds = {kind: weight for kind, weight in EVERYTHING.items() if kind in only}
    gap_ms = rng.choice([300, 700, 1_500, 4_000])
    victim = rng.choice(names)
    faults: list[Fault] = []
    at_ms = float(QUIET_MS)
    while kinds:
        at_ms += rng.expovariate(1 / gap_ms)
        if at_ms >= length_ms:
            break
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        faults.append(_fault(rng, int(at_ms), kind, names, victim))
    skews = [0] * nodes
    if "clock" in kinds:
        skews = [rng.choice([0, 0, -20, 35, -1_200, 2_500]) for _ in names]
    return Plan(
        seed=seed,
        nodes=nodes,
        workers=rng.randint(1, 3),
        submitters=rng.randint(1, 3),
        length_ms=length_ms,
        snapshot_entries=rng.choice([60, 200, 800]),
        skews_ms=skews,
        faults=faults,
        timekeepers=random.Random(f"{seed}/timekeepers").choice(TIMEKEEPERS),
    )


def node_names(count: int) -> list[str]:
    return [f"n{number + 1}" for number in range(count)]


def _kinds(rng: random.Random) -> dict[str, int]:
    share = rng.choice([0.0, 0.15, 0.3, 0.6, 1.0])
    return {kind: weight for kind, weight in EVERYTHING.items() if rng.random() < share}


def _fault(rng: random.Random, at_ms: int, kind: str, names: list[str], victim: str) -> Fault:
    who, other = rng.sample(names, 2)
    if kind in VICTIM_FAULTS:
        who = victim
    elif rng.random() < 0.5:
        who = LEADER
    if kind not in PAIR_FAULTS:
        other = ""
    for_ms = int(rng.choice([50, 300, 1_000, 2_500, 6_000]) * rng.uniform(0.5, 1.5))
    amount = 0.0
    match kind:
        case "slow_disk":
            amount = rng.choice([0.005, 0.05, 0.4])
        case "clock":
            amount = rng.choice([-6_000, -1_500, -300, -40, 40, 300, 1_500, 6_000])
        case "slow":
            amount = rng.choice([0.01, 0.1, 0.5])
        case "flap":
            amount = rng.choice([0.1, 0.4, 1.0])
        case "lossy" | "unordered" | "repeating":
            amount = rng.choice([0.02, 0.1, 0.3])
        case "partition":
            amount = rng.randint(1, len(names) - 1)
        case "power" | "blackout" | "kill" | "kill_all":
            for_ms = rng.choice([1, 20, 150, 600, for_ms])
    return Fault(at_ms, kind, who, other, for_ms, amount)

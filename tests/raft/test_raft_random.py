"""Random schedules: crashes with loss of power, cuts, loss, repetition and reordering.

What must hold is in the checker; and once all is well everything agrees again.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from raft_checker import Checker
from raft_harness import Cluster, Member, virtual


class Schedule:
    def __init__(self, cluster: Cluster, rng: random.Random, unreliable: bool) -> None:
        self.cluster = cluster
        self.rng = rng
        self.checker = Checker()
        self.proposed = 0
        if unreliable:
            cluster.wire.loss = 0.05
            cluster.wire.repetition = 0.05
            cluster.wire.reordering = 0.1

    async def start(self, name: str) -> None:
        await self.checker.start(self.cluster, name)

    def propose(self) -> None:
        for member in self.cluster.members.values():
            if member.leads:
                for _ in range(self.rng.randint(1, 4)):
                    self.propose_at(member)

    def propose_at(self, member: Member) -> None:
        self.proposed += 1
        entry = b"%d " % self.proposed + bytes(self.rng.randint(0, 200))
        self.checker.propose_at(member, entry)

    async def step(self) -> None:
        cluster, rng = self.cluster, self.rng
        name = rng.choice(sorted(cluster.members))
        action = rng.random()
        if action < 0.08:
            if cluster[name].up:
                cluster.kill(name, power_lost=rng.random() < 0.7)
        elif action < 0.10:
            for each, member in cluster.members.items():
                if member.up:
                    cluster.kill(each, power_lost=True)
        elif action < 0.25:
            for each, member in cluster.members.items():
                if not member.up:
                    await self.start(each)
        elif action < 0.29:
            cluster.isolate(name)
        elif action < 0.33:
            other = rng.choice(sorted(set(cluster.members) - {name}))
            cluster.wire.cut.add((name, other))
        elif action < 0.45:
            cluster.heal()
        elif action < 0.5:
            other = rng.choice(sorted(set(cluster.members) - {name}))
            if cluster[name].up and cluster[other].up:
                cluster.wire.break_link(name, other)
        else:
            self.propose()
        await asyncio.sleep(rng.choice([0, 0.0004, 0.002, 0.02, 0.2, 0.7]))

    async def finish(self) -> None:
        cluster = self.cluster
        cluster.heal()
        cluster.wire.loss = 0.0
        for name, member in cluster.members.items():
            if member.up and member.consensus.halted:
                raise AssertionError(f"{name} halted: {member.consensus.halted}")
            if not member.up:
                await self.start(name)
        await cluster.elected()
        await cluster.settled()
        self.checker.nothing_is_lost(cluster)


@pytest.mark.parametrize("unreliable", [False, True], ids=["reliable", "unreliable"])
@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_nothing_acknowledged_is_lost(seed: int, unreliable: bool):
    rng = random.Random(seed)
    cluster = Cluster(
        seed=seed,
        snapshot_entries=rng.choice([15, 40]),
        trailing_entries=rng.choice([1, 10]),
        segment_bytes=2000,
        snapshot_chunk_bytes=300,
        max_append_entries=8,
        max_entry_bytes=400,
        log_memory_bytes=rng.choice([600, 3000, 10**6]),
    )
    schedule = Schedule(cluster, rng, unreliable)
    for name in "abc":
        await schedule.start(name)
    for _ in range(150):
        await schedule.step()
    await schedule.finish()
    assert schedule.checker.acknowledged

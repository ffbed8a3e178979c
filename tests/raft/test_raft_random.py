"""Random schedules: crashes with loss of power, cuts, loss, repetition and reordering.

The checkers know nothing of the engine: no two nodes apply different entries at one index, no
term has two leaders, nothing acknowledged is lost, and once all is well everything agrees again.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from raft_harness import Cluster, Member, virtual

from timeball.cluster.raft.errors import NotLeader
from timeball.cluster.raft.interface import Observer


class Checker(Observer):
    """Shared by all nodes of a cluster, over all their lives."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, bytes]] = {}
        self.leaders: dict[int, str] = {}
        self.waiting: dict[tuple[str, int, int], bytes] = {}
        self.acknowledged: list[tuple[int, bytes]] = []

    def of(self, name: str) -> Observer:
        checker = self

        class One(Observer):
            def on_applied(self, index, term, entry, applied):
                assert checker.entries.setdefault(index, (term, entry)) == (term, entry)
                if checker.waiting.pop((name, index, term), None) == entry:
                    checker.acknowledged.append((index, entry))

            def on_leadership(self, term):
                if term is not None:
                    assert checker.leaders.setdefault(term, name) == name

        return One()


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
        member = self.cluster[name]
        await self.cluster.start(name, observers=[self.checker.of(name)])
        for index, entry in member.machine.applied:
            assert self.checker.entries[index][1] == entry

    def propose(self) -> None:
        for member in self.cluster.members.values():
            if member.leads:
                for _ in range(self.rng.randint(1, 4)):
                    self.propose_at(member)

    def propose_at(self, member: Member) -> None:
        self.proposed += 1
        entry = b"%d " % self.proposed + bytes(self.rng.randint(0, 200))
        term = member.consensus.term
        try:
            index = member.consensus.append(entry)
        except NotLeader:
            return
        self.checker.waiting[member.name, index, term] = entry

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
        for member in cluster.members.values():
            applied = dict(member.machine.applied)
            assert len(applied) == len(member.machine.applied), "an entry was applied twice"
            for index, entry in self.checker.acknowledged:
                assert applied.get(index) == entry, "an acknowledged entry is lost"


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

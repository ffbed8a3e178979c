"""Directed schedules: what random ones hardly ever meet, step by step (F2, F6, F8, F11c, L1, C1).

Each tells a way in which a cluster without one of its rules loses what it has acknowledged.
"""

from __future__ import annotations

import asyncio
import copy
import random
from pathlib import Path

import pytest
from raft_checker import Checker
from raft_harness import Cluster, Puppet, SimDisk, virtual

from timeball.cluster.raft.messages import (
    Append,
    AppendReply,
    Message,
    PreVoteRequest,
    SnapshotChunk,
    VoteReply,
    VoteRequest,
)


@virtual
async def test_f6_an_acknowledgement_that_two_elections_overtook_commits_nothing():
    """b acknowledges six entries; the answer is late. The entries are overwritten, and the same
    node leads again with others at their places, which b does not hold."""
    puppet = await Puppet.start("abcde")
    first = await puppet.lead()
    for number in range(5):
        puppet.consensus.append(b"overwritten %d" % number)
    late = AppendReply(first, True, 6)
    puppet.follow((first + 1, b"another leader's"))
    await puppet.settle()
    assert puppet.consensus.last_index == 1
    await asyncio.sleep(1)
    term = await puppet.lead()
    last = [puppet.consensus.append(b"mine %d" % number) for number in range(4)][-1]
    await puppet.settle()
    assert (term, last) == (first + 2, 6)
    puppet.say("c", AppendReply(term, True, last))
    puppet.say("b", late)
    await puppet.settle()
    assert puppet.consensus.commit_index == 0, "only this node and c hold the entries"
    puppet.say("b", AppendReply(term, True, last))
    assert puppet.consensus.commit_index == last


@pytest.mark.parametrize("power_lost", [False, True], ids=["killed", "without power"])
@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_raft05_a_voter_killed_right_after_its_vote_makes_no_second_leader(
    seed: int, power_lost: bool
):
    cluster = await Cluster(seed=seed).start()
    await asyncio.sleep(0.01)  # they are connected, and nobody stands yet
    winner, voter, other = cluster.rng.sample("abc", 3)
    votes: list[VoteReply] = []

    def tap(source: str, target: str, message: Message) -> bool:
        """Only the voter hears of the election."""
        if isinstance(message, VoteReply):
            votes.append(message)
        return isinstance(message, VoteRequest) and (source, target) == (winner, voter)

    cluster.wire.tap = tap
    cluster[winner].engine._candidacy._campaign()
    (vote,) = await cluster.wait(lambda: votes)
    assert vote.granted
    cluster.kill(voter, power_lost)
    cluster[winner].endpoint.receiver.on_message(voter, vote)
    assert cluster[winner].consensus.role == "leader"
    await cluster.start(voter)
    await asyncio.sleep(0.01)
    cluster[other].engine._candidacy._campaign()
    assert cluster[other].consensus.term == vote.term, "it asks for a vote of the same term"
    cluster.isolate(winner)
    cluster.wire.tap = None
    cluster[other].engine._candidacy._ask()
    await asyncio.sleep(0.1)
    assert cluster[other].consensus.role == "candidate", "the vote of that term is given"
    cluster.heal()
    await cluster.propose(b"one")


@virtual
async def test_f8_a_node_that_lacks_an_acknowledged_entry_is_not_elected():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader = cluster.leader
    holder, behind = cluster.followers()
    cluster.isolate(behind.name)
    leader.consensus.append(b"acknowledged")
    await cluster.wait(lambda: b"acknowledged" in holder.machine.entries())
    cluster.kill(leader.name)
    cluster.pause(holder.name)
    cluster.heal()
    cluster.wire.sent.clear()
    await cluster.wait(
        lambda: any(
            source == behind.name and isinstance(message, PreVoteRequest)
            for source, _, message in cluster.wire.sent
        )
    )
    await asyncio.sleep(1)  # whom the holder heard, it has forgotten: only the log can speak
    cluster.resume(holder.name)
    assert await cluster.elected() is holder
    await cluster.settled()
    assert behind.machine.entries() == [b"one", b"acknowledged"]


@virtual
async def test_c1_what_nobody_else_holds_is_not_committed_after_a_restart():
    """A node learnt of a commit beyond its log, restarts, leads, and is asked to acknowledge."""
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"), commit=9)
    await puppet.settle()
    assert puppet.consensus.commit_index == 2, "no further than the log goes"
    puppet.cluster.kill("a", power_lost=True)
    await puppet.restart(found=False)
    await asyncio.sleep(1)
    term = await puppet.lead()
    last = puppet.consensus.append(b"nobody else holds it")
    await asyncio.sleep(0.5)
    assert (puppet.consensus.commit_index, puppet.consensus.applied_index) == (0, 0)
    puppet.say("c", AppendReply(term, True, last))
    assert puppet.consensus.commit_index == last
    assert puppet.node.machine.entries() == [b"1", b"2", b"nobody else holds it"]


@virtual
async def test_f11c_the_pieces_of_an_old_snapshot_that_come_late_install_nothing():
    cluster = await Cluster(
        snapshot_entries=20, trailing_entries=1, snapshot_chunk_bytes=60
    ).start()
    await cluster.propose(*[b"%d" % n for n in range(60)])
    leader, victim = cluster.leader.name, cluster.followers()[0].name
    cluster.kill(victim)
    cluster[victim].disk.wipe()
    pieces: list[SnapshotChunk] = []

    def tap(_source: str, target: str, message: Message) -> bool:
        if target == victim and isinstance(message, SnapshotChunk):
            pieces.append(message)
        return True

    cluster.wire.tap = tap
    await cluster.start(victim)
    await cluster.settled()
    installed = list(cluster[victim].recorder.installed)
    assert len(installed) == 1
    last = await cluster.propose(*[b"newer %d" % n for n in range(60)])
    engine = cluster[victim].engine
    await cluster.wait(lambda: engine.log.base_index > installed[0])
    for piece in [*pieces, *pieces]:
        cluster[victim].endpoint.receiver.on_message(leader, piece)
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert cluster[victim].consensus.halted is None
    assert cluster[victim].recorder.installed == installed
    assert cluster[victim].consensus.applied_index >= last
    await cluster.propose(b"it goes on")


class WatchedDisk(SimDisk):
    """Keeps how it was before each change, so that a crash of that moment can be tried."""

    def __init__(self) -> None:
        super().__init__()
        self.watching = False
        self.moments: list[tuple[dict, dict]] = []

    def _note(self) -> None:
        if self.watching:
            self.moments.append(copy.deepcopy((self.files, self.durable)))

    def may_fail(self, action: str, path: Path) -> None:
        self._note()
        super().may_fail(action, path)

    def replace(self, source: Path, target: Path) -> None:
        self._note()
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self._note()
        super().remove(path)


@virtual
async def test_f2_f3_raft01_a_node_that_dies_at_any_moment_of_its_snapshot_loses_nothing():
    settings = {"snapshot_entries": 1000, "segment_bytes": 300, "trailing_entries": 1}
    cluster = Cluster("a", **settings)
    disk = cluster["a"].disk = WatchedDisk()
    await cluster.start()
    proposed = [b"%d" % n for n in range(60)]
    for until in (20, 40, 60):
        for entry in proposed[until - 20 : until]:
            await cluster.propose(entry)  # each a batch, so that segments end at any place
        disk.watching = until == 60  # by then an old snapshot and old segments are to be removed
        await cluster.snapshot("a")
    disk.watching = False
    disk._note()
    assert len(disk.moments) > 10
    assert sum(path.name.startswith("journal-") for path in disk.moments[0][0]) > 3
    for moment in disk.moments:
        for seed in range(3):
            again = Cluster("a", seed=seed, **settings)
            again["a"].disk.files, again["a"].disk.durable = copy.deepcopy(moment)
            again["a"].disk.crash(random.Random(seed))
            await again.start()
            await again.elected()
            await again.settled()
            assert again["a"].machine.entries() == proposed
            again.kill("a")


@pytest.mark.parametrize("moment", range(8))
@virtual
async def test_raft01_all_three_killed_in_the_middle_of_their_snapshots_lose_nothing(moment: int):
    cluster = Cluster(seed=moment, snapshot_entries=10**9, trailing_entries=1, segment_bytes=1000)
    await cluster.start()
    proposed = [b"%d" % n for n in range(140)]
    await cluster.propose(*proposed[:50])
    for name in "abc":
        await cluster.snapshot(name)
    await cluster.propose(*proposed[50:100])
    for member in cluster.members.values():
        member.consensus.take_snapshot()
    leader = await cluster.elected()
    for entry in proposed[100:]:
        leader.consensus.append(entry)
    await cluster.wait(lambda: leader.machine.entries() == proposed)  # acknowledged, by now
    under_way = [m.consensus.stats.snapshot_under_way for m in cluster.members.values()]
    assert all(under_way)
    await asyncio.sleep(moment * 0.005)
    for name in "abc":
        cluster.kill(name, power_lost=moment % 2 == 0)
    await cluster.start()
    await cluster.settled()
    for member in cluster.members.values():
        assert member.machine.entries() == proposed


@virtual
async def test_l1_both_followers_with_tails_of_their_own_and_much_newer_data_are_reconciled():
    """The stock engine stayed down for good: its answers to the one and the other fought."""
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    first = cluster.leader
    cluster.isolate(first.name)
    first.consensus.append(b"of the first alone")
    second = await cluster.wait(
        lambda: next((m for m in cluster.members.values() if m.leads and m is not first), None)
    )
    (third,) = set(cluster.members.values()) - {first, second}
    cluster.isolate(second.name)
    second.consensus.append(b"of the second alone")
    cluster.heal()
    cluster.isolate(second.name)
    cluster.wire.tap = lambda source, _, message: (
        not (source == third.name and isinstance(message, Append))
    )  # it leads by the vote of the first, whose tail stays as it is for now
    await cluster.wait(lambda: third.consensus.role == "leader")
    for number in range(60):
        third.consensus.append(b"%d" % number + bytes(4000))
        await asyncio.sleep(0.003)
    assert [m.engine.last_term for m in (first, second)] < [third.engine.last_term] * 2
    cluster.wire.tap = None
    cluster.heal()
    healed = cluster.loop.time()
    await cluster.settled()
    assert cluster.leader is third
    assert cluster.loop.time() - healed < 2
    for member in (first, second):
        assert not {b"of the first alone", b"of the second alone"} & set(member.machine.entries())


@virtual
async def test_raft05_200_restarts_of_all_at_once_under_load_lose_nothing():
    rng = random.Random(5)
    cluster = Cluster(seed=5, snapshot_entries=50, trailing_entries=5, segment_bytes=2000)
    checker = Checker()
    proposed = 0
    for _ in range(200):
        for name in rng.sample("abc", 3):
            await checker.start(cluster, name)
            await asyncio.sleep(rng.choice([0, 0.01, 0.3]))
        await cluster.elected()
        for _ in range(rng.randint(1, 8)):
            for member in cluster.members.values():
                if member.leads:
                    proposed += 1
                    checker.propose_at(member, b"%d" % proposed)
            await asyncio.sleep(rng.choice([0, 0.0007, 0.002]))
        power_lost = rng.random() < 0.5
        for name in rng.sample("abc", 3):
            cluster.kill(name, power_lost)
    for name in "abc":
        await checker.start(cluster, name)
    await cluster.elected()
    await cluster.settled()
    checker.nothing_is_lost(cluster)
    assert len(checker.acknowledged) > 200
    assert len({member.machine.digest() for member in cluster.members.values()}) == 1


# RAFT-14: links that fail one way, often, or now and then.


def _one_way(cluster: Cluster, source: str, targets: str) -> None:
    cluster.wire.cut |= {(source, target) for target in targets if target != source}


def _leader_speaks_to_nobody(cluster: Cluster, leader: str, _f: str, _g: str) -> None:
    _one_way(cluster, leader, "abc")


def _leader_hears_nobody(cluster: Cluster, leader: str, f: str, g: str) -> None:
    _one_way(cluster, f, leader)
    _one_way(cluster, g, leader)


def _leader_does_not_hear_one(cluster: Cluster, leader: str, f: str, _g: str) -> None:
    _one_way(cluster, f, leader)


def _one_does_not_hear_the_leader(cluster: Cluster, leader: str, f: str, _g: str) -> None:
    _one_way(cluster, leader, f)


def _one_follower_does_not_hear_the_other(cluster: Cluster, _leader: str, f: str, g: str) -> None:
    _one_way(cluster, f, g)


def _a_bridge_without_the_leader(cluster: Cluster, leader: str, f: str, _g: str) -> None:
    cluster.wire.cut |= {(leader, f), (f, leader)}  # the other follower sees both


def _four_of_ten_are_lost(cluster: Cluster, _leader: str, _f: str, _g: str) -> None:
    cluster.wire.loss = 0.4


def _a_third_of_a_second_away(cluster: Cluster, _leader: str, _f: str, _g: str) -> None:
    cluster.wire.latency_s = 0.3


@pytest.mark.parametrize(
    ("fault", "flaps", "floor"),
    [
        (_leader_speaks_to_nobody, False, 0.95),
        (_leader_hears_nobody, False, 0.95),
        (_leader_does_not_hear_one, False, 1.0),
        (_one_does_not_hear_the_leader, False, 1.0),
        (_one_follower_does_not_hear_the_other, False, 1.0),
        (_a_bridge_without_the_leader, False, 1.0),
        (_a_bridge_without_the_leader, True, 1.0),
        (_leader_speaks_to_nobody, True, 0.4),
        (_four_of_ten_are_lost, False, 0.9),
        (_a_third_of_a_second_away, False, 0.95),
    ],
)
@virtual
async def test_raft14_the_cluster_serves_while_links_fail_and_soon_after(fault, flaps, floor):
    """Of the seconds, something is acknowledged in at least the given share; entries agree
    throughout; and within ten seconds after the links are mended all is well."""
    cluster = Cluster(seed=3, snapshot_entries=100, trailing_entries=20)
    checker = Checker()
    for name in "abc":
        await checker.start(cluster, name)
    await cluster.propose(b"first")
    seconds_served = proposed = 0
    for second in range(60):
        if second % 4 == 0 and (flaps or second == 0):
            leader = await cluster.elected()
            fault(cluster, leader.name, *(m.name for m in cluster.followers()))
        elif second % 4 == 2 and flaps:
            cluster.heal()
        before = len(checker.acknowledged)
        for _ in range(10):
            for member in cluster.members.values():
                if member.leads:
                    proposed += 1
                    checker.propose_at(member, b"%d" % proposed)
            await asyncio.sleep(0.1)
        seconds_served += len(checker.acknowledged) > before
    assert seconds_served >= 60 * floor
    cluster.heal()
    cluster.wire.loss, cluster.wire.latency_s = 0.0, 0.0005
    healed = cluster.loop.time()
    await cluster.elected()
    await cluster.settled()
    assert cluster.loop.time() - healed < 10
    checker.nothing_is_lost(cluster)

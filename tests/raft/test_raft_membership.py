"""Who counts (RAFT-16): a cluster is founded once, and an emptied disk earns its vote anew.

The first part is about founding, the second about a disk that joins, the third about what no rule
can mend: more disks gone than a majority can spare.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
from raft_harness import Cluster, ListMachine, Puppet, SimDisk, virtual
from test_raft_random import Schedule

from timeball.cluster.raft.errors import Misconfigured
from timeball.cluster.raft.messages import (
    Admission,
    Append,
    AppendReply,
    Introduction,
    PreVoteReply,
    PreVoteRequest,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from timeball.cluster.raft.metadata import Metadata, cluster_id
from timeball.cluster.raft.recovery import found_anew
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.storage import Storage

METADATA = Path("/data/metadata")


def on_disk(disk: SimDisk) -> Metadata:
    """What would be read after a loss of power."""
    return msgspec.msgpack.decode(disk.durable[METADATA].synced[12:], type=Metadata)


def standings(cluster: Cluster) -> dict[str, str]:
    return {name: member.consensus.standing for name, member in cluster.members.items()}


# Founding.


@pytest.mark.parametrize("names", ["a", "abc", "abcde"])
@virtual
async def test_a_cluster_is_founded_by_all_its_blank_members(names: str):
    cluster = await Cluster(names).start()
    await cluster.propose(b"one")
    assert set(standings(cluster).values()) == {"voter"}
    founders = [on_disk(member.disk).founders for member in cluster.members.values()]
    expected = {name: m.consensus.incarnation for name, m in cluster.members.items()}
    assert founders == [expected] * len(names)


@pytest.mark.parametrize("names", ["abc", "abcde"])
@virtual
async def test_a_majority_of_blank_members_founds_nothing(names: str):
    cluster = await Cluster(names).start(*names[:-1])
    await asyncio.sleep(60)
    assert cluster.leader is None
    assert {cluster[name].consensus.standing for name in names[:-1]} == {"blank"}
    assert f"not seen so: {names[-1]}" in cluster["a"].consensus.obstacle
    await cluster.start(names[-1])  # a minute late
    await cluster.propose(b"one")
    assert cluster["a"].consensus.obstacle is None


@virtual
async def test_all_must_say_that_they_see_the_very_same():
    puppet = await Puppet.start(found=False)
    own = puppet.consensus.incarnation
    all_seen = {"a": own, "b": 2, "c": 3}

    def say(peer: str, incarnation: int, seen: dict[str, int], standing: str = "blank") -> str:
        puppet.say(peer, Introduction(0, incarnation, standing, seen))
        return puppet.consensus.standing

    assert say("b", 2, all_seen) == "blank"
    assert say("c", 3, {"a": own, "c": 3}) == "blank", "c has not seen b"
    assert say("c", 3, {"a": own, "b": 9, "c": 3}) == "blank", "c has seen another disk of b"
    assert say("c", 3, {"a": own + 1, "b": 2, "c": 3}) == "blank", "c has seen a former disk of a"
    assert say("c", 4, all_seen) == "blank", "c has another disk than b has seen"
    assert say("b", 2, all_seen, "joining") == "blank", "b knows of a cluster"
    assert say("c", 3, all_seen) == "blank", "b knows of a cluster"
    two = {"a": own, "b": 2}
    assert say("b", 2, two) == say("c", 3, two, "joining") == "blank", "c is not among them"
    assert say("c", 3, all_seen) == "blank"
    puppet.node.endpoint.receiver.on_disconnected("c")
    assert say("b", 2, all_seen) == "blank", "c has gone"
    assert say("c", 3, all_seen) == "voter"
    assert on_disk(puppet.node.disk).founders == all_seen


@virtual
async def test_a_founding_is_durable_before_anybody_hears_of_it():
    cluster = Cluster()
    told = 0

    def tap(source: str, _target: str, message: object) -> bool:
        nonlocal told
        disk = cluster[source].disk
        if isinstance(message, Introduction):
            assert on_disk(disk).incarnation == message.incarnation
            assert on_disk(disk).standing == message.standing
            told += message.standing == "voter"
        return True

    cluster.wire.tap = tap
    await cluster.start()
    await cluster.elected()
    assert told


@virtual
async def test_a_founder_that_had_not_heard_of_it_votes_when_it_does():
    puppet = await Puppet.start(found=False)
    founders = {"a": puppet.consensus.incarnation, "b": 2, "c": 3}
    puppet.follow((1, b"x"), term=1)
    await puppet.settle()
    assert puppet.consensus.standing == "joining"
    puppet.cluster.kill("a", power_lost=True)
    await puppet.restart(found=False)
    puppet.say("b", Introduction(1, 2, "voter", founders))
    assert on_disk(puppet.node.disk).standing == "voter"


@virtual
async def test_a_voter_tells_the_founders_to_who_does_not_vote():
    puppet = await Puppet.start()
    founders = on_disk(puppet.node.disk).founders
    puppet.say("b", Introduction(0, 9, "blank", {"b": 9}))
    own = puppet.consensus.incarnation
    assert puppet.heard(Introduction, "b") == [Introduction(0, own, "voter", founders)]
    puppet.say("b", Introduction(0, 9, "voter", founders))
    assert puppet.heard(Introduction) == []


@virtual
async def test_who_is_not_among_the_founders_joins():
    puppet = await Puppet.start(found=False)
    own = puppet.consensus.incarnation
    founders = {"a": own + 1, "b": 2, "c": 3}
    puppet.say("b", Introduction(5, 2, "voter", founders))
    assert on_disk(puppet.node.disk).standing == "joining"
    assert on_disk(puppet.node.disk).founders == founders
    for peer, incarnation in (("b", 12), ("c", 13)):  # the others were emptied since
        puppet.say(peer, Introduction(0, incarnation, "blank", {"a": own, "b": 12, "c": 13}))
    assert puppet.consensus.standing == "joining", "it knows of a cluster, and founds no other"
    puppet.say("b", Introduction(0, 12, "voter", {"a": own, "b": 12, "c": 13}))
    assert puppet.consensus.standing == "joining", "that is not the cluster which it knows of"


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_no_loss_of_power_during_the_founding_prevents_or_repeats_it(seed: int):
    cluster = Cluster("abc", seed=seed)
    cluster.wire.loss, cluster.wire.repetition, cluster.wire.reordering = 0.2, 0.2, 0.2
    rng = random.Random(seed)
    for _ in range(12):
        for name, member in cluster.members.items():
            if not member.up:
                await cluster.start(name)
            elif rng.random() < 0.5:
                cluster.kill(name, power_lost=True)
        await asyncio.sleep(rng.choice([0, 0.0006, 0.0011, 0.002, 0.3]))
    for name, member in cluster.members.items():
        if not member.up:
            await cluster.start(name)
    cluster.wire.loss = 0.0
    await cluster.propose(b"one")
    assert len({repr(sorted(on_disk(m.disk).founders)) for m in cluster.members.values()}) == 1


# Joining.


async def joining(**settings: object) -> Puppet:
    """A node with a new disk, to which the leader of term 5 has just spoken."""
    puppet = await Puppet.start(found=False, **settings)
    puppet.follow(term=5)
    await puppet.settle()
    puppet.heard()
    return puppet


@virtual
async def test_a_joining_disk_neither_votes_nor_stands():
    puppet = await joining()
    assert puppet.consensus.standing == "joining"
    await asyncio.sleep(60)
    assert puppet.heard(PreVoteRequest) == puppet.heard(VoteRequest) == []
    puppet.say("b", PreVoteRequest(5, 99, 5))
    assert puppet.heard(PreVoteReply) == [PreVoteReply(5, 5, granted=False)]
    puppet.say("b", VoteRequest(6, 99, 5, transfer=False))
    assert puppet.heard(VoteReply) == [VoteReply(6, granted=False)]
    puppet.follow(term=6)
    puppet.say("b", TimeoutNow(6))
    assert puppet.heard(VoteRequest) == []
    assert puppet.consensus.role == "follower"


@virtual
async def test_a_disk_that_has_met_a_leader_is_blank_no_more():
    puppet = await joining()
    puppet.cluster.kill("a", power_lost=True)
    await puppet.restart(found=False)
    assert puppet.consensus.standing == "joining"


@virtual
async def test_a_joining_disk_says_in_every_answer_that_it_does_not_count():
    puppet = await joining()
    puppet.follow((5, b"1"))
    puppet.follow((5, b"9"), prev=(8, 5))
    puppet.follow(term=4)
    await puppet.settle()
    replies = puppet.heard(AppendReply)
    assert len(replies) == 3
    assert not any(reply.votes for reply in replies)


async def leading(names: str = "abc") -> tuple[Puppet, int]:
    """A leader whose followers have acknowledged its barrier."""
    puppet = await Puppet.start(names)
    term = await puppet.lead()
    for peer in puppet.peers:
        puppet.say(peer, AppendReply(term, True, 1, incarnation=1))
    assert puppet.consensus.commit_index == 1
    puppet.heard()
    return puppet, term


def ack(term: int, index: int, incarnation: int = 2, *, votes: bool = False) -> AppendReply:
    return AppendReply(term, True, index, incarnation=incarnation, votes=votes)


@virtual
async def test_acknowledgements_of_a_joining_disk_commit_nothing():
    puppet, term = await leading()
    puppet.say("b", ack(term, 0))
    last = puppet.consensus.append(b"x")
    await puppet.settle()
    puppet.say("b", ack(term, last))
    assert puppet.consensus.commit_index == 1
    puppet.say("c", ack(term, last, incarnation=1, votes=True))
    assert puppet.consensus.commit_index == last


@virtual
async def test_a_joining_disk_does_not_keep_a_leader_in_office():
    puppet, term = await leading()
    for _ in range(int(RaftSettings().leader_fallback_s / 0.1) + 2):
        puppet.say("b", ack(term, 0))
        puppet.say("b", SnapshotReply(term, 1, 0, False, 2, votes=False))
        await asyncio.sleep(0.1)
    assert puppet.consensus.role == "follower"


@virtual
async def test_leadership_is_not_handed_over_to_a_joining_disk():
    puppet, term = await leading()
    puppet.say("b", ack(term, 0))
    await puppet.settle()
    puppet.say("b", ack(term, puppet.consensus.last_index))
    puppet.heard()
    assert not puppet.node.engine.leadership.hand_over()
    assert puppet.heard(TimeoutNow) == []
    puppet.say("b", ack(term, puppet.consensus.last_index, votes=True))
    assert puppet.node.engine.leadership.hand_over()


@virtual
async def test_a_joining_disk_votes_once_it_holds_what_was_committed_after_it_came():
    puppet, term = await leading()
    puppet.say("b", ack(term, 1))
    target = puppet.consensus.last_index
    assert target == 2, "an entry that is later than all that its former disk took part in"
    await puppet.settle()
    puppet.say("b", ack(term, 1))
    assert puppet.consensus.last_index == target, "one such entry is enough"
    puppet.say("b", ack(term, target))
    assert puppet.heard(Admission) == [], "no majority of the others holds it"
    puppet.say("c", ack(term, target, incarnation=1, votes=True))
    assert puppet.consensus.commit_index == target
    founders = on_disk(puppet.node.disk).founders
    puppet.say("b", ack(term, target))
    puppet.say("b", ack(term, target))  # the first was lost
    assert puppet.heard(Admission) == [Admission(term, 2, target, founders)] * 2
    puppet.say("b", ack(term, target, votes=True))
    assert puppet.heard(Admission) == []


@virtual
async def test_each_new_disk_has_an_entry_of_its_own_to_catch_up_to():
    puppet, term = await leading()
    puppet.say("b", ack(term, 1))
    await puppet.settle()
    puppet.say("c", ack(term, 2, incarnation=1, votes=True))
    assert puppet.consensus.commit_index == 2
    puppet.say("b", ack(term, 2, incarnation=3))  # emptied again, and what it was then sent
    assert puppet.heard(Admission) == []
    assert puppet.consensus.last_index == 3


@virtual
async def test_no_vote_before_the_entry_is_held_however_much_is_committed():
    puppet, term = await leading()
    puppet.say("b", ack(term, 1))
    await puppet.settle()
    puppet.say("c", ack(term, 2, incarnation=1, votes=True))
    assert puppet.consensus.commit_index == 2
    puppet.say("b", ack(term, 1))
    assert puppet.heard(Admission) == []


@virtual
async def test_late_answers_of_a_former_disk_count_for_nothing():
    puppet, term = await leading()
    last = puppet.consensus.append(b"x")
    await puppet.settle()
    puppet.say("b", ack(term, 0))  # the new disk
    puppet.say("b", ack(term, last, incarnation=1, votes=True))
    progress = puppet.node.engine.leadership.progress("b")
    assert (progress.incarnation, progress.match, progress.votes) == (2, 0, False)
    assert puppet.consensus.commit_index == 1
    for _ in range(int(RaftSettings().leader_fallback_s / 0.1) + 2):
        puppet.say("b", ack(term, last, incarnation=1, votes=True))
        await asyncio.sleep(0.1)
    assert puppet.consensus.role == "follower"


@virtual
async def test_a_former_disk_may_come_back_while_its_successor_has_no_vote(caplog):
    puppet, term = await leading()
    founders = on_disk(puppet.node.disk).founders
    puppet.say("b", ack(term, 0))
    puppet.say("b", Introduction(term, 1, "voter", founders))
    puppet.say("b", ack(term, 1, incarnation=1, votes=True))
    progress = puppet.node.engine.leadership.progress("b")
    assert (progress.incarnation, progress.votes) == (1, True)
    assert caplog.text == ""
    puppet.say("b", Introduction(term, 2, "joining", founders))
    puppet.say("b", ack(term, 1))
    puppet.say("b", ack(term, 1, votes=True))
    puppet.say("b", Introduction(term, 1, "voter", founders))
    puppet.say("b", ack(term, 1, incarnation=1, votes=True))
    assert progress.incarnation == 2
    assert "a former disk of b is back" in caplog.text


@virtual
async def test_a_disk_that_was_put_aside_comes_back_under_the_same_leader():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    name = cluster.followers()[0].name
    leader = cluster.leader
    cluster.kill(name)
    kept = dict(cluster[name].disk.files)
    cluster[name].disk.wipe()
    cluster.wire.tap = lambda _source, _target, message: not isinstance(message, Admission)
    await cluster.start(name)
    await asyncio.sleep(1)
    assert cluster[name].consensus.standing == "joining"
    cluster.kill(name)
    cluster[name].disk.files, cluster[name].disk.durable = kept, dict(kept)
    await cluster.start(name)
    await cluster.propose(b"two")
    assert cluster.leader is leader


@virtual
async def test_a_new_disk_gets_what_its_former_one_had_acknowledged():
    puppet, term = await leading()
    last = puppet.consensus.append(b"x")
    await puppet.settle()
    puppet.say("b", ack(term, last, incarnation=1, votes=True))
    puppet.heard()
    puppet.say("b", AppendReply(term, False, last, 1, incarnation=2, votes=False))
    await asyncio.sleep(0.1)
    assert puppet.heard(Append, "b")[-1].prev_index == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"incarnation": 1},
        {"index": 2},
        {"term": 4},
        {"peer": "c"},
    ],
    ids=str,
)
@virtual
async def test_an_admission_is_for_one_disk_one_term_and_what_is_durable(wrong: dict):
    puppet = await joining()
    puppet.follow((5, b"1"))
    await puppet.settle()
    own = puppet.consensus.incarnation
    right = {"peer": "b", "term": 5, "incarnation": own, "index": 1}
    founders = {"a": 1, "b": 2, "c": 3}

    def admit(peer: str, term: int, incarnation: int, index: int) -> str:
        puppet.say(peer, Admission(term, incarnation, index, founders))
        return puppet.consensus.standing

    assert admit(**{**right, **wrong}) == "joining"
    assert admit(**right) == "voter"
    assert on_disk(puppet.node.disk).standing == "voter"


@virtual
async def test_an_admission_does_not_count_what_is_not_yet_synced():
    puppet = await joining()
    puppet.follow((5, b"1"))
    puppet.say("b", Admission(5, puppet.consensus.incarnation, 1, {"a": 1}))
    assert puppet.consensus.standing == "joining"


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("victim", ["leader", "follower"])
@virtual
async def test_an_emptied_disk_is_filled_and_votes_again(victim: str, snapshots: bool):
    cluster = await Cluster(trailing_entries=1, snapshot_chunk_bytes=300).start()
    await cluster.propose(*[b"%d" % n for n in range(30)])
    if snapshots:
        for name in "abc":
            await cluster.snapshot(name)
    name = cluster.leader.name if victim == "leader" else cluster.followers()[0].name
    before = cluster[name].consensus.incarnation
    cluster.kill(name)
    cluster[name].disk.wipe()
    await cluster.propose(b"meanwhile")
    await cluster.start(name)
    await cluster.wait(lambda: cluster[name].consensus.standing == "voter")
    assert cluster[name].consensus.incarnation != before
    await cluster.settled()
    assert cluster[name].machine.entries()[-1] == b"meanwhile"
    other = next(m.name for m in cluster.followers() if m.name != name)
    cluster.kill(other)
    await cluster.propose(b"its vote is needed")


@virtual
async def test_a_leader_knows_how_much_of_a_snapshot_has_arrived():
    cluster = await Cluster(trailing_entries=1, snapshot_chunk_bytes=300).start()
    await cluster.propose(*[bytes(100) for _ in range(30)])
    for name in "abc":
        await cluster.snapshot(name)
    name = cluster.followers()[0].name

    def share() -> float | None:
        return next(p for p in cluster.leader.consensus.peers() if p.name == name).snapshot_share

    assert share() is None
    cluster.kill(name)
    cluster[name].disk.wipe()
    cluster.wire.tap = lambda _source, _target, message: (
        not isinstance(message, SnapshotChunk) or message.offset < 900
    )
    await cluster.start(name)
    await asyncio.sleep(1)
    size = cluster.leader.engine.storage.snapshots.newest().size
    assert share() == 900 / size
    cluster.wire.tap = None
    await cluster.settled()
    assert share() is None


@virtual
async def test_a_disk_is_emptied_again_while_it_joins():
    cluster = await Cluster().start()
    await cluster.propose(*[b"%d" % n for n in range(50)])
    name = cluster.followers()[0].name
    for _ in range(3):
        cluster.kill(name)
        cluster[name].disk.wipe()
        await cluster.start(name)
        await asyncio.sleep(0.003)
    await cluster.wait(lambda: cluster[name].consensus.standing == "voter")
    await cluster.settled()


@virtual
async def test_a_disk_that_lost_what_it_vouched_for_can_give_up_its_vote():
    cluster = await Cluster().start()
    await cluster.propose(b"one", b"two")
    name = cluster.followers()[0].name
    cluster.kill(name)
    disk, before = cluster[name].disk, on_disk(cluster[name].disk)
    storage = Storage(disk, Path("/data"), cluster.settings)
    storage.open(cluster_id("timeball", "abc"), name, ListMachine())
    storage.truncate_from(storage.log.last_index)
    storage.disown(before.incarnation + 1)
    storage.close()
    assert on_disk(disk).standing == "joining"
    assert on_disk(disk).founders == before.founders
    assert on_disk(disk).incarnation == before.incarnation + 1, "its old answers are not its own"
    await cluster.start(name)
    assert cluster[name].consensus.standing == "joining", "though its name is among the founders"
    await cluster.wait(lambda: cluster[name].consensus.standing == "voter")
    await cluster.settled()


class WithEmptiedDisks(Schedule):
    """Now and then a disk is emptied, though never two that have no vote at the same time."""

    emptied = 0

    async def step(self) -> None:
        members = self.cluster.members
        if self.rng.random() < 0.1 and all(
            METADATA in m.disk.durable and on_disk(m.disk).standing == "voter"
            for m in members.values()
        ):
            name = self.rng.choice(sorted(members))
            if members[name].up:
                self.cluster.kill(name)
            members[name].disk.wipe()
            self.emptied += 1
        await super().step()


@pytest.mark.parametrize("unreliable", [False, True], ids=["reliable", "unreliable"])
@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_nothing_is_lost_though_disks_are_emptied_one_after_another(
    seed: int, unreliable: bool
):
    rng = random.Random(seed)
    cluster = Cluster(
        "abc" if seed % 2 else "abcde",
        seed=seed,
        snapshot_entries=rng.choice([15, 40]),
        trailing_entries=rng.choice([1, 10]),
        segment_bytes=2000,
        snapshot_chunk_bytes=300,
        max_append_entries=8,
    )
    schedule = WithEmptiedDisks(cluster, rng, unreliable)
    for name in cluster.members:
        await schedule.start(name)
    for _ in range(200):
        await schedule.step()
    await schedule.finish()
    assert schedule.checker.acknowledged
    assert schedule.emptied


# Too many gone.


@virtual
async def test_two_emptied_disks_of_three_elect_nobody_and_say_so(caplog):
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    lost = [member.name for member in cluster.followers()]
    survivor = cluster.leader.name
    kept = {name: dict(cluster[name].disk.files) for name in lost}
    for name in "abc":
        cluster.kill(name)
    for name in lost:
        cluster[name].disk.wipe()
    await cluster.start(*lost)
    await asyncio.sleep(60)
    assert [cluster[name].consensus.standing for name in lost] == ["blank", "blank"]
    await cluster.start(survivor)
    await asyncio.sleep(60)
    assert [member for member in cluster.members.values() if member.leads] == []
    for member in cluster.members.values():
        assert "no leader can be elected" in member.consensus.obstacle
        assert all(name in member.consensus.obstacle for name in lost)
    assert cluster[survivor].consensus.obstacle in caplog.text
    # One of the two disks was only mislaid: with it all is well again.
    cluster.kill(lost[0])
    cluster[lost[0]].disk.files = cluster[lost[0]].disk.durable = kept[lost[0]]
    await cluster.start(lost[0])
    await cluster.wait(lambda: cluster[lost[1]].consensus.standing == "voter")
    await cluster.propose(b"two")
    assert cluster[lost[1]].machine.entries() == [b"one", b"two"]
    assert cluster[survivor].consensus.obstacle is None


async def one_disk_is_left(snapshot: bool) -> Cluster:
    """Two nodes of three have lost their disks, and all are down."""
    cluster = await Cluster(trailing_entries=1).start()
    await cluster.propose(*[b"%d" % n for n in range(20)])
    if snapshot:
        await cluster.snapshot("a")
        await cluster.propose(b"behind it")
    for name in "abc":
        cluster.kill(name)
    return cluster


def recovered(cluster: Cluster, directories: dict[str, Path]) -> int:
    numbers = iter(range(100, 200))
    return found_anew(
        cluster["a"].disk,
        "a",
        directories,
        cluster_id("timeball", "abc"),
        ListMachine(),
        cluster.settings,
        lambda: next(numbers),
    )


@pytest.mark.parametrize("snapshot", [False, True])
@virtual
async def test_a_cluster_can_be_founded_anew_from_one_disk(snapshot: bool):
    cluster = await one_disk_is_left(snapshot)
    entries = cluster["a"].machine.entries()
    before = on_disk(cluster["a"].disk)
    folders = {name: Path("/data" if name == "a" else f"/of-{name}") for name in "abc"}
    assert recovered(cluster, folders) == cluster["a"].consensus.last_index
    disk = cluster["a"].disk
    for name in "bc":
        cluster[name].disk.wipe()
        of_it = [(p.name, file) for p, file in disk.durable.items() if p.parent == folders[name]]
        moved = {Path("/data", found): file for found, file in of_it}
        cluster[name].disk.files, cluster[name].disk.durable = dict(moved), dict(moved)
        assert all(bytes(file.written) == file.synced for file in moved.values())
    after = [on_disk(cluster[name].disk) for name in "abc"]
    assert [found.founders for found in after] == [{"a": 100, "b": 101, "c": 102}] * 3
    assert [found.incarnation for found in after] == [100, 101, 102]
    assert {(found.term, found.vote) for found in after} == {(before.term + 1, None)}
    await cluster.start("b", "c")  # any majority
    await cluster.elected()
    await cluster.start("a")
    await cluster.propose(b"and on")
    assert cluster["b"].machine.entries() == [*entries, b"and on"]


@virtual
async def test_nothing_is_founded_over_what_is_there():
    cluster = await one_disk_is_left(snapshot=False)
    disk = cluster["a"].disk
    folders = {name: Path("/data" if name == "a" else f"/of-{name}") for name in "abc"}
    disk.create(Path("/of-c/journal-00000000000000000001"))
    before = dict(disk.files)
    with pytest.raises(Misconfigured, match="/of-c, of node 'c', is not empty"):
        recovered(cluster, folders)
    assert disk.files == before
    disk.remove(Path("/of-c/journal-00000000000000000001"))
    storage = Storage(disk, Path("/data"), cluster.settings)
    storage.open(cluster_id("timeball", "abc"), "a", ListMachine())
    storage.disown(5)
    storage.close()
    with pytest.raises(Misconfigured, match="the disk of 'a' had no vote"):
        recovered(cluster, folders)


@virtual
async def test_a_start_as_usual_logs_no_obstacle(caplog):
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    await asyncio.sleep(5)
    assert [r for r in caplog.records if r.levelname == "WARNING"] == []


@virtual
async def test_a_leader_and_a_follower_see_who_joins():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    name, other = (member.name for member in cluster.followers())
    cluster.kill(name)
    cluster[name].disk.wipe()
    cluster.wire.tap = lambda _source, _target, message: not isinstance(message, Admission)
    await cluster.start(name)
    await asyncio.sleep(1)
    consensus = cluster[name].consensus
    assert consensus.obstacle == (
        "this node's disk is new to the cluster: it has no vote until it has caught up"
    )
    for seen_by in (cluster.leader.name, other):
        status = {peer.name: peer for peer in cluster[seen_by].consensus.peers()}[name]
        assert (status.standing, status.incarnation) == ("joining", consensus.incarnation)
    cluster.wire.tap = None
    await asyncio.sleep(1)
    for seen_by in (cluster.leader.name, other):
        status = {peer.name: peer for peer in cluster[seen_by].consensus.peers()}[name]
        assert status.standing == "voter"

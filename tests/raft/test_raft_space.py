"""RAFT-07: a disk fills up. Nobody halts, nothing acknowledged is lost, all return by themselves.

The rules are those of `space`, `padded` and decision 0013.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from raft_harness import Cluster, Member, Puppet, virtual

from timeball.cluster.raft.errors import DiskFull, NotLeader
from timeball.cluster.raft.messages import (
    Append,
    AppendReply,
    PreVoteReply,
    PreVoteRequest,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.space import Space

MARK = 40_000


def cluster_of(names: str = "abc", **more: Any) -> Cluster:
    return Cluster(names, min_free_bytes=MARK, disk_check_s=0.1, **more)


async def puppet_of(**more: Any) -> Puppet:
    return await Puppet.start(min_free_bytes=MARK, disk_check_s=0.1, **more)


def leave(member: Member, free: int) -> None:
    """Let so much room be on a member's disk."""
    member.disk.capacity = member.disk.used + free


async def seen(cluster: Cluster) -> None:
    """Let everybody look at its disk."""
    await asyncio.sleep(cluster.settings.disk_check_s + cluster.settings.tick_s)


def test_raft07_the_room_has_marks_to_go_and_higher_ones_to_come_back():
    space = Space(RaftSettings(min_free_bytes=1000))
    rooms = []
    for free in (1000, 999, 1249, 1250, 250, 249, 312, 313, 1249, 1250, 10**6):
        space.found(free)
        rooms.append(space.room)
    assert rooms == [
        *("plenty", "low", "low", "plenty", "low", "full", "full", "low", "low", "plenty", "plenty")
    ]


def test_raft07_after_a_write_without_room_only_a_write_that_finds_some_counts():
    space = Space(RaftSettings(min_free_bytes=1000))
    space.found(10**6)
    space.found_none()
    assert space.full
    assert space.low
    space.found(10**6)
    assert space.full
    space.found_some()
    assert space.room == "plenty"


def answers(puppet):
    """Term, acceptance and index of the answers that the node gave as a follower."""
    return [(reply.term, reply.accepted, reply.index) for reply in puppet.heard(AppendReply)]


@virtual
async def test_raft07_a_leader_under_the_mark_hands_over_and_refuses_writes_meanwhile():
    cluster = await cluster_of().start()
    await cluster.propose(*(b"%d" % n for n in range(20)))
    old = cluster.leader
    term = old.consensus.term
    elections = [m.consensus.stats.elections for m in cluster.members.values()]
    leave(old, MARK - 1)
    await cluster.wait(lambda: old.consensus.room == "low", limit_s=0.2)
    if old.leads:
        with pytest.raises(DiskFull, match="too little room to lead on"):
            old.consensus.append(b"no")
    await cluster.wait(lambda: cluster.leader not in (None, old), limit_s=0.2)
    assert cluster.leader.consensus.term == term + 1, "one election, at once: it was asked for"
    assert sum(m.consensus.stats.elections for m in cluster.members.values()) == sum(elections) + 1
    await cluster.propose(b"goes on")
    assert old.machine.entries()[-1] == b"goes on"
    assert not old.recorder.halts


@virtual
async def test_raft07_a_leader_under_the_mark_refuses_writes():
    puppet = await puppet_of()
    term = await puppet.lead()
    leave(puppet.node, MARK - 1)
    await seen(puppet.cluster)
    assert puppet.consensus.role == "leader"
    with pytest.raises(DiskFull):
        puppet.consensus.append(b"no")
    # Nobody holds all that it holds: it can hand over to none, and gives up after a second.
    for _ in range(60):
        for peer in "bc":
            puppet.say(peer, AppendReply(term, True, 0))
        await asyncio.sleep(0.02)
    assert puppet.consensus.role == "follower"
    with pytest.raises(NotLeader):
        puppet.consensus.append(b"no")


@virtual
async def test_raft07_a_node_under_the_mark_does_not_stand_and_returns_by_itself():
    puppet = await puppet_of()
    leave(puppet.node, MARK - 1)
    await seen(puppet.cluster)
    puppet.heard()
    await asyncio.sleep(5)
    assert not puppet.heard(PreVoteRequest)
    puppet.follow(term=3)
    puppet.say("b", TimeoutNow(3))
    await puppet.settle()
    assert not puppet.heard(VoteRequest)
    assert puppet.consensus.term == 3
    puppet.node.disk.capacity = None
    await puppet.cluster.wait(lambda: puppet.heard(PreVoteRequest), limit_s=2)


@virtual
async def test_raft07_a_follower_under_the_mark_goes_on_into_its_reserve():
    puppet = await puppet_of()
    leave(puppet.node, MARK - 1)
    await seen(puppet.cluster)
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    assert answers(puppet)[-1] == (1, True, 1)
    puppet.say("b", PreVoteRequest(1, 9, 9))
    assert puppet.heard(PreVoteReply)


@virtual
async def test_raft07_a_full_follower_acknowledges_nothing_but_says_that_it_is_alive():
    puppet = await puppet_of()
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    leave(puppet.node, MARK // 4 - 1)
    await seen(puppet.cluster)
    puppet.heard()
    written = puppet.consensus.last_index
    puppet.follow((1, b"two"), prev=(1, 1))
    await puppet.settle()
    assert answers(puppet) == [(1, False, 0)]
    assert puppet.consensus.last_index == written, "memory is bounded too"
    assert puppet.consensus.quorum_seen
    puppet.node.disk.capacity = None
    await seen(puppet.cluster)
    puppet.follow((1, b"two"), prev=(1, 1))
    await puppet.settle()
    assert answers(puppet)[-1] == (1, True, 2)


@virtual
async def test_raft07_a_full_node_promises_no_vote():
    puppet = await puppet_of()
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    leave(puppet.node, MARK // 4 - 1)
    await asyncio.sleep(1)
    puppet.heard()
    puppet.say("c", PreVoteRequest(1, 9, 9))
    assert [reply.granted for reply in puppet.heard(PreVoteReply)] == [False]
    puppet.node.disk.capacity = None
    await seen(puppet.cluster)
    puppet.say("c", PreVoteRequest(1, 9, 9))
    assert [reply.granted for reply in puppet.heard(PreVoteReply)] == [True]


@virtual
async def test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts():
    puppet = await puppet_of()
    puppet.follow((1, b"one"), commit=1)
    await asyncio.sleep(1)
    puppet.heard()
    puppet.node.disk.fail["create metadata"] = OSError(errno.EDQUOT, "Disk quota exceeded")
    puppet.say("c", VoteRequest(7, 9, 9, transfer=False))
    await puppet.settle()
    assert not puppet.heard(VoteReply)
    assert puppet.consensus.term == 1, "a term that is not durable is not taken either"
    assert puppet.consensus.room == "full"
    # The file system tells of much room all the time: only a write that finds some counts.
    await asyncio.sleep(3)
    assert puppet.consensus.room == "full"
    puppet.node.disk.fail.clear()
    await seen(puppet.cluster)
    assert puppet.consensus.room == "plenty"
    puppet.say("c", VoteRequest(7, 9, 9, transfer=True))
    await puppet.settle()
    assert puppet.heard(VoteReply) == [VoteReply(7, granted=True)]
    assert not puppet.node.recorder.halts


@virtual
async def test_raft07_a_batch_that_finds_no_room_is_acknowledged_once_there_is_some():
    puppet = await puppet_of()
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    puppet.heard()
    puppet.node.disk.capacity = puppet.node.disk.used  # and nobody has looked yet
    puppet.follow((1, b"x" * 5000), prev=(1, 1))
    await puppet.settle()
    assert not puppet.heard(AppendReply)
    assert puppet.consensus.room == "full"
    puppet.node.disk.capacity = None
    await seen(puppet.cluster)
    assert answers(puppet) == [(1, True, 2)]
    assert not puppet.node.recorder.halts


@virtual
async def test_raft07_a_leader_that_finds_no_room_does_not_count_itself():
    puppet = await puppet_of()
    term = await puppet.lead()
    for peer in "bc":
        puppet.say(peer, AppendReply(term, True, 1))
    await puppet.settle()
    puppet.node.disk.capacity = puppet.node.disk.used
    index = puppet.consensus.append(b"x" * 5000)
    await puppet.settle()
    assert puppet.consensus.commit_index == index - 1
    await asyncio.sleep(puppet.cluster.settings.tick_s)
    assert puppet.consensus.role == "follower", "at once: it can write nothing more"
    assert not puppet.node.recorder.halts


@virtual
async def test_raft07_a_leader_does_not_count_what_waits_for_its_mark():
    """The journal began a segment, and the metadata could not remember it: it may go unmissed."""
    puppet = await puppet_of(segment_bytes=200, journal_step_bytes=200)
    term = await puppet.lead()
    first = puppet.consensus.append(b"x" * 400)
    await puppet.settle()
    puppet.say("b", AppendReply(term, True, first))
    await puppet.settle()
    assert puppet.consensus.commit_index == first
    puppet.node.disk.fail["create metadata"] = OSError(errno.EDQUOT, "Disk quota exceeded")
    second = puppet.consensus.append(b"y")
    await puppet.settle()
    assert puppet.node.engine.storage.journal.durable_index == second
    puppet.say("b", AppendReply(term, True, second))
    await puppet.settle()
    assert puppet.consensus.commit_index == first
    puppet.say("c", AppendReply(term, True, second))
    await puppet.settle()
    assert puppet.consensus.commit_index == second, "two others hold it"


@virtual
async def test_raft07_all_disks_full_and_free_again():
    cluster = await cluster_of().start()
    await cluster.propose(*(b"%d" % n for n in range(10)))
    for member in cluster.members.values():
        leave(member, 0)
    await cluster.wait(lambda: cluster.leader is None, limit_s=2)
    await asyncio.sleep(10)
    assert all(member.consensus.room == "full" for member in cluster.members.values())
    assert cluster.leader is None
    for member in cluster.members.values():
        member.disk.capacity = None
    await cluster.elected()
    await cluster.propose(b"again")
    expected = [b"%d" % n for n in range(10)] + [b"again"]
    for member in cluster.members.values():
        assert member.machine.entries() == expected
        assert not member.recorder.halts


@virtual
@pytest.mark.parametrize("seed", range(6))
async def test_raft07_disks_that_fill_up_under_load_lose_nothing_acknowledged(seed: int):
    """Full at any byte: sometimes a batch, sometimes the metadata, sometimes a snapshot."""
    cluster = await cluster_of(seed=seed, segment_bytes=3000, snapshot_entries=40).start()
    applied: list[bytes] = []
    number = 0
    for phase in range(6):
        for member in cluster.members.values():
            if cluster.rng.random() < 0.6:
                leave(member, cluster.rng.choice([0, 300, 11_000, MARK // 2, MARK + 3000]))
        until = cluster.loop.time() + 2
        while cluster.loop.time() < until:
            leader = cluster.leader
            if leader is not None:
                number += 1
                try:
                    leader.consensus.append(b"%d." % number + b"x" * cluster.rng.randrange(400))
                except (DiskFull, NotLeader):
                    number -= 1
            await asyncio.sleep(0.01)
            longest = max((m.machine.entries() for m in cluster.members.values()), key=len)
            both = min(len(longest), len(applied))  # who was killed learns anew what is committed
            assert longest[:both] == applied[:both]
            applied = max(longest, applied, key=len)
        if phase % 2:
            name = cluster.rng.choice("abc")
            cluster.kill(name, power_lost=True)
            await cluster.start(name)
        for member in cluster.members.values():
            member.disk.capacity = None
    await cluster.propose(b"last")
    for member in cluster.members.values():
        assert member.machine.entries()[: len(applied)] == applied
        assert not member.recorder.halts
    assert len(applied) > 50


@virtual
async def test_raft07_a_full_follower_keeps_its_leader_and_catches_up_without_a_restart():
    cluster = await cluster_of().start()
    await cluster.propose(b"one")
    leader = cluster.leader
    full, other = cluster.followers()
    leave(full, 0)
    await seen(cluster)
    index = 0
    for number in range(50):
        index = leader.consensus.append(b"%d" % number)
        await asyncio.sleep(0.01)
    await cluster.wait(lambda: other.consensus.applied_index == index)
    assert full.consensus.applied_index < index
    assert cluster.leader is leader
    full.disk.capacity = None
    await cluster.settled(index)


@virtual
async def test_raft07_a_leader_keeps_its_quorum_though_no_follower_can_write():
    cluster = await cluster_of().start()
    await cluster.propose(b"one")
    leader = cluster.leader
    for member in cluster.followers():
        leave(member, 0)
    await seen(cluster)
    index = leader.consensus.append(b"two")
    await asyncio.sleep(5)
    assert cluster.leader is leader
    assert leader.consensus.commit_index == index - 1
    for member in cluster.followers():
        member.disk.capacity = None
    await cluster.settled(index)


@virtual
async def test_raft07_a_full_disk_is_met_while_zeros_are_added_before_any_batch_needs_them():
    puppet = await puppet_of(journal_step_bytes=8192)
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    puppet.node.disk.capacity = puppet.node.disk.used
    puppet.heard()
    puppet.follow((1, b"x" * 4000), prev=(1, 1))
    await puppet.settle()
    assert answers(puppet) == [(1, True, 2)], "it had its place"
    assert puppet.consensus.room == "plenty"
    await asyncio.sleep(0.002)
    assert puppet.consensus.room == "full"
    puppet.node.disk.capacity = None
    await seen(puppet.cluster)
    assert puppet.consensus.room == "plenty"


# Snapshots.


@virtual
async def test_raft07_a_snapshot_without_room_is_made_up_for_when_there_is_some():
    cluster = await cluster_of("a").start()
    await cluster.propose(*(b"x" * 500 for _ in range(20)))
    node = cluster["a"]
    await cluster.snapshot("a")
    kept = node.disk.names(Path("/data"))
    await cluster.propose(*(b"y" * 500 for _ in range(20)))
    leave(node, 3000)
    node.consensus.take_snapshot()
    await cluster.wait(lambda: node.consensus.stats.snapshot_failures == 1)
    assert node.disk.names(Path("/data")) == kept, "the old one is there, and no rest of the new"
    await seen(cluster)
    assert node.consensus.room != "plenty"
    node.disk.capacity = None
    await cluster.wait(lambda: node.consensus.stats.snapshots_taken == 2)
    assert not node.recorder.halts


async def snapshot_file() -> bytes:
    """A snapshot of nine entries of term 2."""
    cluster = await Cluster("d").start()
    await cluster.elected()
    cluster.kill("d")
    await cluster.start("d")
    await cluster.propose(*(b"%d" % n for n in range(9)))
    assert cluster["d"].consensus.term == 2
    await cluster.snapshot("d")
    found = [p for p in cluster["d"].disk.files if p.name.startswith("snapshot-")]
    return bytes(cluster["d"].disk.files[found[0]].written)


@virtual
async def test_raft07_pieces_of_a_snapshot_without_room_are_dropped_and_sent_again():
    raw = await snapshot_file()
    index = int.from_bytes(raw[8:16], "big")
    puppet = await puppet_of()
    whole = SnapshotChunk(2, index, 2, len(raw), 0, raw)
    puppet.follow(term=2)
    await puppet.settle()
    puppet.node.disk.capacity = puppet.node.disk.used + 20
    puppet.say("b", whole)
    await puppet.settle()
    assert puppet.consensus.room == "full"
    assert "incoming.tmp" not in puppet.node.disk.names(Path("/data"))
    puppet.say("b", whole)
    await puppet.settle()
    assert not puppet.heard(SnapshotReply)
    puppet.node.disk.capacity = None
    await seen(puppet.cluster)
    puppet.say("b", whole)
    await puppet.installed()
    assert puppet.heard(SnapshotReply)[-1].installed
    assert len(puppet.node.machine.entries()) == 9
    assert not puppet.node.recorder.halts


@virtual
async def test_raft07_a_full_follower_takes_no_piece_though_it_would_fit_into_its_reserve():
    raw = await snapshot_file()
    index = int.from_bytes(raw[8:16], "big")
    puppet = await puppet_of()
    half = len(raw) // 2
    first = SnapshotChunk(2, index, 2, len(raw), 0, raw[:half])
    puppet.follow(term=2)
    puppet.say("b", first)
    assert puppet.heard(SnapshotReply)[-1].received == half
    leave(puppet.node, MARK // 4 - 1)
    await seen(puppet.cluster)
    puppet.say("b", SnapshotChunk(2, index, 2, len(raw), half, raw[half:]))
    await puppet.installed()
    assert not puppet.heard(SnapshotReply)
    assert "incoming.tmp" not in puppet.node.disk.names(Path("/data")), "it gives room back"
    puppet.node.disk.capacity = None
    await seen(puppet.cluster)
    puppet.say("b", first)
    assert puppet.heard(SnapshotReply)[-1].received == half


@virtual
async def test_raft07_an_installation_that_finds_no_room_leaves_the_state_as_it_was():
    raw = await snapshot_file()
    index = int.from_bytes(raw[8:16], "big")
    puppet = await puppet_of()
    entries = [(1, b"old %d" % n) for n in range(index + 5)]
    puppet.follow(*entries, commit=3)
    await asyncio.sleep(2)  # it rests, and remembers how far its log goes
    before = puppet.node.machine.entries()
    puppet.node.disk.fail["create metadata"] = OSError(errno.ENOSPC, "No space left on device")
    puppet.follow(term=2)
    assert puppet.consensus.room == "full", "not even the term can be taken"
    puppet.node.disk.fail.clear()
    await seen(puppet.cluster)
    puppet.follow(term=2)
    assert puppet.consensus.term == 2
    puppet.node.disk.fail["create metadata"] = OSError(errno.ENOSPC, "No space left on device")
    whole = SnapshotChunk(2, index, 2, len(raw), 0, raw)
    puppet.say("b", whole)
    await puppet.installed()
    assert puppet.node.machine.loads == 1, "it came as far as that"
    assert puppet.node.machine.entries() == before
    assert puppet.consensus.room == "full"
    assert not puppet.node.recorder.halts
    puppet.node.disk.fail.clear()
    await seen(puppet.cluster)
    puppet.say("b", whole)
    await puppet.installed()
    assert len(puppet.node.machine.entries()) == 9


@virtual
async def test_raft04_a_leader_that_can_not_read_its_snapshot_takes_another():
    for action in ("open", "read"):
        cluster = await Cluster(trailing_entries=2, snapshot_chunk_bytes=100).start()
        leader = await cluster.elected()
        behind = cluster.followers()[0].name
        cluster.kill(behind)
        await cluster.propose(*(b"%d" % n for n in range(50)))
        await cluster.snapshot(leader.name)
        bad = max(p.name for p in leader.disk.files if p.name.startswith("snapshot-"))
        leader.disk.fail[f"{action} {bad}"] = OSError(errno.EIO, "Input/output error")
        await cluster.propose(b"more")
        await cluster.start(behind)
        await cluster.settled()
        assert f"{bad}.damaged" in leader.disk.names(Path("/data"))
        assert not leader.recorder.halts


# Marks.


@virtual
async def test_raft06_a_node_that_rests_remembers_how_far_its_log_goes():
    puppet = await puppet_of(mark_after_s=1.0)
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    puppet.follow((1, b"two"), prev=(1, 1))
    await puppet.settle()
    storage = puppet.node.engine.storage
    assert storage.metadata.vouched < 2
    await asyncio.sleep(0.9)
    assert storage.metadata.vouched < 2
    await asyncio.sleep(0.2)
    assert storage.metadata.vouched == 2


@virtual
async def test_raft06_a_node_that_never_rests_remembers_how_far_its_log_goes_now_and_then():
    puppet = await puppet_of(mark_after_s=1.0, mark_every_s=3.0)
    marks = set()
    for index in range(1, 80):
        puppet.follow((1, b"x"), prev=(index - 1, min(index - 1, 1)), commit=1)
        await asyncio.sleep(0.1)
        marks.add(puppet.node.engine.storage.metadata.vouched)
    assert 3 <= len(marks) <= 5
    assert max(marks) > 40


@virtual
async def test_raft06_a_node_that_stops_remembers_how_far_its_log_goes():
    puppet = await puppet_of()
    puppet.follow((1, b"one"), commit=1)
    await puppet.settle()
    puppet.follow((1, b"two"), prev=(1, 1))
    await puppet.settle()
    await puppet.consensus.stop()
    assert puppet.node.engine.storage.metadata.vouched == 2


@virtual
async def test_raft07_an_error_of_a_term_that_can_not_be_saved_stops_the_node():
    puppet = await puppet_of()
    puppet.node.disk.fail["sync metadata"] = OSError(errno.EIO, "Input/output error", "metadata")
    puppet.say("b", Append(7, 0, 0, 0, 1, []))
    await puppet.settle()
    assert "metadata" in puppet.node.recorder.halts[0]
    assert not puppet.heard(AppendReply)

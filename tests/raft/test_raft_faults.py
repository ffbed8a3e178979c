"""The faults of the stock engine that this adapter removes, one test or more for each id.

Each test fails on the stock engine's behaviour. F4 is in the tests of the journal, F5 and H1 in
those of the transport, F9 and F12 in those of group commit, F2 and F3 with the storage.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest
from raft_harness import Cluster, Puppet, virtual

from timeball.cluster.raft.errors import NotLeader
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

METADATA = Path("/data/metadata")


# F1: nothing was ever synced.


@virtual
async def test_f1_an_acknowledgement_waits_for_the_sync_of_the_journal():
    puppet = await Puppet.start()
    await puppet.settle()
    puppet.follow((1, b"x"))
    assert puppet.heard(AppendReply) == []
    await puppet.settle()
    assert puppet.heard(AppendReply) == [AppendReply(1, True, 1)]
    journal = next(d for p, d in puppet.node.disk.files.items() if p.name.startswith("journal"))
    assert b"x" in journal.synced


@virtual
async def test_f1_a_failed_sync_stops_the_node_and_is_never_acknowledged():
    puppet = await Puppet.start()
    puppet.node.disk.fail["sync"] = OSError(errno.EIO, "input/output error")
    puppet.follow((1, b"x"), term=1)
    await puppet.settle()
    assert puppet.heard(AppendReply) == []
    assert "input/output error" in puppet.consensus.halted
    puppet.node.disk.fail.clear()
    puppet.follow((1, b"x"))
    await puppet.settle()
    assert puppet.heard() == []
    assert len(puppet.node.recorder.halts) == 1


@virtual
async def test_f1_raft05_a_vote_is_durable_before_it_leaves():
    puppet = await Puppet.start()
    seen = []

    def tap(_source: str, _target: str, message: object) -> bool:
        if isinstance(message, VoteReply) and message.granted:
            seen.append(b"\xa1b" in puppet.node.disk.durable[METADATA].synced)
        return True

    puppet.cluster.wire.send = lambda source, target, message: tap(source, target, message)
    puppet.say("b", VoteRequest(1, 0, 0, transfer=False))
    assert seen == [True]


@virtual
async def test_f1_raft05_a_vote_survives_a_loss_of_power():
    puppet = await Puppet.start()
    puppet.say("b", VoteRequest(5, 0, 0, transfer=False))
    assert puppet.heard(VoteReply) == [VoteReply(5, granted=True)]
    puppet.cluster.kill("a", power_lost=True)
    await puppet.restart()
    assert puppet.consensus.term == 5
    puppet.say("c", VoteRequest(5, 9, 4, transfer=False))
    assert puppet.heard(VoteReply) == [VoteReply(5, granted=False)]


@virtual
async def test_f1_a_leader_counts_itself_only_once_durable():
    puppet = await Puppet.start()
    term = await puppet.lead()
    puppet.say("b", AppendReply(term, True, 1))
    index = puppet.consensus.append(b"x")
    sent = [m for m in puppet.heard(Append, "b") if m.entries]
    assert sent[-1].entries == [(term, b"x")], "entries may leave before the own sync"
    puppet.say("b", AppendReply(term, True, index))
    assert puppet.consensus.commit_index < index
    await puppet.settle()
    assert puppet.consensus.commit_index == index


# F6: terms of answers.


@virtual
async def test_f6_an_acknowledgement_of_an_older_term_does_not_count():
    puppet = await Puppet.start()
    term = await puppet.lead()
    puppet.say("b", AppendReply(term - 1, True, 1))
    await puppet.settle()
    assert puppet.consensus.commit_index == 0
    puppet.say("b", AppendReply(term, True, 1))
    assert puppet.consensus.commit_index == 1


@virtual
async def test_f6_a_higher_term_in_an_answer_ends_the_leadership():
    puppet = await Puppet.start()
    term = await puppet.lead()
    puppet.say("b", AppendReply(term + 1, False, 0))
    assert (puppet.consensus.role, puppet.consensus.term) == ("follower", term + 1)


@virtual
async def test_f6_a_request_of_a_lower_term_is_answered_with_the_newer():
    puppet = await Puppet.start()
    puppet.follow((7, b"x"))
    await puppet.settle()
    puppet.heard()
    puppet.say("c", Append(3, 0, 0, 0, []))
    puppet.say("c", VoteRequest(3, 9, 9, transfer=False))
    puppet.say("c", PreVoteRequest(3, 9, 9))
    puppet.say("c", SnapshotChunk(3, 9, 3, 10, 0, b""))
    assert [(type(m), m.term) for m in puppet.heard(peer="c")] == [
        (AppendReply, 7),
        (VoteReply, 7),
        (PreVoteReply, 7),
        (SnapshotReply, 7),
    ]
    assert puppet.consensus.leader == "b"


# F7: truncation of entries that were right.


@virtual
async def test_f7_a_late_shorter_append_cuts_nothing():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"), (1, b"3"))
    await puppet.settle()
    puppet.follow((1, b"1"))
    puppet.follow(prev=(1, 1))
    await puppet.settle()
    assert puppet.consensus.last_index == 3


@virtual
async def test_f7_a_conflict_is_cut_at_its_first_entry_and_durably():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"), (1, b"3"))
    await puppet.settle()
    puppet.follow((1, b"2"), (2, b"new"), prev=(1, 1))
    await puppet.settle()
    assert puppet.consensus.last_index == 3
    puppet.follow(prev=(3, 2), commit=3, term=2)
    assert puppet.node.machine.entries() == [b"1", b"2", b"new"]
    puppet.cluster.kill("a", power_lost=True)
    await puppet.restart()
    assert [puppet.node.engine.log.get(i).term for i in (1, 2, 3)] == [1, 1, 2]


@virtual
@pytest.mark.parametrize("prev", [(0, 0), (1, 9)])
async def test_f7_a_conflict_with_what_is_committed_stops_the_node(prev: tuple[int, int]):
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"), commit=2)
    await puppet.settle()
    puppet.follow((9, b"other"), prev=prev)
    assert puppet.consensus.halted is not None
    assert puppet.node.machine.entries() == [b"1", b"2"]


@virtual
async def test_f7_an_acknowledgement_never_makes_the_leader_send_again():
    cluster = await Cluster(max_append_entries=1).start()
    await cluster.propose(b"first")
    cluster.wire.sent.clear()
    leader = cluster.leader.consensus
    for number in range(200):
        leader.append(b"%d" % number)
        if number % 7 == 0:
            await asyncio.sleep(0.0007)
    await cluster.settled()
    for follower in cluster.followers():
        sent = [
            message.prev_index + 1
            for _, to, message in cluster.wire.sent
            if to == follower.name and isinstance(message, Append) and message.entries
        ]
        assert sent == sorted(set(sent))


@virtual
async def test_f7_a_time_of_total_silence_is_made_up_for():
    cluster = await Cluster().start()
    await cluster.propose(b"first")
    victim = cluster.followers()[0].name
    cluster.isolate(victim)
    for number in range(20):
        cluster.leader.consensus.append(b"%d" % number)
        await asyncio.sleep(0.05)
    cluster.heal()
    await cluster.settled()


@virtual
async def test_f7_a_lost_append_is_noticed_and_sent_again():
    cluster = await Cluster().start()
    await cluster.propose(b"first")
    victim = cluster.followers()[0].name
    lost = []

    def tap(_source: str, target: str, message: object) -> bool:
        if target == victim and isinstance(message, Append) and message.entries and not lost:
            lost.append(message)
            return False
        return True

    cluster.wire.tap = tap
    await cluster.propose(b"lost", b"second")
    assert lost


# F8: votes.


@virtual
async def test_f8_a_repeated_vote_counts_once_and_a_strangers_never():
    puppet = await Puppet.start("abcde")
    await puppet.cluster.wait(lambda: puppet.heard(PreVoteRequest))
    for peer in "bc":
        puppet.say(peer, PreVoteReply(0, 0, granted=True))
    assert puppet.consensus.role == "candidate"
    puppet.say("b", VoteReply(1, granted=True))
    puppet.say("b", VoteReply(1, granted=True))
    puppet.node.engine._candidacy.receive("stranger", VoteReply(1, granted=True))
    assert puppet.consensus.role == "candidate"
    puppet.say("c", VoteReply(1, granted=True))
    assert puppet.consensus.role == "leader"


@virtual
async def test_f8_a_vote_whose_answer_was_lost_is_granted_again_to_the_same_node_only():
    puppet = await Puppet.start()
    request = VoteRequest(1, 0, 0, transfer=False)
    puppet.say("b", request)
    puppet.say("b", request)
    puppet.say("c", request)
    granted = [m.granted for m in puppet.heard(VoteReply)]
    assert granted == [True, True, False]


@virtual
async def test_f8_a_candidate_asks_again_when_no_answer_comes():
    puppet = await Puppet.start()
    await puppet.cluster.wait(lambda: puppet.heard(PreVoteRequest))
    puppet.say("b", PreVoteReply(0, 0, granted=True))
    puppet.heard()
    await asyncio.sleep(0.3)
    assert puppet.heard(VoteRequest, "b")
    assert puppet.consensus.term == 1


@virtual
async def test_f8_a_node_that_was_cut_off_raises_no_term_and_unseats_nobody():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader, term = cluster.leader, cluster.leader.consensus.term
    loner = cluster.followers()[0]
    cluster.isolate(loner.name)
    await asyncio.sleep(10)
    assert loner.consensus.term == term
    cluster.heal()
    await asyncio.sleep(5)
    assert cluster.leader is leader
    assert leader.consensus.term == term


@virtual
async def test_f8_raft14_a_node_that_can_speak_but_not_hear_unseats_nobody():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader, term = cluster.leader, cluster.leader.consensus.term
    deaf = cluster.followers()[0].name
    cluster.wire.cut |= {(other, deaf) for other in "abc" if other != deaf}
    await asyncio.sleep(10)
    assert cluster.leader is leader
    assert leader.consensus.term == term


@virtual
async def test_f8_raft14_a_node_that_hears_all_but_the_leader_unseats_nobody():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader, term = cluster.leader, cluster.leader.consensus.term
    cluster.wire.cut.add((leader.name, cluster.followers()[0].name))
    await asyncio.sleep(10)
    assert cluster.leader is leader
    assert leader.consensus.term == term


@virtual
async def test_f8_who_hears_a_leader_refuses_even_a_higher_term_unless_the_leader_asked():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"))
    await puppet.settle()
    puppet.say("c", PreVoteRequest(1, 9, 1))
    puppet.say("c", VoteRequest(2, 9, 1, transfer=False))
    assert [m.granted for m in puppet.heard(peer="c")] == [False, False]
    assert puppet.consensus.term == 1
    puppet.say("c", PreVoteRequest(2, 9, 1))
    assert puppet.heard(peer="c") == [PreVoteReply(1, 2, granted=False)]
    assert puppet.consensus.term == 1, "who only asks about a term does not claim it"
    puppet.say("c", VoteRequest(2, 9, 1, transfer=True))
    assert puppet.heard(VoteReply, "c") == [VoteReply(2, granted=True)]


@virtual
async def test_f8_a_candidate_that_hears_its_terms_leader_follows_and_counts_no_more_votes():
    puppet = await Puppet.start()
    await puppet.cluster.wait(lambda: puppet.heard(PreVoteRequest))
    puppet.say("b", PreVoteReply(0, 0, granted=True))
    assert puppet.consensus.role == "candidate"
    puppet.follow(term=1)
    assert (puppet.consensus.role, puppet.consensus.leader) == ("follower", "b")
    puppet.say("c", VoteReply(1, granted=True))
    assert puppet.consensus.role == "follower"


@virtual
async def test_f8_a_shorter_log_gets_no_vote():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (2, b"2"))
    await puppet.settle()
    await asyncio.sleep(1)
    puppet.heard()
    for index, term, granted in [(1, 2, False), (9, 1, False), (2, 2, True), (1, 3, True)]:
        ask = puppet.consensus.term
        puppet.say("c", PreVoteRequest(ask, index, term))
        assert [m.granted for m in puppet.heard(PreVoteReply, "c")] == [granted]
    for index, term, granted in [(1, 2, False), (9, 1, False), (2, 2, True)]:
        ask = puppet.consensus.term + 1
        puppet.say("c", VoteRequest(ask, index, term, transfer=False))
        assert [m.granted for m in puppet.heard(VoteReply, "c")] == [granted]


@virtual
async def test_f8_a_leader_that_hears_nobody_has_a_follower_take_over_at_once():
    """Its followers hear it to its last moment: they would begin to wait only then."""
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    cluster.wire.cut |= {(other.name, old.name) for other in cluster.followers()}
    await asyncio.sleep(old.engine.settings.leader_fallback_s + 0.2)
    assert old.consensus.role == "follower"
    assert cluster.leader not in (old, None)
    cluster.heal()
    await cluster.propose(b"two")


@virtual
async def test_f8_a_leader_whose_links_are_broken_steps_down_as_soon_as_followers_stand():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    settings = old.engine.settings
    for peer in old.engine.others:
        old.engine._connected.discard(peer)
    cluster.isolate(old.name)
    await asyncio.sleep(settings.broken_link_max_s / 2)
    assert old.consensus.role == "leader"
    await asyncio.sleep(settings.broken_link_max_s / 2 + 2 * settings.tick_s)
    assert old.consensus.role == "follower"


@virtual
async def test_f8_a_leader_with_one_broken_link_goes_on():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader = cluster.leader
    lost = leader.engine.others[0]
    leader.engine._connected.discard(lost)
    cluster.isolate(lost)
    await asyncio.sleep(5)
    assert cluster.leader is leader


@virtual
async def test_f8_raft12_a_cut_off_leader_steps_down_within_two_seconds():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    cluster.isolate(old.name)
    old.consensus.append(b"never")
    await asyncio.sleep(1.1)
    assert old.consensus.role == "follower"
    assert old.recorder.leadership[-1] is None
    with pytest.raises(NotLeader):
        old.consensus.append(b"x")
    cluster.heal()
    await cluster.settled()
    assert b"never" not in old.machine.entries()


# F10: application.


@virtual
async def test_f10_raft08_an_exception_in_apply_stops_the_node_after_one_try():
    cluster = await Cluster("a").start()
    await cluster.propose(b"one")
    node = cluster["a"]
    node.machine.explode = True
    index = node.consensus.append(b"two")
    await asyncio.sleep(1)
    assert "RuntimeError" in node.consensus.halted
    assert node.machine.calls.count(index) == 1
    assert cluster.loop.failures.pop()["exception"].args == ("a fault in apply",)


@virtual
async def test_f10_an_unknown_operation_stops_the_node_and_says_why():
    cluster = await Cluster("a").start()
    await cluster.propose(b"one")
    node = cluster["a"]
    node.machine.refuse = "operation 99 is unknown"
    node.consensus.append(b"two")
    await asyncio.sleep(1)
    assert "operation 99 is unknown" in node.consensus.halted
    assert node.recorder.halts == [node.consensus.halted]
    assert node.recorder.leadership[-1] is None
    with pytest.raises(NotLeader):
        node.consensus.append(b"three")


@virtual
async def test_f10_raft09_an_exception_in_an_observer_applies_nothing_twice():
    cluster = await Cluster("a").start()
    await cluster.propose(b"one")
    node = cluster["a"]

    def fail(*_: object) -> None:
        raise RuntimeError("a fault in an observer")

    node.recorder.on_applied = fail
    index = node.consensus.append(b"two")
    await asyncio.sleep(1)
    assert node.machine.calls.count(index) == 1
    assert node.consensus.applied_index == index
    assert cluster.loop.failures.pop()["exception"].args == ("a fault in an observer",)


@virtual
async def test_f10_a_long_backlog_is_applied_in_turns():
    puppet = await Puppet.start(max_apply_per_turn=10)
    puppet.follow(*[(1, b"%d" % n) for n in range(35)], commit=35)
    seen = []
    for _ in range(8):
        seen.append(puppet.consensus.applied_index)
        await asyncio.sleep(0)
    assert sorted(set(seen)) == [0, 10, 20, 30, 35]
    assert seen[-1] == 35


@virtual
async def test_f10_a_backlog_that_takes_long_gives_way_after_each_slice():
    puppet = await Puppet.start(max_apply_s=0.005)
    machine, loop = puppet.node.machine, puppet.cluster.loop
    apply = machine.apply

    def slowly(index: int, entry: bytes) -> object:
        loop.virtual.now += 0.002
        return apply(index, entry)

    machine.apply = slowly
    puppet.follow(*[(1, b"%d" % n) for n in range(9)], commit=9)
    seen = []
    for _ in range(7):
        seen.append(puppet.consensus.applied_index)
        await asyncio.sleep(0)
    assert sorted(set(seen)) == [0, 3, 6, 9]


@virtual
async def test_a_turn_applies_no_longer_whatever_it_is_called_by():
    puppet = await Puppet.start(max_apply_s=0.005)
    machine, loop = puppet.node.machine, puppet.cluster.loop
    apply = machine.apply

    def slowly(index: int, entry: bytes) -> object:
        loop.virtual.now += 0.003
        return apply(index, entry)

    machine.apply = slowly
    puppet.follow(*[(1, b"%d" % n) for n in range(6)], commit=0)
    await asyncio.sleep(0.1)
    applied = []
    for commit in (1, 2, 3, 4):
        puppet.follow(commit=commit, prev=(6, 1))
        applied.append(puppet.consensus.applied_index)
    assert applied == [1, 2, 2, 2]
    await asyncio.sleep(0.1)
    assert puppet.consensus.applied_index == 4


@virtual
async def test_a_follower_acknowledges_before_it_applies():
    puppet = await Puppet.start()
    puppet.follow((1, b"x"))
    await puppet.settle()
    puppet.heard()
    puppet.follow((1, b"y"), prev=(1, 1), commit=1)
    await asyncio.sleep(0)
    assert puppet.heard(AppendReply) == [AppendReply(1, True, 2)]
    assert puppet.consensus.applied_index == 0, "sockets are written at the end of the turn"
    await asyncio.sleep(0)
    assert puppet.consensus.applied_index == 1


@virtual
async def test_a_commit_is_told_by_the_next_entry_or_soon_by_itself():
    cluster = await Cluster().start()
    await cluster.propose(b"first")
    leader = cluster.leader
    await asyncio.sleep(0.1)
    cluster.wire.sent.clear()
    for number in range(100):
        leader.consensus.append(b"%d" % number)
        await asyncio.sleep(0.0023)
    appends = [m for _, _, m in cluster.wire.sent if isinstance(m, Append)]
    assert len(appends) == 200
    assert all(message.entries for message in appends), "entries told of every commit"
    last = leader.consensus.last_index
    notice_s = cluster.settings.commit_notice_s
    await asyncio.sleep(2 * notice_s + 0.002)
    assert all(m.consensus.applied_index == last for m in cluster.members.values())


@virtual
async def test_what_is_put_together_once_still_tells_each_what_is_the_latest():
    puppet = await Puppet.start()
    term = await puppet.lead()
    for peer in "bc":
        puppet.say(peer, AppendReply(term, True, 1))
    await puppet.settle()
    puppet.heard()
    puppet.consensus.append(b"x")
    to_b, to_c = puppet.heard(Append)
    assert to_b is to_c, "it is encoded once"
    network = puppet.node.endpoint.receiver
    for peer in "bc":
        network.on_disconnected(peer)
    assert not any(peer.connected for peer in puppet.consensus.peers())
    puppet.consensus.append(b"y")
    await puppet.settle()
    assert puppet.heard() == []
    for peer, commit in ("b", 1), ("c", 3):
        network.on_connected(peer)
        puppet.say(peer, AppendReply(term, True, 1))
        told = puppet.heard(Append, peer)[-1]
        assert told == Append(term, 1, term, commit, [(term, b"x"), (term, b"y")], 1)
        puppet.say(peer, AppendReply(term, True, 3))


# F11: commit index and snapshots.


@virtual
async def test_f11a_the_commit_index_never_passes_what_was_matched_with_this_leader():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"), (1, b"mine, never committed"))
    await puppet.settle()
    puppet.follow(prev=(1, 1), commit=3, term=2)
    assert puppet.consensus.commit_index == 1
    puppet.say("b", SnapshotChunk(2, 50, 2, 1000, 0, b"x"))
    assert puppet.consensus.commit_index == 1


async def _snapshot_file(entries: int) -> tuple[bytes, int, int]:
    """The file of a snapshot, its index and its term."""
    cluster = await Cluster("a", snapshot_entries=entries).start()
    await cluster.propose(*[b"%d" % n for n in range(entries)])
    node = cluster["a"]
    path = max(p for p in node.disk.files if p.name.startswith("snapshot-"))
    position = node.engine.storage.position
    await node.consensus.stop()
    return bytes(node.disk.files[path].written), position.index, position.term


@virtual
async def test_f11b_raft04_a_damaged_snapshot_is_refused_and_not_acknowledged():
    raw, index, term = await _snapshot_file(30)
    for position in range(0, len(raw), 7):
        puppet = await Puppet.start()
        bad = bytearray(raw)
        bad[position] ^= 1
        puppet.say("b", SnapshotChunk(9, index, term, len(raw), 0, bytes(bad)))
        await puppet.installed()
        assert puppet.heard(SnapshotReply) == [SnapshotReply(9, index, 0, installed=False)]
        assert puppet.consensus.applied_index == 0
        assert puppet.node.machine.applied == []
        puppet.cluster.kill("a")


@virtual
async def test_f11b_a_sound_snapshot_is_acknowledged_with_its_index_once_durable():
    raw, index, term = await _snapshot_file(30)
    puppet = await Puppet.start()
    half = len(raw) // 2
    puppet.say("b", SnapshotChunk(9, index, term, len(raw), 0, raw[:half]))
    puppet.say("b", SnapshotChunk(9, index, term, len(raw), 0, raw[:half]))  # repeated
    puppet.say("b", SnapshotChunk(9, index, term, len(raw), half + 1, raw[half + 1 :]))  # a gap
    puppet.say("b", SnapshotChunk(9, index, term, len(raw), half, raw[half:]))
    await puppet.installed()
    said = [(m.received, m.installed) for m in puppet.heard(SnapshotReply)]
    assert said == [(half, False), (half, False), (half, False), (len(raw), True)]
    assert puppet.node.recorder.installed == [index]
    puppet.cluster.kill("a", power_lost=True)
    await puppet.restart()
    assert puppet.consensus.applied_index == index
    assert len(puppet.node.machine.applied) == index - 1


@virtual
async def test_f11c_an_older_snapshot_is_never_installed_over_newer_state():
    raw, index, term = await _snapshot_file(30)
    puppet = await Puppet.start()
    entries = [(1, b"%d" % n) for n in range(index + 5)]
    puppet.follow(*entries, commit=index + 5)
    await puppet.settle()
    puppet.heard()
    puppet.say("b", SnapshotChunk(1, index, term, len(raw), 0, raw))
    assert puppet.heard(SnapshotReply) == [SnapshotReply(1, index, len(raw), installed=True)]
    assert puppet.consensus.applied_index == index + 5
    assert puppet.node.recorder.installed == []


@virtual
async def test_f11c_an_older_snapshot_is_refused_even_when_the_log_has_forgotten_its_place():
    raw, index, term = await _snapshot_file(30)
    puppet = await Puppet.start(snapshot_entries=index + 20, trailing_entries=1)
    entries = [(1, b"%d" % n) for n in range(index + 20)]
    puppet.follow(*entries, commit=index + 20)
    await puppet.cluster.wait(lambda: puppet.node.engine.log.base_index > index)
    puppet.heard()
    puppet.say("b", SnapshotChunk(1, index, term, len(raw), 0, raw))
    assert puppet.heard(SnapshotReply) == [SnapshotReply(1, index, len(raw), installed=True)]
    assert puppet.consensus.halted is None
    assert puppet.consensus.applied_index == index + 20


@virtual
async def test_f11c_a_snapshot_that_the_log_covers_cuts_no_acknowledged_entry():
    raw, index, term = await _snapshot_file(30)
    puppet = await Puppet.start()
    entries = [(term, b"%d" % n) for n in range(index + 5)]
    puppet.follow(*entries, commit=0)
    await puppet.settle()
    puppet.say("b", SnapshotChunk(term, index, term, len(raw), 0, raw))
    assert puppet.consensus.last_index == index + 5
    assert puppet.consensus.commit_index == index


@virtual
async def test_f11_a_snapshot_over_the_limit_is_refused():
    puppet = await Puppet.start(max_snapshot_bytes=1000)
    puppet.say("b", SnapshotChunk(1, 5, 1, 1001, 0, b"x" * 300))
    assert puppet.heard(SnapshotReply) == [SnapshotReply(1, 5, 0, installed=False)]


@virtual
async def test_f11_lost_pieces_of_a_snapshot_and_lost_answers_are_made_up_for():
    cluster = await Cluster(
        snapshot_entries=20, trailing_entries=1, snapshot_chunk_bytes=60
    ).start()
    await cluster.propose(*[b"%d" % n for n in range(60)])
    name = cluster.followers()[0].name
    cluster.kill(name)
    cluster[name].disk.wipe()
    seen = {SnapshotChunk: 0, SnapshotReply: 0}

    def tap(_source: str, _target: str, message: object) -> bool:
        if type(message) in seen:
            seen[type(message)] += 1
            return seen[type(message)] % 3 != 0
        return True

    cluster.wire.tap = tap
    await cluster.start(name)
    await cluster.settled()
    assert min(seen.values()) > 3


@virtual
@pytest.mark.parametrize("more", [0, 1], ids=["nothing newer", "something newer"])
async def test_f11_a_leader_replaces_its_damaged_snapshot_rather_than_send_it(more: int):
    cluster = await Cluster(snapshot_entries=20, trailing_entries=1).start()
    await cluster.propose(*[b"%d" % n for n in range(59)])  # and the barrier: 60
    name = cluster.followers()[0].name
    cluster.kill(name)
    cluster[name].disk.wipe()
    assert await cluster.snapshot(cluster.leader.name) == 60
    disk = cluster.leader.disk
    path = max(p for p in disk.files if p.name.startswith("snapshot-"))
    disk.files[path].written[50] ^= 1
    await cluster.propose(*[b"more"] * more)
    await cluster.start(name)
    await cluster.settled()
    assert any(p.name.endswith(".damaged") for p in disk.files)


@virtual
async def test_f11e_no_code_version_lives_outside_of_the_state():
    """None can be enabled, so none is lost when a snapshot takes the place of the log."""
    cluster = await Cluster("a").start()
    engine = cluster["a"].engine
    with pytest.raises(Exception, match="wrong version, current version is 0"):
        engine.setCodeVersion(1)
    with pytest.raises(AssertionError, match="proposals come through append"):
        engine.setCodeVersion(0)
    assert engine.getCodeVersion() == 0


# L1, M1, C1, O1, T1, P1.


@virtual
async def test_l1_a_divergent_tail_and_much_newer_data_are_reconciled_at_once():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    cluster.isolate(old.name)
    old.consensus.append(b"divergent")
    await cluster.wait(lambda: cluster.leader not in (None, old))
    new = cluster.leader
    for number in range(60):
        new.consensus.append(b"%d" % number + bytes(4000))
        await asyncio.sleep(0.003)
    cluster.heal()
    healed = cluster.loop.time()
    await cluster.settled()
    assert cluster.loop.time() - healed < 2
    assert b"divergent" not in old.machine.entries()


@virtual
async def test_l1_a_long_divergent_tail_takes_one_step_for_each_term_not_each_entry():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), *[(2, b"x")] * 50, *[(3, b"y")] * 50)
    await puppet.settle()
    puppet.heard()
    puppet.follow(prev=(101, 9), term=9)
    assert puppet.heard(AppendReply) == [AppendReply(9, False, 101, hint_index=52, hint_term=3)]
    puppet.follow(prev=(500, 9), term=9)
    assert puppet.heard(AppendReply) == [AppendReply(9, False, 500, hint_index=102)]


@virtual
async def test_l1_while_probing_one_message_is_in_flight():
    puppet = await Puppet.start()
    await puppet.lead()
    puppet.heard()
    for _ in range(20):
        puppet.consensus.append(b"x" * 10_000)
    assert puppet.heard(Append) == []


@virtual
async def test_m1_membership_cannot_be_changed_through_the_engine():
    cluster = await Cluster("a").start()
    engine = cluster["a"].engine
    assert engine.conf.dynamicMembershipChange is False
    with pytest.raises(Exception, match="dynamicMembershipChange"):
        engine.addNodeToCluster("x:1")
    with pytest.raises(AssertionError):
        engine._applyCommand(b"x", None)


@virtual
async def test_c1_the_commit_index_is_learnt_anew_after_a_restart():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"), commit=2)
    await puppet.settle()
    assert puppet.consensus.commit_index == 2
    puppet.cluster.kill("a")
    await puppet.restart()
    assert (puppet.consensus.commit_index, puppet.consensus.last_index) == (0, 2)
    assert puppet.node.machine.applied == []


@virtual
async def test_c1_entries_of_earlier_terms_are_not_committed_by_counting():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"), (1, b"2"))
    await puppet.settle()
    await asyncio.sleep(1)
    term = await puppet.lead()
    puppet.say("b", AppendReply(term, True, 2))
    await puppet.settle()
    assert puppet.consensus.commit_index == 0
    puppet.say("b", AppendReply(term, True, 3))
    assert puppet.consensus.commit_index == 3


@virtual
async def test_o1_raft13_a_leader_is_announced_only_behind_its_own_barrier():
    puppet = await Puppet.start(max_apply_per_turn=4)
    puppet.follow(*[(1, b"%d" % n) for n in range(10)])
    await puppet.settle()
    await asyncio.sleep(1)
    term = await puppet.lead()
    assert puppet.consensus.role == "leader"
    assert puppet.consensus.leading_term is None
    puppet.say("b", AppendReply(term, True, 11))
    assert puppet.consensus.commit_index == 11
    assert puppet.consensus.leading_term is None, "earlier entries are not applied yet"
    applied_at_announcement = []
    puppet.node.recorder.on_leadership = lambda _: applied_at_announcement.append(
        (puppet.consensus.applied_index, len(puppet.node.machine.applied))
    )
    await asyncio.sleep(0.01)
    assert applied_at_announcement == [(11, 10)]
    assert puppet.consensus.leading_term == term


@virtual
async def test_o1_the_end_of_a_leadership_is_announced():
    puppet = await Puppet.start()
    term = await puppet.lead()
    puppet.say("b", AppendReply(term, True, 1))
    await puppet.settle()
    puppet.follow(term=term + 1)
    assert puppet.node.recorder.leadership == [term, None]
    assert puppet.consensus.leading_term is None


@virtual
async def test_t1_a_stalled_follower_reads_what_is_waiting_before_it_stands():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader, follower = cluster.leader, cluster.followers()[0]
    term = leader.consensus.term
    cluster.pause(follower.name)
    await asyncio.sleep(1.2)
    cluster.wire.sent.clear()
    cluster.resume(follower.name)
    await asyncio.sleep(0.5)
    asked = [m for s, _, m in cluster.wire.sent if s == follower.name]
    assert not [m for m in asked if isinstance(m, PreVoteRequest | VoteRequest)]
    assert (cluster.leader, leader.consensus.term) == (leader, term)


@virtual
async def test_t1_ticks_that_always_come_late_still_end_in_an_election():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"))
    await puppet.settle()
    puppet.consensus._ticker.cancel()
    for _ in range(40):
        await asyncio.sleep(0.1)
        puppet.node.engine.doTick()
    assert puppet.heard(PreVoteRequest)


@virtual
async def test_t1_a_leader_that_was_stopped_for_long_finds_itself_replaced():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    cluster.pause(old.name)
    await asyncio.sleep(3)
    cluster.resume(old.name)
    assert old.consensus.role == "follower"
    assert old.recorder.leadership[-1] is None
    await cluster.propose(b"two")


@virtual
async def test_p1_entries_stay_raw_on_the_wire():
    data = bytes(range(256)) * 32
    message = Append(5, 2**40, 5, 2**40, [(5, data)])
    assert len(msgspec.msgpack.encode(message)) < len(data) + 64


@virtual
async def test_p1_a_backlog_is_sent_in_bounded_messages_and_bounded_flight():
    settings = {"max_append_entries": 10, "max_append_bytes": 5000, "max_inflight_bytes": 20_000}
    puppet = await Puppet.start(**settings)
    term = await puppet.lead()
    for _ in range(100):
        puppet.consensus.append(bytes(1000))
    puppet.heard()
    puppet.say("b", AppendReply(term, True, 1))
    sent = puppet.heard(Append, "b")
    assert all(len(m.entries) <= 5 for m in sent)
    assert sum(len(m.entries) for m in sent) == 20


# What lies between the ids.


@virtual
async def test_raft16_an_emptied_node_does_not_vote_until_it_has_caught_up():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader = cluster.leader.name
    emptied, other = (m.name for m in cluster.followers())
    cluster.kill(other)
    await cluster.propose(b"two")  # held by the leader and the one that is emptied next
    cluster.kill(emptied)
    cluster[emptied].disk.wipe()
    cluster.kill(leader)
    await cluster.start(other, emptied)
    await asyncio.sleep(20)
    assert cluster.leader is None, "a node that lacks `two` was elected by one that forgot it"
    await cluster.start(leader)
    await cluster.settled()
    assert cluster[emptied].machine.entries() == [b"one", b"two"]
    cluster.kill(leader)
    await cluster.propose(b"three")  # it has caught up, and votes again


@virtual
async def test_two_leaders_of_one_term_stop_the_node():
    puppet = await Puppet.start()
    term = await puppet.lead()
    puppet.follow(term=term)
    assert "both lead" in puppet.consensus.halted


@virtual
async def test_a_broken_connection_to_the_leader_shortens_the_wait():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"))
    await puppet.settle()
    puppet.node.endpoint.receiver.on_disconnected("c")
    assert puppet.consensus.leader == "b"
    puppet.node.endpoint.receiver.on_disconnected("b")
    assert puppet.consensus.leader is None
    await asyncio.sleep(RaftSettings().broken_link_max_s + 0.03)
    assert puppet.heard(PreVoteRequest)


@virtual
async def test_the_journal_holds_all_that_a_snapshot_covers():
    """So the journal can stand in for a damaged snapshot."""
    puppet = await Puppet.start(snapshot_entries=5)
    term = await puppet.lead()
    puppet.say("b", AppendReply(term, True, 1))
    last = [puppet.consensus.append(b"%d" % n) for n in range(10)][-1]
    for peer in "bc":
        puppet.say(peer, AppendReply(term, True, last))
    storage = puppet.node.engine.storage
    await puppet.cluster.wait(lambda: storage.position.index)
    assert storage.position.index == last
    assert storage.journal.durable_index == last


@virtual
async def test_only_the_leader_can_ask_for_an_election_at_once():
    puppet = await Puppet.start()
    puppet.follow((1, b"1"))
    await puppet.settle()
    puppet.say("c", TimeoutNow(1))
    assert puppet.heard(VoteRequest) == []
    puppet.say("b", TimeoutNow(1))
    assert [m.transfer for m in puppet.heard(VoteRequest)] == [True, True]


@virtual
async def test_followers_learn_of_a_commit_without_waiting_for_a_heartbeat():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    began = cluster.loop.time()
    await cluster.propose(b"two")
    assert cluster.loop.time() - began < 0.02


@virtual
async def test_a_full_disk_fails_a_snapshot_and_nothing_else():
    cluster = await Cluster("a", snapshot_entries=10).start()
    node = cluster["a"]
    await cluster.propose(b"one")
    create = node.disk.create

    def full(path: Path):
        if path.name == "writing.tmp":
            raise OSError(errno.ENOSPC, "no space left on device")
        return create(path)

    node.disk.create = full
    await cluster.propose(*[b"x"] * 30)
    assert node.consensus.halted is None
    assert node.consensus.stats.snapshot_failures > 0
    node.disk.create = create
    await cluster.propose(*[b"y"] * 30)
    await cluster.wait(lambda: node.consensus.stats.snapshots_taken)

"""Three nodes live through an ordinary life: election, replication, loss, return."""

from __future__ import annotations

import asyncio

import pytest
from raft_harness import Cluster, virtual

from timeball.cluster.raft.errors import NotLeader, OutcomeUnknown


@virtual
async def test_three_nodes_elect_one_leader_and_replicate():
    cluster = await Cluster().start()
    await cluster.propose(b"one", b"two", b"three")
    for member in cluster.members.values():
        assert member.machine.entries() == [b"one", b"two", b"three"]
    assert [m.leads for m in cluster.members.values()].count(True) == 1


@virtual
async def test_a_single_node_leads_itself():
    cluster = await Cluster("a").start()
    await cluster.propose(b"one")
    assert cluster["a"].machine.entries() == [b"one"]


@virtual
async def test_five_nodes_survive_two_losses():
    cluster = await Cluster("abcde").start()
    await cluster.propose(b"one")
    cluster.kill((await cluster.elected()).name)
    cluster.kill((await cluster.elected()).name)
    await cluster.propose(b"two")
    assert cluster.leader.machine.entries() == [b"one", b"two"]


@virtual
async def test_a_follower_refuses_to_append_and_names_the_leader():
    cluster = await Cluster().start()
    leader = await cluster.elected()
    with pytest.raises(NotLeader) as refused:
        cluster.followers()[0].consensus.append(b"x")
    assert refused.value.leader == leader.name


@virtual
async def test_the_next_leader_serves_within_a_second_of_the_last_ones_death():
    for seed in range(10):
        cluster = await Cluster(seed=seed).start()
        await cluster.propose(b"one")
        cluster.kill(cluster.leader.name)
        died = cluster.loop.time()
        await cluster.propose(b"two")
        assert cluster.loop.time() - died < 1.0


@virtual
async def test_a_killed_leader_comes_back_and_catches_up():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader.name
    cluster.kill(old)
    await cluster.propose(b"two", b"three")
    await cluster.start(old)
    await cluster.settled()
    assert cluster[old].machine.entries() == [b"one", b"two", b"three"]


@virtual
async def test_an_emptied_follower_gets_a_snapshot():
    cluster = await Cluster(snapshot_entries=20, trailing_entries=5).start()
    for number in range(50):
        await cluster.propose(b"entry %d" % number)
    name = cluster.followers()[0].name
    cluster.kill(name)
    cluster[name].disk.wipe()
    await cluster.start(name)
    await cluster.settled()
    assert cluster[name].recorder.installed
    assert len(cluster[name].machine.entries()) == 50
    await cluster.propose(b"more")


@virtual
async def test_a_restart_of_all_keeps_everything():
    cluster = await Cluster(snapshot_entries=20, trailing_entries=5).start()
    for number in range(30):
        await cluster.propose(b"entry %d" % number)
    for name in "abc":
        cluster.kill(name, power_lost=True)
    await cluster.start()
    await cluster.settled()
    assert cluster["a"].machine.entries() == [b"entry %d" % n for n in range(30)]


@virtual
async def test_a_stopping_leader_hands_over_at_once():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    began = cluster.loop.time()
    await old.consensus.stop()
    old.up = False
    await cluster.elected()
    assert cluster.loop.time() - began < cluster.settings.broken_link_min_s


@virtual
async def test_peers_are_described():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    peers = cluster.leader.consensus.peers()
    assert [p.connected for p in peers] == [True, True]
    assert all(p.match_index == cluster.leader.consensus.last_index for p in peers)
    assert all(p.last_response_age_s < 0.2 for p in peers)
    assert all(m.consensus.quorum_seen for m in cluster.members.values())
    cluster.isolate(cluster.leader.name)
    await asyncio.sleep(2)
    assert [m.consensus.quorum_seen for m in cluster.members.values()].count(False) == 1


@virtual
async def test_a_leader_that_stops_itself_half_way_through_an_entry_does_not_call_it_unwritten():
    """One follower has the entry already: the next leader may well commit it."""
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader = cluster.leader
    send, sent = leader.endpoint.send, []

    def fail_after_the_first(peer, message):
        if sent:
            raise OSError("a file of the leader cannot be read")
        sent.append(peer)
        return send(peer, message)

    leader.endpoint.send = fail_after_the_first
    with pytest.raises(OutcomeUnknown):
        leader.consensus.append(b"two")
    holder = cluster[sent[0]]
    await cluster.wait(lambda: holder.consensus.last_index > leader.consensus.commit_index)
    cluster.kill(leader.name)
    await cluster.settled()
    assert cluster.leader.machine.entries() == [b"one", b"two"]

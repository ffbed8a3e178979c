"""OPER-03: a cluster of old and new releases, while it is upgraded node by node.

Three virtual nodes with the real state machine, group commit and keeper of the level. The
next release is played by patched tables: it knows one more operation, of level 2.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from raft_harness import Cluster, Member, Puppet, virtual

from timeball.cluster.levels import LOOK_S, LevelKeeper, objection_at
from timeball.cluster.raft.commit import GroupCommit
from timeball.cluster.raft.errors import Halted, LevelTooLow, NotLeader, OutcomeUnknown
from timeball.cluster.raft.interface import Observer
from timeball.cluster.raft.messages import AppendReply
from timeball.cluster.raft.settings import CommitSettings
from timeball.cluster.state import machine as machine_module
from timeball.cluster.state import operations
from timeball.cluster.state.levels import LEVELS
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    AnyOperation,
    CreateJobs,
    NewJob,
    Operation,
    encode_entry,
)


class Tally(Operation, frozen=True, tag=200):
    """An operation of level 2, which no release has."""

    count: int


class EntryOfNext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    log_time_ms: int
    operations: list[AnyOperation | Tally]


def tally(store: Any, operation: Tally) -> int:
    store.counters.duplicates += operation.count
    return store.counters.duplicates


@pytest.fixture(autouse=True)
def next_release(monkeypatch):
    monkeypatch.setitem(LEVELS, Tally, 2)
    monkeypatch.setitem(machine_module._RULES, Tally, tally)
    monkeypatch.setattr(operations, "_decoder", msgspec.msgpack.Decoder(EntryOfNext))


class _Duty(Observer):
    """What a node does with leadership, as far as the level goes."""

    def __init__(self, keeper: LevelKeeper) -> None:
        self._keeper = keeper

    def on_leadership(self, term):
        self._keeper.stop()
        if term is not None:
            self._keeper.start()

    def on_halt(self, reason):
        self._keeper.stop()


class Fleet(Cluster):
    """Nodes with a release each, told by the level that it supports."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.supports = dict.fromkeys("abc", 1)
        self.commits: dict[str, GroupCommit] = {}

    def new_machine(self, name):
        return StateMachine(self.supports[name])

    def joined(self, member: Member) -> None:
        state, replica = member.machine, member.consensus
        commit = GroupCommit(
            replica,
            operations.encode_entry,
            lambda: 1_000 + round(self.loop.time() * 1000),
            CommitSettings(),
            last_log_time=lambda: state.log_time_ms,
            clock=self.loop.time,
            objection=objection_at(state),
        )
        self.commits[member.name] = commit
        keeper = LevelKeeper(state, replica, commit.propose)
        replica.add_observer(_Duty(keeper))

    async def restart(self, name: str, supports: int) -> None:
        """Another release takes the place of the one that runs on this node."""
        if self[name].up:
            self.kill(name)
        self.supports[name] = supports
        await self.start(name)
        await self.caught_up()

    async def caught_up(self) -> None:
        await self.settled()
        await asyncio.sleep(3 * LOOK_S)
        await self.settled()

    async def ask(self, operation: Operation) -> Any:
        """Propose at whoever leads, again if its leadership ends."""
        while True:
            leader = await self.elected()
            try:
                return await self.commits[leader.name].propose(operation)
            except (NotLeader, OutcomeUnknown):
                await asyncio.sleep(0.1)

    def levels(self) -> set[int]:
        return {member.machine.level for member in self.members.values() if member.up}


def work(number: int) -> CreateJobs:
    return CreateJobs(f"r{number}", [NewJob("q", b"x" * 20)])


async def a_fleet(**settings: Any) -> Fleet:
    fleet = Fleet(**settings)
    await fleet.start(*"abc")
    await fleet.caught_up()
    return fleet


@virtual
async def test_oper_03_the_level_rises_only_when_the_last_member_is_upgraded():
    fleet = await a_fleet()
    for number, name in enumerate("abc"):
        assert fleet.levels() == {1}
        with pytest.raises(LevelTooLow):
            await fleet.ask(Tally(1))
        await fleet.ask(work(number))
        await fleet.restart(name, supports=2)
    assert fleet.levels() == {2}
    assert await fleet.ask(Tally(5)) == 5
    await fleet.settled()
    assert {member.machine.counters.created for member in fleet.members.values()} == {3}


@virtual
async def test_oper_03_a_member_that_is_away_holds_the_level():
    fleet = await a_fleet()
    fleet.kill("c")
    await fleet.restart("a", supports=2)
    await fleet.restart("b", supports=2)
    assert fleet.levels() == {1}
    await fleet.restart("c", supports=2)
    assert fleet.levels() == {2}


@virtual
async def test_oper_03_before_the_raise_each_node_may_go_back_and_fail_over_goes_both_ways():
    fleet = await a_fleet()
    await fleet.restart("a", supports=2)
    await fleet.restart("b", supports=2)
    for number, name in enumerate("abcabc"):
        await fleet.ask(work(number))
        await fleet.restart(name, supports=fleet.supports[name])  # leaders of either release
    for name in "ab":
        await fleet.restart(name, supports=1)
    await fleet.ask(work(99))
    await fleet.caught_up()
    assert fleet.levels() == {1}
    assert {member.machine.counters.created for member in fleet.members.values()} == {7}


async def upgraded(**settings: Any) -> Fleet:
    fleet = await a_fleet(**settings)
    for name in "abc":
        await fleet.restart(name, supports=2)
    assert fleet.levels() == {2}
    return fleet


@virtual
async def test_oper_03_after_the_raise_an_old_release_stops_at_the_entry_that_it_replays():
    fleet = await upgraded()
    fleet.kill("c")
    await fleet.ask(Tally(1))
    fleet.supports["c"] = 1
    await fleet.start("c")
    await fleet.wait(lambda: fleet["c"].consensus.halted)
    assert "raises the cluster to feature level 2; this release supports level 1" in (
        fleet["c"].consensus.halted
    )
    assert fleet["c"].recorder.halts == [fleet["c"].consensus.halted]
    fleet.kill("c")
    await fleet.restart("c", supports=2)
    assert fleet.levels() == {2}


@virtual
async def test_oper_03_after_the_raise_an_old_release_does_not_start_from_a_snapshot_above_it():
    fleet = await upgraded()
    await fleet.snapshot("c")
    fleet.kill("c")
    fleet.supports["c"] = 1
    with pytest.raises(
        Halted,
        match=r"cannot be loaded: the state is at feature level 2; this release supports level 1",
    ):
        await fleet.start("c")
    fleet["c"].disk.locked = False
    await fleet.restart("c", supports=2)
    assert fleet.levels() == {2}, "nothing was set aside as damaged"


@virtual
async def test_oper_03_an_old_release_that_is_sent_a_snapshot_above_it_stops():
    fleet = await upgraded(trailing_entries=5)
    fleet.kill("c")
    fleet["c"].disk.wipe()
    for number in range(20):
        await fleet.ask(work(number))
    await fleet.snapshot("a")
    await fleet.snapshot("b")
    fleet.supports["c"] = 1
    await fleet.start("c")
    await fleet.wait(lambda: fleet["c"].consensus.halted)
    assert "the leader's snapshot cannot be loaded: the state is at feature level 2; this" in (
        fleet["c"].consensus.halted
    )


@virtual
async def test_each_answer_to_a_leader_tells_the_level_and_a_new_connection_forgets_it():
    puppet = await Puppet.start()
    term = await puppet.lead()
    told = lambda: [peer.level for peer in puppet.consensus.peers()]  # noqa: E731
    assert told() == [None, None]
    puppet.say("b", AppendReply(term, True, 1, level=3))
    puppet.say("c", AppendReply(term, False, 1, 1))
    assert told() == [3, 1], "who tells no level is of the first"
    puppet.node.endpoint.receiver.on_disconnected("b")
    assert told() == [None, 1]
    puppet.node.endpoint.receiver.on_connected("b")
    assert told() == [None, 1]


@virtual
async def test_oper_03_an_old_journal_is_replayed_to_the_same_state_by_the_next_release():
    fleet = await a_fleet()
    for number in range(30):
        await fleet.ask(work(number))
    await fleet.settled()
    digest = fleet["a"].machine.digest()
    replayed = StateMachine(supported_level=2)
    for index, _, entry in fleet["a"].recorder.applied:
        assert replayed.apply(index, entry).halt is None
    assert replayed.digest() == digest
    assert replayed.apply(10_000, encode_entry(0, [])).halt is None

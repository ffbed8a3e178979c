"""Reads that ask for freshness: none is answered from the past, and each one ends (RAFT-12, 13)."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from raft_harness import Cluster, Puppet, virtual

from timeball.cluster.raft.errors import (
    ConsensusError,
    NotCaughtUp,
    NotConfirmed,
    NotLeader,
    TooManyReads,
)
from timeball.cluster.raft.messages import (
    Append,
    AppendReply,
    Message,
    ReadReply,
    ReadRequest,
)


async def serving_puppet(names: str = "abc", **settings: object) -> Puppet:
    """A leader whose barrier, entry 1, is committed and applied."""
    puppet = await Puppet.start(names, **settings)
    term = await puppet.lead()
    for peer in names[1 : len(names) // 2 + 1]:
        puppet.say(peer, AppendReply(term, True, 1, round=1))
    await puppet.settle()
    assert puppet.consensus.leading_term == term
    puppet.heard()
    return puppet


async def following_puppet() -> Puppet:
    """A follower of `b` with two entries applied."""
    puppet = await Puppet.start()
    say_follow(puppet, (3, b"x"), (3, b"y"), commit=2)
    await puppet.settle()
    assert puppet.consensus.applied_index == 2
    puppet.heard()
    return puppet


def say_follow(puppet: Puppet, *entries, prev=(0, 0), commit=0, number=1):
    puppet.say("b", Append(3, *prev, commit, list(entries), number))


def asked(puppet: Puppet) -> ReadRequest:
    (question,) = puppet.heard(ReadRequest)
    return question


# A leader.


@virtual
async def test_raft12_a_strong_read_waits_for_a_majority_asked_after_it_came():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    assert {message.round for message in puppet.heard(Append)} == {2}
    for _ in range(2):  # what was asked before, however late and often it is answered
        puppet.say("b", AppendReply(term, True, 1, round=1))
        puppet.say("c", AppendReply(term, True, 1, round=1))
    puppet.say("c", AppendReply(term, True, 1))  # a release without rounds
    await puppet.settle()
    assert not read.done()
    puppet.say("c", AppendReply(term, True, 1, round=2))
    await puppet.settle()
    assert read.result() is None


@virtual
async def test_a_member_counts_once_for_a_round():
    puppet = await serving_puppet("abcde")
    term = puppet.consensus.term
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    for _ in range(3):
        puppet.say("b", AppendReply(term, True, 1, round=2))
    await puppet.settle()
    assert not read.done()
    puppet.say("c", AppendReply(term, False, 1, hint_index=1, round=2))
    await puppet.settle()
    assert read.done(), "a refusal is an answer in this term, too"


@virtual
async def test_answers_of_an_older_term_do_not_count_for_a_round():
    puppet = await serving_puppet()
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    puppet.say("b", AppendReply(puppet.consensus.term - 1, True, 1, round=2))
    await puppet.settle()
    assert not read.done()


@virtual
async def test_raft12_a_read_of_a_leader_that_is_deposed_meanwhile_is_refused_at_once():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    reads = [puppet.consensus.read(0, strong=True)]
    await puppet.settle()
    reads.append(puppet.consensus.read(0, strong=True))  # for the next round
    puppet.say("c", AppendReply(term + 1, False, 0, round=2))
    await puppet.settle()
    for read in reads:
        assert isinstance(read.exception(), NotConfirmed)


@virtual
async def test_raft13_a_new_leader_tells_no_index_before_its_barrier_is_applied():
    """Till then it may not know of all that its predecessors committed."""
    puppet = await Puppet.start()
    term = await puppet.lead()
    read = puppet.consensus.read(0, strong=True)
    puppet.say("c", ReadRequest(term, 77))
    await puppet.settle()
    puppet.say("b", AppendReply(term, True, 0, round=puppet.heard(Append)[-1].round))
    await puppet.settle()
    assert not read.done()
    assert not puppet.heard(ReadReply)
    puppet.say("b", AppendReply(term, True, 1, round=1))
    await puppet.settle()
    assert puppet.heard(Append)[-1].round == 2
    assert not read.done()
    puppet.say("b", AppendReply(term, True, 1, round=2))
    await puppet.settle()
    assert read.done()
    assert puppet.heard(ReadReply) == [ReadReply(term, 77, 1)]


@virtual
async def test_what_comes_during_a_round_waits_for_the_next():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    first = [puppet.consensus.read(0, strong=True) for _ in range(5)]
    await puppet.settle()
    then = [puppet.consensus.read(0, strong=True) for _ in range(5)]
    puppet.say("c", ReadRequest(term, 7))
    await puppet.settle()
    puppet.say("b", AppendReply(term, True, 1, round=2))
    await puppet.settle()
    assert all(read.done() for read in first)
    assert not any(read.done() for read in then)
    assert not puppet.heard(ReadReply)
    puppet.say("b", AppendReply(term, True, 1, round=3))
    await puppet.settle()
    if not then[0].done():  # the question of `c` and that of this node may share a round or not
        puppet.say("b", AppendReply(term, True, 1, round=4))
        await puppet.settle()
    assert all(read.done() for read in then)
    assert puppet.heard(ReadReply, "c") == [ReadReply(term, 7, 1)]
    assert puppet.consensus.stats.read_rounds <= 3


@virtual
async def test_a_question_that_is_repeated_during_its_round_is_answered_once():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    for _ in range(3):
        puppet.say("c", ReadRequest(term, 7))
    puppet.say("b", AppendReply(term, True, 1, round=2))
    assert puppet.heard(ReadReply) == [ReadReply(term, 7, 1)]
    assert puppet.consensus.stats.read_rounds == 1, "repetitions take no round of their own"


@virtual
async def test_a_round_that_is_over_lets_the_next_begin_for_other_nodes_questions():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    puppet.say("b", ReadRequest(term, 7))
    puppet.say("c", ReadRequest(term, 8))
    puppet.say("b", AppendReply(term, True, 1, round=2))
    assert puppet.heard(ReadReply) == [ReadReply(term, 7, 1)]
    puppet.say("b", AppendReply(term, True, 1, round=3))
    assert puppet.heard(ReadReply) == [ReadReply(term, 8, 1)]


@virtual
async def test_raft12_each_round_tells_what_was_committed_when_it_began():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    puppet.say("c", ReadRequest(term, 7))
    puppet.say("b", AppendReply(term, True, 1, round=2))
    assert puppet.heard(ReadReply) == [ReadReply(term, 7, 1)]
    puppet.consensus.append(b"more")
    await puppet.settle()
    puppet.say("b", AppendReply(term, True, 2, round=2))
    assert puppet.consensus.commit_index == 2
    puppet.say("c", ReadRequest(term, 8))
    puppet.say("b", AppendReply(term, True, 2, round=3))
    assert puppet.heard(ReadReply) == [ReadReply(term, 8, 2)]


@virtual
async def test_the_messages_of_a_round_that_were_lost_are_made_up_for_by_heartbeats():
    puppet = await serving_puppet()
    puppet.consensus.read(0, strong=True)
    await puppet.settle()
    puppet.heard()
    await asyncio.sleep(2 * puppet.cluster.settings.heartbeat_s)
    assert {message.round for message in puppet.heard(Append)} == {2}


@virtual
async def test_entries_that_are_put_together_once_carry_the_latest_round():
    puppet = await serving_puppet()
    term = puppet.consensus.term
    puppet.say("b", AppendReply(term, True, 1, round=1))
    puppet.consensus.append(b"x")
    puppet.consensus.read(0, strong=True)
    await puppet.settle()
    puppet.heard()
    puppet.say("c", AppendReply(term, True, 1, round=1))  # gets the entry only now
    assert [m.round for m in puppet.heard(Append, "c") if m.entries] == [2]


@virtual
async def test_a_single_node_confirms_itself():
    cluster = await Cluster("a").start()
    await cluster.propose(b"one")
    await cluster["a"].consensus.read(0, strong=True)


# A follower.


@virtual
async def test_a_follower_asks_the_leader_and_answers_once_it_has_applied_as_much():
    puppet = await following_puppet()
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    question = asked(puppet)
    puppet.say("b", ReadReply(3, question.number, 3))
    await puppet.settle()
    assert not read.done(), "entry 3 is committed, and not applied here"
    say_follow(puppet, (3, b"z"), prev=(2, 3), commit=2)
    await puppet.settle()
    assert not read.done(), "it holds the entry, and does not know that it is committed"
    say_follow(puppet, prev=(3, 3), commit=3)
    await puppet.settle()
    assert read.done()


@virtual
async def test_every_answer_repeats_the_latest_round_that_it_answers():
    puppet = await following_puppet()
    say_follow(puppet, prev=(2, 3), number=5)
    assert puppet.heard(AppendReply) == [AppendReply(3, True, 2, round=5)]
    say_follow(puppet, prev=(9, 3), number=6)
    assert puppet.heard(AppendReply) == [AppendReply(3, False, 9, 3, round=6)]
    say_follow(puppet, (3, b"z"), prev=(2, 3), number=8)
    say_follow(puppet, prev=(2, 3), number=7)  # late, before the sync
    await puppet.settle()
    assert puppet.heard(AppendReply) == [AppendReply(3, True, 3, round=8)]
    puppet.say("b", Append(4, 3, 4, 2, [], 9))
    assert puppet.heard(AppendReply) == [AppendReply(4, False, 3, 3, 3, round=9)]


@virtual
async def test_answers_to_other_questions_do_not_count():
    puppet = await following_puppet()
    first = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    number = asked(puppet).number
    puppet.say("b", ReadReply(3, number, 2))
    await first
    second = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    puppet.say("b", ReadReply(3, number, 2))
    await puppet.settle()
    assert not second.done()
    question = asked(puppet)
    assert question.number != number
    puppet.say("b", ReadReply(3, question.number, 2))
    await second


@virtual
async def test_reads_that_come_together_share_a_question_and_later_ones_the_next():
    puppet = await following_puppet()
    together = [puppet.consensus.read(0, strong=True) for _ in range(20)]
    await puppet.settle()
    question = asked(puppet)
    later = [puppet.consensus.read(0, strong=True) for _ in range(20)]
    await puppet.settle()
    assert not puppet.heard(ReadRequest)
    puppet.say("b", ReadReply(3, question.number, 2))
    await puppet.settle()
    assert all(read.done() for read in together)
    assert not any(read.done() for read in later)
    puppet.say("b", ReadReply(3, asked(puppet).number, 2))
    await puppet.settle()
    assert all(read.done() for read in later)


@virtual
async def test_the_next_question_does_not_wait_until_the_last_answer_is_applied():
    puppet = await following_puppet()
    puppet.consensus.read(0, strong=True)
    await puppet.settle()
    number = asked(puppet).number
    puppet.consensus.read(0, strong=True)
    puppet.say("b", ReadReply(3, number, 3))
    await puppet.settle()
    assert asked(puppet).number != number


@virtual
async def test_a_question_or_answer_that_was_lost_is_made_up_for():
    puppet = await following_puppet()
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    number = asked(puppet).number
    for _ in range(6):  # keep it calm for a bit more than the time of a retry
        await asyncio.sleep(puppet.cluster.settings.probe_retry_s / 5)
        say_follow(puppet, prev=(2, 3), commit=2)
    assert {message.number for message in puppet.heard(ReadRequest)} == {number}
    puppet.say("b", ReadReply(3, number, 2))
    await read


@virtual
async def test_a_question_outlives_its_leader_and_is_put_to_the_next():
    puppet = await following_puppet()
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    puppet.heard()
    puppet.say("c", Append(4, 2, 3, 2, [], 1))
    await asyncio.sleep(puppet.cluster.settings.probe_retry_s + 0.05)
    (question,) = puppet.heard(ReadRequest, "c")
    puppet.say("b", ReadReply(3, question.number, 2))  # stale: that leader is deposed
    await puppet.settle()
    assert not read.done()
    puppet.say("c", ReadReply(4, question.number, 2))
    await read


@virtual
async def test_an_answer_to_a_former_life_of_the_node_does_not_count():
    puppet = await following_puppet()
    puppet.consensus.read(0, strong=True)
    await puppet.settle()
    former = asked(puppet).number
    puppet.cluster.kill("a")
    await puppet.restart()
    say_follow(puppet, (3, b"x"), (3, b"y"), commit=2)
    await puppet.settle()
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    assert asked(puppet).number != former
    puppet.say("b", ReadReply(3, former, 2))
    await puppet.settle()
    assert not read.done()


@virtual
async def test_without_a_leader_a_strong_read_is_refused_at_once():
    puppet = await following_puppet()
    puppet.node.endpoint.receiver.on_disconnected("b")
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    assert isinstance(read.exception(), NotConfirmed)


@virtual
async def test_a_leader_of_an_earlier_release_is_not_asked_what_it_cannot_read():
    puppet = await following_puppet()
    say_follow(puppet, prev=(2, 3), commit=2, number=0)
    puppet.heard()
    read = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    assert isinstance(read.exception(), NotConfirmed)
    assert not puppet.heard(ReadRequest)


@virtual
async def test_who_does_not_lead_answers_no_question():
    puppet = await following_puppet()
    puppet.say("c", ReadRequest(3, 7))
    puppet.say("c", ReadRequest(2, 7))
    await puppet.settle()
    assert not puppet.heard(ReadReply)


def test_messages_of_the_earlier_release_and_for_it_can_be_read():
    class OldReply(msgspec.Struct, array_like=True, tag=6):
        term: int
        accepted: bool
        index: int
        hint_index: int = 0
        hint_term: int = 0

    old = msgspec.msgpack.encode([5, 7, 1, 1, 1, [[7, b"x"]]])
    assert msgspec.msgpack.decode(old, type=Message) == Append(7, 1, 1, 1, [(7, b"x")], 0)
    old = msgspec.msgpack.encode([6, 7, True, 3, 0, 0])
    assert msgspec.msgpack.decode(old, type=Message) == AppendReply(7, True, 3)
    new = msgspec.msgpack.encode(AppendReply(7, True, 3, round=9))
    assert msgspec.msgpack.decode(new, type=OldReply) == OldReply(7, True, 3)


# What is known here, and the ends of waiting.


@virtual
async def test_a_read_waits_for_the_index_that_it_names():
    puppet = await following_puppet()
    await puppet.consensus.read(2, strong=False)
    read, further = puppet.consensus.read(3, strong=False), puppet.consensus.read(4, strong=False)
    say_follow(puppet, (3, b"z"), (3, b"z"), prev=(2, 3), commit=3)
    await puppet.settle()
    assert (read.done(), further.done()) == (True, False)
    say_follow(puppet, prev=(4, 3), commit=4)
    await puppet.settle()
    assert further.done()
    assert not puppet.heard(ReadRequest), "nobody is asked about an index that is given"
    assert puppet.consensus.waiting_reads == 0


@virtual
async def test_a_strong_read_waits_for_the_index_that_it_names_too():
    puppet = await following_puppet()
    read = puppet.consensus.read(3, strong=True)
    await puppet.settle()
    puppet.say("b", ReadReply(3, asked(puppet).number, 2))
    await puppet.settle()
    assert not read.done()
    say_follow(puppet, (3, b"z"), prev=(2, 3), commit=3)
    await read


@virtual
async def test_an_installed_snapshot_answers_who_waited_for_what_it_covers():
    cluster = await Cluster(snapshot_entries=20, trailing_entries=5).start()
    await cluster.propose(b"one")
    name = cluster.followers()[0].name
    cluster.kill(name)
    for number in range(30):
        index = await cluster.propose(b"entry %d" % number)
    assert await cluster.snapshot(cluster.leader.name) == index
    await cluster.start(name)
    await cluster[name].consensus.read(index, strong=False)
    assert cluster[name].recorder.installed == [index]


@virtual
async def test_every_read_ends_by_its_deadline_and_says_what_was_missing():
    puppet = await serving_puppet()
    began = puppet.cluster.loop.time()
    unknown = puppet.consensus.read(5, strong=False)
    with pytest.raises(NotCaughtUp, match="applied 1, not yet 5"):
        await unknown
    took = puppet.cluster.loop.time() - began
    assert took == pytest.approx(puppet.cluster.settings.read_deadline_s)


@virtual
async def test_a_read_that_nobody_confirms_ends_by_its_deadline():
    puppet = await following_puppet()
    read = puppet.consensus.read(0, strong=True)
    for _ in range(40):
        assert not read.done()
        say_follow(puppet, prev=(2, 3), commit=2)  # it lives, and answers no question
        await asyncio.sleep(puppet.cluster.settings.read_deadline_s / 39.5)
    assert isinstance(read.exception(), NotConfirmed)


@virtual
async def test_reads_that_wait_are_bounded_and_those_given_up_leave_their_place():
    puppet = await serving_puppet(max_waiting_reads=3)
    reads = [puppet.consensus.read(9, strong=False) for _ in range(2)]
    reads.append(puppet.consensus.read(0, strong=True))
    for strong in (False, True):
        assert isinstance(puppet.consensus.read(9, strong=strong).exception(), TooManyReads)
    await puppet.consensus.read(1, strong=False)  # need not wait
    for read in reads:
        read.cancel()
    await puppet.settle()
    assert puppet.consensus.waiting_reads == 0
    assert not puppet.consensus.read(9, strong=False).done()


@virtual
async def test_who_waits_for_a_question_is_asked_for_when_those_before_have_gone():
    puppet = await following_puppet()
    first = puppet.consensus.read(0, strong=True)
    await puppet.settle()
    number = asked(puppet).number
    second = puppet.consensus.read(0, strong=True)
    first.cancel()
    await puppet.settle()
    question = asked(puppet)
    assert question.number != number
    puppet.say("b", ReadReply(3, question.number, 2))
    await second


@virtual
async def test_a_node_that_stops_lets_nobody_wait():
    for end in ("stop", "halt"):
        puppet = await following_puppet()
        reads = [puppet.consensus.read(9, strong=False), puppet.consensus.read(0, strong=True)]
        await puppet.settle()
        if end == "stop":
            await puppet.consensus.stop()
        else:
            puppet.consensus.halt("a test")
            reads.append(puppet.consensus.read(0, strong=True))
        errors = [type(read.exception()) for read in reads]
        assert errors == [NotCaughtUp, NotConfirmed, NotConfirmed][: len(reads)]


# Three nodes.


@virtual
async def test_raft12_a_cut_off_leader_answers_no_strong_read_and_marks_the_others():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    old = cluster.leader
    cluster.isolate(old.name)
    began = cluster.loop.time()
    early = old.consensus.read(0, strong=True)
    await cluster.wait(lambda: cluster.leader not in (None, old))
    new = cluster.leader
    assert old.leads, "it does not know yet"
    index = new.consensus.append(b"two")
    await cluster.wait(lambda: new.consensus.applied_index == index)
    late = old.consensus.read(0, strong=True)
    await old.consensus.read(0, strong=False)
    assert old.consensus.applied_index < index, "how old the state is can be seen"
    for read in (early, late):
        with pytest.raises(NotConfirmed):
            await read
    assert cluster.loop.time() - began < cluster.settings.read_deadline_s
    for member in cluster.members.values():
        if member is not old:
            await member.consensus.read(0, strong=True)
            assert member.machine.entries() == [b"one", b"two"]
    cluster.heal()
    await cluster.wait(lambda: old.consensus.leader == new.name)
    await old.consensus.read(0, strong=True)
    assert old.machine.entries() == [b"one", b"two"]


@virtual
async def test_raft12_a_leader_whose_followers_are_stopped_answers_no_strong_read():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    leader = cluster.leader
    for member in cluster.followers():
        cluster.pause(member.name)
    began = cluster.loop.time()
    with pytest.raises(NotConfirmed):
        await leader.consensus.read(0, strong=True)
    assert cluster.loop.time() - began < cluster.settings.read_deadline_s


@virtual
async def test_strong_reads_over_all_nodes_take_few_rounds():
    cluster = await Cluster().start()
    await cluster.propose(b"one")
    consensuses = [member.consensus for member in cluster.members.values()]
    await asyncio.gather(*(c.read(0, strong=True) for c in consensuses for _ in range(100)))
    assert cluster.leader.consensus.stats.read_rounds <= 3


@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_a_strong_read_anywhere_shows_all_that_was_acknowledged_before(seed: int):
    """Over a network that loses, repeats and reorders, with leaders cut off again and again."""
    cluster = await Cluster(seed=seed).start()
    await cluster.elected()
    chance = random.Random(seed)
    cluster.wire.loss, cluster.wire.repetition, cluster.wire.reordering = 0.05, 0.2, 0.2
    acknowledged: list[bytes] = []
    answered, refused = [0] * 3, 0
    end = cluster.loop.time() + 9.0

    async def write(name: str) -> None:
        number = 0
        while cluster.loop.time() < end:
            await asyncio.sleep(chance.uniform(0, 0.02))
            number += 1
            consensus, entry = cluster[name].consensus, b"%s %d" % (name.encode(), number)
            try:
                index = consensus.append(entry)
            except NotLeader:
                continue
            term = consensus.term
            while consensus.applied_index < index and consensus.term == term:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if (index, term, entry) in cluster[name].recorder.applied:
                acknowledged.append(entry)

    async def read(place: int, name: str) -> None:
        nonlocal refused
        while cluster.loop.time() < end:
            await asyncio.sleep(chance.uniform(0, 0.02))
            before = set(acknowledged)
            try:
                await cluster[name].consensus.read(0, strong=True)
            except ConsensusError:
                refused += 1
                continue
            missing = before - set(cluster[name].machine.entries())
            assert not missing, f"{name} does not show {missing}"
            answered[place] += 1

    async def cut() -> None:
        while cluster.loop.time() < end - 3:
            await asyncio.sleep(chance.uniform(0.5, 3))
            leader = cluster.leader
            if leader is not None:
                cluster.isolate(leader.name)
                await asyncio.sleep(chance.uniform(0.2, 2.5))
                cluster.heal()

    work = [write(name) for name in "abc"] + [read(p, name) for p, name in enumerate("abc")]
    await asyncio.gather(cut(), *work)
    assert min(answered) > 20
    assert refused
    assert acknowledged

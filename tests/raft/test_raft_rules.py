"""The small pure parts: settings, ballots, the election timer, progress, the log in memory."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.cluster.raft.elections import Ballot, ElectionTimer, log_is_current, quorum
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.messages import AppendReply, Message
from timeball.cluster.raft.progress import Progress, State
from timeball.cluster.raft.settings import CommitSettings, RaftSettings


def test_the_default_settings_are_valid():
    RaftSettings().validate()
    CommitSettings().validate()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"heartbeat_s": 0.3}, "election_min_s"),
        ({"election_max_s": 0.3}, "election_max_s"),
        ({"broken_link_min_s": 0.5}, "broken_link_min_s"),
        ({"leader_fallback_s": 0.5}, "leader_fallback_s"),
        ({"max_frame_bytes": 1000}, "max_frame_bytes"),
        ({"max_send_buffer_bytes": 1000}, "max_send_buffer_bytes"),
        ({"redial_max_s": 0.01}, "redial_max_s"),
        ({"mark_every_s": 0.5}, "mark_every_s"),
        ({"tick_s": 0.1}, "tick_s"),
        ({"tick_s": 0.0}, "tick_s"),
        ({"snapshot_entries": 0}, "snapshot_entries"),
        ({"segment_bytes": -1}, "segment_bytes"),
        ({"log_memory_bytes": 2 * 1024 * 1024 - 1}, "log_memory_bytes must be at least"),
        ({"cluster": ""}, "cluster"),
        ({"cluster": "x" * 65}, "cluster"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(wrong: dict, told: str):
    with pytest.raises(ValueError, match=told):
        RaftSettings(**wrong).validate()


@pytest.mark.parametrize("name", CommitSettings.__struct_fields__)
def test_commit_settings_are_checked(name: str):
    with pytest.raises(ValueError, match=name):
        CommitSettings(**{name: -1}).validate()


def test_new_work_is_refused_before_proposals_expire():
    with pytest.raises(ValueError, match="less than deadline_s"):
        CommitSettings(max_wait_s=5.0).validate()


@given(members=st.integers(1, 9))
def test_two_majorities_share_a_member(members: int):
    assert 2 * quorum(members) > members
    assert 2 * (quorum(members) - 1) <= members


@given(votes=st.lists(st.sampled_from("abcdexyz"), max_size=20), members=st.sampled_from("135"))
def test_a_ballot_is_won_by_a_majority_of_different_members(votes: list[str], members: str):
    voters = "abcde"[: int(members)]
    ballot = Ballot(1, voters, "a", pre_vote=False)
    for voter in votes:
        ballot.grant(voter)
    granted = {"a", *votes} & set(voters)
    assert ballot.won == (len(granted) > len(voters) / 2)
    assert ballot.unanswered() == sorted(set(voters) - granted)


def test_a_longer_log_of_an_older_term_is_not_current():
    assert log_is_current(2, 1, 1, 9)
    assert log_is_current(2, 5, 2, 5)
    assert not log_is_current(1, 9, 2, 1)
    assert not log_is_current(2, 4, 2, 5)


@given(seed=st.integers(0, 1000))
def test_deadlines_are_drawn_from_the_handed_in_generator(seed: int):
    settings = RaftSettings()
    timer = ElectionTimer(settings, random.Random(seed))
    timer.reset(100.0)
    low, high = settings.election_min_s, settings.election_max_s
    assert 100 + low <= timer.deadline <= 100 + high
    again = ElectionTimer(settings, random.Random(seed))
    again.reset(100.0)
    assert again.deadline == timer.deadline
    timer.lost_link_to_leader(100.0)
    assert timer.deadline <= 100 + settings.broken_link_max_s
    assert not timer.hears_leader(100.0)


class CountingRandom(random.Random):
    """Counts what was drawn."""

    draws = 0

    def uniform(self, a: float, b: float) -> float:
        self.draws += 1
        return super().uniform(a, b)


def test_a_patience_is_drawn_for_each_election_and_not_for_each_message():
    settings, rng = RaftSettings(), CountingRandom(1)
    timer = ElectionTimer(settings, rng)
    timer.reset(0.0)
    first = timer.deadline
    for now in range(1, 100):
        timer.heard_leader(float(now))
        assert timer.deadline == pytest.approx(now + first)
    assert rng.draws == 1
    timer.reset(0.0)
    assert timer.deadline != first


def test_a_leader_that_is_heard_after_a_broken_link_has_the_full_time_again():
    settings = RaftSettings()
    timer = ElectionTimer(settings, random.Random(1))
    timer.reset(0.0)
    full = timer.deadline
    timer.lost_link_to_leader(0.0)
    assert timer.deadline < full
    timer.heard_leader(1.0)
    assert timer.deadline == 1.0 + full


def test_a_late_check_is_excused_once_until_the_next_reset():
    settings = RaftSettings()
    timer = ElectionTimer(settings, random.Random(1))
    timer.reset(0.0)
    assert not timer.due(0.01)
    assert not timer.due(5.0)
    assert timer.due(10.0)
    timer.heard_leader(10.0)
    assert not timer.due(20.0)
    assert timer.due(20.0 + 3 * settings.tick_s)


def test_a_success_never_moves_next_back():
    progress = Progress(5, 0.0)
    progress.accepted(4)
    assert (progress.state, progress.next) == (State.REPLICATING, 5)
    progress.sent(9, 100, 0, 0.0)
    progress.sent(12, 100, 0, 0.0)
    assert progress.next == 13
    assert progress.accepted(9)
    assert not progress.accepted(7)
    assert (progress.next, progress.match) == (13, 9)


def test_flight_is_bounded_and_freed_by_answers():
    progress = Progress(1, 0.0)
    progress.accepted(0)
    progress.sent(3, 100, 0, 0.0)
    assert not progress.may_replicate(100)
    progress.accepted(2)
    assert not progress.may_replicate(100)
    progress.accepted(3)
    assert progress.may_replicate(100)


def test_only_the_refusal_of_the_outstanding_probe_counts():
    progress = Progress(10, 0.0)
    progress.sent(9, 0, 0, 0.0)
    assert not progress.refused(AppendReply(1, False, 7), 3)
    assert progress.refused(AppendReply(1, False, 9), 4)
    assert progress.next == 4
    assert progress.may_probe


def test_a_refusal_below_what_was_matched_is_stale():
    progress = Progress(10, 0.0)
    progress.accepted(9)
    assert not progress.refused(AppendReply(1, False, 9), 1)
    assert progress.refused(AppendReply(1, False, 15), 1)
    assert progress.next == 10, "never below what was matched"


def test_a_new_connection_forgets_what_was_matched():
    progress = Progress(10, 0.0)
    progress.accepted(9)
    progress.restart(20)
    assert (progress.match, progress.next, progress.state) == (0, 20, State.PROBING)


terms = st.lists(st.integers(1, 5), min_size=1, max_size=30).map(sorted)


def log_of(terms: list[int], base: int = 0) -> MemoryLog:
    log = MemoryLog(base, 0)
    for offset, term in enumerate(terms, 1):
        log.append(Entry(b"%d" % offset, base + offset, term))
    return log


@given(terms=terms, forget=st.integers(0, 30), base=st.integers(0, 100))
def test_the_log_finds_by_index_whatever_it_has_forgotten(terms: list[int], forget: int, base: int):
    log = log_of(terms, base)
    forget = min(forget, len(terms))
    log.forget_to(base + forget)
    log.forget_to(base)
    assert log.base_index == base + forget
    assert log.last_index == base + len(terms)
    for index in range(base + forget + 1, base + len(terms) + 1):
        assert log.get(index).data == b"%d" % (index - base)
        assert log.term_at(index) == terms[index - base - 1]
    assert log.term_at(base + forget) == ([0, *terms])[forget]
    assert log.term_at(base + forget - 1) is None
    assert log.term_at(log.last_index + 1) is None


@given(terms=terms, start=st.integers(1, 30), entries=st.integers(1, 5), size=st.integers(1, 9))
def test_slices_are_bounded_but_never_empty(terms: list[int], start: int, entries: int, size: int):
    log = log_of(terms)
    start = min(start, len(terms))
    chosen = log.slice(start, entries, size)
    assert 1 <= len(chosen) <= entries
    assert [e.index for e in chosen] == list(range(start, start + len(chosen)))
    assert len(chosen) == 1 or sum(len(e.data) for e in chosen) <= size
    assert log.slice(log.last_index + 1, entries, size) == []


@given(terms=terms, index=st.integers(1, 30), floor=st.integers(0, 30), term=st.integers(0, 6))
def test_the_log_finds_the_bounds_of_a_term(terms: list[int], index: int, floor: int, term: int):
    log = log_of(terms)
    index = min(index, len(terms))
    floor = min(floor, index - 1)
    first = log.first_index_of_term(index, floor)
    same = [i for i in range(floor + 1, index + 1) if terms[i - 1] == terms[index - 1]]
    assert first == same[0]
    upto = log.last_index_up_to_term(index, term)
    assert upto == max([i for i in range(1, index + 1) if terms[i - 1] <= term], default=0)


def test_the_log_refuses_gaps_and_falling_terms():
    log = log_of([1, 3])
    with pytest.raises(AssertionError, match="follow"):
        log.append(Entry(b"", 4, 3))
    with pytest.raises(AssertionError, match="never fall"):
        log.append(Entry(b"", 3, 2))


def test_message_tags_and_fields_do_not_change():
    """Old and new releases talk to one another during an upgrade."""
    shapes = {
        struct.__struct_config__.tag: (struct.__name__, struct.__struct_fields__)
        for struct in Message.__args__
    }
    assert shapes == {
        1: ("PreVoteRequest", ("term", "last_index", "last_term")),
        2: ("PreVoteReply", ("term", "asked_term", "granted")),
        3: ("VoteRequest", ("term", "last_index", "last_term", "transfer")),
        4: ("VoteReply", ("term", "granted")),
        5: ("Append", ("term", "prev_index", "prev_term", "commit_index", "entries", "round")),
        6: (
            "AppendReply",
            (
                "term",
                "accepted",
                "index",
                "hint_index",
                "hint_term",
                "round",
                "incarnation",
                "votes",
                "level",
            ),
        ),
        7: ("SnapshotChunk", ("term", "index", "last_term", "size", "offset", "data")),
        8: ("SnapshotReply", ("term", "index", "received", "installed", "incarnation", "votes")),
        9: ("TimeoutNow", ("term",)),
        10: ("ReadRequest", ("term", "number")),
        11: ("ReadReply", ("term", "number", "index")),
        12: ("Introduction", ("term", "incarnation", "standing", "founders")),
        13: ("Admission", ("term", "incarnation", "index", "founders")),
    }


def test_messages_with_impossible_types_are_refused():
    for wrong in ([9, "1"], [9, True], [9], [14, 1], {"term": 1}, [5, 1, 1, 1, 1, [[1, "x"]]]):
        with pytest.raises(msgspec.MsgspecError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=Message)

"""The rules of elections that need no engine: who may vote for whom, and when to stand.

Votes are counted per member, so a repeated answer counts once and a stranger's not at all. A
member that hears from a leader refuses the wish to replace it (Raft dissertation, §4.2.3 and
§9.6), unless the leader itself asked for the election.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from timeball.cluster.raft.settings import RaftSettings


def quorum(members: int) -> int:
    """The least number of members that any two majorities share one of."""
    return members // 2 + 1


def log_is_current(last_term: int, last_index: int, own_term: int, own_index: int) -> bool:
    """Whether a candidate's log is at least as up to date as one's own (Raft, §5.4.1)."""
    return (last_term, last_index) >= (own_term, own_index)


class Ballot:
    """The answers to one round of questions, pre-vote or vote."""

    def __init__(self, term: int, voters: Collection[str], own: str, pre_vote: bool) -> None:
        assert own in voters
        self.term = term
        self.pre_vote = pre_vote
        self._voters = frozenset(voters)
        self._granted = {own}

    def grant(self, voter: str) -> None:
        if voter in self._voters:
            self._granted.add(voter)

    @property
    def won(self) -> bool:
        return len(self._granted) >= quorum(len(self._voters))

    def unanswered(self) -> list[str]:
        return sorted(self._voters - self._granted)


class ElectionTimer:
    """When to stand for election, by the clock that is handed in."""

    def __init__(self, settings: RaftSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._patience = settings.election_max_s
        """How long to wait for a leader. Drawn anew for each election, not for each message."""
        self._last_contact = float("-inf")
        self._last_check: float | None = None
        self._excused = False
        self.deadline = float("inf")

    def reset(self, now: float) -> None:
        """Wait a full random time from now on."""
        low, high = self._settings.election_min_s, self._settings.election_max_s
        self._patience = self._rng.uniform(low, high)
        self._wait(now)

    def _wait(self, now: float) -> None:
        self.deadline = now + self._patience
        self._excused = False

    def heard_leader(self, now: float) -> None:
        self._last_contact = now
        self._wait(now)

    def lost_link_to_leader(self, now: float) -> None:
        """The connection broke: forget the leader, and wait only for a moment."""
        self._last_contact = float("-inf")
        low, high = self._settings.broken_link_min_s, self._settings.broken_link_max_s
        self.deadline = min(self.deadline, now + self._rng.uniform(low, high))

    def forget_leader(self) -> None:
        self._last_contact = float("-inf")

    def hears_leader(self, now: float) -> bool:
        """Whether a leader was heard so lately that it must not be disturbed."""
        return now - self._last_contact < self._settings.election_min_s

    def due(self, now: float) -> bool:
        """Whether to stand for election now.

        A check that comes late tells of a stall of this very process: heartbeats may lie unread
        in the sockets. They get one chance to be read, two ticks, before the deadline counts.
        """
        last, self._last_check = self._last_check, now
        late = last is not None and now - last > 3 * self._settings.tick_s
        if late and not self._excused:
            self._excused = True
            self.deadline = max(self.deadline, now + 2 * self._settings.tick_s)
        return now >= self.deadline

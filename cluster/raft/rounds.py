"""Rounds of messages by which a leader shows, to itself, that it still led after a read had come.

The ReadIndex protocol (Raft dissertation, §6.4; no clock is trusted). All that was committed before
a read came is at or below the leader's commit index, provided that

- an entry of the leader's own term is committed: before, it may not know of all that its
  predecessors committed; and
- no other had been elected by then: a majority answers, in this leader's term, a message that was
  sent after the read had come. Whoever votes for another leaves this term for good.

So each message that asks for an answer carries the number of the latest round, and each answer
repeats the number of the message that it answers. Answers count for rounds up to that number, so
an old one, late or repeated, says nothing of a later round.

One round is under way at a time; reads that come meanwhile share the next. What a round has sent
may be lost: the next heartbeats carry its number too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine
    from timeball.cluster.raft.leading import Leadership


class Rounds:
    """The rounds of one leadership."""

    def __init__(self, engine: Engine, leadership: Leadership, peers: Iterable[str]) -> None:
        self._engine = engine
        self._leadership = leadership
        self.number = 1
        """Of the latest round. Leaders of earlier releases send no number, which reads as 0."""
        self._heard = dict.fromkeys(peers, 0)
        """The latest number that each peer has repeated."""
        self._waiting: dict[str, int] = {}
        """Which member waits for the next round, by the number that it asked by last."""
        self._under_way: dict[str, int] = {}
        self._index = 0

    def join(self, member: str, number: int) -> None:
        """Answer what a member asks by this number, once a round that begins from now is over."""
        if self._under_way.get(member) != number:  # else a repetition: the answer is on its way
            self._waiting[member] = number
            self.begin()

    def begin(self) -> None:
        """Begin a round for those who wait, unless one is under way or it is too early."""
        if self._under_way or not self._waiting or not self._leadership.announced:
            return
        self._under_way, self._waiting = self._waiting, {}
        self.number += 1
        self._engine.stats.read_rounds += 1
        self._index = self._engine.commit_index
        self._leadership.beat_all()
        self._conclude()

    def heard(self, peer: str, number: int) -> None:
        """A peer has answered a message that carried this number, in the leader's term."""
        assert number <= self.number, f"{peer} repeats a number that was never sent"
        if number > self._heard[peer]:
            self._heard[peer] = number
            self._conclude()

    def _conclude(self) -> None:
        """Tell the index to those whose round a majority has answered, and begin the next."""
        if not self._under_way or not self._leadership.majority(self._has_answered):
            return
        answered, self._under_way = self._under_way, {}
        for member, number in answered.items():
            self._engine.reading.tell(member, number, self._index)
        self.begin()

    def _has_answered(self, peer: str) -> bool:
        return self._heard[peer] >= self.number

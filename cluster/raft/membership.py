"""Who counts: how a cluster is founded, and how a member with another disk gets its vote.

A vote, and an acknowledgement that counts, are promises of a disk, not of a name. Each disk has a
random number, its incarnation, and says what it counts for:

    blank ──(all members are blank, and know it)──▶ voter        the cluster is founded
    blank ──(a leader, or a voter, is met)──▶ joining
    joining ──(the leader admits it)──▶ voter                    or it finds itself among founders

Founding: each blank member tells the others which blank disks it sees. Who sees all, and hears
from all that they see the very same, knows a moment in which no disk of the cluster held anything
(the earliest of those words), so nothing can be lost by beginning anew. It writes the founders
down, is a voter, and tells them to who asks: a founder that had not heard yet has taken part in
nothing since, and may vote whenever it learns of it.

Admission: see `Leadership._recognise` for what a joining disk must hold first. Decision 0014 has
the reasons, the proof and the alternatives.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from timeball.cluster.raft.elections import quorum
from timeball.cluster.raft.messages import (
    Admission,
    AppendReply,
    Introduction,
    Message,
    SnapshotReply,
)
from timeball.cluster.raft.metadata import BLANK, JOINING, VOTER, Standing

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine

_logger = logging.getLogger(__name__)


class Membership:
    """The part of an engine that knows what its own disk and the others' count for."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._storage = engine.storage
        self._seen: dict[str, Introduction] = {}
        """The latest word of each member that is connected."""
        self._told: dict[str, int] = {}
        self._told_at = float("-inf")
        self._obstacle: str | None = None
        self._obstacle_since = 0.0
        self._obstacle_logged = False

    # What is known.

    @property
    def votes(self) -> bool:
        """Whether this disk votes, may lead, and vouches for what it acknowledges."""
        return self._storage.metadata.standing == VOTER

    def of(self, peer: str) -> tuple[Standing | None, int | None]:
        """What another member's disk counts for, and which it is; None when it is not known."""
        leadership, seen = self._engine.leadership, self._seen.get(peer)
        if leadership is not None:
            progress = leadership.progress(peer)
            if progress.incarnation is not None:
                return VOTER if progress.votes else JOINING, progress.incarnation
        return (None, None) if seen is None else (seen.standing, seen.incarnation)

    def obstacle(self) -> str | None:
        """What keeps the cluster from a leader, or this node from its vote, in a sentence."""
        members, standing = self._engine.members, self._storage.metadata.standing
        standings = {peer: self.of(peer)[0] for peer in self._engine.others}
        standings[self._engine.name] = standing
        without = [name for name in members if standings[name] in (BLANK, JOINING)]
        if standing == BLANK and not any(known == VOTER for known in standings.values()):
            missing = [name for name in members if standings[name] != BLANK]
            return (
                "this node's disk is empty: a new cluster begins once all members are seen with "
                f"empty disks, an existing one takes it in; not seen so: {', '.join(missing)}"
            )
        if len(members) - len(without) < quorum(len(members)):
            listed = ", ".join(f"{name} ({standings[name]})" for name in without)
            return (
                f"no leader can be elected: the disks of {len(without)} of {len(members)} members "
                f"are empty or incomplete and have no vote: {listed}; a majority must bring back "
                "the disks it had (see docs/operations.md)"
            )
        if standing != VOTER:
            return "this node's disk is new to the cluster: it has no vote until it has caught up"
        return None

    # What is said.

    def append_reply(
        self,
        accepted: bool,
        index: int,
        hint_index: int = 0,
        hint_term: int = 0,
        round_number: int = 0,
    ) -> AppendReply:
        """An answer to a leader, with whose it is, whether it counts, and its feature level."""
        engine = self._engine
        who = (self._storage.metadata.incarnation, self.votes, engine.level)
        return AppendReply(engine.term, accepted, index, hint_index, hint_term, round_number, *who)

    def snapshot_reply(self, index: int, received: int, installed: bool) -> SnapshotReply:
        """The same for a piece of a snapshot."""
        who = (self._storage.metadata.incarnation, self.votes)
        return SnapshotReply(self._engine.term, index, received, installed, *who)

    def _founders(self) -> dict[str, int]:
        """The cluster's founders; from a blank disk, those that it would found one with."""
        own = self._storage.metadata
        if own.standing != BLANK:
            return own.founders
        blank = {peer: s.incarnation for peer, s in self._seen.items() if s.standing == BLANK}
        return {**blank, own.node: own.incarnation}

    def _introduce(self, *peers: str) -> None:
        engine, own = self._engine, self._storage.metadata
        word = Introduction(engine.term, own.incarnation, own.standing, self._founders())
        for peer in peers:
            if engine.connected(peer):
                engine.send(peer, word)

    def _introduce_to_all(self) -> None:
        self._told, self._told_at = self._founders(), self._engine.clock()
        self._introduce(*self._engine.others)

    def connected(self, peer: str) -> None:
        self._introduce(peer)

    def disconnected(self, peer: str) -> None:
        self._seen.pop(peer, None)

    def tick(self, now: float) -> None:
        """While this disk does not count, say so again and again: words may get lost."""
        if not self.votes:
            self._found()
        if not self.votes and now - self._told_at >= self._engine.settings.probe_retry_s:
            self._introduce_to_all()
        self._tell_obstacle(now)

    def _tell_obstacle(self, now: float) -> None:
        """Log once what has been in the way for longer than a start takes."""
        obstacle = self.obstacle()
        if obstacle != self._obstacle:
            self._obstacle, self._obstacle_since, self._obstacle_logged = obstacle, now, False
        lasts = now - self._obstacle_since >= self._engine.settings.leader_fallback_s
        if obstacle is not None and lasts and not self._obstacle_logged:
            self._obstacle_logged = True
            _logger.warning("%s: %s", self._engine.name, obstacle)

    # What is heard.

    def introduced(self, peer: str, message: Message) -> bool:
        """Whether the message was a member's word about itself."""
        if not isinstance(message, Introduction):
            return False
        self._seen[peer] = message
        if self._engine.leadership is not None:
            votes = message.standing == VOTER
            self._engine.leadership.introduced(peer, message.incarnation, votes)
        if self.votes:
            if message.standing != VOTER:
                self._introduce(peer)
        elif message.standing == VOTER:
            self._learn(message.founders)
        else:
            self._found()
            if self._founders() != self._told:
                self._introduce_to_all()
        return True

    def _found(self) -> None:
        """Become a voter if all members are blank, and each has said that it sees the same."""
        own, founders = self._storage.metadata, self._founders()
        agreed = all(
            peer in self._seen and self._seen[peer].founders == founders
            for peer in self._engine.others
        )
        if own.standing == BLANK and len(founders) == len(self._engine.members) and agreed:
            _logger.info("%s: the cluster is founded", own.node)
            self._become_voter(founders)

    def _learn(self, founders: dict[str, int]) -> None:
        """A voter has told who the founders are."""
        own = self._storage.metadata
        if own.founders and own.founders != founders:
            return
        if founders.get(own.node) == own.incarnation:
            _logger.info("%s is one of the cluster's founders", own.node)
            self._become_voter(founders)
        elif own.standing == BLANK or own.founders != founders:
            self._storage.save_standing(JOINING, founders)

    def follow(self) -> None:
        """A leader is met: what it sends makes this disk no blank one."""
        if self._storage.metadata.standing == BLANK:
            self._storage.save_standing(JOINING, {})

    def admitted(self, peer: str, message: Message) -> bool:
        """Whether the message was an admission; it holds for this very disk and term."""
        if not isinstance(message, Admission):
            return False
        engine = self._engine
        mine = message.incarnation == self._storage.metadata.incarnation
        held = message.index <= self._storage.durable_index
        if peer == engine.leader and mine and held and not self.votes:
            _logger.info("%s has caught up with %s and votes", engine.name, peer)
            self._become_voter(message.founders)
        return True

    def _become_voter(self, founders: dict[str, int]) -> None:
        """Durable before anybody hears of it."""
        self._storage.save_standing(VOTER, founders)
        self._introduce_to_all()

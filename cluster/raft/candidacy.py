"""How a node comes to lead, and how it answers those who want to.

A node that hears no leader first asks whether it could win (pre-vote): nothing changes by asking,
so a node that is cut off or restarted does not unseat a leader that the others hear. With a
majority of yes it raises its term, votes for itself, and asks for votes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeball.cluster.raft.elections import Ballot, log_is_current
from timeball.cluster.raft.messages import (
    Append,
    Message,
    PreVoteReply,
    PreVoteRequest,
    SnapshotChunk,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine


class Candidacy:
    """The part of an engine that stands for election and votes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ballot: Ballot | None = None
        self._asked_at = 0.0
        self._transfer = False

    def abandon(self) -> None:
        self._ballot = None

    def tick(self, now: float) -> None:
        engine = self._engine
        if engine.timer.due(now):
            if engine.membership.votes:
                self._stand()
            else:
                engine.forget_leader()
                engine.timer.reset(now)
        elif self._ballot and now - self._asked_at >= engine.settings.probe_retry_s:
            self._ask()

    def _stand(self) -> None:
        """The deadline has passed without word from a leader: ask whether one could win.

        Not with too little room on the disk: whoever leads writes all that comes.
        """
        engine = self._engine
        engine.timer.reset(engine.clock())
        engine.forget_leader()
        if engine.space.low:
            self.abandon()
            return
        self._transfer = False
        self._ballot = Ballot(engine.term, engine.members, engine.name, pre_vote=True)
        self._count()
        self._ask()

    def _campaign(self) -> None:
        """Raise the term and ask for votes; the own vote is durable before anyone hears of it."""
        engine = self._engine
        engine.become_candidate()
        engine.timer.reset(engine.clock())
        self._ballot = Ballot(engine.term, engine.members, engine.name, pre_vote=False)
        self._count()
        self._ask()

    def _count(self) -> None:
        ballot = self._ballot
        if ballot is None or not ballot.won:
            return
        if ballot.pre_vote:
            self._campaign()
        else:
            self._ballot = None
            self._engine.become_leader()

    def _ask(self) -> None:
        ballot, engine = self._ballot, self._engine
        if ballot is None:
            return
        self._asked_at = engine.clock()
        log = (engine.last_index, engine.last_term)
        for peer in ballot.unanswered():
            if ballot.pre_vote:
                engine.send(peer, PreVoteRequest(engine.term, *log))
            else:
                engine.send(peer, VoteRequest(engine.term, *log, self._transfer))

    def agree_on_term(self, peer: str, message: Message) -> bool:
        """Take a higher term, answer a lower one; whether the message is of the own term now.

        A pre-vote request passes as it is: it asks about a term, it does not claim one.
        """
        engine = self._engine
        if message.term == engine.term:
            return True
        if message.term < engine.term:
            self._answer_lower_term(peer, message)
            return False
        if not isinstance(message, PreVoteRequest):
            if isinstance(message, VoteRequest) and self._refuses_disturbance(message):
                engine.send(peer, VoteReply(engine.term, granted=False))
                return False
            engine.step_down(message.term)
        return True

    def _refuses_disturbance(self, message: VoteRequest) -> bool:
        return not message.transfer and self._engine.must_not_be_disturbed()

    def _answer_lower_term(self, peer: str, message: Message) -> None:
        """Who asks in an older term must learn the newer one; old answers say nothing."""
        engine = self._engine
        match message:
            case Append():
                engine.send(peer, engine.membership.append_reply(False, message.prev_index))
            case SnapshotChunk():
                engine.send(peer, engine.membership.snapshot_reply(message.index, 0, False))
            case VoteRequest():
                engine.send(peer, VoteReply(engine.term, granted=False))
            case PreVoteRequest():
                engine.send(peer, PreVoteReply(engine.term, message.term, granted=False))

    def receive(self, peer: str, message: Message) -> None:
        match message:
            case PreVoteRequest():
                self._on_pre_vote_request(peer, message)
            case PreVoteReply():
                ballot = self._ballot
                asked = ballot is not None and ballot.pre_vote and ballot.term == message.asked_term
                self._on_reply(peer, message.granted and asked)
            case VoteRequest():
                self._on_vote_request(peer, message)
            case VoteReply():
                asked = self._ballot is not None and not self._ballot.pre_vote
                self._on_reply(peer, message.granted and asked)
            case TimeoutNow():
                votes = self._engine.membership.votes and not self._engine.space.low
                if peer == self._engine.leader and votes:
                    self._transfer = True
                    self._campaign()

    def _on_reply(self, peer: str, counts: bool) -> None:
        if counts and self._ballot is not None:
            self._ballot.grant(peer)
            self._count()

    def _would_vote(self, message: PreVoteRequest | VoteRequest) -> bool:
        """This disk may vote, and the candidate's log is as good as its own."""
        engine = self._engine
        return engine.membership.votes and log_is_current(
            message.last_term, message.last_index, engine.last_term, engine.last_index
        )

    def _on_pre_vote_request(self, peer: str, message: PreVoteRequest) -> None:
        engine = self._engine
        granted = (
            self._would_vote(message)
            and not engine.must_not_be_disturbed()
            and not engine.space.full  # the vote could not be made durable
        )
        # A grant speaks in the asker's term, which may be higher, or it would count as stale.
        term = message.term if granted else engine.term
        engine.send(peer, PreVoteReply(term, message.term, granted))

    def _on_vote_request(self, peer: str, message: VoteRequest) -> None:
        engine = self._engine
        granted = (
            engine.vote in (None, peer)
            and engine.leadership is None
            and self._would_vote(message)
            and not self._refuses_disturbance(message)
        )
        if granted:
            if engine.vote is None:
                engine.save_term(engine.term, peer)
            engine.timer.reset(engine.clock())
        engine.send(peer, VoteReply(engine.term, granted))

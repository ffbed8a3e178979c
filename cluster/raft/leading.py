"""How a leader of one term replicates, counts, and knows when it leads no more.

An object lives for one leadership: nothing that was learnt in another term can be mistaken for
news. The leader may send entries before its own disk has them, but counts itself only up to what
is durable; and it counts only entries of its own term (Raft, §5.4.2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from timeball.cluster.raft.elections import quorum
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.errors import Damaged, Halted
from timeball.cluster.raft.messages import (
    Admission,
    Append,
    AppendReply,
    Message,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
)
from timeball.cluster.raft.progress import INSTALLING, REPLICATING, Progress
from timeball.cluster.raft.rounds import Rounds

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine

_logger = logging.getLogger(__name__)


class Leadership:
    """The part of an engine that leads, from its election to its end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        now = engine.clock()
        self._quorum = quorum(len(engine.members))
        self._progress = {peer: Progress(engine.last_index + 1, now) for peer in engine.others}
        self.barrier_index = engine.last_index + 1
        self.announced = False
        """Whether the barrier is applied and observers were told."""
        self.rounds = Rounds(engine, self, engine.others)
        self._place: tuple[int, int, int, int] | None = None
        self._message: tuple[Append, int]
        self._notice: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Write the barrier: once it is applied, so is all that earlier leaders committed."""
        self._write(b"")

    def close(self) -> None:
        for progress in self._progress.values():
            progress.close()
        if self._notice is not None:
            self._notice.cancel()

    def append(self, data: bytes) -> int:
        return self._write(data)

    def _write(self, data: bytes) -> int:
        engine = self._engine
        index = engine.last_index + 1
        engine.write(Entry(data, index, engine.term))
        self.broadcast()
        return index

    def progress(self, peer: str) -> Progress:
        return self._progress[peer]

    # Sending.

    def broadcast(self) -> None:
        """Send each follower what it lacks and may be sent now."""
        for peer in self._engine.others:
            self._advance(peer)

    def _advance(self, peer: str) -> None:
        engine, progress = self._engine, self._progress[peer]
        if not engine.connected(peer):
            return
        if self._lacks_entries_for(progress):
            self._start_install(progress)
        if progress.state is INSTALLING:
            self._send_chunks(peer, progress, engine.settings.snapshot_window_chunks)
        elif self._lacks_entries_for(progress):
            return
        elif progress.state is REPLICATING:
            self._replicate(peer, progress)
        elif progress.may_probe:
            self._send_empty(peer, progress)

    def _replicate(self, peer: str, progress: Progress) -> None:
        engine = self._engine
        limit = engine.settings.max_inflight_bytes
        while progress.next <= engine.last_index and progress.may_replicate(limit):
            in_memory = progress.next > engine.log.held_index
            try:
                message, size = self._entries_from(progress.next)
            except Damaged as damage:
                self._do_without(progress.next, damage)
                self._advance(peer)
                return
            engine.send(peer, message)
            last = progress.next - 1 + len(message.entries)
            progress.sent(last, size, message.commit_index, engine.clock())
            if not in_memory:
                return  # one read of the disk in a turn: the answer, or new entries, bring the next

    def _do_without(self, index: int, damage: Damaged) -> None:
        """The journal cannot give back an entry: who needs it gets a snapshot in its place.

        The state in memory holds what the entry did, and is sound. A snapshot of it also rids the
        disk of the damaged segment, with which the node could not start again.
        """
        engine = self._engine
        if index > engine.applied_index:
            raise Halted(str(damage)) from damage
        _logger.error("%s: %s; a snapshot is to take its place", engine.name, damage)
        engine.log.forget_to(index)
        engine.snapshotting.begin(again=True)

    def _entries_from(self, start: int) -> tuple[Append, int]:
        """The message with the entries from `start` on, and their bytes.

        It is the same object for all who are at the same place, so that it is encoded once. That
        is safe because the log of a leader only grows.
        """
        engine = self._engine
        place = (start, engine.last_index, engine.commit_index, self.rounds.number)
        if place != self._place:
            settings = engine.settings
            entries = engine.storage.entries_from(
                start, settings.max_append_entries, settings.max_append_bytes
            )
            size = sum(len(entry.data) for entry in entries)
            self._place, self._message = place, (self._append_message(start - 1, entries), size)
        return self._message

    def _lacks_entries_for(self, progress: Progress) -> bool:
        """Whether the log no longer has what the follower needs, and no snapshot is on its way."""
        if progress.state is INSTALLING:
            return False
        return progress.next - 1 < self._engine.log.base_index

    def _send_empty(self, peer: str, progress: Progress) -> None:
        engine = self._engine
        prev = progress.next - 1
        engine.send(peer, self._append_message(prev, []))
        progress.sent(prev, 0, engine.commit_index, engine.clock())

    def _append_message(self, prev: int, entries: list[Entry]) -> Append:
        engine = self._engine
        prev_term = engine.log.term_at(prev) if prev else 0  # every log agrees before its first
        assert prev_term is not None
        return Append(
            engine.term,
            prev,
            prev_term,
            engine.commit_index,
            [(entry.term, entry.data) for entry in entries],
            self.rounds.number,
        )

    def _heartbeat(self, peer: str, progress: Progress, now: float) -> None:
        """An empty message: it keeps followers calm, and repeats a probe.

        It follows the last entry that was sent. So its answer also tells of entries that were
        lost on the way, and makes up for answers that were.
        """
        if progress.state is INSTALLING:
            # Every log agrees at index 0, so this is accepted and says nothing new.
            self._engine.send(peer, self._append_message(0, []))
            progress.sent_at = now
            if now - progress.snapshot_moved_at >= self._engine.settings.probe_retry_s:
                progress.snapshot_sent = progress.snapshot_acked
                self._send_chunks(peer, progress, 1)
        else:
            self._send_empty(peer, progress)

    def tick(self, now: float) -> None:
        """Heartbeats, retries, and the end of a leader that nobody answers."""
        engine, settings = self._engine, self._engine.settings
        if not self.has_quorum(now):
            self._call_successor()
            engine.step_down(engine.term)
            return
        for peer, progress in self._progress.items():
            if now - progress.sent_at >= settings.heartbeat_s:
                self._beat(peer, progress, now)

    def beat_all(self) -> None:
        """Have every follower answer, whether it lacks anything or not."""
        now = self._engine.clock()
        for peer, progress in self._progress.items():
            self._beat(peer, progress, now)

    def _beat(self, peer: str, progress: Progress, now: float) -> None:
        if not self._engine.connected(peer):
            return
        if self._lacks_entries_for(progress):
            self._advance(peer)
        else:
            self._heartbeat(peer, progress, now)

    def has_quorum(self, now: float) -> bool:
        """Whether a majority has answered lately, of those who vote.

        A follower whose link is broken stands for election sooner, and counts for less long.
        """
        settings, connected = self._engine.settings, self._engine.connected

        def heard(peer: str) -> bool:
            linked = connected(peer)
            patience_s = settings.leader_fallback_s if linked else settings.broken_link_max_s
            return now - self._progress[peer].last_response < patience_s

        return self.majority(heard)

    def majority(self, counts: Callable[[str], bool]) -> bool:
        """Whether this node makes a majority with the voters among the peers that count."""
        heard = sum(progress.votes and counts(peer) for peer, progress in self._progress.items())
        return heard + 1 >= self._quorum

    # Receiving.

    def connected(self, peer: str) -> None:
        self._progress[peer].restart(self._engine.last_index + 1)
        self._advance(peer)

    def introduced(self, peer: str, incarnation: int, votes: bool) -> None:
        """A member has said which disk it has."""
        if not self._progress[peer].returned(incarnation, votes):
            _logger.error(
                "%s: a former disk of %s is back after a newer one got its vote; it is out of date "
                "and not listened to: empty it",
                self._engine.name,
                peer,
            )

    def receive(self, peer: str, message: Message) -> bool:
        """Whether the message was an answer to a leader."""
        match message:
            case AppendReply():
                self._on_append_reply(peer, message)
            case SnapshotReply():
                self._on_snapshot_reply(peer, message)
            case _:
                return False
        return True

    def _on_append_reply(self, peer: str, reply: AppendReply) -> None:
        engine, progress = self._engine, self._progress[peer]
        if not self._recognise(progress, reply):
            return
        progress.last_response = engine.clock()
        progress.level = reply.level
        self.rounds.heard(peer, reply.round)
        if not reply.accepted:
            if progress.refused(reply, self._next_try(reply)):
                self._advance(peer)
            return
        assert reply.index <= engine.last_index, f"{peer} acknowledged more than there is"
        if progress.accepted(reply.index) and reply.index > engine.commit_index:
            self.count()
        # The count may have ended this leadership, by a halt or by what an observer did.
        if engine.leadership is self:
            self._admit(peer, progress)
            self._advance(peer)

    def _recognise(self, progress: Progress, reply: AppendReply | SnapshotReply) -> bool:
        """Whether the answer is of the disk in use; a joining one gets an entry to catch up to.

        That entry is written after all that the name's former disk can have taken part in. Once
        a majority of the others holds it, nobody can win by a vote that the former disk gave.
        """
        engine = self._engine
        if not progress.recognise(reply.incarnation, reply.votes, engine.last_index + 1):
            return False
        if not progress.votes and progress.join_index is None and not engine.handing_over:
            progress.join_index = self._write(b"")
        return True

    def _admit(self, peer: str, progress: Progress) -> None:
        """Give a joining disk its vote when it holds what it must, and that is committed."""
        engine, index = self._engine, progress.join_index
        if progress.admissible and index is not None and engine.commit_index >= index:
            assert progress.incarnation is not None
            founders = engine.storage.metadata.founders
            engine.send(peer, Admission(engine.term, progress.incarnation, index, founders))

    def _next_try(self, refusal: AppendReply) -> int:
        """Where the logs may agree, judged by the term that the follower holds (Raft, §5.3)."""
        log = self._engine.log
        if refusal.hint_term == 0:
            return refusal.hint_index
        index = log.last_index_up_to_term(refusal.index - 1, refusal.hint_term)
        return index + 1 if log.term_at(index) == refusal.hint_term else refusal.hint_index

    def count(self) -> None:
        """Commit what a majority of voters holds durably, if the last of it is of this term."""
        engine = self._engine
        held = [progress.match if progress.votes else 0 for progress in self._progress.values()]
        held.append(engine.storage.durable_index)
        held.sort()
        index = held[-self._quorum]
        if index > engine.commit_index and engine.log.term_at(index) == engine.term:
            self._expect_notice(index)
            engine.commit(index)

    def _expect_notice(self, index: int) -> None:
        """See that followers learn of the commit soon, if no entry carries it to them."""
        if self._notice is None and self._engine.others:
            delay = self._engine.settings.commit_notice_s
            self._notice = self._engine.call_later(delay, lambda: self._send_notices(index))

    def _send_notices(self, index: int) -> None:
        """Tell those who have not heard of this commit; later ones get their own time."""
        self._notice = None
        engine = self._engine
        if engine.leadership is not self or engine.halted is not None:
            return
        with engine.turn():
            for peer, progress in self._progress.items():
                told = progress.commit_sent >= index
                ready = progress.state is REPLICATING and engine.connected(peer)
                if ready and not told and not self._lacks_entries_for(progress):
                    self._send_empty(peer, progress)
            if engine.commit_index > index:
                self._expect_notice(engine.commit_index)

    # Snapshots.

    def _start_install(self, progress: Progress) -> None:
        engine = self._engine
        try:
            snapshot = engine.storage.snapshots.newest()
        except Damaged as damage:
            _logger.error("%s: %s", engine.name, damage)
            engine.storage.snapshots.set_aside(damage.path)
            snapshot = None
        if snapshot is not None and snapshot.position.index < engine.log.base_index:
            snapshot.close()  # the log does not go on from there
            snapshot = None
        if snapshot is None:
            # The state in memory is sound: a later turn finds what is made of it.
            engine.snapshotting.begin(again=True)
        else:
            progress.become_installing(snapshot, engine.clock())

    def _send_chunks(self, peer: str, progress: Progress, window: int) -> None:
        engine, snapshot = self._engine, progress.snapshot
        assert snapshot is not None
        piece = engine.settings.snapshot_chunk_bytes
        end = min(snapshot.size, progress.snapshot_acked + window * piece)
        while progress.snapshot_sent < end:
            offset = progress.snapshot_sent
            try:
                data = snapshot.read(offset, piece)
            except Damaged as damage:
                _logger.error("%s: %s", engine.name, damage)
                engine.snapshotting.replace_newest(damage)
                progress.become_probing(engine.last_index + 1)
                return
            at = snapshot.position
            message = SnapshotChunk(engine.term, at.index, at.term, snapshot.size, offset, data)
            engine.send(peer, message)
            progress.snapshot_sent += len(data)
            progress.snapshot_moved_at = progress.sent_at = engine.clock()

    def _on_snapshot_reply(self, peer: str, reply: SnapshotReply) -> None:
        engine, progress = self._engine, self._progress[peer]
        if not self._recognise(progress, reply):
            return
        now = engine.clock()
        progress.last_response = now
        snapshot = progress.snapshot
        if snapshot is None or snapshot.position.index != reply.index:
            return
        if reply.installed:
            progress.installed(reply.index)
            self.count()
        elif reply.received == 0 and progress.snapshot_sent == snapshot.size:
            engine.snapshotting.doubt()  # the whole was refused
            progress.become_probing(engine.last_index + 1)
            return
        elif reply.received > progress.snapshot_acked:
            progress.snapshot_acked = reply.received
            progress.snapshot_moved_at = now
        elif reply.received < progress.snapshot_acked:
            # It began anew, or refused the whole: go on from there, but not before the retry.
            progress.snapshot_acked = progress.snapshot_sent = reply.received
            progress.snapshot_moved_at = now
            return
        if engine.leadership is self:
            self._advance(peer)

    # Handing over.

    def _call_successor(self) -> None:
        """Have the furthest follower stand at once, if this leader can be heard, but hears nobody.

        Followers that hear it would otherwise begin to wait only now.
        """
        reached = [peer for peer in self._progress if self._engine.connected(peer)]
        if reached:
            furthest = max(reached, key=lambda peer: self._progress[peer].match)
            self._engine.send(furthest, TimeoutNow(self._engine.term))

    def hand_over(self) -> bool:
        """Ask the follower that is furthest to stand for election; whether one holds all."""
        engine = self._engine
        for peer, progress in self._progress.items():
            ready = progress.votes and progress.match == engine.last_index
            if ready and engine.connected(peer):
                engine.send(peer, TimeoutNow(engine.term))
                return True
        return False

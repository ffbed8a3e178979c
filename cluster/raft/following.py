"""How a follower takes entries and snapshots from its leader.

Entries that the log holds already are left alone; the log is cut only at a real conflict, and
never at or below what is committed. An acknowledgement leaves only after the sync that makes true
what it says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from timeball.cluster.raft.disk import finding_room
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.errors import Damaged, DiskFull, Halted
from timeball.cluster.raft.messages import (
    Append,
    AppendReply,
    Message,
    SnapshotChunk,
)
from timeball.cluster.raft.snapshots import Position

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine

_logger = logging.getLogger(__name__)


class _Acknowledgement:
    """What will be true for one leader once the journal is synced."""

    def __init__(self, leader: str, term: int) -> None:
        self.leader = leader
        self.term = term
        self.index = 0
        self.round = 0


class Following:
    """The part of an engine that follows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: _Acknowledgement | None = None
        self._incoming: tuple[str, int, int, int] | None = None
        self._installation: asyncio.Task[None] | None = None

    def receive(self, peer: str, message: Message) -> bool:
        """Whether the message was for a follower."""
        match message:
            case Append():
                self._on_append(peer, message)
            case SnapshotChunk():
                self._on_chunk(peer, message)
            case _:
                return False
        return True

    def _on_append(self, peer: str, message: Append) -> None:
        engine = self._engine
        engine.follow(peer)
        engine.known_commit_index = max(engine.known_commit_index, message.commit_index)
        engine.reading.leader_answers = message.round > 0
        if engine.space.full:
            # Every log agrees at index 0, so this refusal only says that the node is alive.
            engine.send(peer, engine.membership.append_reply(False, 0, 0, 0, message.round))
            return
        refusal = self._refusal(message)
        if refusal is not None:
            engine.send(peer, refusal)
            return
        self._take(message)
        matched = message.prev_index + len(message.entries)
        self._acknowledge(peer, matched, message.round)
        engine.commit(min(message.commit_index, matched))

    def _refusal(self, message: Append) -> AppendReply | None:
        """The answer when the log does not hold the entry before; None when it does."""
        engine, log, prev = self._engine, self._engine.log, message.prev_index
        membership = engine.membership
        if prev > log.last_index:
            return membership.append_reply(False, prev, log.last_index + 1, 0, message.round)
        held = log.term_at(prev)
        if held is None or held == message.prev_term:
            return None  # what the log knows no more is committed, and agrees
        if prev <= engine.commit_index:
            raise Halted(f"the leader's entry {prev} differs from the committed one")
        first = log.first_index_of_term(prev, floor=engine.commit_index)
        return membership.append_reply(False, prev, first, held, message.round)

    def _take(self, message: Append) -> None:
        engine, log = self._engine, self._engine.log
        index = message.prev_index
        for term, data in message.entries:
            index += 1
            held = log.term_at(index)
            if held == term or index <= log.base_index:
                continue
            if held is not None:
                if index <= engine.commit_index:
                    raise Halted(f"the leader's entry {index} differs from the committed one")
                engine.storage.truncate_from(index)
            engine.write(Entry(data, index, term))

    def _acknowledge(self, leader: str, index: int, round_number: int) -> None:
        """Say that the log agrees up to `index`, as soon as that is durable."""
        pending, term = self._pending, self._engine.term
        if pending is None or (pending.leader, pending.term) != (leader, term):
            pending = self._pending = _Acknowledgement(leader, term)
        pending.index = max(pending.index, index)
        pending.round = max(pending.round, round_number)
        if self._engine.storage.unsynced:
            self._engine.schedule_flush()
        else:
            self.durable()

    def durable(self) -> None:
        """All that was written is durable: send what waited for it."""
        pending, self._pending = self._pending, None
        engine = self._engine
        if pending is None or pending.term != engine.term:
            return
        reply = engine.membership.append_reply(True, pending.index, 0, 0, pending.round)
        engine.send(pending.leader, reply)

    def _on_chunk(self, peer: str, message: SnapshotChunk) -> None:
        engine = self._engine
        engine.follow(peer)
        if engine.space.full:
            self._drop_incoming()
            return
        if self._holds(message):
            self._drop_incoming()
            engine.commit(message.index)
            engine.flush()
            self._answer(peer, message, message.size, installed=True)
            return
        try:
            received = self._take_chunk(peer, message)
        except DiskFull:
            self._drop_incoming()
            raise
        if received < message.size:
            self._answer(peer, message, engine.storage.snapshots.incoming_size)
            return
        if self._installation is None and not engine.snapshotting.publishing:
            self._installation = engine.create_task(self._install(peer, message))
        # The leader repeats its last piece until it has an answer.

    def _holds(self, message: SnapshotChunk) -> bool:
        """Whether the node has what the snapshot covers: it never goes backwards."""
        engine = self._engine
        if message.index <= engine.applied_index:
            return True
        return engine.log.term_at(message.index) == message.last_term

    def _take_chunk(self, peer: str, message: SnapshotChunk) -> int:
        """Add a piece if it is the next one; how much is there now."""
        store = self._engine.storage.snapshots
        identity = (peer, message.index, message.last_term, message.size)
        if message.size > self._engine.settings.max_snapshot_bytes:
            _logger.error("a snapshot of %d bytes is refused: over the limit", message.size)
            return 0
        if identity != self._incoming:
            self.abandon()
            with finding_room():
                store.incoming_start()
            self._incoming = identity
        if message.offset == store.incoming_size and message.offset + len(message.data) <= (
            message.size
        ):
            with finding_room():
                store.incoming_append(message.data)
        return store.incoming_size

    async def _install(self, peer: str, message: SnapshotChunk) -> None:
        """Load what was received, while the node goes on as it was, then change over."""
        engine, storage = self._engine, self._engine.storage
        remains: Iterable[None] = ()
        with engine.turn():
            try:
                with finding_room():
                    await storage.aside(storage.snapshots.incoming_sync)
                self._must_live()
                snapshot = storage.snapshots.incoming_snapshot()
                if snapshot.position != Position(message.index, message.last_term):
                    raise Damaged(snapshot.path, f"it is for {snapshot.position}")
                loading = engine.machine.loading()
                for chunk in snapshot.chunks():
                    loading.add(chunk)
                    await self._let_others()
                if self._holds(message) or engine.leadership is not None:
                    self._end_installation()  # it has come about otherwise
                    return
                storage.lower_mark(snapshot.position.index)  # the last that may find no room
                remains = loading.finish()
            except NotImplementedError as error:
                raise Halted(f"the leader's snapshot cannot be loaded: {error}") from error
            except DiskFull:
                self._must_live()
                self._end_installation()
                raise
            except (Damaged, ValueError) as error:
                _logger.error("%s: a received snapshot is refused: %s", engine.name, error)
                self._end_installation()
                self._answer(peer, message, 0)
                return
            engine.install(snapshot)
            self._end_installation()
            self._answer(peer, message, message.size, installed=True)
        for _ in remains:
            await self._let_others()

    async def _let_others(self) -> None:
        await asyncio.sleep(0)
        self._must_live()

    def _must_live(self) -> None:
        """A node that has stopped itself touches nothing any more."""
        if self._engine.halted is not None:
            raise asyncio.CancelledError

    def abandon(self) -> None:
        """Go on no more with the installation under way."""
        if self._installation is not None:
            self._installation.cancel()
            self._installation = None

    def _end_installation(self) -> None:
        self._installation = None
        self._drop_incoming()

    def _drop_incoming(self) -> None:
        self.abandon()
        self._incoming = None
        self._engine.storage.snapshots.incoming_drop()

    def _answer(
        self, peer: str, message: SnapshotChunk, received: int, installed: bool = False
    ) -> None:
        reply = self._engine.membership.snapshot_reply(message.index, received, installed)
        self._engine.send(peer, reply)

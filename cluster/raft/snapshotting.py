"""How a node takes its snapshots while it goes on with its work.

A dump tells the state of the moment in which it began, a chunk at a time. After a slice of at most
a millisecond the loop is left to others for a multiple of it. Writes are synced often, and beside
the loop: what a sync of the journal might have to wait for is little.

Members take turns. Each begins when the log passes a mark of its own, and the marks lie apart, so
that nothing has to be agreed upon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from timeball.cluster.raft.errors import Damaged, SnapshotUnderWay
from timeball.cluster.raft.interface import Dump
from timeball.cluster.raft.snapshots import Position, Writing

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine

_logger = logging.getLogger(__name__)

SYNC_BYTES = 256 * 1024
MIN_PAUSE_S = 0.001
MAX_SLICE_S = 0.001
MAX_SLICE_CHUNKS = 4


class Snapshotting:
    """The part of an engine that takes snapshots."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._dump: Dump | None = None
        self._position = engine.storage.position
        """Of the snapshot under way, or the last one."""
        self._considered = engine.storage.position.index
        self._not_before = 0
        self._failed = False
        """Whether the last one could not be written."""
        self.grown_bytes = 0
        """Bytes of the entries applied since the last snapshot."""
        self.publishing = False
        """Whether names of files are being changed beside the loop: nobody else may do so."""
        place, count = engine.members.index(engine.name), len(engine.members)
        self._offset = engine.settings.snapshot_entries * place // count
        engine.stats.last_snapshot_index = engine.storage.position.index

    def consider(self) -> None:
        """Entries were applied: begin a snapshot if its time has come."""
        engine, settings = self._engine, self._engine.settings
        index, period = engine.applied_index, engine.settings.snapshot_entries
        passed = (index + self._offset) // period > (self._considered + self._offset) // period
        self._considered = index
        grown = index - engine.storage.position.index
        too_large = self.grown_bytes >= settings.snapshot_bytes and index >= self._not_before
        if (passed and grown >= period / 2) or too_large:
            self.begin()

    def begin(self, again: bool = False) -> None:
        """Begin a snapshot of all that is applied, unless there is one or one is under way.

        `again`: even if there is one, because it turned out to be damaged.
        """
        known = self._engine.applied_index == self._engine.storage.position.index and not again
        if not known and self._task is None and self._engine.halted is None:
            self._run(self._take(*self._dump_now()))

    def ask(self) -> int:
        """Begin a snapshot because somebody wants one; the position that it covers.

        Raises SnapshotUnderWay when one is being taken already.
        """
        if self._task is not None:
            raise SnapshotUnderWay(self._position.index)
        self.begin()
        return self._engine.applied_index

    def doubt(self) -> None:
        """Somebody has refused our newest snapshot: put it aside if it is damaged."""
        if self._task is None:
            self._run(self._verify_newest())

    def try_again(self) -> None:
        """There is room again: make up for a snapshot that found none."""
        if self._failed:
            self.begin()

    def replace_newest(self, damage: Damaged) -> None:
        """Put our newest snapshot aside, which is damaged, and take another."""
        self._engine.storage.snapshots.set_aside(damage.path)
        self.begin(again=True)

    def abandon(self) -> None:
        """Go on no more with the snapshot under way; it ends in one of the next turns."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until nothing is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._engine.create_task(work)
        self._task.add_done_callback(self._clean_up)

    def _clean_up(self, _task: asyncio.Task[None]) -> None:
        """Whatever became of the task, even if it never began."""
        self._task = None
        self.publishing = self._engine.stats.snapshot_under_way = False
        if self._dump is not None:
            self._dump.close()
            self._dump = None

    def _dump_now(self) -> tuple[Position, Dump]:
        engine = self._engine
        term = engine.log.term_at(engine.applied_index)
        assert term is not None
        self._position = Position(engine.applied_index, term)
        self._dump = dump = engine.machine.dump()
        engine.stats.snapshot_under_way = True
        return self._position, dump

    async def _take(self, position: Position, dump: Dump) -> None:
        engine, stats = self._engine, self._engine.stats
        began, bytes_before = engine.clock(), self.grown_bytes
        try:
            size = await self._write(position, dump)
            self._failed = False
            segments = engine.storage.adopt(position)
            self.grown_bytes -= bytes_before
            stats.snapshots_taken += 1
            stats.last_snapshot_bytes = size
            stats.last_snapshot_s = engine.clock() - began
            stats.last_snapshot_index = position.index
            await engine.storage.aside(lambda: engine.storage.remove_old(segments))
            while engine.storage.forget_some():
                await self._pause()
        except OSError as error:
            self._failed = True
            stats.snapshot_failures += 1
            wait = max(1, engine.settings.snapshot_entries // 10)
            self._not_before = engine.applied_index + wait
            _logger.error("%s: the snapshot at %d failed: %s", engine.name, position.index, error)
        except Exception as error:
            engine.halt(f"{type(error).__name__}: {error}")
            raise

    async def _write(self, position: Position, dump: Dump) -> int:
        """Make the dump a durable snapshot; its size."""
        engine = self._engine
        snapshots = engine.storage.snapshots
        writing = snapshots.begin(position)
        try:
            await self._fill(writing, dump)
            # So the journal can stand in for the snapshot, should that get damaged.
            assert engine.storage.journal.durable_index >= position.index
            self.publishing = True
            await engine.storage.aside(lambda: snapshots.publish(writing))
            self._must_live()
            return writing.size
        except BaseException:
            if engine.halted is None:
                snapshots.abandon(writing)
            raise
        finally:
            writing.close()

    async def _fill(self, writing: Writing, dump: Dump) -> None:
        """Write the chunks of the dump, and pause after each slice of them."""
        engine = self._engine
        writing.open()
        rests_per_work = 1 / engine.settings.snapshot_share - 1
        paused = 0.0
        while True:
            began = engine.clock()
            # The longer the others took in the pause, the more may be done to keep the share.
            until = began + min(MAX_SLICE_S, paused / rests_per_work)
            for _ in range(MAX_SLICE_CHUNKS):
                chunk = next(dump, None)
                if chunk is None:
                    writing.seal()
                    return
                writing.add(chunk)
                if engine.clock() >= until:
                    break
            ended = engine.clock()
            if writing.unsynced >= SYNC_BYTES:
                await engine.storage.aside(writing.sync)
            await self._pause((ended - began) * rests_per_work)
            paused = engine.clock() - ended

    async def _pause(self, pause_s: float = 0.0) -> None:
        """Leave the loop to others."""
        await asyncio.sleep(max(MIN_PAUSE_S, pause_s))
        self._must_live()

    def _must_live(self) -> None:
        """A node that has stopped itself touches nothing any more."""
        if self._engine.halted is not None:
            raise asyncio.CancelledError

    async def _verify_newest(self) -> None:
        snapshots = self._engine.storage.snapshots
        try:
            newest = snapshots.newest()
            if newest is None:
                return
            try:
                for _ in newest.chunks():
                    await self._pause()
            finally:
                newest.close()
        except Damaged as damage:
            _logger.error("%s", damage)
            snapshots.set_aside(damage.path)

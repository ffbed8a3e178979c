"""What a node keeps on its disk, as one whole: journal, snapshots, term and vote.

The parts have to agree when a node starts. Whatever a crash can leave behind is put right here;
what no crash can leave is damage, and the node does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from timeball.cluster.raft.disk import Disk, Lock
from timeball.cluster.raft.entry import Entry, MemoryLog
from timeball.cluster.raft.errors import Damaged, Halted
from timeball.cluster.raft.interface import StateMachine
from timeball.cluster.raft.journal import Journal, segment_name
from timeball.cluster.raft.metadata import (
    BLANK,
    JOINING,
    VOTER,
    Metadata,
    MetadataStore,
    Standing,
)
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.snapshots import Position, Snapshot, SnapshotStore

_logger = logging.getLogger(__name__)
NOTHING = Position(0, 0)
_FORGOTTEN_AT_ONCE = 1_000
"""Entries dropped from memory in one turn: to free 50,000 in one go takes many milliseconds."""

_READ_BYTES = 256 * 1024
"""Read from the journal in one turn: the event loop waits for it."""


class Storage:
    """One data directory, locked while it is open."""

    def __init__(self, disk: Disk, directory: Path, settings: RaftSettings) -> None:
        self._disk = disk
        self.aside = disk.aside
        self._directory = directory
        self._settings = settings
        self._lock: Lock | None = None
        self._metadata_store = MetadataStore(disk, directory)
        self.journal = Journal(disk, directory, settings.segment_bytes, settings.journal_step_bytes)
        self.snapshots = SnapshotStore(disk, directory)
        self.log = MemoryLog(max_bytes=settings.log_memory_bytes)
        self._ahead: list[Entry] = []
        """Entries to be applied that were read from the journal together, the next one last."""
        self.position = NOTHING
        """The last entry that the newest snapshot covers."""
        self.metadata = Metadata("", "")
        self.durable_index = 0
        """The last index that may be vouched for: a restart will find it, or tell that it is lost.
        """

    def open(self, cluster_id: str, node: str, machine: StateMachine) -> None:
        """Load what is there into the state machine and the log.

        Raises Damaged, Misconfigured or Halted when the node must not start.
        """
        self._lock = self._disk.lock(self._directory)
        self.snapshots.clean()
        self.metadata = self._metadata_store.load(cluster_id, node)
        self.journal.open(self.log, self.metadata.vouched, self.metadata.cutting)
        damages = self._load_snapshot(machine)
        self._check_fallback(damages)
        self._join_journal_to_snapshot()
        if self.log.base_index < self.metadata.cutting <= self.log.last_index:
            self._cut_from(self.metadata.cutting)
        self.durable_index = self.journal.durable_index
        if self.log.last_term > self.metadata.term:
            raise Damaged(self._directory / "metadata", "it is older than the journal")
        for damage in damages:
            _logger.error("%s; using an older snapshot and the journal", damage)
            self.snapshots.set_aside(damage.path)

    def _load_snapshot(self, machine: StateMachine) -> list[Damaged]:
        """Load the newest sound snapshot; the damaged ones that are newer."""
        damages: list[Damaged] = []
        for found in self.snapshots.candidates():
            if isinstance(found, Damaged):
                damages.append(found)
                continue
            try:
                machine.load(found.chunks())
            except NotImplementedError as error:
                raise Halted(f"{found.path} cannot be loaded: {error}") from error
            except ValueError as error:
                damages.append(Damaged(found.path, f"the state machine refused it: {error}"))
                continue
            finally:
                found.close()
            self.position = found.position
            break
        return damages

    def _check_fallback(self, damages: list[Damaged]) -> None:
        """A damaged snapshot is bearable only if journal and older snapshot hold all it held."""
        if not damages:
            return
        newest = int(damages[0].path.name.rpartition("-")[2])
        covered = not self.journal.empty and self.log.base_index <= self.position.index
        if not covered or self.log.last_index < newest:
            raise damages[0]

    def _join_journal_to_snapshot(self) -> None:
        position, log = self.position, self.log
        if self.journal.empty:
            nothing = position == NOTHING and self.metadata.standing == VOTER
            if nothing or position.index < self.metadata.vouched:
                raise Damaged(self._directory / segment_name(1), "the journal is missing")
            self._restart_log_after(position)
        elif log.base_index > position.index:
            raise Damaged(
                self._directory / segment_name(log.base_index + 1),
                f"the journal begins here, but the snapshot ends at {position.index}",
            )
        elif log.term_at(position.index) != position.term:
            # Either all of the journal is older than an installed snapshot, or what follows the
            # snapshot's place followed another entry there and was never committed.
            self._restart_log_after(position)
        else:
            log.forget_to(position.index - self._settings.trailing_entries)

    def _restart_log_after(self, position: Position) -> None:
        self.journal.reset(position.index, position.term)
        self.log.reset(position.index, position.term)
        self.durable_index = position.index

    def free_bytes(self) -> int:
        """What may still be written to the disk of this directory."""
        return self._disk.free_bytes(self._directory)

    def save_vote(self, term: int, vote: str | None) -> None:
        """Make term and vote durable; only then may either be spoken of."""
        assert term >= self.metadata.term, "terms never fall"
        if (term, vote) != (self.metadata.term, self.metadata.vote):
            self._save(msgspec.structs.replace(self.metadata, term=term, vote=vote))

    def identify(self, incarnation: int) -> None:
        """Give the disk its number, if it has none yet; it is durable on return."""
        if self.metadata.incarnation == 0:
            self._save(msgspec.structs.replace(self.metadata, incarnation=incarnation))

    def save_standing(self, standing: Standing, founders: Mapping[str, int]) -> None:
        """Make the standing durable, with the founders as far as they are known.

        Nobody becomes blank again, and a vote is given up by `disown` alone.
        """
        before = self.metadata
        assert standing != BLANK
        assert before.standing != VOTER or standing == VOTER, "a vote is given up by `disown`"
        known = dict(founders) or before.founders
        self._save(msgspec.structs.replace(before, standing=standing, founders=known))

    def disown(self, incarnation: int) -> None:
        """Give up the vote: this disk may hold less than its name has vouched for.

        It counts as another disk from now on, `incarnation`, and joins as an emptied one does.
        Call it before the engine starts.
        """
        assert incarnation != self.metadata.incarnation
        fresh = msgspec.structs.replace(
            self.metadata, standing=JOINING, incarnation=incarnation, vote=None
        )
        self._save(fresh)

    def mark(self) -> None:
        """Remember how far the log goes: should its end get lost, the next start will tell."""
        if self.metadata.vouched < self.journal.durable_index:
            self._save(self.metadata)

    def lower_mark(self, index: int) -> None:
        """What is behind `index` may go: a snapshot takes its place. DiskFull changes nothing."""
        if self.metadata.vouched > index:
            self._replace(msgspec.structs.replace(self.metadata, vouched=index))

    def probe(self) -> None:
        """Try whether there is room again, by writing; DiskFull when there is none."""
        self._save(self.metadata)
        self.journal.reserve()

    def _save(self, metadata: Metadata) -> None:
        """Save it with the mark of now; DiskFull changes nothing."""
        self._replace(msgspec.structs.replace(metadata, vouched=self.journal.durable_index))

    def _replace(self, metadata: Metadata) -> None:
        self._metadata_store.save(metadata)
        self.metadata = metadata

    def append(self, entry: Entry) -> None:
        self.log.append(entry)
        self.journal.append(entry)

    @property
    def unsynced(self) -> bool:
        """Whether `sync` has something to do before all of the log may be vouched for."""
        return self.journal.unwritten > 0 or self.durable_index < self.journal.durable_index

    def sync(self) -> int:
        """Make durable what was appended, and keep the newest of it in memory; the bytes written.

        OSError stops the node. On DiskFull nothing more may be vouched for than before, and it
        may be called again.
        """
        written = self.journal.sync()
        durable, metadata = self.journal.durable_index, self.metadata
        cut_is_over = 0 < metadata.cutting <= durable
        if cut_is_over or metadata.vouched < self.journal.newest_segment <= durable:
            # A segment that goes missing must be missed, and a cut that is over not be repeated.
            cutting = 0 if cut_is_over else metadata.cutting
            self._save(msgspec.structs.replace(metadata, cutting=cutting))
        self.durable_index = durable
        self.log.shed(durable)
        return written

    def entries_from(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `start` on, up to both limits, but at least one if there is any.

        From memory, or a bounded piece of the journal; Damaged when that cannot give it back.
        """
        if start > self.log.held_index:
            return self.log.slice(start, max_entries, max_bytes)
        return self.journal.read(start, max_entries, min(max_bytes, _READ_BYTES))

    def entry(self, index: int) -> Entry:
        """The entry to apply next.

        Halted when the journal cannot give it back: the state cannot go on without it.
        """
        log = self.log
        if index > log.held_index:
            return log.get(index)
        if not self._ahead or self._ahead[-1].index != index:
            try:
                self._ahead = self.journal.read(index, log.held_index - index + 1, _READ_BYTES)
            except Damaged as damage:
                raise Halted(str(damage)) from damage
            self._ahead.reverse()
        return self._ahead.pop()

    def truncate_from(self, index: int) -> None:
        """Remove the entries from `index` on; DiskFull changes nothing."""
        if index <= self.journal.durable_index:
            mark = min(self.metadata.vouched, index - 1)
            cutting = min(index, self.metadata.cutting or index)
            self._replace(msgspec.structs.replace(self.metadata, vouched=mark, cutting=cutting))
        self._cut_from(index)

    def _cut_from(self, index: int) -> None:
        term_before = self.log.term_at(index - 1)
        assert term_before is not None
        self.log.truncate_from(index)
        self.journal.truncate_from(index, term_before)
        self.durable_index = min(self.durable_index, index - 1)
        self._ahead.clear()  # what takes their place may have the same index

    def adopt(self, position: Position) -> list[Path]:
        """A snapshot of our own is durable at `position`; the journal's files to remove now.

        Memory lets go of the entries behind it in steps (see `forget_some`).
        """
        assert position.index >= self.position.index
        self.position = position
        # Damage makes the snapshot before worthless: it was to be used with all of the journal.
        kept = position.index if self.journal.damaged else self.snapshots.previous_index()
        segments = self.journal.forget_to(kept)
        self.log.forget_to(min(self.journal.first_index - 1, self.log.held_index))
        return segments

    def remove_old(self, segments: Iterable[Path]) -> None:
        """Remove what the newest snapshot made superfluous."""
        for path in segments:
            self._disk.remove(path)
        self.snapshots.drop_old()

    def forget_some(self) -> bool:
        """Drop a bounded number of entries from memory; whether more are behind the snapshot."""
        log, target = self.log, self.position.index - self._settings.trailing_entries
        log.forget_to(min(target, max(log.base_index, log.held_index) + _FORGOTTEN_AT_ONCE))
        return log.base_index < target

    def install(self, snapshot: Snapshot) -> None:
        """Publish a received snapshot; the log, which holds nothing behind it, starts anew."""
        position = snapshot.position
        assert position.index > self.position.index
        self.lower_mark(position.index)
        self.snapshots.incoming_publish(position.index)
        self.position = position
        self._restart_log_after(position)

    def close(self) -> None:
        self.snapshots.close()
        self.journal.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

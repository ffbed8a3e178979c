"""What a node must have on its disk before it says so, and must not lose there."""

from mutant import Mutant

JOURNAL = "cluster/raft/journal.py"
PADDED = "cluster/raft/padded.py"
METADATA = "cluster/raft/metadata.py"
SNAPSHOTS = "cluster/raft/snapshots.py"

RULES = (
    Mutant(
        "follower-acks-before-fsync",
        "A follower acknowledges only what its journal has synced (F1).",
        "cluster/raft/following.py::Following._acknowledge",
        "if self._engine.storage.unsynced:",
        "if False:",
        ["test_f1_an_acknowledgement_waits_for_the_sync_of_the_journal"],
    ),
    Mutant(
        "leader-counts-itself-before-fsync",
        "A leader counts itself only up to what its own journal has synced (F1).",
        "cluster/raft/leading.py::Leadership.count",
        "engine.storage.durable_index",
        "engine.last_index",
        ["test_f1_a_leader_counts_itself_only_once_durable"],
    ),
    Mutant(
        "journal-is-not-synced",
        "A batch of the journal is synced before it counts as durable (F1).",
        f"{JOURNAL}::Journal.sync",
        "segment.file.sync()",
        "pass",
        ["test_f1_an_acknowledgement_waits_for_the_sync_of_the_journal"],
    ),
    Mutant(
        "new-segment-has-no-durable-name",
        "The directory is synced when a segment is made, or its entries go with its name (F1).",
        f"{JOURNAL}::Journal._start_segment",
        "self._disk.sync_directory(self._directory)",
        "pass",
        ["test_what_was_synced_is_read_again"],
    ),
    Mutant(
        "cut-of-the-journal-is-not-synced",
        "What was cut from the journal does not come back after a loss of power (F7).",
        f"{PADDED}::PaddedFile.cut",
        "self._file.sync()",
        "pass",
        ["test_a_truncation_is_durable"],
    ),
    Mutant(
        "failed-disk-goes-on",
        "An error in a turn stops the node: nothing is acknowledged after a failed sync (F1).",
        "cluster/raft/engine.py::_Turn.__exit__",
        'self._engine.halt(f"{type(error).__name__}: {error}")',
        "pass",
        [
            "test_f1_a_failed_sync_stops_the_node_and_is_never_acknowledged",
            "test_f10_raft08_an_exception_in_apply_stops_the_node_after_one_try",
        ],
    ),
    Mutant(
        "vote-is-not-stored",
        "Term and vote are on disk before a vote leaves (F1, RAFT-05).",
        "cluster/raft/storage.py::Storage._replace",
        "self._metadata_store.save(metadata)",
        "pass",
        [
            "test_f1_raft05_a_vote_is_durable_before_it_leaves",
            "test_f1_raft05_a_vote_survives_a_loss_of_power",
        ],
    ),
    Mutant(
        "metadata-is-renamed-unsynced",
        "The metadata's content is durable before its name is (RAFT-05).",
        f"{METADATA}::MetadataStore.save",
        "file.sync()",
        "pass",
        ["test_raft05_no_crash_while_voting_forgets_an_earlier_vote"],
    ),
    Mutant(
        "metadata-has-no-durable-name",
        "The directory is synced before a vote may be spoken of (RAFT-05).",
        f"{METADATA}::MetadataStore.save",
        "self._disk.sync_directory(self._directory)",
        "pass",
        ["test_f1_raft05_a_vote_survives_a_loss_of_power"],
    ),
    Mutant(
        "damaged-record-is-replayed",
        "A record whose checksum does not match is never taken into the log (F4, RAFT-03).",
        f"{JOURNAL}::_read_record",
        "if crc32(memoryview(raw)[offset + 4 : end]) != crc:",
        "if False:",
        ["test_raft03_a_bad_record_of_the_last_batch_is_cut_and_the_journal_goes_on"],
    ),
    Mutant(
        "vouched-record-is-cut",
        "A bad record with a later batch behind it was vouched for: refuse to start (RAFT-03).",
        f"{JOURNAL}::Journal._read_last",
        "if _later_batch(rest, 0, log.last_index + 1) is not None:",
        "if False:",
        ["test_raft03_a_bad_record_that_a_later_batch_follows_is_refused"],
    ),
    Mutant(
        "torn-tail-stays",
        "A torn tail is cut before anything is written behind it (RAFT-03).",
        f"{JOURNAL}::Journal._read_last",
        "file.blank(segment.end)",
        "pass",
        ["test_raft03_a_bad_record_of_the_last_batch_is_cut_and_the_journal_goes_on"],
    ),
    Mutant(
        "journal-goes-before-the-snapshot",
        "Segments are removed only after the snapshot that covers them is durable (F2, F3).",
        "cluster/raft/snapshotting.py::Snapshotting._take",
        "            size = await self._write(position, dump)\n",
        "            engine.storage.remove_old(engine.storage.journal.forget_to(position.index))\n"
        "            size = await self._write(position, dump)\n",
        ["test_f2_f3_raft01_a_node_that_dies_at_any_moment_of_its_snapshot_loses_nothing"],
    ),
    Mutant(
        "journal-does-not-reach-back-to-the-fallback",
        "The journal keeps what follows the older snapshot, which stands in for the newer.",
        "cluster/raft/storage.py::Storage.adopt",
        "self.snapshots.previous_index()",
        "position.index",
        ["test_raft04_a_damaged_snapshot_gives_way_to_the_one_before"],
    ),
    Mutant(
        "snapshot-is-renamed-unsynced",
        "A snapshot's content is durable before its name is (F11d).",
        f"{SNAPSHOTS}::SnapshotStore.publish",
        "writing.sync()",
        "pass",
        [
            "test_a_stored_or_received_snapshot_is_durable_on_return",
            "test_f2_f3_raft01_a_node_that_dies_at_any_moment_of_its_snapshot_loses_nothing",
        ],
    ),
    Mutant(
        "snapshot-has-no-durable-name",
        "The directory is synced before anything that a snapshot covers is removed (F2).",
        f"{SNAPSHOTS}::SnapshotStore._publish",
        "self._disk.sync_directory(self._directory)",
        "pass",
        ["test_a_stored_or_received_snapshot_is_durable_on_return"],
    ),
    Mutant(
        "damaged-snapshot-is-loaded",
        "A chunk of a snapshot whose checksum does not match is damage (RAFT-04).",
        f"{SNAPSHOTS}::_read_chunks",
        "or crc32(data, crc32(head[:4])) != crc",
        "",
        ["test_f11b_raft04_a_damaged_snapshot_is_refused_and_not_acknowledged"],
    ),
    Mutant(
        "received-snapshot-is-not-synced",
        "A received snapshot is durable before it is acknowledged (F11b).",
        f"{SNAPSHOTS}::SnapshotStore.incoming_sync",
        "self._incoming.sync()",
        "pass",
        ["test_f11b_a_sound_snapshot_is_acknowledged_with_its_index_once_durable"],
    ),
)

"""What a node does when its disk has little room, or none."""

from mutant import Mutant

CANDIDACY = "cluster/raft/candidacy.py"
DISKWATCH = "cluster/raft/diskwatch.py"
ENGINE = "cluster/raft/engine.py"
FOLLOWING = "cluster/raft/following.py"
JOURNAL = "cluster/raft/journal.py"
LEADING = "cluster/raft/leading.py"
METADATA = "cluster/raft/metadata.py"
PADDED = "cluster/raft/padded.py"
SPACE = "cluster/raft/space.py"
STORAGE = "cluster/raft/storage.py"

RULES = (
    Mutant(
        "zeros-without-room-stay",
        "Zeros that are not durable are taken away again (RAFT-07).",
        f"{PADDED}::PaddedFile.reserve",
        "self._file.truncate(size)",
        "pass",
        ["test_raft07_zeros_that_are_not_durable_are_taken_away_again"],
    ),
    Mutant(
        "part-of-a-batch-stays",
        "A batch that was written in part is written over, all of it (RAFT-07).",
        f"{PADDED}::PaddedFile.append",
        "data + bytes(self._spoiled_to - end)",
        "data",
        ["test_raft07_a_record_written_in_part_is_written_over"],
    ),
    Mutant(
        "failed-sync-of-data-is-no-room",
        "A sync of data that fails stops the node, whatever the reason: ENOSPC too (RAFT-07).",
        f"{PADDED}::PaddedFile.sync",
        "self._file.sync()",
        "with finding_room():\n            self._file.sync()",
        ["test_raft07_a_batch_whose_sync_fails_is_never_tried_again"],
    ),
    Mutant(
        "new-segment-without-room-stays",
        "A new segment that finds no room leaves no file (RAFT-07).",
        f"{JOURNAL}::Journal._start_segment",
        "self._disk.remove(path)",
        "pass",
        ["test_raft07_a_new_segment_that_finds_no_room_leaves_no_file"],
    ),
    Mutant(
        "vote-without-room-stops-the-node",
        "A vote that finds no room is not given, and nobody stops (RAFT-07).",
        f"{METADATA}::MetadataStore.save",
        "with finding_room():",
        "if True:",
        [
            "test_raft07_a_vote_that_finds_no_room_is_not_given",
            "test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts",
        ],
    ),
    Mutant(
        "vote-is-taken-before-it-is-durable",
        "Without room neither term nor vote is taken (RAFT-07).",
        f"{ENGINE}::Engine.save_term",
        "        self.storage.save_vote(term, vote)\n"
        "        self._SyncObj__setCurrentTerm(term, vote)",
        "        self._SyncObj__setCurrentTerm(term, vote)\n"
        "        self.storage.save_vote(term, vote)",
        ["test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts"],
    ),
    Mutant(
        "full-disk-stops-the-node",
        "A write that meets a full disk changes nothing, and nobody stops (RAFT-07).",
        f"{ENGINE}::_Turn.__exit__",
        "if isinstance(error, DiskFull):",
        "if False:",
        ["test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts"],
    ),
    Mutant(
        "leader-counts-what-waits-for-its-mark",
        "A leader counts itself only up to what may be vouched for (RAFT-07).",
        f"{LEADING}::Leadership.count",
        "engine.storage.durable_index",
        "engine.storage.journal.durable_index",
        ["test_raft07_a_leader_does_not_count_what_waits_for_its_mark"],
    ),
    Mutant(
        "follower-acks-what-waits-for-its-mark",
        "A follower acknowledges only what may be vouched for (RAFT-07).",
        f"{STORAGE}::Storage.unsynced",
        "self.journal.unwritten > 0 or self.durable_index < self.journal.durable_index",
        "self.journal.unwritten > 0",
        ["test_raft07_what_waits_for_its_mark_is_not_vouched_for"],
    ),
    Mutant(
        "full-follower-acknowledges",
        "A full follower takes no entries and acknowledges nothing (RAFT-07).",
        f"{FOLLOWING}::Following._on_append",
        "if engine.space.full:",
        "if False:",
        ["test_raft07_a_full_follower_acknowledges_nothing_but_says_that_it_is_alive"],
    ),
    Mutant(
        "full-follower-is-silent",
        "A full follower says that it is alive: its leader stays (RAFT-07).",
        f"{FOLLOWING}::Following._on_append",
        "engine.send(peer, engine.membership.append_reply(False, 0, 0, 0, message.round))",
        "pass",
        [
            "test_raft07_a_full_follower_acknowledges_nothing_but_says_that_it_is_alive",
            "test_raft07_a_leader_keeps_its_quorum_though_no_follower_can_write",
        ],
    ),
    Mutant(
        "full-follower-takes-a-snapshot",
        "A full follower takes no piece of a snapshot (RAFT-07).",
        f"{FOLLOWING}::Following._on_chunk",
        "        if engine.space.full:\n            self._drop_incoming()\n            return\n",
        "",
        ["test_raft07_a_full_follower_takes_no_piece_though_it_would_fit_into_its_reserve"],
    ),
    Mutant(
        "pieces-without-room-stay",
        "Pieces of a snapshot that found no room are dropped: they take what is sought (RAFT-07).",
        f"{FOLLOWING}::Following._on_chunk",
        "        except DiskFull:\n            self._drop_incoming()\n",
        "        except DiskFull:\n",
        ["test_raft07_pieces_of_a_snapshot_without_room_are_dropped_and_sent_again"],
    ),
    Mutant(
        "full-node-grants-pre-votes",
        "A full node promises no vote: it could not be made durable (RAFT-07).",
        f"{CANDIDACY}::Candidacy._on_pre_vote_request",
        "and not engine.space.full",
        "and True",
        ["test_raft07_a_full_node_promises_no_vote"],
    ),
    Mutant(
        "low-node-stands",
        "A node under the mark does not stand for election (RAFT-07).",
        f"{CANDIDACY}::Candidacy._stand",
        "if engine.space.low:",
        "if False:",
        ["test_raft07_a_node_under_the_mark_does_not_stand_and_returns_by_itself"],
    ),
    Mutant(
        "low-node-takes-over",
        "A node under the mark does not stand when it is asked to, either (RAFT-07).",
        f"{CANDIDACY}::Candidacy.receive",
        "and not self._engine.space.low",
        "",
        ["test_raft07_a_node_under_the_mark_does_not_stand_and_returns_by_itself"],
    ),
    Mutant(
        "low-leader-writes",
        "A leader under the mark refuses writes (RAFT-07).",
        f"{ENGINE}::Engine.append",
        "if self.leadership is not None and self.space.low:",
        "if False:",
        ["test_raft07_a_leader_under_the_mark_refuses_writes"],
    ),
    Mutant(
        "low-leader-stays",
        "A leader under the mark gives its leadership away (RAFT-07).",
        f"{DISKWATCH}::DiskWatch.tick",
        "if space.low and engine.leadership is not None:",
        "if False:",
        [
            "test_raft07_a_leader_under_the_mark_refuses_writes",
            "test_raft07_a_leader_under_the_mark_hands_over_and_refuses_writes_meanwhile",
        ],
    ),
    Mutant(
        "low-leader-hands-nothing-over",
        "A leader under the mark hands over to a follower that holds everything (RAFT-07).",
        f"{DISKWATCH}::DiskWatch._give_leadership_away",
        "engine.leadership.hand_over()",
        "pass",
        ["test_raft07_a_leader_under_the_mark_hands_over_and_refuses_writes_meanwhile"],
    ),
    Mutant(
        "low-leader-waits-for-ever",
        "A leader under the mark that can hand over to nobody steps down in time (RAFT-07).",
        f"{DISKWATCH}::DiskWatch._give_leadership_away",
        "if self.space.full or now >= self._lead_until:",
        "if self.space.full:",
        ["test_raft07_a_leader_under_the_mark_refuses_writes"],
    ),
    Mutant(
        "full-leader-hands-over-first",
        "A full leader steps down at once (RAFT-07).",
        f"{DISKWATCH}::DiskWatch._give_leadership_away",
        "if self.space.full or now",
        "if now",
        ["test_raft07_a_leader_that_finds_no_room_does_not_count_itself"],
    ),
    Mutant(
        "told-room-ends-full",
        "After a write that found no room only one that does ends it (RAFT-07).",
        f"{SPACE}::Space._judge",
        "if self.refused or self._under",
        "if self._under",
        [
            "test_raft07_after_a_write_without_room_only_a_write_that_finds_some_counts",
            "test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts",
        ],
    ),
    Mutant(
        "nothing-is-tried",
        "A node whose write found no room tries whether there is some (RAFT-07).",
        f"{DISKWATCH}::DiskWatch.tick",
        "self._probe()",
        "pass",
        ["test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts"],
    ),
    Mutant(
        "trial-writes-nothing",
        "The trial whether there is room is a write (RAFT-07).",
        f"{DISKWATCH}::DiskWatch._probe",
        "self._engine.storage.probe()",
        "pass",
        ["test_raft07_a_vote_that_can_not_be_saved_is_not_given_and_nobody_halts"],
    ),
    Mutant(
        "room-wavers",
        "The marks to come back lie above those to go (RAFT-07).",
        f"{SPACE}::Space._under",
        "(_RETURN_SHARE if already else 1)",
        "1",
        ["test_raft07_the_room_has_marks_to_go_and_higher_ones_to_come_back"],
    ),
    Mutant(
        "batch-is-not-tried-again",
        "What found no room is written once there is some (RAFT-07).",
        f"{DISKWATCH}::DiskWatch._tell",
        "engine.schedule_flush()",
        "pass",
        ["test_raft07_a_batch_that_finds_no_room_is_acknowledged_once_there_is_some"],
    ),
    Mutant(
        "snapshot-is-not-tried-again",
        "A snapshot that found no room is made up for (RAFT-07).",
        f"{DISKWATCH}::DiskWatch._tell",
        "engine.snapshotting.try_again()",
        "pass",
        ["test_raft07_a_snapshot_without_room_is_made_up_for_when_there_is_some"],
    ),
)

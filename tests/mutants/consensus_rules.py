"""What counts as committed, what a follower may throw away, and what is applied and told."""

from mutant import Mutant

COMMIT = "cluster/raft/commit.py"
ENGINE = "cluster/raft/engine.py"
FOLLOWING = "cluster/raft/following.py"
LEADING = "cluster/raft/leading.py"
PROGRESS = "cluster/raft/progress.py"

LOG = (
    Mutant(
        "matching-entries-are-cut",
        "A follower leaves entries alone that it holds with the same term (F7).",
        f"{FOLLOWING}::Following._take",
        "if held == term or index <= log.base_index:",
        "if index <= log.base_index:",
        ["test_f7_a_late_shorter_append_cuts_nothing"],
    ),
    Mutant(
        "conflicting-entries-stay",
        "A follower cuts its log at the first entry that differs from the leader's (F7).",
        f"{FOLLOWING}::Following._take",
        "if held == term or index <= log.base_index:",
        "if held is not None or index <= log.base_index:",
        ["test_f7_a_conflict_is_cut_at_its_first_entry_and_durably"],
    ),
    Mutant(
        "committed-entries-are-cut",
        "An entry that differs from a committed one stops the node (F7).",
        f"{FOLLOWING}::Following._take",
        "if index <= engine.commit_index:",
        "if False:",
        ["test_f7_a_conflict_with_what_is_committed_stops_the_node"],
    ),
    Mutant(
        "committed-entries-are-refused-quietly",
        "A place before that differs from a committed one stops the node (F7).",
        f"{FOLLOWING}::Following._refusal",
        "if prev <= engine.commit_index:",
        "if False:",
        ["test_f7_a_conflict_with_what_is_committed_stops_the_node"],
    ),
    Mutant(
        "place-before-is-not-compared",
        "Entries are taken only behind an entry that both hold with one term (F7).",
        f"{FOLLOWING}::Following._refusal",
        "if held is None or held == message.prev_term:",
        "if True:",
        ["test_l1_a_long_divergent_tail_takes_one_step_for_each_term_not_each_entry"],
    ),
    Mutant(
        "success-moves-next-back",
        "A successful answer never makes the leader send again what was sent (F7).",
        f"{PROGRESS}::Progress.accepted",
        "self.next = max(self.next, self.match + 1)",
        "self.next = self.match + 1",
        ["test_a_success_never_moves_next_back"],
    ),
    Mutant(
        "match-falls",
        "What a follower has acknowledged in a term stays acknowledged (F7).",
        f"{PROGRESS}::Progress.accepted",
        "self.match = max(self.match, index)",
        "self.match = index",
        ["test_a_success_never_moves_next_back"],
    ),
    Mutant(
        "one-member-commits",
        "An entry is committed when a majority holds it.",
        f"{LEADING}::Leadership.count",
        "index = held[-self._quorum]",
        "index = held[-1]",
        ["test_c1_what_nobody_else_holds_is_not_committed_after_a_restart"],
    ),
    Mutant(
        "entries-of-earlier-terms-are-counted",
        "A leader commits by counting only entries of its own term (C1).",
        f"{LEADING}::Leadership.count",
        "if index > engine.commit_index and engine.log.term_at(index) == engine.term:",
        "if index > engine.commit_index:",
        ["test_c1_entries_of_earlier_terms_are_not_committed_by_counting"],
    ),
    Mutant(
        "follower-commits-what-was-not-matched",
        "A follower commits no further than its log was matched with this leader's (F11a).",
        f"{FOLLOWING}::Following._on_append",
        "engine.commit(min(message.commit_index, matched))",
        "engine.commit(min(message.commit_index, engine.last_index))",
        ["test_f11a_the_commit_index_never_passes_what_was_matched_with_this_leader"],
    ),
    Mutant(
        "commit-index-is-restored",
        "After a restart the commit index is learnt anew from the next leader (C1).",
        f"{ENGINE}::Engine.__init__",
        "self._SyncObj__raftCommitIndex = storage.position.index",
        "self._SyncObj__raftCommitIndex = storage.log.last_index",
        [
            "test_c1_the_commit_index_is_learnt_anew_after_a_restart",
            "test_c1_what_nobody_else_holds_is_not_committed_after_a_restart",
        ],
    ),
    Mutant(
        "several-probes-in-flight",
        "While the place where logs agree is looked for, one message is in flight (L1).",
        f"{PROGRESS}::Progress.may_probe",
        "and not self._awaiting",
        "",
        ["test_l1_while_probing_one_message_is_in_flight"],
    ),
    Mutant(
        "old-refusals-move-the-probe",
        "Only the answer to the probe that is out moves the next one (L1).",
        f"{PROGRESS}::Progress.refused",
        "if self.state is PROBING and reply.index != self.next - 1:",
        "if False:",
        ["test_only_the_refusal_of_the_outstanding_probe_counts"],
    ),
    Mutant(
        "probe-walks-entry-by-entry",
        "A refusal names the first entry of the term that it found (L1).",
        f"{FOLLOWING}::Following._refusal",
        "first = log.first_index_of_term(prev, floor=engine.commit_index)",
        "first = prev",
        ["test_l1_a_long_divergent_tail_takes_one_step_for_each_term_not_each_entry"],
    ),
    Mutant(
        "new-connection-keeps-what-was-sent",
        "On a new connection nothing counts as sent (F7).",
        f"{PROGRESS}::Progress.restart",
        "self.become_probing(next_index)",
        "pass",
        ["test_a_new_connection_forgets_what_was_matched"],
    ),
)

SNAPSHOTS = (
    Mutant(
        "older-snapshot-is-installed",
        "A snapshot that is not ahead of the state is never installed (F11c).",
        f"{FOLLOWING}::Following._holds",
        "if message.index <= engine.applied_index:",
        "if False:",
        [
            "test_f11c_an_older_snapshot_is_refused_even_when_the_log_has_forgotten_its_place",
            "test_f11c_the_pieces_of_an_old_snapshot_that_come_late_install_nothing",
        ],
    ),
    Mutant(
        "snapshot-cuts-what-the-log-holds",
        "A snapshot of an entry that the log holds cuts nothing behind it (F11c).",
        f"{FOLLOWING}::Following._holds",
        "return engine.log.term_at(message.index) == message.last_term",
        "return False",
        ["test_f11c_a_snapshot_that_the_log_covers_cuts_no_acknowledged_entry"],
    ),
    Mutant(
        "log-overtakes-a-snapshot-and-is-undone",
        "What the log brought while a snapshot was loaded is not undone by it (F11c).",
        f"{FOLLOWING}::Following._install",
        "if self._holds(message) or engine.leadership is not None:",
        "if False:",
        ["test_what_the_log_brings_while_a_snapshot_is_loaded_is_not_undone"],
    ),
    Mutant(
        "refused-snapshot-is-acknowledged",
        "A snapshot that does not verify is not acknowledged (F11b).",
        f"{FOLLOWING}::Following._install",
        "self._answer(peer, message, 0)",
        "self._answer(peer, message, message.size, installed=True)",
        ["test_f11b_raft04_a_damaged_snapshot_is_refused_and_not_acknowledged"],
    ),
    Mutant(
        "snapshot-of-another-place-is-installed",
        "A snapshot is installed only at the place that was told of it (F11b).",
        f"{FOLLOWING}::Following._install",
        "if snapshot.position != Position(message.index, message.last_term):",
        "if False:",
        ["test_a_snapshot_of_another_position_than_was_told_is_refused"],
    ),
)

APPLICATION = (
    Mutant(
        "duties-before-the-barrier",
        "A leader is announced only when the barrier of its own term is applied (O1, RAFT-13).",
        f"{ENGINE}::Engine.become_leader",
        "self.leadership.begin()",
        "self.leadership.begin()\n"
        "        self.leadership.announced = True\n"
        "        self._notify(lambda observer: observer.on_leadership(self.term))",
        [
            "test_o1_raft13_a_leader_is_announced_only_behind_its_own_barrier",
            "test_raft13_a_leader_killed_after_500_claims_is_followed_by_one_that_knows_them",
        ],
    ),
    Mutant(
        "end-of-a-leadership-is-not-told",
        "The end of a leadership is told in the same turn (O1).",
        f"{ENGINE}::Engine.step_down",
        "self._notify(lambda observer: observer.on_leadership(None))",
        "pass",
        ["test_o1_the_end_of_a_leadership_is_announced"],
    ),
    Mutant(
        "applied-after-the-observers",
        "Application advances before anyone hears of it, so nothing is applied twice (F10).",
        f"{ENGINE}::Engine._apply",
        "            self._SyncObj__raftLastApplied = entry.index\n"
        "            self.snapshotting.grown_bytes += len(entry.data)\n"
        "            self.stats.entries_applied += 1\n"
        "            for observer in self._observers:\n"
        "                observer.on_applied(entry.index, entry.term, entry.data, applied)\n",
        "            self.snapshotting.grown_bytes += len(entry.data)\n"
        "            self.stats.entries_applied += 1\n"
        "            for observer in self._observers:\n"
        "                observer.on_applied(entry.index, entry.term, entry.data, applied)\n"
        "            self._SyncObj__raftLastApplied = entry.index\n",
        ["test_f10_raft09_an_exception_in_an_observer_applies_nothing_twice"],
    ),
    Mutant(
        "what-cannot-be-applied-is-skipped",
        "An entry that the state machine cannot apply stops the node (F10, RAFT-08).",
        f"{ENGINE}::Engine._apply",
        "if applied.halt is not None:",
        "if False:",
        ["test_f10_an_unknown_operation_stops_the_node_and_says_why"],
    ),
    Mutant(
        "verdict-goes-to-another-index",
        "A proposal is told the verdict of its own entry only (F12).",
        f"{COMMIT}::GroupCommit.on_applied",
        "if not self._in_flight or self._in_flight[0].index != index:",
        "if not self._in_flight:",
        ["test_f12_a_verdict_is_of_the_own_entry_and_of_the_own_term"],
    ),
    Mutant(
        "verdict-of-another-term",
        "An entry of another term in its place never tells a proposal its verdict (F12).",
        f"{COMMIT}::GroupCommit.on_applied",
        'assert written.term == term, "another leader\'s entry has taken the place of ours"',
        "pass",
        ["test_f12_a_verdict_is_of_the_own_entry_and_of_the_own_term"],
    ),
    Mutant(
        "proposals-outlive-the-leadership",
        "With the leadership ends every proposal that was made in it (F12).",
        f"{COMMIT}::GroupCommit.on_leadership",
        'self._fail_all("the leadership was lost")',
        "pass",
        ["test_f12_the_loss_of_leadership_is_unknown_only_for_what_was_written"],
    ),
    Mutant(
        "written-is-called-not-done",
        "What was written and not yet applied is unknown, never certainly not done (F12).",
        f"{COMMIT}::GroupCommit._fail_all",
        "OutcomeUnknown(reason)",
        "NotLeader(None)",
        ["test_f12_the_loss_of_leadership_is_unknown_only_for_what_was_written"],
    ),
    Mutant(
        "expired-proposals-are-written",
        "What waited for too long is never written: its caller may have gone on (F12, RAFT-17).",
        f"{COMMIT}::GroupCommit._take",
        "if proposal.verdict.done():",
        "if False:",
        ["test_raft09_cancelled_futures_break_nothing"],
    ),
    Mutant(
        "heavy-operations-leave-sources-nothing",
        "However heavy what waits, every other entry has room for what sources bind.",
        f"{COMMIT}::GroupCommit._kept",
        "self._beyond_share = rest_goes_beyond or new_kept > new_share or new_bytes > bytes_share",
        "pass",
        ["test_heavy_operations_that_keep_coming_leave_sources_their_turn"],
    ),
    Mutant(
        "proposals-never-expire",
        "Each proposal ends by its deadline, whatever becomes of the cluster (F12, RAFT-17).",
        f"{COMMIT}::GroupCommit._sweep",
        "late = [p for p in written.proposals if p.deadline <= now]",
        "late = []",
        ["test_f12_raft17_each_proposal_ends_by_its_deadline"],
    ),
    Mutant(
        "log-time-of-a-new-leader-falls",
        "The leader stamps no entry with an earlier time than the last one.",
        f"{COMMIT}::GroupCommit._flush",
        "max(self._log_time_ms, self._last_log_time(), self._wall_clock_ms())",
        "self._wall_clock_ms()",
        ["test_log_time_never_falls_behind_the_state_or_an_entry_in_flight"],
    ),
    Mutant(
        "log-time-before-the-decision",
        "The leader stamps no entry with an earlier time than what is in it was decided by.",
        f"{COMMIT}::GroupCommit.propose",
        "max(self._log_time_ms, as_of_ms)",
        "self._log_time_ms",
        ["test_log_time_never_falls_behind_what_an_operation_was_decided_by"],
    ),
)

RULES = (*LOG, *SNAPSHOTS, *APPLICATION)

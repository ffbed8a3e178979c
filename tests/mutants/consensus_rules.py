"""Who may lead, what counts as committed, and what a follower may throw away."""

from mutant import Mutant

CANDIDACY = "cluster/raft/candidacy.py"
COMMIT = "cluster/raft/commit.py"
ELECTIONS = "cluster/raft/elections.py"
ENGINE = "cluster/raft/engine.py"
FOLLOWING = "cluster/raft/following.py"
LEADING = "cluster/raft/leading.py"
PROGRESS = "cluster/raft/progress.py"

TERMS = (
    Mutant(
        "acknowledgement-of-an-older-term-counts",
        "An acknowledgement of an older term counts for nothing (F6).",
        f"{CANDIDACY}::Candidacy.agree_on_term",
        "            return False\n        if not isinstance(message, PreVoteRequest):",
        "            return isinstance(message, AppendReply)\n"
        "        if not isinstance(message, PreVoteRequest):",
        [
            "test_f6_an_acknowledgement_of_an_older_term_does_not_count",
            "test_f6_an_acknowledgement_that_two_elections_overtook_commits_nothing",
        ],
    ),
    Mutant(
        "higher-term-is-ignored",
        "Who hears of a higher term follows in it (F6).",
        f"{CANDIDACY}::Candidacy.agree_on_term",
        "engine.step_down(message.term)",
        "pass",
        ["test_f6_a_higher_term_in_an_answer_ends_the_leadership"],
    ),
    Mutant(
        "lower-term-gets-no-answer",
        "Who asks in an older term is told the newer one (F6).",
        f"{CANDIDACY}::Candidacy.agree_on_term",
        "self._answer_lower_term(peer, message)",
        "pass",
        ["test_f6_a_request_of_a_lower_term_is_answered_with_the_newer"],
    ),
)

VOTES = (
    Mutant(
        "two-votes-in-one-term",
        "A node votes for one candidate in a term (F8).",
        f"{CANDIDACY}::Candidacy._on_vote_request",
        "engine.vote in (None, peer)",
        "True",
        ["test_f8_a_vote_whose_answer_was_lost_is_granted_again_to_the_same_node_only"],
    ),
    Mutant(
        "vote-is-forgotten",
        "A granted vote is kept (F8, RAFT-05).",
        f"{CANDIDACY}::Candidacy._on_vote_request",
        "engine.save_term(engine.term, peer)",
        "pass",
        [
            "test_f1_raft05_a_vote_survives_a_loss_of_power",
            "test_raft05_a_voter_killed_right_after_its_vote_makes_no_second_leader",
        ],
    ),
    Mutant(
        "log-of-a-candidate-is-not-looked-at",
        "Nobody votes for a candidate whose log is behind its own (F8).",
        f"{ELECTIONS}::log_is_current",
        "return (last_term, last_index) >= (own_term, own_index)",
        "return True",
        [
            "test_f8_a_shorter_log_gets_no_vote",
            "test_f8_a_node_that_lacks_an_acknowledged_entry_is_not_elected",
        ],
    ),
    Mutant(
        "longer-log-of-an-older-term-wins",
        "Of two logs the one with the later last term is ahead, however long the other is (F8).",
        f"{ELECTIONS}::log_is_current",
        "return (last_term, last_index) >= (own_term, own_index)",
        "return last_index >= own_index",
        ["test_f8_a_shorter_log_gets_no_vote", "test_a_longer_log_of_an_older_term_is_not_current"],
    ),
    Mutant(
        "strangers-votes-count",
        "The vote of a stranger does not count (F8).",
        f"{ELECTIONS}::Ballot.grant",
        "if voter in self._voters:",
        "if True:",
        ["test_f8_a_repeated_vote_counts_once_and_a_strangers_never"],
    ),
    Mutant(
        "repeated-votes-count",
        "A member's vote counts once, however often it is heard (F8).",
        f"{ELECTIONS}::Ballot.won",
        "return len(self._granted)",
        "self._heard = getattr(self, '_heard', 0) + 1\n        return self._heard",
        ["test_f8_a_repeated_vote_counts_once_and_a_strangers_never"],
    ),
    Mutant(
        "half-is-a-majority",
        "A majority is more than half of the members (F8).",
        f"{ELECTIONS}::quorum",
        "members // 2 + 1",
        "(members + 1) // 2",
        ["test_two_majorities_share_a_member"],
    ),
    Mutant(
        "no-pre-vote",
        "Who hears no leader asks whether it could win before it raises the term (F8).",
        f"{CANDIDACY}::Candidacy._stand",
        "        self._count()\n        self._ask()",
        "        self._campaign()",
        ["test_f8_a_node_that_was_cut_off_raises_no_term_and_unseats_nobody"],
    ),
    Mutant(
        "leader-may-be-disturbed",
        "Who hears a leader helps nobody to replace it (F8, RAFT-14).",
        f"{ENGINE}::Engine.must_not_be_disturbed",
        "return self.timer.hears_leader(now)",
        "return False",
        [
            "test_f8_who_hears_a_leader_refuses_even_a_higher_term_unless_the_leader_asked",
            "test_f8_raft14_a_node_that_hears_all_but_the_leader_unseats_nobody",
        ],
    ),
    Mutant(
        "anyone-may-hand-over",
        "Only the leader may ask a follower to stand for election at once (F8).",
        f"{CANDIDACY}::Candidacy.receive",
        "if peer == self._engine.leader and votes:",
        "if votes:",
        ["test_only_the_leader_can_ask_for_an_election_at_once"],
    ),
    Mutant(
        "cut-off-leader-stays",
        "A leader that no majority answers steps down (F8, RAFT-12).",
        f"{LEADING}::Leadership.tick",
        "if not self.has_quorum(now):",
        "if False:",
        ["test_f8_raft12_a_cut_off_leader_steps_down_within_two_seconds"],
    ),
    Mutant(
        "two-leaders-of-a-term-go-on",
        "A leader that meets another of its own term stops itself.",
        f"{ENGINE}::Engine.follow",
        "if self.leadership is not None:",
        "if False:",
        ["test_two_leaders_of_one_term_stop_the_node"],
    ),
    Mutant(
        "stalled-node-stands-at-once",
        "A node that was stalled reads what is waiting before its deadline counts (T1).",
        f"{ELECTIONS}::ElectionTimer.due",
        "if late and not self._excused:",
        "if False:",
        [
            "test_t1_a_stalled_follower_reads_what_is_waiting_before_it_stands",
            "test_a_late_check_is_excused_once_until_the_next_reset",
        ],
    ),
)

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
        f"{COMMIT}::GroupCommit._gather",
        "if proposal.verdict.done():",
        "if False:",
        ["test_raft09_cancelled_futures_break_nothing"],
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
)

PEERS = (
    Mutant(
        "proofs-are-not-checked",
        "Only who knows the cluster's secret is a member (F5, RAFT-20).",
        "cluster/raft/handshake.py::Transcript.check",
        "if not hmac.compare_digest(self.proof(role).mac, proof.mac):",
        "if False:",
        [
            "test_raft20_a_reflected_proof_is_refused",
            "test_raft20_a_proof_is_bound_to_all_that_was_said",
        ],
    ),
    Mutant(
        "strangers-may-say-who-they-are",
        "Only a name of the list of members is let in (F5, RAFT-20).",
        "cluster/raft/transport.py::TcpNetwork.check_hello",
        "if hello.receiver != self.name or hello.sender not in self._connections:",
        "if False:",
        ["test_f5_raft20_a_stranger_gets_no_challenge"],
    ),
    Mutant(
        "strangers-may-fill-memory",
        "Before it has proved itself, nobody may announce a long frame (F5, RAFT-20).",
        "cluster/raft/transport.py::Connection._take_frames",
        "if length > (limit if self.peer is not None else MAX_HANDSHAKE_FRAME):",
        "if length > limit:",
        ["test_f5_raft20_a_stranger_gets_no_challenge"],
    ),
    Mutant(
        "crowd-keeps-members-out",
        "A crowd of strangers that say nothing keeps no member out (RAFT-20).",
        "cluster/raft/transport.py::TcpNetwork.admit",
        "                waiting[0].abort()\n                del self._strangers[waiting[0]]\n",
        "                return False\n",
        ["test_raft20_idle_strangers_keep_no_member_out"],
    ),
    Mutant(
        "strangers-without-number",
        "Connections that have not proved themselves are bounded in number (RAFT-20).",
        "cluster/raft/transport.py::TcpNetwork.admit",
        "if len(waiting) >= self.settings.max_strangers:",
        "if False:",
        ["test_raft20_of_strangers_beyond_the_limit_the_oldest_are_closed_at_once"],
    ),
    Mutant(
        "frames-are-not-checked",
        "A frame that is forged, repeated or damaged ends the connection (F5, RAFT-20).",
        "cluster/raft/transport.py::Connection._on_frame",
        "if not secrets.compare_digest(self._receive_mac.next(body), content[:MAC_BYTES]):",
        "if False:",
        ["test_raft20_a_forged_repeated_or_damaged_frame_ends_the_connection"],
    ),
)

RULES = (*TERMS, *VOTES, *LOG, *SNAPSHOTS, *APPLICATION, *PEERS)

"""Who may lead: terms, votes, and the end of a leadership."""

from mutant import Mutant

CANDIDACY = "cluster/raft/candidacy.py"
ELECTIONS = "cluster/raft/elections.py"
ENGINE = "cluster/raft/engine.py"
LEADING = "cluster/raft/leading.py"

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
    Mutant(
        "broken-link-counts-for-long",
        "A follower whose link is broken counts for a shorter time (F8).",
        f"{LEADING}::Leadership.has_quorum",
        "settings.leader_fallback_s if linked else settings.broken_link_max_s",
        "settings.leader_fallback_s",
        ["test_f8_a_leader_whose_links_are_broken_steps_down_as_soon_as_followers_stand"],
    ),
)

RULES = (*TERMS, *VOTES)

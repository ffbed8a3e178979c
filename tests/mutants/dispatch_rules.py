"""What a leader hands out, when, and to whom."""

from mutant import Mutant

CLAIMS = "cluster/dispatch/claims.py"
DUTY = "cluster/dispatch/duty.py"
LEASES = "cluster/dispatch/leases.py"

RULES = (
    Mutant(
        "fires-early",
        "An execution is ready when it is due and not a millisecond before.",
        f"{DUTY}::Duty._place",
        "if due_ms <= now_ms:",
        "if due_ms <= now_ms + 5:",
        ["test_what_is_nearly_due_is_not_ready"],
    ),
    Mutant(
        "wheel-runs-ahead",
        "The wheel gives up what is due by now and nothing else.",
        f"{DUTY}::Duty._fire",
        "self._wheel.advance(now_ms, self._settings.step)",
        "self._wheel.advance(now_ms + 5, self._settings.step)",
        ["test_random_due_times_arrive_in_order_and_each_at_its_time"],
    ),
    Mutant(
        "answers-early",
        "What was leased ahead of time is handed out when it is due and not before.",
        f"{CLAIMS}::WaitingClaims._hand_over",
        "if due_ms <= now_ms:",
        "if True:",
        ["test_a_claim_to_spare_is_leased_ahead_and_answered_when_its_execution_is_due"],
    ),
    Mutant(
        "follows-the-clock-back",
        "The present of due times never goes back behind what the log has seen.",
        f"{DUTY}::Duty.now_ms",
        "max(self._state.log_time_ms, self._wall_clock_ms())",
        "self._wall_clock_ms()",
        ["test_a_clock_that_steps_back_repeats_and_stalls_nothing_that_was_due"],
    ),
    Mutant(
        "no-grace-after-a-change-of-leader",
        "Every live lease gets its full length anew from a new leader.",
        f"{LEASES}::Leases.hold",
        "        deadline_ms = begin_ms + lease_ms\n",
        "        deadline_ms = begin_ms + lease_ms\n"
        "        if now_ms is not None:\n"
        "            deadline_ms -= max(now_ms - attempt.claimed_ms, 0)\n",
        ["test_leas_09_a_new_leader_gives_every_lease_its_full_length_again"],
    ),
    Mutant(
        "lease-ahead-runs-before-due",
        "A lease that was granted ahead of time begins when its execution is due.",
        f"{LEASES}::Leases.hold",
        "begin_ms += ahead_ms",
        "pass",
        ["test_a_lease_granted_ahead_lasts_its_length_from_the_due_time"],
    ),
    Mutant(
        "heartbeat-outlives-the-timeout",
        "The timeout bounds an attempt whatever heartbeats say.",
        f"{LEASES}::Lease.extend",
        "end if self.limit_ms is None else min(end, self.limit_ms)",
        "end",
        ["test_the_timeout_bounds_an_attempt_whatever_heartbeats_say"],
    ),
    Mutant(
        "heartbeat-revives-what-is-ending",
        "A lease whose end is on its way into the log is not promised to its holder any more.",
        f"{LEASES}::Leases.heartbeat",
        "if lease.ending or lease.deadline_ms <= now_ms:",
        "if False:",
        ["test_an_expiry_that_could_not_be_proposed_is_proposed_again"],
    ),
    Mutant(
        "heartbeat-by-an-old-token",
        "Only the latest token keeps a lease alive.",
        f"{LEASES}::Leases.heartbeat",
        "if execution.state not in HELD or execution.token != token:",
        "if execution.state not in HELD:",
        ["test_what_a_heartbeat_says"],
    ),
    Mutant(
        "one-execution-for-two-claims",
        "What a claim under way has is offered to no other.",
        f"{DUTY}::Duty._place",
        "if execution in places and not self._take_out(execution):",
        "if False:",
        ["test_what_a_new_leader_still_loads_is_not_offered_while_a_claim_has_it"],
    ),
    Mutant(
        "cancelled-is-handed-out",
        "What is cancelled before it is due goes to nobody.",
        f"{CLAIMS}::WaitingClaims._still_wanted",
        "if execution.cancel_requested:",
        "if False:",
        ["test_what_is_cancelled_before_it_is_due_goes_to_nobody"],
    ),
    Mutant(
        "client-gone-with-its-answer",
        "A client that goes away before it took its answer leaves no lease behind.",
        f"{CLAIMS}::WaitingClaims._leave",
        "self._leases.give_back(lease.execution, lease.token)",
        "pass",
        ["test_a_client_that_goes_away_between_commit_and_answer_gives_it_back"],
    ),
    Mutant(
        "client-gone-before-its-answer",
        "What was granted to a client that has gone is given back at once.",
        f"{CLAIMS}::WaitingClaims._answer",
        "if not listeners and not self._closed:",
        "if False:",
        ["test_a_client_that_goes_away_while_its_claim_is_proposed_gives_it_back"],
    ),
    Mutant(
        "taken-by-one-given-back-by-another",
        "A lease that another answer may still carry is not given back.",
        f"{LEASES}::Leases.give_back",
        "if lease.answers <= 0 and not lease.ending:",
        "if not lease.ending:",
        ["test_repeats_at_the_same_time_share_one_grant"],
    ),
    Mutant(
        "refused-claims-lose-their-work",
        "What a claim did not get after all is ready for the next.",
        f"{CLAIMS}::WaitingClaims.not_granted",
        "self._put_back(taken)",
        "pass",
        ["test_an_execution_whose_claim_was_certainly_not_made_is_ready_again"],
    ),
    Mutant(
        "lost-expiries-are-forgotten",
        "An operation of the leader's own that failed is proposed again.",
        "cluster/dispatch/outbox.py::Outbox._again",
        "self.put(item)",
        "pass",
        ["test_an_expiry_that_could_not_be_proposed_is_proposed_again"],
    ),
    Mutant(
        "old-leader-ends-leases",
        "What a leadership had still to end is not ended after it, without the grace of the next.",
        f"{DUTY}::Duty.close",
        "self.leases.close()",
        "pass",
        ["test_what_an_earlier_leadership_had_still_to_end_gets_the_grace_of_the_next"],
    ),
)

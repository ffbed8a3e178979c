"""What a node passes on to the leader, and how fresh what it tells itself is."""

from mutant import Mutant

FORWARD = "cluster/http/forward.py"
WITHDRAWALS = "cluster/http/withdrawals.py"
FRESHNESS = "cluster/http/freshness.py"

RULES = (
    Mutant(
        "one-peer-takes-all-connections",
        "No peer has more connections than its share.",
        "cluster/http/server.py::HttpServer.admit",
        "if self._by_peer[connection.peer] > self._most_per_peer:",
        "if False:",
        ["test_http_03_connections_are_bounded_for_each_peer"],
    ),
    Mutant(
        "one-connection-a-turn",
        "A burst of connections is taken up before it overflows the backlog.",
        "cluster/http/server.py::HttpServer.start",
        "range(LISTENERS)",
        "range(1)",
        ["test_http_03_a_burst_of_connections_is_taken_up_in_few_turns"],
    ),
    Mutant(
        "deposed-leader-is-waited-for",
        "What waits for a node that leads no more is given up.",
        f"{FORWARD}::Forwarder._look",
        "if url != leader and limit.when() is None:",
        "if False:",
        ["test_the_limit_of_a_request_is_the_leadership_of_who_was_asked"],
    ),
    Mutant(
        "expired-limit-is-moved",
        "One that is slow to give up stops no other from it.",
        f"{FORWARD}::Forwarder._look",
        "if url != leader and limit.when() is None:",
        "if url != leader:",
        ["test_one_that_is_slow_to_give_up_stops_no_other_from_it"],
    ),
    Mutant(
        "failed-withdrawal-is-forgotten",
        "A withdrawal that the leader has not taken is tried again.",
        f"{WITHDRAWALS}::Withdrawals._tell",
        "self._owed = {**kept, **self._owed}",
        "pass",
        ["test_what_fails_is_tried_again"],
    ),
    Mutant(
        "repeated-claim-is-withdrawn",
        "What a client has by a repeat is not taken from it, for it left its first sending.",
        f"{FORWARD}::Forwarder._claim",
        "self._withdrawals.forget(request_id)",
        "pass",
        ["test_a_claim_that_is_repeated_here_is_withdrawn_no_more"],
    ),
    Mutant(
        "repeat-is-granted-what-ends",
        "What is on its way back is handed to nobody.",
        "cluster/dispatch/claims.py::WaitingClaims._recall",
        "if not lease.ending",
        "if True",
        ["test_a_repeat_is_not_granted_what_is_on_its_way_back"],
    ),
    Mutant(
        "refused-withdrawal-is-done",
        "A withdrawal that the leader answers by a refusal is not done.",
        f"{WITHDRAWALS}::Withdrawals._tell",
        "if response.status == 200:",
        "if True:",
        ["test_what_fails_is_tried_again"],
    ),
    Mutant(
        "leader-is-not-waited-for",
        "What waits for the leader waits on while it leads.",
        f"{FORWARD}::Forwarder._look",
        "if url != leader and limit.when() is None:",
        "if limit.when() is None:",
        ["test_the_limit_of_a_request_is_the_leadership_of_who_was_asked"],
    ),
    Mutant(
        "forwarded-write-goes-with-its-client",
        "A write that has come whole is passed on, whether or not its client waits for the answer.",
        f"{FORWARD}::Forwarder.forward",
        "return await carried_out(sending)",
        "return await sending",
        ["test_leas_03_what_has_come_whole_is_passed_on_though_its_client_leaves"],
    ),
    Mutant(
        "forwarded-write-is-called-not-done",
        "A write whose answer was lost is unknown, never certainly not done.",
        f"{FORWARD}::Forwarder._send",
        "if write:",
        "if False:",
        ["test_an_answer_that_is_lost_leaves_a_write_unknown"],
    ),
    Mutant(
        "named-index-is-not-waited-for",
        "A read with min_index looks at the state once that is applied.",
        f"{FRESHNESS}::wait_until_fresh",
        "if strong or min_index > replica.applied_index:",
        "if strong:",
        ["test_only_what_is_not_there_yet_is_waited_for"],
    ),
    Mutant(
        "strong-reads-are-not-confirmed",
        "A read that asks for consistency=strong is confirmed before it looks at the state.",
        f"{FRESHNESS}::wait_until_fresh",
        "if strong or min_index",
        "if min_index",
        ["test_only_what_is_not_there_yet_is_waited_for"],
    ),
)

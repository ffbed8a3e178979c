"""The event stream: nothing is left out, told twice or told of what never was."""

from mutant import Mutant

HISTORY = "cluster/history.py"
EVENTS = "cluster/http/events.py"
WAITING = "cluster/http/waiting.py"
STORE = "cluster/state/store.py"

RULES = (
    Mutant(
        "gap-in-the-history-is-not-noticed",
        "What a snapshot covers, or came before a start, is known not to be kept.",
        f"{HISTORY}::History._follow_the_state",
        "if applied != self._index:",
        "if False:",
        ["test_a_snapshot_that_takes_the_state_on_leaves_a_gap_that_is_told"],
    ),
    Mutant(
        "entry-after-a-gap-is-joined-to-the-history",
        "Each entry tells which came before it, so that a gap is no time of rest.",
        f"{HISTORY}::History.on_applied",
        "if applied.previous != self._index:",
        "if False:",
        ["test_a_gap_is_noticed_though_nobody_asked_before_the_next_entry"],
    ),
    Mutant(
        "stream-begins-with-its-entry",
        "A stream goes on behind an event, not behind or before its entry.",
        f"{HISTORY}::Reader.__init__",
        "if batch is not None and batch.entry == position.entry:",
        "if False:",
        ["test_a_stream_goes_on_behind_an_event_in_the_middle_of_an_entry"],
    ),
    Mutant(
        "what-is-gone-is-passed-over",
        "Who asks for what is not kept is told so, and does not go on with what is.",
        f"{EVENTS}::Events._begin",
        "if position.entry < history.oldest:",
        "if False:",
        ["test_what_is_not_kept_is_gone_by_name"],
    ),
    Mutant(
        "future-position-is-not-waited-for",
        "A node that lags behind the client tells nothing twice.",
        f"{EVENTS}::Events._begin",
        "if position.entry > replica.applied_index:",
        "if False:",
        ["test_a_position_that_this_node_has_not_reached_is_waited_for"],
    ),
    Mutant(
        "streams-are-not-limited",
        "A node tells events to so many clients and no more.",
        f"{EVENTS}::Events.stream",
        "if services.history.counts.open >= limit:",
        "if False:",
        ["test_one_more_stream_than_the_limit_is_refused"],
    ),
    Mutant(
        "end-is-not-told",
        "Each end of an execution is told.",
        f"{STORE}::Store.finish",
        "self.happened.moved(execution, event, execution.reason)",
        "pass",
        ["test_a_life_is_told_step_by_step"],
    ),
    Mutant(
        "retry-is-an-end",
        "Who waits for the end of an execution is not told of a retry.",
        f"{WAITING}::Ends.on_applied",
        "state in TERMINAL or what in _GONE",
        "True",
        ["test_what_has_ended_is_answered_at_once_and_a_retry_is_no_end"],
    ),
)

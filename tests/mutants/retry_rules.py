"""How often and how soon what failed is tried again, and what is done with the dead."""

from mutant import Mutant

BACKOFF = "cluster/state/backoff.py"
DEADLETTERS = "cluster/state/deadletters.py"
DEFINITIONS = "cluster/http/definitions.py"
EXECUTIONS = "cluster/http/executions.py"
LEASES = "cluster/state/leases.py"
LISTING = "cluster/state/listing.py"
SIZES = "cluster/state/sizes.py"

RETRIES = (
    Mutant(
        "attempts-without-end",
        "An execution is started as often as its policy says, and no more.",
        f"{LEASES}::_poison",
        "if execution.attempts_used >= policy.max_attempts:",
        "if False:",
        ["test_retr_03_an_execution_that_kills_its_workers_dies_by_expiry_alone"],
    ),
    Mutant(
        "one-attempt-too-many",
        "N attempts are N starts, on every path.",
        f"{LEASES}::_poison",
        "execution.attempts_used >= policy.max_attempts",
        "execution.attempts_used > policy.max_attempts",
        ["test_retr_02_n_attempts_are_n_starts_on_every_path"],
    ),
    Mutant(
        "no-use-is-tried-again",
        "What its worker calls not retryable is dead at once.",
        f"{LEASES}::_poison",
        "if non_retryable:",
        "if False:",
        ["test_non_retryable_goes_straight_to_dead"],
    ),
    Mutant(
        "named-errors-are-tried-again",
        "An error type that the policy names is not tried again.",
        f"{LEASES}::_poison",
        "error is not None and error.error_type in policy.non_retryable_errors",
        "False",
        ["test_an_error_type_that_the_policy_names_goes_straight_to_dead"],
    ),
    Mutant(
        "delays-beyond-the-cap",
        "No delay is above the cap, whatever the policy.",
        f"{BACKOFF}::backoff_ms",
        "policy.max_ms, MAX_DURATION_MS)",
        "MAX_DURATION_MS)",
        [
            "test_grows_exponentially_up_to_the_cap",
            "test_linear_fixed_and_listed_delays_are_capped_too",
        ],
    ),
    Mutant(
        "delays-beyond-all-time",
        "No delay is longer than a hundred years, at any attempt.",
        f"{BACKOFF}::backoff_ms",
        "policy.max_ms, MAX_DURATION_MS)",
        "policy.max_ms)",
        ["test_no_policy_overflows_at_any_attempt"],
    ),
    Mutant(
        "all-return-at-once",
        "What failed together returns spread over the delay.",
        f"{BACKOFF}::backoff_ms",
        "if span == 0:",
        "if True:",
        [
            "test_retr_05_what_failed_within_a_second_returns_spread_out_and_the_log_stays_small",
            "test_every_policy_has_jitter",
        ],
    ),
    Mutant(
        "list-ends-with-an-error",
        "The last delay of a list stands for all that follow.",
        f"{BACKOFF}::_plain_ms",
        "min(attempt, len(delays_ms))",
        "min(attempt, len(delays_ms) + 1)",
        ["test_linear_fixed_and_listed_delays_are_capped_too"],
    ),
    Mutant(
        "list-without-delays",
        "The state holds no list of delays that is empty.",
        "cluster/state/soundness.py::is_sound_policy",
        "and (retry.backoff == LIST) is (retry.delays_ms != ())",
        "",
        ["test_a_job_beyond_the_limits_is_refused_and_the_others_are_made"],
    ),
    Mutant(
        "contradictions-are-let-through",
        "A policy with a delay above its own cap is refused by name.",
        f"{DEFINITIONS}::_policy",
        "if longest_ms > retry.max_ms:",
        "if False:",
        ["test_parts_of_a_retry_policy_that_contradict_each_other_are_refused_by_name"],
    ),
)

ERRORS = (
    Mutant(
        "backtraces-without-bound",
        "A backtrace in the state is of bounded length, and its end is kept.",
        f"{LEASES}::_error",
        "item.backtrace[-limits.MAX_BACKTRACE_CHARS :]",
        "item.backtrace",
        ["test_what_an_error_says_is_clipped"],
    ),
    Mutant(
        "backtraces-do-not-count-in-retention",
        "What retention counts of a dead letter includes its backtraces.",
        f"{SIZES}::kept_bytes",
        "size += _text_bytes(error.backtrace)",
        "pass",
        ["test_backtraces_count_for_retention"],
    ),
    Mutant(
        "backtraces-do-not-count-in-the-queue",
        "Operations that wait are counted with their backtraces.",
        f"{SIZES}::guess_bytes",
        " + len(item.backtrace)",
        "",
        ["test_texts_of_failures_count"],
    ),
    Mutant(
        "backtraces-do-not-count-in-an-operation",
        "Reports are split into operations of bounded size with all their texts.",
        f"{EXECUTIONS}::_split",
        " + len(item.backtrace)",
        "",
        ["test_an_operation_of_failures_is_bounded_with_all_their_texts"],
    ),
)

DEAD = (
    Mutant(
        "any-death-is-moved",
        "What is chosen by its death is not taken for what it died of later.",
        f"{DEADLETTERS}::_dead",
        " or token not in (0, execution.token)",
        "",
        [
            "test_a_replay_by_token_means_the_death_that_it_came_to_and_no_later_one",
            "test_a_purge_by_token_spares_what_died_of_something_else_since",
        ],
    ),
    Mutant(
        "the-living-are-purged",
        "Only the dead are purged.",
        f"{DEADLETTERS}::_dead",
        "execution.state is not ExecutionState.DEAD or ",
        "",
        ["test_only_the_dead_are_purged", "test_only_the_dead_are_replayed"],
    ),
    Mutant(
        "filters-do-not-filter",
        "A dead letter is chosen only if all that is asked for applies.",
        f"{LISTING}::DeadFilter.admits",
        "and (self.reason is None or is_of(execution.reason, self.reason))",
        "",
        ["test_dead_letters_are_chosen_by_what_they_died_of"],
    ),
    Mutant(
        "unbounded-look-at-the-dead",
        "One look at the dead goes through a bounded number of them.",
        f"{LISTING}::_page",
        " or looked_at == MOST_LOOKED_AT",
        "",
        ["test_one_look_at_the_dead_is_bounded_whatever_it_looks_for"],
    ),
    Mutant(
        "repeats-meet-what-died-since",
        "The client moves what is dead when it begins, and nothing that dies meanwhile.",
        "client/dead.py::DeadLetterCalls._move",
        '{**_given(selection), "died_before": newest}',
        "_given(selection)",
        ["test_what_dies_while_dead_letters_are_moved_is_left_alone"],
    ),
)

RULES = (*RETRIES, *ERRORS, *DEAD)

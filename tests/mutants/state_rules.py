"""What the replicated state machine accepts: leases, completions, keys, timetables, numbers."""

from mutant import Mutant

JOBS = "cluster/state/jobs.py"
LEASES = "cluster/state/leases.py"
MACHINE = "cluster/state/machine.py"
STORE = "cluster/state/store.py"
KEYS = "cluster/state/keys.py"

REPORTS = (
    Mutant(
        "progress-of-a-zombie",
        "Progress counts by the latest token, while the lease holds.",
        "cluster/state/leases.py::_report_progress",
        "if execution.token != token or token not in store.leased:",
        "if False:",
        ["test_the_latest_progress_of_who_holds_is_kept_with_its_attempt"],
    ),
    Mutant(
        "any-token-reports",
        "Only the latest token granted may end an execution.",
        f"{LEASES}::_judge",
        "if token == execution.token and token:",
        "if token:",
        ["test_leas_01_a_slow_worker_can_not_end_the_run_of_the_next"],
    ),
    Mutant(
        "token-zero-reports",
        "A token that was never granted ends nothing, not even what was never leased.",
        f"{LEASES}::_judge",
        "if token == execution.token and token:",
        "if token == execution.token:",
        ["test_a_token_that_was_never_granted_is_stale"],
    ),
    Mutant(
        "finished-executions-end-again",
        "An execution that has ended accepts no other report.",
        f"{LEASES}::_judge",
        "if execution.state in TERMINAL:",
        "if False:",
        ["test_an_ended_execution_takes_no_other_report"],
    ),
    Mutant(
        "hold-outlives-its-end",
        "Who has failed or released an execution can report nothing more on it.",
        f"{LEASES}::_judge",
        "if outcome in _LATE_OUTCOMES:",
        "if True:",
        ["test_a_failure_ends_the_hold", "test_a_release_ends_the_hold"],
    ),
    Mutant(
        "late-success-is-lost",
        "A report after the lease has expired counts while nobody else has claimed.",
        f"{LEASES}::_judge",
        "if outcome in _LATE_OUTCOMES:",
        "if outcome is _OPEN:",
        ["test_late_success_counts_while_nobody_else_has_claimed"],
    ),
    Mutant(
        "repeats-are-refused",
        "A repeat of a report is answered as the first was.",
        f"{LEASES}::_judge",
        "        if outcome is reported:\n            return _DUPLICATE\n",
        "",
        ["test_leas_03_a_repeat_answers_as_the_first_did"],
    ),
    Mutant(
        "another-result-overwrites",
        "The first result stays: another one under the same token is refused.",
        f"{LEASES}::_succeed",
        "if verdict is _DUPLICATE and execution.result != result:",
        "if False:",
        ["test_leas_03_another_result_with_the_same_token_is_refused_and_the_first_stays"],
    ),
    Mutant(
        "start-by-anyone",
        "Only its holder sets an execution running.",
        f"{LEASES}::_start",
        "if token in store.leased and execution.token == token:",
        "if execution.token in store.leased:",
        ["test_start_by_who_does_not_hold_is_refused"],
    ),
    Mutant(
        "expiry-takes-any-lease",
        "An expiry ends the lease that it names and no later one.",
        f"{LEASES}::_expire",
        "if execution.token != token or token not in store.leased:",
        "if execution.token not in store.leased:",
        ["test_expiry_loses_to_what_was_committed_before"],
    ),
)

GRANTS = (
    Mutant(
        "leased-before-due",
        "No lease is granted before its execution is due, or nearly.",
        f"{LEASES}::_lease",
        "elif claimed_ms > now_ms + limits.MAX_LEAD_MS:",
        "elif False:",
        ["test_a_claim_is_never_before_the_lead_by_a_millisecond"],
    ),
    Mutant(
        "attempts-are-free",
        "The claim counts the attempt, or a job that kills its workers loops for ever.",
        f"{LEASES}::_lease",
        "execution.attempts_used += 1",
        "pass",
        ["test_retr_03_an_execution_that_kills_its_workers_dies_by_expiry_alone"],
    ),
    Mutant(
        "what-is-leased-is-leased-again",
        "What is leased or has ended is not granted.",
        f"{LEASES}::_lease",
        "execution is None or execution.state is not _SCHEDULED or",
        "execution is None or",
        ["test_a_claim_of_what_is_leased_ended_or_unknown_is_refused"],
    ),
    Mutant(
        "repeated-claim-takes-more",
        "A repeated claim answers as the first and grants nothing new.",
        f"{LEASES}::claim",
        "if remembered is not None:",
        "if False:",
        ["test_a_repeated_claim_answers_with_what_it_still_holds_and_grants_nothing_new"],
    ),
    Mutant(
        "backoff-is-cut-short",
        "What is given back is not due before it was.",
        f"{STORE}::Store.reschedule",
        "due_ms = max(due_ms, execution.due_ms)",
        "pass",
        ["test_what_is_leased_ahead_of_time_and_released_is_not_due_any_sooner"],
    ),
    Mutant(
        "released-attempts-count",
        "A release gives its attempt back.",
        f"{LEASES}::_release",
        "execution.attempts_used = max(execution.attempts_used - 1, 0)",
        "pass",
        ["test_a_release_is_due_at_once_and_counts_no_attempt"],
    ),
    Mutant(
        "tokens-repeat-within-an-entry",
        "Every grant of an entry has a number of its own.",
        f"{STORE}::Store.number_tokens",
        "self._next_token += count",
        "pass",
        ["test_tokens_are_numbered_over_the_whole_entry"],
    ),
    Mutant(
        "tokens-overlap-between-entries",
        "Tokens rise with the log: the numbers of an entry end where the next one's begin.",
        f"{STORE}::Store.begin_entry",
        "self._next_job = self._next_token = index * NUMBERED_PER_ENTRY",
        "self._next_job = self._next_token = index",
        ["test_a_claim_leases_and_grants_the_token_of_its_place_in_the_log"],
    ),
    Mutant(
        "entry-numbers-too-many",
        "An entry numbers no more items of a kind than it has numbers for.",
        f"{MACHINE}::_beyond_limits",
        "if max(created, claimed) > NUMBERED_PER_ENTRY:",
        "if False:",
        ["test_an_entry_numbers_a_bounded_number_of_each_kind"],
    ),
)

ONCE = (
    Mutant(
        "key-makes-a-second-job",
        "One idempotency key makes one job.",
        f"{JOBS}::create",
        "if known is not None:",
        "if False:",
        ["test_idem_01_one_key_makes_one_job"],
    ),
    Mutant(
        "key-of-another-request-answers",
        "A key that stands for another request is refused.",
        f"{JOBS}::_known",
        "if known.fingerprint != short_fingerprint(new.fingerprint):",
        "if False:",
        ["test_the_same_key_for_another_request_is_refused"],
    ),
    Mutant(
        "repeated-request-creates-again",
        "A repeated create answers as the first and makes nothing.",
        f"{JOBS}::create_jobs",
        "if known is not None:",
        "if False:",
        ["test_a_repeated_request_answers_as_the_first_did"],
    ),
    Mutant(
        "keys-never-expire",
        "A key is forgotten by log-time, on the instant, on every node.",
        f"{KEYS}::Key.holds",
        "return self.since_ms + self.window_ms > now_ms or self.window_ms == UNTIL_ENDED",
        "return True",
        ["test_a_key_expires_on_the_instant_however_many_wait_to_be_trimmed"],
    ),
    Mutant(
        "requests-never-expire",
        "A request id is forgotten by log-time, on the instant, on every node.",
        "cluster/state/memory.py::Memory.find",
        "if record is None or record.since_ms + window_ms <= now_ms:",
        "if record is None:",
        ["test_requests_are_remembered_for_a_time_and_a_number_of_jobs"],
    ),
    Mutant(
        "log-is-applied-twice",
        "An entry that the state has applied halts it.",
        f"{MACHINE}::StateMachine._obstacle",
        "if index <= previous:",
        "if False:",
        ["test_a_repeat_in_the_log_halts"],
    ),
    Mutant(
        "log-time-falls",
        "Log-time never goes back.",
        f"{STORE}::Store.begin_entry",
        "self.log_time_ms = max(self.log_time_ms, log_time_ms)",
        "self.log_time_ms = log_time_ms",
        ["test_log_time_is_clamped_to_the_latest"],
    ),
)

CANCELS = (
    Mutant(
        "cancel-leaves-what-waits",
        "What is scheduled when its job is cancelled is delivered to nobody.",
        f"{JOBS}::_cancel",
        "store.finish(execution, Event.CANCEL, ExecutionState.CANCELLED)",
        "pass",
        ["test_cancelling_a_scheduled_job_ends_it"],
    ),
    Mutant(
        "cancel-forgets-what-runs",
        "What is leased when its job is cancelled is not tried again.",
        f"{JOBS}::_cancel",
        "execution.cancel_requested = True",
        "pass",
        ["test_after_a_cancel_any_other_end_of_the_attempt_cancels"],
    ),
    Mutant(
        "cancelled-is-tried-again",
        "A failure after a cancel ends the execution.",
        f"{LEASES}::_retry_or_die",
        "if execution.cancel_requested:",
        "if False:",
        ["test_after_a_cancel_any_other_end_of_the_attempt_cancels"],
    ),
    Mutant(
        "cancelled-timetable-goes-on",
        "A cancelled job has no further occurrence.",
        f"{JOBS}::_cancel",
        "store.end_timetable(job)",
        "pass",
        ["test_cancelling_a_recurring_job_ends_its_timetable"],
    ),
    Mutant(
        "cancelled-job-is-replayed",
        "An execution of a cancelled job is not replayed.",
        "cluster/state/deadletters.py::_replay",
        "if job.state is JobState.CANCELLED:",
        "if False:",
        ["test_a_dead_occurrence_of_a_cancelled_job_is_not_replayed"],
    ),
)

RULES = (*REPORTS, *GRANTS, *ONCE, *CANCELS)

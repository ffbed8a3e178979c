"""How long and where an idempotency key holds, and what a duplicate is answered."""

from mutant import Mutant

JOBS = "cluster/state/jobs.py"
STORE = "cluster/state/store.py"
KEYS = "cluster/state/keys.py"

RULES = (
    Mutant(
        "window-ends-a-held-key",
        "A key that holds until its job has ended has no window.",
        f"{KEYS}::Key.holds",
        " or self.window_ms == UNTIL_ENDED",
        "",
        ["test_a_key_holds_until_its_job_has_ended_and_is_free_at_once"],
    ),
    Mutant(
        "ended-job-holds-its-key",
        "A key that holds until its job has ended is free then.",
        f"{STORE}::Store.complete_if_idle",
        "if job.idempotency_key:",
        "if False:",
        ["test_a_key_holds_until_its_job_has_ended_and_is_free_at_once"],
    ),
    Mutant(
        "cancel-frees-the-key-of-what-runs",
        "A cancelled job holds its key while a worker holds its execution.",
        f"{STORE}::Store.free_key_if_idle",
        "if job.idempotency_key and is_idle(job):",
        "if job.idempotency_key:",
        ["test_a_cancelled_job_holds_its_key_until_its_worker_is_done"],
    ),
    Mutant(
        "replay-makes-a-second-holder",
        "A dead letter whose key another job has is not replayed.",
        f"{KEYS}::Keys.hold_again",
        "if self.find(record.name, now_ms) is not None:",
        "if False:",
        ["test_a_dead_letter_whose_key_another_job_has_is_not_replayed"],
    ),
    Mutant(
        "replay-holds-no-key",
        "A dead letter that is replayed holds its key again.",
        f"{KEYS}::Keys.hold_again",
        "        self.hold(record)\n",
        "",
        ["test_a_replay_takes_the_key_again"],
    ),
    Mutant(
        "restart-frees-held-keys",
        "A restored state holds the keys of jobs that have not ended.",
        "cluster/state/restore.py::Loader._hold_key",
        "keys.hold(record)",
        "pass",
        ["test_a_key_holds_until_its_job_has_ended_and_is_free_at_once"],
    ),
    Mutant(
        "restart-prefers-old-keys",
        "Of two records of one key a restored state finds the later, and one that is held first.",
        f"{KEYS}::Keys.add",
        "if known is None or (known.window_ms != UNTIL_ENDED and known.job < record.job):",
        "if True:",
        [
            "test_of_two_records_of_one_key_the_later_counts_after_a_restart_too",
            "test_a_key_held_again_hides_one_that_is_over_after_a_restart_too",
        ],
    ),
    Mutant(
        "old-record-takes-the-new-one-along",
        "A key that is given anew is not forgotten with the record that it replaced.",
        f"{KEYS}::Keys._unname",
        "if shard.get(record.name) is record:",
        "if record.name in shard:",
        ["test_a_key_waits_behind_another_of_its_class_for_at_most_twice_its_window"],
    ),
    Mutant(
        "scope-is-the-cluster",
        "A key that is known in its queue alone is another one elsewhere.",
        f"{KEYS}::key_name",
        "return (queue, key) if within_queue else key",
        "return key",
        ["test_a_key_may_be_known_in_its_queue_alone"],
    ),
    Mutant(
        "duplicates-are-never-refused",
        "Who wants no duplicate is refused one.",
        f"{JOBS}::_known",
        "if rule.reject:",
        "if False:",
        ["test_a_duplicate_may_be_refused"],
    ),
    Mutant(
        "refusals-are-remembered",
        "A request that made nothing may be tried again under its id.",
        f"{JOBS}::create_jobs",
        "if any(created.status in _ANSWERED for created in answer):",
        "if any(created.job for created in answer):",
        ["test_what_was_refused_may_be_asked_again_by_the_same_request_id"],
    ),
    Mutant(
        "held-keys-without-bound",
        "Keys that are held until their jobs end are bounded.",
        f"{JOBS}::create",
        "if rule.until_ended and store.keys.held >= settings.idempotency_keys_held:",
        "if False:",
        ["test_held_keys_are_bounded_and_the_bound_has_a_name"],
    ),
    Mutant(
        "windows-without-bound",
        "No window is longer than the cluster allows for.",
        "cluster/state/soundness.py::is_sound_rule",
        "0 <= rule.window_ms <= max_window_ms",
        "0 <= rule.window_ms",
        ["test_a_window_is_bounded_by_the_cluster"],
    ),
)

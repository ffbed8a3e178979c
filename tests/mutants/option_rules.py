"""What few jobs ask for: until when an attempt may begin, and which claims get it."""

from mutant import Mutant

LEASES = "cluster/state/leases.py"
STORE = "cluster/state/store.py"
SKIPS = "cluster/state/skips.py"
DEAD = "cluster/state/deadletters.py"
EXPIRY = "cluster/state/expiry.py"
TIMETABLES = "cluster/state/timetables.py"
DUTY = "cluster/dispatch/duty.py"
EXPIRIES = "cluster/dispatch/expiries.py"
AHEAD = "cluster/dispatch/ahead.py"
CLAIMS = "cluster/dispatch/claims.py"
SETS = "wheel/ready_sets.py"

RULES = (
    Mutant(
        "claims-what-has-expired",
        "No attempt begins at or after the expiry.",
        f"{LEASES}::_lease",
        " and not expires_by(execution, now_ms)",
        "",
        ["test_no_claim_is_granted_from_the_expiry_on_and_one_that_was_goes_on"],
    ),
    Mutant(
        "claims-what-it-cannot-do",
        "A claim must offer all that a job requires, also when that changes on the way.",
        f"{LEASES}::_lease",
        "set(options.requires).issubset(offered)",
        "True",
        [
            "test_a_claim_must_offer_all_that_is_required",
            "test_a_change_that_overtakes_a_bound_claim_leaves_the_work_to_others",
        ],
    ),
    Mutant(
        "retries-what-will-have-expired",
        "What would be due again at or after its expiry is skipped at once.",
        f"{STORE}::Store.reschedule",
        "if expires_by(execution, due_ms):",
        "if False:",
        ["test_a_retry_that_would_come_too_late_is_skipped_with_its_attempts_kept"],
    ),
    Mutant(
        "makes-what-has-expired",
        "What expires before it is due is skipped as soon as it is made.",
        f"{STORE}::Store.add_execution",
        "job.options is not NO_OPTIONS and expires_by(execution, execution.due_ms)",
        "False",
        ["test_what_expires_before_it_is_due_is_made_and_skipped_at_once"],
    ),
    Mutant(
        "skips-too-early",
        "Log-time decides whether an execution has expired.",
        f"{SKIPS}::_skip",
        "        execution, store.log_time_ms\n",
        "        execution, store.log_time_ms + 1\n",
        ["test_what_has_expired_is_skipped_once_and_nothing_sooner"],
    ),
    Mutant(
        "replays-what-has-expired",
        "A dead letter that has expired stays dead.",
        f"{DEAD}::_replay",
        "if expires_by(execution, max(store.log_time_ms, execution.due_ms)):",
        "if False:",
        ["test_a_dead_letter_that_has_expired_stays_dead"],
    ),
    Mutant(
        "expires-backfills",
        "A backfill, whose nominal time is long over, does not expire after a time.",
        f"{EXPIRY}::expires_ms",
        "after_ms and origin_of(execution) is not Origin.BACKFILL",
        "after_ms",
        ["test_a_trigger_expires_and_a_backfill_does_not"],
    ),
    Mutant(
        "a-timetable-takes-backfills-over",
        "A backfill stays one when its timetable comes to its time later.",
        f"{TIMETABLES}::_make",
        "origin_of(present) is Origin.TRIGGER",
        "recurrence.asked.get(nominal_ms)",
        ["test_a_backfill_that_the_timetable_comes_to_later_does_not_expire_either"],
    ),
    Mutant(
        "expired-in-the-way",
        "What has expired holds up no later occurrence, and makes none give way.",
        f"{TIMETABLES}::settle",
        "    skip_expired_of(store, recurrence)  # these are in nobody's way\n",
        "",
        ["test_what_has_expired_is_in_nobodys_way"],
    ),
    Mutant(
        "requirements-without-end",
        "The jobs of a queue require a bounded number of different sets of tags.",
        "cluster/state/records.py::QueueCounts.has_room_for",
        "known or len(self.requirements) < MAX_REQUIREMENTS",
        "True",
        ["test_the_jobs_of_a_queue_require_a_bounded_number_of_different_sets"],
    ),
    Mutant(
        "requirements-counted-for-ever",
        "A job that is forgotten requires nothing any more.",
        f"{STORE}::Store.drop_job",
        "counts.count_requirements(job.options.requires, -1)",
        "pass",
        ["test_the_jobs_of_a_queue_require_a_bounded_number_of_different_sets"],
    ),
    Mutant(
        "expired-job-holds-its-key",
        "A key that holds until its job has ended is not held by one that expires at once.",
        "cluster/state/jobs.py::create",
        "if job.state is not JobState.ACTIVE:",
        "if False:",
        ["test_a_key_that_holds_until_its_job_has_ended_is_free_when_the_job_expires"],
    ),
    Mutant(
        "never-watches-expiry",
        "The leader skips what is due and expires before a claim takes it.",
        f"{DUTY}::Duty._has_expired",
        "execution.job.options is not NO_OPTIONS and self.expiries.watch(execution, now_ms)",
        "False",
        ["test_what_nobody_claims_is_skipped_at_its_expiry_and_not_before"],
    ),
    Mutant(
        "forgets-a-skip-that-failed",
        "A skip that came to nothing is tried again while it is wanted.",
        f"{EXPIRIES}::_is_scheduled",
        "execution.state is ExecutionState.SCHEDULED",
        "False",
        ["test_a_leader_whose_skip_is_not_taken_tries_again"],
    ),
    Mutant(
        "keeps-timers-of-what-began",
        "What is leased has no timer of its expiry left.",
        f"{DUTY}::Duty.applied",
        "expiries.forget(record)",
        "pass",
        ["test_a_waiting_claim_gets_what_is_in_time_and_has_no_timer_left"],
    ),
    Mutant(
        "binds-what-it-cannot-do",
        "A claim is bound to what requires nothing that it does not offer.",
        f"{SETS}::ReadySets._fit",
        "if offered.issuperset(requires)",
        "if True",
        ["test_sets_that_ran_empty_make_room_and_those_that_did_not_stay"],
    ),
    Mutant(
        "first-in-line-or-nobody",
        "Work that the first claim in line may not take goes to the first that may.",
        f"{CLAIMS}::WaitingClaims.bind",
        "self._line.first(queue, self._ready.has)",
        "self._line.first(queue, lambda *_: True)",
        ["test_work_goes_to_the_first_claim_in_line_that_may_take_it"],
    ),
    Mutant(
        "gives-away-ahead-what-requires-something",
        "Who gets what of an instant at which something requires what not every claim offers is"
        " decided when it is ready.",
        f"{AHEAD}::by_queue",
        "if options is not NO_OPTIONS and options.requires:",
        "if False:",
        ["test_ahead_of_its_time_a_queue_is_not_given_away_past_what_requires_something"],
    ),
)

"""What the settings of a queue let be leased, in the state and as a leader foresees it."""

from mutant import Mutant

ADMISSION = "cluster/dispatch/admission.py"
ASIDE = "cluster/dispatch/aside.py"
CLAIMS = "cluster/dispatch/claims.py"
DUTY = "cluster/dispatch/duty.py"
JOBS = "cluster/state/jobs.py"
LEASES = "cluster/state/leases.py"
QUEUES = "cluster/state/queues.py"
RESTORE = "cluster/state/restore.py"
STORE = "cluster/state/store.py"

RANDOM = "test_no_more_than_the_settings_allow_and_no_wake_up_lost"
BY_COUNT = "test_a_queue_has_so_many_leases_at_a_time"
BY_KEY = "test_a_key_has_so_many_leases_at_a_time"

LIMITS = (
    Mutant(
        "settings-bind-the-leader-alone",
        "The settings of a queue hold where leases are granted, whoever leads.",
        f"{LEASES}::_lease",
        "if store.configured and not admit(store, execution):",
        "if False:",
        [BY_COUNT, BY_KEY, "test_a_paused_queue_leases_nothing_and_takes_jobs"],
    ),
    Mutant(
        "a-paused-queue-goes-on",
        "A paused queue leases nothing.",
        f"{QUEUES}::admit",
        "if settings.state == PAUSED:",
        "if False:",
        ["test_a_paused_queue_leases_nothing_and_takes_jobs"],
    ),
    Mutant(
        "concurrency-is-one-too-many",
        "A queue has at most as many leases at a time as its limit says.",
        f"{QUEUES}::admit",
        "counts.leased >= settings.max_concurrency",
        "counts.leased > settings.max_concurrency",
        [BY_COUNT, "test_limits_within_one_entry_and_one_claim_count_what_was_granted_before"],
    ),
    Mutant(
        "keys-have-no-limit",
        "A key has at most as many leases at a time as the limit of its queue says.",
        f"{QUEUES}::admit",
        "if per_key and",
        "if False and",
        [BY_KEY],
    ),
    Mutant(
        "no-key-is-a-key",
        "What has no concurrency key is bounded by none.",
        f"{STORE}::count_key",
        "if key:",
        "if True:",
        [BY_KEY],
    ),
    Mutant(
        "a-key-is-not-freed",
        "Whatever ends a lease makes room for another of its key.",
        f"{STORE}::Store._leave",
        "count_key(counts, execution.job, -1)",
        "pass",
        [BY_KEY, "test_a_lease_that_expired_is_not_counted_off_twice"],
    ),
    Mutant(
        "keys-are-counted-with-their-limit",
        "Keys are counted whether there is a limit or not, since one may come.",
        f"{STORE}::Store.lease",
        "if job.options is not NO_OPTIONS:",
        "if job.options is not NO_OPTIONS and job.queue in self.configured:",
        ["test_keys_are_counted_before_there_is_a_limit"],
    ),
    Mutant(
        "restored-leases-have-no-key",
        "A state from a snapshot has the counts of the one that it is a copy of.",
        f"{RESTORE}::Loader._index",
        "count_key(counts, execution.job, 1)",
        "pass",
        ["test_counts_are_those_of_a_state_that_was_restored"],
    ),
    Mutant(
        "a-draining-queue-takes-jobs",
        "A draining queue takes no new jobs.",
        f"{JOBS}::create",
        "if store.configured and is_draining(store, queue):",
        "if False:",
        ["test_a_draining_queue_takes_no_job_and_works_off_what_is_there"],
    ),
)

RATES = (
    Mutant(
        "leases-charge-nothing",
        "Each lease is charged to the rate limit.",
        f"{QUEUES}::admit",
        "_charge(configured, rate, now_ms) + rate.per_ms",
        "_charge(configured, rate, now_ms)",
        ["test_a_rate_limit_allows_a_burst_and_then_its_rate_by_log_time"],
    ),
    Mutant(
        "the-bucket-is-not-refilled",
        "Time makes room in the bucket again.",
        f"{QUEUES}::_charge",
        "configured.charged - passed_ms * rate.executions",
        "configured.charged",
        ["test_a_rate_limit_allows_a_burst_and_then_its_rate_by_log_time"],
    ),
    Mutant(
        "the-bucket-overflows",
        "No more than the burst is granted at once, after whatever pause.",
        f"{QUEUES}::_charge",
        "return max(configured.charged - passed_ms * rate.executions, 0)",
        "return configured.charged - passed_ms * rate.executions",
        ["test_a_rate_limit_allows_a_burst_and_then_its_rate_by_log_time"],
    ),
    Mutant(
        "refusals-are-charged",
        "What is refused for another limit is not charged.",
        f"{QUEUES}::admit",
        "    if settings.max_concurrency and counts.leased >= settings.max_concurrency:\n"
        "        return False\n",
        "    if settings.max_concurrency and counts.leased >= settings.max_concurrency:\n"
        "        configured.charged += 1_000\n"
        "        return False\n",
        ["test_what_is_refused_or_given_back_charges_nothing_or_stays_charged"],
    ),
    Mutant(
        "a-change-fills-the-bucket",
        "A change of the settings allows no further burst.",
        f"{QUEUES}::configure_queue",
        "if known is not None:",
        "if False:",
        ["test_a_change_of_the_settings_does_not_fill_the_bucket_again"],
    ),
)

CHANGES = (
    Mutant(
        "settings-at-any-version",
        "Who changes settings at a version changes no other.",
        f"{QUEUES}::configure_queue",
        "if operation.version not in (-1, version):",
        "if False:",
        ["test_settings_change_in_part_and_each_change_has_a_version"],
    ),
    Mutant(
        "defaults-pile-up",
        "A queue with default settings takes no room.",
        f"{QUEUES}::configure_queue",
        "if settings == DEFAULT_QUEUE_SETTINGS:",
        "if False:",
        ["test_defaults_are_not_kept_and_a_version_never_comes_again"],
    ),
    Mutant(
        "settings-without-end",
        "Only so many queues can have settings.",
        f"{QUEUES}::configure_queue",
        "if known is None and len(store.configured) >= limits.MAX_CONFIGURED_QUEUES:",
        "if False:",
        ["test_so_many_queues_can_be_configured_and_no_more"],
    ),
    Mutant(
        "unsound-settings",
        "The state takes no settings beyond its limits, whatever the edges let through.",
        f"{QUEUES}::configure_queue",
        "if not is_sound_queue(name, settings):",
        "if False:",
        ["test_settings_beyond_the_limits_are_refused"],
    ),
)

FORESIGHT = (
    Mutant(
        "what-is-bound-is-forgotten",
        "What is bound to claims and has no verdict yet counts as leased.",
        f"{ADMISSION}::Gate.room",
        "self._leased() - self.bound",
        "self._leased()",
        ["test_what_is_bound_and_not_committed_counts", RANDOM],
    ),
    Mutant(
        "bound-keys-are-forgotten",
        "What is bound to claims counts for its key as well.",
        f"{ADMISSION}::Gate.room_of_key",
        "most - leased - self.bound_by_key.get(key, 0)",
        "most - leased",
        [RANDOM],
    ),
    Mutant(
        "nobody-looks-when-a-lease-ends",
        "When a lease of a queue ends, its claims get what there is room for.",
        f"{ADMISSION}::Admission.applied",
        "        for gate, executions in ended.items():\n"
        "            self._look(gate, executions)\n",
        "",
        [
            "test_as_many_as_the_queue_may_have_and_the_next_when_one_ends",
            "test_who_finds_its_key_full_stands_aside_for_others_and_comes_back_in_order",
            RANDOM,
        ],
    ),
    Mutant(
        "settings-are-not-looked-at",
        "New settings hold at once for the claims that wait.",
        f"{ADMISSION}::Admission._reconfigured",
        "if gate is not None:",
        "if False:",
        [
            "test_a_paused_queue_keeps_its_claims_waiting_and_a_resumed_one_answers_them",
            "test_a_limit_that_is_taken_away_lets_all_go",
        ],
    ),
    Mutant(
        "refused-claims-free-nothing",
        "What a claim under way did not get may go to others.",
        f"{CLAIMS}::WaitingClaims.let_go",
        "self._admission.let_go(gate, taken)",
        "pass",
        [RANDOM],
    ),
    Mutant(
        "no-timer-for-the-refill",
        "A queue whose rate limit has no room is looked at when it has.",
        f"{ADMISSION}::Admission._hold",
        "if at_ms is not None:",
        "if False:",
        ["test_a_rate_limited_queue_is_looked_at_when_there_is_room_and_not_before", RANDOM],
    ),
    Mutant(
        "a-held-queue-wakes-the-log",
        "What a queue holds back costs the log nothing.",
        f"{CLAIMS}::WaitingClaims._match",
        "if gate is not None and gate.held:",
        "if False:",
        ["test_what_a_queue_holds_back_costs_the_log_nothing"],
    ),
    Mutant(
        "withdrawn-seats-stay-taken",
        "When one that came back is withdrawn, the next of its key comes back.",
        f"{DUTY}::Duty._take_out",
        "self.admission.left(item)",
        "pass",
        ["test_one_that_came_back_and_is_cancelled_makes_room_for_the_next"],
    ),
    Mutant(
        "the-first-kind-takes-all-seats",
        "Those of a key that want other workers do not wait for each other.",
        f"{ASIDE}::Aside.take",
        "room - lane.back",
        "room - len(taken)",
        ["test_those_that_want_other_workers_are_not_waited_for"],
    ),
    Mutant(
        "who-went-takes-room-for-ever",
        "Who came back and was taken makes room for the next, whatever bounds its key by then.",
        "cluster/dispatch/ready.py::ReadyWork.take",
        "self.aside.left(taken)",
        "pass",
        ["test_those_who_went_while_there_was_no_limit_take_no_room_of_a_later_one"],
    ),
    Mutant(
        "what-stands-aside-is-not-withdrawn",
        "What is cancelled while it stands aside goes to nobody.",
        f"{ASIDE}::Aside.discard",
        "        self._gone(lane, execution)\n",
        "",
        ["test_one_that_is_cancelled_while_it_stands_aside_goes_to_nobody"],
    ),
    Mutant(
        "ahead-of-time-there-are-no-limits",
        "What is leased ahead of time keeps to the settings.",
        f"{CLAIMS}::WaitingClaims.bind_ahead",
        "if gate is not None:\n                    executions",
        "if False:\n                    executions",
        ["test_what_is_leased_ahead_of_time_keeps_to_the_settings"],
    ),
    Mutant(
        "looks-without-end",
        "Binding looks at a bounded number for one entry.",
        f"{ADMISSION}::Admission.take",
        "min(limit - len(taken), looks - looked)",
        "limit - len(taken)",
        ["test_many_that_stand_aside_are_met_a_bounded_number_at_a_time"],
    ),
)

RULES = (*LIMITS, *RATES, *CHANGES, *FORESIGHT)

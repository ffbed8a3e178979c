"""How timetables move on: what an outage leaves to be run, and who decides when."""

from mutant import Mutant

CATCHUP = "cluster/dispatch/catchup.py"
DUTY = "cluster/dispatch/duty.py"
PLANNER = "cluster/dispatch/planner.py"

RULES = (
    Mutant(
        "elections-fold-runs",
        "What is no later than the grace has a run each.",
        f"{CATCHUP}::plan",
        "old_ms = present_ms - grace_ms",
        "old_ms = present_ms",
        ["test_recu_02_an_election_neither_loses_nor_folds_a_run"],
    ),
    Mutant(
        "planned-one-escapes-the-rule",
        "The catch-up rule decides about the planned occurrence too.",
        f"{CATCHUP}::plan",
        "if pending and at_ms < old_ms:",
        "if False:",
        ["test_recu_02_what_runs_after_three_hours_and_seven_minutes"],
    ),
    Mutant(
        "planned-one-goes-out-undecided",
        "The planned occurrence is handed out once the catch-up rule has decided about it.",
        f"{DUTY}::Duty._is_held_back",
        "if is_undecided(execution, now_ms, self._settings.catch_up_grace_ms):",
        "if False:",
        ["test_recu_02_the_planned_occurrence_goes_to_nobody_before_the_rule_has_decided"],
    ),
    Mutant(
        "undecided-for-ever",
        "What waits for a decision is looked at anew whenever its timetable changes.",
        f"{DUTY}::Duty.applied",
        "if undecided is not None and undecided.state is _SCHEDULED:",
        "if False:",
        ["test_an_occurrence_that_waits_for_catch_up_is_not_stuck_when_the_clock_steps_back"],
    ),
    Mutant(
        "pauses-are-caught-up",
        "What fell into a pause is skipped.",
        f"{CATCHUP}::plan",
        "if at_ms < recurrence.skip_to_ms:",
        "if False:",
        ["test_recu_01_a_week_of_pause_is_skipped_and_the_timetable_goes_on"],
    ),
    Mutant(
        "window-does-not-bound",
        "What was missed longer ago than the window is not caught up.",
        f"{CATCHUP}::_Step._decide",
        "if keep and timetable.catch_up_window_ms:",
        "if False:",
        ["test_recu_02_what_runs_after_three_hours_and_seven_minutes"],
    ),
    Mutant(
        "catches-up-beyond-the-room",
        "A step makes no more runs of the past than there is room for.",
        f"{CATCHUP}::_Step._make",
        "most = min(self._limit, left, room)",
        "most = min(self._limit, left)",
        ["test_a_step_makes_no_more_runs_of_the_past_than_there_is_room_for"],
    ),
    Mutant(
        "part-of-a-gap-loses-the-rule",
        "Where a step deals with a part of a gap, what remains is old enough for the rule.",
        f"{CATCHUP}::_Step._decide",
        "min(len(old) - keep, WALKED)",
        "len(old)",
        ["test_a_long_gap_of_many_rules_is_dealt_with_in_bounded_steps"],
    ),
    Mutant(
        "one-fault-stops-all-timetables",
        "Whatever is wrong with one timetable only parks that one.",
        f"{PLANNER}::Planner._plan",
        "except Exception as error:",
        "except TimeoutError as error:",
        ["test_whatever_a_timetable_raises_only_parks_it"],
    ),
    Mutant(
        "parked-timetables-move",
        "A timetable that stands still is not moved.",
        f"{CATCHUP}::plan",
        "if recurrence is None or not recurrence.moves:",
        "if recurrence is None:",
        ["test_only_a_timetable_whose_instant_has_come_moves"],
    ),
    Mutant(
        "two-at-a-time-are-ready",
        "What the overlap rule holds back is not ready.",
        f"{DUTY}::Duty._is_held_back",
        "if waits(execution):",
        "if False:",
        ["test_recu_08_what_waits_is_not_ready"],
    ),
    Mutant(
        "edits-shorten-what-runs",
        "An execution that began before an edit keeps the timeout that it began with.",
        "cluster/dispatch/leases.py::Leases.hold",
        "if timeout_ms := timeout_of(execution):",
        "if timeout_ms := execution.job.timeout_ms:",
        ["test_recu_06_a_lease_keeps_the_timeout_that_it_began_with"],
    ),
)

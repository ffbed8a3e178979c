"""Which times a timetable names: changes of clocks, unions, exclusions, bounded searches."""

from mutant import Mutant

CRON_TIMES = "cluster/dispatch/cron_times.py"
EXCLUSIONS = "cluster/dispatch/exclusions.py"
RULES_OF_ONE = "cluster/dispatch/rules.py"
TIMETABLE = "cluster/dispatch/timetable.py"
ZONES = "cluster/dispatch/zones.py"

RULES = (
    Mutant(
        "gap-swallows-a-fire",
        "A fixed time that clocks leap over fires right after the gap.",
        f"{CRON_TIMES}::makes_up",
        "missing is not None and missing < stretch.start_s + stretch.offset_s",
        "False",
        ["test_cron_01_times_in_a_gap_fire_once_right_after_it"],
    ),
    Mutant(
        "fires-in-both-copies",
        "A fixed time fires in the first copy of a repeated hour only.",
        f"{CRON_TIMES}::wall_from",
        "not expression.follows_clock and repeats(stretch)",
        "False",
        ["test_cron_03_a_fixed_time_fires_in_the_first_copy_only"],
    ),
    Mutant(
        "silent-in-the-second-copy",
        "What follows the clock fires in both copies of a repeated hour.",
        f"{CRON_TIMES}::wall_from",
        "not expression.follows_clock and repeats(stretch)",
        "repeats(stretch)",
        ["test_cron_05_what_follows_the_clock_fires_in_both_copies"],
    ),
    Mutant(
        "makes-up-for-a-correction",
        "Nothing is made up for when a zone leaps over a day.",
        f"{CRON_TIMES}::skips",
        "<= _LONGEST_CHANGE_S",
        "<= 30 * 3600",
        ["test_cron_10_a_day_that_a_zone_leaps_over_is_not_made_up_for"],
    ),
    Mutant(
        "next-may-be-past",
        "The next time is later than the one that was asked about.",
        f"{TIMETABLE}::first_after",
        "if found <= after_ms:",
        "if False:",
        ["test_cron_04_an_answer_that_is_not_later_is_an_error"],
    ),
    Mutant(
        "walk-may-stand-still",
        "Each time of a walk is later than the one before.",
        f"{TIMETABLE}::_times",
        "if at_ms <= latest_ms:",
        "if False:",
        ["test_cron_04_an_answer_that_is_not_later_is_an_error"],
    ),
    Mutant(
        "search-looks-on",
        "A search among exclusions makes a bounded number of looks.",
        f"{TIMETABLE}::_times",
        "looks.count > MOST_LOOKS and found",
        "looks.count > 99 * MOST_LOOKS and found",
        ["test_a_walk_of_hostile_exclusions_is_bounded_as_a_whole"],
    ),
    Mutant(
        "search-looks-through-all-time",
        "A search among exclusions ends within the horizon of cron expressions.",
        f"{TIMETABLE}::_times",
        "at_ms - first_covered_ms > HORIZON_MS",
        "False",
        ["test_exclusions_that_leave_nothing_end_the_search_in_bounded_looks"],
    ),
    Mutant(
        "walks-what-is-excluded",
        "What an exclusion covers is left in one leap.",
        f"{TIMETABLE}::_times",
        "if read_on > _READ_ON:",
        "if False:",
        ["test_what_is_excluded_is_left_in_one_leap"],
    ),
    Mutant(
        "union-names-a-time-twice",
        "Equal times of two rules are one.",
        f"{TIMETABLE}::_each_once",
        "if at_ms != latest:",
        "if True:",
        ["test_equal_times_of_two_rules_are_one"],
    ),
    Mutant(
        "start-is-left-out",
        "A timetable's start itself counts.",
        f"{TIMETABLE}::bounds",
        "timetable.start_ms - 1",
        "timetable.start_ms",
        ["test_start_and_until_both_count"],
    ),
    Mutant(
        "dates-by-utc",
        "An exclusion's days are those of its own zone.",
        f"{EXCLUSIONS}::look",
        "wall = instant_s + stretch.offset_s",
        "wall = instant_s",
        [
            "test_dates_are_days_of_their_own_calendar",
            "test_a_day_is_as_long_as_its_clocks_make_it",
        ],
    ),
    Mutant(
        "fires-before-the-anchor",
        "An interval begins at its anchor.",
        f"{RULES_OF_ONE}::_first_of_every",
        "if after_ms < every.anchor_ms:",
        "if False:",
        ["test_an_interval_counts_from_its_anchor_to_the_millisecond_for_ever"],
    ),
    Mutant(
        "leaps-over-what-is-shown-again",
        "Near a change, clocks may show again what they showed: no leap goes over it.",
        f"{ZONES}::Stretch.until",
        "if self.end_s - instant_s < _FARTHEST_SHIFT_S:",
        "if False:",
        ["test_until_leaps_to_what_is_far_and_not_beyond"],
    ),
)

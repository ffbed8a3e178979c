"""What the state makes of timetables: steps, overlap, pauses, edits, occurrences asked for."""

from mutant import Mutant

BUDGET = "cluster/state/budget.py"
CHANGES = "cluster/state/changes.py"
LEASES = "cluster/state/leases.py"
LEDGER = "cluster/state/ledger.py"
OVERLAP = "cluster/state/overlap.py"
STORE = "cluster/state/store.py"
TIMETABLES = "cluster/state/timetables.py"

STEPS = (
    Mutant(
        "timetable-moves-twice",
        "A timetable moves only from the instant at which it stands.",
        f"{TIMETABLES}::_advance",
        "(item.version, item.after_ms) != (job.version, recurrence.planned_ms)",
        "item.version != job.version",
        ["test_recu_03_an_advance_counts_once_whoever_repeats_it"],
    ),
    Mutant(
        "step-of-an-earlier-version-counts",
        "A step that was planned by an earlier definition changes nothing.",
        f"{TIMETABLES}::_advance",
        "(item.version, item.after_ms) != (job.version, recurrence.planned_ms)",
        "item.after_ms != recurrence.planned_ms",
        ["test_recu_06_a_step_planned_under_an_earlier_version_counts_no_more"],
    ),
    Mutant(
        "timetable-stands-still",
        "A step that moves nothing is refused: its condition would hold again.",
        f"{TIMETABLES}::_is_sound",
        "moves = item.planned_ms > item.after_ms or item.ended",
        "moves = True",
        ["test_an_unsound_advance_changes_nothing"],
    ),
    Mutant(
        "paused-timetable-moves",
        "A timetable that is paused or parked does not move.",
        f"{TIMETABLES}::_advance",
        "not recurrence.moves",
        "recurrence.ended",
        [
            "test_a_pause_takes_back_what_is_not_due_and_lets_the_rest_go_on",
            "test_recu_09_a_timetable_that_fails_stands_still_and_says_why",
        ],
    ),
    Mutant(
        "withdrawn-though-leased",
        "Catch-up takes back nothing that a worker holds.",
        f"{TIMETABLES}::_make",
        "if pending is not None and pending.state is _SCHEDULED and not pending.token:",
        "if pending is not None:",
        ["test_an_occurrence_that_is_leased_already_is_not_withdrawn"],
    ),
    Mutant(
        "asked-for-and-planned-are-two",
        "One instant of a job is one execution, whoever asked for it.",
        f"{TIMETABLES}::_make",
        "if present is None:",
        "if True:",
        ["test_an_occurrence_at_the_very_instant_of_a_trigger_is_that_one"],
    ),
    Mutant(
        "past-runs-without-budget",
        "Runs of the past come out of the cluster's budget.",
        f"{TIMETABLES}::_advance",
        "if item.caught_up > budget.room(store, store.log_time_ms):",
        "if False:",
        ["test_runs_of_the_past_come_out_of_a_budget_that_log_time_refills"],
    ),
    Mutant(
        "budget-is-never-spent",
        "A run of the past takes its share of the budget.",
        f"{BUDGET}::spend",
        "if rate and runs:",
        "if False:",
        ["test_runs_of_the_past_come_out_of_a_budget_that_log_time_refills"],
    ),
    Mutant(
        "dropped-without-a-line",
        "What retention drops of a timetable is in its ledger.",
        f"{STORE}::Store.drop_execution",
        "write_down(recurrence, fate_of(execution))",
        "pass",
        ["test_what_retention_drops_of_a_timetable_goes_to_its_ledger"],
    ),
    Mutant(
        "ledger-grows-for-ever",
        "A ledger keeps a bounded number of lines.",
        f"{LEDGER}::write_down",
        "if len(ledger) >= LEDGER_KEPT:",
        "if False:",
        ["test_the_ledger_joins_neighbours_of_one_fate_and_forgets_the_oldest"],
    ),
)

ONE_AT_A_TIME = (
    Mutant(
        "two-of-a-job-are-leased",
        "Unless overlap is allowed, two executions of a job are never leased at a time.",
        f"{LEASES}::_lease",
        "execution.state is not _SCHEDULED or waits(execution)",
        "execution.state is not _SCHEDULED",
        ["test_recu_08_never_two_of_a_job_are_leased_at_a_time"],
    ),
    Mutant(
        "due-alone-makes-the-line",
        "What began keeps the slot while it waits for its next attempt.",
        f"{OVERLAP}::place_in_line",
        "began = 1 if execution.token else 2",
        "began = 2",
        ["test_recu_08_a_retry_keeps_the_slot_while_it_waits"],
    ),
    Mutant(
        "slot-is-not-handed-on",
        "The end of one occurrence lets the next in line go.",
        f"{STORE}::Store._touch_first_in_line",
        "self.touched.append(first)",
        "pass",
        ["test_recu_08_every_end_frees_the_slot"],
    ),
    Mutant(
        "skip-lets-wait",
        "Under skip, what comes due while another is active does not run.",
        f"{TIMETABLES}::settle",
        "if rule == SKIP:",
        "if False:",
        ["test_recu_08_skip_leaves_out_what_comes_due_while_another_is_active"],
    ),
    Mutant(
        "buffer-without-bound",
        "Under buffer_one, one waits and no more.",
        f"{TIMETABLES}::settle",
        "if any(origin_of(other) is not Origin.BACKFILL for other in ahead[1:]):",
        "if False:",
        ["test_recu_08_buffer_one_lets_one_wait_and_no_more"],
    ),
    Mutant(
        "running-is-not-cancelled",
        "Under cancel_running, the holder is asked to stop.",
        f"{TIMETABLES}::_give_way",
        "execution.cancel_requested = True",
        "pass",
        ["test_recu_08_cancel_running_asks_the_holder_and_lets_the_newest_wait"],
    ),
    Mutant(
        "backfill-gives-way",
        "What somebody asked for is not taken out by what comes due.",
        f"{TIMETABLES}::_give_way",
        "if origin_of(execution) is Origin.BACKFILL:",
        "if False:",
        ["test_a_backfill_that_waits_loses_nothing_to_what_comes_due"],
    ),
)

EDITS = (
    Mutant(
        "pause-leaves-the-pending-one",
        "A pause takes back the occurrence that is not due.",
        f"{TIMETABLES}::stand_at_present",
        "store.withdraw(pending)",
        "pass",
        ["test_a_pause_takes_back_what_is_not_due_and_lets_the_rest_go_on"],
    ),
    Mutant(
        "edit-takes-back-what-is-due",
        "An edit takes back nothing that is due already.",
        f"{TIMETABLES}::stand_at_present",
        "and pending.due_ms > store.log_time_ms",
        "",
        ["test_recu_06_what_is_due_already_is_not_taken_back"],
    ),
    Mutant(
        "edit-goes-back-in-time",
        "No nominal time that had its turn comes again after an edit.",
        f"{TIMETABLES}::stand_at_present",
        "max(recurrence.passed_ms, before_ms)",
        "before_ms",
        ["test_an_edit_of_the_jitter_loses_no_occurrence_and_repeats_none"],
    ),
    Mutant(
        "edit-forgets-the-pending-one",
        "An occurrence that an edit takes back may come again at once.",
        f"{TIMETABLES}::stand_at_present",
        "min(pending.nominal_ms - 1, store.log_time_ms - offset_ms)",
        "store.log_time_ms - offset_ms",
        ["test_an_edit_of_the_jitter_loses_no_occurrence_and_repeats_none"],
    ),
    Mutant(
        "times-before-the-creation",
        "A job has no occurrence of a time before its creation, however wide its jitter.",
        "cluster/state/jobs.py::_add_job",
        "min(store.log_time_ms, nominal_ms - 1)",
        "0",
        ["test_a_job_that_is_paused_before_its_first_run_goes_no_further_back_than_its_creation"],
    ),
    Mutant(
        "version-is-not-looked-at",
        "An update of another version changes nothing.",
        f"{CHANGES}::update_job",
        "if operation.version and operation.version != job.version:",
        "if False:",
        ["test_a_change_may_be_conditional_on_the_version"],
    ),
    Mutant(
        "running-gets-the-new-definition",
        "What began keeps the definition that it began with.",
        f"{CHANGES}::_change_recurring",
        "_keep_what_began(store, job, recurrence, definition)",
        "pass",
        ["test_recu_06_what_began_keeps_its_definition_to_its_end"],
    ),
    Mutant(
        "begun-job-is-planned-anew",
        "A one-shot job that was leased is not planned anew.",
        f"{CHANGES}::_change_once",
        "if execution.state is not _SCHEDULED or execution.token:",
        "if False:",
        ["test_a_one_shot_job_that_began_or_ended_does_not_change"],
    ),
    Mutant(
        "name-outlives-its-job",
        "A job that has ended gives its name free.",
        f"{STORE}::Store.end_timetable",
        "self.names.pop(recurrence.name, None)",
        "pass",
        ["test_recu_06_deleted_and_put_again_it_is_a_new_job"],
    ),
    Mutant(
        "death-does-not-pause",
        "A death pauses a timetable that wants it.",
        f"{TIMETABLES}::died",
        "recurrence.timetable.pause_on_failure",
        "False",
        ["test_a_death_pauses_a_timetable_that_wants_it"],
    ),
    Mutant(
        "trigger-is-not-repeatable",
        "A repeated trigger answers as the first and makes nothing.",
        f"{TIMETABLES}::trigger_job",
        "if known is not None:",
        "if False:",
        ["test_a_trigger_is_repeatable_by_its_request_id"],
    ),
    Mutant(
        "backfill-makes-doubles",
        "A backfill makes nothing that is there.",
        f"{TIMETABLES}::backfill_job",
        "if nominal_ms in job.executions:",
        "if False:",
        ["test_a_backfill_makes_what_is_not_there"],
    ),
)

RULES = (*STEPS, *ONE_AT_A_TIME, *EDITS)

"""What keeps a cluster in operation: levels during an upgrade, retention, overload."""

from mutant import Mutant

COMMIT = "cluster/raft/commit.py"
LEVELS = "cluster/levels.py"
MACHINE = "cluster/state/machine.py"
RETENTION = "cluster/state/retention.py"

RULES = (
    Mutant(
        "proposes-above-the-level",
        "A leader proposes nothing that needs a higher level than the state's.",
        f"{COMMIT}::GroupCommit.propose",
        "(error := self._objection(op)) is not None",
        "(error := self._objection(op)) is op",
        ["test_oper_03_what_must_not_be_proposed_ends_with_its_reason_and_the_others_go_on"],
    ),
    Mutant(
        "sources-propose-above-the-level",
        "Nor does it bind what a source has for it.",
        f"{COMMIT}::GroupCommit._ask_sources",
        "(error := self._objection(op)) is not None",
        "(error := self._objection(op)) is op",
        ["test_oper_03_what_must_not_be_proposed_ends_with_its_reason_and_the_others_go_on"],
    ),
    Mutant(
        "applies-above-the-level",
        "An operation above the level of the state stops every node, also one that knows it.",
        f"{MACHINE}::_beyond_level",
        "if needed > level:",
        "if needed > supported:",
        ["test_oper_03_an_operation_above_the_level_stops_old_and_new_releases_alike"],
    ),
    Mutant(
        "old-release-goes-on-after-a-raise",
        "A node stops at the raise to a level that its release does not support.",
        f"{MACHINE}::_beyond_level",
        "and operation.level > supported",
        "and operation.level < 0",
        ["test_oper_03_a_raise_beyond_its_release_stops_the_node_and_names_both_levels"],
    ),
    Mutant(
        "raise-from-any-level",
        "A raise counts only at the level that it names, and upwards.",
        f"{MACHINE}::_raise_level",
        "store.level != operation.current or",
        "",
        ["test_oper_03_a_raise_is_conditional_and_counts_from_the_next_entry_on"],
    ),
    Mutant(
        "loads-above-its-level",
        "A state whose level a release does not support is not loaded.",
        "cluster/state/restore.py::Loader._header",
        "if header.level > self._supported_level:",
        "if False:",
        ["test_oper_03_the_level_is_a_part_of_the_state_and_of_its_dump"],
    ),
    Mutant(
        "level-above-is-taken-for-damage",
        "A snapshot of a newer release is no damage: it stays, and the node does not start.",
        "cluster/raft/storage.py::Storage._load_snapshot",
        "except NotImplementedError as error:\n                raise Halted",
        "except NotImplementedError as error:\n                raise ValueError",
        ["test_oper_03_after_the_raise_an_old_release_does_not_start_from_a_snapshot_above_it"],
    ),
    Mutant(
        "absent-members-do-not-count",
        "The level rises only when every member has told that it supports a higher one.",
        f"{LEVELS}::common_level",
        " if len(told) == len(levels) else None",
        "",
        ["test_oper_03_a_member_that_is_away_holds_the_level"],
    ),
    Mutant(
        "level-of-a-former-process",
        "What a member supports is asked anew of each connection: another release may run there.",
        "cluster/raft/progress.py::Progress.restart",
        "self.level = None",
        "pass",
        ["test_each_answer_to_a_leader_tells_the_level_and_a_new_connection_forgets_it"],
    ),
    Mutant(
        "finished-bytes-without-bound",
        "What is finished is bounded in bytes, not only in number and age.",
        f"{RETENTION}::_trim_finished",
        "and store.finished_bytes <= settings.keep_finished_bytes",
        "",
        ["test_finished_executions_are_kept_up_to_their_bytes_oldest_out"],
    ),
    Mutant(
        "dead-bytes-without-bound",
        "Dead letters are bounded in bytes too.",
        f"{RETENTION}::_trim_dead",
        " and store.dead_bytes <= settings.keep_dead_bytes",
        "",
        ["test_dead_executions_are_kept_up_to_their_bytes_and_have_their_own"],
    ),
    Mutant(
        "crowds-are-let-in",
        "New work is refused as soon as it would have to wait for long, not once it has.",
        f"{COMMIT}::GroupCommit.congested",
        "waiting > self._pace * settings.max_wait_s",
        "waiting < 0",
        ["test_oper_07_a_crowd_is_let_in_only_as_far_as_the_queue_drains_in_time"],
    ),
    Mutant(
        "new-work-goes-before-what-ends-work",
        "In a crowd new work has a part of each entry, and what ends work goes first.",
        f"{COMMIT}::GroupCommit._queue_of",
        "return self._new if begins else self._rest",
        "return self._rest",
        ["test_oper_07_in_a_crowd_what_ends_work_goes_first_and_new_work_has_a_part"],
    ),
    Mutant(
        "heavy-new-work-waits-for-ever",
        "Whatever comes first has its turn, and then what waits behind it.",
        f"{COMMIT}::GroupCommit._gather",
        "alone = not (found or new_kept)",
        "alone = not found",
        ["test_nothing_waits_for_ever_behind_what_goes_first"],
    ),
    Mutant(
        "new-work-has-no-bytes",
        "New work has its part of an entry's bytes, too.",
        f"{COMMIT}::GroupCommit._gather",
        "if new_kept else 0",
        "if False else 0",
        ["test_new_work_has_its_part_of_an_entrys_bytes_too"],
    ),
    Mutant(
        "creates-take-the-whole-queue",
        "Half of the queue is kept for what brings work to its end.",
        f"{COMMIT}::GroupCommit.congested",
        "2 * self.pending > settings.max_pending",
        "self.pending > settings.max_pending",
        ["test_oper_07_half_of_the_queue_is_kept_for_what_ends_work"],
    ),
)

"""All safety rules and their mutants, by layer."""

import catchup_rules
import consensus_rules
import damage_rules
import dispatch_rules
import election_rules
import event_rules
import http_rules
import instruction_rules
import key_rules
import log_rules
import membership_rules
import nominal_rules
import operation_rules
import option_rules
import peer_rules
import queue_rules
import read_rules
import retry_rules
import space_rules
import state_rules
import storage_rules
import timetable_rules

MUTANTS = (
    *storage_rules.RULES,
    *log_rules.RULES,
    *damage_rules.RULES,
    *space_rules.RULES,
    *election_rules.RULES,
    *consensus_rules.RULES,
    *membership_rules.RULES,
    *peer_rules.RULES,
    *read_rules.RULES,
    *state_rules.RULES,
    *key_rules.RULES,
    *retry_rules.RULES,
    *queue_rules.RULES,
    *timetable_rules.RULES,
    *dispatch_rules.RULES,
    *option_rules.RULES,
    *instruction_rules.RULES,
    *catchup_rules.RULES,
    *nominal_rules.RULES,
    *http_rules.RULES,
    *event_rules.RULES,
    *operation_rules.RULES,
)

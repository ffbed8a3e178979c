"""All safety rules and their mutants, by layer."""

import consensus_rules
import dispatch_rules
import operation_rules
import state_rules
import storage_rules

MUTANTS = (
    *storage_rules.RULES,
    *consensus_rules.RULES,
    *state_rules.RULES,
    *dispatch_rules.RULES,
    *operation_rules.RULES,
)

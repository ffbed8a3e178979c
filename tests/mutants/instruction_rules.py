"""What workers are told: it holds until it is taken back, and reaches them at once."""

from mutant import Mutant

CLAIMS = "cluster/dispatch/claims.py"
INSTRUCTIONS = "cluster/state/instructions.py"
LEASES = "cluster/dispatch/leases.py"
RETENTION = "cluster/state/retention.py"
INTAKE = "client/intake.py"
WORKER = "client/worker.py"

RULES = (
    Mutant(
        "a-told-worker-gets-work",
        "A worker that is told to claim no more gets nothing.",
        f"{CLAIMS}::WaitingClaims._is_instructed",
        "return bool(instructions) and request.worker in instructions",
        "return False",
        ["test_a_worker_that_is_told_gets_nothing_and_does_not_wait"],
    ),
    Mutant(
        "an-idle-worker-is-not-told",
        "A waiting claim is answered when its worker is told something.",
        f"{CLAIMS}::WaitingClaims.dismiss",
        "one.request.worker in told",
        "False",
        ["test_a_waiting_claim_of_a_worker_is_answered_at_once_when_it_is_told"],
    ),
    Mutant(
        "all-idle-workers-are-told",
        "Only the claims of the worker that is told something are answered.",
        f"{CLAIMS}::WaitingClaims.dismiss",
        "one.request.worker in told",
        "told",
        ["test_a_waiting_claim_of_a_worker_is_answered_at_once_when_it_is_told"],
    ),
    Mutant(
        "a-claim-waits-on-unheard",
        "A claim whose grant came to nothing waits on only if its worker is told nothing.",
        f"{CLAIMS}::WaitingClaims._try_again",
        "if waiter.listeners and self._is_instructed(waiter.request):",
        "if False:",
        ["test_a_claim_that_came_to_nothing_does_not_wait_on_once_its_worker_is_told"],
    ),
    Mutant(
        "a-busy-worker-is-not-told",
        "Heartbeats are answered with what the worker of their lease is told.",
        f"{LEASES}::Leases.heartbeat",
        "if instructions := self._state.instructions:",
        "if False:",
        ["test_heartbeats_tell_it_and_leases_go_on"],
    ),
    Mutant(
        "instructions-have-no-limit",
        "So many workers are told something.",
        f"{INSTRUCTIONS}::instruct_worker",
        "len(instructions) >= limits.MAX_INSTRUCTIONS",
        "False",
        ["test_so_many_workers_are_told_something"],
    ),
    Mutant(
        "a-renewed-instruction-is-forgotten-with-the-first",
        "What is said again is kept from then on, and does not outlive its day behind others.",
        f"{INSTRUCTIONS}::instruct_worker",
        "instructions.pop(name, None)  # the latest comes last",
        "pass",
        ["test_it_is_forgotten_a_day_after_it_was_last_said"],
    ),
    Mutant(
        "instructions-are-kept-for-ever",
        "What a worker is told is forgotten after a day.",
        f"{RETENTION}::trim",
        "if store.instructions:",
        "if False:",
        ["test_it_is_forgotten_a_day_after_it_was_last_said"],
    ),
    Mutant(
        "instructions-are-forgotten-early",
        "What a worker is told is kept for a day.",
        f"{RETENTION}::_trim_instructions",
        "if instructions[worker][1] > newest_gone_ms:",
        "if False:",
        ["test_it_is_forgotten_a_day_after_it_was_last_said"],
    ),
    Mutant(
        "a-quiet-worker-asks-on-and-on",
        "A worker that is told to claim no more asks seldom.",
        f"{INTAKE}::Intake.run",
        "if instruction is not None:",
        "if False:",
        ["test_a_quiet_worker_asks_seldom_and_works_again_when_it_is_resumed"],
    ),
    Mutant(
        "a-terminated-worker-stays",
        "A worker that is told to end drains and returns.",
        f"{WORKER}::Worker._instructed",
        'if instruction == "terminate" and not self._stopping:',
        "if False:",
        ["test_a_worker_that_is_told_to_end_drains_and_returns"],
        hangs=True,
    ),
)

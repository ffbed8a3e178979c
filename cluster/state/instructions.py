"""What workers are told: to claim no more, or to end.

A worker is whoever claims under its name; the state knows of it only what it was told. That is
forgotten `limits.INSTRUCTION_KEPT_MS` of log-time after it was last said, so that what ended long
ago leaves nothing behind.
"""

from __future__ import annotations

from timeball.cluster.state import limits
from timeball.cluster.state.operations import INSTRUCTIONS, InstructWorker
from timeball.cluster.state.store import Store
from timeball.cluster.state.verdicts import ChangeStatus


def instruct_worker(store: Store, operation: InstructWorker) -> ChangeStatus:
    """Tell a worker something, in the place of what it was told before."""
    name, instructions = operation.worker, store.instructions
    if not operation.instruction:
        if instructions.pop(name, None) is None:
            return ChangeStatus.UNCHANGED
    elif not is_sound_instruction(name, operation.instruction):
        return ChangeStatus.INVALID
    elif name not in instructions and len(instructions) >= limits.MAX_INSTRUCTIONS:
        return ChangeStatus.FULL
    else:
        instructions.pop(name, None)  # the latest comes last
        instructions[name] = (operation.instruction, store.log_time_ms)
    store.instructed.append(name)
    return ChangeStatus.CHANGED


def is_sound_instruction(worker: str, instruction: str) -> bool:
    """Whether there is such an instruction, and may be such a worker."""
    return 0 < len(worker) <= limits.MAX_WORKER_CHARS and instruction in INSTRUCTIONS

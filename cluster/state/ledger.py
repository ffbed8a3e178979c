"""What became of a timetable's nominal times that hold no execution: a short list for each job.

Neighbours of one fate are one line, so that a line stands for any number of them. How many
there were in all is counted apart, for ever.
"""

from __future__ import annotations

from timeball.cluster.state.expiry import EXPIRED
from timeball.cluster.state.limits import LEDGER_KEPT
from timeball.cluster.state.operations import Fate
from timeball.cluster.state.records import Execution, ExecutionState, FateKind, Recurrence


def write_down(recurrence: Recurrence, fate: Fate) -> None:
    """Add a line, or to the latest one; the oldest beyond `limits.LEDGER_KEPT` is forgotten."""
    ledger = recurrence.ledger
    if ledger:
        latest = ledger[-1]
        if (latest.kind, latest.reason) == (
            fate.kind,
            fate.reason,
        ) and latest.last_ms < fate.first_ms:
            count = latest.count + fate.count
            ledger[-1] = Fate(latest.first_ms, fate.last_ms, count, fate.kind, fate.reason)
            return
        if len(ledger) >= LEDGER_KEPT:
            del ledger[0]
    ledger.append(fate)


def fate_of(execution: Execution) -> Fate:
    """What became of the nominal time of an execution that has ended."""
    kind, reason = FateKind.FIRED, execution.state.name.lower()
    if execution.state is ExecutionState.SKIPPED:
        if execution.reason == EXPIRED:
            kind, reason = FateKind.SKIPPED, EXPIRED
        else:
            name, _, reason = execution.reason.partition(":")
            kind = FateKind[name.upper()]
    return Fate(execution.nominal_ms, execution.nominal_ms, 1, kind, reason)

"""Skips what is due and expires before a claim takes it.

Nothing is scheduled for a time at which it has expired, so only what is due needs a timer:
what is ready, and what is due and held back. All of it is derived, and begins anew with every
leader. What a claim under way has is left to that claim's verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from timeball.cluster.dispatch.outbox import Outbox
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.state.expiry import NEVER_MS, expires_ms
from timeball.cluster.state.operations import SkipExpired
from timeball.cluster.state.records import Execution, ExecutionState
from timeball.wheel import Timer, TimingWheel


class Expiries:
    """The timers of due executions that expire, on the clock of due times."""

    def __init__(
        self,
        commit: Commit,
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
        *,
        now_ms: int,
        take_out: Callable[[Execution], bool],
        derive: Callable[[Sequence[Execution]], None],
    ) -> None:
        """`take_out` has an execution no more be ready; False if a claim has it. `derive` places
        anew what was not skipped after all, since the clock was set back."""
        self._take_out = take_out
        self._derive = derive
        self._wheel: TimingWheel[Execution] = TimingWheel(now_ms)
        self._watched: dict[Execution, Timer] = {}
        self._skips: Outbox[Execution] = Outbox(
            "skip", commit, timers, settings, instruments,
            build=lambda executions: SkipExpired(
                [(execution.job.id, execution.nominal_ms) for execution in executions]
            ),
            wanted=_is_scheduled,
            settled=self._settled,
        )  # fmt: skip

    def __len__(self) -> int:
        """Executions that have a timer."""
        return len(self._watched)

    def watch(self, execution: Execution, now_ms: int) -> bool:
        """See that a due execution is skipped when it expires; True if it has by now."""
        at_ms = expires_ms(execution)
        self.forget(execution)
        if at_ms == NEVER_MS:
            return False
        if at_ms <= now_ms:
            self._skips.put(execution)
            return True
        self._watched[execution] = self._wheel.insert(at_ms, execution)
        return False

    def forget(self, execution: Execution) -> None:
        """It is scheduled no more, or for another time."""
        timer = self._watched.pop(execution, None)
        if timer is not None:
            self._wheel.cancel(timer)

    def advance(self, now_ms: int, limit: int) -> bool:
        """Have what has expired by now skipped; True when there may be more."""
        fired = self._wheel.advance(now_ms, limit)
        for execution in fired:
            del self._watched[execution]
            if self._take_out(execution):
                self._skips.put(execution)
        return len(fired) >= limit

    def next_ms(self) -> int | None:
        """When to call `advance` next."""
        return self._wheel.next_expiry()

    def close(self) -> None:
        """End of the leadership: nothing is skipped here any more."""
        self._skips.close()
        self._watched.clear()

    def _settled(self, executions: Sequence[Execution], _verdicts: Sequence[object]) -> None:
        left = [execution for execution in executions if _is_scheduled(execution)]
        if left:
            self._derive(left)


def _is_scheduled(execution: Execution) -> bool:
    return execution.state is ExecutionState.SCHEDULED

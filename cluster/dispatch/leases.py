"""How long each lease still runs, in the leader's memory and on its monotonic clock.

A lease begins anew with every leader, so time without one ends no lease; and a step of
the wall clock neither ends nor prolongs any. Heartbeats only move a number: the timer in
the wheel stays where it is and looks again when it fires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from timeball.cluster.dispatch.outbox import Outbox
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Expire, Release, Start
from timeball.cluster.state.records import Execution, ExecutionState
from timeball.cluster.state.transitions import TERMINAL
from timeball.wheel import Timer, TimingWheel

HELD = frozenset({ExecutionState.LEASED, ExecutionState.RUNNING})


class Heartbeat(msgspec.Struct, frozen=True):
    """The answer to one heartbeat; see the protocol for what each verdict means."""

    verdict: Literal["extended", "cancel_requested", "lost", "finished", "unknown"]
    lease_remaining_ms: int = 0


class _Hold(msgspec.Struct, eq=False, gc=False):
    """One live lease. Instants are of the monotonic clock, in milliseconds.

    `limit_ms` is where the attempt's timeout ends it, whatever heartbeats say. `answers`
    counts the claim answers that carry it and may still arrive.
    """

    execution: Execution
    token: int
    lease_ms: int
    deadline_ms: int
    limit_ms: int | None
    timer: Timer[_Hold] | None = None
    ending: bool = False
    start_proposed: bool = False
    answers: int = 0

    def extend(self, now_ms: int) -> None:
        """One lease from now, within the attempt's timeout."""
        end = now_ms + self.lease_ms
        self.deadline_ms = end if self.limit_ms is None else min(end, self.limit_ms)

    def name(self) -> tuple[int, int, int]:
        return (self.execution.job.id, self.execution.nominal_ms, self.token)


class Leases:
    """The live leases of the cluster, as their leader sees them."""

    def __init__(
        self,
        state: StateMachine,
        commit: Commit,
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
    ) -> None:
        self._state = state
        self._timers = timers
        self._instruments = instruments
        self._wheel: TimingWheel[_Hold] = TimingWheel(timers.monotonic_ms())
        self._holds: dict[Execution, _Hold] = {}
        self._expiries: Outbox[_Hold] = Outbox(
            "expire", commit, timers, settings, instruments,
            build=self._expire, wanted=self._is_live,
        )  # fmt: skip
        self._starts: Outbox[_Hold] = Outbox(
            "start", commit, timers, settings, instruments,
            build=lambda holds: Start([hold.name() for hold in holds]),
            wanted=lambda hold: (
                self._is_live(hold) and hold.execution.state is ExecutionState.LEASED
            ),
        )  # fmt: skip
        self._releases: Outbox[_Hold] = Outbox(
            "release", commit, timers, settings, instruments,
            build=lambda holds: Release([hold.name() for hold in holds]), wanted=self._is_live,
        )  # fmt: skip

    def __len__(self) -> int:
        """Live leases known so far."""
        return len(self._holds)

    def hold(
        self, execution: Execution, monotonic_ms: int | None = None, *, now_ms: int | None = None
    ) -> _Hold:
        """See that a leased execution has its timer; a lease begins when first seen.

        `monotonic_ms` is given by who has read that clock already, for many. `now_ms` is
        given for a lease that an earlier leader granted: how much of the attempt's timeout
        is over by then (never less than one lease remains).
        """
        known = self._holds.get(execution)
        if known is not None:
            if known.token == execution.token:
                return known
            self.drop(execution)
        assert execution.state in HELD
        assert execution.attempts is not None, "a token was granted, so there is an attempt"
        attempt = execution.attempts[-1]
        if monotonic_ms is None:
            monotonic_ms = self._timers.monotonic_ms()
        monotonic_ms += 1  # a millisecond that has begun is not over
        limit: int | None = None
        if timeout_ms := execution.job.timeout_ms:
            over = 0 if now_ms is None else max(now_ms - attempt.claimed_ms, 0)
            limit = monotonic_ms + min(timeout_ms, max(timeout_ms - over, attempt.lease_ms))
        hold = _Hold(execution, execution.token, attempt.lease_ms, 0, limit)
        hold.extend(monotonic_ms)
        hold.timer = self._wheel.insert(hold.deadline_ms, hold)
        self._holds[execution] = hold
        return hold

    def drop(self, execution: Execution) -> bool:
        """The execution is leased no more: its timer goes. False if it was not held."""
        hold = self._holds.pop(execution, None)
        if hold is None:
            return False
        if hold.timer is not None:
            self._wheel.cancel(hold.timer)
            hold.timer = None
        return True

    def heartbeat(self, job: int, nominal_ms: int, token: int) -> Heartbeat:
        """Extend a lease by its own length from now, and tell its holder how things stand."""
        execution = self._state.execution(job, nominal_ms)
        if execution is None:
            return Heartbeat("unknown")
        if execution.state in TERMINAL:
            return Heartbeat("finished")
        if execution.state not in HELD or execution.token != token:
            return Heartbeat("lost")
        hold = self.hold(execution)
        now_ms = self._timers.monotonic_ms()
        if hold.ending or hold.deadline_ms <= now_ms:
            return Heartbeat("lost")  # its end is on the way into the log
        hold.extend(now_ms)
        if execution.state is ExecutionState.LEASED and not hold.start_proposed:
            hold.start_proposed = True
            self._starts.put(hold)
        remaining_ms = hold.deadline_ms - now_ms
        if execution.cancel_requested:
            return Heartbeat("cancel_requested", remaining_ms)
        return Heartbeat("extended", remaining_ms)

    def answered(self, execution: Execution) -> None:
        """A claim's answer carries this lease to somebody."""
        self.hold(execution).answers += 1

    def give_back(self, execution: Execution, token: int) -> None:
        """An answer that carried the lease did not arrive: release it, unless another may."""
        if execution.state not in HELD or execution.token != token:
            return
        hold = self.hold(execution)
        hold.answers -= 1
        if hold.answers <= 0 and not hold.ending:
            hold.ending = True
            self._instruments.unused_released(1)
            self._releases.put(hold)

    def advance(self, limit: int) -> bool:
        """End what ran out; True when more may have run out than `limit`."""
        now_ms = self._timers.monotonic_ms()
        fired = self._wheel.advance(now_ms, limit)
        expired = 0
        for hold in fired:
            hold.timer = None
            if hold.deadline_ms > now_ms:
                hold.timer = self._wheel.insert(hold.deadline_ms, hold)
            elif not hold.ending:
                hold.ending = True
                expired += 1
                self._expiries.put(hold)
        if expired:
            self._instruments.leases_expired(expired)
        return len(fired) >= limit

    def next_expiry_ms(self) -> int | None:
        """When to call `advance` next, on the monotonic clock."""
        return self._wheel.next_expiry()

    def close(self) -> None:
        """End of the leadership: nothing expires here any more."""
        for outbox in (self._expiries, self._starts, self._releases):
            outbox.close()
        self._holds.clear()

    def _is_live(self, hold: _Hold) -> bool:
        return self._holds.get(hold.execution) is hold

    def _expire(self, holds: Sequence[_Hold]) -> Expire:
        return Expire(
            [
                (*hold.name(), hold.limit_ms is not None and hold.deadline_ms >= hold.limit_ms)
                for hold in holds
            ]
        )

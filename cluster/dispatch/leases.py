"""How long each lease still runs, in the leader's memory and on its monotonic clock.

A lease begins anew with every leader, so time without one ends no lease; and a step of
the wall clock neither ends nor prolongs any.

Leases that were granted together end together, so all that end at one instant share one
timer. Heartbeats only move a number: the lease stays with those it was granted with, and
when their instant comes, it joins those that end when it does by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from timeball.cluster.dispatch.messages import Heartbeat
from timeball.cluster.dispatch.outbox import Outbox
from timeball.cluster.dispatch.progress import Name, ProgressReports
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Expire, Release, Start
from timeball.cluster.state.records import Execution, ExecutionState, timeout_of
from timeball.cluster.state.transitions import TERMINAL
from timeball.wheel import Timer, TimingWheel

HELD: Final = frozenset({ExecutionState.LEASED, ExecutionState.RUNNING})

_NOT_TOLD: Final[tuple[None, int]] = (None, 0)


@mypyc_attr(acyclic=True)
class Lease:
    """One execution leased to a claim's worker, under its fencing token.

    Only `Leases` changes it, and what it says of the grant never changes. Instants are of
    the monotonic clock, in milliseconds.
    """

    __slots__ = (
        "answers",
        "attempt",
        "deadline_ms",
        "ending",
        "execution",
        "lease_ms",
        "limit_ms",
        "look_ms",
        "start_proposed",
        "token",
    )

    def __init__(
        self,
        execution: Execution,
        token: int,
        attempt: int,
        lease_ms: int,
        limit_ms: int | None,
        deadline_ms: int,
    ) -> None:
        """One that is looked at when it ends."""
        self.execution = execution
        self.token = token
        self.attempt = attempt
        self.lease_ms = lease_ms
        self.limit_ms = limit_ms
        """Where the attempt's timeout ends it, whatever heartbeats say."""
        self.deadline_ms = deadline_ms
        self.look_ms = deadline_ms
        """When it is looked at next: its deadline, as it was when that was decided."""
        self.answers = 0
        """Claim answers that carry it and may still arrive."""
        self.ending = False
        self.start_proposed = False

    def extend(self, now_ms: int) -> None:
        """One lease from now, within the attempt's timeout."""
        end = now_ms + self.lease_ms
        self.deadline_ms = end if self.limit_ms is None else min(end, self.limit_ms)

    def name(self) -> tuple[int, int, int]:
        """What operations call it."""
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
        self._live: dict[Execution, Lease] = {}
        self._looks: dict[int, dict[Lease, None]] = {}
        """Leases by the instant at which to look at them, in order of coming."""
        self._wheel: TimingWheel[int] = TimingWheel(timers.monotonic_ms())
        """These instants."""
        self._look_timers: dict[int, Timer] = {}
        self._expiries: Outbox[Lease] = Outbox(
            "expire", commit, timers, settings, instruments,
            build=self._expire, wanted=self._is_live,
        )  # fmt: skip
        self._starts: Outbox[Lease] = Outbox(
            "start", commit, timers, settings, instruments,
            build=lambda leases: Start([lease.name() for lease in leases]),
            wanted=lambda lease: (
                self._is_live(lease) and lease.execution.state is ExecutionState.LEASED
            ),
        )  # fmt: skip
        self._releases: Outbox[Lease] = Outbox(
            "release", commit, timers, settings, instruments,
            build=lambda leases: Release([lease.name() for lease in leases]),
            wanted=self._is_live,
        )  # fmt: skip
        self.progress = ProgressReports(commit, timers, settings, instruments, holder=self._holder)

    def __len__(self) -> int:
        """Live leases known so far."""
        return len(self._live)

    def hold(self, execution: Execution, monotonic_ms: int, *, now_ms: int | None = None) -> Lease:
        """The lease of a leased execution; it begins at `monotonic_ms` when first seen, or
        if it was granted ahead of time, when the execution is due.

        `now_ms` is given for a lease that an earlier leader granted: how much of the
        attempt's timeout is over by then (never less than one lease remains).
        """
        token = execution.token
        known = self._live.get(execution)
        if known is not None:
            if known.token == token:
                return known
            self.drop(execution)
        assert execution.state in HELD
        attempt = execution.latest
        lease_ms = attempt.lease_ms
        begin_ms = monotonic_ms + 1  # a millisecond that has begun is not over
        if (ahead_ms := execution.due_ms - self._state.log_time_ms) > 0:
            begin_ms += ahead_ms
        deadline_ms = begin_ms + lease_ms
        limit_ms: int | None = None
        if timeout_ms := timeout_of(execution):
            over = 0 if now_ms is None else max(now_ms - attempt.claimed_ms, 0)
            limit_ms = begin_ms + min(timeout_ms, max(timeout_ms - over, lease_ms))
            deadline_ms = min(deadline_ms, limit_ms)
        lease = self._live[execution] = Lease(
            execution, token, execution.attempts_used, lease_ms, limit_ms, deadline_ms
        )
        together = self._looks.get(deadline_ms)
        if together is None:
            together = self._look_at(deadline_ms)
        together[lease] = None
        return lease

    def drop(self, execution: Execution) -> bool:
        """The execution is leased no more: nobody looks at it again. False if it was not held."""
        lease = self._live.pop(execution, None)
        if lease is None:
            return False
        look_ms = lease.look_ms
        together = self._looks.get(look_ms)
        if together is not None:
            together.pop(lease, None)
            if not together:
                del self._looks[look_ms]
                self._wheel.cancel(self._look_timers.pop(look_ms))
        return True

    def heartbeat(
        self, job: int, nominal_ms: int, token: int, progress: bytes | None = None
    ) -> Heartbeat:
        """Extend a lease by its own length from now, and tell its holder how things stand.

        `progress` is how far that has come, in MessagePack; None: it says nothing of it.
        """
        execution = self._state.execution(job, nominal_ms)
        if execution is None:
            return Heartbeat("unknown")
        if execution.state in TERMINAL:
            return Heartbeat("finished")
        if execution.state not in HELD or execution.token != token:
            return Heartbeat("lost")
        now_ms = self._timers.monotonic_ms()
        lease = self.hold(execution, now_ms)
        if lease.ending or lease.deadline_ms <= now_ms:
            return Heartbeat("lost")  # its end is on the way into the log
        lease.extend(now_ms)
        if execution.state is ExecutionState.LEASED and not lease.start_proposed:
            lease.start_proposed = True
            self._starts.put(lease)
        if progress is not None:
            self.progress.tell(lease.name(), progress)
        remaining_ms = lease.deadline_ms - now_ms
        instruction: str | None = None
        if instructions := self._state.instructions:
            instruction, _ = instructions.get(execution.latest.worker, _NOT_TOLD)
        if execution.cancel_requested:
            return Heartbeat("cancel_requested", remaining_ms, instruction)
        return Heartbeat("extended", remaining_ms, instruction)

    def give_back(self, execution: Execution, token: int) -> None:
        """An answer that carried the lease did not arrive: release it, unless another may."""
        if execution.state not in HELD or execution.token != token:
            return
        lease = self.hold(execution, self._timers.monotonic_ms())
        lease.answers -= 1
        if lease.answers <= 0 and not lease.ending:
            lease.ending = True
            self._instruments.unused_released(1)
            self._releases.put(lease)

    def advance(self, now_ms: int, limit: int) -> bool:
        """End what ran out by the monotonic clock; True when more may have run out.

        Looks at `limit` leases, and at all the others that end with the last of them.
        """
        looked = expired = 0
        while looked < limit:
            fired = self._wheel.advance(now_ms, 1)
            if not fired:
                break
            (look_ms,) = fired
            del self._look_timers[look_ms]
            together = self._looks.pop(look_ms)
            looked += len(together)
            for lease in together:
                if lease.deadline_ms > now_ms:
                    self._look_again(lease)
                elif not lease.ending:
                    lease.ending = True
                    expired += 1
                    self._expiries.put(lease)
        if expired:
            self._instruments.leases_expired(expired)
        return looked >= limit

    def next_expiry_ms(self) -> int | None:
        """When to call `advance` next."""
        return self._wheel.next_expiry()

    def close(self) -> None:
        """End of the leadership: nothing expires here any more."""
        for outbox in (self._expiries, self._starts, self._releases):
            outbox.close()
        self.progress.close()
        self._live.clear()
        self._looks.clear()

    def _look_at(self, at_ms: int) -> dict[Lease, None]:
        """See that leases will be looked at at an instant at which none were to be."""
        self._look_timers[at_ms] = self._wheel.insert(at_ms, at_ms)
        together = self._looks[at_ms] = {}
        return together

    def _look_again(self, lease: Lease) -> None:
        """It was extended: look at it when it ends by what is known now."""
        at_ms = lease.look_ms = lease.deadline_ms
        together = self._looks.get(at_ms)
        if together is None:
            together = self._look_at(at_ms)
        together[lease] = None

    def _holder(self, name: Name) -> Execution | None:
        """The execution that a lease of this name holds."""
        job, nominal_ms, token = name
        execution = self._state.execution(job, nominal_ms)
        if execution is None or execution not in self._live or execution.token != token:
            return None
        return execution

    def _is_live(self, lease: Lease) -> bool:
        return self._live.get(lease.execution) is lease

    def _expire(self, leases: Sequence[Lease]) -> Expire:
        return Expire(
            [
                (*lease.name(), lease.limit_ms is not None and lease.deadline_ms >= lease.limit_ms)
                for lease in leases
            ]
        )

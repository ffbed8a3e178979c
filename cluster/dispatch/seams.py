"""What dispatch is handed from outside: timers, the way into the log, settings, instruments.

No module of this package reads a clock or owns an event loop: a node hands in the real
ones, a simulator its own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from timeball.cluster.raft.interface import Proposer
from timeball.cluster.state.limits import MAX_LEAD_MS


class Handle(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """The monotonic clock and the calls to come of one event loop."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back, knows no wall clock."""

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        """Call in the next turn of the loop."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Handle:
        """Call once `delay_ms` milliseconds have passed on the monotonic clock."""


class LoopTimers:
    """The timers of the asyncio loop that runs when they are first used."""

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """To ask which loop runs is a system call each time."""
        return asyncio.get_running_loop()

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self._loop.call_soon(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Handle:
        return self._loop.call_later(delay_ms / 1000, callback)


Source = Callable[[int, int], Iterable[tuple[Any, int, Proposer]]]


class Commit(Protocol):
    """The way into the log: `GroupCommit`, as far as dispatch needs it."""

    def propose(
        self, op: object, *, weight: int = 1, size: int = 256, as_of_ms: int = 0
    ) -> asyncio.Future[object]: ...

    def add_source(self, source: Source) -> None: ...

    def wake(self) -> None: ...


class DispatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a leader's work; every length in milliseconds."""

    horizon_ms: int = 2_000
    """How far ahead of their due time executions are taken from the buckets into the wheel."""
    step: int = 1_000
    """Records looked at in one turn of the loop before other work goes first."""
    plans_per_turn: int = 100
    """Timetables planned in one turn, of those with one rule, at some thirty microseconds each;
    others count for more (see `catchup.weight`)."""
    longest_wait_ms: int = 1_000
    """No wait is longer, so that what a step of the wall clock makes due is noticed."""
    partitions: int = 16
    """Of each ready queue."""
    max_waiting_claims: int = 10_000
    """Over all queues; one more is refused."""
    max_offers: int = 256
    """Different sets of tags that the claims which wait for one queue offer."""
    max_executions_per_claim: int = 1_000
    executions_per_entry: int = 1_000
    """Claims are bound for one entry until these are bound; the rest goes into the next ones,
    so that applying a mass of grants gives way to other work."""
    lead_ms: int = 20
    """How long before its due time an execution may be leased to a claim that waits, so that
    the lease is committed by then; 0: not before. It should cover a commit."""
    lead_span_ms: int = 1
    """Executions leased ahead go to one claim if their due times lie no further apart: it is
    answered at the last of them."""
    at_once_ms: int = 100
    """How long a claim that does not want to wait has for its entry, when there is work."""
    catch_up_grace_ms: int = 10_000
    """An outage is dealt with by the catch-up rule if a nominal time came to be later than this;
    after a shorter one each has an execution of its own."""
    catch_up_step: int = 100
    """Occurrences of one job created by one operation."""
    items_per_operation: int = 1_000
    retry_ms: int = 100
    """The pause before an operation of the leader's own that failed is proposed again, and
    between looks at the budget of runs of the past while timetables wait for it."""

    progress_ms: int = 1_000
    """How often the progress of what runs is written to the log, at most."""

    def validate(self) -> None:
        """Raise ValueError unless every bound is positive and they fit each other."""
        for name in self.__struct_fields__:
            least = 0 if name.startswith("lead_") else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}")
        if self.lead_ms > MAX_LEAD_MS:
            raise ValueError(f"lead_ms must be at most {MAX_LEAD_MS}, or leases are refused")
        if self.horizon_ms <= self.longest_wait_ms:
            raise ValueError("horizon_ms must exceed longest_wait_ms, or executions come late")
        if self.catch_up_step > self.items_per_operation:
            raise ValueError("catch_up_step must not exceed items_per_operation")


class Instruments:
    """What dispatch tells those who measure; each method does nothing until overridden."""

    def observe_wheel(self, lags_ms: Sequence[int]) -> None:
        """Executions were made available, so long after their due time each: in the ready
        queue, or in the answer of a claim that was bound ahead of time."""

    def observe_claim(self, lags_ms: Sequence[int]) -> None:
        """A claim is answered: with an execution so long after its due time each."""

    def leases_refused(self, count: int) -> None:
        """Executions that a claim was bound to were not to be leased by then."""

    def unused_released(self, count: int) -> None:
        """Leases were given back, since nobody was left to take them."""

    def leases_taken_over(self, count: int) -> None:
        """A new leader gave leases that others had granted their whole length again."""

    def leases_expired(self, count: int) -> None:
        """Leases ran out and are proposed to be ended."""

    def timetable_parked(self, job: int) -> None:
        """A timetable failed, and is to stand still."""

    def proposal_failed(self, kind: str, items: int) -> None:
        """An operation of the leader's own failed; it will be proposed again if need be."""

"""The leader's work as the rest of a node sees it: claims, heartbeats, and what is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from timeball.cluster.dispatch.duty import Duty
from timeball.cluster.dispatch.errors import NotServing
from timeball.cluster.dispatch.leases import Lease
from timeball.cluster.dispatch.messages import ClaimRequest, Heartbeat
from timeball.cluster.dispatch.seams import (
    Commit,
    DispatchSettings,
    Instruments,
    LoopTimers,
    Timers,
)
from timeball.cluster.state.machine import Applied, StateMachine

__all__ = ["ClaimRequest", "Dispatcher", "Heartbeat", "Lease"]


class Dispatcher:
    """Dispatch of one node: idle on a follower, at work from `start` to `stop` on a leader.

    `start` comes once all that earlier leaders wrote is applied; from then on `applied`
    is called for every entry, in log order.
    """

    def __init__(
        self,
        state: StateMachine,
        commit: Commit,
        wall_clock_ms: Callable[[], int],
        *,
        timers: Timers | None = None,
        settings: DispatchSettings | None = None,
        instruments: Instruments | None = None,
    ) -> None:
        """Raises ValueError for settings that do not fit each other."""
        self._state = state
        self._commit = commit
        self._wall_clock_ms = wall_clock_ms
        self._timers = timers or LoopTimers()
        self._settings = settings or DispatchSettings()
        self._settings.validate()
        self._instruments = instruments or Instruments()
        self._duty: Duty | None = None
        self.term: int | None = None
        """The term served; None while this node dispatches nothing."""
        commit.add_source(self._source)

    def start(self, term: int) -> None:
        """Take up the duties of a leader: rebuild everything from the applied state."""
        self.stop()
        self.term = term
        self._duty = Duty(
            self._state,
            self._commit,
            self._wall_clock_ms,
            self._timers,
            self._settings,
            self._instruments,
        )
        self._duty.start()

    def stop(self) -> None:
        """Lay them down: forget what was derived; claims that wait end with NotServing."""
        duty, self._duty, self.term = self._duty, None, None
        if duty is not None:
            duty.close()

    def applied(self, applied: Applied) -> None:
        """Follow an applied entry; nothing to do on a node that does not serve."""
        if self._duty is not None:
            self._duty.applied(applied.touched, applied.queues)
            if applied.workers:
                self._duty.claims.dismiss(applied.workers)

    async def claim(self, request: ClaimRequest) -> list[Lease]:
        """Lease due executions, waiting up to `wait_ms` for the first; empty when none came.

        Raises NotServing, TooManyClaims, or OutcomeUnknown (repeat with the same request
        id). Cancelling the call leaves no lease behind, at whatever moment.
        """
        return await self._serving().claims.claim(request)

    def release_unused(self, leases: Sequence[Lease]) -> None:
        """The answer that carried these leases could not be delivered: give them back."""
        if self._duty is not None:
            for lease in leases:
                self._duty.leases.give_back(lease.execution, lease.token)

    def heartbeat(
        self, job: int, nominal_ms: int, token: int, progress: bytes | None = None
    ) -> Heartbeat:
        """Extend a lease by its own length from now; `progress` is in MessagePack. Raises
        NotServing."""
        return self._serving().leases.heartbeat(job, nominal_ms, token, progress)

    def ready_depth(self, queue: str) -> int:
        """Due executions of a queue that no claim has taken."""
        return 0 if self._duty is None else self._duty.ready.depth(queue)

    def held_back_by(self, queue: str) -> list[str]:
        """Which settings of a queue keep its due executions from claims at the moment."""
        return [] if self._duty is None else self._duty.admission.reasons(queue)

    def oldest_due_ms(self, queue: str) -> int | None:
        """The earliest due time of these; None when there is none."""
        return None if self._duty is None else self._duty.ready.oldest_due_ms(queue)

    def waiting_claims(self, queue: str | None = None) -> int:
        """Claims that wait, for a queue or for all."""
        if self._duty is None:
            return 0
        claims = self._duty.claims
        return claims.count if queue is None else claims.depth(queue)

    @property
    def live_leases(self) -> int:
        """Leases with a timer on this leader."""
        return 0 if self._duty is None else len(self._duty.leases)

    def _serving(self) -> Duty:
        if self._duty is None:
            raise NotServing("this node does not lead")
        return self._duty

    def _source(self, log_time_ms: int, room: int) -> Iterable[tuple[Any, int, Any]]:
        return () if self._duty is None else self._duty.source(log_time_ms, room)

"""Moving timetables on: each recurring job's next occurrences, a bounded amount of work a turn.

A timetable that fails is parked by an operation of the log: it stands still, with its error
visible on every node, until it is resumed or edited; the others go on. One that has to wait
for the cluster's budget of runs of the past stands where it is until there is room.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from timeball.cluster.dispatch import catchup
from timeball.cluster.dispatch.outbox import Outbox
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Handle, Instruments, Timers
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Advance, AdvanceTimetables, ParkTimetables
from timeball.cluster.state.records import Job
from timeball.cluster.state.verdicts import Moved

_log = logging.getLogger(__name__)

_Parking = tuple[int, int, str]
"""What an operation says of a timetable that is to be parked: job, version, and why."""


class Planner:
    """The timetables whose instant has come, on their way to the next one."""

    def __init__(
        self,
        state: StateMachine,
        commit: Commit,
        timers: Timers,
        settings: DispatchSettings,
        instruments: Instruments,
        *,
        derive: Callable[[Job], None],
        wake: Callable[[], None],
    ) -> None:
        """`derive` is told of jobs that are to be looked at anew; `wake` asks for a `step`."""
        self._state = state
        self._timers = timers
        self._settings = settings
        self._instruments = instruments
        self._derive = derive
        self._wake = wake
        self._due: OrderedDict[Job, None] = OrderedDict()
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        """Jobs for whose runs of the past the budget has no room yet."""
        self._look_again: Handle | None = None
        self._more = False
        """Some of those that wait have room, and were left to the next turn."""
        self._steps: dict[Job, Advance | _Parking] = {}
        """What is proposed; no job is in more than one of these three."""
        self._reserved = 0
        """Runs of the past in the steps that are proposed."""
        self._planned_by_ms = 0
        """The latest present that a step was planned by. By an earlier log-time an occurrence that
        the step passes would not have come due, and the overlap rule, which speaks in that step
        alone, would never speak about it."""
        self._advances: Outbox[Advance] = Outbox(
            "advance", commit, timers, settings, instruments,
            build=AdvanceTimetables, wanted=self._may_move, settled=self._settled,
            weigh=lambda advance: max(len(advance.nominals), 1), as_of=lambda: self._planned_by_ms,
        )  # fmt: skip
        self._parkings: Outbox[_Parking] = Outbox(
            "park", commit, timers, settings, instruments,
            build=ParkTimetables, wanted=self._may_park, settled=self._parked,
        )  # fmt: skip

    def due(self, job: Job) -> None:
        """The instant at which the job stands has come."""
        assert not self.is_under_way(job), "one step at a time"
        self._due[job] = None

    @property
    def has_due(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._due) or self._more

    def is_under_way(self, job: Job) -> bool:
        """Whether the job's next step is to be planned, or is proposed."""
        return job in self._steps or job in self._due or job in self._waiting

    def moved(self, job: Job) -> None:
        """The log moved or changed the job: what was under way is settled."""
        step = self._steps.pop(job, None)
        if step is None:
            self._due.pop(job, None)
            self._waiting.pop(job, None)
        elif type(step) is Advance:
            self._reserved -= step.caught_up

    def step(self, now_ms: int) -> None:
        """Plan for some of the due jobs, and of those that wait as far as there is room."""
        turn = left = self._settings.plans_per_turn
        room = self._room(now_ms) if self._due or self._waiting else 0
        early: list[Job] = []
        while queue := self._due or (self._waiting if room > 0 else None):
            job = next(iter(queue))
            weight = catchup.weight(job, now_ms, self._settings.catch_up_grace_ms)
            if weight > left and left < turn:
                break
            left -= weight
            del queue[job]
            room = self._plan(job, now_ms, room, early)
        for job in early:
            self._derive(job)
        self._more = bool(self._waiting) and room > 0
        if self._waiting and not self._more:
            self._wait_for_room()

    def close(self) -> None:
        """End of the leadership."""
        if self._look_again is not None:
            self._look_again.cancel()
        self._advances.close()
        self._parkings.close()
        self._due.clear()
        self._waiting.clear()
        self._steps.clear()

    def _room(self, now_ms: int) -> int:
        """How many runs of the past may be proposed beyond those that are."""
        return max(self._state.catch_up_room(now_ms) - self._reserved, 0)

    def _wait_for_room(self) -> None:
        if self._look_again is None:
            self._look_again = self._timers.call_later(self._settings.retry_ms, self._wake_up)

    def _wake_up(self) -> None:
        self._look_again = None
        self._wake()

    def _plan(self, job: Job, now_ms: int, room: int, early: list[Job]) -> int:
        """Propose the job's next step; returns how much room there is for others then.

        Where its time has not come after all, the job joins the `early`.
        """
        settings = self._settings
        # Whatever is wrong with one timetable must not stop the others: it is not
        # swallowed but shown, and the timetable stands still.
        try:
            advance = catchup.plan(
                job,
                now_ms,
                grace_ms=settings.catch_up_grace_ms,
                limit=settings.catch_up_step,
                room=room,
            )
        except Exception as error:  # noqa: BLE001
            self._park(job, f"{type(error).__name__}: {error}")
            return room
        if advance is not None:
            self._steps[job] = advance
            self._planned_by_ms = max(self._planned_by_ms, now_ms)
            self._reserved += advance.caught_up
            self._advances.put(advance)
            return room - advance.caught_up
        if job.timetable_moves and job.moves_at_ms <= now_ms:
            self._waiting[job] = None
            return 0
        early.append(job)
        return room

    def _park(self, job: Job, why: str) -> None:
        _log.error("the timetable of job %d stands still: %s", job.id, why)
        self._instruments.timetable_parked(job.id)
        parking = (job.id, job.version, why)
        self._steps[job] = parking
        self._parkings.put(parking)

    def _may_move(self, advance: Advance) -> bool:
        job = self._state.job(advance.job)
        return job is not None and self._steps.get(job) is advance

    def _may_park(self, parking: _Parking) -> bool:
        job = self._state.job(parking[0])
        return job is not None and self._steps.get(job) is parking

    def _settled(self, advances: Sequence[Advance], verdicts: Sequence[object]) -> None:
        for advance, verdict in zip(advances, verdicts, strict=True):
            job = self._state.job(advance.job)
            if job is None or self._steps.get(job) is not advance:
                continue  # the log has moved it, as `moved` was told
            self.moved(job)
            if verdict is Moved.UNSOUND:
                self._park(job, f"the step to {advance.planned_ms} was refused")
            elif verdict is Moved.NO_BUDGET:
                self._waiting[job] = None
                self._wait_for_room()
            else:
                self._derive(job)

    def _parked(self, parkings: Sequence[_Parking], verdicts: Sequence[object]) -> None:
        for parking, _refused in zip(parkings, verdicts, strict=True):
            job = self._state.job(parking[0])
            if job is not None and self._steps.get(job) is parking:
                self.moved(job)
                self._derive(job)

"""Moving timetables on: each recurring job's next occurrences, a bounded number a turn.

A timetable that fails is parked: it stands still, visibly, until the next leader or an
edit, and the others go on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from timeball.cluster.dispatch.outbox import Outbox
from timeball.cluster.dispatch.seams import Commit, DispatchSettings, Instruments, Timers
from timeball.cluster.dispatch.timetable import plan
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import Advance, AdvanceTimetables
from timeball.cluster.state.records import Job

_log = logging.getLogger(__name__)


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
    ) -> None:
        self._state = state
        self._settings = settings
        self._instruments = instruments
        self._derive = derive
        self._due: deque[Job] = deque()
        self._under_way: set[Job] = set()
        """Jobs that are due or whose step is proposed: at most one step at a time."""
        self.parked: dict[int, str] = {}
        """Why timetables stand still, by job id."""
        self._advances: Outbox[Advance] = Outbox(
            "advance", commit, timers, settings, instruments,
            build=AdvanceTimetables, wanted=self._still_there, settled=self._settled,
            weigh=lambda advance: max(len(advance.nominals), 1),
        )  # fmt: skip

    def due(self, job: Job) -> None:
        """The instant at which the job stands has come."""
        assert not self.is_under_way(job), "one step at a time"
        self._under_way.add(job)
        self._due.append(job)

    @property
    def has_due(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._due)

    def is_under_way(self, job: Job) -> bool:
        """Whether the job's next step is being planned or proposed, or never will be."""
        return job in self._under_way or job.id in self.parked

    def moved(self, job: Job) -> None:
        """The log moved the job: what was under way is settled."""
        self._under_way.discard(job)
        if job.timetable_ended:
            self.parked.pop(job.id, None)

    def step(self, now_ms: int) -> None:
        """Plan for some of the due jobs."""
        for _ in range(min(len(self._due), self._settings.plans_per_turn)):
            job = self._due.popleft()
            if job in self._under_way:
                self._plan(job, now_ms)

    def close(self) -> None:
        """End of the leadership."""
        self._advances.close()
        self._due.clear()
        self._under_way.clear()

    def _plan(self, job: Job, now_ms: int) -> None:
        settings = self._settings
        # Whatever is wrong with one timetable must not stop the others: it is not
        # swallowed but shown, and the timetable stands still.
        try:
            advance = plan(
                job, now_ms, grace_ms=settings.catch_up_grace_ms, limit=settings.catch_up_step
            )
        except Exception as error:  # noqa: BLE001
            self._park(job, f"{type(error).__name__}: {error}")
            return
        if advance is None:
            self._under_way.discard(job)
            self._derive(job)
        else:
            self._advances.put(advance)

    def _park(self, job: Job, reason: str) -> None:
        self._under_way.discard(job)
        self.parked[job.id] = reason
        _log.error("the timetable of job %d stands still: %s", job.id, reason)
        self._instruments.timetable_parked(job.id, len(self.parked))

    def _still_there(self, advance: Advance) -> bool:
        job = self._state.job(advance.job)
        return job is not None and not job.timetable_ended and job.planned_ms == advance.after_ms

    def _settled(self, advances: Sequence[Advance], verdicts: Sequence[object]) -> None:
        for advance, moved in zip(advances, verdicts, strict=True):
            job = self._state.job(advance.job)
            if job is not None and not moved and self._still_there(advance):
                self._park(job, f"the step to {advance.planned_ms} was refused")

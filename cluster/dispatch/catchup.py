"""How a recurring job's timetable moves on: which times get a run, and what becomes of the others.

A timetable moves when its planned occurrence is due. Mostly that is at once, and the step
makes the following occurrence. After an outage, all that came due meanwhile has to be dealt
with:

- what is no later than the grace gets a run each, if nothing is later than that: a change of
  leader neither loses nor folds a time;
- else the catch-up rule decides about all of it, the planned occurrence too, unless that was
  leased: `none` runs nothing, `one` the last time for all, `all` the newest `catch_up_limit`,
  oldest first. What lies further back than the catch-up window is not run in any case.

Runs of the past have to fit into the cluster's budget; a timetable waits for it where it
stands. Times that fell into a pause are skipped before anything else.

Every time is shifted by the job's jitter: what is said here of the present is said of the
present less that offset, so that all instants are nominal times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from timeball.cluster.dispatch.backlog import Counted, Walked
from timeball.cluster.dispatch.timetable import Walk, first_after, is_simple, walk, walk_far
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.operations import Advance, Fate
from timeball.cluster.state.records import (
    Execution,
    ExecutionState,
    FateKind,
    Job,
    Origin,
    Recurrence,
    origin_of,
)

PAUSED: Final = "paused"
"""Skipped: it fell into a pause."""
CATCH_UP: Final = "catch_up"
"""Missed, since the rule is `none`; or coalesced into the one run that stands for all."""
LIMIT: Final = "limit"
"""Missed: more were, and the newest `catch_up_limit` are caught up."""
WINDOW: Final = "window"
"""Missed: longer ago than `catch_up_window_ms`."""

WALKED: Final = 1_000
"""Of a timetable whose times cannot be counted without looking at each, a step deals with so
many; and at most so many of them are caught up."""

_MOST_AT_ONCE: Final = 4 * WALKED
_UNBOUNDED: Final = 1 << 60


def plan(job: Job, now_ms: int, *, grace_ms: int, limit: int, room: int) -> Advance | None:
    """The next step of a timetable; None while its time has not come, or `room` is too little.

    A step makes at most `limit` occurrences, and at most `room` runs of the past. A job that
    is still behind afterwards goes on with the next step. Work is bounded by `limit` and
    `WALKED`, not by how much was missed. Raises `TimetableError`.
    """
    recurrence = job.recurrence
    if recurrence is None or not recurrence.moves:
        return None
    present_ms = now_ms - jitter_offset(job.id, recurrence.timetable.jitter_ms)
    at_ms = recurrence.planned_ms
    if at_ms > present_ms:
        return None
    step = _Step(job, recurrence, present_ms, limit)
    old_ms = present_ms - grace_ms
    pending = undecided_occurrence(job) is not None
    if pending and at_ms < old_ms:
        return step.by_rule(old_ms, room, pending=True)
    if step.left() <= 0:
        return step.end()
    if at_ms < recurrence.skip_to_ms:
        skipped = step.skip()
        if skipped is not None:
            return skipped
    following_ms = first_after(recurrence.timetable, at_ms)
    if following_ms is None:
        return step.end()
    if following_ms < old_ms:
        return step.by_rule(old_ms, room, pending=pending)
    return step.each(following_ms)


def undecided_occurrence(job: Job) -> Execution | None:
    """The planned occurrence of a job, if the catch-up rule may still decide about it.

    Not so once it was leased, nor if it came due before a pause.
    """
    recurrence, executions = job.recurrence, job.executions
    if recurrence is None or not recurrence.moves or type(executions) is Execution:
        return None
    assert isinstance(executions, dict)
    planned = executions.get(recurrence.planned_ms)
    if (
        planned is None
        or planned.state is not ExecutionState.SCHEDULED
        or planned.token
        or planned.nominal_ms <= recurrence.skip_to_ms
        or origin_of(planned) is not Origin.TIMETABLE
    ):
        return None
    return planned


def is_undecided(execution: Execution, now_ms: int, grace_ms: int) -> bool:
    """Whether an occurrence has to wait until the catch-up rule has decided about it."""
    job = execution.job
    recurrence = job.recurrence
    return (
        recurrence is not None
        and execution.nominal_ms == recurrence.planned_ms
        and job.moves_at_ms < now_ms - grace_ms
        and undecided_occurrence(job) is execution
    )


def weight(job: Job, now_ms: int, grace_ms: int) -> int:
    """About how long planning the job's next step takes, in units of some thirty microseconds."""
    timetable = job.timetable
    assert timetable is not None
    parts = len(timetable.rules) + len(timetable.exclusions)
    if job.moves_at_ms >= now_ms - grace_ms:
        return parts
    return 30 if is_simple(timetable) else 100 + parts


class _Decision(NamedTuple):
    """What the catch-up rule makes of the times that it covers."""

    cut_ms: int
    """Times up to this have no run."""
    fates: list[Fate]
    pending: Fate | None
    """The fate of the planned occurrence, if that has no run either."""
    whole: bool
    """Whether it says so of all times up to the present; else the next step goes on."""


class _Made(NamedTuple):
    """Which occurrences a step makes, and where the timetable stands then."""

    nominals: Sequence[int]
    planned_ms: int
    ended: bool = False


class _Step:
    """One step of a timetable that stands at `_at_ms`, of which `_present_ms` is the present."""

    def __init__(self, job: Job, recurrence: Recurrence, present_ms: int, limit: int) -> None:
        self._job = job
        self._recurrence = recurrence
        self._timetable = recurrence.timetable
        self._at_ms = recurrence.planned_ms
        self._present_ms = present_ms
        self._limit = limit

    def left(self) -> int:
        """How many occurrences the timetable may still make."""
        most = self._timetable.max_runs
        return most - self._recurrence.made if most else _UNBOUNDED

    def end(self) -> Advance:
        """The planned occurrence was the last."""
        return self._advance(_Made((), self._at_ms, ended=True))

    def skip(self) -> Advance | None:
        """Leave out what fell into a pause; None if nothing did."""
        timetable, at_ms, to_ms = self._timetable, self._at_ms, self._recurrence.skip_to_ms
        if is_simple(timetable):
            fate = Counted(timetable, at_ms, to_ms).fate(at_ms, to_ms, FateKind.SKIPPED, PAUSED)
        else:
            walked = walk(timetable, at_ms, to_ms, WALKED)
            fate = Walked(at_ms, walked).fate(at_ms, to_ms, FateKind.SKIPPED, PAUSED)
        return None if fate is None else self._advance(_Made((), fate.last_ms), [fate])

    def each(self, following_ms: int) -> Advance:
        """A run for each time up to the present, and the next one ahead."""
        if following_ms > self._present_ms:
            return self._advance(_Made((following_ms,), following_ms))
        made = self._make(self._at_ms, self._at_ms, self.left(), _UNBOUNDED)
        return self._advance(made)

    def by_rule(self, old_ms: int, room: int, *, pending: bool) -> Advance | None:
        """What the catch-up rule has run and left out; None if there is no room for it.

        `old_ms` is where the grace begins; `pending`: the rule is to decide about the planned
        occurrence too.
        """
        decision = self._decide(old_ms, pending=pending)
        fates, withdrawn = decision.fates, decision.pending
        if not decision.whole:
            return self._advance(_Made((), decision.cut_ms), fates, withdrawn)
        kept = 1 if pending and withdrawn is None else 0
        if room < kept:
            return None
        left = self.left() + (withdrawn is not None)
        stand_ms = max([self._at_ms, *(fate.last_ms for fate in fates)])
        made = self._make(decision.cut_ms, stand_ms, left, room - kept)
        if not made.ended and (made.planned_ms <= self._at_ms or not (made.nominals or kept)):
            return None
        past = sum(1 for nominal_ms in made.nominals if nominal_ms <= self._present_ms)
        return self._advance(made, fates, withdrawn, kept + past)

    def _decide(self, old_ms: int, *, pending: bool) -> _Decision:
        """Which times up to the present have no run, and why."""
        timetable, at_ms, present_ms = self._timetable, self._at_ms, self._present_ms
        rule = timetable.catch_up
        keep = {"none": 0, "one": 1}.get(rule, timetable.catch_up_limit)
        since_ms = at_ms  # what is earlier is not caught up
        if keep and timetable.catch_up_window_ms:
            since_ms = max(at_ms, present_ms - timetable.catch_up_window_ms)
        times: Counted | Walked
        whole = True
        if is_simple(timetable):
            times = Counted(timetable, at_ms, present_ms)
        else:
            keep = min(keep, WALKED)
            old, reached_ms = walk_far(timetable, at_ms, old_ms - 1, WALKED + keep + 1)
            if reached_ms >= old_ms - 1:
                old = walk(timetable, at_ms, present_ms, _MOST_AT_ONCE)
            elif len(old) > keep:
                # The first are sure to be beyond what is kept, and the others are old enough
                # for the rule to go on with the next step.
                old, whole = old[: min(len(old) - keep, WALKED)], False
            # Else it is so dear to walk that each that was found is kept: none is lost.
            times = Walked(at_ms, old)
        cut_ms = max(times.cut(keep), since_ms - 1, at_ms) if whole else times.cut(0)
        out_ms = max(min(since_ms - 1, cut_ms), at_ms)
        kind = FateKind.COALESCED if rule == "one" else FateKind.MISSED
        reason = LIMIT if rule == "all" else CATCH_UP
        fates = (
            times.fate(at_ms, out_ms, FateKind.MISSED, WINDOW),
            times.fate(out_ms, cut_ms, kind, reason),
        )
        fate: Fate | None = None
        if pending and at_ms < since_ms:
            fate = Fate(at_ms, at_ms, 1, FateKind.MISSED, WINDOW)
        elif pending and not (whole and times.count < keep):
            fate = Fate(at_ms, at_ms, 1, kind, reason)
        return _Decision(cut_ms, [one for one in fates if one is not None], fate, whole)

    def _make(self, after_ms: int, stand_ms: int, left: int, room: int) -> _Made:
        """An occurrence for each time after an instant, up to the present, and the next one.

        As far as the timetable has any `left`, and there is `room` for what is past. Where it
        makes none, the timetable stands at `stand_ms`, or has ended.
        """
        most = min(self._limit, left, room)
        present_ms = self._present_ms
        late, reached_ms = Walk([], present_ms)
        if left > 0:
            late, reached_ms = walk_far(self._timetable, after_ms, present_ms, most + 1)
        nominals = late[:most]
        if len(late) <= most and reached_ms < present_ms:
            return _Made(nominals, reached_ms)  # where nothing pends: that time is excluded
        following_ms: int | None = None
        if left > len(nominals):
            if len(late) > most:
                following_ms = late[most]
            else:
                following_ms = first_after(self._timetable, present_ms)
                if following_ms is not None and len(nominals) < self._limit:
                    return _Made((*nominals, following_ms), following_ms)
        if not nominals and following_ms is None:
            return _Made((), stand_ms, ended=True)
        # What is made is decided: the timetable stands a moment after it, where nothing pends.
        stand_ms = nominals[-1] if nominals else stand_ms
        return _Made(nominals, stand_ms if following_ms == stand_ms + 1 else stand_ms + 1)

    def _advance(
        self,
        made: _Made,
        fates: Sequence[Fate] = (),
        pending: Fate | None = None,
        caught_up: int = 0,
    ) -> Advance:
        job = self._job
        return Advance(
            job.id,
            job.version,
            self._at_ms,
            made.nominals,
            made.planned_ms,
            fates,
            pending,
            caught_up,
            made.ended,
        )

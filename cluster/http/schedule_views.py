"""Timetables of the log as schedules on the wire, with every default, and the times to come."""

from __future__ import annotations

from datetime import date
from typing import Any, cast

from timeball.client import messages
from timeball.cluster.dispatch.timetable import TimetableError, next_fires
from timeball.cluster.http.instants import render_instant, render_optional
from timeball.cluster.state import operations
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.records import Job, JobState, Recurrence

NEXT_FIRES = 5
"""How many instants of a timetable a view shows ahead."""


def show_timetable(timetable: operations.Timetable) -> messages.Timetable:
    """The schedule that is read as this timetable; a single rule stands for itself."""
    recurring: dict[str, Any] = {
        "start": render_optional(timetable.start_ms),
        "until": render_optional(timetable.until_ms),
        "max_runs": timetable.max_runs or None,
        "jitter_ms": timetable.jitter_ms,
        "exclude": [_show_exclusion(exclusion) for exclusion in timetable.exclusions],
        "catch_up": cast(messages.CatchUp, timetable.catch_up),
        "catch_up_window_ms": timetable.catch_up_window_ms or None,
        "catch_up_limit": timetable.catch_up_limit,
        "overlap": cast(messages.Overlap, timetable.overlap),
        "pause_on_failure": timetable.pause_on_failure,
    }
    match timetable.rules:
        case (operations.Every(interval_ms, anchor_ms),):
            anchor = render_instant(anchor_ms)
            return messages.Every(interval_ms=interval_ms, anchor=anchor, **recurring)
        case (operations.Cron(expression, time_zone),):
            return messages.Cron(expression=expression, time_zone=time_zone, **recurring)
        case rules:
            return messages.Union(schedules=[_show_rule(rule) for rule in rules], **recurring)


def _show_rule(
    rule: operations.Every | operations.Cron | operations.At,
) -> messages.EveryRule | messages.CronRule | messages.AtRule:
    match rule:
        case operations.Every(interval_ms, anchor_ms):
            return messages.EveryRule(interval_ms=interval_ms, anchor=render_instant(anchor_ms))
        case operations.Cron(expression, time_zone):
            return messages.CronRule(expression=expression, time_zone=time_zone)
        case operations.At(times_ms):
            return messages.AtRule(times=[render_instant(time_ms) for time_ms in times_ms])


def _show_exclusion(
    exclusion: operations.Dates | operations.Window,
) -> messages.DatesExcluded | messages.WindowExcluded:
    match exclusion:
        case operations.Dates(days, time_zone):
            shown = [_show_days(first, last) for first, last in days]
            return messages.DatesExcluded(dates=shown, time_zone=time_zone)
        case operations.Window(expression, time_zone):
            return messages.WindowExcluded(expression=expression, time_zone=time_zone)


def _show_days(first: int, last: int) -> str:
    day = date.fromordinal(first).isoformat()
    return day if last == first else f"{day}/{date.fromordinal(last).isoformat()}"


def show_first_fires(timetable: operations.Timetable, first_ms: int) -> list[str]:
    """The nominal times of a new timetable, from the first on."""
    count = min(NEXT_FIRES, timetable.max_runs or NEXT_FIRES)
    return _show_next(timetable, first_ms - 1, count)


def show_fires(job: Job, now_ms: int, count: int = NEXT_FIRES) -> list[str]:
    """The nominal times of a recurring job to come: none while it stands still.

    A `count` of 0 asks for what is planned already, which costs nothing.
    """
    recurrence = job.recurrence
    if recurrence is None or job.state is not JobState.ACTIVE or not recurrence.moves:
        return []
    after_ms, coming = to_come(job, recurrence, now_ms, count)
    if count:
        return _show_next(recurrence.timetable, after_ms, coming)
    planned_ms = recurrence.planned_ms
    return [render_instant(planned_ms)] if planned_ms > after_ms else []


def to_come(job: Job, recurrence: Recurrence, now_ms: int, count: int) -> tuple[int, int]:
    """After which nominal time what is not due yet begins, and how many of `count` may be made.

    Jitter shifts the whole timetable: what is due after now is nominally later than so long ago,
    and later than the job's creation.
    """
    timetable, planned_ms = recurrence.timetable, recurrence.planned_ms
    after_ms = now_ms - jitter_offset(job.id, timetable.jitter_ms)
    after_ms = max(after_ms, min(job.created_ms, planned_ms - 1))
    if timetable.max_runs:
        pending = planned_ms > after_ms
        count = min(count, max(timetable.max_runs - recurrence.made, 0) + pending)
    return after_ms, count


def _show_next(timetable: operations.Timetable, after_ms: int, count: int) -> list[str]:
    """The next times; none where the zones of this node's release cannot tell."""
    try:
        return [render_instant(fire_ms) for fire_ms in next_fires(timetable, after_ms, count)]
    except TimetableError:
        return []

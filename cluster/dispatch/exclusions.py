"""What takes times out of a timetable: whole days of a calendar, and windows of the wall clock.

An exclusion answers for a stretch of time at once: whether it covers an instant, and until
when that stays so. What it covers is thus left in one leap, not time by time.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

from timeball.cluster.dispatch import cron
from timeball.cluster.dispatch.errors import TimetableError
from timeball.cluster.dispatch.zones import zone
from timeball.cluster.state.operations import Dates, Window

MOST_DATES: Final = 366
"""How many ranges of days one exclusion may have."""

_DAY_S: Final = 86_400
_FIRST_DAY: Final = cron.EPOCH
_LAST_DAY: Final = cron.EPOCH + 2_932_896
"""9999-12-31, the last day of the calendar."""
_FOREVER_WALL: Final = (_LAST_DAY + 1 - cron.EPOCH) * _DAY_S


class Look(NamedTuple):
    """Whether an exclusion covers an instant, and before which second that does not change."""

    covers: bool
    until_s: int


def validate_exclusion(exclusion: Dates | Window) -> None:
    """Check an exclusion; raises `TimetableError` naming the first field that is wrong."""
    zone(exclusion.time_zone)
    if isinstance(exclusion, Window):
        if cron.parse(exclusion.expression, window=True).first_not_from(0) is None:
            raise TimetableError("expression", "excludes everything; no time would be left")
        return
    if not 1 <= len(exclusion.days) <= MOST_DATES:
        raise TimetableError("dates", f"expected 1 to {MOST_DATES} dates or ranges of dates")
    before = _FIRST_DAY - 1
    for position, (first, last) in enumerate(exclusion.days):
        field = f"dates[{position}]"
        if not (_FIRST_DAY <= first <= _LAST_DAY and last <= _LAST_DAY):
            raise TimetableError(field, "expected dates from 1970-01-01 to 9999-12-31")
        if last < first:
            raise TimetableError(field, "expected a last date not before the first")
        if first <= before:
            raise TimetableError(field, "expected dates in order, none of them twice")
        before = last


def look(exclusion: Dates | Window, instant_s: int) -> Look:
    """Whether the exclusion covers an instant (epoch seconds), and until when."""
    stretch = zone(exclusion.time_zone).stretch(instant_s)
    wall = instant_s + stretch.offset_s
    if isinstance(exclusion, Window):
        covers, until = _window(exclusion, wall)
    else:
        covers, until = _dates(exclusion, wall)
    return Look(covers, stretch.until(instant_s, until))


def _dates(dates: Dates, wall_s: int) -> tuple[bool, int]:
    """Whether the date of a wall time is excluded, and before which wall time that stays so."""
    day = wall_s // _DAY_S + cron.EPOCH
    position = bisect_right(dates.days, (day, _LAST_DAY))
    if position and day <= dates.days[position - 1][1]:
        return True, (dates.days[position - 1][1] + 1 - cron.EPOCH) * _DAY_S
    if position == len(dates.days):
        return False, _FOREVER_WALL
    return False, (dates.days[position][0] - cron.EPOCH) * _DAY_S


def _window(window: Window, wall_s: int) -> tuple[bool, int]:
    expression = cron.parse(window.expression, window=True)
    following = expression.first_from(wall_s)
    if following != wall_s:
        return False, _FOREVER_WALL if following is None else following
    end = expression.first_not_from(wall_s)
    return True, _FOREVER_WALL if end is None else end

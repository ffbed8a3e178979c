"""Which days a cron expression names, by its day of month, its month and its day of week.

The days of a month follow from its length and the weekday of its first day alone. There
are 28 such shapes, each is worked out once, and every one that a month can have comes
round within 40 years: what can match at all is found by looking at shapes, not by a search.

A `day` counts from 1970-01-01; a day *in* a month counts from 1. Sunday is weekday 0.
"""

from __future__ import annotations

import calendar
import datetime
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

LAST_YEAR: Final = 9990
"""No search looks further, so that no date on the way leaves the calendar of `datetime`."""

EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = datetime.date.min.toordinal() - EPOCH
_LAST_DAY: Final = datetime.date(LAST_YEAR, 12, 31).toordinal() - EPOCH
_LENGTHS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAP: Final = 29


class Month(NamedTuple):
    """The shape of a month: how many days, and on which weekday it begins."""

    length: int
    first: int

    def weekday(self, day: int) -> int:
        return (self.first + day - 1) % 7

    def workday_nearest(self, day: int) -> int:
        """The day from Monday to Friday that is nearest to `day` within the month."""
        weekday = self.weekday(day)
        if weekday == 6:
            return day - 1 if day > 1 else day + 2
        if weekday == 0:
            return day + 1 if day < self.length else day - 2
        return day


class DaysOfMonth(NamedTuple):
    """A day-of-month field; a day that a month lacks is not moved to another."""

    numbers: frozenset[int] = frozenset()
    before_last: frozenset[int] = frozenset()
    """n of `L-n`; 0 is `L`."""
    nearest: frozenset[int] = frozenset()
    """n of `nW`."""
    last_workday: bool = False
    """`LW`."""

    def of(self, month: Month) -> set[int]:
        days = {day for day in self.numbers if day <= month.length}
        days.update(month.length - n for n in self.before_last if n < month.length)
        days.update(month.workday_nearest(day) for day in self.nearest if day <= month.length)
        if self.last_workday:
            days.add(month.workday_nearest(month.length))
        return days


class DaysOfWeek(NamedTuple):
    """A day-of-week field."""

    numbers: frozenset[int] = frozenset()
    nth: frozenset[tuple[int, int]] = frozenset()
    """(n, k) of `n#k`."""
    last: frozenset[int] = frozenset()
    """n of `nL`."""

    def of(self, month: Month) -> set[int]:
        return {day for day in range(1, month.length + 1) if self._has(month, day)}

    def _has(self, month: Month, day: int) -> bool:
        weekday = month.weekday(day)
        return (
            weekday in self.numbers
            or (weekday, (day + 6) // 7) in self.nth
            or (weekday in self.last and day + 7 > month.length)
        )


class CronDays:
    """The days of an expression: those of `months` that are in both fields, or in either.

    Every method answers for the days from 0001-01-01 to the end of `LAST_YEAR`.
    """

    __slots__ = ("_both", "_known", "_months", "_of_month", "_of_week")

    def __init__(
        self, months: tuple[int, ...], of_month: DaysOfMonth, of_week: DaysOfWeek, *, both: bool
    ) -> None:
        self._months: Final = months
        self._of_month: Final = of_month
        self._of_week: Final = of_week
        self._both: Final = both
        self._known: Final[dict[tuple[int, int], tuple[int, ...]]] = {}

    def is_empty(self) -> bool:
        """Whether no year has such a day."""
        return not any(self._shaped(*shape) for shape in self._shapes())

    def is_every_day(self) -> bool:
        """Whether every year has such days only."""
        return len(self._months) == 12 and all(
            len(self._shaped(*shape)) == shape[0] for shape in self._shapes()
        )

    def includes(self, day: int) -> bool:
        if not _FIRST_DAY <= day <= _LAST_DAY:
            return False
        date = datetime.date.fromordinal(day + EPOCH)
        return date.month in self._months and date.day in self._of(date.year, date.month)[1]

    def days_from(self, day: int) -> Iterator[int]:
        """The days at or after `day`, in order."""
        for eve, days in self._months_from(day):
            if eve < day:
                days = days[bisect_left(days, day - eve) :]
            for day_in_month in days:
                yield eve + day_in_month

    def first_not_from(self, day: int) -> int | None:
        """The first day at or after `day` that is not one of these; None: every day is."""
        if self.is_every_day():
            return None
        expected = day
        for found in self.days_from(day):
            if found != expected:
                break
            expected += 1
        return expected if expected <= _LAST_DAY else None

    def count(self, from_day: int, to_day: int) -> int:
        """How many in `from_day` <= day < `to_day`. Costs a step a month in between."""
        total = 0
        for eve, days in self._months_from(from_day):
            if eve + 1 >= to_day:
                break
            total += bisect_left(days, to_day - eve) - bisect_left(days, from_day - eve)
        return total

    def _months_from(self, day: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Of each month named, from the one of `day` on: the day before it, and its days."""
        if day > _LAST_DAY:
            return
        date = datetime.date.fromordinal(max(day, _FIRST_DAY) + EPOCH)
        for month in self._months[bisect_left(self._months, date.month) :]:
            yield self._of(date.year, month)
        for year in range(date.year + 1, LAST_YEAR + 1):
            for month in self._months:
                yield self._of(year, month)

    def _of(self, year: int, month: int) -> tuple[int, tuple[int, ...]]:
        first = datetime.date(year, month, 1).toordinal()
        length = _LEAP if month == 2 and calendar.isleap(year) else _LENGTHS[month]
        # 0001-01-01, the first ordinal, is a Monday.
        return first - 1 - EPOCH, self._shaped(length, first % 7)

    def _shapes(self) -> Iterator[tuple[int, int]]:
        """(length, weekday of the first) of all months named, of all years."""
        lengths = {_LENGTHS[month] for month in self._months}
        if 2 in self._months:
            lengths.add(_LEAP)
        return ((length, first) for length in sorted(lengths) for first in range(7))

    def _shaped(self, length: int, first: int) -> tuple[int, ...]:
        days = self._known.get((length, first))
        if days is None:
            month = Month(length, first)
            of_month, of_week = self._of_month.of(month), self._of_week.of(month)
            named = of_month & of_week if self._both else of_month | of_week
            days = self._known[length, first] = _shared(tuple(sorted(named)))
        return days


@lru_cache(maxsize=1024)
def _shared(days: tuple[int, ...]) -> tuple[int, ...]:
    """One object for equal days: most expressions name all of them, or one."""
    return days

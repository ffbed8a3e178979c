"""Cron expressions: the set of seconds on the wall that five fields, or six, or a name stand for.

Fields, separated by blanks: minute, hour, day of month, month, day of week; or six of them,
with the seconds *first* (the second is 0 where it is not said). Each is a list of items,
separated by commas, without blanks; letters may be of either case:

=============  ==================  =======================================================
item           where               meaning
=============  ==================  =======================================================
``*``          everywhere          every value
``n``          everywhere          that value; ``jan``-``dec`` and ``sun``-``sat`` are
                                   values, Sunday is 0 and 7
``a-b``        everywhere          from a to b; never backwards
``*/n``        everywhere          every n-th value, from the lowest on; starts afresh in
                                   each minute, hour, day, month, year or week
``a/n``        everywhere          every n-th value from a to the highest
``a-b/n``      everywhere          every n-th value from a to b
``?``          both days, alone    ``*``
``L``          day of month        the month's last day
``L-n``        day of month        n days before it, n from 1 to 30
``nW``         day of month        the day from Monday to Friday that is nearest to day n
                                   within the month
``LW``         day of month        the month's last day from Monday to Friday
``nL``         day of week         the month's last such weekday: ``5L``, ``friL``
``n#k``        day of week         its k-th such weekday, k from 1 to 5: ``0#5``, ``fri#2``
=============  ==================  =======================================================

- *Day of month and day of week.* Where the text of either begins with ``*``, or is ``?``, a
  day must be in both; otherwise, in at least one of them. (Vixie cron's rule, which looks at
  the text: ``0 9 1-31 * 1`` is daily, ``0 9 * * 1`` and Quartz's ``0 9 ? * 1`` are Mondays.)
- *A day that a month lacks* is left out there, never moved: ``31``, ``31W``, ``L-30``, ``0#5``.
  What no month has, such as 30 February, is refused.
- *A step* that leaves no second value (``*/90`` as the minute) is refused.
- *Names of whole expressions:* ``@yearly`` and ``@annually`` are ``0 0 1 1 *``, ``@monthly``
  is ``0 0 1 * *``, ``@weekly`` ``0 0 * * 0``, ``@daily`` and ``@midnight`` ``0 0 * * *``,
  ``@hourly`` ``0 * * * *``. There is no ``@reboot`` and no ``@every``.
- *As a window* (``window=True``), five fields stand for the whole of each minute.

Times are whole seconds on the wall, counted as if it were UTC (see `zones`).
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Final

from timeball.cluster.dispatch.cron_days import EPOCH, LAST_YEAR, CronDays
from timeball.cluster.dispatch.cron_text import LONGEST_EXPRESSION, read, refuse

__all__ = ["EPOCH", "HORIZON_YEARS", "LAST_YEAR", "LONGEST_EXPRESSION", "CronExpression", "parse"]

HORIZON_YEARS: Final = 50
"""Longer than any expression is silent. The rarest date that a calendar offers, 29 February
on a given weekday across 2100, comes round within 40 years."""

_DAY_S: Final = 86_400
_END_S: Final = (datetime.date(LAST_YEAR + 1, 1, 1).toordinal() - EPOCH) * _DAY_S


class CronExpression:
    """A parsed expression: the set of wall-clock seconds that it names, up to `LAST_YEAR`.

    `follows_clock` tells a wildcard expression, one whose second, minute or hour begins
    with `*`: it means "whenever the clock shows this", while the others mean fixed times
    of day, which are neither dropped nor repeated when the clocks change.
    """

    __slots__ = ("_days", "_times", "follows_clock")

    def __init__(self, text: str, *, window: bool = False) -> None:
        """Parse; raises `TimetableError` naming the field of the expression."""
        said = read(text, second="*" if window else "0")
        self.follows_clock: Final = said.follows_clock
        self._times: Final = _Times(said.hours, said.minutes, said.seconds)
        self._days: Final = CronDays(
            said.months, said.days_of_month, said.days_of_week, both=said.both_days
        )
        if self._days.is_empty():
            raise refuse(
                "day of month: never matches: no month named has such a day"
                + (" that is also a day of week named" if said.both_days else "")
            )

    def includes(self, wall_s: int) -> bool:
        """Whether this second matches."""
        day, second = divmod(wall_s, _DAY_S)
        return self._times.includes(second) and self._days.includes(day)

    def matches(self, from_s: int, to_s: int) -> Iterator[int]:
        """The seconds in `from_s` <= t < `to_s` that match, in order.

        Far cheaper for a walk than asking `first_from` each time; each next one is found
        in bounded work, however rare.
        """
        first_day, first_second = divmod(from_s, _DAY_S)
        for day in self._days.days_from(first_day):
            midnight = day * _DAY_S
            for time in self._times.times_from(first_second if day == first_day else 0):
                if midnight + time >= to_s:
                    return
                yield midnight + time

    def first_from(self, wall_s: int) -> int | None:
        """The first second at or after `wall_s` that matches; None: not by `LAST_YEAR`."""
        day, second = divmod(wall_s, _DAY_S)
        time = self._times.first_from(second)
        if time is not None and self._days.includes(day):
            return day * _DAY_S + time
        following = next(self._days.days_from(day + 1), None)
        return None if following is None else following * _DAY_S + self._times.first

    def first_not_from(self, wall_s: int) -> int | None:
        """The first second at or after `wall_s` that does not match; None: not by `LAST_YEAR`.

        So it ends the run of matches that `wall_s` is in. Looks at 60 seconds at most, since
        it leaps by whole minutes, hours and days where all of their seconds match.
        """
        while self.includes(wall_s):
            if self._times.stride == _DAY_S:
                day = self._days.first_not_from(wall_s // _DAY_S)
                return None if day is None else day * _DAY_S
            wall_s += self._times.stride - wall_s % self._times.stride
        return wall_s if wall_s < _END_S else None

    def count(self, from_s: int, to_s: int) -> int:
        """How many seconds in `from_s` <= t < `to_s` match. Costs a step a month in between."""
        if from_s >= to_s:
            return 0
        first_day, first_second = divmod(from_s, _DAY_S)
        last_day, last_second = divmod(to_s, _DAY_S)
        total = self._days.count(first_day, last_day) * self._times.a_day
        if self._days.includes(first_day):
            total -= self._times.rank(first_second)
        if self._days.includes(last_day):
            total += self._times.rank(last_second)
        return total


class _Times:
    """The times of day of an expression: every combination of its hours, minutes, seconds.

    Their rank counts them from 0, in order.
    """

    __slots__ = ("_hours", "_masks", "_minutes", "_parts", "_seconds", "a_day", "first", "stride")

    def __init__(
        self, hours: tuple[int, ...], minutes: tuple[int, ...], seconds: tuple[int, ...]
    ) -> None:
        self._hours: Final = hours
        self._minutes: Final = minutes
        self._seconds: Final = seconds
        self._parts: Final = (
            tuple(hour * 3600 for hour in hours),
            tuple(minute * 60 for minute in minutes),
            seconds,
        )
        self._masks: Final = (_mask(hours), _mask(minutes), _mask(seconds))
        self.a_day: Final = len(hours) * len(minutes) * len(seconds)
        self.first: Final = self._at(0)
        self.stride: Final = _stride(len(hours), len(minutes), len(seconds))
        """The longest unit of time (seconds) that matches wholly where it matches at all."""

    def includes(self, second: int) -> bool:
        """Whether this second of the day is one of the times."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        hours, minutes, seconds = self._masks
        return bool(hours >> hour & minutes >> minute & seconds >> second & 1)

    def rank(self, second: int) -> int:
        """How many of the times are earlier than this second of the day."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        hours = bisect_left(self._hours, hour)
        rank = hours * len(self._minutes) * len(self._seconds)
        if hours < len(self._hours) and self._hours[hours] == hour:
            minutes = bisect_left(self._minutes, minute)
            rank += minutes * len(self._seconds)
            if minutes < len(self._minutes) and self._minutes[minutes] == minute:
                rank += bisect_left(self._seconds, second)
        return rank

    def first_from(self, second: int) -> int | None:
        """The first of the times at or after this second of the day."""
        rank = self.rank(second)
        return self._at(rank) if rank < self.a_day else None

    def times_from(self, second: int) -> Iterator[int]:
        """The times at or after this second of the day, in order."""
        if second == 0:
            return map(sum, product(*self._parts))
        return map(self._at, range(self.rank(second), self.a_day))

    def _at(self, rank: int) -> int:
        hours, minutes, seconds = self._parts
        rank, at_second = divmod(rank, len(seconds))
        at_hour, at_minute = divmod(rank, len(minutes))
        return hours[at_hour] + minutes[at_minute] + seconds[at_second]


def _mask(values: tuple[int, ...]) -> int:
    """The number whose binary digits at these places are 1."""
    return sum(1 << value for value in values)


def _stride(hours: int, minutes: int, seconds: int) -> int:
    if seconds < 60:
        return 1
    if minutes < 60:
        return 60
    return 3600 if hours < 24 else _DAY_S


@lru_cache(maxsize=8192)
def parse(expression: str, *, window: bool = False) -> CronExpression:
    """Parse an expression, once; raises `TimetableError`."""
    return CronExpression(expression, window=window)

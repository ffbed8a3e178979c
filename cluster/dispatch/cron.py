"""Cron expressions: five fields, or six with the seconds first, on naive wall-clock time.

The language is that of Vixie cron, read strictly: what another cron would take to mean
something else (wrapped ranges, steps that leave one value, `L W # ?`, nicknames) is
refused with a hint. Day of month and day of week combine as in Vixie cron: when the text
of either begins with `*`, both must match; otherwise one of them is enough.

Times are whole seconds on the wall (see `zones`).
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from functools import lru_cache
from typing import Final, NamedTuple

from timeball.cluster.dispatch.errors import TimetableError

LONGEST_EXPRESSION: Final = 256
HORIZON_YEARS: Final = 50
"""How far a search looks. The rarest date that a calendar offers, 29 February on a given
weekday across 2100, comes round within 40 years."""

LAST_YEAR: Final = 9990
"""No search looks further, so that no date on the way leaves the calendar of `datetime`."""

_DAY_S: Final = 86_400
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
_DAYS: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


# fmt: off
_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)
# fmt: on
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

_SECOND: Final = _Field("second", 0, 59)
_FIELDS: Final = (
    _SECOND,
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


def _refuse(detail: str) -> TimetableError:
    return TimetableError("expression", detail)


class CronExpression:
    """A parsed expression: the set of wall-clock seconds that it names.

    `follows_clock` tells a wildcard expression, one whose second, minute or hour begins
    with `*`: it means "whenever the clock shows this", while the others mean fixed times
    of day, which are neither dropped nor repeated when the clocks change.
    """

    __slots__ = ("_days", "_either_day", "_months", "_times", "_weekdays", "follows_clock")

    def __init__(self, text: str) -> None:
        """Parse; raises `TimetableError` naming the field of the expression."""
        if len(text) > LONGEST_EXPRESSION:
            raise _refuse(f"longer than {LONGEST_EXPRESSION} characters")
        if not text.isascii() or not text.replace("\t", " ").isprintable():
            raise _refuse("only printable ASCII characters are allowed")
        fields = text.split()
        if len(fields) not in (5, 6):
            raise _refuse(
                f"has {len(fields)} fields; expected five (minute hour day-of-month month "
                "day-of-week), or six with the seconds first"
            )
        if len(fields) == 5:
            fields.insert(0, "0")
        sets = [_parse_field(field, text) for field, text in zip(_FIELDS, fields, strict=True)]
        seconds, minutes, hours, self._days, self._months, weekdays = sets
        self._weekdays: Final = frozenset(day % 7 for day in weekdays)
        self._times: Final = _Times(sorted(hours), sorted(minutes), sorted(seconds))
        self.follows_clock: Final = any(field.startswith("*") for field in fields[:3])
        self._either_day: Final = not (fields[3].startswith("*") or fields[5].startswith("*"))
        if not self._either_day and not any(
            day <= _DAYS[month] for month in self._months for day in self._days
        ):
            raise _refuse("never matches: no month named has a day of month named")

    def first_from(self, wall_s: int) -> int | None:
        """The first second at or after `wall_s`; None within `HORIZON_YEARS`."""
        day, second = divmod(wall_s, _DAY_S)
        if second:
            time = self._times.first_from(second)
            if time is not None and self._matches(datetime.date.fromordinal(_EPOCH + day)):
                return day * _DAY_S + time
            day += 1
        date = datetime.date.fromordinal(_EPOCH + day)
        last_year = min(date.year + HORIZON_YEARS, LAST_YEAR)
        while date.year <= last_year:
            if date.month in self._months:
                month = date.month
                while date.month == month:
                    if self._matches(date):
                        return (date.toordinal() - _EPOCH) * _DAY_S + self._times.first
                    date += datetime.timedelta(1)
            else:
                year, month = divmod(date.year * 12 + date.month, 12)
                date = datetime.date(year, month + 1, 1)
        return None

    def count(self, from_s: int, to_s: int) -> int:
        """How many seconds in `from_s` <= t < `to_s` match. Costs a step a day in between."""
        if from_s >= to_s:
            return 0
        first_day, first_second = divmod(from_s, _DAY_S)
        last_day, last_second = divmod(to_s, _DAY_S)
        whole = 0
        for day in range(first_day, last_day + 1):
            if self._matches(datetime.date.fromordinal(_EPOCH + day)):
                begin = self._times.rank(first_second) if day == first_day else 0
                end = self._times.rank(last_second) if day == last_day else self._times.a_day
                whole += end - begin
        return whole

    def _matches(self, date: datetime.date) -> bool:
        if date.month not in self._months:
            return False
        by_day = date.day in self._days
        by_weekday = date.isoweekday() % 7 in self._weekdays
        return (by_day or by_weekday) if self._either_day else (by_day and by_weekday)


class _Times:
    """The times of day of an expression: every combination of its hours, minutes, seconds."""

    __slots__ = ("_hours", "_minutes", "_seconds", "a_day", "first")

    def __init__(self, hours: list[int], minutes: list[int], seconds: list[int]) -> None:
        self._hours: Final = hours
        self._minutes: Final = minutes
        self._seconds: Final = seconds
        self.a_day: Final = len(hours) * len(minutes) * len(seconds)
        self.first: Final = hours[0] * 3600 + minutes[0] * 60 + seconds[0]

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
        if rank == self.a_day:
            return None
        rank, at_second = divmod(rank, len(self._seconds))
        at_hour, at_minute = divmod(rank, len(self._minutes))
        return (
            self._hours[at_hour] * 3600 + self._minutes[at_minute] * 60 + self._seconds[at_second]
        )


@lru_cache(maxsize=8192)
def parse(expression: str) -> CronExpression:
    """Parse an expression, once; raises `TimetableError`."""
    return CronExpression(expression)


def _parse_field(field: _Field, text: str) -> frozenset[int]:
    values: set[int] = set()
    for item in text.split(","):
        values.update(_parse_item(field, item))
    return frozenset(values)


def _parse_item(field: _Field, item: str) -> range:
    if not item:
        raise _refuse(f"{field.name}: an empty item; write single commas between values")
    span, slash, step_text = item.partition("/")
    if span == "*":
        low, high = field.low, field.high
    else:
        first, dash, last = span.partition("-")
        low = _parse_value(field, first)
        high = _parse_value(field, last) if dash else (field.high if slash else low)
        if low > high:
            raise _refuse(
                f"{field.name}: the range {span} runs backwards; write it as two, "
                f"{first}-{field.high} and {field.low}-{last}"
            )
    if not slash:
        return range(low, high + 1)
    step = _parse_number(field, step_text)
    if not 1 <= step <= max(1, high - low):
        raise _refuse(
            f"{field.name}: the step of {item} leaves no second value; "
            f"it must be 1 to {max(1, high - low)}"
        )
    return range(low, high + 1, step)


def _parse_value(field: _Field, text: str) -> int:
    name = text.lower()
    if name in field.names:
        return field.names.index(name) + field.low
    value = _parse_number(field, text)
    if not field.low <= value <= field.high:
        raise _refuse(f"{field.name}: {value} is not within {field.low}-{field.high}")
    return value


def _parse_number(field: _Field, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 2):
        raise _refuse(
            f"{field.name}: {text[:20]!r} is not a number; the language is "
            "* */n a a-b a-b/n a/n and lists of them, with names of months and weekdays"
        )
    return int(text)

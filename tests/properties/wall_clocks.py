"""A timetable's fires by brute force: step through time, read the clocks, and look.

Nothing here is the product's. Each moment's wall time comes from `zoneinfo` (and the zone
data that the product ships); the text of an expression is read anew, value by value; and
the rules where clocks change are taken from their documentation, word for word:

- a *fixed* expression (second, minute and hour begin with no `*`) does not fire at a wall
  time that the clocks showed already within the last three hours;
- it fires where clocks have just leapt over a matching time, by three hours or less.
"""

from __future__ import annotations

import datetime
import random
from bisect import bisect_left
from calendar import monthrange
from functools import cache, lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

Wall = datetime.datetime
LONGEST_CHANGE_S = 3 * 3600
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@cache
def place(zone: str) -> ZoneInfo:
    # Not the host's data, which may be older than the data that the product ships.
    with resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data)


def offset_s(zone: str, at_s: int) -> int:
    offset = datetime.datetime.fromtimestamp(at_s, place(zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


@cache
def changes(zone: str, first_year: int, last_year: int) -> list[int]:
    """The instants at which a zone's offset changes, looked for day by day."""
    found = []
    at = int(datetime.datetime(first_year, 1, 1, tzinfo=datetime.UTC).timestamp())
    end = int(datetime.datetime(last_year + 1, 1, 1, tzinfo=datetime.UTC).timestamp())
    info, here = place(zone), datetime.datetime.fromtimestamp
    offset = here(at, info).utcoffset()
    while at < end:
        following = here(at + 86_400, info).utcoffset()
        if following != offset:
            found.append(_change(zone, at, at + 86_400))
        at, offset = at + 86_400, following
    return found


def _change(zone: str, before: int, after: int) -> int:
    was = offset_s(zone, before)
    return before + bisect_left(
        range(before, after), True, key=lambda moment: offset_s(zone, moment) != was
    )


class Clocks:
    """What the clocks of a zone show at every step from one instant to another."""

    def __init__(self, zone: str, first_s: int, last_s: int, step_s: int) -> None:
        self.instants = range(first_s, last_s, step_s)
        self.walls: list[Wall] = []
        self.shown_before: list[bool] = []
        self.skipped: list[list[Wall]] = []
        """Which wall times the clocks leapt over just before, by a step each."""
        step = datetime.timedelta(seconds=step_s)
        last_shown: dict[Wall, int] = {}
        info = place(zone)
        for at in self.instants:
            wall = datetime.datetime.fromtimestamp(at, info).replace(tzinfo=None)
            earlier = last_shown.get(wall)
            self.shown_before.append(earlier is not None and at - earlier <= LONGEST_CHANGE_S)
            leapt: list[Wall] = []
            if self.walls:
                missing = self.walls[-1] + step
                if missing < wall <= missing + datetime.timedelta(seconds=LONGEST_CHANGE_S):
                    while missing < wall:
                        leapt.append(missing)
                        missing += step
            self.skipped.append(leapt)
            self.walls.append(wall)
            last_shown[wall] = at


@lru_cache(maxsize=256)
def clocks(zone: str, first_s: int, last_s: int, step_s: int) -> Clocks:
    return Clocks(zone, first_s, last_s, step_s)


class Fields:
    """The text of an expression, read item by item."""

    def __init__(self, expression: str, unsaid_second: str = "0") -> None:
        fields = expression.lower().split()
        self.texts = fields if len(fields) == 6 else [unsaid_second, *fields]
        self.fixed = not any(text.startswith("*") for text in self.texts[:3])
        second, minute, hour, self.day, month, self.weekday = self.texts
        self.seconds = {value for value in range(60) if in_list(second, value, 0, 59)}
        self.minutes = {value for value in range(60) if in_list(minute, value, 0, 59)}
        self.hours = {value for value in range(24) if in_list(hour, value, 0, 23)}
        self.months = {value for value in range(1, 13) if in_list(month, value, 1, 12)}
        self.days: dict[datetime.date, bool] = {}

    def show(self, wall: Wall) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and self.on(wall.date())
        )

    def on(self, date: datetime.date) -> bool:
        known = self.days.get(date)
        if known is None:
            by_day = any(day_item(item, date) for item in self.day.split(","))
            by_weekday = any(weekday_item(item, date) for item in self.weekday.split(","))
            both = self.day[0] in "*?" or self.weekday[0] in "*?"
            known = (by_day and by_weekday) if both else (by_day or by_weekday)
            known = self.days[date] = known and date.month in self.months
        return known


def in_list(text: str, value: int, low: int, high: int) -> bool:
    return any(in_item(item, value, low, high) for item in text.split(","))


def in_item(text: str, value: int, low: int, high: int) -> bool:
    span, _, step = text.partition("/")
    if span not in "*?":
        first, dash, last = span.partition("-")
        low, high = int(first), int(last) if dash else (high if step else int(first))
    return value in range(low, high + 1, int(step or 1))


def day_item(item: str, date: datetime.date) -> bool:
    _, length = monthrange(date.year, date.month)
    if item == "lw":
        workdays = [n for n in range(1, length + 1) if date.replace(day=n).weekday() < 5]
        return date.day == workdays[-1]
    if item.startswith("l"):
        return date.day == length - int(item[2:] or 0)
    if item.endswith("w"):
        wanted = int(item[:-1])
        if wanted > length:
            return False
        workdays = [n for n in range(1, length + 1) if date.replace(day=n).weekday() < 5]
        return date.day == min(workdays, key=lambda n: abs(n - wanted))
    return in_item(item, date.day, 1, 31)


def weekday_item(item: str, date: datetime.date) -> bool:
    number = date.isoweekday() % 7
    if "#" in item:
        name, _, nth = item.partition("#")
        return number == _weekday(name) and (date.day - 1) // 7 + 1 == int(nth)
    if item.endswith("l"):
        _, length = monthrange(date.year, date.month)
        return number == _weekday(item[:-1]) and date.day + 7 > length
    for position, name in enumerate(WEEKDAYS):
        item = item.replace(name, str(position))
    return in_item(item, number, 0, 7) or (number == 0 and in_item(item, 7, 0, 7))


def _weekday(name: str) -> int:
    return WEEKDAYS.index(name) if name in WEEKDAYS else int(name) % 7


def cron_fires(expression: str, shown: Clocks) -> set[int]:
    """The instants (seconds) at which an expression fires while the clocks are looked at."""
    fields = Fields(expression)
    if not fields.fixed:
        return {
            at for at, wall in zip(shown.instants, shown.walls, strict=True) if fields.show(wall)
        }
    return {
        at
        for at, wall, again, skipped in zip(
            shown.instants, shown.walls, shown.shown_before, shown.skipped, strict=True
        )
        if (not again and fields.show(wall)) or any(fields.show(moment) for moment in skipped)
    }


def windowed(expression: str, shown: Clocks) -> set[int]:
    """The instants that a window covers."""
    fields = Fields(expression, unsaid_second="*")
    return {at for at, wall in zip(shown.instants, shown.walls, strict=True) if fields.show(wall)}


def on_dates(days: set[datetime.date], shown: Clocks) -> set[int]:
    """The instants on certain days of the calendar."""
    return {at for at, wall in zip(shown.instants, shown.walls, strict=True) if wall.date() in days}


class Author:
    """Writes expressions at random, of all that the language has."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def expression(self, *, seconds: bool = False, near: list[Wall] | None = None) -> str:
        """One that often matches near some wall times, which may be shown twice or never."""
        hours = sorted({wall.hour for wall in near}) if near else list(range(24))
        minutes = sorted({wall.minute for wall in near}) if near else list(range(60))
        fields = [self._field(0, 59, minutes), self._field(0, 23, hours), self._day(near), "*",
                  self._weekday()]  # fmt: skip
        if seconds:
            fields.insert(0, self._field(0, 59, [0, 30, 59]))
        if self._chance.random() < 0.15:
            fields[-2] = self._field(1, 12, [wall.month for wall in near] if near else [1])
        return " ".join(fields)

    def _field(self, low: int, high: int, likely: list[int]) -> str:
        chance = self._chance
        return ",".join(
            self._item(low, high, likely) for _ in range(chance.choice((1, 1, 1, 2, 3)))
        )

    def _item(self, low: int, high: int, likely: list[int]) -> str:
        chance = self._chance
        first = chance.choice(likely) if chance.random() < 0.7 else chance.randint(low, high)
        last = chance.randint(first, high)
        match chance.randrange(8):
            case 0:
                return "*"
            case 1:
                return f"*/{chance.randint(1, high - low)}"
            case 2:
                return f"{first}-{last}"
            case 3 if last > first:
                return f"{first}-{last}/{chance.randint(1, last - first)}"
            case 4 if first < high:
                return f"{first}/{chance.randint(1, high - first)}"
            case _:
                return str(first)

    def _day(self, near: list[Wall] | None) -> str:
        chance = self._chance
        if chance.random() < 0.6:
            return chance.choice("**?")
        likely = [wall.day for wall in near] if near else list(range(1, 29))
        special = ["L", "LW", f"L-{chance.randint(1, 27)}", f"{chance.choice(likely)}W"]
        return chance.choice([*special, self._field(1, 31, likely), self._field(1, 31, likely)])

    def _weekday(self) -> str:
        chance = self._chance
        if chance.random() < 0.6:
            return chance.choice("**?")
        day = chance.choice([*WEEKDAYS, *"01234567"])
        special = [day, f"{day}L", f"{day}#{chance.randint(1, 4)}", f"{day},{day}#2"]
        return chance.choice([*special, self._field(0, 6, [0, 6]), "1-5", "5-7", "mon-fri"])


def parts_near(zone: str, change: int) -> list[Wall]:
    """Wall times that matter where a zone changes: before, after, leapt over or repeated."""
    before, after = offset_s(zone, change - 1), offset_s(zone, change)
    return [
        datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=at)
        for offset in (before, after)
        for at in range(change + offset - 3600, change + offset + 3601, 900)
    ]

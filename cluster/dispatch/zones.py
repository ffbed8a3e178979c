"""Time zones as stretches of constant offset, from the time zone data that the product ships.

Names are those of one fixed list, the same on every host: never a path, an offset, a
host's own `localtime` or anything that depends on letter case. Times here are whole
seconds: `instant` counts UTC since the epoch, `wall` counts what the clocks on the wall
show, as if they were UTC.
"""

from __future__ import annotations

import datetime
from functools import lru_cache
from importlib import metadata, resources
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from timeball.cluster.dispatch.errors import TimetableError

_NOT_PLACES: Final = frozenset({"localtime", "posixrules", "Factory"})
_UTC: Final = datetime.timezone.utc  # noqa: UP017
_LONGEST_NAME: Final = 64

_FARTHEST_SHIFT_S: Final = 2 * 86_400
"""More than two clocks anywhere, or one clock at two times, can differ in offset from UTC."""

_SAMPLE_S: Final = 3 * 86_400
"""No zone of the data has changed its offset and back within six days since 1970."""


class Stretch(NamedTuple):
    """A stretch of instants, `start_s` <= t < `end_s`, with one offset from UTC.

    `before_s` is the offset in force before `start_s`; equal to `offset_s` when nothing
    changed there.
    """

    start_s: int
    end_s: int
    offset_s: int
    before_s: int

    def until(self, instant_s: int, wall_s: int) -> int:
        """Up to when, from `instant_s` within the stretch on, clocks surely show no `wall_s` yet.

        That is: times from the one at `instant_s` on and before `wall_s`. It leaps over
        the stretches in between, so that what is far off costs no walk through every change.
        """
        shown_s = wall_s - self.offset_s
        if shown_s <= self.end_s:
            return shown_s
        if self.end_s - instant_s < _FARTHEST_SHIFT_S:
            return self.end_s  # right after it, clocks may show again what they showed before
        return max(self.end_s, shown_s - _FARTHEST_SHIFT_S)


@lru_cache(maxsize=1)
def data_version() -> str:
    """Which time zone data this node has: nodes that have others may plan other instants."""
    return metadata.version("tzdata")


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The names accepted as time zones: those of the shipped data that name a place or UTC."""
    text = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii")
    return frozenset(
        name
        for name in text.split()
        if name not in _NOT_PLACES and not name.startswith(("posix/", "right/"))
    )


class Zone:
    """One time zone, read as stretches."""

    __slots__ = ("_changes", "_info", "_latest", "name")

    def __init__(self, name: str) -> None:
        """Load the zone; raises `TimetableError` for a name that is not on the list."""
        if name not in zone_names():
            raise TimetableError(
                "time_zone",
                f"{name[:_LONGEST_NAME]!r} is not a known IANA time zone name, "
                "such as 'Europe/Berlin' or 'UTC'",
            )
        self.name: Final = name
        with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
            self._info = ZoneInfo.from_file(data, key=name)
        self._changes: dict[int, list[tuple[int, int, int]]] = {}
        self._latest = Stretch(0, 0, 0, 0)
        """The stretch asked for last: the next question is most often about the same one."""

    def offset(self, instant_s: int) -> int:
        """Seconds to add to UTC to get wall time."""
        return _seconds(self._offset(instant_s))

    def stretch(self, instant_s: int) -> Stretch:
        """The stretch around an instant; cut to the years about it where it is longer."""
        if not self._latest.start_s <= instant_s < self._latest.end_s:
            self._latest = self._stretch(instant_s)
        return self._latest

    def _stretch(self, instant_s: int) -> Stretch:
        year = datetime.datetime.fromtimestamp(instant_s, _UTC).year
        changes = self._of_year(year - 1) + self._of_year(year) + self._of_year(year + 1)
        start, end = _year_start(year - 1), _year_start(year + 2)
        before = offset = self.offset(instant_s)
        for at, was, _ in changes:
            if at > instant_s:
                end = at
                break
            start, before = at, was
        return Stretch(start, end, offset, before)

    def _of_year(self, year: int) -> list[tuple[int, int, int]]:
        """The changes of one year: (first instant, offset before, offset from then on)."""
        found = self._changes.get(year)
        if found is None:
            found = self._find_changes(_year_start(year), _year_start(year + 1))
            if len(self._changes) >= 128:
                self._changes.clear()
            self._changes[year] = found
        return found

    def _find_changes(self, start: int, end: int) -> list[tuple[int, int, int]]:
        changes = []
        at, offset = start - 1, self._offset(start - 1)
        while at < end - 1:
            step = min(at + _SAMPLE_S, end - 1)
            then = self._offset(step)
            if then != offset:
                low, high = at, step  # the offset changes in (low, high]
                while high - low > 1:
                    middle = (low + high) // 2
                    if self._offset(middle) == offset:
                        low = middle
                    else:
                        high = middle
                changes.append((high, _seconds(offset), _seconds(then)))
            at, offset = step, then
        return changes

    def _offset(self, instant_s: int) -> datetime.timedelta | None:
        return datetime.datetime.fromtimestamp(instant_s, self._info).utcoffset()


def _seconds(offset: datetime.timedelta | None) -> int:
    assert offset is not None
    return offset.days * 86_400 + offset.seconds


@lru_cache(maxsize=1024)
def zone(name: str) -> Zone:
    """The zone of that name; raises `TimetableError` for a name that is not on the list."""
    return Zone(name)


def _year_start(year: int) -> int:
    return int(datetime.datetime(year, 1, 1, tzinfo=_UTC).timestamp())

"""Schedules on the wire to instants and timetables in the log.

The leader evaluates them when it proposes: what travels in the log are instants. A timetable is
put into one form, whatever way its author wrote it: instants as epoch milliseconds, rising and
each once; days as the fewest ranges; every time zone by name. `schedule_views` shows it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Final

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.dispatch.timetable import (
    LAST_INSTANT_MS,
    TimetableError,
    first_after,
    validate,
)
from timeball.cluster.http.instants import parse_instant
from timeball.cluster.state import operations

Rule = operations.Every | operations.Cron | operations.At
Exclusion = operations.Dates | operations.Window


class Plan:
    """When a job runs, in the terms of the log.

    `meaning` is what its author asked for, the same whenever the same request comes. A timetable
    has its first time at `first_ms`; `over` is why nothing is to come of it: that is negative then.
    """

    __slots__ = ("delay_ms", "first_ms", "meaning", "over", "timetable")

    def __init__(
        self,
        meaning: tuple[Any, ...],
        first_ms: int = 0,
        delay_ms: int = 0,
        timetable: operations.Timetable | None = None,
        over: InvalidRequest | None = None,
    ) -> None:
        self.meaning: Final = meaning
        self.first_ms: Final = first_ms
        self.delay_ms: Final = delay_ms
        self.timetable: Final = timetable
        self.over: Final = over

    def settled(self) -> Plan:
        """This plan, of which something is to come; raises what `over` says."""
        if self.over is not None:
            raise self.over
        return self


_AT_ONCE = Plan(("now",))
_NEVER_MS = -1
"""An instant that the state refuses."""
_DATES = re.compile(r"\A(\d{4}-\d\d-\d\d)(?:/(\d{4}-\d\d-\d\d))?\Z", re.ASCII)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_WIRE_NAMES = {
    "rules": "schedules",
    "exclusions": "exclude",
    "start_ms": "start",
    "until_ms": "until",
}
"""What parts of a timetable are called on the wire, where that differs."""


def read_schedule(
    schedule: messages.Schedule | None,
    prefix: str,
    now_ms: int,
    *,
    after_ms: int | None = None,
    former: operations.Timetable | None = None,
) -> Plan:
    """Evaluate a schedule at `now_ms`; a timetable needs a time later than `after_ms` (now).

    An interval without an anchor takes over that of its counterpart in the `former` timetable of
    the job, so that an edit does not push it away, and else begins now.

    Whether a timetable that is over is refused is left to the caller: a create may be the repeat
    of one that made its job in time, which only the log knows.

    Raises InvalidRequest naming the part of the field `schedule` after `prefix`.
    """
    if schedule is None:
        return _AT_ONCE
    match schedule:
        case messages.At():
            # 0 means "no instant" in the log; the first millisecond of 1970 is as long past.
            instant_ms = parse_instant(schedule.time, f"{prefix}schedule.time") or 1
            return Plan(("at", instant_ms), instant_ms)
        case messages.After(delay_ms):
            return Plan(("after", delay_ms), 0, delay_ms)
        case _:
            return _Reader(schedule, f"{prefix}schedule").plan(
                now_ms, now_ms if after_ms is None else after_ms, former
            )


class _Reader:
    """Reads one timetable that stands in `field`."""

    def __init__(self, schedule: messages.Timetable, field: str) -> None:
        self._schedule = schedule
        self._field = field

    def plan(self, now_ms: int, after_ms: int, former: operations.Timetable | None) -> Plan:
        asked = list(self._asked_rules())
        exclusions = tuple(self._exclusions())
        schedule = self._schedule
        bounds = (
            self._bound("start", schedule.start),
            self._bound("until", schedule.until),
            schedule.max_runs or 0,
            schedule.jitter_ms,
            exclusions,
            schedule.catch_up,
            schedule.catch_up_window_ms or 0,
            schedule.catch_up_limit,
            schedule.overlap,
            schedule.pause_on_failure,
        )
        timetable = operations.Timetable(_anchored(asked, now_ms, former), *bounds)
        first_ms = self._first(timetable, after_ms)
        meaning = ("timetable", asked, *bounds)
        if first_ms is not None:
            return Plan(meaning, first_ms, 0, timetable)
        field = f"{self._field}{self._limiting(timetable)}"
        over = InvalidRequest.at(field, "the schedule names no instant from now on")
        return Plan(meaning, _NEVER_MS, 0, timetable, over)

    # --- its parts ---------------------------------------------------------------------------

    def _asked_rules(self) -> Iterator[tuple[Any, ...]]:
        """Each rule as its kind and fields; an anchor that was not given is None."""
        match self._schedule:
            case messages.Union(schedules=rules):
                for place, rule in enumerate(rules):
                    yield self._asked_rule(rule, f"{self._field}.schedules[{place}]")
            case simple:
                yield self._asked_rule(simple, self._field)

    def _asked_rule(
        self,
        rule: messages.Every
        | messages.Cron
        | messages.EveryRule
        | messages.CronRule
        | messages.AtRule,
        field: str,
    ) -> tuple[Any, ...]:
        match rule:
            case messages.Every() | messages.EveryRule():
                anchor = rule.anchor
                anchor_ms = None if anchor is None else parse_instant(anchor, f"{field}.anchor")
                return "every", rule.interval_ms, anchor_ms
            case messages.Cron() | messages.CronRule():
                return "cron", rule.expression, rule.time_zone
            case messages.AtRule(times):
                instants = {
                    _read_time(time, f"{field}.times[{place}]") for place, time in enumerate(times)
                }
                return "at", tuple(sorted(instants))

    def _exclusions(self) -> Iterator[Exclusion]:
        usual = self._usual_zone()
        for place, exclusion in enumerate(self._schedule.exclude):
            time_zone = exclusion.time_zone or usual
            match exclusion:
                case messages.DatesExcluded(dates):
                    days = _read_dates(dates, f"{self._field}.exclude[{place}].dates")
                    yield operations.Dates(days, time_zone)
                case messages.WindowExcluded(expression):
                    yield operations.Window(expression, time_zone)

    def _usual_zone(self) -> str:
        schedule = self._schedule
        if isinstance(schedule, messages.Cron):
            return schedule.time_zone
        if isinstance(schedule, messages.Union):
            for rule in schedule.schedules:
                if isinstance(rule, messages.CronRule):
                    return rule.time_zone
        return "UTC"

    def _bound(self, name: str, value: str | int | None) -> int:
        return 0 if value is None else max(parse_instant(value, f"{self._field}.{name}"), 1)

    # --- what it names -----------------------------------------------------------------------

    def _first(self, timetable: operations.Timetable, after_ms: int) -> int | None:
        try:
            validate(timetable)
            return first_after(timetable, after_ms)
        except TimetableError as error:
            raise InvalidRequest.at(self._wire_field(error.field), error.detail) from error

    def _wire_field(self, field: str) -> str:
        """A path in terms of the timetable as its author wrote it."""
        name, bracket, rest = field.partition("[")
        if name == "schedule":
            return self._field
        if name == "rules" and not isinstance(self._schedule, messages.Union):
            return f"{self._field}{rest.partition(']')[2]}"
        return f"{self._field}.{_WIRE_NAMES.get(name, name)}{bracket}{rest}"

    def _limiting(self, timetable: operations.Timetable) -> str:
        """Which part most likely leaves no time: the narrowest that was given."""
        if timetable.until_ms:
            return ".until"
        if timetable.exclusions:
            return ".exclude"
        match self._schedule:
            case messages.Cron():
                return ".expression"
            case messages.Union():
                return ".schedules"
            case _:
                return ""


def _anchored(
    asked: Sequence[tuple[Any, ...]], now_ms: int, former: operations.Timetable | None
) -> tuple[Rule, ...]:
    """The rules; the n-th interval without an anchor takes that of the former n-th."""
    former_rules = former.rules if former else ()
    anchors = iter([rule.anchor_ms for rule in former_rules if isinstance(rule, operations.Every)])
    rules: list[Rule] = []
    for kind, *fields in asked:
        if kind == "every":
            interval_ms, anchor_ms = fields
            kept_ms = next(anchors, now_ms)
            rules.append(operations.Every(interval_ms, kept_ms if anchor_ms is None else anchor_ms))
        elif kind == "cron":
            rules.append(operations.Cron(*fields))
        else:
            rules.append(operations.At(*fields))
    return tuple(rules)


def _read_time(value: str | int, field: str) -> int:
    time_ms = parse_instant(value, field)
    if time_ms > LAST_INSTANT_MS:
        raise InvalidRequest.at(field, "timetables end with the year 9990")
    return time_ms


def _read_dates(texts: Sequence[str], field: str) -> tuple[tuple[int, int], ...]:
    """Days and ranges of days as the fewest ranges, rising."""
    ranges = sorted(_read_days(text, f"{field}[{place}]") for place, text in enumerate(texts))
    merged: list[tuple[int, int]] = []
    for first, last in ranges:
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _read_days(text: str, field: str) -> tuple[int, int]:
    expected = "expected a day, 2026-12-24, or a range of days, 2026-12-24/2026-12-26"
    found = _DATES.match(text)
    if found is None:
        raise InvalidRequest.at(field, f"{expected}, got {text!r}")
    try:
        first = date.fromisoformat(found[1]).toordinal()
        last = date.fromisoformat(found[2]).toordinal() if found[2] else first
    except ValueError as error:
        raise InvalidRequest.at(field, f"{text!r} is no day of the calendar") from error
    if first < _FIRST_DAY:
        raise InvalidRequest.at(field, "expected days from 1970 on")
    if last < first:
        raise InvalidRequest.at(field, f"the range {text!r} ends before it begins")
    return first, last

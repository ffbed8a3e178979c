"""A timetable explained: its next fires in local time, and why each is when it is.

Times that exclusions take away are listed between the fires, the first few of each run.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final, NamedTuple

from timeball.cluster.dispatch import cron, cron_times, rules
from timeball.cluster.dispatch.exclusions import look
from timeball.cluster.dispatch.timetable import LAST_INSTANT_MS, bounds, union_times, walk
from timeball.cluster.dispatch.zones import Stretch, Zone, zone
from timeball.cluster.state.operations import Cron, Dates, Timetable, Window

EXCLUDED_SHOWN: Final = 3
"""Excluded times listed between two fires."""
MADE_UP_SHOWN: Final = 3
"""Skipped times of day named where one fire makes up for them."""


class Fire(NamedTuple):
    """One nominal time of a timetable, explained."""

    nominal_ms: int
    local: str
    """ISO 8601, with the offset from UTC, on the clocks of `time_zone`."""
    time_zone: str
    due_ms: int
    """The nominal time and the job's jitter."""
    excluded: bool
    why: list[str]
    """What a reader may wonder about, a sentence each; empty for most."""


def explain_fires(
    timetable: Timetable, after_ms: int, count: int, offset_ms: int = 0
) -> list[Fire]:
    """The first `count` fires after `after_ms`, and excluded times between them, in order.

    `offset_ms` is the job's share of jitter. Raises as `timetable.first_after` does.
    """
    after_ms, to_ms = bounds(timetable, after_ms, LAST_INSTANT_MS)
    explained: list[Fire] = []
    latest_ms = after_ms
    fires = walk(timetable, after_ms, to_ms, count)
    for fire_ms in fires:
        explained += _excluded(timetable, latest_ms, fire_ms, offset_ms)
        before_ms = explained[-1].nominal_ms if explained else after_ms
        explained.append(_explain(timetable, fire_ms, before_ms, offset_ms))
        latest_ms = fire_ms
    if len(fires) < count:
        explained += _excluded(timetable, latest_ms, to_ms + 1, offset_ms)
    return explained


def _excluded(timetable: Timetable, after_ms: int, before_ms: int, offset_ms: int) -> list[Fire]:
    """The first times of those between two fires, or between one and the end."""
    if not timetable.exclusions:
        return []
    times = takewhile(lambda at_ms: at_ms < before_ms, union_times(timetable.rules, after_ms))
    shown: list[Fire] = []
    for at_ms in islice(times, EXCLUDED_SHOWN):
        fire = _explain(timetable, at_ms, shown[-1].nominal_ms if shown else after_ms, offset_ms)
        fire.why.extend(_exclusions_at(timetable, at_ms))
        shown.append(fire._replace(excluded=True))
    if next(times, None) is not None:
        shown[-1].why.append("further excluded times follow before the next fire")
    return shown


def _explain(timetable: Timetable, at_ms: int, before_ms: int, offset_ms: int) -> Fire:
    why: list[str] = []
    named = [
        position
        for position, rule in enumerate(timetable.rules)
        if rules.first_after(rule, at_ms - 1) == at_ms
    ]
    if len(timetable.rules) > 1:
        why.append("named by " + " and ".join(f"rules[{position}]" for position in named))
    time_zone = ""
    for position in named:
        rule = timetable.rules[position]
        if isinstance(rule, Cron):
            time_zone = time_zone or rule.time_zone
            why.extend(_clocks(rule, at_ms // 1000, before_ms // 1000))
    if offset_ms:
        why.append(f"jitter makes it due {offset_ms} ms later")
    time_zone = time_zone or "UTC"
    return Fire(
        nominal_ms=at_ms,
        local=_local(at_ms, zone(time_zone)),
        time_zone=time_zone,
        due_ms=at_ms + offset_ms,
        excluded=False,
        why=why,
    )


def _clocks(rule: Cron, at_s: int, before_s: int) -> Iterator[str]:
    """What the clocks of the rule's zone have to do with a fire; `before_s` is the one before."""
    expression, place = cron.parse(rule.expression), zone(rule.time_zone)
    stretch = place.stretch(at_s)
    if rule.time_zone.startswith(("Etc/GMT+", "Etc/GMT-")) and stretch.offset_s:
        offset = _offset(stretch.offset_s)
        yield f"{rule.time_zone} means UTC{offset}: such names count westwards"
    before = place.offset(max(before_s, 0))
    if before != stretch.offset_s:
        yield (
            f"clocks in {rule.time_zone} have gone from UTC{_offset(before)} "
            f"to UTC{_offset(stretch.offset_s)} since the time before"
        )
    if at_s == stretch.start_s and cron_times.makes_up(expression, stretch):
        yield _made_up(expression, stretch)
    wall = at_s + stretch.offset_s
    if cron_times.repeats(stretch) and wall < stretch.start_s + stretch.before_s:
        yield (
            f"clocks show {_clock(wall)} twice on this day; "
            "an expression that follows the clock fires both times, and this is the second"
        )
    following = place.stretch(stretch.end_s)
    if cron_times.repeats(following) and wall >= following.start_s + following.offset_s:
        yield f"clocks show {_clock(wall)} twice on this day; " + (
            "an expression that follows the clock fires both times, and this is the first"
            if expression.follows_clock
            else "a fixed time of day fires the first time only"
        )


def _made_up(expression: cron.CronExpression, stretch: Stretch) -> str:
    wall, end = stretch.start_s + stretch.before_s, stretch.start_s + stretch.offset_s
    skipped = [_clock(at) for at in islice(expression.matches(wall, end), MADE_UP_SHOWN + 1)]
    if len(skipped) > MADE_UP_SHOWN:
        skipped[MADE_UP_SHOWN] = "others"
    times = " and ".join(skipped)
    return (
        f"clocks go from {_clock(wall)} to {_clock(end)} here and never show {times}; "
        "what falls into the gap fires once, at the first instant after it"
    )


def _exclusions_at(timetable: Timetable, at_ms: int) -> Iterator[str]:
    for position, exclusion in enumerate(timetable.exclusions):
        if look(exclusion, at_ms // 1000).covers:
            local = _local(at_ms, zone(exclusion.time_zone))
            yield f"excluded by exclusions[{position}]: " + _covered(exclusion, local)


def _covered(exclusion: Dates | Window, local: str) -> str:
    if isinstance(exclusion, Window):
        return f"the window {exclusion.expression!r} in {exclusion.time_zone}, where it is {local}"
    return f"the date {local[:10]} in {exclusion.time_zone}"


def _local(at_ms: int, place: Zone) -> str:
    """What the clocks show, with milliseconds where there are any."""
    offset_s = place.offset(at_ms // 1000)
    wall = datetime.datetime.fromtimestamp(at_ms // 1000 + offset_s, _UTC).replace(tzinfo=None)
    fraction = f".{at_ms % 1000:03}" if at_ms % 1000 else ""
    return wall.isoformat() + fraction + _offset(offset_s)


def _offset(seconds: int) -> str:
    minutes, rest = divmod(abs(seconds), 60)
    sign = "-" if seconds < 0 else "+"
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}" + (f":{rest:02}" if rest else "")


def _clock(wall_s: int) -> str:
    minutes, second = divmod(wall_s % 86_400, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{second:02}" if second else "")


_UTC: Final = datetime.timezone.utc  # noqa: UP017

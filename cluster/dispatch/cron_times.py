"""A cron expression on the clocks of a zone: at which instants it fires, across their changes.

How an expression meets a change of the clocks is the rule of Debian's cron:

- an expression that follows the clock (second, minute or hour begins with `*`) fires
  whenever the wall clock shows a matching time: not in an hour that is skipped, twice in
  an hour that is repeated;
- the others name fixed times of day. What falls into a skipped hour fires at the first
  instant after it, several such times of one expression as ONE; in a repeated hour only
  the first copy counts;
- a change of more than three hours is a correction of the clock (a move of the date
  line): nothing is made up for.

Times are whole seconds: `instant` counts UTC, `wall` what the clocks show (see `zones`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Final

from timeball.cluster.dispatch.cron import HORIZON_YEARS, LAST_YEAR, CronExpression
from timeball.cluster.dispatch.zones import Stretch, Zone

LAST_INSTANT_S: Final = int(
    datetime.datetime(LAST_YEAR + 1, 1, 1, tzinfo=datetime.timezone.utc).timestamp() - 1  # noqa: UP017
)
"""No expression fires later."""

_HORIZON_S: Final = HORIZON_YEARS * 366 * 86_400
_LONGEST_CHANGE_S: Final = 3 * 3600


def first_from(expression: CronExpression, place: Zone, instant_s: int) -> int | None:
    """The first fire at or after an instant; None within the horizon of cron expressions.

    Costs a step for each date that the zone skips, not for each change of its clocks.
    """
    horizon = min(instant_s + _HORIZON_S, LAST_INSTANT_S + 1)
    while instant_s < horizon:
        stretch = place.stretch(instant_s)
        if instant_s == stretch.start_s and makes_up(expression, stretch):
            return instant_s
        wall = expression.first_from(wall_from(expression, stretch, instant_s))
        if wall is None:
            return None
        following = stretch.until(instant_s, wall)
        if following < stretch.end_s:
            return following
        instant_s = following
    return None


def times_from(expression: CronExpression, place: Zone, instant_s: int) -> Iterator[int]:
    """All fires at or after an instant, in order; far cheaper than asking for each."""
    first = first_from(expression, place, instant_s)
    while first is not None:
        yield first
        stretch = place.stretch(first)
        offset = stretch.offset_s
        wall = wall_from(expression, stretch, first + 1)
        for match in expression.matches(wall, stretch.end_s + offset):
            yield match - offset
        first = first_from(expression, place, stretch.end_s)


def count(expression: CronExpression, place: Zone, from_s: int, to_s: int) -> int:
    """How many fires lie in `from_s` <= t < `to_s`. Costs a step a month in between."""
    total, instant = 0, from_s
    while instant < to_s:
        stretch = place.stretch(instant)
        end = min(stretch.end_s, to_s)
        wall = wall_from(expression, stretch, instant)
        if instant == stretch.start_s and makes_up(expression, stretch):
            total += 1
            wall = max(wall, instant + 1 + stretch.offset_s)
        total += expression.count(wall, end + stretch.offset_s)
        instant = end
    return total


def wall_from(expression: CronExpression, stretch: Stretch, instant_s: int) -> int:
    """From which wall time on the stretch counts: fixed times skip what it shows again."""
    wall = instant_s + stretch.offset_s
    if not expression.follows_clock and repeats(stretch):
        wall = max(wall, stretch.start_s + stretch.before_s)
    return wall


def makes_up(expression: CronExpression, stretch: Stretch) -> bool:
    """Whether a fixed time of the expression was skipped where the stretch begins."""
    if expression.follows_clock or not skips(stretch):
        return False
    missing = expression.first_from(stretch.start_s + stretch.before_s)
    return missing is not None and missing < stretch.start_s + stretch.offset_s


def skips(stretch: Stretch) -> bool:
    """Whether the clocks went forward, for a season, where the stretch begins."""
    return 0 < stretch.offset_s - stretch.before_s <= _LONGEST_CHANGE_S


def repeats(stretch: Stretch) -> bool:
    """Whether the clocks went back, for a season, where the stretch begins."""
    return 0 < stretch.before_s - stretch.offset_s <= _LONGEST_CHANGE_S

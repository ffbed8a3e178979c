"""Timetables as pure functions of an instant: which nominal times `Every` and `Cron` name.

How a cron expression meets a change of the clocks (the rule of Debian's cron):

- an expression that follows the clock (second, minute or hour begins with `*`) fires
  whenever the wall clock shows a matching time: not in an hour that is skipped, twice in
  an hour that is repeated;
- the others name fixed times of day. What falls into a skipped hour fires at the first
  instant after it, several such times of one expression as ONE; in a repeated hour only
  the first copy counts;
- a change of more than three hours is a correction of the clock (a move of the date
  line): nothing is made up for.

Every answer is strictly later than the question, by assertion: a timetable that broke
this would make its leader loop.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.dispatch import cron
from timeball.cluster.dispatch.errors import TimetableError
from timeball.cluster.dispatch.zones import Stretch, zone
from timeball.cluster.state.operations import Advance, Cron, Every
from timeball.cluster.state.records import Job

__all__ = ["TimetableError", "count_between", "first_after", "next_fires", "plan", "validate"]

SHORTEST_INTERVAL_MS: Final = 100
LONGEST_INTERVAL_MS: Final = 100 * 366 * 86_400_000
LAST_INSTANT_MS: Final = 253_118_304_000_000 - 1
"""The end of the year 9990: no timetable reaches further."""
LAST_UNTIL_MS: Final = 253_402_300_799_999
"""The end of the year 9999: the latest instant that may be written."""
CATCH_UP_RULES: Final = ("none", "one", "all")

_LONGEST_CHANGE_S: Final = 3 * 3600
_FARTHEST_SHIFT_S: Final = 2 * 86_400
"""More than two clocks anywhere, or one clock at two times, can differ in offset from UTC."""


def validate(timetable: Every | Cron) -> None:
    """Check every field; raises `TimetableError` naming the first one that is wrong.

    A cron expression that names possible dates which its zone always skips passes here;
    `first_after` answers None for it.
    """
    if timetable.catch_up not in CATCH_UP_RULES:
        raise TimetableError("catch_up", f"expected one of {', '.join(CATCH_UP_RULES)}")
    if not 0 <= timetable.until_ms <= LAST_UNTIL_MS:
        raise TimetableError("until", "expected an instant from 1970 to the end of the year 9999")
    if isinstance(timetable, Cron):
        cron.parse(timetable.expression)
        zone(timetable.time_zone)
        return
    if not SHORTEST_INTERVAL_MS <= timetable.interval_ms <= LONGEST_INTERVAL_MS:
        raise TimetableError(
            "interval_ms", f"expected {SHORTEST_INTERVAL_MS} to {LONGEST_INTERVAL_MS}"
        )
    if not 0 <= timetable.anchor_ms <= LAST_INSTANT_MS:
        raise TimetableError("anchor", "expected an instant from 1970 to the end of the year 9990")


def first_after(timetable: Every | Cron, after_ms: int) -> int | None:
    """The first nominal time strictly later than `after_ms` (epoch ms); None: no further one.

    `until_ms` itself still counts. Raises `TimetableError` for a timetable that is not
    valid, or whose answer would not be later than the question.
    """
    if after_ms >= LAST_INSTANT_MS:
        return None
    if isinstance(timetable, Cron):
        found = _first_of_cron(timetable, after_ms)
    else:
        found = _first_of_every(timetable, after_ms)
    if found is None or found > LAST_INSTANT_MS:
        return None
    if found <= after_ms:
        raise TimetableError("schedule", f"the next time {found} is not later than {after_ms}")
    return found if not timetable.until_ms or found <= timetable.until_ms else None


def next_fires(timetable: Every | Cron, after_ms: int, count: int) -> list[int]:
    """The first `count` nominal times later than `after_ms`; fewer when it ends before."""
    fires: list[int] = []
    at: int | None = after_ms
    while len(fires) < count and at is not None:
        at = first_after(timetable, at)
        if at is not None:
            fires.append(at)
    return fires


def count_between(timetable: Every | Cron, after_ms: int, to_ms: int) -> int:
    """How many nominal times lie in `after_ms` < t <= `to_ms`, without walking them."""
    if timetable.until_ms:
        to_ms = min(to_ms, timetable.until_ms)
    if to_ms <= after_ms:
        return 0
    if isinstance(timetable, Cron):
        return _count_of_cron(timetable, after_ms // 1000 + 1, to_ms // 1000 + 1)
    first = _first_of_every(timetable, after_ms)
    return 0 if first > to_ms else (to_ms - first) // timetable.interval_ms + 1


def _last_upto(timetable: Every | Cron, after_ms: int, to_ms: int) -> int:
    """The last nominal time in `after_ms` < t <= `to_ms`; there must be one."""
    low, high = after_ms, to_ms  # first_after(low) <= to_ms; not so from high on
    while high - low > 1:
        middle = (low + high) // 2
        found = first_after(timetable, middle)
        if found is not None and found <= to_ms:
            low = max(middle, found - 1)
        else:
            high = middle
    last = first_after(timetable, low)
    assert last is not None
    assert after_ms < last <= to_ms
    return last


def _first_of_every(every: Every, after_ms: int) -> int:
    assert every.interval_ms > 0
    if after_ms < every.anchor_ms:
        return every.anchor_ms
    turns = (after_ms - every.anchor_ms) // every.interval_ms + 1
    return every.anchor_ms + turns * every.interval_ms


def _first_of_cron(timetable: Cron, after_ms: int) -> int | None:
    expression, place = cron.parse(timetable.expression), zone(timetable.time_zone)
    instant = max(after_ms // 1000 + 1, 0)
    horizon = instant + cron.HORIZON_YEARS * 366 * 86_400
    while instant < min(horizon, LAST_INSTANT_MS // 1000):
        stretch = place.stretch(instant)
        if instant == stretch.start_s and _makes_up(expression, stretch):
            return instant * 1000
        wall = expression.first_from(_wall_from(expression, stretch, instant))
        if wall is None:
            return None
        if wall - stretch.offset_s < stretch.end_s:
            return (wall - stretch.offset_s) * 1000
        following = stretch.end_s
        if following - instant >= _FARTHEST_SHIFT_S:
            # Until clocks of any offset come near `wall`, they show nothing that matches.
            following = max(following, wall - stretch.offset_s - _FARTHEST_SHIFT_S)
        instant = following
    return None


def _count_of_cron(timetable: Cron, from_s: int, to_s: int) -> int:
    expression, place = cron.parse(timetable.expression), zone(timetable.time_zone)
    total, instant = 0, from_s
    while instant < to_s:
        stretch = place.stretch(instant)
        end = min(stretch.end_s, to_s)
        start_wall = _wall_from(expression, stretch, instant)
        total += expression.count(start_wall, end + stretch.offset_s)
        if (
            instant == stretch.start_s
            and _makes_up(expression, stretch)
            and expression.first_from(start_wall) != start_wall
        ):
            total += 1
        instant = end
    return total


def _wall_from(expression: cron.CronExpression, stretch: Stretch, instant: int) -> int:
    """From which wall time on a stretch counts: fixed times skip what it shows again."""
    wall = instant + stretch.offset_s
    repeated = stretch.before_s - stretch.offset_s
    if not expression.follows_clock and 0 < repeated <= _LONGEST_CHANGE_S:
        wall = max(wall, stretch.start_s + stretch.before_s)
    return wall


def _makes_up(expression: cron.CronExpression, stretch: Stretch) -> bool:
    """Whether a fixed time of the expression was skipped where the stretch begins."""
    skipped = stretch.offset_s - stretch.before_s
    if expression.follows_clock or not 0 < skipped <= _LONGEST_CHANGE_S:
        return False
    missing = expression.first_from(stretch.start_s + stretch.before_s)
    return missing is not None and missing < stretch.start_s + stretch.offset_s


def plan(job: Job, now_ms: int, *, grace_ms: int = 10_000, limit: int = 100) -> Advance | None:
    """How a recurring job that stands at `planned_ms` moves on; None while that lies ahead.

    Nominal times up to `grace_ms` late always get an execution of their own, so that a
    change of leader neither loses nor folds one. What is older was missed: of these `all`
    creates each, oldest first, `one` the last, and `none` none. Then comes the next one
    ahead. At most `limit` executions are created in one step; a job that is still behind
    stands at a past nominal time, and the next step goes on from there.

    Work is bounded by `limit`, not by how much was missed. Raises `TimetableError`.
    """
    timetable = job.timetable
    if timetable is None or job.timetable_ended or job.planned_ms > now_ms:
        return None
    stood_ms = at_ms = job.planned_ms
    nominals: list[int] = []
    coalesced = missed = 0
    old_ms = now_ms - grace_ms
    if timetable.catch_up != "all" and at_ms < old_ms:
        passed = count_between(timetable, at_ms, old_ms - 1)
        if passed:
            at_ms = _last_upto(timetable, at_ms, old_ms - 1)
            if timetable.catch_up == "one":
                nominals.append(at_ms)
                coalesced = passed - 1
            else:
                missed = passed
    ended = False
    while len(nominals) < limit and at_ms <= now_ms and not ended:
        following = first_after(timetable, at_ms)
        if following is None:
            ended = True
        else:
            nominals.append(following)
            at_ms = following
    return Advance(
        job=job.id,
        after_ms=stood_ms,
        nominals=nominals,
        planned_ms=at_ms,
        coalesced=coalesced,
        missed=missed,
        ended=ended,
    )

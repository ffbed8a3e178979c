"""One rule of a timetable: the nominal times that it alone names, in epoch milliseconds."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from timeball.cluster.dispatch import cron, cron_times
from timeball.cluster.dispatch.errors import TimetableError
from timeball.cluster.dispatch.zones import zone
from timeball.cluster.state.operations import At, Cron, Every

SHORTEST_INTERVAL_MS: Final = 100
LONGEST_INTERVAL_MS: Final = 100 * 366 * 86_400_000
MOST_AT_TIMES: Final = 1_000
LAST_INSTANT_MS: Final = cron_times.LAST_INSTANT_S * 1000 + 999
"""The end of the year 9990: no rule reaches further."""


def validate_rule(rule: Every | Cron | At) -> None:
    """Check a rule; raises `TimetableError` naming the first field that is wrong.

    A cron expression that names possible dates which its zone always skips passes here.
    """
    if isinstance(rule, Cron):
        cron.parse(rule.expression)
        zone(rule.time_zone)
    elif isinstance(rule, Every):
        _within("interval_ms", rule.interval_ms, SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS)
        if not 0 <= rule.anchor_ms <= LAST_INSTANT_MS:
            raise TimetableError("anchor", f"expected an instant {_RANGE}")
    else:
        _validate_times(rule.times_ms)


def first_after(rule: Every | Cron | At, after_ms: int) -> int | None:
    """The first time strictly later than `after_ms`; None: no further one."""
    if isinstance(rule, Cron):
        found = cron_times.first_from(
            cron.parse(rule.expression), zone(rule.time_zone), _second_after(after_ms)
        )
        return None if found is None else found * 1000
    if isinstance(rule, Every):
        first = _first_of_every(rule, after_ms)
        return first if first <= LAST_INSTANT_MS else None
    at = bisect_right(rule.times_ms, after_ms)
    return rule.times_ms[at] if at < len(rule.times_ms) else None


def times_after(rule: Every | Cron | At, after_ms: int) -> Iterator[int]:
    """The times strictly later than `after_ms`, in order; about a microsecond each.

    May go on beyond `LAST_INSTANT_MS`.
    """
    if isinstance(rule, Cron):
        seconds = cron_times.times_from(
            cron.parse(rule.expression), zone(rule.time_zone), _second_after(after_ms)
        )
        return (second * 1000 for second in seconds)
    if isinstance(rule, Every):
        return itertools.count(_first_of_every(rule, after_ms), rule.interval_ms)
    return iter(rule.times_ms[bisect_right(rule.times_ms, after_ms) :])


def count_between(rule: Every | Cron | At, after_ms: int, to_ms: int) -> int:
    """How many times lie in `after_ms` < t <= `to_ms`, without walking them.

    Both are instants that timetables reach.
    """
    if to_ms <= after_ms:
        return 0
    if isinstance(rule, Cron):
        expression, place = cron.parse(rule.expression), zone(rule.time_zone)
        return cron_times.count(expression, place, _second_after(after_ms), to_ms // 1000 + 1)
    if isinstance(rule, Every):
        first = _first_of_every(rule, after_ms)
        return 0 if first > to_ms else (to_ms - first) // rule.interval_ms + 1
    return bisect_right(rule.times_ms, to_ms) - bisect_right(rule.times_ms, after_ms)


_RANGE: Final = "from 1970 to the end of the year 9990"


def _within(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise TimetableError(field, f"expected {low} to {high}")


def _validate_times(times_ms: tuple[int, ...]) -> None:
    if not 1 <= len(times_ms) <= MOST_AT_TIMES:
        raise TimetableError("times", f"expected 1 to {MOST_AT_TIMES} instants")
    for position, at_ms in enumerate(times_ms):
        if not 0 <= at_ms <= LAST_INSTANT_MS:
            raise TimetableError(f"times[{position}]", f"expected an instant {_RANGE}")
        if position and at_ms <= times_ms[position - 1]:
            raise TimetableError(f"times[{position}]", "expected one later than that before it")


def _second_after(after_ms: int) -> int:
    return max(after_ms // 1000 + 1, 0)


def _first_of_every(every: Every, after_ms: int) -> int:
    """Counted from the anchor, so that no error adds up; nothing comes before the anchor."""
    assert every.interval_ms > 0
    if after_ms < every.anchor_ms:
        return every.anchor_ms
    turns = (after_ms - every.anchor_ms) // every.interval_ms + 1
    return every.anchor_ms + turns * every.interval_ms

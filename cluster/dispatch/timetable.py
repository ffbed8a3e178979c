"""Timetables as pure functions of an instant: which nominal times one names.

They are the times that any of its rules names, equal ones once, from its start to its end
(both included), less those that an exclusion covers. All times are epoch milliseconds.

Every answer is strictly later than the question, by check: a timetable that broke this
would make its leader loop. What exclusions take away is left in leaps, and a bounded number
of looks is made in a walk: a timetable whose exclusions leave next to nothing is an error,
not a search without end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from timeball.cluster.dispatch import cron, rules
from timeball.cluster.dispatch.errors import TimetableError
from timeball.cluster.dispatch.exclusions import Look, look
from timeball.cluster.dispatch.rules import LAST_INSTANT_MS
from timeball.cluster.dispatch.validation import validate
from timeball.cluster.state.operations import At, Cron, Dates, Every, Timetable, Window

__all__ = [
    "LAST_INSTANT_MS",
    "TimetableError",
    "count_between",
    "first_after",
    "is_simple",
    "last_times",
    "next_fires",
    "validate",
    "walk",
    "walk_far",
]

MOST_LOOKS: Final = 2_000
"""In a walk: excluded times read, exclusions asked, and rules started (four each)."""

HORIZON_MS: Final = cron.HORIZON_YEARS * 366 * 86_400_000
"""Exclusions that cover all times for longer are taken to cover all."""

_FOREVER_MS: Final = 1 << 62
_START_LOOKS: Final = 4
_READ_ON: Final = 8
"""Excluded times read one by one before it is cheaper to start the rules anew after them."""


def is_simple(timetable: Timetable) -> bool:
    """Whether `count_between` computes rather than walks: one rule, and no exclusion."""
    return len(timetable.rules) == 1 and not timetable.exclusions


def first_after(timetable: Timetable, after_ms: int) -> int | None:
    """The first nominal time strictly later than `after_ms`; None: no further one.

    Raises `TimetableError` for a timetable that is not valid, whose exclusions leave too
    little, or whose answer would not be later than the question.
    """
    after_ms, last_ms = bounds(timetable, after_ms, LAST_INSTANT_MS)
    if after_ms >= last_ms:
        return None
    if not is_simple(timetable):
        return next(_times(timetable, after_ms, last_ms, _Looks()), None)
    found = rules.first_after(timetable.rules[0], after_ms)
    if found is None or found > last_ms:
        return None
    if found <= after_ms:
        raise _not_later(found, after_ms)
    return found


def next_fires(timetable: Timetable, after_ms: int, count: int) -> list[int]:
    """The first `count` nominal times later than `after_ms`; fewer when it ends before.

    Raises as `first_after` does.
    """
    return walk(timetable, after_ms, LAST_INSTANT_MS, count)


class Walk(NamedTuple):
    """The first nominal times after an instant: all that there are up to `reached_ms`."""

    times: list[int]
    reached_ms: int


def walk(timetable: Timetable, after_ms: int, to_ms: int, limit: int) -> list[int]:
    """The first `limit` nominal times in `after_ms` < t <= `to_ms`, a microsecond or two each.

    Fewer, if exclusions leave so little that no more were found; `walk_far` tells. Raises as
    `first_after` does.
    """
    return walk_far(timetable, after_ms, to_ms, limit).times


def walk_far(timetable: Timetable, after_ms: int, to_ms: int, limit: int) -> Walk:
    """The first `limit` nominal times in `after_ms` < t <= `to_ms`, and how far they reach.

    Looks as far as its bounded work allows, and at least to the first of them. Raises as
    `first_after` does.
    """
    from_ms, last_ms = bounds(timetable, after_ms, to_ms)
    looks = _Looks()
    times = list(islice(_times(timetable, from_ms, last_ms, looks), limit))
    if looks.spent_at_ms is not None:
        return Walk(times, looks.spent_at_ms)
    return Walk(times, times[-1] if times and len(times) == limit else to_ms)


def last_times(timetable: Timetable, after_ms: int, to_ms: int, count: int) -> list[int]:
    """The last `count` nominal times in `after_ms` < t <= `to_ms`, in order.

    Costs some forty walks of `count` times at most, however many there are in between.
    Raises as `first_after` does.
    """
    low_ms, high_ms = after_ms, to_ms  # enough of them after low; too few after high
    found = walk(timetable, low_ms, to_ms, count)
    if len(found) < count or not found:
        return found
    while high_ms - low_ms > 1:
        middle_ms = (low_ms + high_ms) // 2
        times = walk(timetable, middle_ms, to_ms, count)
        if len(times) == count:
            found = times
            low_ms = max(middle_ms, times[0] - 1)
        else:
            high_ms = middle_ms
    return found


def count_between(timetable: Timetable, after_ms: int, to_ms: int) -> int:
    """How many nominal times of a timetable that `is_simple` lie in `after_ms` < t <= `to_ms`.

    Without walking them. Raises as `first_after` does.
    """
    assert is_simple(timetable), "others are walked, a bounded way at a time"
    after_ms, to_ms = bounds(timetable, after_ms, to_ms)
    return rules.count_between(timetable.rules[0], after_ms, to_ms)


def union_times(named: Sequence[Every | Cron | At], after_ms: int) -> Iterator[int]:
    """The times that any of the rules names after `after_ms`, each once, in order."""
    if len(named) == 1:
        return rules.times_after(named[0], after_ms)
    return _each_once(heapq.merge(*(rules.times_after(rule, after_ms) for rule in named)))


def _each_once(times: Iterator[int]) -> Iterator[int]:
    latest = -1
    for at_ms in times:
        if at_ms != latest:
            yield at_ms
            latest = at_ms


def bounds(timetable: Timetable, after_ms: int, to_ms: int) -> tuple[int, int]:
    """The part of `after_ms` < t <= `to_ms` that lies from the timetable's start to its end."""
    last_ms = min(timetable.until_ms or LAST_INSTANT_MS, LAST_INSTANT_MS)
    return max(after_ms, timetable.start_ms - 1, -1), min(to_ms, last_ms)


class _Looks:
    """What a walk has cost; and where it gave up, if it did."""

    __slots__ = ("count", "spent_at_ms")

    def __init__(self) -> None:
        self.count = 0
        self.spent_at_ms: int | None = None


def _times(timetable: Timetable, after_ms: int, to_ms: int, looks: _Looks) -> Iterator[int]:
    """The nominal times in `after_ms` < t <= `to_ms`, which lies within the bounds.

    Ends early, at an excluded time, when `looks` are spent and it has found one at least.
    """
    exclusions = _Exclusions(timetable.exclusions)
    covered, until_ms, found = False, after_ms, False
    read_on = 0
    latest_ms = after_ms
    first_covered_ms: int | None = None
    while True:
        for at_ms in union_times(timetable.rules, after_ms):
            if at_ms <= latest_ms:
                raise _not_later(at_ms, latest_ms)
            if at_ms > to_ms:
                return
            if at_ms >= until_ms:
                looks.count += len(timetable.exclusions)
                covered, until_ms = exclusions.ask(at_ms)
            latest_ms = at_ms
            if not covered:
                yield at_ms
                first_covered_ms = None
                read_on, found = 0, True
                continue
            if first_covered_ms is None:
                first_covered_ms = at_ms
            looks.count += 1
            read_on += 1
            if looks.count > MOST_LOOKS and found:
                looks.spent_at_ms = at_ms
                return
            if looks.count > MOST_LOOKS or at_ms - first_covered_ms > HORIZON_MS:
                raise TimetableError("exclusions", _TOO_MUCH)
            if read_on > _READ_ON:
                break
        else:
            return
        looks.count += _START_LOOKS * len(timetable.rules)
        read_on = 0
        after_ms = until_ms - 1


_TOO_MUCH: Final = (
    f"excludes everything for {cron.HORIZON_YEARS} years, or too much of it in too many pieces"
)


class _Exclusions:
    """All exclusions of a timetable together, asked at rising times."""

    __slots__ = ("_exclusions", "_looks")

    def __init__(self, exclusions: Sequence[Dates | Window]) -> None:
        self._exclusions = exclusions
        self._looks = [Look(covers=False, until_s=0)] * len(exclusions)

    def ask(self, at_ms: int) -> tuple[bool, int]:
        """Whether one of them covers a time, and before which time that surely stays so."""
        at_s = at_ms // 1000
        for position, known in enumerate(self._looks):
            if known.until_s <= at_s:
                self._looks[position] = look(self._exclusions[position], at_s)
        covering = [known.until_s for known in self._looks if known.covers]
        if covering:
            return True, max(covering) * 1000
        return False, min((known.until_s * 1000 for known in self._looks), default=_FOREVER_MS)


def _not_later(found_ms: int, after_ms: int) -> TimetableError:
    return TimetableError("rules", f"the next time {found_ms} is not later than {after_ms}")

"""Timetables of several rules, within bounds, less exclusions; and what may not be one."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from timeball.cluster.dispatch import exclusions as exclusions_module
from timeball.cluster.dispatch import rules as rules_module
from timeball.cluster.dispatch import timetable as timetable_module
from timeball.cluster.dispatch.exclusions import MOST_DATES
from timeball.cluster.dispatch.rules import (
    LONGEST_INTERVAL_MS,
    MOST_AT_TIMES,
    SHORTEST_INTERVAL_MS,
)
from timeball.cluster.dispatch.timetable import (
    LAST_INSTANT_MS,
    MOST_LOOKS,
    TimetableError,
    count_between,
    first_after,
    is_simple,
    last_times,
    next_fires,
    validate,
    walk,
    walk_far,
)
from timeball.cluster.dispatch.validation import (
    LAST_UNTIL_MS,
    LONGEST_JITTER_MS,
    MOST_EXCLUSIONS,
    MOST_RULES,
)
from timeball.cluster.state.operations import At, Cron, Dates, Every, Timetable, Window

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
FOREVER = (datetime.date(2026, 1, 1).toordinal(), datetime.date(9999, 12, 31).toordinal())


def how_many(timetable: Timetable, after_ms: int, to_ms: int) -> int:
    return len(walk(timetable, after_ms, to_ms, 1_000_000))


def ms(text: str) -> int:
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def shown(times_ms: list[int]) -> list[str]:
    return [
        datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).isoformat()[:16] for at in times_ms
    ]


def days(*texts: str) -> tuple[tuple[int, int], ...]:
    """'2026-12-24' or '2026-12-24/2026-12-26' as ordinals."""
    pairs = [text.split("/") for text in texts]
    return tuple(
        (datetime.date.fromisoformat(pair[0]).toordinal(),
         datetime.date.fromisoformat(pair[-1]).toordinal())
        for pair in pairs
    )  # fmt: skip


# --- intervals and instants ---------------------------------------------------------------------


def test_an_interval_counts_from_its_anchor_to_the_millisecond_for_ever():
    every = Timetable((Every(333, 1_000_000_007),))
    assert next_fires(every, 0, 3) == [1_000_000_007, 1_000_000_340, 1_000_000_673]
    assert first_after(every, 1_000_000_340) == 1_000_000_673
    far = first_after(every, 10**14)
    assert far is not None
    assert (far - 1_000_000_007) % 333 == 0
    assert 10**14 < far <= 10**14 + 333


def test_an_interval_knows_no_calendar():
    """A day is 24 hours, also where the clocks change and in a leap year."""
    day = Timetable((Every(DAY, ms("2026-02-27T09:30")),))
    got = next_fires(day, ms("2026-02-27T09:30"), 500)
    assert {later - earlier for earlier, later in pairwise(got)} == {DAY}


def test_the_longest_interval_and_the_end_of_time():
    every = Timetable((Every(LONGEST_INTERVAL_MS, 0),))
    validate(every)
    assert first_after(every, 0) == LONGEST_INTERVAL_MS
    assert first_after(every, LAST_INSTANT_MS - 1) is None
    assert len(next_fires(every, 0, 1000)) == LAST_INSTANT_MS // LONGEST_INTERVAL_MS
    at_the_end = Timetable((Every(1000, LAST_INSTANT_MS),))
    assert next_fires(at_the_end, 0, 9) == [LAST_INSTANT_MS]
    assert count_between(at_the_end, 0, 10**20) == 1


def test_instants_are_each_named_once_and_end():
    at = Timetable((At((5, 7, 1_000)),))
    validate(at)
    assert next_fires(at, 0, 9) == [5, 7, 1_000]
    assert first_after(at, 5) == 7
    assert first_after(at, 1_000) is None
    assert count_between(at, 5, 1_000) == 2
    assert count_between(at, 5, 999) == 1
    assert last_times(at, 0, 999, 1) == [7]


# --- unions and bounds --------------------------------------------------------------------------


def test_equal_times_of_two_rules_are_one():
    union = Timetable((Every(2 * HOUR, 0), Cron("0 */3 * * *"), At((6 * HOUR, 7 * HOUR))))
    assert not is_simple(union)
    wanted = [2, 3, 4, 6, 7, 8, 9, 10, 12]
    assert [at // HOUR for at in next_fires(union, 0, 9)] == wanted
    assert how_many(union, 0, 12 * HOUR) == 9
    assert last_times(union, 0, 12 * HOUR, 3) == [9 * HOUR, 10 * HOUR, 12 * HOUR]
    at, asked = 0, []
    for _ in wanted:
        following = first_after(union, at)
        assert following is not None
        at = following
        asked.append(at // HOUR)
    assert asked == wanted


def test_one_rule_that_ends_does_not_end_the_others():
    union = Timetable((At((HOUR,)), Cron("*/30 2 25-31 3 */7", "Europe/Berlin"), Every(DAY, 0)))
    assert next_fires(union, 0, 3) == [HOUR, DAY, 2 * DAY]


def test_a_union_in_two_zones_runs_twice_where_their_times_differ():
    union = Timetable((Cron("0 9 * * *", "Europe/Berlin"), Cron("0 9 * * *", "Africa/Lagos")))
    assert shown(next_fires(union, ms("2026-03-28T00:00"), 4)) == [
        "2026-03-28T08:00",  # both
        "2026-03-29T07:00",
        "2026-03-29T08:00",
        "2026-03-30T07:00",
    ]


def test_start_and_until_both_count():
    bounded = Timetable((Every(HOUR, 0),), start_ms=3 * HOUR, until_ms=5 * HOUR)
    validate(bounded)
    wanted = [3 * HOUR, 4 * HOUR, 5 * HOUR]
    assert next_fires(bounded, 0, 9) == wanted
    assert first_after(bounded, -(10**9)) == 3 * HOUR
    assert first_after(bounded, 5 * HOUR) is None
    assert first_after(bounded, 9 * HOUR) is None
    assert count_between(bounded, 0, DAY) == 3
    assert last_times(bounded, 0, DAY, 2) == wanted[-2:]
    just_within = Timetable((Every(HOUR, 0),), start_ms=3 * HOUR + 1, until_ms=5 * HOUR - 1)
    assert next_fires(just_within, 0, 9) == [4 * HOUR]
    assert count_between(just_within, 0, DAY) == 1
    one = Timetable((Every(HOUR, 0),), start_ms=3 * HOUR, until_ms=3 * HOUR)
    validate(one)
    assert next_fires(one, 0, 9) == [3 * HOUR]


def test_the_last_times_are_found_among_millions():
    seconds = Timetable((Every(SECOND, 0), At((500,))), until_ms=366 * DAY)
    assert last_times(seconds, 0, 1000 * DAY, 2) == [366 * DAY - SECOND, 366 * DAY]
    assert last_times(seconds, 0, 999, 5) == [500]
    assert last_times(seconds, 366 * DAY, 1000 * DAY, 5) == []
    assert last_times(seconds, 0, DAY, 0) == []


# --- exclusions ---------------------------------------------------------------------------------


def test_dates_are_days_of_their_own_calendar():
    """Christmas in Tokyo ends nine hours before it does in UTC."""
    hourly = Timetable(
        (Every(HOUR, 0),), exclusions=(Dates(days("2026-12-24/2026-12-25"), "Asia/Tokyo"),)
    )
    validate(hourly)
    got = next_fires(hourly, ms("2026-12-23T13:30"), 3)
    assert shown(got) == ["2026-12-23T14:00", "2026-12-25T15:00", "2026-12-25T16:00"]
    assert how_many(hourly, ms("2026-12-23T00:00"), ms("2026-12-26T00:00")) == 24


@pytest.mark.parametrize(
    ("zone", "date", "hours"),
    [
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("America/Havana", "2025-11-02", 25),
        ("Asia/Beirut", "2026-03-29", 23),
        ("America/Sao_Paulo", "2018-02-17", 25),
        ("America/St_Johns", "2006-10-28", 24 + 59 / 60),
        ("America/St_Johns", "2006-10-29", 24 + 1 / 60),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Antarctica/Troll", "2026-10-25", 26),
        ("Antarctica/Casey", "2020-10-04", 21),
        ("Pacific/Apia", "2011-12-29", 24),
        ("Pacific/Apia", "2011-12-30", 0),
        ("Europe/Berlin", "2026-05-05", 24),
    ],
)
def test_a_day_is_as_long_as_its_clocks_make_it(zone, date, hours):
    start, end = ms(f"{date}T00:00") - 3 * DAY, ms(f"{date}T00:00") + 4 * DAY
    minutes = Timetable((Every(MINUTE, 0),), exclusions=(Dates(days(date), zone),))
    got = how_many(minutes, start, end)
    assert 7 * 24 * 60 - got == pytest.approx(hours * 60)


def test_a_window_of_five_fields_covers_whole_minutes_and_of_six_seconds():
    seconds = Every(SECOND, 0)
    minute = Timetable((seconds,), exclusions=(Window("1 0 1 1 *"),))
    validate(minute)
    assert [at // SECOND for at in next_fires(minute, 58_000, 2)] == [59, 120]
    second = Timetable((seconds,), exclusions=(Window("1 0 0 1 1 *"),))
    assert [at // SECOND for at in next_fires(second, -1, 3)] == [0, 2, 3]
    # A millisecond belongs to its second.
    between = Timetable((Every(100, 50),), exclusions=(Window("1 0 0 1 1 *"),))
    assert next_fires(between, 950, 1) == [2050]


def test_a_window_is_on_the_wall_twice_in_a_repeated_hour_and_in_no_gap():
    """Unlike the fixed times of a rule, it is what clocks show."""
    half_hours = Timetable(
        (Every(HOUR // 2, 0),), exclusions=(Window("* 1 * * *", "America/New_York"),)
    )
    got = next_fires(half_hours, ms("2026-11-01T04:00"), 3)
    assert shown(got) == ["2026-11-01T04:30", "2026-11-01T07:00", "2026-11-01T07:30"]
    in_the_gap = Timetable(
        (Cron("30 2 * * *", "America/New_York"),),
        exclusions=(Window("* 2 8 3 *", "America/New_York"),),
    )
    assert shown(next_fires(in_the_gap, ms("2026-03-07T12:00"), 1)) == ["2026-03-08T07:00"]


def test_two_exclusions_cover_what_either_does():
    office = Timetable(
        (Cron("0 * * * *", "Europe/Berlin"),),
        exclusions=(
            Window("* 0-8,17-23 * * *", "Europe/Berlin"),
            Window("* * * * sat,sun", "Europe/Berlin"),
            Dates(days("2026-05-01", "2026-05-14", "2026-05-25"), "Europe/Berlin"),
        ),
    )
    validate(office)
    # From Thursday afternoon over the first of May and a weekend to Monday.
    assert shown(next_fires(office, ms("2026-04-30T13:30"), 3)) == [
        "2026-04-30T14:00",
        "2026-05-04T07:00",
        "2026-05-04T08:00",
    ]


@dataclass
class Counted:
    """How often something was called."""

    function: Any
    calls: int = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def test_what_is_excluded_is_left_in_one_leap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of seconds costs a few looks, and so does all of time."""
    look = Counted(exclusions_module.look)
    started = Counted(rules_module.times_after)
    monkeypatch.setattr(timetable_module, "look", look)
    monkeypatch.setattr(rules_module, "times_after", started)
    year = days("2026-01-01/2026-12-31")
    seconds = Timetable((Every(SECOND, 0),), exclusions=(Dates(year, "America/New_York"),))
    assert shown(next_fires(seconds, ms("2026-01-02T00:00"), 1)) == ["2027-01-01T05:00"]
    never = Timetable((Every(SECOND, 0),), exclusions=(Dates((FOREVER,)),))
    assert first_after(never, ms("2026-01-02T00:00")) is None
    nightly = Timetable((Cron("* * * * * *"),), exclusions=(Window("* 1-23 * * *"),))
    assert shown(next_fires(nightly, ms("2026-01-01T00:59") + 59_000, 1)) == ["2026-01-02T00:00"]
    assert look.calls < 20
    assert started.calls < 20


def test_exclusions_that_leave_nothing_end_the_search_in_bounded_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = Counted(exclusions_module.look)
    started = Counted(rules_module.times_after)
    monkeypatch.setattr(timetable_module, "look", look)
    monkeypatch.setattr(rules_module, "times_after", started)
    everywhere = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York")
    seconds = tuple(Cron("* * * * * *", zone) for zone in everywhere)
    for exclusions in (
        (Window("*/2 * * * *"), Window("1-59/2 * * * *")),
        (Window("* 0-11 * * *"), Window("* 12-23 * * *")),
        tuple(Window(f"{start}-59/16 * * * * *") for start in range(16)),
    ):
        timetable = Timetable(seconds, exclusions=exclusions)
        validate(timetable)
        for ask in (first_after, lambda given, at: walk(given, at, at + 10**12, 5)):
            look.calls = started.calls = 0
            with pytest.raises(TimetableError, match="excludes everything") as caught:
                ask(timetable, ms("2026-01-01T00:00"))
            assert caught.value.field == "exclusions"
            assert look.calls + 4 * started.calls <= MOST_LOOKS + 200
    # Rare dates, all of them excluded: given up by how far it looked, not by how often.
    look.calls = 0
    with pytest.raises(TimetableError, match="50 years"):
        first_after(Timetable((Cron("0 0 29 2 *"),), exclusions=(Window("* * 29 2 *"),)), 0)
    assert look.calls < 30


def test_a_question_long_before_the_first_time_is_no_long_search():
    """The horizon counts from the first time that is excluded."""
    late = Timetable(
        (Every(HOUR, ms("2026-01-01T00:00")),), exclusions=(Dates(days("2026-01-01")),)
    )
    assert shown(next_fires(late, 0, 1)) == ["2026-01-02T00:00"]


HALF = Timetable((Every(SECOND, 0),), exclusions=(Window("*/2 * * * * *"),))
"""Every other second is left out: a search looks at each."""


def test_a_walk_ends_where_its_looks_are_spent_and_says_how_far_it_came():
    found, at = [], 0
    steps = 0
    while at < DAY:
        times, reached = walk_far(HALF, at, DAY, 50_000)
        assert times
        assert at < times[0] <= times[-1] <= reached <= DAY
        assert reached == DAY or reached % (2 * SECOND) == 0, "where none is"
        found += times
        at = reached
        steps += 1
    assert found == list(range(SECOND, DAY, 2 * SECOND))
    assert steps > 20


def test_a_walk_of_hostile_exclusions_is_bounded_as_a_whole(monkeypatch):
    look = Counted(exclusions_module.look)
    monkeypatch.setattr(timetable_module, "look", look)
    windows = ["0-58 * * * * *", "* 0-58 * * * *", "* * 0-22 * * *", "* * * 1-30 * *"]
    hostile = Timetable((Cron("* * * * * *"),), exclusions=tuple(Window(text) for text in windows))
    times, reached = walk_far(hostile, 0, LAST_INSTANT_MS, 1_000)
    assert 0 < len(times) < 1_000
    assert times[-1] <= reached < LAST_INSTANT_MS
    assert look.calls <= MOST_LOOKS + 200


# --- what may not be ----------------------------------------------------------------------------

GOOD = Every(SECOND, 0)
REFUSED: list[tuple[str, Timetable]] = [
    ("rules", Timetable(())),
    ("rules", Timetable((GOOD,) * (MOST_RULES + 1))),
    ("rules[1].expression", Timetable((GOOD, Cron("0 0 30 2 *")))),
    ("rules[1].expression", Timetable((GOOD, Cron("")))),
    ("rules[0].time_zone", Timetable((Cron("0 0 * * *", "Mars/Base"),))),
    ("rules[0].interval_ms", Timetable((Every(SHORTEST_INTERVAL_MS - 1, 0),))),
    ("rules[0].interval_ms", Timetable((Every(LONGEST_INTERVAL_MS + 1, 0),))),
    ("rules[0].interval_ms", Timetable((Every(0, 0),))),
    ("rules[0].interval_ms", Timetable((Every(-SECOND, 0),))),
    ("rules[0].anchor", Timetable((Every(SECOND, -1),))),
    ("rules[0].anchor", Timetable((Every(SECOND, LAST_INSTANT_MS + 1),))),
    ("rules[0].times", Timetable((At(()),))),
    ("rules[0].times", Timetable((At(tuple(range(MOST_AT_TIMES + 1))),))),
    ("rules[0].times[1]", Timetable((At((5, 5)),))),
    ("rules[0].times[2]", Timetable((At((5, 6, 4)),))),
    ("rules[0].times[0]", Timetable((At((-1, 6)),))),
    ("rules[0].times[1]", Timetable((At((1, LAST_INSTANT_MS + 1)),))),
    ("exclusions", Timetable((GOOD,), exclusions=(Window("0 0 * * *"),) * (MOST_EXCLUSIONS + 1))),
    ("exclusions[0].expression", Timetable((GOOD,), exclusions=(Window("0 0 31 2 *"),))),
    ("exclusions[0].expression", Timetable((GOOD,), exclusions=(Window("* * * * *"),))),
    ("exclusions[0].expression", Timetable((GOOD,), exclusions=(Window("0-59 0-23 1-31 * *"),))),
    ("exclusions[0].time_zone", Timetable((GOOD,), exclusions=(Dates(days("2026-01-01"), "X"),))),
    ("exclusions[0].dates", Timetable((GOOD,), exclusions=(Dates(()),))),
    ("exclusions[0].dates", Timetable((GOOD,), exclusions=(
        Dates(tuple((n, n) for n in range(740_000, 740_000 + 2 * (MOST_DATES + 1), 2))),))),
    ("exclusions[1].dates[1]", Timetable((GOOD,), exclusions=(
        Window("0 0 * * *"), Dates(days("2026-01-02", "2026-01-01"))))),
    ("exclusions[0].dates[1]", Timetable((GOOD,), exclusions=(
        Dates(days("2026-01-02/2026-01-05", "2026-01-05")),))),
    ("exclusions[0].dates[0]", Timetable((GOOD,), exclusions=(
        Dates(days("2026-01-02/2026-01-01")),))),
    ("exclusions[0].dates[0]", Timetable((GOOD,), exclusions=(Dates(((1, 2),)),))),
    ("exclusions[0].dates[0]", Timetable((GOOD,), exclusions=(Dates(((740_000, 10**9),)),))),
    ("start", Timetable((GOOD,), start_ms=-1)),
    ("start", Timetable((GOOD,), start_ms=LAST_INSTANT_MS + 1)),
    ("until", Timetable((GOOD,), until_ms=-1)),
    ("until", Timetable((GOOD,), until_ms=LAST_UNTIL_MS + 1)),
    ("until", Timetable((GOOD,), start_ms=2, until_ms=1)),
    ("max_runs", Timetable((GOOD,), max_runs=-1)),
    ("max_runs", Timetable((GOOD,), max_runs=10**9 + 1)),
    ("jitter_ms", Timetable((GOOD,), jitter_ms=-1)),
    ("jitter_ms", Timetable((GOOD,), jitter_ms=LONGEST_JITTER_MS + 1)),
    ("catch_up", Timetable((GOOD,), catch_up="some")),
    ("catch_up_window_ms", Timetable((GOOD,), catch_up_window_ms=-1)),
    ("catch_up_limit", Timetable((GOOD,), catch_up_limit=0)),
    ("catch_up_limit", Timetable((GOOD,), catch_up_limit=10**9)),
    ("overlap", Timetable((GOOD,), overlap="forbid")),
]  # fmt: skip


@pytest.mark.parametrize(("field", "timetable"), REFUSED)
def test_the_field_that_is_wrong_is_named(field: str, timetable: Timetable) -> None:
    with pytest.raises(TimetableError) as caught:
        validate(timetable)
    assert caught.value.field == field
    assert len(caught.value.detail) < 300


def test_all_limits_may_be_reached() -> None:
    validate(
        Timetable(
            (Every(LONGEST_INTERVAL_MS, LAST_INSTANT_MS), Every(SHORTEST_INTERVAL_MS, 0),
             At(tuple(range(MOST_AT_TIMES))), *(Cron("@daily", "Cuba"),) * (MOST_RULES - 3)),
            start_ms=LAST_INSTANT_MS,
            until_ms=LAST_UNTIL_MS,
            max_runs=10**9,
            jitter_ms=LONGEST_JITTER_MS,
            exclusions=(Dates((FOREVER,)), *(Window("* * * * 1"),) * (MOST_EXCLUSIONS - 1)),
            catch_up="all",
            catch_up_window_ms=366 * DAY,
            catch_up_limit=10_000,
            overlap="cancel_running",
            pause_on_failure=True,
        )
    )  # fmt: skip

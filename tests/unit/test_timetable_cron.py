"""Cron timetables at the cases that have failed in public, by id; in UTC, start exclusive."""

from __future__ import annotations

import datetime

import pytest

from timeball.cluster.dispatch import cron_times, rules
from timeball.cluster.dispatch.timetable import (
    LAST_INSTANT_MS,
    TimetableError,
    count_between,
    first_after,
    last_times,
    next_fires,
    validate,
    walk,
)
from timeball.cluster.dispatch.zones import Stretch, Zone
from timeball.cluster.state.operations import Cron, Timetable

NEW_YORK = "America/New_York"


def ms(text: str) -> int:
    """Epoch milliseconds of '2026-03-08T07:00' in UTC."""
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def shown(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M")


def cron(expression: str, zone: str = "UTC", until_ms: int = 0) -> Timetable:
    timetable = Timetable((Cron(expression, zone),), until_ms=until_ms)
    validate(timetable)
    return timetable


def names(expression: str, zone: str, after: str, *expected: str) -> None:
    """The times are those expected, asked for one by one, walked, counted and from the end."""
    timetable, at = cron(expression, zone), ms(after)
    wanted = [ms(text) for text in expected]
    assert [shown(fire) for fire in next_fires(timetable, at, len(wanted))] == list(expected)
    assert walk(timetable, at, wanted[-1], 99) == wanted
    assert count_between(timetable, at, wanted[-1]) == len(wanted)
    assert last_times(timetable, at, wanted[-1], 2) == wanted[-2:]
    for fire in wanted:
        following = first_after(timetable, at)
        assert following is not None
        assert following > at
        assert following == fire
        at = following


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("30 2 * * *", "2026-03-07T12:00", "2026-03-08T07:00 2026-03-09T06:30 2026-03-10T06:30"),
        ("0,30 2 * * *", "2026-03-08T06:00", "2026-03-08T07:00 2026-03-09T06:00 2026-03-09T06:30"),
        # Its own time is the instant after the gap.
        ("0 2,3 * * *", "2026-03-08T06:00", "2026-03-08T07:00 2026-03-09T06:00 2026-03-09T07:00"),
        ("15 2,3 * * *", "2026-03-08T06:00", "2026-03-08T07:00 2026-03-08T07:15 2026-03-09T06:15"),
        # The hours around the gap are as ever.
        ("59 1 * * *", "2026-03-07T12:00", "2026-03-08T06:59 2026-03-09T05:59"),
        ("0 3 * * *", "2026-03-07T12:00", "2026-03-08T07:00 2026-03-09T07:00"),
        ("59 59 2 * * *", "2026-03-07T12:00", "2026-03-08T07:00"),
        # What follows the clock has no time in a gap.
        ("*/30 2 * * *", "2026-03-08T06:00", "2026-03-09T06:00 2026-03-09T06:30"),
    ],
)
def test_cron_01_times_in_a_gap_fire_once_right_after_it(expression, after, expected):
    names(expression, NEW_YORK, after, *expected.split())


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00",
         "2026-11-01T05:30 2026-11-02T06:30 2026-11-03T06:30"),
        ("30 1 * * *", "Europe/Dublin", "2026-10-24T12:00",
         "2026-10-25T00:30 2026-10-26T01:30 2026-10-27T01:30"),
        # Of 2025: newer zone data has Cuba stay on summer time through the winter of 2026.
        ("30 0 * * *", "America/Havana", "2025-11-01T12:00",
         "2025-11-02T04:30 2025-11-03T05:30 2025-11-04T05:30"),
        ("30 0 * * *", "Cuba", "2025-11-01T12:00", "2025-11-02T04:30 2025-11-03T05:30"),
        ("0 0 * * *", "America/Havana", "2025-11-01T12:00", "2025-11-02T04:00 2025-11-03T05:00"),
        # Half an hour and two hours are shown twice just so.
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00",
         "2026-04-04T14:45 2026-04-05T15:15"),
        ("30 2 * * *", "Antarctica/Troll", "2026-10-24T12:00",
         "2026-10-25T00:30 2026-10-26T02:30"),
    ],
)  # fmt: skip
def test_cron_03_a_fixed_time_fires_in_the_first_copy_only(expression, zone, after, expected):
    names(expression, zone, after, *expected.split())


@pytest.mark.parametrize("after", ["2026-11-01T05:45", "2026-11-01T06:10"])
def test_cron_04_asked_in_the_second_copy_the_next_is_tomorrow(after):
    names("30 1 * * *", NEW_YORK, after, "2026-11-02T06:30", "2026-11-03T06:30")


def test_cron_04_an_answer_that_is_not_later_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_times, "first_from", lambda *_: ms("2026-11-01T05:30") // 1000)
    at = ms("2026-11-01T06:10")
    with pytest.raises(TimetableError, match="not later") as caught:
        first_after(cron("30 1 * * *", NEW_YORK), at)
    assert caught.value.field == "rules"
    with pytest.raises(TimetableError, match="not later"):
        walk(cron("30 1 * * *", NEW_YORK), at, at + 10**9, 5)
    # Nor one that stands still on the way.
    monkeypatch.setattr(rules, "times_after", lambda *_: iter([at + 1, at + 1]))
    with pytest.raises(TimetableError, match="not later"):
        walk(cron("30 1 * * *", NEW_YORK), at, at + 10**9, 5)


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("*/30 1 * * *", "2026-11-01T04:45",
         "2026-11-01T05:00 2026-11-01T05:30 2026-11-01T06:00 2026-11-01T06:30 2026-11-02T06:00"),
        ("0 * * * *", "2026-11-01T04:30",
         "2026-11-01T05:00 2026-11-01T06:00 2026-11-01T07:00 2026-11-01T08:00"),
        ("0 */2 * * *", "2026-11-01T03:30",
         "2026-11-01T04:00 2026-11-01T07:00 2026-11-01T09:00 2026-11-01T11:00"),
    ],
)  # fmt: skip
def test_cron_05_what_follows_the_clock_fires_in_both_copies(expression, after, expected):
    names(expression, NEW_YORK, after, *expected.split())


def test_cron_05_seconds_follow_real_time_through_the_repeated_hour():
    timetable = cron("*/10 * * * * *", NEW_YORK)
    for hour in range(4, 9):
        start = ms(f"2026-11-01T{hour:02}:00")
        wanted = [start + 10_000 * n for n in range(360)]
        assert next_fires(timetable, start - 1, 360) == wanted
        assert count_between(timetable, start - 1, start + 3_599_999) == 360


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00",
         "2018-11-04T03:00 2018-11-05T02:00 2018-11-06T02:00"),
        ("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00", "2026-03-28T22:00 2026-03-29T21:00"),
        # Day and weekday are those of the missing time.
        ("0 0 * * sun", "Asia/Beirut", "2026-03-28T12:00", "2026-03-28T22:00 2026-04-04T21:00"),
        ("0 0 29 3 *", "Asia/Beirut", "2026-03-28T12:00", "2026-03-28T22:00 2027-03-28T21:00"),
        ("0 0 * 3 sat", "Asia/Beirut", "2026-03-28T12:00", "2027-03-05T22:00"),
    ],
)  # fmt: skip
def test_cron_07_a_midnight_that_is_missing_fires_after_the_gap(
    expression, zone, after, expected
):  # fmt: skip
    names(expression, zone, after, *expected.split())


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00",
         "2011-12-29T22:00 2011-12-30T22:00 2011-12-31T22:00"),
        ("0 12 30 12 *", "Pacific/Apia", "2011-12-28T00:00", "2012-12-29T22:00"),
        ("0 12 * * *", "Pacific/Kwajalein", "1993-08-20T00:00",
         "1993-08-21T00:00 1993-08-22T00:00"),
        # Clocks that go back three hours or less, but for a season or not, repeat no fixed time.
        ("30 23 * * *", "Antarctica/Casey", "2010-03-04T00:00",
         "2010-03-04T12:30 2010-03-05T15:30"),
    ],
)  # fmt: skip
def test_cron_10_a_day_that_a_zone_leaps_over_is_not_made_up_for(
    expression, zone, after, expected
):  # fmt: skip
    names(expression, zone, after, *expected.split())


def test_cron_10_a_change_of_exactly_three_hours_neither_doubles_nor_stalls():
    at = ms("2020-10-03T00:00")
    seen = next_fires(cron("0 * * * *", "Antarctica/Casey"), at, 48)
    seen_fixed = next_fires(cron("30 1 * * *", "Antarctica/Casey"), at, 5)
    for got in (seen, seen_fixed):
        assert got == sorted(set(got))
        assert got[0] > at
    names("30 1 * * *", "Antarctica/Casey", "2020-10-02T12:00",
          "2020-10-02T17:30", "2020-10-03T16:01", "2020-10-04T14:30")  # fmt: skip


def test_cron_11_a_month_begins_at_local_midnight():
    names("0 0 1 * *", "Europe/Berlin", "2026-02-23T00:00",
          "2026-02-28T23:00", "2026-03-31T22:00", "2026-04-30T22:00")  # fmt: skip


def test_cron_16_what_a_zone_always_skips_ends_the_search():
    """The last Sunday of March at half past two never shows on a wall in Berlin."""
    assert first_after(cron("*/30 2 25-31 3 */7", "Europe/Berlin"), ms("2026-01-01T00:00")) is None


def test_cron_17_seconds_come_first():
    start = ms("2026-01-01T00:00")
    assert next_fires(cron("* * * * * *"), start, 3) == [start + 1000, start + 2000, start + 3000]
    assert next_fires(cron("30 5 0 * * *"), start, 1) == [start + 5 * 60_000 + 30_000]


def test_the_ends_of_time_are_answers():
    assert first_after(cron("* * * * *"), -(10**15)) == 0
    assert walk(cron("* * * * *"), -(10**15), 60_000, 9) == [0, 60_000]
    assert count_between(cron("* * * * *"), -(10**15), 60_000) == 2
    assert first_after(cron("* * * * *"), LAST_INSTANT_MS - 30_000) is None
    assert first_after(cron("0 0 29 2 *"), LAST_INSTANT_MS - 86_400_000) is None
    assert first_after(cron("* * * * *"), 10**30) is None
    assert count_between(cron("* * * * *"), LAST_INSTANT_MS - 100_000, 10**30) == 1
    assert walk(cron("* * * * *"), 10**30, 10**31, 9) == []


def test_until_is_the_last_that_counts():
    nine = ms("2026-01-02T09:00")
    start = ms("2026-01-01T00:00")
    assert len(next_fires(cron("0 9 * * *", until_ms=nine), start, 9)) == 2
    assert len(next_fires(cron("0 9 * * *", until_ms=nine - 1), start, 9)) == 1
    assert count_between(cron("0 9 * * *", until_ms=nine - 1), start, nine + 10**9) == 1


def test_the_search_for_a_rare_date_leaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may send such dates, a thousand at once: no walk through every change of time."""
    looks: list[int] = []
    look = Zone.stretch

    def count(zone: Zone, instant_s: int) -> Stretch:
        looks.append(instant_s)
        return look(zone, instant_s)

    monkeypatch.setattr(Zone, "stretch", count)
    leap_sundays = cron("0 9 29 2 */7", "Europe/Berlin")
    assert first_after(leap_sundays, ms("2026-01-01T00:00")) == ms("2032-02-29T08:00")
    assert len(looks) <= 3
    assert len(next_fires(leap_sundays, ms("2026-01-01T00:00"), 3)) == 3
    assert len(looks) <= 15

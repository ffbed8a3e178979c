"""Cron timetables at the cases that have failed in public, by id; in UTC, start exclusive."""

import datetime

import pytest

from timeball.cluster.dispatch.cron import CronExpression
from timeball.cluster.dispatch.timetable import (
    LAST_INSTANT_MS,
    TimetableError,
    count_between,
    first_after,
    next_fires,
    validate,
)
from timeball.cluster.dispatch.zones import Stretch, Zone, zone_names
from timeball.cluster.state.operations import Cron


def ms(text: str) -> int:
    """Epoch milliseconds of '2026-03-08T07:00' in UTC."""
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def fires(expression: str, zone: str, after: str, count: int) -> list[str]:
    return [
        datetime.datetime.fromtimestamp(at / 1000, datetime.UTC).strftime("%Y-%m-%dT%H:%M")
        for at in next_fires(Cron(expression, zone), ms(after), count)
    ]


NEW_YORK = "America/New_York"

OUTCOMES = [
    # (case, expression, zone, after, expected)
    ("CRON-01", "30 2 * * *", NEW_YORK, "2026-03-07T12:00",
     "2026-03-08T07:00 2026-03-09T06:30 2026-03-10T06:30"),
    ("CRON-01 collapsed", "0,30 2 * * *", NEW_YORK, "2026-03-08T06:00",
     "2026-03-08T07:00 2026-03-09T06:00 2026-03-09T06:30"),
    ("CRON-01 with its own time after the gap", "0 2,3 * * *", NEW_YORK, "2026-03-08T06:00",
     "2026-03-08T07:00 2026-03-09T06:00 2026-03-09T07:00"),
    ("CRON-03", "30 1 * * *", NEW_YORK, "2026-10-31T12:00",
     "2026-11-01T05:30 2026-11-02T06:30 2026-11-03T06:30"),
    ("CRON-03 Dublin", "30 1 * * *", "Europe/Dublin", "2026-10-24T12:00",
     "2026-10-25T00:30 2026-10-26T01:30 2026-10-27T01:30"),
    ("CRON-03 Havana", "30 0 * * *", "America/Havana", "2025-11-01T12:00",
     "2025-11-02T04:30 2025-11-03T05:30 2025-11-04T05:30"),
    ("CRON-04 first copy", "30 1 * * *", NEW_YORK, "2026-11-01T05:45",
     "2026-11-02T06:30 2026-11-03T06:30"),
    ("CRON-04 second copy", "30 1 * * *", NEW_YORK, "2026-11-01T06:10",
     "2026-11-02T06:30 2026-11-03T06:30"),
    ("CRON-05 minutes", "*/30 1 * * *", NEW_YORK, "2026-11-01T04:45",
     "2026-11-01T05:00 2026-11-01T05:30 2026-11-01T06:00 2026-11-01T06:30 2026-11-02T06:00"),
    ("CRON-05 hourly", "0 * * * *", NEW_YORK, "2026-11-01T04:30",
     "2026-11-01T05:00 2026-11-01T06:00 2026-11-01T07:00 2026-11-01T08:00"),
    ("CRON-05 two hours", "0 */2 * * *", NEW_YORK, "2026-11-01T03:30",
     "2026-11-01T04:00 2026-11-01T07:00 2026-11-01T09:00 2026-11-01T11:00"),
    ("CRON-07 Sao Paulo", "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00",
     "2018-11-04T03:00 2018-11-05T02:00 2018-11-06T02:00"),
    ("CRON-07 Beirut", "0 0 * * *", "Asia/Beirut", "2026-03-28T12:00",
     "2026-03-28T22:00 2026-03-29T21:00"),
    ("CRON-07 weekday of the missing time", "0 0 * * sun", "Asia/Beirut", "2026-03-28T12:00",
     "2026-03-28T22:00 2026-04-04T21:00"),
    ("CRON-10 daily", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00",
     "2011-12-29T22:00 2011-12-30T22:00 2011-12-31T22:00"),
    ("CRON-10 the missing date", "0 12 30 12 *", "Pacific/Apia", "2011-12-28T00:00",
     "2012-12-29T22:00"),
    ("CRON-11", "0 0 1 * *", "Europe/Berlin", "2026-02-23T00:00",
     "2026-02-28T23:00 2026-03-31T22:00 2026-04-30T22:00"),
    ("CRON-13 or", "0 0 13 * 5", "UTC", "2026-02-01T00:00",
     "2026-02-06T00:00 2026-02-13T00:00 2026-02-20T00:00 2026-02-27T00:00"),
    ("CRON-13 or with all days", "0 9 1-31 * 1", "UTC", "2026-05-01T10:00",
     "2026-05-02T09:00 2026-05-03T09:00 2026-05-04T09:00"),
    ("CRON-13 and", "0 16 */2 * sat", "UTC", "2026-05-01T00:00",
     "2026-05-09T16:00 2026-05-23T16:00 2026-06-13T16:00"),
    ("CRON-13 first Sunday", "0 0 1-7 * */7", "UTC", "2026-01-01T00:00",
     "2026-01-04T00:00 2026-02-01T00:00 2026-03-01T00:00"),
    ("CRON-13 weekday step", "0 0 * * */2", "UTC", "2026-01-01T00:00",
     "2026-01-03T00:00 2026-01-04T00:00 2026-01-06T00:00 2026-01-08T00:00"),
    ("CRON-13 seven", "0 0 * * 7", "UTC", "2026-05-01T12:00",
     "2026-05-03T00:00 2026-05-10T00:00"),
    ("CRON-13 range to seven", "0 0 * * 5-7", "UTC", "2026-05-01T12:00",
     "2026-05-02T00:00 2026-05-03T00:00 2026-05-08T00:00"),
    ("CRON-14 days", "0 0 */10 * *", "UTC", "2026-02-21T00:00",
     "2026-03-01T00:00 2026-03-11T00:00 2026-03-21T00:00"),
    ("CRON-14 the 31st", "0 0 31 * *", "UTC", "2026-01-31T00:00",
     "2026-03-31T00:00 2026-05-31T00:00 2026-07-31T00:00 2026-08-31T00:00"),
    ("CRON-14 minutes", "*/7 * * * *", "UTC", "2026-01-01T00:50",
     "2026-01-01T00:56 2026-01-01T01:00 2026-01-01T01:07"),
    ("CRON-14 hours", "0 */5 * * *", "UTC", "2026-01-01T19:00",
     "2026-01-01T20:00 2026-01-02T00:00 2026-01-02T05:00"),
    ("CRON-16 legal by or", "0 0 31 2 1", "UTC", "2026-01-01T00:00",
     "2026-02-02T00:00 2026-02-09T00:00"),
    ("CRON-16 leap day", "0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00"),
    ("CRON-16 leap day on a Sunday", "0 0 29 2 */7", "UTC", "2088-03-01T00:00",
     "2128-02-29T00:00"),
    ("CRON-17 seconds first", "0 0 9 * * *", "UTC", "2026-01-01T00:00",
     "2026-01-01T09:00 2026-01-02T09:00"),
    ("CRON-18 one minute", "1-1 * * * *", "UTC", "2026-01-01T00:00",
     "2026-01-01T00:01 2026-01-01T01:01"),
    ("CRON-18 from", "5/15 * * * *", "UTC", "2026-01-01T00:00",
     "2026-01-01T00:05 2026-01-01T00:20 2026-01-01T00:35 2026-01-01T00:50 2026-01-01T01:05"),
    ("names", "0 0 1 jan,JUL Mon-fri", "UTC", "2026-06-29T12:00",
     "2026-07-01T00:00 2026-07-02T00:00"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [pytest.param(*row[1:], id=row[0]) for row in OUTCOMES],
)
def test_fires(expression, zone, after, expected):
    validate(Cron(expression, zone))
    wanted = expected.split()
    assert fires(expression, zone, after, len(wanted)) == wanted


def test_cron_05_seconds_follow_real_time_through_the_repeated_hour():
    timetable = Cron("*/10 * * * * *", NEW_YORK)
    for hour in range(4, 9):
        start = ms(f"2026-11-01T{hour:02}:00")
        got = next_fires(timetable, start - 1, 360)
        assert got == [start + 10_000 * n for n in range(360)]


def test_cron_10_a_change_of_exactly_three_hours_neither_doubles_nor_stalls():
    at = ms("2020-10-03T00:00")
    seen = next_fires(Cron("0 * * * *", "Antarctica/Casey"), at, 48)
    seen_fixed = next_fires(Cron("30 1 * * *", "Antarctica/Casey"), at, 5)
    for got in (seen, seen_fixed):
        assert got == sorted(set(got))
        assert got[0] > at


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *"])
def test_cron_16_impossible_dates_are_refused_at_once(expression):
    # By the parser, which does not search.
    with pytest.raises(TimetableError, match="never matches") as caught:
        CronExpression(expression)
    assert caught.value.field == "expression"


def test_cron_16_what_a_zone_always_skips_ends_the_search():
    """The last Sunday of March at half past two never shows on a wall in Berlin."""
    assert first_after(Cron("*/30 2 25-31 3 */7", "Europe/Berlin"), ms("2026-01-01T00:00")) is None


def test_cron_17_seconds_come_first():
    start = ms("2026-01-01T00:00")
    assert next_fires(Cron("* * * * * *"), start, 3) == [start + 1000, start + 2000, start + 3000]
    assert next_fires(Cron("30 5 0 * * *"), start, 1) == [start + 5 * 60_000 + 30_000]
    with pytest.raises(TimetableError, match="7 fields"):
        validate(Cron("0 0 1 1 * 0 2099"))


@pytest.mark.parametrize(
    "zone",
    ["localtime", "right/UTC", "posix/UTC", "Factory", "posixrules", "../../etc/passwd",
     "/etc/localtime", "europe/berlin", "Z", "+05:30", "GMT+5", "", "Europe/Berlin\x00",
     "Europe/Berlin\n", "Europe", "Europe/", "Europe/Berlin/", "tzdata.zi", "\ud800", "x" * 10_000],
)  # fmt: skip
def test_cron_19_only_listed_zones(zone):
    with pytest.raises(TimetableError) as caught:
        validate(Cron("0 0 * * *", zone))
    assert caught.value.field == "time_zone"
    assert len(caught.value.detail) < 300


def test_cron_19_etc_names_count_westwards():
    assert fires("0 0 * * *", "Etc/GMT+5", "2026-01-01T00:00", 1) == ["2026-01-01T05:00"]


def test_every_listed_zone_loads_and_answers():
    after = ms("2026-03-01T00:00")
    assert {"UTC", "Europe/Berlin", "Asia/Kathmandu"} <= zone_names()
    for name in zone_names():
        got = first_after(Cron("30 2 * * *", name), after)
        assert got is not None
        assert after < got <= after + 86_400_000


def test_the_ends_of_time_are_answers():
    assert first_after(Cron("* * * * *"), -(10**15)) == 0
    assert first_after(Cron("* * * * *"), LAST_INSTANT_MS - 30_000) is None
    assert first_after(Cron("0 0 29 2 *"), LAST_INSTANT_MS - 86_400_000) is None
    assert first_after(Cron("* * * * *"), 10**30) is None


def test_until_is_the_last_that_counts():
    nine = ms("2026-01-02T09:00")
    start = ms("2026-01-01T00:00")
    assert len(next_fires(Cron("0 9 * * *", until_ms=nine), start, 9)) == 2
    assert len(next_fires(Cron("0 9 * * *", until_ms=nine - 1), start, 9)) == 1
    assert count_between(Cron("0 9 * * *", until_ms=nine - 1), start, nine + 10**9) == 1


def test_catch_up_rules_are_checked():
    with pytest.raises(TimetableError) as caught:
        validate(Cron("0 9 * * *", catch_up="some"))
    assert caught.value.field == "catch_up"


def test_the_search_for_a_rare_date_leaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may send such dates, a thousand at once: no walk through every change of time."""
    looks: list[int] = []
    look = Zone.stretch

    def count(zone: Zone, instant_s: int) -> Stretch:
        looks.append(instant_s)
        return look(zone, instant_s)

    monkeypatch.setattr(Zone, "stretch", count)
    leap_sundays = "0 9 29 2 */7"
    assert fires(leap_sundays, "Europe/Berlin", "2026-01-01T00:00", 1) == ["2032-02-29T08:00"]
    assert len(looks) <= 3

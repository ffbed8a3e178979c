"""Zone names are one fixed list, and zones are read rightly from the data that is shipped."""

from __future__ import annotations

import base64
import datetime
import io
from importlib import metadata, resources
from zoneinfo import ZoneInfo

import pytest

from timeball.cluster.dispatch import rules
from timeball.cluster.dispatch.errors import TimetableError
from timeball.cluster.dispatch.timetable import first_after, next_fires, validate
from timeball.cluster.dispatch.zones import Stretch, Zone, data_version, zone, zone_names
from timeball.cluster.state.operations import Cron, Dates, Every, Timetable, Window


def seconds(text: str) -> int:
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp())


@pytest.mark.parametrize(
    "name",
    ["localtime", "right/UTC", "posix/UTC", "Factory", "posixrules", "../../etc/passwd",
     "/etc/localtime", "europe/berlin", "Z", "+05:30", "GMT+5", "", "Europe/Berlin\x00",
     "Europe/Berlin\n", "Europe", "Europe/", "Europe/Berlin/", "tzdata.zi", "\ud800", "x" * 10_000],
)  # fmt: skip
def test_cron_19_only_listed_zones(name):
    every = Every(1000, 0)
    for timetable, field in [
        (Timetable((Cron("0 0 * * *", name),)), "rules[0].time_zone"),
        (Timetable((every,), exclusions=(Window("0 0 * * *", name),)), "exclusions[0].time_zone"),
        (Timetable((every,), exclusions=(Dates(((738000, 738000),), name),)),
         "exclusions[0].time_zone"),
    ]:  # fmt: skip
        with pytest.raises(TimetableError) as caught:
            validate(timetable)
        assert caught.value.field == field
        assert len(caught.value.detail) < 300


def test_cron_19_etc_names_count_westwards():
    timetable = Timetable((Cron("0 0 * * *", "Etc/GMT+5"),))
    (at,) = next_fires(timetable, seconds("2026-01-01T00:00") * 1000, 1)
    assert at == seconds("2026-01-01T05:00") * 1000
    assert zone("Etc/GMT+5").offset(at // 1000) == -5 * 3600


def test_every_listed_zone_loads_and_answers():
    after = seconds("2026-03-01T00:00") * 1000
    assert {"UTC", "Europe/Berlin", "Asia/Kathmandu", "Cuba", "US/Pacific"} <= zone_names()
    assert len(zone_names()) > 590
    for name in zone_names():
        got = first_after(Timetable((Cron("30 2 * * *", name),)), after)
        assert got is not None
        assert after < got <= after + 86_400_000


def test_cron_19_a_release_fixes_the_zone_data_and_tells_it():
    (needed,) = [text for text in metadata.requires("timeball") or () if text.startswith("tzdata")]
    pinned, _, _ = needed.partition(";")
    assert pinned.strip() == f"tzdata=={data_version()}"


def test_cron_03_havana_by_the_data_of_before_its_clocks_stood_still(monkeypatch):
    """Since 2026f the data says that Cuba kept UTC-4 through the winter of 2026; by the one before,
    00:30 comes twice on 1 November, and fires once."""
    before = base64.b64decode(HAVANA_2026E)
    shipped = resources.files("tzdata").joinpath("zoneinfo", "America", "Havana").read_bytes()
    assert shipped != before
    place = Zone("America/Havana")
    monkeypatch.setattr(place, "_info", ZoneInfo.from_file(io.BytesIO(before)))
    monkeypatch.setattr(rules, "zone", lambda _name: place)
    after = seconds("2026-10-31T12:00") * 1000
    fires = next_fires(Timetable((Cron("30 0 * * *", "America/Havana"),)), after, 3)
    expected = ["2026-11-01T04:30", "2026-11-02T05:30", "2026-11-03T05:30"]
    assert fires == [seconds(text) * 1000 for text in expected]


HOUR = 3600
CHANGES = [
    # (zone, the instant, hours before, hours after)
    ("America/New_York", "2026-03-08T07:00", -5, -4),
    ("America/Havana", "2026-03-08T05:00", -5, -4),
    ("America/Havana", "2025-11-02T05:00", -4, -5),
    ("Cuba", "2025-11-02T05:00", -4, -5),
    ("Australia/Lord_Howe", "2026-10-03T15:30", 10.5, 11),
    ("Australia/Lord_Howe", "2026-04-04T15:00", 11, 10.5),
    ("Antarctica/Troll", "2026-03-29T01:00", 0, 2),
    ("Antarctica/Troll", "2026-10-25T01:00", 2, 0),
    ("Europe/Dublin", "2026-03-29T01:00", 0, 1),
    ("Europe/Dublin", "2026-10-25T01:00", 1, 0),
    ("Africa/Casablanca", "2026-02-15T02:00", 1, 0),
    ("Africa/Casablanca", "2026-03-22T02:00", 0, 1),
    ("Africa/El_Aaiun", "2026-02-15T02:00", 1, 0),
    ("Antarctica/Casey", "2020-10-03T16:01", 8, 11),
    ("Pacific/Apia", "2011-12-30T10:00", -10, 14),
    ("Pacific/Kwajalein", "1993-08-21T12:00", -12, 12),
    ("America/St_Johns", "2006-04-02T03:31", -3.5, -2.5),
    ("Asia/Gaza", "2026-03-28T00:00", 2, 3),
]


@pytest.mark.parametrize(("name", "at", "before", "after"), CHANGES)
def test_a_change_is_where_the_stretches_meet(name, at, before, after):
    instant = seconds(at)
    earlier, later = zone(name).stretch(instant - 1), zone(name).stretch(instant)
    assert earlier.end_s == later.start_s == instant
    assert (earlier.offset_s, later.offset_s) == (before * HOUR, after * HOUR)
    assert later.before_s == earlier.offset_s


def test_until_leaps_to_what_is_far_and_not_beyond():
    stretch = Stretch(start_s=0, end_s=100 * 86_400, offset_s=HOUR, before_s=0)
    day = 86_400
    # Within the stretch: just when the wall shows it.
    assert stretch.until(5 * day, 50 * day) == 50 * day - HOUR
    # Near its end, clocks may yet show again what they showed.
    assert stretch.until(99 * day, 102 * day) == 100 * day
    assert stretch.until(99 * day, 500 * day) == 100 * day
    # Far beyond: up to two days before, whatever the offsets are by then.
    assert stretch.until(5 * day, 500 * day) == 498 * day - HOUR
    assert stretch.until(5 * day, 101 * day) == 100 * day


HAVANA_2026E = """
VFppZjIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAQAAAAEAAAAAAAAAVFppZjIA
AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABqAAAABAAAABD/////aYcouP////+sYsKA////
/7HTlFD/////snRdQP/////IW2bQ/////8jTUUD/////yjtI0P/////KvG3A/////8wkZVD/////
zJxPwP/////RxAtQ/////9I79cD/////06PtUP/////UG9fA//////dgBdD/////9/99QP/////5
PUTQ//////njU8D/////+ts70P/////7p4ZA//////zFqdD//////YdoQP/////+uADQ//////+n
48AAAAAAAJfi0AAAAAABh8XAAAAAAAJ3xNAAAAAAA3DiQAAAAAAEYOFQAAAAAAU1FMAAAAAABkDD
UAAAAAAHFkhAAAAAAAggpVAAAAAACPd7wAAAAAAKAIdQAAAAAArwakAAAAAAC+BpUAAAAAAM2YbA
AAAAAA3AS1AAAAAADrlowAAAAAAPsqJQAAAAABB9m0AAAAAAEVHq0AAAAAASZrfAAAAAABMxzNAA
AAAAFEaZwAAAAAAVW4LQAAAAABYme8AAAAAAFztk0AAAAAAYBl3AAAAAABkbRtAAAAAAGeY/wAAA
AAAa+yjQAAAAABvPXEAAAAAAHNsK0AAAAAAdrz5AAAAAAB56U1AAAAAAH48gQAAAAAAgWjVQAAAA
ACFvAkAAAAAAIkNR0AAAAAAjTuRAAAAAACQjM9AAAAAAJS7GQAAAAAAmFYrQAAAAACcX4sAAAAAA
J/6nUAAAAAAo99LQAAAAACneiVAAAAAAKte00AAAAAArvmtQAAAAACy3ltAAAAAALZ5NUAAAAAAu
l3jQAAAAAC9+L1AAAAAAMHda0AAAAAAxZ0vQAAAAADJXPNAAAAAAM0ct0AAAAAA0QFlQAAAAADUd
1VAAAAAANjKwUAAAAAA2/bdQAAAAADgbzNAAAAAAOObT0AAAAAA5+67QAAAAADrGtdAAAAAAO9uQ
0AAAAAA8r9JQAAAAAD27ctAAAAAAPo+0UAAAAAA/m1TQAAAAAEBmW9AAAAAARUQ1UAAAAABF84zQ
AAAAAEckF1AAAAAAR9ypUAAAAABJA/lQAAAAAEmzUNAAAAAASuPbUAAAAABLnG1QAAAAAEzM99AA
AAAATYWJ0AAAAABOv07QAAAAAE934NAAAAAAUJX2UAEDAgMCAwIDAgMCAwIDAgMCAwIDAgMCAwID
AgMCAwIDAgMCAwIDAgMCAwIDAgMCAwIDAgMCAwIDAgMCAwIDAgMCAwIDAgMCAwIDAgMCAwIDAgMC
AwIDAgMCAwIDAgMCAwIDAgMCAwIDAgP//7LIAAD//7LAAAT//8fAAQj//7mwAAxMTVQASE1UAENE
VABDU1QACkNTVDVDRFQsTTMuMi4wLzAsTTExLjEuMC8xCg==
"""

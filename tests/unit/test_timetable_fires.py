"""Fires explained: local time, and why one is when it is."""

from __future__ import annotations

import datetime

from timeball.cluster.dispatch.fires import EXCLUDED_SHOWN, Fire, explain_fires
from timeball.cluster.dispatch.timetable import next_fires
from timeball.cluster.state.operations import Cron, Dates, Every, Timetable, Window

NEW_YORK = "America/New_York"
HOUR = 3_600_000


def ms(text: str) -> int:
    return int(datetime.datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


def explained(expression: str, zone: str, after: str, count: int) -> list[Fire]:
    return explain_fires(Timetable((Cron(expression, zone),)), ms(after), count)


def test_most_fires_need_no_reason() -> None:
    (fire,) = explained("30 9 * * *", "Asia/Kathmandu", "2026-01-01T00:00", 1)
    assert fire == Fire(
        nominal_ms=ms("2026-01-01T03:45"),
        local="2026-01-01T09:30:00+05:45",
        time_zone="Asia/Kathmandu",
        due_ms=ms("2026-01-01T03:45"),
        excluded=False,
        why=[],
    )


def test_a_time_in_a_gap_is_told() -> None:
    fire, following = explained("0,30 2 * * *", NEW_YORK, "2026-03-07T12:00", 2)
    assert fire.local == "2026-03-08T03:00:00-04:00"
    change, gap = fire.why
    assert (
        change
        == f"clocks in {NEW_YORK} have gone from UTC-05:00 to UTC-04:00 since the time before"
    )
    assert gap.startswith("clocks go from 02:00 to 03:00 here and never show 02:00 and 02:30;")
    assert following.why == []
    (fire,) = explained("*/5 2 * * *", NEW_YORK, "2026-03-08T00:00", 1)
    assert "never show" not in " ".join(fire.why)
    (fire,) = explained("0-9 2 * * *", NEW_YORK, "2026-03-07T12:00", 1)
    assert "never show 02:00 and 02:01 and 02:02 and others;" in fire.why[1]


def test_a_repeated_time_is_told() -> None:
    (fixed,) = explained("30 1 * * *", NEW_YORK, "2026-10-31T12:00", 1)
    assert fixed.local == "2026-11-01T01:30:00-04:00"
    assert fixed.why == [
        "clocks show 01:30 twice on this day; a fixed time of day fires the first time only"
    ]
    first, second = explained("* 1 * * *", NEW_YORK, "2026-11-01T05:58", 2)
    assert (first.local[-14:], second.local[-14:]) == ("01:59:00-04:00", "01:00:00-05:00")
    assert first.why[-1].endswith("fires both times, and this is the first")
    assert second.why[-1].endswith("fires both times, and this is the second")
    assert "UTC-04:00 to UTC-05:00" in second.why[0]


def test_cron_10_a_day_that_is_leapt_over_shows_as_a_change_of_clocks() -> None:
    fire, _ = explained("0 12 * * *", "Pacific/Apia", "2011-12-29T23:00", 2)
    assert fire.local == "2011-12-31T12:00:00+14:00"
    assert fire.why == [
        "clocks in Pacific/Apia have gone from UTC-10:00 to UTC+14:00 since the time before"
    ]


def test_cron_19_an_etc_name_is_told_to_count_westwards() -> None:
    (fire,) = explained("0 0 * * *", "Etc/GMT+5", "2026-01-01T00:00", 1)
    assert fire.local == "2026-01-01T00:00:00-05:00"
    assert fire.why == ["Etc/GMT+5 means UTC-05:00: such names count westwards"]
    (fire,) = explained("0 0 * * *", "Etc/GMT+0", "2026-01-01T00:00", 1)
    assert fire.why == []


def test_excluded_times_stand_between_the_fires_with_their_reason() -> None:
    timetable = Timetable(
        (Cron("0 9 * * *", "Europe/Berlin"),),
        exclusions=(
            Dates(((datetime.date(2026, 5, 1).toordinal(),) * 2,), "Europe/Berlin"),
            Window("* * * * sat,sun", "Europe/Berlin"),
        ),
    )
    fires = explain_fires(timetable, ms("2026-04-30T00:00"), 2)
    assert [(fire.local[:10], fire.excluded) for fire in fires] == [
        ("2026-04-30", False),
        ("2026-05-01", True),
        ("2026-05-02", True),
        ("2026-05-03", True),
        ("2026-05-04", False),
    ]
    assert fires[1].why == ["excluded by exclusions[0]: the date 2026-05-01 in Europe/Berlin"]
    assert fires[2].why == [
        "excluded by exclusions[1]: the window '* * * * sat,sun' in Europe/Berlin, "
        "where it is 2026-05-02T09:00:00+02:00"
    ]
    assert fires[0].why == fires[4].why == []


def test_a_long_run_of_excluded_times_is_cut_and_says_so() -> None:
    timetable = Timetable((Every(1000, 0),), exclusions=(Window("* 0-22 * * *"),))
    fires = explain_fires(timetable, ms("2026-01-01T00:00"), 2)
    assert [fire.excluded for fire in fires] == [True] * EXCLUDED_SHOWN + [False] * 2
    assert fires[EXCLUDED_SHOWN - 1].why[-1] == "further excluded times follow before the next fire"
    assert fires[EXCLUDED_SHOWN].local == "2026-01-01T23:00:00+00:00"
    # What follows the last fire is told as well, up to the end.
    bounded = Timetable((Every(HOUR, 0),), until_ms=4 * HOUR, exclusions=(Window("* 2-3 * * *"),))
    fires = explain_fires(bounded, 0, 9)
    assert [(fire.nominal_ms // HOUR, fire.excluded) for fire in fires] == [
        (1, False), (2, True), (3, True), (4, False),
    ]  # fmt: skip
    ended = Timetable((Every(HOUR, 0),), until_ms=3 * HOUR, exclusions=(Window("* 2-3 * * *"),))
    fires = explain_fires(ended, 0, 9)
    assert [fire.excluded for fire in fires] == [False, True, True]
    assert all("further" not in reason for fire in fires for reason in fire.why)


def test_jitter_and_the_rules_that_name_a_time_are_told() -> None:
    union = Timetable((Every(HOUR, 250), Cron("0 9 * * *", "Asia/Tokyo"), Every(24 * HOUR, 0)))
    fires = explain_fires(union, ms("2026-01-01T23:30"), 2, offset_ms=1234)
    both, interval = fires
    assert both.local == "2026-01-02T09:00:00+09:00"
    assert both.time_zone == "Asia/Tokyo"
    assert both.due_ms == both.nominal_ms + 1234
    assert both.why == ["named by rules[1] and rules[2]", "jitter makes it due 1234 ms later"]
    assert interval.local == "2026-01-02T00:00:00.250+00:00"
    assert interval.time_zone == "UTC"
    assert interval.why[0] == "named by rules[0]"


def test_fires_are_those_of_the_timetable_within_its_bounds() -> None:
    timetable = Timetable(
        (Cron("*/20 * * * *", NEW_YORK), Every(7 * 60_000, 0)),
        start_ms=ms("2026-11-01T04:00"),
        until_ms=ms("2026-11-01T08:00"),
        exclusions=(Window("30-59 * * * *"),),
    )
    fires = explain_fires(timetable, 0, 500)
    told = [fire.nominal_ms for fire in fires if not fire.excluded]
    assert told == next_fires(timetable, 0, 500)
    assert all(fire.nominal_ms <= timetable.until_ms for fire in fires)
    assert all(
        datetime.datetime.fromisoformat(fire.local).timestamp() * 1000 == fire.nominal_ms
        for fire in fires
    )
    assert explain_fires(timetable, ms("2026-11-01T08:00"), 5) == []

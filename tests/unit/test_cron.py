"""The language of cron expressions, at the cases that have failed in public, by id."""

from __future__ import annotations

import datetime
import re
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from timeball.cluster.dispatch.cron import HORIZON_YEARS, LAST_YEAR, CronExpression, parse
from timeball.cluster.dispatch.cron_days import CronDays
from timeball.cluster.dispatch.cron_text import NICKNAMES
from timeball.cluster.dispatch.errors import TimetableError

EPOCH = datetime.datetime(1970, 1, 1)
SECOND = datetime.timedelta(seconds=1)


def wall(text: str) -> int:
    """Wall seconds of '2026-03-08' or '2026-03-08T07:00:30'."""
    return (datetime.datetime.fromisoformat(text) - EPOCH) // SECOND


def shown(wall_s: int) -> str:
    """As '2026-03-08T07:00', with what is zero left out from the right."""
    text = (EPOCH + wall_s * SECOND).isoformat()
    return text.removesuffix(":00").removesuffix("T00:00")


def first(expression: str, after: str, count: int) -> list[str]:
    """The first matches strictly after that time, asked for one by one and walked at once."""
    cron = CronExpression(expression)
    found: list[int] = []
    at = wall(after)
    while len(found) < count and (at_or_none := cron.first_from(at + 1)) is not None:
        at = at_or_none
        found.append(at)
    assert list(islice(cron.matches(wall(after) + 1, wall("9991-01-01")), count)) == found
    return [shown(at) for at in found]


OUTCOMES = [
    # (case, expression, after, expected)
    ("CRON-13 either", "0 0 13 * 5", "2026-02-01", "2026-02-06 2026-02-13 2026-02-20 2026-02-27"),
    ("CRON-13 either, of all days", "0 9 1-31 * 1", "2026-05-01T10:00",
     "2026-05-02T09:00 2026-05-03T09:00 2026-05-04T09:00"),
    ("CRON-13 both", "0 16 */2 * sat", "2026-05-01",
     "2026-05-09T16:00 2026-05-23T16:00 2026-06-13T16:00"),
    ("CRON-13 first Sunday", "0 0 1-7 * */7", "2026-01-01", "2026-01-04 2026-02-01 2026-03-01"),
    ("CRON-13 weekday step", "0 0 * * */2", "2026-01-01",
     "2026-01-03 2026-01-04 2026-01-06 2026-01-08"),
    ("CRON-13 seven", "0 0 * * 7", "2026-05-01T12:00", "2026-05-03 2026-05-10"),
    ("CRON-13 up to seven", "0 0 * * 5-7", "2026-05-01T12:00",
     "2026-05-02 2026-05-03 2026-05-08"),
    ("CRON-13 a star further on is no leading one", "0 0 13,*/30 * 5", "2026-02-01",
     "2026-02-06 2026-02-13 2026-02-20 2026-02-27 2026-03-01"),
    ("CRON-13 last day, or Mondays", "0 0 L * 1", "2026-02-20",
     "2026-02-23 2026-02-28 2026-03-02"),
    ("CRON-13 odd days that are last Fridays", "0 0 */2 * 5L", "2026-01-01",
     "2026-02-27 2026-03-27 2026-05-29 2026-07-31"),
    ("CRON-14 days", "0 0 */10 * *", "2026-02-21", "2026-03-01 2026-03-11 2026-03-21"),
    ("CRON-14 the 31st", "0 0 31 * *", "2026-01-31",
     "2026-03-31 2026-05-31 2026-07-31 2026-08-31"),
    ("CRON-14 minutes", "*/7 * * * *", "2026-01-01T00:50",
     "2026-01-01T00:56 2026-01-01T01:00 2026-01-01T01:07"),
    ("CRON-14 hours", "0 */5 * * *", "2026-01-01T19:00",
     "2026-01-01T20:00 2026-01-02 2026-01-02T05:00"),
    ("CRON-16 Mondays of February", "0 0 31 2 1", "2026-01-01", "2026-02-02 2026-02-09"),
    ("CRON-16 a 31st that is never", "0 0 31W 2 1", "2026-01-01", "2026-02-02 2026-02-09"),
    ("CRON-16 a day before the first", "0 0 L-30 2 1", "2026-01-01", "2026-02-02 2026-02-09"),
    ("CRON-16 leap day", "0 0 29 2 *", "2096-03-01", "2104-02-29"),
    ("CRON-16 leap day on a Sunday", "0 0 29 2 */7", "2088-03-01", "2128-02-29"),
    ("CRON-16 in leap years alone", "0 0 L-28 2 *", "2026-01-01", "2028-02-01 2032-02-01"),
    ("CRON-16 a fifth Sunday of February", "0 0 * 2 0#5", "2026-01-01", "2032-02-29 2060-02-29"),
    ("CRON-17 seconds first", "0 0 9 * * *", "2026-01-01", "2026-01-01T09:00 2026-01-02T09:00"),
    ("CRON-17 every second", "* * * * * *", "2026-01-01",
     "2026-01-01T00:00:01 2026-01-01T00:00:02"),
    ("CRON-17 all six", "30 15 4 3 2 *", "2026-01-01", "2026-02-03T04:15:30 2027-02-03T04:15:30"),
    ("CRON-18 one minute", "1-1 * * * *", "2026-01-01", "2026-01-01T00:01 2026-01-01T01:01"),
    ("CRON-18 from five on", "5/15 * * * *", "2026-01-01",
     "2026-01-01T00:05 2026-01-01T00:20 2026-01-01T00:35 2026-01-01T00:50 2026-01-01T01:05"),
    ("CRON-18 names", "0 0 1 jan,JUL Mon-fri", "2026-06-29T12:00", "2026-07-01 2026-07-02"),
    ("CRON-22 L", "0 0 L * *", "2026-01-01", "2026-01-31 2026-02-28 2026-03-31"),
    ("CRON-22 L in a leap year", "0 0 l 2 *", "2026-03-01", "2027-02-28 2028-02-29"),
    ("CRON-22 LW", "0 0 LW * *", "2026-01-01", "2026-01-30 2026-02-27 2026-03-31"),
    ("CRON-22 LW of a month that ends on a Sunday", "0 0 lw 5 *", "2026-01-01", "2026-05-29"),
    ("CRON-22 L-3", "0 0 L-3 * *", "2026-01-01", "2026-01-28 2026-02-25 2026-03-28"),
    ("CRON-22 L-30", "0 0 L-30 * *", "2026-01-01", "2026-03-01 2026-05-01 2026-07-01"),
    ("CRON-22 15W", "0 0 15W * *", "2026-01-01", "2026-01-15 2026-02-16 2026-03-16"),
    ("CRON-22 a Saturday's W", "0 0 15w 8 *", "2026-01-01", "2026-08-14 2027-08-16"),
    ("CRON-22 1W stays in its month", "0 0 1W * *", "2026-01-01", "2026-02-02 2026-03-02"),
    ("CRON-22 1W of a month that begins on a Saturday", "0 0 1W 8 *", "2026-01-01", "2026-08-03"),
    ("CRON-22 31W is not in short months", "0 0 31W * *", "2026-01-01",
     "2026-01-30 2026-03-31 2026-05-29 2026-07-31"),
    ("CRON-22 28W stays in its month", "0 0 28W 2 *", "2026-01-01", "2026-02-27 2027-02-26"),
    ("CRON-22 5L", "0 0 * * 5L", "2026-01-01", "2026-01-30 2026-02-27"),
    ("CRON-22 friL", "0 0 * * friL", "2026-01-01", "2026-01-30 2026-02-27"),
    ("CRON-22 7L is a Sunday", "0 0 * * 7L", "2026-01-01", "2026-01-25 2026-02-22"),
    ("CRON-22 0#5", "0 0 * * 0#5", "2026-01-01", "2026-03-29 2026-05-31"),
    ("CRON-22 7#1 is a Sunday", "0 0 * * 7#1", "2026-01-01", "2026-01-04 2026-02-01"),
    ("CRON-22 FRI#2", "0 0 * * FRI#2", "2026-01-01", "2026-01-09 2026-02-13"),
    ("CRON-22 any day of month", "0 0 ? * 1", "2026-01-01", "2026-01-05 2026-01-12"),
    ("CRON-22 any day of week", "0 0 13 * ?", "2026-01-01", "2026-01-13 2026-02-13"),
    ("CRON-22 any day", "0 0 ? * ?", "2026-01-01", "2026-01-02 2026-01-03"),
    ("CRON-22 lists", "0 0 1,15W,L-1,LW * *", "2026-02-01",
     "2026-02-16 2026-02-27 2026-03-01 2026-03-16 2026-03-30 2026-03-31"),
    ("CRON-22 lists of weekdays", "0 0 * * mon#1,wed,5L", "2026-01-01",
     "2026-01-05 2026-01-07 2026-01-14 2026-01-21 2026-01-28 2026-01-30 2026-02-02"),
    ("@yearly", "@yearly", "2026-01-01", "2027-01-01 2028-01-01"),
    ("@annually", "@annually", "2026-01-01", "2027-01-01 2028-01-01"),
    ("@monthly", "@monthly", "2026-01-01", "2026-02-01 2026-03-01"),
    ("@weekly", "@weekly", "2026-01-01", "2026-01-04 2026-01-11"),
    ("@daily", " @Daily ", "2026-01-01", "2026-01-02 2026-01-03"),
    ("@midnight", "@MIDNIGHT", "2026-01-01", "2026-01-02 2026-01-03"),
    ("@hourly", "@hourly", "2026-01-01", "2026-01-01T01:00 2026-01-01T02:00"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "after", "expected"), [pytest.param(*row[1:], id=row[0]) for row in OUTCOMES]
)
def test_outcomes(expression: str, after: str, expected: str) -> None:
    wanted = expected.split()
    assert first(expression, after, len(wanted)) == wanted


GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "cron.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\| `([^`]+)` \| [^|]+ \| (\d[^|]*) \|$", GUIDE, re.MULTILINE)


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) == len(GUIDE.split("## Examples")[1].split("\n| `")) - 1 > 10


@pytest.mark.parametrize(("expression", "times"), EXAMPLES)
def test_the_examples_of_the_guide(expression: str, times: str) -> None:
    wanted = [wall(time) for time in times.split(", ")]
    cron = CronExpression(expression)
    assert list(islice(cron.matches(wall("2026-01-01"), wall("9991-01-01")), len(wanted))) == wanted


def test_the_guide_names_every_nickname() -> None:
    rows = re.findall(r"^\| (`@[^|]+) \| `([^`]+)` \|$", GUIDE, re.MULTILINE)
    told = {name: text for names, text in rows for name in re.findall(r"`([^`]+)`", names)}
    assert told == NICKNAMES


@pytest.mark.parametrize("nickname", NICKNAMES)
def test_a_nickname_follows_the_clock_as_its_expression_does(nickname: str) -> None:
    assert CronExpression(nickname).follows_clock == (nickname == "@hourly")


def test_a_star_before_the_day_follows_the_clock() -> None:
    for text in ("*/10 0 3 * * *", "0 */5 3 * * *", "0 0 * * * *", "0 * * * *", "* 3 * * *"):
        assert CronExpression(text).follows_clock, text
    for text in ("0 3 * * *", "0 0 3 ? * *", "0 0,*/12 3 * * *", "0 0-59 3 * * *"):
        assert not CronExpression(text).follows_clock, text


REFUSED = [
    # (case, expression, what the refusal says)
    ("CRON-16", "0 0 30 2 *", "day of month: never matches"),
    ("CRON-16", "0 0 31 2 *", "day of month: never matches"),
    ("CRON-16", "0 0 31 4,6,9,11 *", "day of month: never matches"),
    ("CRON-16 both", "0 0 31 2 */2", "never matches.* that is also a day of week named"),
    ("CRON-16 both", "0 0 */30 4 0#2", "never matches.* that is also a day of week named"),
    ("CRON-16 W", "0 0 31W 2 *", "day of month: never matches"),
    ("CRON-16 W", "0 0 30W 2 ?", "day of month: never matches"),
    ("CRON-16 L", "0 0 L-30 2 *", "day of month: never matches"),
    ("CRON-16 L", "0 0 L-29 2 *", "day of month: never matches"),
    ("CRON-16 L", "0 0 L-30,31,31W apr,jun,sep,nov *", "day of month: never matches"),
    ("CRON-17", "0 0 1 1 * 0 2099", "has 7 fields"),
    ("CRON-17", "* * * *", "has 4 fields"),
    ("CRON-18 wrapped", "0 22-2 * * *", "hour: .*22-23 and 0-2"),
    ("CRON-18 wrapped", "0 0 * * fri-mon", "day of week: .*backwards"),
    ("CRON-18 wrapped", "0 0 * * sat-sun", "day of week: .*backwards"),
    ("CRON-18 wrapped", "5-1 * * * *", "minute: .*backwards"),
    ("CRON-18 step", "*/90 * * * *", "minute: .*no second value; it must be 1 to 59"),
    ("CRON-18 step", "0 */25 * * *", "hour: .*no second value"),
    ("CRON-18 step", "*/0 * * * *", "minute: .*no second value"),
    ("CRON-18 step", "50/15 * * * *", "minute: .*no second value; it must be 1 to 9"),
    ("CRON-18 step", "10-20/15 * * * *", "minute: .*no second value"),
    ("CRON-18 step", "1/2/3 * * * *", "minute: "),
    ("CRON-18 step", "1/ * * * *", "minute: "),
    ("CRON-18 step", "/2 * * * *", "minute: "),
    ("CRON-18 commas", "1,,2 * * * *", "minute: an empty item"),
    ("CRON-18 commas", ",1 * * * *", "minute: an empty item"),
    ("CRON-18 commas", "0 0 1, * *", "day of month: an empty item"),
    ("CRON-18 commas", "0 0 * * ,1", "day of week: an empty item"),
    ("CRON-18 bounds", "60 * * * *", "minute: 60 is not within 0-59"),
    ("CRON-18 bounds", "60 * * * * *", "second: 60 is not within 0-59"),
    ("CRON-18 bounds", "0 24 * * *", "hour: 24 is not within 0-23"),
    ("CRON-18 bounds", "0 0 0 * *", "day of month: 0 is not within 1-31"),
    ("CRON-18 bounds", "0 0 32 * *", "day of month: 32 is not within"),
    ("CRON-18 bounds", "0 0 * 0 *", "month: 0 is not within 1-12"),
    ("CRON-18 bounds", "0 0 * 13 *", "month: 13 is not within"),
    ("CRON-18 bounds", "0 0 * * 8", "day of week: 8 is not within 0-7"),
    ("CRON-18 numbers", "-5 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "1.5 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "*-5 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "*5 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "1-2-3 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "+1 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "1e1 * * * *", "minute: .*not a number"),
    ("CRON-18 numbers", "000 * * * *", "minute: .*not a number"),
    ("CRON-18 names", "jan * * * *", "minute: .*not a number"),
    ("CRON-18 names", "0 0 mon * *", "day of month: .*not a number"),
    ("CRON-18 names", "0 0 * mon *", "month: .*not a number; .* names such as jan"),
    ("CRON-18 names", "0 0 * * monday", "day of week: .*not a number; .* names such as mon"),
    ("CRON-18 hashes", "H * * * *", "minute: .*not a number"),
    ("CRON-18 hashes", "H(0-3) * * * *", "minute: .*not a number"),
    ("CRON-22 weekday", "0 0 * * L5", "day of week: 'L5': .*nL, as in 5L"),
    ("CRON-22 weekday", "0 0 * * L", "day of week: 'L': .*nL, as in 5L"),
    ("CRON-22 weekday", "0 0 * * L-3", "day of week: 'L-3': .*nL"),
    ("CRON-22 weekday", "0 0 * * 8L", "day of week: 8 is not within 0-7"),
    ("CRON-22 weekday", "0 0 * * 1-5L", "day of week: "),
    ("CRON-22 weekday", "0 0 * * */2L", "day of week: "),
    ("CRON-22 weekday", "0 0 * * 5L/2", "day of week: "),
    ("CRON-22 weekday", "0 0 * * 15W", "day of week: "),
    ("CRON-22 nth", "0 0 * * 1#6", "day of week: '1#6': .*k from 1 to 5; the last is nL"),
    ("CRON-22 nth", "0 0 * * 1#0", "day of week: '1#0': .*k from 1 to 5"),
    ("CRON-22 nth", "0 0 * * 1#L", "day of week: .*the last is nL"),
    ("CRON-22 nth", "0 0 * * 8#1", "day of week: 8 is not within 0-7"),
    ("CRON-22 nth", "0 0 * * #1", "day of week: "),
    ("CRON-22 nth", "0 0 * * 1#", "day of week: "),
    ("CRON-22 nth", "0 0 * * 1#1#1", "day of week: "),
    ("CRON-22 nth", "0 0 * * 1-5#1", "day of week: "),
    ("CRON-22 nth", "0 0 1#1 * *", "day of month: "),
    ("CRON-22 day", "0 0 L-0 * *", "day of month: 'L-0': .*n from 1 to 30"),
    ("CRON-22 day", "0 0 L-31 * *", "day of month: 'L-31': .*n from 1 to 30"),
    ("CRON-22 day", "0 0 L- * *", "day of month: 'L-': "),
    ("CRON-22 day", "0 0 L-3W * *", "day of month: 'L-3W': "),
    ("CRON-22 day", "0 0 L3 * *", "day of month: .*L, LW, L-n and nW"),
    ("CRON-22 day", "0 0 5L * *", "day of month: .*L, LW, L-n and nW"),
    ("CRON-22 day", "0 0 W * *", "day of month: 'W': .*nW"),
    ("CRON-22 day", "0 0 WL * *", "day of month: "),
    ("CRON-22 day", "0 0 W15 * *", "day of month: "),
    ("CRON-22 day", "0 0 0W * *", "day of month: '0W': .*n from 1 to 31"),
    ("CRON-22 day", "0 0 32W * *", "day of month: '32W': .*n from 1 to 31"),
    ("CRON-22 day", "0 0 1-5W * *", "day of month: '1-5W': "),
    ("CRON-22 day", "0 0 1-L * *", "day of month: "),
    ("CRON-22 day", "0 0 L/2 * *", "day of month: "),
    ("CRON-22 elsewhere", "0 L * * *", "hour: "),
    ("CRON-22 elsewhere", "0 0 * L *", "month: "),
    ("CRON-22 any", "? * * * *", "minute: '[?]': .*write [*]"),
    ("CRON-22 any", "0 0 * ? *", "month: '[?]': .*write [*]"),
    ("CRON-22 any", "0 0 ?,1 * *", "day of month: '[?]': [?] stands alone"),
    ("CRON-22 any", "0 0 ?/2 * *", "day of month: '[?]': [?] stands alone"),
    ("CRON-22 any", "0 0 * * 1,?", "day of week: '[?]': [?] stands alone"),
    ("nickname", "@reboot", "@reboot: a cluster does not reboot"),
    ("nickname", "@Every 5m", "@every: .* type every, with interval_ms"),
    ("nickname", "@daily *", "@daily stands alone"),
    ("nickname", "@fortnightly", "'@fortnightly' is not one of @yearly .* @hourly"),
    ("nickname", "0 @daily", "has 2 fields"),
    ("nickname", "0 0 * * @daily", "day of week: "),
    ("text", "", "has 0 fields"),
    ("text", " ", "has 0 fields"),
    ("text", "* * * * *\x00", "printable ASCII"),
    ("text", "* * * *\u00a0*", "printable ASCII"),
    ("text", "\u0661 * * * *", "printable ASCII"),
    ("text", "* * * * *\n* *", "printable ASCII"),
    ("text", "1," * 200 + "1 * * * *", "longer than 256"),
    ("text", "*" * 300, "longer than 256"),
    ("text", "9" * 246 + " * * * *", "minute: '9+' is not a number"),
    ("text", "0 0 " + "L" * 240 + "W * *", "day of month: 'L+': "),
    ("text", "@" * 256, "is not one of"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "hint"),
    [pytest.param(*row[1:], id=f"{row[0]}: {row[1][:20]!r}") for row in REFUSED],
)
def test_what_is_refused_and_the_hint(expression: str, hint: str) -> None:
    for window in (False, True):
        with pytest.raises(TimetableError, match=f"^expression: .*{hint}") as caught:
            CronExpression(expression, window=window)
        assert caught.value.field == "expression"
        assert len(caught.value.detail) < 300


HOSTILE = [
    ",".join(["0-59"] * 49) + " * * * *",
    ",".join(["*/1"] * 62) + " * * * *",
    "0 0 " + ",".join(["31W"] * 61) + " 2 *",
    "0 0 " + ",".join(["L-30"] * 48) + " 2 *",
    "0 0 " + ",".join(["L", "LW", "1W"] * 26) + " * *",
    "0 0 */30 4 " + ",".join(["0#2"] * 60),
    "0 0 29 2 " + ",".join(["*/7"] * 60),
    "0 0 * * " + ",".join(["0#5"] * 60),
    "," * 256,
    "@" * 256,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_cron_16_hostile_text_costs_bounded_work(text: str) -> None:
    """Counted in calls of Python's, not in time, so that a slow machine passes too."""
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        CronExpression(text).first_from(wall("2026-01-01"))
    except TimetableError:
        pass
    finally:
        sys.setprofile(None)
    assert calls < 5_000


def test_cron_16_the_impossible_is_found_by_shapes_and_not_by_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(CronDays, "_of", fail)
    with pytest.raises(TimetableError, match="never matches"):
        CronExpression("0 0 30 2 *")


def test_no_expression_is_silent_for_as_long_as_the_horizon() -> None:
    """The rarest dates: 29 February on a given weekday, through the 400 years of the calendar."""
    for weekday in range(7):
        cron = CronExpression(f"0 0 ? 2 {weekday}#5")
        leaps = list(cron.matches(wall("1970-01-01"), wall("2430-01-01")))
        pauses = [later - earlier for earlier, later in pairwise(leaps)]
        assert max(pauses) // 86_400 <= 40 * 366 < HORIZON_YEARS * 365


@pytest.mark.parametrize(
    ("expression", "begins", "ends"),
    [
        ("0 3 * * *", "2026-01-01T03:00", "2026-01-01T03:01"),
        ("@daily", "2026-01-01T00:00", "2026-01-01T00:01"),
        ("* 9-17 * * 1-5", "2026-01-01T09:00", "2026-01-01T18:00"),
        ("* * * * 6,0", "2026-01-03T00:00", "2026-01-05T00:00"),
        ("* * L,1 * *", "2026-01-01T00:00", "2026-01-02T00:00"),
        ("* * 31,1 * *", "2026-01-31T00:00", "2026-02-02T00:00"),
        ("30-59 * * * *", "2026-01-01T00:30", "2026-01-01T01:00"),
        ("*/2 * * * *", "2026-01-01T00:00", "2026-01-01T00:01"),
        ("59,0 * * * *", "2026-01-01T00:59", "2026-01-01T01:01"),
        ("59,0 23,0 * * *", "2026-01-01T23:59", "2026-01-02T00:01"),
        ("* 23,0 * * *", "2026-01-01T23:00", "2026-01-02T01:00"),
        ("* * * 1-11 *", "2026-01-01T00:00", "2026-12-01T00:00"),
        ("* * 1-28,30,31,L-1,L-2 * *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("10-20 0 3 * * *", "2026-01-01T03:00:10", "2026-01-01T03:00:21"),
        ("59,0 59,0 23,0 * * *", "2026-01-01T23:59:59", "2026-01-02T00:00:01"),
    ],
)  # fmt: skip
def test_a_window_ends_at_the_first_second_that_does_not_match(
    expression: str, begins: str, ends: str
) -> None:
    window = parse(expression, window=True)
    for at in (wall(begins), wall(begins) + 1 if wall(ends) > wall(begins) + 1 else wall(begins)):
        assert window.includes(at)
        assert window.first_not_from(at) == wall(ends)
    assert window.first_not_from(wall(ends)) == wall(ends)
    assert window.includes(wall(ends) - 1)
    assert not window.includes(wall(ends))


def test_a_window_that_covers_all_never_ends_and_is_not_walked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    look = CronDays._of

    def count(days: CronDays, year: int, month: int) -> tuple[int, tuple[int, ...]]:
        nonlocal looks
        looks += 1
        assert looks < 100
        return look(days, year, month)

    monkeypatch.setattr(CronDays, "_of", count)
    at = wall("2026-01-01T12:34:56")
    for expression in ("* * * * *", "* * * * * *", "* * 1-31 * 1", "* * 1-28,29-31 * ?"):
        assert parse(expression, window=True).first_not_from(at) is None
    assert parse("* * * * *").first_not_from(at) == at


def test_a_window_of_five_fields_is_not_an_expression_of_five_fields() -> None:
    nine = wall("2026-01-01T09:00")
    assert list(parse("0 9 * * *").matches(nine, nine + 120)) == [nine]
    assert list(parse("0 9 * * *", window=True).matches(nine, nine + 120)) == list(
        range(nine, nine + 60)
    )


def test_counts_leap_over_days(monkeypatch: pytest.MonkeyPatch) -> None:
    months = 0
    look = CronDays._of

    def count(days: CronDays, year: int, month: int) -> tuple[int, tuple[int, ...]]:
        nonlocal months
        months += 1
        return look(days, year, month)

    monkeypatch.setattr(CronDays, "_of", count)
    cron = CronExpression("0 */6 * * *")
    assert cron.count(wall("2026-01-01"), wall("2036-01-01")) == 3652 * 4
    assert months <= 10 * 12 + 3


def test_the_ends_of_the_calendar_are_answers() -> None:
    every, window = CronExpression("* * * * *"), CronExpression("0 0-9 * * *", window=True)
    end = wall(f"{LAST_YEAR + 1}-01-01")
    assert every.first_from(end - 60) == end - 60
    assert every.first_from(end - 59) is None
    assert list(every.matches(end - 120, 10**30)) == [end - 120, end - 60]
    assert every.count(end - 120, end + 10**9) == 2
    for last in ("* 12-23,0 * * *", "* * 2-31 * *"):
        assert CronExpression(last, window=True).first_not_from(end - 60) is None
    for far in (10**30, -(10**30)):
        assert not every.includes(far)
    assert window.first_not_from(10**30) is None
    assert list(every.matches(10**30, 10**31)) == []
    assert every.first_from(-(10**30)) == wall("0001-01-01")
    assert every.count(-(10**30), wall("0001-01-01T00:10")) == 10
    assert list(every.matches(5, 5)) == []
    assert list(every.matches(0, 60)) == [0]
    assert list(every.matches(60, 121)) == [60, 120]
    assert every.count(60, 60) == every.count(61, 60) == 0

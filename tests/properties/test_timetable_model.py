"""Timetables against a model that steps minute by minute through the clocks on the wall."""

import datetime
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.cluster.dispatch.timetable import (
    TimetableError,
    count_between,
    first_after,
    next_fires,
    validate,
)
from timeball.cluster.state.operations import Cron, Every

# (zone, around which day): spring and autumn, half hours, midnight, negative DST, date line.
PLACES = [
    ("UTC", "2026-03-08"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("Europe/Dublin", "2026-10-25"),
    ("America/Havana", "2025-11-02"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("Asia/Beirut", "2026-03-29"),
    ("Asia/Kathmandu", "1986-01-01"),
    ("Pacific/Apia", "2011-12-30"),
    ("Africa/Casablanca", "2026-02-15"),
    ("America/Argentina/San_Luis", "2008-01-01"),
]
MINUTE = 60_000
WINDOW_DAYS = 2


@lru_cache(maxsize=64)
def wall_minutes(zone: str, day: str) -> list[tuple[int, datetime.datetime]]:
    """(instant in ms, wall time) for each minute of the days around `day`."""
    # Not the host's data, which may be older than the data that the product ships.
    with resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).open("rb") as data:
        place = ZoneInfo.from_file(data)
    start = datetime.datetime.fromisoformat(f"{day}T00:00+00:00") - datetime.timedelta(
        days=WINDOW_DAYS
    )
    first = int(start.timestamp())
    return [
        (at * 1000, datetime.datetime.fromtimestamp(at, place).replace(tzinfo=None))
        for at in range(first, first + 2 * WINDOW_DAYS * 86_400, 60)
    ]


def in_item(text: str, value: int, low: int, high: int) -> bool:
    span, _, step = text.partition("/")
    if span != "*":
        first, dash, last = span.partition("-")
        low, high = int(first), int(last) if dash else (high if step else int(first))
    return value in range(low, high + 1, int(step or 1))


def in_field(text: str, value: int, low: int, high: int) -> bool:
    return any(in_item(item, value, low, high) for item in text.split(","))


def shows(fields: list[str], wall: datetime.datetime) -> bool:
    minute, hour, day, month, weekday = fields
    by_day = in_field(day, wall.day, 1, 31)
    number = wall.isoweekday() % 7
    by_weekday = in_field(weekday, number, 0, 7) or (number == 0 and in_field(weekday, 7, 0, 7))
    star = day.startswith("*") or weekday.startswith("*")
    return (
        in_field(minute, wall.minute, 0, 59)
        and in_field(hour, wall.hour, 0, 23)
        and in_field(month, wall.month, 1, 12)
        and ((by_day and by_weekday) if star else (by_day or by_weekday))
    )


def model(expression: str, zone: str, day: str) -> list[int]:
    """All fires in the window, from what Debian's cron documents."""
    fields = expression.split()
    follows_clock = fields[0].startswith("*") or fields[1].startswith("*")
    fires = []
    shown: set[datetime.datetime] = set()
    minutes = wall_minutes(zone, day)
    previous = minutes[0][1] - datetime.timedelta(minutes=1)
    for at, wall in minutes:
        jump = wall - previous - datetime.timedelta(minutes=1)
        skipped = []
        if datetime.timedelta(0) < jump <= datetime.timedelta(hours=3):
            count = jump // datetime.timedelta(minutes=1)
            skipped = [previous + datetime.timedelta(minutes=n + 1) for n in range(count)]
        if follows_clock:
            fire = shows(fields, wall)
        else:
            again = wall in shown
            fire = (shows(fields, wall) and not again) or any(
                shows(fields, moment) for moment in skipped
            )
        if fire:
            fires.append(at)
        shown.add(wall)
        previous = wall
    return fires


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted)
    item = st.one_of(
        number.map(str),
        pair.map(lambda p: f"{p[0]}-{p[1]}"),
        st.tuples(pair, st.integers(1, high)).map(
            lambda t: f"{t[0][0]}-{t[0][1]}/{min(t[1], max(1, t[0][1] - t[0][0]))}"
        ),
        st.integers(low, high - 1).map(lambda n: f"{n}/1"),
    )
    return st.one_of(
        st.just("*"),
        st.integers(1, high - low).map(lambda n: f"*/{n}"),
        item,
        st.lists(item, min_size=2, max_size=3).map(",".join),
    )


def no_open_step(text: str) -> bool:
    return all("-" in item or "*" in item or "/" not in item for item in text.split(","))


EXPRESSIONS = st.tuples(
    st.one_of(numbers(0, 59), st.sampled_from(["0", "30", "0,30"])),
    st.one_of(numbers(0, 23), st.sampled_from(["0", "1", "2", "3", "1-3", "*"])),
    st.one_of(st.just("*"), numbers(1, 28)),
    st.just("*"),
    st.one_of(st.just("*"), numbers(0, 7)),
).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, st.sampled_from(PLACES), st.integers(0, 2 * 1440 * MINUTE))
def test_cron_04_fires_equal_the_walls(expression, place, offset):
    zone, day = place
    wanted = model(expression, zone, day)
    minutes = wall_minutes(zone, day)
    # The first window day only warms the model up: it does not see what came before.
    start = minutes[1440][0] + offset
    end = minutes[-1][0]
    timetable = Cron(expression, zone)
    expected = [at for at in wanted if at > start]
    got = []
    at = first_after(timetable, start)
    while at is not None and at <= end and len(got) < 200:
        assert at > (got[-1] if got else start)
        got.append(at)
        at = first_after(timetable, at)
    assert got == expected[:200]
    assert count_between(timetable, start, end) == len(expected)


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(numbers(0, 59), st.sampled_from(["0", "30", "0,30"])),
    st.one_of(numbers(0, 23), st.sampled_from(["0", "1", "2", "3", "1-3", "*"])),
    st.sampled_from(PLACES),
    st.integers(-1, 1),
    st.integers(1, 1000),
)
def test_a_rare_date_found_from_afar_is_the_walls(minute, hour, place, shift, days_before):
    """Asked long before, the search leaps over what cannot match, and must land before the date."""
    zone, day = place
    date = datetime.date.fromisoformat(day) + datetime.timedelta(days=shift)
    wanted = model(f"{minute} {hour} {date.day} * *", zone, day)
    first_ms, _ = wall_minutes(zone, day)[0]
    timetable = Cron(f"{minute} {hour} {date.day} {date.month} *", zone)
    at = first_after(timetable, first_ms - days_before * 1440 * MINUTE)
    while at is not None and at < first_ms:
        at = first_after(timetable, at)
    assert at is not None
    if wanted:
        assert at == wanted[0]
    else:
        assert at > wall_minutes(zone, day)[-1][0]


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(
        numbers(0, 59), numbers(0, 23), st.one_of(st.just("*"), numbers(1, 28)), numbers(1, 12),
        st.one_of(st.just("*"), numbers(0, 6).filter(no_open_step)),
    ),
    st.integers(0, 20 * 366 * 1440),
)  # fmt: skip
def test_fires_in_utc_equal_another_crons(fields, minute):
    """croniter judges where no clock changes; it misreads a-a, which is written a here.

    In the day of week n/m stops at 6 for croniter and at 7 here, as in cronie.
    """
    plain = [
        ",".join(
            item.partition("-")[0] if item.partition("/")[0].partition("-")[0]
            == item.partition("/")[0].partition("-")[2] else item
            for item in field.split(",")
        )
        for field in fields
    ]  # fmt: skip
    start = datetime.datetime(2020, 1, 1) + datetime.timedelta(minutes=minute)
    judge = croniter.croniter(
        " ".join(plain), start, implement_cron_bug=True, max_years_between_matches=60
    )
    at = int(start.replace(tzinfo=datetime.UTC).timestamp() * 1000)
    for got in next_fires(Cron(" ".join(fields)), at, 3):
        wanted = judge.get_next(datetime.datetime).replace(tzinfo=datetime.UTC)
        assert got == int(wanted.timestamp() * 1000)


@given(
    st.integers(100, 10**9),
    st.integers(0, 2 * 10**12),
    st.integers(-(10**6), 4 * 10**12),
    st.integers(0, 10**6),
)
def test_every_never_drifts(interval, anchor, after, span):
    timetable = Every(interval, anchor)
    got = first_after(timetable, after)
    assert got is not None
    assert got > after
    assert got >= anchor
    assert (got - anchor) % interval == 0
    assert got == anchor or got - interval <= after
    steps = next_fires(timetable, after, span // interval + 2)
    assert count_between(timetable, after, after + span) == len(
        [at for at in steps if at <= after + span]
    )


@settings(deadline=None)
@given(st.text(max_size=40) | st.text("0123456789*/-, LW#?@", max_size=40))
def test_any_text_is_a_timetable_or_an_error(text):
    timetable = Cron(text)
    try:
        validate(timetable)
    except TimetableError:
        return
    got = first_after(timetable, 1_780_000_000_000)
    assert got is None or got > 1_780_000_000_000

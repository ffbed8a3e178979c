"""Cron expressions against a model that reads their text anew for each second, and a judge."""

from __future__ import annotations

import datetime
from calendar import monthrange
from itertools import islice

import croniter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from timeball.cluster.dispatch.cron import CronExpression
from timeball.cluster.dispatch.errors import TimetableError

EPOCH = datetime.datetime(1970, 1, 1)
SECOND = datetime.timedelta(seconds=1)
DAY_S = 86_400
NAMES = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}


# The model: what the documentation says of one moment, item by item.


def number(text: str) -> int:
    return NAMES[text] if text in NAMES else int(text)


def in_span(text: str, value: int, low: int, high: int) -> bool:
    span, _, step = text.partition("/")
    if span != "*":
        first, dash, last = span.partition("-")
        low, high = number(first), number(last) if dash else (high if step else number(first))
    return value in range(low, high + 1, int(step or 1))


def in_field(text: str, value: int, low: int, high: int) -> bool:
    return any(in_span(item, value, low, high) for item in text.split(","))


def is_day_of_month(item: str, date: datetime.date) -> bool:
    length = monthrange(date.year, date.month)[1]
    workdays = [day for day in range(1, length + 1) if date.replace(day=day).isoweekday() <= 5]
    if item == "L":
        return date.day == length
    if item == "LW":
        return date.day == workdays[-1]
    if item.startswith("L-"):
        return date.day == length - int(item[2:])
    if item.endswith("W"):
        target = int(item[:-1])
        return target <= length and date.day == min(workdays, key=lambda day: abs(day - target))
    return in_span(item, date.day, 1, 31)


def is_day_of_week(item: str, date: datetime.date) -> bool:
    length = monthrange(date.year, date.month)[1]
    weekday = date.isoweekday()  # Sunday is 7
    alike = [day for day in range(1, length + 1) if (day - date.day) % 7 == 0]
    if item.endswith("L"):
        return number(item[:-1]) % 7 == weekday % 7 and date.day == alike[-1]
    if "#" in item:
        name, _, k = item.partition("#")
        return number(name) % 7 == weekday % 7 and alike.index(date.day) + 1 == int(k)
    return in_span(item, weekday, 0, 7) or in_span(item, weekday % 7, 0, 7)


def is_day(day: str, month: str, weekday: str, date: datetime.date) -> bool:
    by_day = day == "?" or any(is_day_of_month(item, date) for item in day.split(","))
    by_weekday = weekday == "?" or any(is_day_of_week(item, date) for item in weekday.split(","))
    star = day[0] in "*?" or weekday[0] in "*?"
    return in_field(month, date.month, 1, 12) and (
        (by_day and by_weekday) if star else (by_day or by_weekday)
    )


def shows(fields: list[str], moment: datetime.datetime) -> bool:
    second, minute, hour, *days = fields
    return (
        in_field(second, moment.second, 0, 59)
        and in_field(minute, moment.minute, 0, 59)
        and in_field(hour, moment.hour, 0, 23)
        and is_day(*days, moment.date())
    )


# What is asked.


def parse_or_none(text: str, *, window: bool = False) -> CronExpression | None:
    """None where the expression is refused since no calendar has such a day."""
    try:
        return CronExpression(text, window=window)
    except TimetableError as error:
        if "never matches" not in error.detail:
            raise
        return None


def spans(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    pair = st.tuples(value, value).map(sorted)
    return st.one_of(
        value.map(str),
        pair.map(lambda p: f"{p[0]}-{p[1]}"),
        st.tuples(pair, st.integers(1, high)).map(
            lambda t: f"{t[0][0]}-{t[0][1]}/{min(t[1], max(1, t[0][1] - t[0][0]))}"
        ),
        st.tuples(st.integers(low, high - 1), st.integers(1, high)).map(
            lambda t: f"{t[0]}/{min(t[1], high - t[0])}"
        ),
    )


def stars(low: int, high: int) -> st.SearchStrategy[str]:
    return st.just("*") | st.integers(1, high - low).map(lambda n: f"*/{n}")


def lists(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(items, min_size=1, max_size=4).map(",".join)


def times(low: int, high: int) -> st.SearchStrategy[str]:
    return stars(low, high) | lists(spans(low, high))


WEEKDAY = st.integers(0, 7).map(str) | st.sampled_from(sorted(NAMES))
DAY_MARKS = st.one_of(
    st.sampled_from(["L", "LW", "1W", "31W"]),
    st.integers(1, 30).map(lambda n: f"L-{n}"),
    st.integers(1, 31).map(lambda n: f"{n}W"),
)
WEEKDAY_MARKS = st.one_of(
    WEEKDAY.map(lambda day: f"{day}L"),
    st.tuples(WEEKDAY, st.integers(1, 5)).map(lambda t: f"{t[0]}#{t[1]}"),
)
DAYS = st.one_of(st.sampled_from("*?"), lists(DAY_MARKS | spans(1, 31) | stars(1, 31)))
WEEKDAYS = st.one_of(
    st.sampled_from("*?"), lists(WEEKDAY_MARKS | WEEKDAY | spans(0, 7) | stars(0, 7))
)
MONTHS = st.just("*") | times(1, 12)
FIELDS = st.tuples(times(0, 59), times(0, 59), times(0, 23), DAYS, MONTHS, WEEKDAYS).map(list)
YEARS = 2


@settings(max_examples=80, deadline=None)
@given(DAYS, MONTHS, WEEKDAYS, st.integers(-700_000, 2_900_000))
@example("31W", "2,4", "*", 0)
@example("29,31", "2", "?", 0)
def test_cron_13_14_16_and_22_the_days_are_those_of_the_model(
    day: str, month: str, weekday: str, start: int
) -> None:
    epoch = datetime.date(1970, 1, 1)
    start = max(
        min(start, (datetime.date(9980, 1, 1) - epoch).days), (datetime.date.min - epoch).days
    )
    wanted = [
        at
        for at in range(start, start + YEARS * 366)
        if is_day(day, month, weekday, epoch + datetime.timedelta(at))
    ]
    cron = parse_or_none(f"0 0 {day} {month} {weekday}")
    if cron is None:
        assert not wanted
        # A calendar repeats after 400 years; 40 hold every shape of every month.
        assert not any(
            is_day(day, month, weekday, epoch + datetime.timedelta(at)) for at in range(40 * 366)
        )
        return
    from_s, to_s = start * DAY_S, (start + YEARS * 366) * DAY_S
    assert list(cron.matches(from_s, to_s)) == [at * DAY_S for at in wanted]
    assert cron.count(from_s, to_s) == len(wanted)
    found = cron.first_from(from_s)
    assert found is not None
    assert found == wanted[0] * DAY_S if wanted else found >= to_s


@settings(max_examples=150, deadline=None)
@given(
    FIELDS,
    st.integers(0, 60 * 366 * DAY_S),
    st.integers(0, 2_000),
    st.booleans(),
)
def test_cron_17_the_seconds_are_those_of_the_model(
    fields: list[str], start: int, span: int, near: bool
) -> None:
    """Seconds, one by one, across midnights and around what matches."""
    cron = parse_or_none(" ".join(fields))
    if cron is None:
        return
    if near:
        first = cron.first_from(start)
        assert first is not None
        assert shows(fields, EPOCH + first * SECOND)
        start = max(start, first - span // 2)
    seconds = range(start, start + span)
    wanted = [at for at in seconds if shows(fields, EPOCH + at * SECOND)]
    assert list(cron.matches(start, start + span)) == wanted
    assert [at for at in seconds if cron.includes(at)] == wanted
    assert cron.count(start, start + span) == len(wanted)
    for at in seconds[:: max(1, span // 20)]:
        assert cron.first_from(at) == next(
            (hit for hit in wanted if hit >= at), cron.first_from(start + span)
        )
        gap = next((miss for miss in range(at, start + span) if miss not in wanted), None)
        assert cron.first_not_from(at) == (
            cron.first_not_from(start + span) if gap is None else gap
        )


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(times(0, 59), times(0, 23), DAYS, st.just("*"), WEEKDAYS).map(list),
    st.integers(0, 60 * 366 * 1440),
)
def test_windows_are_the_minutes_of_the_model(fields: list[str], minute: int) -> None:
    """Five fields as a window: minutes, one by one, for two days."""
    minutes = [at * 60 for at in range(minute, minute + 2 * 1440)]
    window = parse_or_none(" ".join(fields), window=True)
    if window is None:
        return
    inside = [shows(["*", *fields], EPOCH + at * SECOND) for at in minutes]
    assert [window.includes(at + at % 59) for at in minutes] == inside
    assert window.count(minutes[0], minutes[-1] + 60) == 60 * sum(inside)
    outside = [at for at, within in zip(minutes, inside, strict=True) if not within]
    beyond = window.first_not_from(minutes[-1] + 60)
    for at, within in islice(zip(minutes, inside, strict=True), 0, None, 97):
        asked = at + 7 * within
        assert window.first_not_from(asked) == next((out for out in outside if out >= at), beyond)


# What another cron says, where its answers can be trusted (docs/decisions/0009-cron.md).


def for_croniter(field: str) -> str:
    """`nL` is `Ln` there, Sunday must be 0, and names have numbers."""
    day = str(NAMES.get(field[:3], field[:1])).replace("7", "0")
    if field.endswith("L"):
        return f"L{day}"
    return day + field[field.index("#") :] if "#" in field else field


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.just("L").map(lambda mark: (mark, "*")),
        st.integers(1, 28).map(lambda n: (f"{n}W", "*")),
        WEEKDAY_MARKS.map(lambda mark: ("*", mark)),
    ),
    st.integers(0, 20 * 366),
)
def test_cron_22_marks_equal_another_crons(marks: tuple[str, str], day: int) -> None:
    """One mark alone; not 29W and later, which croniter moves within short months."""
    start = datetime.datetime(2020, 1, 1) + datetime.timedelta(day)
    judge = croniter.croniter(
        f"0 0 {marks[0]} * {for_croniter(marks[1])}", start, max_years_between_matches=60
    )
    cron = CronExpression(f"0 0 {marks[0]} * {marks[1]}")
    from_s = (start - EPOCH) // SECOND + 1
    for at in islice(cron.matches(from_s, from_s + 10 * 366 * DAY_S), 12):
        assert EPOCH + at * SECOND == judge.get_next(datetime.datetime)


@settings(deadline=None)
@given(
    st.text(max_size=40)
    | st.text("0123456789*/-, LW#?@lw", max_size=60)
    | st.lists(st.text("0123456789*/-,LW#?", min_size=1, max_size=8), min_size=5, max_size=6).map(
        " ".join
    )
)
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        cron = CronExpression(text)
    except TimetableError as error:
        refusal = error
    else:
        found = cron.first_from(0)
        assert found is not None
        assert cron.includes(found)
        return
    assert refusal.field == "expression"
    assert len(refusal.detail) < 300

"""The text of a cron expression, read strictly into the values that its fields name.

What another cron would take to mean something else (wrapped ranges, steps that leave one
value, a bare `L` as a weekday, `L5`) is refused with a hint; every refusal names the field.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from timeball.cluster.dispatch.cron_days import DaysOfMonth, DaysOfWeek
from timeball.cluster.dispatch.errors import TimetableError

LONGEST_EXPRESSION: Final = 256
_LONGEST_SHOWN: Final = 20

_NUMBERS: Final = "* n a-b */n a/n a-b/n and lists of them"

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NOT_NICKNAMES: Final = {
    "@reboot": "a cluster does not reboot: create a job without a schedule to run it once, now",
    "@every": "an interval is a schedule of its own, of type every, with interval_ms",
}


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    language: str = _NUMBERS


# fmt: off
_MONTHS: Final = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)
# fmt: on
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

_SECOND: Final = _Field("second", 0, 59)
_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_DAY_OF_MONTH: Final = _Field(
    "day of month", 1, 31, language=f"? or {_NUMBERS}, of L, LW, L-n and nW"
)
_MONTH: Final = _Field("month", 1, 12, _MONTHS, f"{_NUMBERS}, with names such as jan")
_DAY_OF_WEEK: Final = _Field(
    "day of week", 0, 7, _WEEKDAYS, f"? or {_NUMBERS}, of n#k and nL, with names such as mon"
)


class CronText(NamedTuple):
    """What an expression says, field by field; sorted tuples of numbers."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days_of_month: DaysOfMonth
    months: tuple[int, ...]
    days_of_week: DaysOfWeek
    both_days: bool
    """Whether a day must be in both day fields: one of them begins with `*`, or is `?`."""
    follows_clock: bool
    """Whether second, minute or hour begins with `*`."""


def refuse(detail: str) -> TimetableError:
    """The error to raise for an expression, which says what was wrong and would be right."""
    return TimetableError("expression", detail)


def read(text: str, *, second: str) -> CronText:
    """Read an expression; `second` is what five fields leave unsaid. Raises `TimetableError`."""
    if len(text) > LONGEST_EXPRESSION:
        raise refuse(f"longer than {LONGEST_EXPRESSION} characters")
    if not text.isascii() or not text.replace("\t", " ").isprintable():
        raise refuse("only printable ASCII characters are allowed")
    fields = text.split()
    if fields and fields[0].startswith("@"):
        fields = _nickname(fields[0].lower(), alone=len(fields) == 1).split()
    if len(fields) not in (5, 6):
        raise refuse(
            f"has {len(fields)} fields; expected five (minute hour day-of-month month "
            "day-of-week), or six with the seconds first"
        )
    if len(fields) == 5:
        fields.insert(0, second)
    return CronText(
        seconds=_numbers(_SECOND, fields[0]),
        minutes=_numbers(_MINUTE, fields[1]),
        hours=_numbers(_HOUR, fields[2]),
        days_of_month=_days_of_month(fields[3]),
        months=_numbers(_MONTH, fields[4]),
        days_of_week=_days_of_week(fields[5]),
        both_days=any(field.startswith(("*", "?")) for field in (fields[3], fields[5])),
        follows_clock=any(field.startswith("*") for field in fields[:3]),
    )


def _nickname(name: str, *, alone: bool) -> str:
    if name in _NOT_NICKNAMES:
        raise refuse(f"{name}: {_NOT_NICKNAMES[name]}")
    if name not in NICKNAMES:
        raise refuse(f"{_shown(name)} is not one of {' '.join(NICKNAMES)}")
    if not alone:
        raise refuse(f"{name} stands alone, without further fields")
    return NICKNAMES[name]


def _numbers(field: _Field, text: str) -> tuple[int, ...]:
    values: set[int] = set()
    for item in text.split(","):
        values.update(_span(field, item))
    return tuple(sorted(values))


def _days_of_month(text: str) -> DaysOfMonth:
    field = _DAY_OF_MONTH
    numbers: set[int] = set()
    before_last: set[int] = set()
    nearest: set[int] = set()
    last_workday = False
    for item in _all_if_any(text).split(","):
        mark = item.upper()
        if mark == "L":
            before_last.add(0)
        elif mark == "LW":
            last_workday = True
        elif mark.startswith("L-"):
            hint = "n days before the month's last is L-n, with n from 1 to 30"
            before_last.add(_digits(field, item, item[2:], 1, 30, hint))
        elif mark.endswith("W"):
            hint = "the workday nearest to day n is nW, with n from 1 to 31; the last one is LW"
            nearest.add(_digits(field, item, item[:-1], 1, 31, hint))
        else:
            numbers.update(_span(field, item))
    return DaysOfMonth(frozenset(numbers), frozenset(before_last), frozenset(nearest), last_workday)


def _days_of_week(text: str) -> DaysOfWeek:
    field = _DAY_OF_WEEK
    numbers: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    for item in _all_if_any(text).split(","):
        day, hash_, place = item.partition("#")
        if hash_:
            hint = "n#k is the k-th such weekday of a month, with k from 1 to 5; the last is nL"
            nth.add((_value(field, day) % 7, _digits(field, item, place, 1, 5, hint)))
        elif item[:1] in ("L", "l"):
            raise _refuse_item(field, item, "the last such weekday of a month is nL, as in 5L")
        elif item[-1:] in ("L", "l"):
            last.add(_value(field, item[:-1]) % 7)
        else:
            numbers.update(day % 7 for day in _span(field, item))
    return DaysOfWeek(frozenset(numbers), frozenset(nth), frozenset(last))


def _all_if_any(text: str) -> str:
    """Quartz's `?`, no opinion on the day, is what `*` is here."""
    return "*" if text == "?" else text


def _span(field: _Field, item: str) -> range:
    """`*`, a value or a range, with or without a step."""
    if not item:
        raise refuse(f"{field.name}: an empty item; write single commas between values")
    span, slash, step_text = item.partition("/")
    if span == "*":
        low, high = field.low, field.high
    else:
        first, dash, last = span.partition("-")
        low = _value(field, first)
        high = _value(field, last) if dash else (field.high if slash else low)
        if low > high:
            raise refuse(
                f"{field.name}: the range {span} runs backwards; write it as two, "
                f"{first}-{field.high} and {field.low}-{last}"
            )
    if not slash:
        return range(low, high + 1)
    step = _number(field, step_text)
    if not 1 <= step <= max(1, high - low):
        raise refuse(
            f"{field.name}: the step of {item} leaves no second value; "
            f"it must be 1 to {max(1, high - low)}"
        )
    return range(low, high + 1, step)


def _value(field: _Field, text: str) -> int:
    name = text.lower()
    if name in field.names:
        return field.names.index(name) + field.low
    value = _number(field, text)
    if not field.low <= value <= field.high:
        raise refuse(f"{field.name}: {value} is not within {field.low}-{field.high}")
    return value


def _number(field: _Field, text: str) -> int:
    if _is_number(text):
        return int(text)
    if text == "?":
        hint = "? stands alone, as day of month or day of week; write * for every value"
        raise _refuse_item(field, text, hint)
    raise refuse(f"{field.name}: {_shown(text)} is not a number; the language is {field.language}")


def _digits(field: _Field, item: str, text: str, low: int, high: int, hint: str) -> int:
    """The number that goes with a mark, such as the 15 of 15W."""
    if not (_is_number(text) and low <= int(text) <= high):
        raise _refuse_item(field, item, hint)
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 2


def _refuse_item(field: _Field, item: str, hint: str) -> TimetableError:
    return refuse(f"{field.name}: {_shown(item)}: {hint}")


def _shown(text: str) -> str:
    return repr(text[:_LONGEST_SHOWN])

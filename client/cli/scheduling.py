"""Schedules on the command line: the options that make one, and the words that tell one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, cast, get_args

import click
import msgspec

from timeball.client.cli.durations import DURATION, in_words
from timeball.client.messages import (
    After,
    At,
    AtRule,
    CatchUp,
    Cron,
    CronRule,
    DatesExcluded,
    Every,
    EveryRule,
    Overlap,
    Recurring,
    Schedule,
    Union,
    WindowExcluded,
)

P = ParamSpec("P")

_OPTIONS = (
    click.option(
        "--at", multiple=True, help="At an instant: ISO 8601 with an offset, or epoch ms."
    ),
    click.option("--after", type=DURATION, help="Once, this long from now: 500ms, 5s, 2h, 1d."),
    click.option("--every", type=DURATION, multiple=True, help="Again and again, this far apart."),
    click.option("--anchor", help="The instant that --every counts from. [default: the creation]"),
    click.option(
        "--cron",
        multiple=True,
        help="By the wall clock: five fields, or six with the seconds first, or @daily and such.",
    ),
    click.option(
        "--time-zone",
        "--tz",
        "time_zone",
        help="The wall clock of --cron and --exclude-…, an IANA name. [default: UTC]",
    ),
    click.option("--start", help="The first instant allowed: ISO 8601 or epoch ms."),
    click.option("--until", help="The last instant allowed: ISO 8601 or epoch ms."),
    click.option("--max-runs", type=click.IntRange(1, 10**9), help="The end after so many runs."),
    click.option(
        "--jitter",
        "jitter_ms",
        type=DURATION,
        help="Delay all runs of the job by one constant part of this.",
    ),
    click.option(
        "--exclude-date",
        "exclude_dates",
        multiple=True,
        help="No run on a day: 2026-12-25, or 2026-12-24/2026-12-26.",
    ),
    click.option(
        "--exclude-window",
        "exclude_windows",
        multiple=True,
        help="No run at a time that this cron expression matches: '* 0-5 * * *'.",
    ),
    click.option(
        "--catch-up", type=click.Choice(get_args(CatchUp)), help="For what was missed. [one]"
    ),
    click.option(
        "--catch-up-window",
        "catch_up_window_ms",
        type=DURATION,
        help="What was missed longer ago is not caught up.",
    ),
    click.option(
        "--catch-up-limit",
        type=click.IntRange(1, 10_000),
        help="Of what --catch-up all runs, the newest so many. [1000]",
    ),
    click.option(
        "--overlap",
        type=click.Choice(get_args(Overlap)),
        help="For a run that comes due while another one is active. [allow]",
    ),
    click.option(
        "--pause-on-failure",
        is_flag=True,
        default=None,
        help="Pause when a run goes to the dead letters.",
    ),
    click.option(
        "--schedule",
        "schedule_json",
        help="The whole schedule in JSON, as in the protocol, instead.",
    ),
)


class Given(NamedTuple):
    """The options of a schedule as they were given; what was not is None, or empty."""

    at: tuple[str, ...]
    after: int | None
    every: tuple[int, ...]
    anchor: str | None
    cron: tuple[str, ...]
    time_zone: str | None
    start: str | None
    until: str | None
    max_runs: int | None
    jitter_ms: int | None
    exclude_dates: tuple[str, ...]
    exclude_windows: tuple[str, ...]
    catch_up: CatchUp | None
    catch_up_window_ms: int | None
    catch_up_limit: int | None
    overlap: Overlap | None
    pause_on_failure: bool | None
    schedule_json: str | None

    def names(self, *fields: str) -> list[str]:
        """Name the options among these that were given (default: among all)."""
        return [
            _option(field)
            for field in fields or self._fields
            if getattr(self, field) not in (None, ())
        ]


def schedule_options(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command the options that make a schedule, as its parameter `schedule`."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        given = Given(**{name: cast("Any", kwargs.pop(name)) for name in Given._fields})
        kwargs["schedule"] = schedule_of(given)
        command(*args, **kwargs)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def schedule_of(given: Given) -> Schedule | None:
    """Make the schedule that the options ask for; None when none of them was given.

    Several of --at, --every and --cron make a union. A combination that says nothing is a
    usage error, which names the options.
    """
    if given.schedule_json is not None:
        return _from_json(given)
    first = given.names("at", "after", "every", "cron")
    _check(given, first)
    if given.after is not None:
        return After(delay_ms=given.after)
    rules = _rules(given)
    if given.at and len(given.at) == 1 and len(rules) == 1 and not _recurring(given):
        return At(time=instant(given.at[0]))
    if not rules:
        return None
    common = _common(given)
    match rules:
        case [EveryRule(interval_ms=interval_ms, anchor=anchor)]:
            return Every(interval_ms, anchor, **common)
        case [CronRule(expression=expression, time_zone=time_zone)]:
            return Cron(expression, time_zone, **common)
        case _:
            return Union(schedules=rules, **common)


def instant(text: str) -> str | int:
    """Read an instant: epoch milliseconds, or a text that the node is to understand."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else text


def describe(schedule: Schedule | None) -> str:
    """Say a schedule in a few words."""
    match schedule:
        case None:
            return "at once"
        case At(time=time):
            return f"at {time}"
        case After(delay_ms=delay_ms):
            return f"after {in_words(delay_ms)}"
        case Union(schedules=rules):
            return " + ".join(_describe_rule(rule) for rule in rules)
        case _:
            return _describe_rule(schedule)


def details(schedule: Schedule | None) -> list[tuple[str, object]]:
    """Say what else a timetable asks for, as facts; what is the default is left out."""
    if not isinstance(schedule, Recurring):
        return []
    limit = f", at most {schedule.catch_up_limit}" if schedule.catch_up == "all" else ""
    window = schedule.catch_up_window_ms
    younger = f", of the last {in_words(window)}" if window is not None else ""
    return [
        ("from", schedule.start),
        ("until", schedule.until),
        ("at most", f"{schedule.max_runs} runs" if schedule.max_runs else None),
        ("jitter", in_words(schedule.jitter_ms) if schedule.jitter_ms else None),
        ("excluded", "; ".join(map(_describe_exclusion, schedule.exclude))),
        ("catch-up", f"{schedule.catch_up}{limit}{younger}"),
        ("overlap", schedule.overlap),
        ("on failure", "pause" if schedule.pause_on_failure else None),
    ]


_COMMON = (
    "start",
    "until",
    "max_runs",
    "jitter_ms",
    "exclude_dates",
    "exclude_windows",
    "catch_up",
    "catch_up_window_ms",
    "catch_up_limit",
    "overlap",
    "pause_on_failure",
)


def _recurring(given: Given) -> list[str]:
    return given.names(*_COMMON)


def _check(given: Given, first: list[str]) -> None:
    if given.after is not None and len(first) > 1:
        raise click.UsageError(f"{' and '.join(first)} exclude each other")
    if given.anchor is not None and not given.every:
        raise click.UsageError("--anchor goes with --every")
    zoned = given.names("cron", "exclude_dates", "exclude_windows")
    if given.time_zone is not None and not zoned:
        raise click.UsageError("--time-zone goes with --cron or --exclude-…")
    common = _recurring(given)
    if common and (not first or given.after is not None):
        raise click.UsageError(f"{' and '.join(common)} go with --every, --cron or --at")


def _rules(given: Given) -> list[EveryRule | CronRule | AtRule]:
    anchor = None if given.anchor is None else instant(given.anchor)
    times = [instant(text) for text in given.at]
    return [
        *(EveryRule(interval_ms, anchor) for interval_ms in given.every),
        *(CronRule(expression, given.time_zone or "UTC") for expression in given.cron),
        *([AtRule(times)] if times else []),
    ]


def _common(given: Given) -> dict[str, Any]:
    """Make the fields that all timetables have, of the options that were given."""
    exclude: list[DatesExcluded | WindowExcluded] = []
    if given.exclude_dates:
        exclude.append(DatesExcluded(list(given.exclude_dates), given.time_zone))
    exclude.extend(WindowExcluded(text, given.time_zone) for text in given.exclude_windows)
    fields = {
        "start": None if given.start is None else instant(given.start),
        "until": None if given.until is None else instant(given.until),
        "max_runs": given.max_runs,
        "jitter_ms": given.jitter_ms,
        "exclude": exclude or None,
        "catch_up": given.catch_up,
        "catch_up_window_ms": given.catch_up_window_ms,
        "catch_up_limit": given.catch_up_limit,
        "overlap": given.overlap,
        "pause_on_failure": given.pause_on_failure,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _from_json(given: Given) -> Schedule:
    assert given.schedule_json is not None
    others = given.names(*(field for field in Given._fields if field != "schedule_json"))
    if others:
        raise click.UsageError(f"--schedule says it all: {' and '.join(others)} can not be added")
    try:
        return cast(
            "Schedule", msgspec.json.decode(given.schedule_json, type=cast("Any", Schedule))
        )
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise click.BadParameter(str(error), param_hint="--schedule") from error


def _option(field: str) -> str:
    special = {
        "schedule_json": "--schedule",
        "exclude_dates": "--exclude-date",
        "exclude_windows": "--exclude-window",
    }
    return special.get(field) or "--" + field.removesuffix("_ms").replace("_", "-")


def _describe_rule(rule: object) -> str:
    match rule:
        case EveryRule(interval_ms=interval_ms) | Every(interval_ms=interval_ms):
            return f"every {in_words(interval_ms)}"
        case CronRule(expression=text, time_zone=zone) | Cron(expression=text, time_zone=zone):
            return f"{text} ({zone})"
        case AtRule(times=[time]):
            return f"at {time}"
        case AtRule(times=times):
            return f"at {times[0]} and {len(times) - 1} more"
        case _:
            raise AssertionError(f"not a rule: {rule!r}")


def _describe_exclusion(exclusion: DatesExcluded | WindowExcluded) -> str:
    zone = f" ({exclusion.time_zone})" if exclusion.time_zone else ""
    match exclusion:
        case DatesExcluded(dates=dates):
            return ", ".join(dates) + zone
        case WindowExcluded(expression=expression):
            return expression + zone

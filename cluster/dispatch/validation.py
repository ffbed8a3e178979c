"""Whether a timetable can be: every field with its limits, in time that its size bounds."""

from __future__ import annotations

from typing import Final

from timeball.cluster.dispatch.errors import TimetableError
from timeball.cluster.dispatch.exclusions import validate_exclusion
from timeball.cluster.dispatch.rules import LAST_INSTANT_MS, validate_rule
from timeball.cluster.state.operations import OVERLAPS, Timetable

MOST_RULES: Final = 16
MOST_EXCLUSIONS: Final = 16
MOST_RUNS: Final = 1_000_000_000
LONGEST_JITTER_MS: Final = 86_400_000
LONGEST_CATCH_UP_WINDOW_MS: Final = 100 * 366 * 86_400_000
MOST_CAUGHT_UP: Final = 10_000
LAST_UNTIL_MS: Final = 253_402_300_799_999
"""The end of the year 9999: the latest instant that may be written."""
CATCH_UP_RULES: Final = ("none", "one", "all")


def validate(timetable: Timetable) -> None:
    """Check every field; raises `TimetableError` naming the first one that is wrong.

    Names are paths: `rules[0].expression`, `exclusions[1].dates[3]`, `until`. That the
    timetable names any time at all is for `first_after` to say: it answers None where
    rules lie outside of the bounds, or name only what their zones always skip.
    """
    if not 1 <= len(timetable.rules) <= MOST_RULES:
        raise TimetableError("rules", f"expected 1 to {MOST_RULES}")
    for position, rule in enumerate(timetable.rules):
        try:
            validate_rule(rule)
        except TimetableError as error:
            raise TimetableError(f"rules[{position}].{error.field}", error.detail) from error
    if len(timetable.exclusions) > MOST_EXCLUSIONS:
        raise TimetableError("exclusions", f"expected {MOST_EXCLUSIONS} at most")
    for position, exclusion in enumerate(timetable.exclusions):
        try:
            validate_exclusion(exclusion)
        except TimetableError as error:
            raise TimetableError(f"exclusions[{position}].{error.field}", error.detail) from error
    _validate_bounds(timetable)
    _validate_policies(timetable)


def _validate_bounds(timetable: Timetable) -> None:
    if not 0 <= timetable.start_ms <= LAST_INSTANT_MS:
        raise TimetableError("start", "expected an instant from 1970 to the end of the year 9990")
    if not 0 <= timetable.until_ms <= LAST_UNTIL_MS:
        raise TimetableError("until", "expected an instant from 1970 to the end of the year 9999")
    if 0 < timetable.until_ms < timetable.start_ms:
        raise TimetableError("until", "expected an instant not before the start")
    _within("max_runs", timetable.max_runs, 0, MOST_RUNS)
    _within("jitter_ms", timetable.jitter_ms, 0, LONGEST_JITTER_MS)


def _validate_policies(timetable: Timetable) -> None:
    if timetable.catch_up not in CATCH_UP_RULES:
        raise TimetableError("catch_up", f"expected one of {', '.join(CATCH_UP_RULES)}")
    _within("catch_up_window_ms", timetable.catch_up_window_ms, 0, LONGEST_CATCH_UP_WINDOW_MS)
    _within("catch_up_limit", timetable.catch_up_limit, 1, MOST_CAUGHT_UP)
    if timetable.overlap not in OVERLAPS:
        raise TimetableError("overlap", f"expected one of {', '.join(OVERLAPS)}")


def _within(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise TimetableError(field, f"expected {low} to {high}")

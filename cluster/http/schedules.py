"""Schedules on the wire to instants and timetables in the log.

The leader evaluates them when it proposes: what travels in the log are instants.
"""

from __future__ import annotations

from typing import Any

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.dispatch.timetable import TimetableError, first_after, validate
from timeball.cluster.http.instants import parse_instant
from timeball.cluster.state import operations


class Plan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """When a job runs, in the terms of the log.

    `meaning` is what its author asked for, the same whenever the same request comes.
    """

    meaning: tuple[Any, ...]
    first_ms: int = 0
    delay_ms: int = 0
    timetable: operations.Every | operations.Cron | None = None


def read_schedule(schedule: messages.Schedule | None, field: str, now_ms: int) -> Plan:
    """Evaluate a schedule at `now_ms`; raises InvalidRequest naming the part of `field`."""
    match schedule:
        case None:
            return Plan(meaning=("now",))
        case messages.At():
            # 0 means "no instant" in the log; the first millisecond of 1970 is as long past.
            instant_ms = max(parse_instant(schedule.time, field + ".time"), 1)
            return Plan(meaning=("at", instant_ms), first_ms=instant_ms)
        case messages.After():
            return Plan(meaning=("after", schedule.delay_ms), delay_ms=schedule.delay_ms)
        case messages.Every():
            anchor_ms = _optional(schedule.anchor, f"{field}.anchor")
            timetable: operations.Every | operations.Cron = operations.Every(
                schedule.interval_ms,
                now_ms if anchor_ms is None else anchor_ms,
                _until(schedule.until, field),
                schedule.catch_up,
            )
            meaning: tuple[Any, ...] = (
                "every",
                schedule.interval_ms,
                anchor_ms,
                timetable.until_ms,
            )
        case messages.Cron():
            timetable = operations.Cron(
                schedule.expression,
                schedule.time_zone,
                _until(schedule.until, field),
                schedule.catch_up,
            )
            meaning = ("cron", schedule.expression, schedule.time_zone, timetable.until_ms)
    return Plan(
        meaning=(*meaning, schedule.catch_up),
        first_ms=_first(timetable, field, now_ms),
        timetable=timetable,
    )


def _first(timetable: operations.Every | operations.Cron, field: str, now_ms: int) -> int:
    try:
        validate(timetable)
        first_ms = first_after(timetable, now_ms)
    except TimetableError as error:
        raise InvalidRequest.at(f"{field}.{error.field}", error.detail) from error
    if first_ms is None:
        part = "until" if timetable.until_ms else "expression"
        raise InvalidRequest.at(f"{field}.{part}", "the schedule names no instant from now on")
    return first_ms


def _optional(value: str | int | None, field: str) -> int | None:
    return None if value is None else parse_instant(value, field)


def _until(value: str | int | None, field: str) -> int:
    return 0 if value is None else max(parse_instant(value, f"{field}.until"), 1)

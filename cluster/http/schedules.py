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


class Plan(msgspec.Struct, frozen=True, eq=False):
    """When a job runs, in the terms of the log.

    `meaning` is what its author asked for, the same whenever the same request comes.
    """

    meaning: tuple[Any, ...]
    first_ms: int = 0
    delay_ms: int = 0
    timetable: operations.Every | operations.Cron | None = None


_AT_ONCE = Plan(("now",))


def read_schedule(schedule: messages.Schedule | None, prefix: str, now_ms: int) -> Plan:
    """Evaluate a schedule at `now_ms`.

    Raises InvalidRequest naming the part of the field `schedule` after `prefix`.
    """
    if schedule is None:
        return _AT_ONCE
    match schedule:
        case messages.At():
            # 0 means "no instant" in the log; the first millisecond of 1970 is as long past.
            instant_ms = parse_instant(schedule.time, f"{prefix}schedule.time") or 1
            return Plan(("at", instant_ms), instant_ms)
        case messages.After(delay_ms):
            return Plan(("after", delay_ms), 0, delay_ms)
        case messages.Every(interval_ms, anchor, until, catch_up):
            anchor_ms = _optional(anchor, f"{prefix}schedule.anchor")
            until_ms = _until(until, f"{prefix}schedule.until")
            start_ms = now_ms if anchor_ms is None else anchor_ms
            every = operations.Every(interval_ms, start_ms, until_ms, catch_up)
            asked: tuple[Any, ...] = ("every", interval_ms, anchor_ms, until_ms, catch_up)
            return Plan(asked, _first(every, prefix, now_ms), 0, every)
        case messages.Cron(expression, time_zone, until, catch_up):
            until_ms = _until(until, f"{prefix}schedule.until")
            cron = operations.Cron(expression, time_zone, until_ms, catch_up)
            asked = ("cron", expression, time_zone, until_ms, catch_up)
            return Plan(asked, _first(cron, prefix, now_ms), 0, cron)


def _first(timetable: operations.Every | operations.Cron, prefix: str, now_ms: int) -> int:
    try:
        validate(timetable)
        first_ms = first_after(timetable, now_ms)
    except TimetableError as error:
        raise InvalidRequest.at(f"{prefix}schedule.{error.field}", error.detail) from error
    if first_ms is None:
        part = "until" if timetable.until_ms else "expression"
        field = f"{prefix}schedule.{part}"
        raise InvalidRequest.at(field, "the schedule names no instant from now on")
    return first_ms


def _optional(value: str | int | None, field: str) -> int | None:
    return None if value is None else parse_instant(value, field)


def _until(value: str | int | None, field: str) -> int:
    return 0 if value is None else max(parse_instant(value, field), 1)

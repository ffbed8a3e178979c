"""Nominal times enumerated the slow way, independent of the planner that is being checked.

A checker must not ask the code under test what should have happened: an interval is
arithmetic, and a cron expression is tried against every single second. Only what the
demo and the fault tests use is understood: no restriction of days or months, and UTC but for
expressions of every hour and minute, to which the zone does not matter: clocks everywhere differ
from UTC by whole minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from timeball.bench.evidence import Creation, instant_ms
from timeball.client.messages import Cron, Every


class NotEnumerable(Exception):
    """The schedule is beyond what this enumeration understands."""


def nominal_times(creation: Creation, until_ms: int) -> Iterator[int]:
    """Yield the nominal times (epoch ms) of a recurring job from its creation to `until_ms`.

    The first lie after the creation was *sent*; whether those before its answer came
    belong to the job is for the caller to judge. `until` of the schedule is a bound too.
    Raises NotEnumerable.
    """
    schedule = creation.schedule
    if not isinstance(schedule, Every | Cron):
        raise NotEnumerable(f"job {creation.job_id} does not recur")
    if schedule.start is not None or schedule.max_runs is not None or schedule.exclude:
        raise NotEnumerable(f"job {creation.job_id}: start, max_runs or exclude")
    after_ms = creation.sent_us // 1000
    if schedule.until is not None:
        until_ms = min(until_ms, _instant(schedule.until))
    if isinstance(schedule, Every):
        yield from _interval(schedule, creation, after_ms, until_ms)
    else:
        yield from _cron(schedule, after_ms, until_ms)


def _instant(value: str | int) -> int:
    return value if isinstance(value, int) else instant_ms(value)


def _interval(schedule: Every, creation: Creation, after_ms: int, until_ms: int) -> Iterator[int]:
    if schedule.anchor is not None:
        anchor_ms = _instant(schedule.anchor)
    elif creation.next_fires:  # anchored at the creation: only the cluster knows the millisecond
        anchor_ms = instant_ms(creation.next_fires[0])
    else:
        raise NotEnumerable(f"job {creation.job_id}: no anchor and no echo of the first fire")
    step = schedule.interval_ms
    nominal_ms = max(anchor_ms, anchor_ms + ((after_ms - anchor_ms) // step + 1) * step)
    while nominal_ms <= until_ms:
        yield nominal_ms
        nominal_ms += step


def _cron(schedule: Cron, after_ms: int, until_ms: int) -> Iterator[int]:
    fields = schedule.expression.split()
    if len(fields) == 5:
        fields = ["0", *fields]
    anywhere = fields[1:3] == ["*", "*"]
    if (
        len(fields) != 6
        or fields[3:] != ["*", "*", "*"]
        or not (anywhere or schedule.time_zone == "UTC")
    ):
        raise NotEnumerable(f"cron {schedule.expression!r} in {schedule.time_zone}")
    seconds, minutes, hours = (
        _values(text, limit) for text, limit in zip(fields, (60, 60, 24), strict=False)
    )
    for second in range(after_ms // 1000 + 1, until_ms // 1000 + 1):
        wall = datetime.fromtimestamp(second, UTC)
        if wall.second in seconds and wall.minute in minutes and wall.hour in hours:
            yield second * 1000


def _values(text: str, limit: int) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            chosen = range(limit)
        else:
            low = int(first)
            high = int(last) if last else limit - 1 if step else low
            chosen = range(low, high + 1)
        values.update(chosen[:: int(step) if step else 1])
    return frozenset(values)

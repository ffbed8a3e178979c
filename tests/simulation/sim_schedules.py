"""Schedules that timekeepers ask for, and which nominal times they name, by arithmetic alone.

Their cron expressions are of one kind, every n-th second with n a divisor of 60, and their
exclusions are seconds of each minute. UTC has whole minutes since 1970, so nobody has to read a
calendar to know what they name.
"""

from __future__ import annotations

import random

from timeball.bench.evidence import instant_ms
from timeball.client.messages import (
    AtRule,
    Cron,
    CronRule,
    Every,
    EveryRule,
    Recurring,
    Timetable,
    Union,
    WindowExcluded,
)

OVERLAPS = ("allow", "skip", "skip", "buffer_one", "buffer_one", "cancel_running", "cancel_running")
MOST_JITTER_MS = 3_000
STEPS_S = (1, 2, 5)


def new_schedule(rng: random.Random, now_ms: int) -> Timetable:
    """Any schedule; what it names begins about now."""
    common = {
        "start": now_ms + 3_000 if rng.random() < 0.1 else None,
        "until": now_ms + rng.randint(10_000, 30_000) if rng.random() < 0.1 else None,
        "max_runs": rng.randint(1, 12) if rng.random() < 0.25 else None,
        "jitter_ms": rng.choice([0, 0, 0, 400, MOST_JITTER_MS]),
        "exclude": [_window(rng)] if rng.random() < 0.25 else [],
        "catch_up": rng.choice(["none", "one", "all"]),
        "catch_up_window_ms": rng.choice([None, None, 12_000]),
        "catch_up_limit": rng.choice([1, 3, 1_000]),
        "overlap": rng.choice(OVERLAPS),
        "pause_on_failure": rng.random() < 0.15,
    }
    chance = rng.random()
    if chance < 0.45:
        return Every(_interval(rng), anchor=_anchor(rng, now_ms), **common)
    if chance < 0.7:
        return Cron(_cron(rng), **common)
    rules: list[EveryRule | CronRule | AtRule] = [
        EveryRule(_interval(rng), anchor=_anchor(rng, now_ms)),
        CronRule(_cron(rng)),
    ]
    if rng.random() < 0.5:
        rules.append(AtRule([now_ms + rng.randint(1, 9_000) for _ in range(3)]))
    return Union(rules, **common)


def _interval(rng: random.Random) -> int:
    return rng.choice([500, 1_000, 2_000, 3_700])


def _anchor(rng: random.Random, now_ms: int) -> int:
    return now_ms - rng.randint(0, 100_000)


def _cron(rng: random.Random) -> str:
    return f"*/{rng.choice(STEPS_S)} * * * * *"


def _window(rng: random.Random) -> WindowExcluded:
    first = rng.randint(0, 50)
    return WindowExcluded(f"{first}-{first + rng.randint(0, 9)} * * * * *")


def beats(schedule: Timetable, after_ms: int, until_ms: int) -> list[int]:
    """The nominal times (epoch ms) that a schedule names in `after_ms` < t <= `until_ms`."""
    if schedule.start is not None:
        after_ms = max(after_ms, _instant(schedule.start) - 1)
    if schedule.until is not None:
        until_ms = min(until_ms, _instant(schedule.until))
    rules = schedule.schedules if isinstance(schedule, Union) else [schedule]
    named = {beat for rule in rules for beat in _beats(rule, after_ms, until_ms)}
    return sorted(beat for beat in named if not _excluded(schedule, beat))


def _beats(rule: object, after_ms: int, until_ms: int) -> list[int]:
    match rule:
        case Every() | EveryRule():
            anchor_ms = _instant(rule.anchor)
            first = max(-(-(after_ms + 1 - anchor_ms) // rule.interval_ms), 0)
            return list(range(anchor_ms + first * rule.interval_ms, until_ms + 1, rule.interval_ms))
        case Cron() | CronRule():
            seconds, rest = rule.expression.split(" ", 1)
            assert rest == "* * * * *"
            step_ms = int(seconds.removeprefix("*/")) * 1_000
            return list(range((after_ms // step_ms + 1) * step_ms, until_ms + 1, step_ms))
        case AtRule():
            return [at for at in map(_instant, rule.times) if after_ms < at <= until_ms]
    raise TypeError(f"no rule: {rule}")


def _excluded(schedule: Recurring, beat: int) -> bool:
    second = beat // 1_000 % 60
    for window in schedule.exclude:
        first, last = window.expression.split(" ")[0].split("-")
        if int(first) <= second <= int(last):
            return True
    return False


def _instant(value: str | int | None) -> int:
    assert value is not None
    return value if isinstance(value, int) else instant_ms(value)

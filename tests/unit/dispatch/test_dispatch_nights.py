"""Five hundred timetables in forty zones through the nights in which clocks change (RECU-09)."""

from __future__ import annotations

import datetime
from importlib import resources
from zoneinfo import ZoneInfo

import pytest

from timeball.cluster.dispatch import rules
from timeball.cluster.dispatch.timetable import first_after
from timeball.cluster.state.operations import AdvanceTimetables, Cron, NewJob, Timetable

MINUTE = 60_000
HOUR = 60 * MINUTE

PLACES = (
    "America/New_York America/Chicago America/Denver America/Los_Angeles "
    "America/Anchorage America/Halifax America/St_Johns America/Havana "
    "America/Toronto America/Winnipeg America/Miquelon America/Nuuk "
    "America/Tijuana America/Port-au-Prince Atlantic/Bermuda Europe/Berlin "
    "Europe/London Europe/Dublin Europe/Lisbon Europe/Helsinki "
    "Europe/Athens Europe/Chisinau Europe/Moscow Atlantic/Azores "
    "Atlantic/Canary Asia/Beirut Asia/Jerusalem Asia/Kolkata "
    "Asia/Kathmandu Asia/Tokyo Asia/Shanghai Asia/Dubai "
    "Africa/Cairo Africa/Casablanca Africa/Lagos Australia/Lord_Howe "
    "Australia/Sydney Pacific/Auckland Pacific/Apia UTC "
)
ZONES = PLACES.split()

KINDS = [  # minutes, hours; "*" and "*/n" follow the clock, the others name times of day
    ("30", "2"),
    ("0", "0"),
    ("45", "1"),
    ("15,45", "1,2,3"),
    ("*/30", "*"),
    ("0", "*/2"),
    ("15", "3"),
    ("0", "*"),
    ("30", "23"),
    ("*/15", "2"),
    ("30", "0"),
    ("15", "9-17"),
]

WINDOWS = ["2026-03-07", "2026-03-28", "2026-10-24", "2026-10-31"]


def numbers(text, size):
    """What a field of a cron expression matches."""
    if text.startswith("*"):
        return set(range(0, size, int(text[2:] or 1)))
    found = set()
    for item in text.split(","):
        first, _, last = item.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def wall_minutes(zone, first_ms, last_ms):
    """(instant, what the clocks show) minute by minute."""
    # Not the host's data, which may be older than the data that the product ships.
    with resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).open("rb") as data:
        place = ZoneInfo.from_file(data)
    return [
        (at, datetime.datetime.fromtimestamp(at // 1000, place).replace(tzinfo=None))
        for at in range(first_ms, last_ms + 1, MINUTE)
    ]


def oracle(walls, minutes, hours):
    """Which instants an expression names, by looking at each minute of the clock on the wall."""
    wanted_minutes, wanted_hours = numbers(minutes, 60), numbers(hours, 24)

    def matches(wall):
        return wall.minute in wanted_minutes and wall.hour in wanted_hours

    if minutes.startswith("*") or hours.startswith("*"):
        return [at for at, wall in walls if matches(wall)]
    fires = set()
    latest = walls[0][1] - datetime.timedelta(minutes=1)
    for at, wall in walls:
        # What has not been shown yet, up to this: more than one minute where some are skipped.
        while latest < wall:
            latest += datetime.timedelta(minutes=1)
            if matches(latest):
                fires.add(at)
    return sorted(fires)


@pytest.mark.parametrize("day", WINDOWS)
async def test_recu_09_five_hundred_schedules_through_the_nights_of_change(world, monkeypatch, day):
    start = datetime.datetime.fromisoformat(f"{day}T00:00+00:00")
    start_ms = int(start.timestamp()) * 1000
    await world.lose_leadership()
    world.wall_offset_ms = start_ms - world.timers.now_ms
    await world.lead(1, horizon_ms=2 * HOUR, longest_wait_ms=HOUR)
    rows, new = [], []
    for number in range(500):
        zone, (minutes, hours) = ZONES[number % 40], KINDS[number // 40 % len(KINDS)]
        if number == 250:
            minutes = "7"  # nobody else's
        rule = Cron(f"{minutes} {hours} * * *", zone)
        timetable = Timetable((rule,))
        first_ms = first_after(timetable, start_ms)
        new.append(NewJob("q", b"", first_ms=first_ms, timetable=timetable))
        rows.append((zone, minutes, hours))
    created = await world.create(*new)
    jobs = [(world.state.job(job), *row) for (job, _), row in zip(created, rows, strict=True)]
    bad = jobs[250][0]
    faulty, honest = bad.timetable.rules[0], rules.first_after
    monkeypatch.setattr(
        rules,
        "first_after",
        lambda rule, after_ms: after_ms if rule == faulty else honest(rule, after_ms),
    )
    written = len(world.commit.entries)
    for term in range(2, 8):  # half a day each, with a change of leader at the end
        await world.pass_ms(12 * HOUR - 3_000)
        await world.lose_leadership()
        world.timers.now_ms += 3_000
        await world.lead(term, horizon_ms=2 * HOUR, longest_wait_ms=HOUR)
    assert world.seen.parked == [bad.id]
    assert "not later" in bad.recurrence.parked
    end_ms = world.now_ms
    walls = {zone: wall_minutes(zone, start_ms + MINUTE, end_ms) for zone in ZONES}
    fires = 0
    for job, zone, minutes, hours in jobs:
        fired = [one.nominal_ms for one in world.state.executions_of(job) if one.due_ms <= end_ms]
        wanted = oracle(walls[zone], minutes, hours)
        assert fired == (wanted[:1] if job is bad else wanted), (zone, minutes, hours)
        fires += len(fired)
    assert fires > 10_000
    assert world.dispatcher.ready_depth("q") == fires
    # The faulty one costs nothing, and nobody takes a step in vain.
    steps = [
        item
        for entry in world.commit.entries[written:]
        for op in entry
        if isinstance(op, AdvanceTimetables)
        for item in op.items
    ]
    assert len(steps) == fires - 1

"""Which timetables run, and which nominal times they name, by arithmetic alone.

Every timetable here beats once a second or once a minute, on the full one; whatever its form and
its time zone, for clocks everywhere differ from UTC by whole minutes. So its nominal times are
the multiples of its period, and nobody has to read a cron expression to know them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from timeball.bench.evidence import Creation, Run, instant_ms
from timeball.client.messages import Cron, Every, JobView, Schedule

PERIODS_MS = {"each-second": 1_000, "each-minute": 60_000}
"""The labels of timetables, each with the time from one beat to the next."""
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "Pacific/Chatham",
    "Asia/Tokyo",
    "Africa/Casablanca",
    "Pacific/Apia",
)
_CRON = {"each-second": ("* * * * * *",), "each-minute": ("* * * * *", "0 * * * * *")}


def timetables(label: str, count: int, until_ms: int) -> list[Schedule]:
    """Timetables of all forms that beat alike: cron in many zones, every third an interval."""
    period_ms = PERIODS_MS[label]
    crons = _CRON[label]
    return [
        Every(period_ms, anchor=until_ms // 60_000 * 60_000 - 86_400_000, until=until_ms)
        if place % 3 == 2
        else Cron(crons[place % len(crons)], ZONES[place % len(ZONES)], until=until_ms)
        for place in range(count)
    ]


class Ledger(msgspec.Struct, frozen=True):
    """A timetable as it was asked for and as the cluster shows it in the end."""

    creation: Creation
    period_ms: int
    view: JobView
    named: range
    """Its nominal times (epoch ms), from its creation to its end."""


def ledgers(run: Run) -> Iterator[Ledger]:
    """Every timetable of a run that the cluster still knows."""
    for creation in run.creations.values():
        schedule = creation.schedule
        view = run.jobs.get(creation.job_id)
        if view is None or not isinstance(schedule, Every | Cron):
            continue
        period_ms = PERIODS_MS[creation.label]
        until_ms = schedule.until
        assert isinstance(until_ms, int)
        created_ms = instant_ms(view.created_at)
        first_ms = (created_ms // period_ms + 1) * period_ms
        yield Ledger(creation, period_ms, view, range(first_ms, until_ms + 1, period_ms))

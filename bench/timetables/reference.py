"""Which timetables run, and which nominal times they name, by arithmetic alone.

Every timetable here beats once a second or once a minute, on the full one; whatever its form and
its time zone, for clocks everywhere differ from UTC by whole minutes. So its nominal times are
the multiples of its period, and nobody has to read a cron expression to know them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from timeball.bench.evidence import Creation, Run, instant_ms
from timeball.client.messages import Cron, Every, ExecutionView, JobView, Schedule, TimetableView

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
NOT_RUN = frozenset(("skipped", "cancelled"))
"""States of executions that stand for a nominal time and did not run."""
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


def beats(label: str, after_ms: int, until_ms: int) -> range:
    """The nominal times (epoch ms) of such a timetable in `after_ms` < t <= `until_ms`."""
    period_ms = PERIODS_MS[label]
    return range((after_ms // period_ms + 1) * period_ms, until_ms + 1, period_ms)


class Ledger(msgspec.Struct, frozen=True):
    """A timetable as it was asked for and as the cluster shows it in the end."""

    creation: Creation
    view: JobView
    timetable: TimetableView
    ran: dict[int, list[ExecutionView]]
    """The executions that ran or should have, by nominal time (epoch ms)."""
    named: range
    """Its nominal times, from its creation to its end."""


def ledgers(run: Run) -> Iterator[Ledger]:
    """Every timetable of a run that the cluster still knows.

    A timetable begins when its create reaches the leader, which is some time between its sending
    and its answer. A beat in between belongs to it if it ran.
    """
    for creation in run.creations.values():
        schedule = creation.schedule
        view = run.jobs.get(creation.job_id)
        if view is None or view.timetable is None or not isinstance(schedule, Every | Cron):
            continue
        ran: dict[int, list[ExecutionView]] = defaultdict(list)
        for execution in run.executions_by_job.get(view.job_id, []):
            if execution.state not in NOT_RUN:
                ran[instant_ms(execution.nominal_at)].append(execution)
        until_ms = schedule.until
        assert isinstance(until_ms, int)
        sent_ms, acked_ms = creation.sent_us // 1000, creation.acked_us // 1000
        after_ms = next(
            (beat - 1 for beat in beats(creation.label, sent_ms, acked_ms) if beat in ran), acked_ms
        )
        named = beats(creation.label, after_ms, until_ms)
        yield Ledger(creation, view, view.timetable, dict(ran), named)

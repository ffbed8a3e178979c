"""What is recorded of timetables, beside the history that the checkers of `bench` read."""

from __future__ import annotations

from timeball.bench.history import Event
from timeball.client.messages import JobExplained, Timetable

QUEUE = "kept"
"""The queue of all jobs that timekeepers keep, and of nothing else."""


class Asked(Event, frozen=True, kw_only=True, tag="timetable_asked"):
    """A timekeeper is about to ask for something; at the earliest by the slowest clock."""

    number: int
    """Counts what the source has asked for."""
    action: str
    """put, create, update, pause, resume, trigger, backfill or cancel."""
    line: int
    """Counts the timetables that the source has kept, one after the other."""
    judge_us: int
    """The judge's clock at that moment."""
    named: bool = False
    """Whether the timetable has a name, which is the source's."""
    job_id: str = ""
    payload: int | None = None
    """Of all that is asked for in a run only this has it."""
    schedule: Timetable | None = None
    if_version: int | None = None
    catch_up: bool = False
    """A resume that catches up."""
    request_id: str = ""
    start_ms: int = 0
    until_ms: int = 0
    """The range of a backfill."""


class Told(Event, frozen=True, kw_only=True, tag="timetable_told"):
    """The answer to what a timekeeper asked for, by the judge's clock."""

    number: int
    status: str
    """As the answer has it; of a problem its HTTP status."""
    doubtful: bool
    """Whether an earlier try was lost: it may have been done, and may still be."""
    job_id: str = ""
    version: int = 0
    executions: tuple[str, ...] = ()
    """Those that a trigger or a backfill made."""


class Handed(Event, frozen=True, kw_only=True, tag="handed"):
    """A worker received the payload of a timekeeper's job with a lease."""

    execution_id: str
    token: int
    attempt: int
    payload: int
    due_ms: int


class Explained(Event, frozen=True, kw_only=True, tag="explained"):
    """What the cluster says of a timetable when all faults have been over for a while."""

    answer: JobExplained
    payload: int
    created_ms: int

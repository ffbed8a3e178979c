"""When jobs run: schedules, timetables with their rules, and retries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from timeball.client.messages.fields import (
    MAX_DELAY_MS,
    MAX_ERROR_TYPE,
    BackoffName,
    CatchUp,
    CronText,
    Instant,
    IntervalMs,
    Overlap,
    Request,
    TimeZone,
)


class At(Request, frozen=True, tag_field="type", tag="at"):
    """Once, at an instant: ISO 8601 with an offset, or epoch milliseconds. Past: due at once."""

    time: Instant


class After(Request, frozen=True, tag_field="type", tag="after"):
    """Once, `delay_ms` after the cluster accepted the job."""

    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]


class DatesExcluded(Request, frozen=True, tag_field="type", tag="dates"):
    """Whole days of a calendar, each `YYYY-MM-DD` or `YYYY-MM-DD/YYYY-MM-DD` (both included)."""

    dates: Annotated[list[Annotated[str, Meta(max_length=21)]], Meta(min_length=1, max_length=366)]
    time_zone: TimeZone | None = None
    """None: that of the schedule's first cron rule, or UTC."""


class WindowExcluded(Request, frozen=True, tag_field="type", tag="window"):
    """All times that a cron expression matches; whole minutes, if it has five fields."""

    expression: CronText
    time_zone: TimeZone | None = None


class Recurring(Request, frozen=True, kw_only=True):
    """What every timetable can have: bounds, jitter, exclusions, and rules for what goes amiss.

    `start` and `until` bound nominal times (both included), `max_runs` the occurrences made.
    `jitter_ms` delays all of a job's occurrences by one constant share of it, which differs
    from job to job.
    """

    start: Instant | None = None
    until: Instant | None = None
    max_runs: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    jitter_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    exclude: Annotated[list[DatesExcluded | WindowExcluded], Meta(max_length=16)] = msgspec.field(
        default_factory=list
    )
    catch_up: CatchUp = "one"
    catch_up_window_ms: Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)] | None = None
    """What was missed longer ago than this is not caught up; None: no bound."""
    catch_up_limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """How many missed occurrences `all` runs at most: the newest, oldest first."""
    overlap: Overlap = "allow"
    pause_on_failure: bool = False
    """Pause the timetable when an execution goes to the dead letters."""


class EveryRule(Request, frozen=True, tag_field="type", tag="every"):
    """Every `interval_ms`, counted from `anchor` (default: the creation), without drift."""

    interval_ms: IntervalMs
    anchor: Instant | None = None


class CronRule(Request, frozen=True, tag_field="type", tag="cron"):
    """By the wall clock of `time_zone` (IANA name); see `Cron`."""

    expression: CronText
    time_zone: TimeZone = "UTC"


class AtRule(Request, frozen=True, tag_field="type", tag="at"):
    """At given instants."""

    times: Annotated[list[Instant], Meta(min_length=1, max_length=1_000)]


class Every(Recurring, frozen=True, tag_field="type", tag="every"):
    """Every `interval_ms`, counted from `anchor` (default: the creation), without drift."""

    interval_ms: IntervalMs
    anchor: Instant | None = None


class Cron(Recurring, frozen=True, tag_field="type", tag="cron"):
    """By the wall clock of `time_zone` (IANA name).

    `expression` has five fields (minute hour day-of-month month day-of-week), or six with
    the seconds FIRST, or is a name such as `@daily` (docs/cron.md); the answer to a create
    echoes the next fires.
    """

    expression: CronText
    time_zone: TimeZone = "UTC"


class Union(Recurring, frozen=True, tag_field="type", tag="union"):
    """Several schedules of one job: the times that any of them names, equal ones once."""

    schedules: Annotated[list[EveryRule | CronRule | AtRule], Meta(min_length=1, max_length=16)]


Timetable = Every | Cron | Union
Schedule = At | After | Every | Cron | Union


DelayMs = Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)]
ErrorType = Annotated[str, Meta(min_length=1, max_length=MAX_ERROR_TYPE)]


class Retry(Request, frozen=True):
    """The retry policy: how often, how soon, and after which failures not at all.

    The delay after the n-th attempt failed is, by `backoff`: `exponential`, `initial_ms` times
    `multiplier_pct` per cent to the power of n − 1; `linear`, n times `initial_ms`; `fixed`,
    `initial_ms`; `list`, the n-th of `delays_ms`, or the last. `max_ms` caps it, and
    `jitter_pct` per cent of it are replaced by a share that differs between executions and
    attempts: 100 spreads retries over the whole delay. A failure whose error type is exactly
    one of `non_retryable_errors` goes straight to the dead letters.
    """

    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] = 5
    initial_ms: DelayMs = 1_000
    multiplier_pct: Annotated[int, Meta(ge=100, le=10_000)] = 200
    max_ms: DelayMs = 3_600_000
    jitter_pct: Annotated[int, Meta(ge=0, le=100)] = 20
    backoff: BackoffName = "exponential"
    delays_ms: Annotated[tuple[DelayMs, ...], Meta(max_length=50)] = ()
    non_retryable_errors: Annotated[tuple[ErrorType, ...], Meta(max_length=16)] = ()

"""What few jobs ask for (see `operations.Options`): from the wire into the log, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.http.instants import parse_instant, render_instant
from timeball.cluster.http.refusals import conflict_at
from timeball.cluster.http.schedules import Plan
from timeball.cluster.state import operations
from timeball.cluster.state.records import Job

_ONE_RUN = (
    "it is for a job that runs once; of one that recurs, `until` ends the schedule, and"
    " `expires_after_ms` is for each run"
)


def read_options(
    body: messages.NewJob | messages.JobPut, plan: Plan, prefix: str
) -> operations.Options | None:
    """The options in the terms of the log; None for none.

    Raises InvalidRequest, naming the field after `prefix`.
    """
    expires_at = body.expires_at if isinstance(body, messages.NewJob) else None
    if not (
        body.requires
        or body.tags
        or body.concurrency_key
        or body.expires_after_ms
        or expires_at is not None
    ):
        return None
    expires_ms = 0
    if expires_at is not None:
        if plan.timetable is not None:
            raise InvalidRequest.at(f"{prefix}expires_at", _ONE_RUN)
        expires_ms = _read_expiry(expires_at, plan.first_ms, prefix)
    after_ms = body.expires_after_ms or 0
    _check_jitter(plan.timetable, after_ms, prefix)
    return operations.Options(
        body.concurrency_key, as_set(body.requires), as_set(body.tags), expires_ms, after_ms
    )


def read_changed_options(body: messages.JobUpdate, job: Job, plan: Plan | None) -> dict[str, Any]:
    """The parts of `operations.Change` that are about options; `plan` is the new schedule, if any.

    Raises InvalidRequest and Conflict, naming the field.
    """
    changed: dict[str, Any] = {}
    if body.requires is not msgspec.UNSET:
        changed["requires"] = as_set(body.requires)
    if body.tags is not msgspec.UNSET:
        changed["tags"] = as_set(body.tags)
    if body.expires_after_ms is not msgspec.UNSET:
        changed["expires_after_ms"] = body.expires_after_ms or 0
    if body.expires_at is None:
        changed["expires_ms"] = 0
    elif body.expires_at is not msgspec.UNSET:
        if job.recurrence is not None:
            raise conflict_at("expires_at", _ONE_RUN)
        first_ms = job.planned_ms if plan is None else plan.first_ms
        changed["expires_ms"] = _read_expiry(body.expires_at, first_ms, "")
    timetable = job.timetable if plan is None else plan.timetable
    _check_jitter(timetable, changed.get("expires_after_ms", job.options.expires_after_ms), "")
    return changed


def as_set(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in order, each once."""
    return tuple(sorted(set(tags)))


def weight_of_options(options: operations.Options | None) -> int:
    """About how many bytes options take in the log, rather more than less."""
    if options is None:
        return 0
    texts = (options.concurrency_key, *options.requires, *options.tags)
    return sum(4 * len(text) + 2 for text in texts)


def show_expiry(expires_ms: int) -> str | None:
    """When something expires; None for never, and for what lies beyond all instants."""
    if not 0 < expires_ms <= messages.MAX_INSTANT_MS:
        return None
    return render_instant(expires_ms)


def _read_expiry(expires_at: str | int, first_ms: int, prefix: str) -> int:
    expires_ms = parse_instant(expires_at, f"{prefix}expires_at")
    if first_ms and expires_ms <= first_ms:
        raise InvalidRequest.at(
            f"{prefix}expires_at",
            f"the job is due at {render_instant(first_ms)}: it must expire later",
        )
    return max(expires_ms, 1)  # 0 stands for none in the log


def _check_jitter(timetable: operations.Timetable | None, after_ms: int, prefix: str) -> None:
    if timetable is not None and 0 < after_ms <= timetable.jitter_ms:
        raise InvalidRequest.at(
            f"{prefix}expires_after_ms",
            f"it must exceed the schedule's jitter_ms, {timetable.jitter_ms}:"
            " a run may be due that much after its nominal time",
        )

"""`timeball job …`: create, look at, change and cancel jobs."""

from __future__ import annotations

from typing import Any, TypeVar

import click
import msgspec
from msgspec import UNSET, UnsetType

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options, limit_option
from timeball.client.cli.demands import demand_options, tell_demands
from timeball.client.cli.durations import DURATION
from timeball.client.cli.keying import key_options, tell_key
from timeball.client.cli.naming import takes_a_job
from timeball.client.cli.retrying import retry_options, revised, tell_retry
from timeball.client.cli.scheduling import describe, details, schedule_options
from timeball.client.cli.timetables import (
    backfill,
    changed,
    explain,
    pause,
    resume,
    standing,
    trigger,
)
from timeball.client.client import Client
from timeball.client.messages import (
    JobChanged,
    JobCreated,
    JobView,
    Retry,
    Schedule,
    Timetable,
)

T = TypeVar("T")


@click.group()
def job() -> None:
    """Create, look at, change and cancel jobs."""


@job.command()
@click.option("--queue", default="default", show_default=True)
@click.option("--payload", default="null", help="What the worker gets, in JSON.")
@schedule_options
@click.option(
    "--name", help="Of a recurring job: create it, or have the job of this name be changed to this."
)
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True)
@click.option("--partition-key", default="", help="Work of one key shares a partition.")
@retry_options
@click.option(
    "--attempt-timeout", "attempt_timeout_ms", type=DURATION, help="Longest time for one attempt."
)
@key_options
@click.option(
    "--concurrency-key",
    default="",
    help="Of the jobs of one key only so many run at a time, by the queue's settings.",
)
@demand_options
@asks
def create(
    asker: Asker,
    /,
    payload: str,
    schedule: Schedule | None,
    name: str | None,
    retrying: dict[str, Any],
    attempt_timeout_ms: int | None,
    keyed: dict[str, Any],
    demands: dict[str, Any],
    **definition: Any,
) -> None:
    """Create a job; without a schedule it is due at once."""
    definition.update(
        payload=_payload(payload),
        retry=revised(Retry(), retrying),
        timeout_ms=attempt_timeout_ms,
        **demands,
    )
    if name is not None:
        _put(asker, name, schedule, keyed, definition)
        return
    created = asker.ask(lambda client: client.create(schedule=schedule, **keyed, **definition))
    asker.show(created, lambda: _created(created))


def _put(
    asker: Asker,
    name: str,
    schedule: Schedule | None,
    keyed: dict[str, Any],
    definition: dict[str, Any],
) -> None:
    if keyed:
        raise click.UsageError("--name and --key exclude each other")
    if not isinstance(schedule, Timetable):
        raise click.UsageError("--name goes with a schedule that recurs, such as --cron or --every")
    if "expires_at" in definition:
        raise click.UsageError("--name goes with --expires-after, not with --expires-at")
    timetable = schedule
    answer = asker.ask(lambda client: client.put_job(name, schedule=timetable, **definition))
    asker.show(answer, lambda: changed(answer))


@job.command()
@click.option("--payload", help="What the worker gets, in JSON.")
@schedule_options
@click.option("--priority", type=click.IntRange(0, 9))
@retry_options
@click.option(
    "--attempt-timeout", "attempt_timeout_ms", type=DURATION, help="Longest time for one attempt."
)
@click.option("--no-attempt-timeout", is_flag=True, help="No bound for the time of an attempt.")
@demand_options
@click.option("--no-requires", is_flag=True, help="Any worker may get it.")
@click.option("--no-tags", is_flag=True, help="It has no tags.")
@click.option(
    "--no-expiry", is_flag=True, help="It expires neither at an instant nor after a time."
)
@click.option(
    "--if-version", type=click.IntRange(1), help="Only if nobody changed it since this version."
)
@asks
@takes_a_job
def update(
    asker: Asker,
    job_id: str,
    /,
    payload: str | None,
    schedule: Schedule | None,
    priority: int | None,
    retrying: dict[str, Any],
    attempt_timeout_ms: int | None,
    no_attempt_timeout: bool,
    demands: dict[str, Any],
    no_requires: bool,
    no_tags: bool,
    no_expiry: bool,
    if_version: int | None,
) -> None:
    """Change a job; what is not given stays, and a new schedule replaces the whole old one."""
    if no_attempt_timeout and attempt_timeout_ms is not None:
        raise click.UsageError("--attempt-timeout and --no-attempt-timeout exclude each other")
    given: dict[str, Any] = {
        "payload": UNSET if payload is None else _payload(payload),
        "schedule": _or_unset(schedule),
        "priority": _or_unset(priority),
        "timeout_ms": None if no_attempt_timeout else _or_unset(attempt_timeout_ms),
        **_demanded(demands, no_requires, no_tags, no_expiry),
    }
    if not retrying and all(value is UNSET for value in given.values()):
        raise click.UsageError("nothing to change: give an option such as --payload or --cron")

    async def change(client: Client) -> JobChanged:
        if not retrying:
            return await client.update_job(job_id, **given, if_version=if_version)
        return await _with_retry(client, job_id, retrying, given, if_version)

    answer = asker.ask(change)
    asker.show(answer, lambda: changed(answer))


async def _with_retry(
    client: Client,
    job_id: str,
    retrying: dict[str, Any],
    given: dict[str, Any],
    if_version: int | None,
) -> JobChanged:
    """Change parts of a retry policy, which is changed as a whole: read it, and hold it."""
    view = await client.job(job_id, consistency="strong")
    retry = revised(view.retry, retrying)
    version = view.version if if_version is None else if_version
    return await client.update_job(job_id, **given, retry=retry, if_version=version)


def _demanded(
    demands: dict[str, Any], no_requires: bool, no_tags: bool, no_expiry: bool
) -> dict[str, Any]:
    """Take what is given, and empty what is to be taken away."""
    nothing: dict[str, Any] = {}
    if no_requires:
        nothing["requires"] = ()
    if no_tags:
        nothing["tags"] = ()
    if no_expiry:
        nothing.update(expires_at=None, expires_after_ms=None)
    if both := sorted(nothing.keys() & demands.keys()):
        option = both[0].removesuffix("_ms").replace("_", "-").replace("tags", "tag")
        raise click.UsageError(f"--{option} and its --no-… exclude each other")
    return {**demands, **nothing}


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


@job.command()
@freshness_options
@asks
@takes_a_job
def get(asker: Asker, job_id: str, /, **fresh: Any) -> None:
    """Show a job."""
    view = asker.ask(lambda client: client.job(job_id, **fresh))
    asker.show(view, lambda: _one(view))


@job.command(name="list")
@click.option("--queue")
@click.option("--state", help="active, completed or cancelled.")
@click.option("--tag", help="Those that have this tag.")
@click.option("--created-after", help="Created then or later: ISO 8601 or epoch ms.")
@click.option("--created-before", help="Created before then: ISO 8601 or epoch ms.")
@limit_option
@freshness_options
@asks
def list_jobs(
    asker: Asker,
    /,
    queue: str | None,
    state: str | None,
    tag: str | None,
    created_after: str | None,
    created_before: str | None,
    limit: int,
    **fresh: Any,
) -> None:
    """List jobs, newest first."""
    views = asker.collect(
        lambda client, page_size: client.jobs(
            queue=queue,
            state=state,
            tag=tag,
            created_after=created_after,
            created_before=created_before,
            page_size=page_size,
            **fresh,
        ),
        limit,
    )
    asker.show(views, lambda: _many(views))


@job.command()
@asks
@takes_a_job
def cancel(asker: Asker, job_id: str) -> None:
    """Cancel a job: nothing of it will start again."""
    answer = asker.ask(lambda client: client.cancel(job_id))
    told = {
        "cancelled": "is cancelled",
        "requested": "is being cancelled: a worker still holds an execution and will be told",
        "finished": "had ended before: nothing changed",
    }
    asker.show(answer, lambda: f"job {answer.job_id} {told[answer.status]}")


def _payload(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--payload") from error
    except RecursionError as error:
        raise click.BadParameter("nested too deep", param_hint="--payload") from error


def _created(created: JobCreated) -> str:
    return output.facts(
        [
            ("job", created.job_id),
            ("status", created.status),
            ("execution", created.execution_id),
            ("next fires", created.next_fires),
        ]
    )


def _one(view: JobView) -> str:
    return output.facts(
        [
            ("job", view.job_id),
            ("queue", view.queue),
            ("state", view.state),
            ("name", view.timetable.name if view.timetable else None),
            ("schedule", describe(view.schedule)),
            *details(view.schedule),
            ("version", view.version),
            ("payload", output.compact(view.payload)),
            ("priority", view.priority),
            ("partition key", view.partition_key),
            *tell_retry(view.retry),
            ("attempt timeout", f"{view.timeout_ms} ms" if view.timeout_ms else None),
            *tell_key(view),
            *tell_demands(view),
            ("created", view.created_at),
            ("next fires", view.next_fires),
            ("executions", {k: n for k, n in view.execution_counts.items() if n}),
            *(standing(view.timetable) if view.timetable else ()),
        ]
    )


def _state(view: JobView) -> str:
    timetable = view.timetable
    if timetable is not None and timetable.paused is not None:
        return f"{view.state} (paused)"
    if timetable is not None and timetable.parked is not None:
        return f"{view.state} (stands still)"
    return view.state


def _many(views: list[JobView]) -> str:
    return output.table(
        ["job", "name", "queue", "state", "schedule", "created", "next fire"],
        [
            (
                view.job_id,
                view.timetable.name if view.timetable else None,
                view.queue,
                _state(view),
                describe(view.schedule),
                view.created_at,
                view.next_fires[0] if view.next_fires else None,
            )
            for view in views
        ],
    )


for _command in (pause, resume, trigger, backfill, explain):
    job.add_command(_command)

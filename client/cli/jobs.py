"""`timeball job …`: create, look at and cancel jobs."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options, limit_option
from timeball.client.cli.durations import DURATION
from timeball.client.messages import (
    After,
    At,
    CatchUp,
    Cron,
    Every,
    JobCreated,
    JobView,
    Retry,
    Schedule,
)


@click.group()
def job() -> None:
    """Create, look at and cancel jobs."""


@job.command()
@click.option("--queue", default="default", show_default=True)
@click.option("--payload", default="null", help="What the worker gets, in JSON.")
@click.option("--at", help="Once, at an instant: ISO 8601 with an offset, or epoch ms.")
@click.option("--after", type=DURATION, help="Once, this long from now: 500ms, 5s, 2h, 1d.")
@click.option("--every", type=DURATION, help="Again and again, this far apart.")
@click.option(
    "--cron", help="By the wall clock: five fields, or six with the seconds first; @daily."
)
@click.option("--time-zone", help="The wall clock of --cron, an IANA name. [default: UTC]")
@click.option("--until", help="The end of --every or --cron: ISO 8601 or epoch ms.")
@click.option("--catch-up", type=click.Choice(["none", "one", "all"]), help="For missed instants.")
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True)
@click.option("--partition-key", default="", help="Work of one key shares a partition.")
@click.option("--max-attempts", type=click.IntRange(1, 10_000), default=5, show_default=True)
@click.option(
    "--attempt-timeout", "attempt_timeout_ms", type=DURATION, help="Longest time for one attempt."
)
@click.option("--key", help="Idempotency key: the same key never makes a second job.")
@asks
def create(
    asker: Asker,
    /,
    queue: str,
    payload: str,
    priority: int,
    partition_key: str,
    max_attempts: int,
    attempt_timeout_ms: int | None,
    key: str | None,
    **when: Any,
) -> None:
    """Create a job; without a schedule it is due at once."""
    schedule = _schedule(**when)
    decoded = _payload(payload)
    created = asker.ask(
        lambda client: client.create(
            queue=queue,
            payload=decoded,
            schedule=schedule,
            priority=priority,
            partition_key=partition_key,
            retry=Retry(max_attempts=max_attempts),
            timeout_ms=attempt_timeout_ms,
            idempotency_key=key,
        )
    )
    asker.show(created, lambda: _created(created))


@job.command()
@click.argument("job_id")
@freshness_options
@asks
def get(asker: Asker, /, job_id: str, **fresh: Any) -> None:
    """Show a job."""
    view = asker.ask(lambda client: client.job(job_id, **fresh))
    asker.show(view, lambda: _one(view))


@job.command(name="list")
@click.option("--queue")
@click.option("--state", help="active, completed or cancelled.")
@limit_option
@freshness_options
@asks
def list_jobs(
    asker: Asker, /, queue: str | None, state: str | None, limit: int, **fresh: Any
) -> None:
    """List jobs, newest first."""
    views = asker.collect(
        lambda client, page_size: client.jobs(
            queue=queue, state=state, page_size=page_size, **fresh
        ),
        limit,
    )
    asker.show(views, lambda: _many(views))


@job.command()
@click.argument("job_id")
@asks
def cancel(asker: Asker, job_id: str) -> None:
    """Cancel a job: nothing of it will start again."""
    answer = asker.ask(lambda client: client.cancel(job_id))
    told = {
        "cancelled": "is cancelled",
        "requested": "is being cancelled: a worker still holds an execution and will be told",
        "finished": "had ended before: nothing changed",
    }
    asker.show(answer, lambda: f"job {answer.job_id} {told[answer.status]}")


def _schedule(
    at: str | None,
    after: int | None,
    every: int | None,
    cron: str | None,
    time_zone: str | None,
    until: str | None,
    catch_up: CatchUp | None,
) -> Schedule | None:
    given = [
        name
        for name, value in (("--at", at), ("--after", after), ("--every", every), ("--cron", cron))
        if value is not None
    ]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other")
    if time_zone is not None and cron is None:
        raise click.UsageError("--time-zone goes with --cron")
    if every is None and cron is None and (until is not None or catch_up is not None):
        raise click.UsageError("--until and --catch-up go with --every or --cron")
    end = None if until is None else _instant(until)
    if at is not None:
        return At(time=_instant(at))
    if after is not None:
        return After(delay_ms=after)
    if every is not None:
        return Every(interval_ms=every, until=end, catch_up=catch_up or "one")
    if cron is not None:
        return Cron(
            expression=cron, time_zone=time_zone or "UTC", until=end, catch_up=catch_up or "one"
        )
    return None


def _instant(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else text


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
            ("schedule", describe(view.schedule)),
            ("payload", output.compact(view.payload)),
            ("priority", view.priority),
            ("partition key", view.partition_key),
            ("attempts", f"at most {view.retry.max_attempts}"),
            ("attempt timeout", f"{view.timeout_ms} ms" if view.timeout_ms else None),
            ("idempotency key", view.idempotency_key),
            ("created", view.created_at),
            ("next fires", view.next_fires),
            ("executions", {k: n for k, n in view.execution_counts.items() if n}),
            ("coalesced", view.coalesced or None),
            ("missed", view.missed or None),
        ]
    )


def _many(views: list[JobView]) -> str:
    return output.table(
        ["job", "queue", "state", "schedule", "created", "next fire"],
        [
            (
                view.job_id,
                view.queue,
                view.state,
                describe(view.schedule),
                view.created_at,
                view.next_fires[0] if view.next_fires else None,
            )
            for view in views
        ],
    )


def describe(schedule: Schedule | None) -> str:
    """Say a schedule in a few words."""
    match schedule:
        case None:
            return "at once"
        case At(time=time):
            return f"at {time}"
        case After(delay_ms=delay_ms):
            return f"after {delay_ms} ms"
        case Every(interval_ms=interval_ms):
            return f"every {interval_ms} ms"
        case Cron(expression=expression, time_zone=time_zone):
            return f"{expression} ({time_zone})"

"""`timeball job pause`, `resume`, `trigger`, `backfill`, `explain`: what recurring jobs can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import click

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options
from timeball.client.cli.naming import takes_a_job
from timeball.client.cli.scheduling import describe, instant
from timeball.client.messages import (
    FateView,
    FireView,
    JobBackfilled,
    JobChanged,
    JobExplained,
    MissedInPause,
    TimetableView,
)


@click.command()
@click.option("--reason", default="", help="Why, for those who find it paused.")
@asks
@takes_a_job
def pause(asker: Asker, job_id: str, reason: str) -> None:
    """Make no further run of a recurring job; what is due or under way goes on."""
    answer = asker.ask(lambda client: client.pause_job(job_id, reason=reason))
    asker.show(answer, lambda: changed(answer))


@click.command()
@click.option(
    "--missed",
    type=click.Choice(get_args(MissedInPause)),
    default="skip",
    show_default=True,
    help="For what fell into the pause; catch_up: by the schedule's catch-up rule.",
)
@asks
@takes_a_job
def resume(asker: Asker, job_id: str, missed: MissedInPause) -> None:
    """Let a paused timetable, or one that stands still after an error, go on."""
    answer = asker.ask(lambda client: client.resume_job(job_id, missed=missed))
    asker.show(answer, lambda: changed(answer))


@click.command()
@asks
@takes_a_job
def trigger(asker: Asker, job_id: str) -> None:
    """Run a recurring job once now; its timetable stays as it is."""
    answer = asker.ask(lambda client: client.trigger_job(job_id))
    told = {
        "created": f"runs now: execution {answer.execution_id}",
        "duplicate": f"runs already: execution {answer.execution_id}",
        "skipped": "does not run: another run is active, and its overlap rule skips this one",
    }
    asker.show(answer, lambda: f"job {answer.job_id} {told[answer.status]}")


@click.command()
@click.option("--start", required=True, help="The first nominal time: ISO 8601 or epoch ms.")
@click.option("--until", required=True, help="The last nominal time: ISO 8601 or epoch ms.")
@asks
@takes_a_job
def backfill(asker: Asker, job_id: str, start: str, until: str) -> None:
    """Run the nominal times of a past range that have no execution."""
    answer = asker.ask(
        lambda client: client.backfill_job(job_id, start=instant(start), until=instant(until))
    )
    asker.show(answer, lambda: _backfilled(answer))


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="Most past fates, newest first.",
)
@click.option(
    "--fires",
    type=click.IntRange(0, 100),
    default=5,
    show_default=True,
    help="How many of the next fires.",
)
@freshness_options
@asks
@takes_a_job
def explain(asker: Asker, job_id: str, /, limit: int, fires: int, **fresh: Any) -> None:
    """Show what became of a recurring job's last nominal times, and which come next, and why."""
    answer = asker.ask(lambda client: client.explain_job(job_id, limit=limit, fires=fires, **fresh))
    asker.show(answer, lambda: _explained(answer))


def changed(answer: JobChanged) -> str:
    """Render the answer to a change of a job."""
    return output.facts(
        [
            ("job", answer.job_id),
            ("status", answer.status),
            ("version", answer.version),
            ("next fires", answer.next_fires),
        ]
    )


def fires_table(fires: Sequence[FireView]) -> str:
    """Render times to come: on the wall clock, as UTC, when due, and below it what is unusual."""
    return output.table(
        ["local", "time zone", "utc", "due", "runs"],
        [
            (fire.local, fire.time_zone, fire.nominal_at, fire.due_at, not fire.excluded)
            for fire in fires
        ],
        notes=[fire.why for fire in fires],
    )


def standing(view: TimetableView) -> list[tuple[str, object]]:
    """Say how a timetable stands, as facts."""
    paused = view.paused
    reason = f" ({paused.reason})" if paused is not None and paused.reason else ""
    return [
        ("paused", None if paused is None else f"since {paused.since_at}{reason}"),
        ("stands still", view.parked),
        ("timetable", "has ended" if view.ended else None),
        ("planned to", view.planned_at),
        (
            "nominal times",
            {
                "fired": view.fired,
                "coalesced": view.coalesced,
                "skipped": view.skipped,
                "missed": view.missed,
            },
        ),
    ]


def _backfilled(answer: JobBackfilled) -> str:
    rows = [
        *((execution, "created") for execution in answer.created),
        *((execution, "existing") for execution in answer.existing),
    ]
    head = f"job {answer.job_id}: {len(answer.created)} created, {len(answer.existing)} existing"
    return f"{head}\n\n{output.table(['execution', 'status'], rows)}" if rows else head


def _explained(answer: JobExplained) -> str:
    head = output.facts(
        [
            ("job", answer.job_id),
            ("name", answer.timetable.name),
            ("state", answer.state),
            ("schedule", describe(answer.schedule)),
            ("version", answer.version),
            *standing(answer.timetable),
        ]
    )
    return f"{head}\n\n{_fates(answer.past)}\n\n{_next(answer.next)}"


def _fates(past: Sequence[FateView]) -> str:
    if not past:
        return "no past yet"
    return output.table(
        ["from", "to", "count", "fate", "state", "execution", "reason"],
        [
            (
                fate.first_at,
                fate.last_at,
                fate.count,
                fate.fate,
                fate.state,
                fate.execution_id,
                fate.reason,
            )
            for fate in past
        ],
    )


def _next(fires: Sequence[FireView]) -> str:
    return fires_table(fires) if fires else "nothing to come"

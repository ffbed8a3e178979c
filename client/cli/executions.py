"""`timeball execution …`: look at executions and their attempts."""

from __future__ import annotations

from typing import Any

import click

from timeball.client.cli import output
from timeball.client.cli.asking import Asker, asks, freshness_options, limit_option
from timeball.client.messages import ExecutionView


@click.group()
def execution() -> None:
    """Look at executions and their attempts."""


@execution.command()
@click.argument("execution_id")
@freshness_options
@asks
def get(asker: Asker, /, execution_id: str, **fresh: Any) -> None:
    """Show an execution with its attempts."""
    view = asker.ask(lambda client: client.execution(execution_id, **fresh))
    asker.show(view, lambda: _one(view))


@execution.command(name="list")
@click.option("--queue")
@click.option("--job", help="Of this job only.")
@click.option("--state", help="scheduled, retry, leased, running, succeeded, dead, …")
@click.option("--tag", help="Of jobs that have this tag.")
@click.option("--due-after", help="Due then or later: ISO 8601 or epoch ms.")
@click.option("--due-before", help="Due before then: ISO 8601 or epoch ms.")
@limit_option
@freshness_options
@asks
def list_executions(
    asker: Asker,
    /,
    queue: str | None,
    job: str | None,
    state: str | None,
    tag: str | None,
    due_after: str | None,
    due_before: str | None,
    limit: int,
    **fresh: Any,
) -> None:
    """List executions, newest first."""
    views = asker.collect(
        lambda client, page_size: client.executions(
            queue=queue,
            job=job,
            state=state,
            tag=tag,
            due_after=due_after,
            due_before=due_before,
            page_size=page_size,
            **fresh,
        ),
        limit,
    )
    asker.show(views, lambda: many(views))


def many(views: list[ExecutionView]) -> str:
    """Render executions as a table."""
    return output.table(
        ["execution", "queue", "state", "due", "attempts", "reason"],
        [
            (
                view.execution_id,
                view.queue,
                _state(view),
                view.due_at,
                f"{view.attempts_used}/{view.max_attempts}",
                view.reason or (view.attempts[-1].message if view.attempts else None),
            )
            for view in views
        ],
    )


def _one(view: ExecutionView) -> str:
    head = output.facts(
        [
            ("execution", view.execution_id),
            ("job", view.job_id),
            ("queue", view.queue),
            ("state", _state(view)),
            ("reason", view.reason),
            ("origin", view.origin),
            ("nominal", view.nominal_at),
            ("due", view.due_at),
            ("expires", view.expires_at),
            ("finished", view.finished_at),
            ("attempts", f"{view.attempts_used} of {view.max_attempts}"),
            ("result", None if view.result is None else output.compact(view.result)),
        ]
    )
    if not view.attempts:
        return head
    attempts = output.table(
        ["attempt", "worker", "token", "outcome", "claimed", "finished", "progress", "error"],
        [
            (
                attempt.number,
                attempt.worker,
                attempt.token,
                attempt.outcome,
                attempt.claimed_at,
                attempt.finished_at,
                None if attempt.progress is None else output.compact(attempt.progress),
                ": ".join(part for part in (attempt.error_type, attempt.message) if part),
            )
            for attempt in view.attempts
        ],
    )
    return "\n\n".join([head, attempts, *_backtrace(view)])


def _backtrace(view: ExecutionView) -> list[str]:
    """Render where the latest attempt that tells it failed."""
    for attempt in reversed(view.attempts):
        if attempt.backtrace:
            return [output.block(f"backtrace of attempt {attempt.number}", attempt.backtrace)]
    return []


def _state(view: ExecutionView) -> str:
    if view.cancel_requested and view.finished_at is None:
        return f"{view.state} (cancel requested)"
    return f"{view.state} (due)" if view.due else view.state

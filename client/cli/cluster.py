"""`timeball cluster …`: the state of nodes and queues; snapshots; new disks."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource
from msgspec import UNSET

from timeball.client.cli import output, replacing
from timeball.client.cli.asking import Asker, asks, freshness_options
from timeball.client.messages import ClusterView


@click.group(invoke_without_command=True)
@click.option("--digest", is_flag=True, help="Add the hash of the applied state.")
@freshness_options
@asks
def cluster(asker: Asker, /, digest: bool, **fresh: Any) -> None:
    """Show the cluster's nodes and queues, as the answering node sees them."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"options come after {context.invoked_subcommand!r}")
        return
    view = asker.ask(lambda client: client.cluster(digest=digest, **fresh))
    asker.show(view, lambda: _text(view))


@cluster.command()
@asks
def snapshot(asker: Asker) -> None:
    """Have the node at --url write a snapshot now. Exit code 1 if it is writing one already."""
    begun = asker.ask(lambda client: client.take_snapshot())
    asker.show(begun, lambda: f"{begun.node} writes a snapshot of position {begun.index}")


@cluster.command()
@click.argument("name")
@click.option(
    "--wait-s",
    type=click.IntRange(1, 86_400),
    default=900,
    show_default=True,
    help="How long to wait until the node votes.",
)
@asks
def replace(asker: Asker, name: str, wait_s: int) -> None:
    """Watch over node NAME while it gets an empty disk, until it votes again.

    Says first whether the others can spare it and what to do; changes nothing itself. Exit code
    1 if they can not, or if the node does not vote in time.
    """
    before = asker.ask(lambda client: client.replacement(name))
    refusal = replacing.refusal(before)
    if refusal is not None:
        raise click.ClickException(refusal)
    click.echo(replacing.advice(before), err=True)
    try:
        after = asker.ask(lambda client: replacing.watch(client, before, wait_s, _tell))
    except replacing.NotInTime as error:
        raise click.ClickException(str(error)) from error
    asker.show(after, lambda: f"{name} votes")


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _text(view: ClusterView) -> str:
    head = output.facts(
        [
            ("cluster", view.cluster),
            ("leader", view.leader or "none"),
            ("term", view.term),
            ("answered by", f"{view.node} ({view.role}), version {view.version}"),
            ("committed", view.commit_index),
            ("applied", view.applied_index),
            ("feature level", view.feature_level),
            ("state digest", None if view.state_digest is UNSET else view.state_digest),
            ("totals", view.totals),
            ("attention", view.obstacle),
        ]
    )
    nodes = output.table(
        ["node", "url", "role", "disk", "connected", "match", "last contact ms", "level"],
        [
            (
                node.name,
                node.http_url,
                node.role,
                node.standing,
                node.connected,
                node.match_index,
                node.last_contact_ms,
                node.supported_level,
            )
            for node in view.nodes
        ],
    )
    queues = output.table(
        ["queue", "scheduled", "ready", "leased", "waiting claims"],
        [
            (queue.name, queue.scheduled, queue.ready, queue.leased, queue.waiting_claims)
            for queue in view.queues
        ],
    )
    return f"{head}\n\n{nodes}\n\n{queues}"

"""Which job a command is about: one id, or one name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, cast

import click

from timeball.client.cli.asking import Asker

P = ParamSpec("P")

_FRESHNESS = ("consistency", "min_index")
"""The parameters of `freshness_options`."""


def takes_a_job(
    command: Callable[Concatenate[Asker, str, P], None],
) -> Callable[Concatenate[Asker, P], None]:
    """Give a command the job that it is about, by its id or its name, as an id."""

    @click.argument("job_id", required=False)
    @click.option("--name", "job_name", help="The job by its name, instead of JOB_ID.")
    @functools.wraps(command)
    def wrapped(asker: Asker, /, *args: P.args, **kwargs: P.kwargs) -> None:
        job_id = cast("str | None", kwargs.pop("job_id"))
        name = cast("str | None", kwargs.pop("job_name"))
        if name is not None and job_id is None:
            fresh = _freshness(kwargs)
            job_id = asker.ask(lambda client: client.job_by_name(name, **fresh)).job_id
        elif name is not None or job_id is None:
            raise click.UsageError("give a JOB_ID or a --name")
        command(asker, job_id, *args, **kwargs)

    return wrapped


def _freshness(parameters: Mapping[str, object]) -> dict[str, Any]:
    """Tell how freshly to look the name up: as a read asks for; for what acts, as it is now."""
    given = {name: parameters[name] for name in _FRESHNESS if name in parameters}
    return given or {"consistency": "strong"}

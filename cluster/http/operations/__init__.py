"""The table of requests, as `GET /v1/openapi.json` shows it: what each takes and answers.

A new route needs one entry here, in the module of its noun: the method and the path, as the route
has them, and an `Operation`. A new part of a path is named in `parameters.PATHS`, a new noun below.
All the rest follows: schemas come from the messages, the problems of every read or write from its
kind, and the document, its fuzzing and the tests that hold it against the routes, the handlers and
docs/protocol.md from this table.
"""

from __future__ import annotations

from timeball.cluster.http.description import Operation
from timeball.cluster.http.operations.cluster import CLUSTER
from timeball.cluster.http.operations.dead import DEAD
from timeball.cluster.http.operations.events import EVENTS
from timeball.cluster.http.operations.executions import EXECUTIONS
from timeball.cluster.http.operations.jobs import JOBS
from timeball.cluster.http.operations.parameters import FRESHNESS, PATHS
from timeball.cluster.http.operations.queues import QUEUES
from timeball.cluster.http.operations.timetables import TIMETABLES
from timeball.cluster.http.operations.workers import WORKERS

__all__ = ["FRESHNESS", "OPERATIONS", "PATHS"]

OPERATIONS: dict[str, dict[str, Operation]] = {
    "jobs": JOBS,
    "timetables": TIMETABLES,
    "executions": EXECUTIONS,
    "dead letters": DEAD,
    "workers": WORKERS,
    "queues": QUEUES,
    "events": EVENTS,
    "cluster": CLUSTER,
}
"""By noun, then by method and path."""

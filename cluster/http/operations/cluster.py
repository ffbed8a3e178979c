"""What every request on the cluster and its nodes takes and answers."""

from __future__ import annotations

from typing import Literal

from timeball.client import messages
from timeball.cluster.http.description import (
    CONFLICT,
    NOT_FOUND,
    UNAVAILABLE,
    Operation,
    Parameter,
    Reply,
)

TEXT = "text/plain"

CLUSTER = {
    "GET /v1/cluster": Operation(
        id="getCluster",
        does="The cluster as the node sees it",
        kind="read",
        parameters=(
            Parameter(
                "digest", Literal["true", "false"], "With the hash of the state.", default="false"
            ),
        ),
        replies={200: Reply(messages.ClusterView, "Members, roles, positions, queues and totals.")},
    ),
    "GET /v1/cluster/nodes/{name}": Operation(
        id="getNode",
        does="How far a node with a new disk has come",
        kind="leader",
        replies={200: Reply(messages.Replacement, "The leader's view of the node.")},
        problems=(NOT_FOUND,),
    ),
    "POST /v1/cluster/snapshot": Operation(
        id="takeSnapshot",
        does="Have the node asked write a snapshot",
        kind="local",
        replies={202: Reply(messages.SnapshotBegun, "It has begun.")},
        problems=(CONFLICT, UNAVAILABLE),
    ),
    "GET /healthz": Operation(
        id="getHealth",
        does="Whether the process serves",
        kind="plain",
        replies={200: Reply(None, "It does.", media_type=TEXT)},
    ),
    "GET /readyz": Operation(
        id="getReadiness",
        does="Whether the node is of use to clients",
        kind="local",
        replies={200: Reply(None, "It is.", media_type=TEXT)},
        problems=(UNAVAILABLE,),
    ),
    "GET /metrics": Operation(
        id="getMetrics",
        does="Metrics for Prometheus",
        kind="plain",
        replies={200: Reply(None, "As text.", media_type=TEXT)},
    ),
    "GET /v1/openapi.json": Operation(
        id="getDescription",
        does="This description",
        kind="plain",
        replies={200: Reply(None, "OpenAPI 3.1.", media_type="application/json")},
    ),
}

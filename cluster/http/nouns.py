"""The nouns of the interface: whoever has routes stands here."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from timeball.cluster.http.changes import Changes
from timeball.cluster.http.claims import Claims
from timeball.cluster.http.cluster_view import ClusterReports
from timeball.cluster.http.dead import DeadLetters
from timeball.cluster.http.events import Events
from timeball.cluster.http.executions import Executions
from timeball.cluster.http.explain import Explanations
from timeball.cluster.http.jobs import Jobs
from timeball.cluster.http.occurrences import Occurrences
from timeball.cluster.http.openapi import Description
from timeball.cluster.http.queues import Queues
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.http.workers import Workers


def all_routes(services: Services, registry: CollectorRegistry) -> list[Route]:
    """Every route of a node; each has an entry in `operations` that says what it means."""
    nouns = (
        Jobs(services),
        Changes(services),
        Occurrences(services),
        Queues(services),
        Explanations(services),
        Executions(services),
        Claims(services),
        Workers(services),
        Events(services),
        DeadLetters(services),
        ClusterReports(services, registry),
        Description(),
    )
    return [route for noun in nouns for route in noun.routes()]

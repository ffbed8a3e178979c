"""The cluster as the answering node sees it, and whether it is healthy and ready."""

from __future__ import annotations

import functools
from dataclasses import asdict
from importlib.metadata import version
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from timeball.client import messages
from timeball.client.errors import NotFound, Unavailable
from timeball.cluster.http.exchange import Answered, Request, Response
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.paging import read_choice, read_query
from timeball.cluster.http.problems import RETRY_MS
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.raft.elections import quorum
from timeball.cluster.raft.interface import PeerStatus, Replica

IN_TOUCH_S = 1.5
"""A member that has not answered the leader for so long is not in touch."""
MAX_QUEUES_SHOWN = 1_000
"""The view shows this many queues, by name; the state's own limit is higher."""


@functools.cache
def _version() -> str:
    """Of this package as installed; to find it takes a millisecond."""
    return version("timeball")


class ClusterReports:
    """The handlers that tell how the node and its cluster are."""

    def __init__(self, services: Services, registry: CollectorRegistry) -> None:
        self._services = services
        self._registry = registry
        self._version = _version()

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="GET", pattern="/v1/cluster", handler=self.cluster),
            Route(
                method="GET",
                pattern="/v1/cluster/nodes/{name}",
                handler=self.replacement,
                leader=True,
            ),
            Route(method="POST", pattern="/v1/cluster/snapshot", handler=self.snapshot),
            Route(method="GET", pattern="/healthz", handler=self.health, plain=True),
            Route(method="GET", pattern="/readyz", handler=self.readiness),
            Route(method="GET", pattern="/metrics", handler=self.metrics, plain=True),
        ]

    async def cluster(self, request: Request) -> Answered:
        """Members, roles, positions, queues and totals; the digest of the state on demand."""
        parameters = read_query(request.query, (*FRESHNESS, "digest"))
        with_digest = read_choice(parameters, "digest", ("true", "false")) == "true"
        services = self._services
        await services.wait_until_fresh(parameters)
        replica, state = services.replica, services.state
        view = messages.ClusterView(
            cluster=services.settings.name,
            node=services.me.name,
            version=self._version,
            role=replica.role,
            serving=services.serving(),
            leader=replica.leader,
            term=replica.term,
            commit_index=replica.commit_index,
            applied_index=services.applied_index,
            log_time_ms=state.log_time_ms,
            feature_level=state.level,
            state_digest=state.digest() if with_digest else msgspec.UNSET,
            nodes=self._nodes(),
            queues=self._queues(),
            totals=asdict(state.counters),
            obstacle=replica.obstacle,
        )
        return Answered(message=view)

    def _nodes(self) -> list[messages.NodeView]:
        services = self._services
        replica = services.replica
        peers = {peer.name: peer for peer in replica.peers()}
        views: list[messages.NodeView] = []
        for node in services.settings.nodes:
            role: Literal["leader", "follower", "candidate", "unknown"]
            match_index: int | None
            peer = peers.get(node.name)
            level = peer.level if peer else None
            if node.name == services.me.name:
                role, match_index = replica.role, replica.last_index
                level = services.state.supported_level
            elif node.name == replica.leader:
                role, match_index = "leader", peer.match_index if peer else None
            else:
                connected = peer is not None and peer.connected
                role = "follower" if connected and replica.leader else "unknown"
                match_index = peer.match_index if peer else None
            age_s = peer.last_response_age_s if peer else None
            views.append(
                messages.NodeView(
                    name=node.name,
                    http_url=node.http_url,
                    role=role,
                    connected=node.name == services.me.name or bool(peer and peer.connected),
                    match_index=match_index,
                    last_contact_ms=None if age_s is None else round(age_s * 1000),
                    standing=self._standing(node.name, peer),
                    supported_level=level,
                )
            )
        return views

    def _standing(self, name: str, peer: PeerStatus | None) -> messages.Standing | None:
        if name == self._services.me.name:
            return self._services.replica.standing
        return None if peer is None else peer.standing

    async def replacement(self, request: Request) -> Answered:
        """How far one node has come since its disk is new; the leader alone knows."""
        read_query(request.query, ())
        services, name = self._services, request.parameters["name"]
        replica, me = services.replica, services.me.name
        nodes = services.settings.nodes
        if name not in [node.name for node in nodes]:
            known = ", ".join(node.name for node in nodes)
            raise NotFound.at("name", f"no node is named {name[:80]!r}; the nodes are {known}")
        peers = {peer.name: peer for peer in replica.peers()}
        asked = peers.get(name) or _own_status(me, replica)
        voters = [me, *(peer.name for peer in peers.values() if _counts(peer))]
        share = asked.snapshot_share
        view = messages.Replacement(
            node=name,
            connected=asked.connected,
            standing=asked.standing,
            incarnation=asked.incarnation,
            match_index=asked.match_index or 0,
            commit_index=replica.commit_index,
            snapshot_percent=None if share is None else int(100 * share),
            quorum=quorum(len(nodes)),
            voters=sorted(voter for voter in voters if voter != name),
        )
        return Answered(message=view)

    def _queues(self) -> list[messages.QueueView]:
        services = self._services
        dispatcher = services.dispatcher
        serving = services.serving()
        names = sorted({*services.state.queues, *(services.settings.queues or ())})
        views: list[messages.QueueView] = []
        for name in names[:MAX_QUEUES_SHOWN]:
            counts = services.state.queues.get(name)
            views.append(
                messages.QueueView(
                    name=name,
                    scheduled=counts.scheduled if counts else 0,
                    leased=counts.leased if counts else 0,
                    ready=dispatcher.ready_depth(name) if serving else None,
                    oldest_due_ms=dispatcher.oldest_due_ms(name) if serving else None,
                    waiting_claims=dispatcher.waiting_claims(name) if serving else None,
                    skipped=counts.total_skipped if counts else 0,
                )
            )
        return views

    async def snapshot(self, request: Request) -> Answered:
        """Begin a snapshot on this very node."""
        read_query(request.query, ())
        index = self._services.take_snapshot()
        begun = messages.SnapshotBegun(node=self._services.me.name, index=index)
        return Answered(message=begun, status=202)

    async def health(self, _request: Request) -> Response:
        """The process serves."""
        return Response(status=200, body=b"ok\n", content_type="text/plain; charset=utf-8")

    async def readiness(self, request: Request) -> Response | Answered:
        """This node is of use to clients: caught up, and in touch with a majority."""
        read_query(request.query, ())
        if not self._services.ready():
            reason = self._services.replica.obstacle
            raise Unavailable(
                reason or "this node has not caught up, or sees no majority",
                retry_after_ms=RETRY_MS,
            )
        return Response(status=200, body=b"ready\n", content_type="text/plain; charset=utf-8")

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        return Response(
            status=200,
            body=generate_latest(self._registry),
            content_type=CONTENT_TYPE_LATEST,
            headers={},
        )


def _own_status(name: str, replica: Replica) -> PeerStatus:
    """The answering leader, in the form of the others."""
    at, disk = replica.last_index, replica.incarnation
    return PeerStatus(name, True, at, 0.0, replica.standing, disk)


def _counts(peer: PeerStatus) -> bool:
    """Whether a member votes and has answered the leader lately."""
    age_s = peer.last_response_age_s
    return peer.connected and peer.standing == "voter" and age_s is not None and age_s < IN_TOUCH_S

"""Queues: look at them, list them, and change their settings."""

from __future__ import annotations

import re
from typing import cast

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest, PreconditionFailed
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.paging import read_limit, read_query
from timeball.cluster.http.preconditions import (
    IF_NONE_MATCH,
    etag_of,
    read_if_match,
    refuse_conditions,
)
from timeball.cluster.http.problems import cluster_full
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.state.operations import ConfigureQueue
from timeball.cluster.state.queue_settings import (
    ACTIVE,
    DEFAULT_QUEUE_SETTINGS,
    DRAINING,
    PAUSED,
    QueueChange,
    QueueSettings,
    RateLimit,
)
from timeball.cluster.state.records import QueueCounts
from timeball.cluster.state.verdicts import ChangeStatus, QueueConfigured

FULL = "as many queues have settings as may; give some of them the default: an empty PUT"
_NO_RATE = RateLimit(0, 0, 0)
"""Takes a rate limit away."""


_nothing = BodyDecoder(messages.QueueStateRequest, messages.QueueStateRequest())
_settings = BodyDecoder(messages.QueueSettings)
_update = BodyDecoder(messages.QueueUpdate)


class Queues:
    """The handlers of queues."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="GET", pattern="/v1/queues", handler=self.list_page),
            Route(method="GET", pattern="/v1/queues/{queue}", handler=self.get),
            *(
                Route(method=method, pattern=pattern, handler=handler, leader=True, write=True)
                for method, pattern, handler in (
                    ("PUT", "/v1/queues/{queue}", self.put),
                    ("PATCH", "/v1/queues/{queue}", self.update),
                    ("POST", "/v1/queues/{queue}/pause", self.pause),
                    ("POST", "/v1/queues/{queue}/drain", self.drain),
                    ("POST", "/v1/queues/{queue}/resume", self.resume),
                )
            ),
        ]

    async def get(self, request: Request) -> Answered:
        """One queue. A name that no job has used yet is a queue that is empty."""
        parameters = read_query(request.query, FRESHNESS)
        name = self._named(request)
        await self._services.wait_until_fresh(parameters)
        configured = self._services.state.configured.get(name)
        version = 0 if configured is None else configured.version
        settings = DEFAULT_QUEUE_SETTINGS if configured is None else configured.settings
        return self._answer(name, settings, version)

    async def list_page(self, request: Request) -> Answered:
        """A page of the queues that hold jobs, have settings, or are configured, by name."""
        parameters = read_query(request.query, (*FRESHNESS, "limit", "cursor"))
        limit = read_limit(parameters)
        after = parameters.get("cursor", "")
        if "cursor" in parameters and re.match(messages.QUEUE_NAME, after) is None:
            raise InvalidRequest.at("cursor", "not a cursor that this list gave")
        services = self._services
        await services.wait_until_fresh(parameters)
        state = services.state
        names = {*state.queues, *state.configured, *(services.settings.queues or ())}
        page = sorted(name for name in names if name > after)[: limit + 1]
        shown = page[:limit]
        views: list[messages.QueueDetails] = []
        for name in shown:
            configured = state.configured.get(name)
            version = 0 if configured is None else configured.version
            settings = DEFAULT_QUEUE_SETTINGS if configured is None else configured.settings
            views.append(self._view(name, settings, version))
        cursor = shown[-1] if len(page) > limit else None
        return Answered(messages.QueueList(views, cursor, services.applied_index))

    async def put(self, request: Request) -> Answered:
        """Give a queue all its settings; the default for those that are left out."""
        read_query(request.query, ())
        body: messages.QueueSettings = _settings.decode(request.body, request.body_form)
        change = QueueChange(
            body.state,
            body.max_concurrency or 0,
            body.max_concurrency_per_key or 0,
            _rate(body.rate_limit),
        )
        return await self._configure(request, change)

    async def update(self, request: Request) -> Answered:
        """Change some settings of a queue."""
        read_query(request.query, ())
        body: messages.QueueUpdate = _update.decode(request.body, request.body_form)
        unset = msgspec.UNSET
        change = QueueChange(
            "" if body.state is unset else body.state,
            -1 if body.max_concurrency is unset else body.max_concurrency or 0,
            -1 if body.max_concurrency_per_key is unset else body.max_concurrency_per_key or 0,
            None if body.rate_limit is unset else _rate(body.rate_limit),
        )
        return await self._configure(request, change)

    async def pause(self, request: Request) -> Answered:
        """Hand nothing out; jobs are taken, and leases that are held go on."""
        return await self._stand(request, PAUSED)

    async def drain(self, request: Request) -> Answered:
        """Take no new jobs, and work off what is there."""
        return await self._stand(request, DRAINING)

    async def resume(self, request: Request) -> Answered:
        """Take jobs and hand them out."""
        return await self._stand(request, ACTIVE)

    async def _stand(self, request: Request, state: str) -> Answered:
        read_query(request.query, ())
        _nothing.decode(request.body, request.body_form)
        return await self._configure(request, QueueChange(state))

    async def _configure(self, request: Request, change: QueueChange) -> Answered:
        refuse_conditions(request, IF_NONE_MATCH)
        name = self._named(request)
        condition = read_if_match(request)
        version = -1
        if condition is not None:
            configured = self._services.state.configured.get(name)
            present = 0 if configured is None else configured.version
            asked = condition.version_among(present)
            if asked is None:
                raise _at_version(present)
            version = asked
        done: QueueConfigured = await self._services.propose(ConfigureQueue(name, version, change))
        match done.status:
            case ChangeStatus.CHANGED | ChangeStatus.UNCHANGED:
                return self._answer(name, done.settings, done.version)
            case ChangeStatus.OTHER_VERSION:
                raise _at_version(done.version)
            case ChangeStatus.FULL:
                raise cluster_full(FULL)
            case status:
                assert status is ChangeStatus.INVALID, status
                raise InvalidRequest.at("body", "beyond the cluster's limits")

    def _named(self, request: Request) -> str:
        name = request.parameters["queue"]
        self._services.require_queue(name)
        return name

    def _answer(self, name: str, settings: QueueSettings, version: int) -> Answered:
        return Answered(self._view(name, settings, version), headers={"ETag": etag_of(version)})

    def _view(self, name: str, settings: QueueSettings, version: int) -> messages.QueueDetails:
        services = self._services
        dispatcher = services.dispatcher
        counts = services.state.queues.get(name) or QueueCounts(name)
        serving = services.serving()
        held_back_by = cast("list[messages.HeldBackBy]", dispatcher.held_back_by(name))
        rate = settings.rate_limit
        return messages.QueueDetails(
            name=name,
            state=cast("messages.QueueState", settings.state),
            max_concurrency=settings.max_concurrency or None,
            max_concurrency_per_key=settings.max_concurrency_per_key or None,
            rate_limit=None if rate is None else messages.RateLimit(**msgspec.structs.asdict(rate)),
            version=version,
            scheduled=counts.scheduled,
            leased=counts.leased,
            dead=counts.dead,
            ready=dispatcher.ready_depth(name) if serving else None,
            oldest_due_ms=dispatcher.oldest_due_ms(name) if serving else None,
            waiting_claims=dispatcher.waiting_claims(name) if serving else None,
            held_back_by=held_back_by if serving else None,
            applied_index=services.applied_index,
        )


def _rate(limit: messages.RateLimit | None) -> RateLimit:
    if limit is None:
        return _NO_RATE
    burst = limit.executions if limit.burst is None else limit.burst
    return RateLimit(limit.executions, limit.per_ms, burst)


def _at_version(version: int) -> PreconditionFailed:
    return PreconditionFailed(f"the settings of the queue are at version {version}")

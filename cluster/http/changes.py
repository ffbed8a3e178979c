"""Changes of jobs: update, put by name, pause and resume."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest, PreconditionFailed
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.definitions import build_job, find_job, read_job_id, read_policy
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.options import read_changed_options
from timeball.cluster.http.paging import read_query
from timeball.cluster.http.preconditions import (
    IF_NONE_MATCH,
    Condition,
    etag_of,
    named_etag_of,
    read_if_match,
    read_if_none_match,
    refuse_conditions,
)
from timeball.cluster.http.refusals import change_refusal
from timeball.cluster.http.routes import Route
from timeball.cluster.http.schedule_views import show_fires
from timeball.cluster.http.schedules import Plan, read_schedule
from timeball.cluster.http.services import Services
from timeball.cluster.http.values import pack_value
from timeball.cluster.state import operations
from timeball.cluster.state.records import Job
from timeball.cluster.state.usual import DEFAULT_POLICY, NO_OPTIONS
from timeball.cluster.state.verdicts import Changed, ChangeStatus

_update = BodyDecoder(messages.JobUpdate)
_put = BodyDecoder(messages.JobPut)
_pause = BodyDecoder(messages.PauseRequest, messages.PauseRequest())
_resume = BodyDecoder(messages.ResumeRequest, messages.ResumeRequest())

_DONE: dict[ChangeStatus, Literal["created", "changed", "unchanged"]] = {
    ChangeStatus.CREATED: "created",
    ChangeStatus.CHANGED: "changed",
    ChangeStatus.UNCHANGED: "unchanged",
}


class Changes:
    """The handlers that change jobs which are there."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of these requests."""
        return [
            Route(method=method, pattern=pattern, handler=handler, leader=True, write=True)
            for method, pattern, handler in (
                ("PATCH", "/v1/jobs/{job_id}", self.update),
                ("PUT", "/v1/jobs/by-name/{name}", self.put),
                ("POST", "/v1/jobs/{job_id}/pause", self.pause),
                ("POST", "/v1/jobs/{job_id}/resume", self.resume),
            )
        ]

    async def update(self, request: Request) -> Answered:
        """Give a job a new definition, in part."""
        read_query(request.query, ())
        body: messages.JobUpdate = _update.decode(request.body, request.body_form)
        refuse_conditions(request, IF_NONE_MATCH)
        condition = read_if_match(request)
        job = await find_job(self._services, request)
        change = _changed_parts(body, job, self._services.now_ms())
        version = 0 if condition is None else condition.version_of(job)
        if version is None:
            raise _at_version(job.version)
        changed = await self._services.propose(operations.UpdateJob(job.id, version, change))
        return self._answer(request, changed)

    async def put(self, request: Request) -> Answered:
        """Give the job of a name a definition, or create it."""
        self._services.require_room()
        read_query(request.query, ())
        name = _read_name(request)
        body: messages.JobPut = _put.decode(request.body, request.body_form)
        condition = read_if_match(request)
        only_new = read_if_none_match(request)
        if condition is None:
            job = self._services.state.named(name)
            new = self._build(body, job)
            changed = await self._services.propose(operations.PutJob(name, new, only_new))
        elif only_new:
            raise InvalidRequest.at(IF_NONE_MATCH, "it contradicts If-Match")
        else:
            changed = await self._put_over(name, body, condition)
        return self._answer(request, changed, named=True)

    async def _put_over(self, name: str, body: messages.JobPut, condition: Condition) -> Changed:
        """Put a definition in the place of one that is there, at a version or at any."""
        services = self._services
        job = services.state.named(name)
        if job is None:
            await services.wait_until_fresh({"consistency": "strong"})
            job = services.state.named(name)
        if job is None:
            raise PreconditionFailed("no job has this name")
        new = self._build(body, job)
        options = new.options or NO_OPTIONS
        if (new.queue, new.partition_key, options.concurrency_key) != (
            job.queue,
            job.partition_key,
            job.options.concurrency_key,
        ):
            return Changed(ChangeStatus.FIXED, job.id, job.version)
        version = condition.version_of(job, named=True)
        if version is None:
            raise _at_version(job.version)
        change = operations.Change(
            payload=new.payload,
            retry=new.retry or DEFAULT_POLICY,
            priority=new.priority,
            timeout_ms=new.timeout_ms,
            timetable=new.timetable,
            requires=options.requires,
            tags=options.tags,
            expires_after_ms=options.expires_after_ms,
        )
        changed: Changed = await services.propose(operations.UpdateJob(job.id, version, change))
        if changed.status in (ChangeStatus.UNKNOWN, ChangeStatus.ENDED):
            raise PreconditionFailed("the job of this name has ended")
        return changed

    def _build(self, body: messages.JobPut, job: Job | None) -> operations.NewJob:
        services = self._services
        former = None if job is None else job.timetable
        return build_job(services, body, "", "", services.now_ms(), former).job

    async def pause(self, request: Request) -> Answered:
        """Let a timetable make no occurrences."""
        read_query(request.query, ())
        refuse_conditions(request)
        body: messages.PauseRequest = _pause.decode(request.body, request.body_form)
        job_id = read_job_id(request)
        changed = await self._services.propose(operations.PauseJob(job_id, body.reason))
        return self._answer(request, changed)

    async def resume(self, request: Request) -> Answered:
        """Let a paused or parked timetable go on."""
        read_query(request.query, ())
        refuse_conditions(request)
        body: messages.ResumeRequest = _resume.decode(request.body, request.body_form)
        job_id = read_job_id(request)
        catch_up = body.missed == "catch_up"
        changed = await self._services.propose(operations.ResumeJob(job_id, catch_up))
        return self._answer(request, changed)

    def _answer(self, request: Request, changed: Changed, *, named: bool = False) -> Answered:
        done = _DONE.get(changed.status)
        job = self._services.state.job(changed.job)
        if done is None:
            raise change_refusal(changed, request, job)
        fires = [] if job is None else show_fires(job, self._services.now_ms())
        answer = messages.JobChanged(done, str(changed.job), changed.version, fires)
        tag = named_etag_of(changed.job, changed.version) if named else etag_of(changed.version)
        headers = {"ETag": tag}
        if done == "created":
            return Answered(answer, 201, {**headers, "Location": f"/v1/jobs/{changed.job}"})
        return Answered(answer, headers=headers)


def _changed_parts(body: messages.JobUpdate, job: Job, now_ms: int) -> operations.Change:
    given: dict[str, object] = {}
    plan: Plan | None = None
    if body.payload is not msgspec.UNSET:
        given["payload"] = pack_value(body.payload, "payload")
    if body.retry is not msgspec.UNSET:
        given["retry"] = read_policy(body.retry, "") or DEFAULT_POLICY
    if body.priority is not msgspec.UNSET:
        given["priority"] = body.priority
    if body.timeout_ms is not msgspec.UNSET:
        given["timeout_ms"] = body.timeout_ms or 0
    if body.schedule is not msgspec.UNSET:
        plan = read_schedule(body.schedule, "", now_ms, former=job.timetable).settled()
        if plan.timetable is not None:
            given["timetable"] = plan.timetable
        elif plan.first_ms:
            given["first_ms"] = plan.first_ms
        else:
            given["delay_ms"] = plan.delay_ms
    given.update(read_changed_options(body, job, plan))
    return operations.Change(**given)  # type: ignore[arg-type]


def _read_name(request: Request) -> str:
    name = request.parameters["name"]
    if re.match(messages.QUEUE_NAME, name) is None:
        raise InvalidRequest.at(
            "name", f"expected a name that matches {messages.QUEUE_NAME}, got {name[:80]!r}"
        )
    return name


def _at_version(version: int) -> PreconditionFailed:
    return PreconditionFailed(f"the job is at version {version}")

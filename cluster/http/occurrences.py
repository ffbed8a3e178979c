"""Occurrences that somebody asks for beside the timetable: one now, or those of a past range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from timeball.client import messages
from timeball.client.errors import Conflict, InvalidRequest, KeyReused, Overloaded
from timeball.cluster.dispatch.timetable import TimetableError, walk_far
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.definitions import find_job, read_job_id
from timeball.cluster.http.exchange import Answered, Request, read_request_id
from timeball.cluster.http.instants import parse_instant, render_instant
from timeball.cluster.http.paging import read_query
from timeball.cluster.http.preconditions import refuse_conditions
from timeball.cluster.http.problems import RETRY_MS, cluster_full
from timeball.cluster.http.refusals import FULL, change_refusal, no_such_job, not_recurring
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.state import operations
from timeball.cluster.state.records import Job
from timeball.cluster.state.verdicts import (
    Backfilled,
    Changed,
    ChangeStatus,
    Triggered,
    TriggerStatus,
)

MAX_BACKFILL = 1_000
"""Nominal times of one backfill."""
BACKFILL_TRIES = 5
"""How often a backfill is worked out anew because the job has been edited meanwhile."""

_DONE: dict[TriggerStatus, Literal["created", "duplicate", "skipped"]] = {
    TriggerStatus.CREATED: "created",
    TriggerStatus.DUPLICATE: "duplicate",
    TriggerStatus.SKIPPED: "skipped",
}


_trigger = BodyDecoder(messages.TriggerRequest, messages.TriggerRequest())
_backfill = BodyDecoder(messages.BackfillRequest)


class Occurrences:
    """The handlers of trigger and backfill."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of these requests."""
        return [
            Route(method="POST", pattern=pattern, handler=handler, leader=True, write=True)
            for pattern, handler in (
                ("/v1/jobs/{job_id}/trigger", self.trigger),
                ("/v1/jobs/{job_id}/backfill", self.backfill),
            )
        ]

    async def trigger(self, request: Request) -> Answered:
        """Make one occurrence now."""
        self._services.require_room()
        read_query(request.query, ())
        refuse_conditions(request)
        _trigger.decode(request.body, request.body_form)
        request_id = read_request_id(request)
        job_id = read_job_id(request)
        operation = operations.TriggerJob(job_id, request_id)
        triggered: Triggered = await self._services.propose(operation)
        done = _DONE.get(triggered.status)
        if done is None:
            raise _trigger_refusal(triggered.status, request)
        execution_id = messages.encode_execution_id(job_id, triggered.nominal_ms)
        answer = messages.JobTriggered(done, str(job_id), execution_id)
        if done != "created":
            return Answered(answer)
        return Answered(answer, 201, {"Location": f"/v1/executions/{execution_id}"})

    async def backfill(self, request: Request) -> Answered:
        """Make the occurrences of a past range that are not there.

        The job's timetable names them; if it has been edited when they come to be made, it is
        asked again.
        """
        services = self._services
        services.require_room()
        read_query(request.query, ())
        refuse_conditions(request)
        body: messages.BackfillRequest = _backfill.decode(request.body, request.body_form)
        start_ms = parse_instant(body.start, "start")
        until_ms = parse_instant(body.until, "until")
        if until_ms < start_ms:
            raise InvalidRequest.at("until", "it is earlier than `start`")
        if until_ms > services.now_ms():
            raise InvalidRequest.at("until", "a backfill is of the past: this has yet to come")
        for _ in range(BACKFILL_TRIES):
            job = await find_job(services, request)
            nominals = _nominals(job, start_ms, until_ms, request)
            operation = operations.BackfillJob(job.id, job.version, nominals)
            filled: Backfilled = await services.propose(operation)
            if filled.status in (ChangeStatus.CHANGED, ChangeStatus.UNCHANGED):
                return Answered(
                    messages.JobBackfilled(
                        job_id=str(job.id),
                        created=_identities(job, filled.created),
                        existing=_identities(job, filled.existing),
                    )
                )
            if filled.status is not ChangeStatus.OTHER_VERSION:
                raise change_refusal(Changed(filled.status), request, job)
        raise Overloaded("the job is being edited all the time", retry_after_ms=RETRY_MS)


def _nominals(job: Job, start_ms: int, until_ms: int, request: Request) -> list[int]:
    if job.timetable is None:
        raise not_recurring(request)
    try:
        nominals, reached_ms = walk_far(job.timetable, start_ms - 1, until_ms, MAX_BACKFILL + 1)
    except TimetableError as error:
        raise Conflict(f"the job's timetable fails: {error}") from error
    if len(nominals) > MAX_BACKFILL:
        reached = render_instant(nominals[MAX_BACKFILL - 1])
        raise InvalidRequest.at(
            "until",
            f"the range holds more than {MAX_BACKFILL} nominal times; the first {MAX_BACKFILL} "
            f"end at {reached}: fill up to there, then go on after it",
        )
    if reached_ms < until_ms:
        raise InvalidRequest.at(
            "until",
            "exclusions leave so little of the range that it takes too long to look through; "
            f"fill up to {render_instant(reached_ms)}, then go on after it",
        )
    return nominals


def _identities(job: Job, nominals: Sequence[int]) -> list[str]:
    return [messages.encode_execution_id(job.id, nominal_ms) for nominal_ms in nominals]


def _trigger_refusal(status: TriggerStatus, request: Request) -> Exception:
    match status:
        case TriggerStatus.UNKNOWN:
            return no_such_job(request)
        case TriggerStatus.NOT_RECURRING:
            return not_recurring(request)
        case TriggerStatus.ENDED:
            return Conflict("the job has ended")
        case TriggerStatus.KEY_REUSED:
            return KeyReused.at("request_id", "this request id belongs to another request")
        case _:
            assert status is TriggerStatus.FULL, status
            return cluster_full(FULL)

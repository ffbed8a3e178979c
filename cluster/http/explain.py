"""Why a recurring job ran when it did and when it will, and what a schedule means."""

from __future__ import annotations

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.dispatch.fires import Fire, explain_fires
from timeball.cluster.dispatch.timetable import TimetableError
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.definitions import read_job_id
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.fates import coming_fires, fire_view, past_fates
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.instants import parse_instant, render_instant
from timeball.cluster.http.paging import read_limit, read_number, read_query
from timeball.cluster.http.refusals import no_such_job, not_recurring
from timeball.cluster.http.routes import Route
from timeball.cluster.http.schedule_views import NEXT_FIRES, show_timetable
from timeball.cluster.http.schedules import Plan, read_schedule
from timeball.cluster.http.services import Services
from timeball.cluster.http.views import job_state, timetable_view
from timeball.cluster.state import operations
from timeball.cluster.state.records import JobState

FIRES = range(101)
"""How many fires may be explained at once."""
_preview = BodyDecoder(messages.SchedulePreview)


class Explanations:
    """The handlers that explain timetables; any node serves them from its own state."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of these requests."""
        return [
            Route(method="GET", pattern="/v1/jobs/{job_id}/explain", handler=self.explain),
            Route(method="POST", pattern="/v1/schedules/preview", handler=self.preview),
        ]

    async def explain(self, request: Request) -> Answered:
        """Past fates and next fires of a recurring job."""
        services = self._services
        parameters = read_query(request.query, (*FRESHNESS, "limit", "fires"))
        limit = read_limit(parameters)
        fires = read_number(parameters, "fires", FIRES, NEXT_FIRES)
        job_id = read_job_id(request)
        await services.wait_until_fresh(parameters)
        job = services.state.job(job_id)
        if job is None:
            raise no_such_job(request)
        recurrence = job.recurrence
        if recurrence is None:
            raise not_recurring(request)
        now_ms = services.now_ms()
        executions = services.state.executions_of(job)
        timetable, coming = timetable_view(recurrence), []
        if job.state is JobState.ACTIVE:
            try:
                coming = [fire_view(fire) for fire in coming_fires(job, recurrence, now_ms, fires)]
            except TimetableError as error:
                # About to be parked; or this node's release has other zones than the leader's.
                timetable = msgspec.structs.replace(timetable, parked=str(error))
        return Answered(
            messages.JobExplained(
                job_id=str(job.id),
                state=job_state(job),
                version=job.version,
                schedule=show_timetable(recurrence.timetable),
                timetable=timetable,
                past=past_fates(recurrence, executions, limit, now_ms),
                next=coming,
                applied_index=services.applied_index,
            )
        )

    async def preview(self, request: Request) -> Answered:
        """What a schedule means, as a create would understand it now."""
        read_query(request.query, ())
        body: messages.SchedulePreview = _preview.decode(request.body, request.body_form)
        now_ms = self._services.now_ms()
        after_ms = now_ms if body.after is None else parse_instant(body.after, "after")
        plan = read_schedule(body.schedule, "", now_ms, after_ms=after_ms).settled()
        if plan.timetable is None:
            return Answered(_once(plan, now_ms))
        fires = _previewed(plan.timetable, after_ms, body.count)
        return Answered(messages.SchedulePreviewed(show_timetable(plan.timetable), fires))


def _previewed(
    timetable: operations.Timetable, after_ms: int, count: int
) -> list[messages.FireView]:
    count = min(count, timetable.max_runs or count)
    try:
        fires = explain_fires(timetable, after_ms, count)
    except TimetableError as error:
        raise InvalidRequest.at("schedule", str(error)) from error
    if timetable.jitter_ms:
        for fire in fires:
            if not fire.excluded:
                fire.why.append(f"due up to {timetable.jitter_ms} ms later: each job has its share")
    return [fire_view(fire) for fire in fires]


def _once(plan: Plan, now_ms: int) -> messages.SchedulePreviewed:
    """A schedule of one instant; what is past is due at once."""
    nominal_ms = plan.first_ms or min(now_ms + plan.delay_ms, messages.MAX_INSTANT_MS)
    at = render_instant(nominal_ms)
    due_ms = max(nominal_ms, now_ms)
    why = ["it is past: due at once"] if due_ms > nominal_ms else []
    local = at.replace("Z", "+00:00")
    fire = Fire(nominal_ms, local, "UTC", due_ms, excluded=False, why=why)
    return messages.SchedulePreviewed(messages.At(time=at), [fire_view(fire)])

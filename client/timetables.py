"""The calls of recurring jobs: change, pause, resume, trigger, backfill, and ask why and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from timeball.client import messages
from timeball.client.calls import Calls, as_tags, segment
from timeball.client.flow import Call, encode_request
from timeball.client.messages import Consistency, Retry, Schedule, Timetable


class TimetableCalls(Calls):
    """What can be asked of jobs that have a timetable; part of `Client`.

    All of it is safe to repeat, and is repeated on another node when an answer was lost: a
    change, a pause and a resume say how the job is to be, a trigger carries a request id, and
    a backfill makes only what is not there. After a lost answer the repeat may therefore say
    "unchanged" (a backfill: `existing`) for what the first attempt did.
    """

    async def update_job(
        self,
        job_id: str,
        *,
        payload: Any = UNSET,
        schedule: Schedule | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        retry: Retry | UnsetType = UNSET,
        timeout_ms: int | UnsetType | None = UNSET,
        requires: Sequence[str] | UnsetType = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        expires_at: str | int | UnsetType | None = UNSET,
        expires_after_ms: int | UnsetType | None = UNSET,
        if_version: int | None = None,
    ) -> messages.JobChanged:
        """Change parts of a job's definition; what is not given stays as it is.

        Executions that have begun keep what they began with; those to come follow the new
        definition. With `if_version`, only if nobody changed the job since it was at that
        version. `timeout_ms` bounds an attempt (None: no bound). `requires`, `tags` and expiry
        count at once for all that is not leased; `expires_at` is for a job that runs once.

        Raises `InvalidRequest` (naming the fields), `NotFound`, `Conflict` (the job has ended,
        or is of the other kind), `PreconditionFailed` (it is at another version), and
        `OutcomeUnknown` when it may be so by an earlier attempt of this call, whose answer
        was lost: read the job.
        """
        update = messages.JobUpdate(
            payload=payload,
            schedule=schedule,
            priority=priority,
            retry=retry,
            timeout_ms=timeout_ms,
            requires=requires if requires is UNSET else as_tags("requires", requires),
            tags=tags if tags is UNSET else as_tags("tags", tags),
            expires_at=expires_at,
            expires_after_ms=expires_after_ms,
        )
        return await self._call(
            Call(
                "PATCH",
                f"/v1/jobs/{segment(job_id)}",
                messages.JobChanged,
                encode_request(update),
                if_version=if_version,
            )
        )

    async def put_job(
        self,
        name: str,
        *,
        schedule: Timetable,
        queue: str = "default",
        payload: Any = None,
        priority: int = 5,
        partition_key: str = "",
        retry: Retry | None = None,
        timeout_ms: int | None = None,
        concurrency_key: str = "",
        requires: Sequence[str] = (),
        tags: Sequence[str] = (),
        expires_after_ms: int | None = None,
        if_version: int | None = None,
    ) -> messages.JobChanged:
        """Have the recurring job of this name be so: create it, or change it to this.

        A program may do this at each start: the answer says "unchanged" when it was so.
        Queue, partition key and concurrency key of a job can not change. A name is free again
        when its job has ended. With `if_version`, only if there is a job at that version.

        Raises `InvalidRequest` (naming the fields), `NotFound` for the queue, `Conflict`
        (another queue or key), `PreconditionFailed` and `OutcomeUnknown` as
        `update_job`, `Overloaded`.
        """
        put = messages.JobPut(
            queue=queue,
            payload=payload,
            schedule=schedule,
            priority=priority,
            partition_key=partition_key,
            retry=retry or Retry(),
            timeout_ms=timeout_ms,
            concurrency_key=concurrency_key,
            requires=as_tags("requires", requires),
            tags=as_tags("tags", tags),
            expires_after_ms=expires_after_ms,
        )
        return await self._call(
            Call(
                "PUT",
                f"/v1/jobs/by-name/{segment(name)}",
                messages.JobChanged,
                encode_request(put),
                if_version=if_version,
            )
        )

    async def job_by_name(
        self, name: str, *, consistency: Consistency = "applied", min_index: int = 0
    ) -> messages.JobView:
        """Read the recurring job of this name. Raises `NotFound`."""
        fresh = self._fresh(consistency, min_index)
        return await self._get(f"/v1/jobs/by-name/{segment(name)}", messages.JobView, **fresh)

    async def pause_job(self, job_id: str, *, reason: str = "") -> messages.JobChanged:
        """Make no further occurrence of a recurring job, until it is resumed.

        What is due, leased or in retry goes on. Raises `NotFound`, `Conflict` (it has ended,
        or does not recur).
        """
        return await self._change(job_id, "pause", messages.PauseRequest(reason))

    async def resume_job(
        self, job_id: str, *, missed: messages.MissedInPause = "skip"
    ) -> messages.JobChanged:
        """Let a paused timetable, or one that stands still after an error, go on.

        What fell into the pause is skipped, or with "catch_up" goes by the schedule's
        catch-up rule. Raises `NotFound`, `Conflict` (it has ended, or does not recur).
        """
        return await self._change(job_id, "resume", messages.ResumeRequest(missed))

    async def trigger_job(
        self, job_id: str, *, request_id: str | None = None
    ) -> messages.JobTriggered:
        """Run a recurring job once now, beside its timetable, which stays as it is.

        "skipped" when the overlap rule leaves the run out. The same request id (default: one
        made for this call) never makes a second run. Raises `NotFound`, `Conflict` (it is
        cancelled, or does not recur), `Overloaded`.
        """
        return await self._call(
            Call(
                "POST",
                f"/v1/jobs/{segment(job_id)}/trigger",
                messages.JobTriggered,
                request_id=request_id or self.new_request_id(),
            )
        )

    async def backfill_job(
        self, job_id: str, *, start: str | int, until: str | int
    ) -> messages.JobBackfilled:
        """Run the nominal times of a past range (both ends included) that have no execution.

        Instants are ISO 8601 with an offset, or epoch milliseconds. They are due at once, one
        after another unless the overlap rule is "allow". Raises `InvalidRequest` (the range is
        not past, or names too many), `NotFound`, `Conflict`, `Overloaded`.
        """
        body = encode_request(messages.BackfillRequest(start, until))
        path = f"/v1/jobs/{segment(job_id)}/backfill"
        return await self._call(Call("POST", path, messages.JobBackfilled, body))

    async def explain_job(
        self,
        job_id: str,
        *,
        limit: int = 20,
        fires: int = 5,
        consistency: Consistency = "applied",
        min_index: int = 0,
    ) -> messages.JobExplained:
        """Read what became of the last nominal times of a recurring job, and which come next.

        `limit` is of past fates, newest first, `fires` of those to come. Raises `NotFound`,
        `Conflict` (it does not recur).
        """
        path = f"/v1/jobs/{segment(job_id)}/explain"
        fresh = self._fresh(consistency, min_index)
        return await self._get(path, messages.JobExplained, limit=limit, fires=fires, **fresh)

    async def preview_schedule(
        self, schedule: Schedule, *, after: str | int | None = None, count: int = 5
    ) -> messages.SchedulePreviewed:
        """Ask when a schedule fires, and why then, without creating anything.

        Fires are strictly later than `after` (ISO 8601 with an offset, or epoch milliseconds;
        default: now). Raises `InvalidRequest`, naming the fields.
        """
        preview = messages.SchedulePreview(schedule=schedule, after=after, count=count)
        path, body = "/v1/schedules/preview", encode_request(preview)
        return await self._call(Call("POST", path, messages.SchedulePreviewed, body, writes=False))

    async def _change(
        self, job_id: str, verb: str, request: messages.Request
    ) -> messages.JobChanged:
        path = f"/v1/jobs/{segment(job_id)}/{verb}"
        return await self._call(Call("POST", path, messages.JobChanged, encode_request(request)))

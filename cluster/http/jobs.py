"""Jobs: create, look at, list and cancel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from timeball.client import messages
from timeball.client.errors import (
    DuplicateJob,
    InvalidRequest,
    KeyReused,
    QueueDraining,
    TimeballError,
)
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.definitions import (
    Built,
    build_job,
    read_job_id,
    weight_of,
)
from timeball.cluster.http.exchange import (
    IDEMPOTENCY_KEY,
    Answered,
    Request,
    read_header,
    read_request_id,
)
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.instants import render_instant
from timeball.cluster.http.paging import (
    fitting,
    read_choice,
    read_cursor,
    read_limit,
    read_query,
    read_queue,
    read_span,
    read_tag,
    write_cursor,
)
from timeball.cluster.http.preconditions import etag_of, named_etag_of, refuse_conditions
from timeball.cluster.http.problems import cluster_full
from timeball.cluster.http.refusals import (
    DRAINING,
    FULL,
    KEYS_FULL,
    no_such_job,
    too_many_requirements,
)
from timeball.cluster.http.routes import Route
from timeball.cluster.http.schedule_views import show_first_fires
from timeball.cluster.http.services import Services, propose_all
from timeball.cluster.http.turns import Turns
from timeball.cluster.http.views import JOB_STATES, job_view
from timeball.cluster.state import operations
from timeball.cluster.state.records import Job
from timeball.cluster.state.verdicts import CancelStatus, Created, CreateStatus, JobsCreated

MAX_OPERATION_BYTES: Final = 256 * 1024
"""A batch beyond this travels as several operations: an entry of the log is bounded."""
# Names of the module: an attribute of another one is looked up at each use.
_JobCreated: Final = messages.JobCreated
_encode_execution_id: Final = messages.encode_execution_id
_PREFIXES: Final = tuple(f"jobs[{place}]." for place in range(messages.MAX_BATCH))
_CREATED: Final = CreateStatus.CREATED
_EXISTING: Final = frozenset({CreateStatus.CREATED, CreateStatus.DUPLICATE})
_CANCELLED: Final[dict[CancelStatus, Any]] = {
    CancelStatus.CANCELLED: "cancelled",
    CancelStatus.REQUESTED: "requested",
    CancelStatus.FINISHED: "finished",
}
_one_job: Final = BodyDecoder(messages.NewJob)
_many_jobs: Final = BodyDecoder(messages.NewJobs)


class Jobs:
    """The handlers of jobs."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._turns = Turns()

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="POST", pattern="/v1/jobs", handler=self.create, leader=True, write=True),
            Route(
                method="POST",
                pattern="/v1/jobs/batch",
                handler=self.create_batch,
                leader=True,
                write=True,
            ),
            Route(method="GET", pattern="/v1/jobs", handler=self.list_page),
            Route(method="GET", pattern="/v1/jobs/{job_id}", handler=self.get),
            Route(method="GET", pattern="/v1/jobs/by-name/{name}", handler=self.get_named),
            Route(
                method="POST",
                pattern="/v1/jobs/{job_id}/cancel",
                handler=self.cancel,
                leader=True,
                write=True,
            ),
            Route(
                method="DELETE",
                pattern="/v1/jobs/{job_id}",
                handler=self.cancel,
                leader=True,
                write=True,
            ),
        ]

    async def create(self, request: Request) -> Answered:
        """Create one job."""
        self._services.require_room()
        read_query(request.query, ())
        body: messages.NewJob = _one_job.decode(request.body, request.body_form)
        request_id = read_request_id(request)
        key = read_header(request, IDEMPOTENCY_KEY, 255)
        if key and body.idempotency_key not in (None, key):
            raise InvalidRequest.at(
                "idempotency_key", "the header Idempotency-Key names another key than the body"
            )
        key = key or body.idempotency_key or ""
        now_ms, repeatable = self._services.now_ms(), bool(request_id or key)
        built = build_job(self._services, body, "", key, now_ms, repeatable=repeatable)
        verdict = await self._services.propose(operations.CreateJobs(request_id, [built.job]))
        created = _matched(verdict, 1)[0]
        if created.status not in _EXISTING:
            raise _refusal(created, "", built.over)
        answer = self._created(built.job, created)
        is_new = created.status is _CREATED and not verdict.repeated
        return Answered(answer, 201 if is_new else 200, {"Location": f"/v1/jobs/{answer.job_id}"})

    async def create_batch(self, request: Request) -> Answered:
        """Create up to a thousand jobs."""
        self._services.require_room()
        await self._turns.begin()
        read_query(request.query, ())
        body: messages.NewJobs = _many_jobs.decode(request.body, request.body_form)
        request_id = read_request_id(request, body.request_id)
        built = await self._build_all(body.jobs, request_id)
        parts = [
            operations.CreateJobs(_part_id(request_id, number), part)
            for number, part in enumerate(_split([one.job for one in built]))
        ]
        verdicts: list[JobsCreated] = await propose_all(self._services.propose, parts)
        created: list[Created] = []
        for part, verdict in zip(parts, verdicts, strict=True):
            created += _matched(verdict, len(part.jobs))
        results = await self._answer_all(built, created)
        return Answered(messages.JobsCreated(results, self._services.applied_index))

    async def _build_all(self, asked: Sequence[messages.NewJob], request_id: str) -> list[Built]:
        now_ms = self._services.now_ms()
        turns = self._turns
        jobs: list[Built] = []
        for job, prefix in zip(asked, _PREFIXES, strict=False):
            key = job.idempotency_key or ""
            repeatable = bool(request_id or key)
            jobs.append(build_job(self._services, job, prefix, key, now_ms, repeatable=repeatable))
            if turns.clock() >= turns.ends_s:
                await turns.share()
        return jobs

    async def _answer_all(
        self, jobs: Sequence[Built], created: Sequence[Created]
    ) -> list[messages.JobCreated]:
        turns = self._turns
        await turns.begin()
        results: list[messages.JobCreated] = []
        for built, verdict, prefix in zip(jobs, created, _PREFIXES, strict=False):
            if verdict.status in _EXISTING:
                results.append(self._created(built.job, verdict))
            else:
                problem = _refusal(verdict, prefix, built.over).problem()
                results.append(_JobCreated(status="refused", problem=problem))
            if turns.clock() >= turns.ends_s:
                await turns.share()
        return results

    async def get(self, request: Request) -> Answered:
        """One job."""
        parameters = read_query(request.query, FRESHNESS)
        services = self._services
        await services.wait_until_fresh(parameters)
        job = services.state.job(read_job_id(request))
        if job is None:
            raise no_such_job(request)
        return Answered(self._view(job, request), headers={"ETag": etag_of(job.version)})

    async def get_named(self, request: Request) -> Answered:
        """The recurring job that has a name."""
        parameters = read_query(request.query, FRESHNESS)
        services = self._services
        await services.wait_until_fresh(parameters)
        job = services.state.named(request.parameters["name"])
        if job is None:
            raise no_such_job(request)
        etag = named_etag_of(job.id, job.version)
        return Answered(self._view(job, request), headers={"ETag": etag})

    def _view(self, job: Job, request: Request) -> messages.JobView:
        services = self._services
        executions = list(services.state.executions_of(job))
        key = services.state.key_of(job)
        return job_view(job, executions, key, request.answer_form, services.now_ms())

    async def list_page(self, request: Request) -> Answered:
        """A page of jobs."""
        services = self._services
        span = ("created_after", "created_before")
        parameters = read_query(
            request.query, (*FRESHNESS, "queue", "state", "tag", *span, "limit", "cursor")
        )
        limit = read_limit(parameters)
        queue = read_queue(parameters)
        state = read_choice(parameters, "state", JOB_STATES)
        tag = read_tag(parameters)
        created = read_span(parameters, "created")
        after = read_cursor(parameters, "jobs", 1)
        await services.wait_until_fresh(parameters)
        services.require_known_queue(queue)
        page = services.state.list_jobs(
            after=after[0] if after else None,
            limit=limit,
            queue=queue,
            state=JOB_STATES[state] if state else None,
            tag=tag,
            created=created,
        )
        jobs = page.items[: fitting([len(job.payload) for job in page.items])]
        following = page.next_after if len(jobs) == len(page.items) else jobs[-1].id
        now_ms = services.now_ms()
        machine = services.state
        views = [
            job_view(
                job,
                list(machine.executions_of(job)),
                machine.key_of(job),
                request.answer_form,
                now_ms,
                fires=0,
            )
            for job in jobs
        ]
        cursor = None if following is None else write_cursor("jobs", (following,))
        return Answered(
            message=messages.JobList(
                jobs=views, cursor=cursor, applied_index=services.applied_index
            )
        )

    async def cancel(self, request: Request) -> Answered:
        """Cancel one job."""
        read_query(request.query, ())
        refuse_conditions(request)
        job_id = read_job_id(request)
        verdicts = await self._services.propose(operations.CancelJobs([job_id]))
        status = CancelStatus(verdicts[0])
        if status is CancelStatus.UNKNOWN:
            raise no_such_job(request)
        return Answered(
            message=messages.JobCancelled(job_id=str(job_id), status=_CANCELLED[status])
        )

    def _created(self, asked: operations.NewJob, created: Created) -> messages.JobCreated:
        # A repeat may tell of an earlier job, whose timetable has another anchor.
        job = None if asked.timetable is None else self._services.state.job(created.job)
        if job is not None and job.timetable is not None:
            fires = show_first_fires(job.timetable, created.nominal_ms)
        else:
            fires = [render_instant(created.nominal_ms)]
        job_id = str(created.job)
        return _JobCreated(
            "created" if created.status is _CREATED else "duplicate",
            job_id,
            _encode_execution_id(job_id, created.nominal_ms),
            fires,
        )


def _matched(verdict: JobsCreated, expected: int) -> Sequence[Created]:
    if len(verdict.jobs) != expected:
        raise KeyReused.at("request_id", "this request id belongs to another request")
    return verdict.jobs


def _part_id(request_id: str, number: int) -> str:
    """Under which id a part of a batch is remembered: a repeat splits into the same parts."""
    return f"{request_id}/{number}" if request_id and number else request_id


def _refusal(refused: Created, prefix: str, over: InvalidRequest | None) -> TimeballError:
    """Why a job was not created; its fields are named after `prefix`."""
    key = f"{prefix}idempotency_key"
    status = refused.status
    match status:
        case CreateStatus.KEY_REUSED:
            return KeyReused.at(key, "this key is known with another request")
        case CreateStatus.REJECTED:
            return _duplicate(key, str(refused.job))
        case CreateStatus.FULL:
            return cluster_full(FULL)
        case CreateStatus.DRAINING:
            return QueueDraining.at(f"{prefix}queue", DRAINING)
        case CreateStatus.KEYS_FULL:
            return cluster_full(KEYS_FULL)
        case CreateStatus.TOO_MANY_REQUIREMENTS:
            return too_many_requirements(prefix)
        case _:
            assert status is CreateStatus.INVALID
            if over is not None:
                return over
            return InvalidRequest.at(prefix.rstrip(".") or "body", "beyond the cluster's limits")


def _duplicate(field: str, job_id: str) -> DuplicateJob:
    detail = f"this key has the job {job_id}"
    errors = [messages.FieldError(field=field, detail=detail)]
    return DuplicateJob(f"{field}: {detail}", errors=errors, job_id=job_id)


def _split(jobs: Sequence[operations.NewJob]) -> Iterator[list[operations.NewJob]]:
    """Runs of jobs that each fit one operation. The same batch always splits the same way."""
    part: list[operations.NewJob] = []
    size = 0
    for job in jobs:
        weight = weight_of(job)
        if part and size + weight > MAX_OPERATION_BYTES:
            yield part
            part, size = [], 0
        part.append(job)
        size += weight
    yield part

"""A client that writes down everything it sees, before anybody acts on it."""

from __future__ import annotations

from collections.abc import Sequence

from timeball.bench.history import (
    CancelAcknowledged,
    CreateSent,
    Delivered,
    JobAcknowledged,
    Recorder,
    ReplayAcknowledged,
    ReportAnswered,
    ReportKind,
    ReportSent,
)
from timeball.client import messages
from timeball.client.client import Client
from timeball.client.failover import Backoff
from timeball.client.flow import Call, encode_request
from timeball.client.messages import Failure, Hold, NewJob, Success

QUICK = Backoff(base_ms=20, cap_ms=150)
"""Pauses between attempts: a demo on one machine looks for the next leader eagerly."""


class RecordingClient(Client):
    """The client library as users have it, with a recorder at its elbow.

    Claims, reports, cancels and replays are recorded under their own names; creates by
    `submit`, which knows their labels.
    """

    def __init__(
        self,
        urls: Sequence[str],
        recorder: Recorder,
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 2_000,
        name: str | None = None,
    ) -> None:
        """`name` begins request ids, where several clients share a recorder."""
        super().__init__(
            urls, backoff=QUICK, timeout_ms=timeout_ms, attempt_timeout_ms=attempt_timeout_ms
        )
        self.recorder = recorder
        self._name = name or recorder.source
        self._requests = 0
        self._first_sent_us: dict[str, int] = {}
        """When claims were first sent that have had no answer, by their request id."""

    def name_request(self) -> str:
        """A new request id, for a `submit` that may have to be repeated."""
        self._requests += 1
        return f"{self._name}-{self._requests}"

    async def submit(
        self,
        label: str,
        jobs: Sequence[NewJob],
        *,
        single: bool = False,
        request_id: str | None = None,
    ) -> list[messages.JobCreated]:
        """Create jobs in one request (`single`: the request for one job) and record the answer.

        Raises RuntimeError when the cluster refuses one, beside what `Client` raises.
        """
        assert 1 <= len(jobs) <= messages.MAX_BATCH
        request_id = request_id or self.name_request()
        sent_us = self.recorder.clock_us()
        self.recorder.record(
            CreateSent(
                at_us=sent_us, source=self.recorder.source, request_id=request_id, jobs=len(jobs)
            )
        )
        if single:
            (job,) = jobs
            fields = {name: getattr(job, name) for name in job.__struct_fields__}
            results = [await self.create(**fields, request_id=request_id)]
        else:
            body = encode_request({"jobs": jobs, "request_id": request_id})
            batch = Call("POST", "/v1/jobs/batch", messages.JobsCreated, body)
            results = (await self._call(batch)).results
        for position, (job, created) in enumerate(zip(jobs, results, strict=True)):
            if created.status == "refused":
                raise RuntimeError(f"{label}: job {position} was refused: {created.problem}")
            self.recorder.record(
                JobAcknowledged(
                    at_us=self.recorder.clock_us(),
                    source=self.recorder.source,
                    request_id=request_id,
                    position=position,
                    job_id=created.job_id,
                    status=created.status,
                    sent_us=sent_us,
                    label=label,
                    idempotency_key=job.idempotency_key,
                    schedule=job.schedule,
                    next_fires=created.next_fires,
                )
            )
        return results

    async def cancel(self, job_id: str) -> messages.JobCancelled:
        """Cancel a job and record the answer."""
        sent_us = self.recorder.clock_us()
        answer = await super().cancel(job_id)
        self.recorder.record(
            CancelAcknowledged(
                at_us=self.recorder.clock_us(),
                source=self.recorder.source,
                job_id=job_id,
                status=answer.status,
                sent_us=sent_us,
            )
        )
        return answer

    async def replay(self, execution_ids: Sequence[str]) -> list[messages.Replayed]:
        """Replay dead executions and record the answers."""
        sent_us = self.recorder.clock_us()
        answers = await super().replay(execution_ids)
        for answer in answers:
            self.recorder.record(
                ReplayAcknowledged(
                    at_us=self.recorder.clock_us(),
                    source=self.recorder.source,
                    execution_id=answer.execution_id,
                    status=answer.status,
                    sent_us=sent_us,
                )
            )
        return answers

    async def claim(
        self,
        *,
        worker: str,
        queue: str = "default",
        max_executions: int = 1,
        wait_ms: int = 0,
        lease_ms: int = 10_000,
        request_id: str | None = None,
        timeout_ms: int | None = None,
        tags: Sequence[str] = (),
    ) -> messages.Claimed:
        """Claim, and record every delivery before the worker gets hold of it.

        A worker repeats a claim that had no answer: what comes may have been granted to the first.
        """
        sent_us = self.recorder.clock_us()
        if request_id is not None:  # else nobody can repeat it
            sent_us = self._first_sent_us.setdefault(request_id, sent_us)
        claimed = await super().claim(
            worker=worker,
            queue=queue,
            max_executions=max_executions,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            request_id=request_id,
            timeout_ms=timeout_ms,
            tags=tags,
        )
        if request_id is not None:
            self._first_sent_us.pop(request_id, None)
        received_us = self.recorder.clock_us()
        for delivery in claimed.executions:
            self.recorder.record(
                Delivered(
                    at_us=received_us,
                    source=self.recorder.source,
                    execution_id=delivery.execution_id,
                    job_id=delivery.job_id,
                    token=delivery.token,
                    attempt=delivery.attempt,
                    nominal_ms=delivery.nominal_ms,
                    due_ms=delivery.due_ms,
                    claim_sent_us=sent_us,
                )
            )
        return claimed

    async def complete(
        self, items: Sequence[Success], *, timeout_ms: int | None = None
    ) -> list[messages.Report]:
        """Report successes; recorded before they are sent and when they are answered."""
        sent_us = self._sent("complete", items)
        reports = await super().complete(items, timeout_ms=timeout_ms)
        return self._answered("complete", items, reports, sent_us)

    async def fail(
        self, items: Sequence[Failure], *, timeout_ms: int | None = None
    ) -> list[messages.Report]:
        """Report failures; recorded before they are sent and when they are answered."""
        sent_us = self._sent("fail", items)
        reports = await super().fail(items, timeout_ms=timeout_ms)
        return self._answered("fail", items, reports, sent_us)

    async def release(
        self, items: Sequence[Hold], *, timeout_ms: int | None = None
    ) -> list[messages.Report]:
        """Give executions back; recorded before they are sent and when they are answered."""
        sent_us = self._sent("release", items)
        reports = await super().release(items, timeout_ms=timeout_ms)
        return self._answered("release", items, reports, sent_us)

    def _sent(self, kind: ReportKind, items: Sequence[Hold | Success | Failure]) -> int:
        now_us = self.recorder.clock_us()
        for item in items:
            self.recorder.record(
                ReportSent(
                    at_us=now_us,
                    source=self.recorder.source,
                    kind=kind,
                    execution_id=item.execution_id,
                    token=item.token,
                )
            )
        return now_us

    def _answered(
        self,
        kind: ReportKind,
        items: Sequence[Hold | Success | Failure],
        reports: list[messages.Report],
        sent_us: int,
    ) -> list[messages.Report]:
        now_us = self.recorder.clock_us()
        for item, report in zip(items, reports, strict=True):
            self.recorder.record(
                ReportAnswered(
                    at_us=now_us,
                    source=self.recorder.source,
                    kind=kind,
                    execution_id=item.execution_id,
                    token=item.token,
                    verdict=report.verdict,
                    sent_us=sent_us,
                )
            )
        return reports

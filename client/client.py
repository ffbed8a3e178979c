"""The asynchronous client: every request of the protocol as a typed method."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec

from timeball.client import messages
from timeball.client.batches import CreateBatcher
from timeball.client.calls import DEFAULT_URLS, Transport, as_tags, loop_ms, segment
from timeball.client.dead import DeadLetterCalls
from timeball.client.errors import TimeballError
from timeball.client.event_stream import Following, query_of
from timeball.client.failover import Backoff
from timeball.client.flow import Call, encode_request, in_batches, pausing
from timeball.client.messages import Consistency, Idempotency, NewJob, Retry, Schedule
from timeball.client.middleware import CreateMiddleware, chain
from timeball.client.queues import QueueCalls
from timeball.client.surroundings import Surroundings
from timeball.client.timetables import TimetableCalls
from timeball.client.workers import WorkerCalls

LONGEST_WAIT_S = 20
"""Of one request: what a node may be silent for before another is asked."""
LEAST_PAUSE_MS = 50
"""Before a node is asked again that did not wait (an old one, or one that many wait for)."""


class Client(DeadLetterCalls, QueueCalls, TimetableCalls, WorkerCalls):
    """A client of one cluster. Any node serves any request; the client finds one that does.

    Every create and claim carries a request id made here, and every report a token, so an
    attempt whose outcome is unknown is repeated on another node without a second effect.
    `timeout_ms` bounds a call with all its attempts, `attempt_timeout_ms` one attempt; time
    that a claim asks the node to wait comes on top. Calls raise the exceptions of
    `timeball.client.errors`: `Unavailable` and `Overloaded` when certainly nothing happened,
    `OutcomeUnknown` when something may have.

    Reads are answered by any node from what it has applied, which may be a moment behind. A read
    with `consistency="strong"` shows all that anybody was answered before it began; one with
    `min_index` shows what was written up to that position of the log. `seen_index` is the highest
    position that this client was told: with `read_your_writes`, every read is at least as fresh,
    so that it shows what this client wrote, and never less than it read before.

    `gather_creates_ms` sends creates that come within so many milliseconds as one request: for
    programs that call `create` concurrently. Each call has its own answer; one that brings a
    request id is sent alone. `middleware` is called around each `create`, the first outermost.

    Use as ``async with Client(urls) as client``, or call `close`. Not for several event loops.
    """

    def __init__(
        self,
        urls: Sequence[str] | str = DEFAULT_URLS,
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        connections: int = 100,
        read_your_writes: bool = False,
        gather_creates_ms: int | None = None,
        middleware: Sequence[CreateMiddleware] = (),
        backoff: Backoff | None = None,
        rng: Random | None = None,
        now_ms: Callable[[], int] = loop_ms,
        transport: Transport | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        super().__init__(
            urls,
            timeout_ms=timeout_ms,
            attempt_timeout_ms=attempt_timeout_ms,
            connections=connections,
            read_your_writes=read_your_writes,
            backoff=backoff,
            rng=rng,
            now_ms=now_ms,
            transport=transport,
            surroundings=surroundings,
        )
        if gather_creates_ms is not None and not 0 <= gather_creates_ms <= 1_000:
            raise ValueError(f"gather_creates_ms is 0 to 1000, got {gather_creates_ms}")
        self._middleware = tuple(middleware)
        self._batcher: CreateBatcher | None = None
        if gather_creates_ms is not None:
            self._batcher = CreateBatcher(self._create_batch, gather_creates_ms)

    async def close(self) -> None:
        """Have creates that are gathered sent and answered, and close all connections."""
        if self._batcher is not None:
            await self._batcher.close()
        await super().close()

    # --- jobs --------------------------------------------------------------------------------

    async def create(
        self,
        *,
        queue: str = "default",
        payload: Any = None,
        schedule: Schedule | None = None,
        priority: int = 5,
        partition_key: str = "",
        retry: Retry | None = None,
        timeout_ms: int | None = None,
        idempotency_key: str | None = None,
        idempotency: Idempotency | None = None,
        concurrency_key: str = "",
        requires: Sequence[str] = (),
        tags: Sequence[str] = (),
        expires_at: str | int | None = None,
        expires_after_ms: int | None = None,
        request_id: str | None = None,
    ) -> messages.JobCreated:
        """Create one job; the fields are those of `NewJob` (`timeout_ms` bounds an attempt).

        Only workers that offer all that it `requires` get it; `tags` are for finding it. It is
        skipped when no attempt has begun by `expires_at` (ISO 8601 with an offset, or epoch
        milliseconds) or `expires_after_ms` after its nominal time; no retry begins then either.

        Raises `InvalidRequest` (naming the fields), `KeyReused`, `DuplicateJob` (only where
        `idempotency` asks for it), `Overloaded`.
        """
        job = NewJob(
            queue=queue,
            payload=payload,
            schedule=schedule,
            priority=priority,
            partition_key=partition_key,
            retry=retry or Retry(),
            timeout_ms=timeout_ms,
            idempotency_key=idempotency_key,
            idempotency=idempotency,
            concurrency_key=concurrency_key,
            requires=as_tags("requires", requires),
            tags=as_tags("tags", tags),
            expires_at=expires_at,
            expires_after_ms=expires_after_ms,
        )

        async def last(job: NewJob) -> messages.JobCreated:
            if self._batcher is not None and request_id is None:
                return await self._batcher.create(job)
            body, repeatable = encode_request(job), request_id or self.new_request_id()
            call = Call("POST", "/v1/jobs", messages.JobCreated, body, request_id=repeatable)
            return await self._call(call)

        return await chain(self._middleware, last)(job)

    async def create_many(self, jobs: Sequence[NewJob]) -> list[messages.JobCreated]:
        """Create any number of jobs, one result per job in order.

        More than fit one request are sent as several, one after the other: when a later one
        is refused, the jobs of the earlier ones exist, and a note on the exception says so.
        """
        results: list[messages.JobCreated] = []
        for batch in in_batches(jobs):
            try:
                results.extend(await self._create_batch(batch))
            except TimeballError as error:
                if results:
                    error.add_note(
                        f"The first {len(results)} jobs were answered before; "
                        f"positions in the error count from jobs[{len(results)}]."
                    )
                raise
        return results

    async def job(
        self, job_id: str, *, consistency: Consistency = "applied", min_index: int = 0
    ) -> messages.JobView:
        """Read a job. Raises `NotFound`."""
        fresh = self._fresh(consistency, min_index)
        return await self._get(f"/v1/jobs/{segment(job_id)}", messages.JobView, **fresh)

    async def jobs(
        self,
        *,
        queue: str | None = None,
        state: str | None = None,
        tag: str | None = None,
        created_after: str | int | None = None,
        created_before: str | int | None = None,
        page_size: int = 100,
        consistency: Consistency = "applied",
        min_index: int = 0,
    ) -> AsyncIterator[messages.JobView]:
        """Iterate over jobs, newest first, page by page. Raises `NotFound` for the queue.

        Those created at `created_after` or later, and before `created_before`, each an instant as
        text or epoch milliseconds. Each page is as fresh as asked for when it is read.
        """
        query = {
            "queue": queue,
            "state": state,
            "tag": tag,
            "created_after": created_after,
            "created_before": created_before,
            "limit": page_size,
        }
        cursor: str | None = None
        while True:
            fresh = self._fresh(consistency, min_index)
            page = await self._get("/v1/jobs", messages.JobList, **query, **fresh, cursor=cursor)
            for job in page.jobs:
                yield job
            if (cursor := page.cursor) is None:
                return

    async def cancel(self, job_id: str) -> messages.JobCancelled:
        """Cancel a job. Raises `NotFound`.

        When the answer to a first attempt was lost, the repeat may say "finished" for what
        the first one cancelled.
        """
        path = f"/v1/jobs/{segment(job_id)}/cancel"
        return await self._call(Call("POST", path, messages.JobCancelled))

    # --- executions --------------------------------------------------------------------------

    async def execution(
        self, execution_id: str, *, consistency: Consistency = "applied", min_index: int = 0
    ) -> messages.ExecutionView:
        """Read an execution with its attempts. Raises `NotFound`."""
        path = f"/v1/executions/{segment(execution_id)}"
        fresh = self._fresh(consistency, min_index)
        return await self._get(path, messages.ExecutionView, **fresh)

    async def wait(self, execution_id: str, *, wait_ms: int = 30_000) -> messages.ExecutionView:
        """Wait until an execution has ended, at most `wait_ms`: its view then, ended or not.

        A dead execution has ended: `state` tells what became of it, `result` what its worker
        returned. The node keeps the request until it is so; one that fails leaves the wait to
        another. What this client has created is found on every node. Raises `NotFound`.
        """
        by_ms = self._policy.now_ms() + wait_ms
        while True:
            left_ms = max(0, by_ms - self._policy.now_ms())
            wait_s = min(-(-left_ms // 1_000), LONGEST_WAIT_S)
            path = f"/v1/executions/{segment(execution_id)}"
            if self.seen_index:
                path += f"?min_index={self.seen_index}"
            view = await self._call(
                Call(
                    "GET",
                    path,
                    messages.ExecutionView,
                    writes=False,
                    wait_ms=wait_s * 1_000,
                    prefer_wait_s=wait_s,
                )
            )
            if view.state in messages.ENDED or self._policy.now_ms() >= by_ms:
                return view
            await self._transport.drive(pausing(LEAST_PAUSE_MS))

    async def executions(
        self,
        *,
        queue: str | None = None,
        job: str | None = None,
        state: str | None = None,
        tag: str | None = None,
        due_after: str | int | None = None,
        due_before: str | int | None = None,
        page_size: int = 100,
        consistency: Consistency = "applied",
        min_index: int = 0,
    ) -> AsyncIterator[messages.ExecutionView]:
        """Iterate over executions, newest first. Raises `NotFound` for the queue or job.

        Those due at `due_after` or later, and before `due_before`, each an instant as text or
        epoch milliseconds: an execution that has ended was due for its latest attempt. Each
        page is as fresh as asked for when it is read.
        """
        query = {
            "queue": queue,
            "job": job,
            "state": state,
            "tag": tag,
            "due_after": due_after,
            "due_before": due_before,
            "limit": page_size,
        }
        pages = self._execution_pages("/v1/executions", query, consistency, min_index)
        async for execution in pages:
            yield execution

    # --- the worker protocol -----------------------------------------------------------------

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
        """Lease at most `max_executions` due executions, waiting up to `wait_ms` for the first.

        Executions that require something come only if it is among the `tags` offered.

        Leases run from before this call returns: measure them from the moment of the call,
        on a monotonic clock. Raises `NotFound` for the queue.
        """
        claim = messages.Claim(
            queue=queue,
            worker=worker,
            max_executions=max_executions,
            wait_ms=wait_ms,
            lease_ms=lease_ms,
            request_id=request_id or self.new_request_id(),
            tags=as_tags("tags", tags),
        )
        body = encode_request(claim)
        call = Call("POST", "/v1/claims", messages.Claimed, body, wait_ms=wait_ms)
        return await self._call(call, timeout_ms)

    async def start(self, items: Sequence[messages.Hold]) -> list[messages.Report]:
        """Report that work has begun (optional for short work)."""
        return await self._report("start", items)

    async def complete(
        self, items: Sequence[messages.Success], *, timeout_ms: int | None = None
    ) -> list[messages.Report]:
        """Report successes. "unknown" in the answer to a repeat means: finished long ago."""
        return await self._report("complete", items, timeout_ms)

    async def fail(
        self, items: Sequence[messages.Failure], *, timeout_ms: int | None = None
    ) -> list[messages.Report]:
        """Report failed attempts; the retry policy decides what follows."""
        return await self._report("fail", items, timeout_ms)

    async def release(
        self, items: Sequence[messages.Hold], *, timeout_ms: int | None = None
    ) -> list[messages.Report]:
        """Give executions back: due again at once, and the attempt does not count."""
        return await self._report("release", items, timeout_ms)

    async def heartbeat(
        self,
        items: Sequence[messages.Hold | messages.Beat],
        *,
        timeout_ms: int | None = None,
    ) -> list[messages.Heartbeat]:
        """Extend leases; one answer per item, in order. A `Beat` may carry progress.

        A lease runs `lease_remaining_ms` from before this call returns: measure it from the
        moment of the call.
        """
        results: list[messages.Heartbeat] = []
        for batch in in_batches(items):
            body = encode_request({"items": batch})
            path = "/v1/executions/heartbeat"
            call = Call("POST", path, messages.HeartbeatAnswers, body, writes=False)
            results.extend((await self._call(call, timeout_ms)).results)
        return results

    # --- what happens --------------------------------------------------------------------------

    async def events(
        self,
        *,
        after: str | int | None = None,
        queue: str | None = None,
        job: str | None = None,
        types: Sequence[str] = (),
        states: Sequence[str] = (),
        follow: bool = True,
    ) -> AsyncGenerator[messages.Event, None]:
        """Iterate over what happens to executions and jobs, each event once and in order.

        `after` is where to begin: behind an event's id, a position of the log such as
        `seen_index`, or "oldest" for all that is kept; None: with what happens from now on. When
        a node fails, another one goes on; `timeout_ms` bounds the search for it, and a node that
        says nothing for 15 s is left. `types` (such as "execution.failed", or "job" for all that
        begin so) and `states` (such as "dead") choose. Without `follow` it ends when all has
        been told.

        Raises `EventsGone` when no node keeps the events after that position any more, `after` an
        interruption too: read the state anew. Raises `Unavailable` or `Overloaded` when no node
        could be found. Close it when you leave it early (`contextlib.aclosing`).
        """
        query = query_of(after, queue, job, tuple(types), tuple(states), follow)
        following = Following(self._transport, self._policy, query, self.timeout_ms)
        async with aclosing(following.events(follow)) as events:
            async for event in events:
                yield event

    # --- the cluster -------------------------------------------------------------------------

    async def cluster(
        self, *, digest: bool = False, consistency: Consistency = "applied", min_index: int = 0
    ) -> messages.ClusterView:
        """Read the cluster as the answering node sees it; `digest` adds the state's hash."""
        query = {"digest": "true" if digest else None, **self._fresh(consistency, min_index)}
        return await self._get("/v1/cluster", messages.ClusterView, **query)

    async def replacement(self, node: str) -> messages.Replacement:
        """Read how far a node with a new disk has come; raises NotFound for one that is none."""
        return await self._get(f"/v1/cluster/nodes/{quote(node, safe='')}", messages.Replacement)

    async def take_snapshot(self) -> messages.SnapshotBegun:
        """Have a node write a snapshot: with several URLs, whichever answers.

        Raises `Conflict` while it writes one already.
        """
        call = Call("POST", "/v1/cluster/snapshot", messages.SnapshotBegun, writes=False)
        return await self._call(call)

    # -----------------------------------------------------------------------------------------

    async def _create_batch(self, jobs: Sequence[msgspec.Raw]) -> list[messages.JobCreated]:
        body = encode_request({"jobs": jobs, "request_id": self.new_request_id()})
        call = Call("POST", "/v1/jobs/batch", messages.JobsCreated, body)
        return (await self._call(call)).results

    async def _report(
        self, verb: str, items: Sequence[msgspec.Struct], timeout_ms: int | None = None
    ) -> list[messages.Report]:
        results: list[messages.Report] = []
        for batch in in_batches(items):
            body = encode_request({"items": batch})
            call = Call("POST", f"/v1/executions/{verb}", messages.Reports, body)
            results.extend((await self._call(call, timeout_ms)).results)
        return results

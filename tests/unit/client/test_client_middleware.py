"""Middleware around creates and handlers, and traces that travel with a task's job."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from opentelemetry import trace

from timeball.client import Client, NonRetryable, Worker, task
from timeball.client.otel import trace_create, trace_handler

CLAIMS = "/v1/claims"
COMPLETE = "/v1/executions/complete"
FAIL = "/v1/executions/fail"
CREATED = {"status": "created", "job_id": "7", "execution_id": "7-1764480000000"}
PARENT = trace.SpanContext(
    trace_id=0xABCDEF0123456789ABCDEF0123456789,
    span_id=0x1234567890ABCDEF,
    is_remote=False,
    trace_flags=trace.TraceFlags(1),
)


@task
async def tell_trace() -> str:
    return f"{trace.get_current_span().get_span_context().trace_id:x}"


def test_the_first_is_outermost_and_may_change_what_goes_in_and_comes_out(kit) -> None:
    async def scenario() -> None:
        order: list[str] = []

        async def outer(context, call_next):
            order.append("outer in")
            result = await call_next(context)
            order.append("outer out")
            return [result, "wrapped"]

        async def inner(context, call_next):
            order.append("inner in")
            try:
                return await call_next(context)
            finally:
                order.append("inner out")

        def handler(context):
            order.append("handler")
            return context.payload["number"]

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(4)))
            async with Worker(client, "default", handler, middleware=[outer, inner]):
                await peer.until(lambda: peer.to(COMPLETE))
        assert order == ["outer in", "inner in", "handler", "inner out", "outer out"]
        assert peer.to(COMPLETE)[0].body["items"][0]["result"] == [4, "wrapped"]

    asyncio.run(scenario())


def test_what_middleware_raises_counts_as_the_handlers(kit) -> None:
    async def scenario() -> None:
        async def refuse(context, call_next):
            raise NonRetryable("not on my watch")

        async def handler(context):
            raise AssertionError("never called")

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(1)))
            async with Worker(client, "default", handler, middleware=[refuse]):
                await peer.until(lambda: peer.to(FAIL))
        [item] = peer.to(FAIL)[0].body["items"]
        assert (item["message"], item["non_retryable"]) == ("not on my watch", True)

    kit.run(scenario())


@pytest.mark.parametrize("gather_creates_ms", [None, 1])
def test_middleware_of_a_client_is_around_each_create(kit, gather_creates_ms) -> None:
    async def scenario() -> None:
        seen_by = []

        async def urgent(job, call_next):
            created = await call_next(msgspec.structs.replace(job, priority=9))
            seen_by.append((job.payload, created.job_id))
            return created

        async with (
            kit.peers(1) as [peer],
            Client(peer.url, middleware=[urgent], gather_creates_ms=gather_creates_ms) as client,
        ):
            peer.then("/v1/jobs", kit.Answer(201, CREATED))
            peer.then("/v1/jobs/batch", kit.Answer(200, {"results": [CREATED], "applied_index": 1}))
            await client.create(payload="p")
            [request] = peer.seen
            job = request.body["jobs"][0] if gather_creates_ms else request.body
            assert job["priority"] == 9
        assert seen_by == [("p", "7")]

    kit.run(scenario())


def test_a_trace_travels_in_a_tasks_envelope_from_the_submit_to_the_handler(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, middleware=[trace_create]) as client:
            peer.then("/v1/jobs", *[kit.Answer(201, CREATED)] * 3)
            with trace.use_span(trace.NonRecordingSpan(PARENT)):
                await tell_trace.submit(client)
                await tell_trace.with_options(idempotency_key="k").submit(client)
                await client.create(payload={"plain": 1})
            traced, keyed, plain = (seen.body["payload"] for seen in peer.seen)
            wanted = f"{PARENT.trace_id:x}"
            assert traced["headers"]["traceparent"].split("-")[1] == wanted
            # A repeat under the same key must be the same request.
            assert keyed == {"task": "tell_trace"}
            assert plain == {"plain": 1}

            grants = [kit.delivery(n, payload=p) for n, p in enumerate((traced, keyed))]
            peer.then(CLAIMS, kit.granted(*grants))
            async with Worker(client, tasks=[tell_trace], middleware=[trace_handler]):
                await peer.until(lambda: sum(len(s.body["items"]) for s in peer.to(COMPLETE)) == 2)
            done = {i["token"]: i["result"] for s in peer.to(COMPLETE) for i in s.body["items"]}
            assert done == {1_000: wanted, 1_001: "0"}

    kit.run(scenario())

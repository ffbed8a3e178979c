"""Traces over the queue, with OpenTelemetry: from whoever submits a task to its handler.

    Client(urls, middleware=[trace_create])
    Worker(client, tasks=[send], middleware=[trace_handler])

A job has no headers, so the trace's context travels in the envelope of a task (its `headers`, in
the form of the propagator that is set up globally: W3C `traceparent` by default). The jobs of
plain handlers carry none: their spans begin traces of their own. Nor does a job with an
idempotency key: it must be the same request when it is repeated, and a trace would differ.

Needs `pip install 'timeball[otel]'`; which spans are exported where is up to the program's SDK.
"""

from __future__ import annotations

import msgspec

from timeball.client.context import ExecutionContext
from timeball.client.messages import JobCreated, NewJob
from timeball.client.middleware import Create, Handle
from timeball.client.tasks import Envelope, InvalidArguments, envelope_of

try:
    from opentelemetry import propagate, trace
except ImportError as error:
    raise ImportError("timeball.client.otel needs pip install 'timeball[otel]'") from error

_tracer = trace.get_tracer("timeball")


async def trace_create(job: NewJob, call_next: Create) -> JobCreated:
    """Middleware of a `Client`: a span around each create, whose context goes with the job."""
    envelope = job.payload
    what = envelope.task if isinstance(envelope, Envelope) else job.queue
    attributes = {"messaging.system": "timeball", "messaging.destination.name": job.queue}
    with _tracer.start_as_current_span(
        f"create {what}", kind=trace.SpanKind.PRODUCER, attributes=attributes
    ) as span:
        if isinstance(envelope, Envelope) and job.idempotency_key is None:
            headers = dict(envelope.headers)
            propagate.inject(headers)
            traced = msgspec.structs.replace(envelope, headers=headers)
            job = msgspec.structs.replace(job, payload=traced)
        created = await call_next(job)
        span.set_attribute("messaging.message.id", created.execution_id)
        return created


async def trace_handler(context: ExecutionContext, call_next: Handle) -> object:
    """Middleware of a `Worker`: a span around each handler, within the trace of the create."""
    try:
        envelope = envelope_of(context.payload)
    except InvalidArguments:
        envelope = Envelope("")
    attributes: dict[str, str | int] = {
        "messaging.system": "timeball",
        "messaging.destination.name": context.queue,
        "messaging.message.id": context.execution_id,
        "timeball.attempt": context.attempt,
    }
    with _tracer.start_as_current_span(
        f"process {envelope.task or context.queue}",
        context=propagate.extract(envelope.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        return await call_next(context)

"""One worker process of the demo, or of chaos: ``python -m timeball.bench.demo_worker``.

It runs the client library's own `Worker` and records all that it sees. What a handler does
depends on the label in the job's payload; most do nothing, quickly, and a few misbehave on
purpose so that the cluster can show what it does about it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import click

from timeball.bench import workload
from timeball.bench.history import HandlerStarted, Recorder, WorkerReady
from timeball.bench.recording import RecordingClient
from timeball.client.context import ExecutionContext
from timeball.client.messages import Success
from timeball.client.worker import Worker

CONCURRENCY = 64
DRAIN_MS = 5_000


class Poisoned(Exception):
    """The job can't succeed before somebody repairs what is broken."""


class Handlers:
    """What the demo's jobs do. `cure` is a file whose existence heals the poison job."""

    def __init__(self, client: RecordingClient, cure: Path) -> None:
        self._client = client
        self._cure = cure
        self._late: set[asyncio.Task[None]] = set()

    async def __call__(self, context: ExecutionContext) -> Any:
        label = context.payload["label"]
        recorder = self._client.recorder
        recorder.record(
            HandlerStarted(
                at_us=recorder.clock_us(),
                source=recorder.source,
                execution_id=context.execution_id,
                token=context.token,
                label=label,
            )
        )
        match label:
            case workload.FLAKY if context.attempt <= workload.FLAKY_FAILURES:
                raise ConnectionError(f"attempt {context.attempt} meets a service that is down")
            case workload.POISON if not self._cure.exists():
                raise Poisoned("the template of this invoice is broken")
            case workload.CRASH if context.attempt == 1:
                await asyncio.Event().wait()
            case workload.ZOMBIE if context.attempt == 1:
                self._complete_when_lost(context)
                await asyncio.Event().wait()
            case workload.SLOW:
                await asyncio.sleep(workload.SLOW_S)
            case workload.ZOMBIE:
                await asyncio.sleep(workload.ZOMBIE_REPEAT_S)
        return {"by": recorder.source}

    def _complete_when_lost(self, context: ExecutionContext) -> None:
        """Report a success under the lost lease, as a program that knows of no leases would.

        The library drops a lost lease by itself and reports nothing; going round it shows
        that the cluster does not depend on that.
        """

        async def complete() -> None:
            await context.lost.wait()
            late = Success(execution_id=context.execution_id, token=context.token)
            await self._client.complete([late])

        task = asyncio.create_task(complete())
        self._late.add(task)
        task.add_done_callback(self._late.discard)


async def work(urls: list[str], name: str, history: Path, cure: Path, lease_ms: int) -> None:
    """Work until SIGTERM."""
    with Recorder(history, name) as recorder:
        async with RecordingClient(urls, recorder) as client:
            handlers = Handlers(client, cure)
            worker = Worker(
                client,
                "default",
                handlers,
                concurrency=CONCURRENCY,
                lease_ms=lease_ms,
                name=name,
            )
            recorder.record(WorkerReady(at_us=recorder.clock_us(), source=name))
            await worker.run(grace_ms=DRAIN_MS)


@click.command()
@click.option("--urls", required=True, help="The nodes, with commas between.")
@click.option("--name", required=True)
@click.option("--history", required=True, type=click.Path(path_type=Path))
@click.option("--cure", required=True, type=click.Path(path_type=Path))
@click.option("--lease-ms", required=True, type=int)
def main(urls: str, name: str, history: Path, cure: Path, lease_ms: int) -> None:
    """Run one worker of the demo."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(work(urls.split(","), name, history, cure, lease_ms))


if __name__ == "__main__":
    main()

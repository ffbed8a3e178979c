"""`timeball worker` as a process on a real cluster, and its guide, whose examples run."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from timeball.client import Client, ExecutionView, Retry

pytestmark = pytest.mark.asyncio(loop_scope="session")

BIN = Path(sys.executable).parent
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "runners.md"
QUICK = Retry(max_attempts=3, initial_ms=50, max_ms=100, jitter_pct=0)
DONE = {"succeeded", "dead", "cancelled"}


@asynccontextmanager
async def worker(cluster, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process, which is killed if it has not ended by itself."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / "timeball"), "worker", *arguments,
        env={**os.environ, "TIMEBALL_URLS": ",".join(cluster.urls)},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until(question: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(40):
        while not await question():  # noqa: ASYNC110 - the cluster is asked, it tells nobody
            await asyncio.sleep(0.02)


async def ended(client: Client, execution_id: str, states=frozenset(DONE)) -> ExecutionView:
    async def is_so() -> bool:
        return (await client.execution(execution_id)).state in states

    await until(is_so)
    return await client.execution(execution_id)


async def stop(process: asyncio.subprocess.Process) -> str:
    process.terminate()
    _, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    assert "Traceback" not in told.decode()
    return told.decode()


async def test_a_command_for_each_execution(shared_cluster) -> None:
    script = (
        'case "$TIMEBALL_ATTEMPT" in 1) echo not yet >&2; exit 3;; *) read -r p; '
        'echo "$p $TIMEBALL_ATTEMPT";; esac'
    )
    arguments = ("--queue", "commands", "--exec", script)
    async with (
        Client(shared_cluster.urls, read_your_writes=True) as client,
        worker(shared_cluster, *arguments) as process,
    ):
        flaky = await client.create(queue="commands", payload={"a": 1}, retry=QUICK)
        assert flaky.execution_id is not None
        view = await ended(client, flaky.execution_id)
        assert (view.state, view.result) == ("succeeded", '{"a":1} 2')
        first = view.attempts[0]
        assert (first.error_type, first.message) == ("CommandFailed", "exit code 3: not yet")
        told = await stop(process)
        assert f"{flaky.execution_id}, attempt 2: exit code 0" in told


async def test_a_refusal_is_a_dead_letter_and_a_cancelled_job_ends_its_command(
    shared_cluster, tmp_path: Path
) -> None:
    script = (
        'read -r p; [ "$p" = 1 ] && exit 65; '
        f"echo $$ > {tmp_path}/pid; trap 'echo told > {tmp_path}/told; exit' TERM; "
        "while :; do sleep 0.05; done"
    )
    arguments = ("--queue", "ends", "--exec", script, "--lease", "1500ms")
    async with (
        Client(shared_cluster.urls, read_your_writes=True) as client,
        worker(shared_cluster, *arguments) as process,
    ):
        refused = await client.create(queue="ends", payload=1, retry=QUICK)
        view = await ended(client, refused.execution_id or "")
        assert (view.state, len(view.attempts)) == ("dead", 1)
        endless = await client.create(queue="ends", payload=2)

        async def runs() -> bool:
            return (tmp_path / "pid").exists()

        await until(runs)
        await client.cancel(endless.job_id)
        view = await ended(client, endless.execution_id or "")
        assert view.state == "cancelled"
        assert (tmp_path / "told").exists()
        await stop(process)


async def test_a_stopping_worker_lets_commands_end_and_releases_what_does_not(
    shared_cluster, tmp_path: Path
) -> None:
    script = (
        f'read -r p; touch {tmp_path}/"$p"; '
        f'if [ "$p" = 1 ]; then while ! [ -e {tmp_path}/go ]; do sleep 0.02; done; '
        "else sleep 600; fi"
    )
    arguments = ("--queue", "drained", "--exec", script, "--drain", "2s")
    async with Client(shared_cluster.urls, read_your_writes=True) as client:
        async with worker(shared_cluster, *arguments) as process:
            short = await client.create(queue="drained", payload=1)
            long = await client.create(queue="drained", payload=2)

            async def run() -> bool:
                return all((tmp_path / name).exists() for name in "12")

            await until(run)
            process.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            _, told = await process.communicate()
            assert process.returncode == 0, told.decode()
        view = await ended(client, short.execution_id or "")
        assert view.state == "succeeded"
        # The worker was told that it is released, not this client.
        view = await client.execution(long.execution_id or "", consistency="strong")
        assert view.attempts[-1].outcome == "released", view


async def test_a_post_for_each_execution(shared_cluster) -> None:
    seen = []

    async def handle(request: web.Request) -> web.Response:
        seen.append((request.headers["Idempotency-Key"], int(request.headers["Timeball-Token"])))
        if len(seen) == 1:
            return web.Response(status=503, headers={"Retry-After": "1"})
        return web.json_response({"got": await request.json()})

    app = web.Application()
    app.router.add_post("/hook", handle)
    serving = web.AppRunner(app)
    await serving.setup()
    try:
        await web.TCPSite(serving, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{serving.addresses[0][1]}/hook"
        async with (
            Client(shared_cluster.urls, read_your_writes=True) as client,
            worker(shared_cluster, "--queue", "hooks", "--http", url) as process,
        ):
            created = await client.create(queue="hooks", payload=[1])
            view = await ended(client, created.execution_id or "")
            assert (view.state, view.result) == ("succeeded", {"got": [1]})
            assert view.attempts[0].error_type == "ServerBusy"
            [(first_key, first_token), (second_key, second_token)] = seen
            assert first_key == second_key
            assert first_token < second_token
            await stop(process)
    finally:
        await serving.cleanup()


async def test_the_guide_runs(shared_cluster, tmp_path: Path) -> None:
    """Its shell blocks, in order; the worker of the guide runs until the job has."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
    run = [block for block in blocks if "timeball worker" not in block]
    [nightly] = [block for block in blocks if "timeball worker --queue nightly" in block]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "TIMEBALL_URLS": ",".join(shared_cluster.urls),
    }

    async def shell(source: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", source,
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        told, complaint = await process.communicate()
        assert process.returncode == 0, f"{source}\n{told.decode()}\n{complaint.decode()}"
        return told.decode()

    working = await asyncio.create_subprocess_exec(
        "bash", "-c", "exec " + nightly.strip(), cwd=tmp_path, env=environment,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        for block in run:
            await shell(block)

        async def copied() -> bool:
            return (tmp_path / "backup").exists() and any((tmp_path / "backup").iterdir())

        await until(copied)
        async with Client(shared_cluster.urls, read_your_writes=True) as client:
            job = await client.job_by_name("nightly-backup", consistency="strong")

            async def succeeded() -> bool:
                return any(
                    [e.state == "succeeded" async for e in client.executions(job=job.job_id)]
                )

            await until(succeeded)
            await client.cancel(job.job_id)
        await stop(working)
    finally:
        if working.returncode is None:
            working.kill()
            await working.communicate()

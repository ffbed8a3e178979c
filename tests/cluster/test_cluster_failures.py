"""Nodes that are killed, stopped, damaged or wrongly configured: what clients see, what stays."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from timeball.client import Client
from timeball.cluster.localcluster import LocalCluster, free_ports, write_config

pytestmark = pytest.mark.asyncio(loop_scope="session")
LIMIT_S = 30.0


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Three nodes of the test's own."""
    async with LocalCluster.in_folder(tmp_path) as cluster:
        yield cluster


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 — the condition lives in other processes
            await asyncio.sleep(0.02)


async def post(session: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    async with session.post(
        url,
        data=msgspec.msgpack.encode(body),
        headers={"Content-Type": "application/msgpack"},
        timeout=aiohttp.ClientTimeout(total=10),
    ) as answer:
        return answer.status, msgspec.msgpack.decode(await answer.read())


async def post_until_answered(
    session: aiohttp.ClientSession, urls: list[str], path: str, body: Any
) -> tuple[int, Any]:
    """Ask node after node until one answers something definite, as a client does."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            for url in urls:
                try:
                    status, answer = await post(session, url + path, body)
                except (aiohttp.ClientError, TimeoutError):
                    continue
                if status < 500:
                    return status, answer
                assert status == 503, answer
            await asyncio.sleep(0.05)


async def test_killing_all_nodes_under_load_loses_nothing_acknowledged(
    cluster: LocalCluster,
) -> None:
    acknowledged: dict[str, str] = {}
    enough = asyncio.Event()
    stop = asyncio.Event()

    async def create_again_and_again(client: int) -> None:
        number = 0
        async with aiohttp.ClientSession() as session:
            while not stop.is_set():
                url = cluster.urls[(client + number) % 3]
                names = [f"{client}-{number}-{place}" for place in range(5)]
                jobs = [{"queue": "load", "payload": name} for name in names]
                number += 1
                try:
                    status, answer = await post(session, f"{url}/v1/jobs/batch", {"jobs": jobs})
                except (aiohttp.ClientError, TimeoutError):
                    continue
                if status == 200:
                    for name, result in zip(names, answer["results"], strict=True):
                        acknowledged[result["job_id"]] = name
                if len(acknowledged) >= 500:
                    enough.set()

    clients = [asyncio.ensure_future(create_again_and_again(client)) for client in range(8)]
    await asyncio.wait_for(enough.wait(), LIMIT_S)
    await asyncio.gather(*(cluster.kill(name) for name in cluster.names))
    stop.set()
    await asyncio.gather(*clients)

    for name in cluster.names:
        await cluster.start_node(name)
    await cluster.wait_ready()
    url = cluster.url(await cluster.leader())
    async with aiohttp.ClientSession() as session:
        for job_id, name in acknowledged.items():
            async with session.get(f"{url}/v1/jobs/{job_id}") as answer:
                assert answer.status == 200, f"job {job_id} was acknowledged and is lost"
                assert msgspec.json.decode(await answer.read())["payload"] == name
        # And each can be claimed.
        delivered: set[str] = set()
        while not acknowledged.keys() <= delivered:
            claim = {"queue": "load", "worker": "w", "max_executions": 1000, "wait_ms": 5000}
            _, claimed = await post(session, f"{url}/v1/claims", claim)
            assert claimed["executions"], "acknowledged jobs are not delivered"
            delivered |= {each["job_id"] for each in claimed["executions"]}
    await digests_agree(cluster)


async def digests_agree(cluster: LocalCluster) -> None:
    async def agreed() -> bool:
        views = [await cluster.view(name, digest=True) for name in cluster.names]
        if None in views or len({view.applied_index for view in views if view}) != 1:
            return False
        assert len({view.state_digest for view in views if view}) == 1
        return True

    await eventually(agreed)


@pytest.mark.parametrize(
    "rule",
    [{}, {"idempotency": {"until": "job_ends", "scope": "queue"}}],
    ids=["for a window", "until the job ends"],
)
async def test_idem_01_one_key_makes_one_job_while_the_leader_is_killed(
    cluster: LocalCluster, rule: dict[str, Any]
) -> None:
    """200 parallel creates with one key, spread over the nodes; a 503 is asked again."""
    leader = await cluster.leader()
    job = {"queue": "one-key", "payload": 1, "idempotency_key": "only-one", **rule}
    answered = 0
    killed: asyncio.Future[None] | None = None

    async def create(session: aiohttp.ClientSession, place: int) -> tuple[int, Any]:
        nonlocal answered, killed
        urls = cluster.urls[place % 3 :] + cluster.urls[: place % 3]
        found = await post_until_answered(session, urls, "/v1/jobs", job)
        answered += 1
        if answered == 20:
            killed = asyncio.ensure_future(cluster.kill(leader))
        return found

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=30)) as session:
        answers = await asyncio.gather(*(create(session, place) for place in range(200)))
    assert killed is not None
    await killed
    assert {status for status, _ in answers} <= {200, 201}
    assert len({answer["job_id"] for _, answer in answers}) == 1
    assert await cluster.leader() != leader
    await cluster.restart(leader)
    await digests_agree(cluster)


async def test_a_node_that_is_asked_to_end_hands_over_and_exits_0(cluster: LocalCluster) -> None:
    leader = await cluster.leader()
    others = [name for name in cluster.names if name != leader]
    async with aiohttp.ClientSession() as session:
        claim = {"queue": "handed", "worker": "w", "wait_ms": 30_000}
        urls = [cluster.url(leader), *(cluster.url(name) for name in others)]
        polling = [
            asyncio.ensure_future(post_until_answered(session, [url, urls[1]], "/v1/claims", claim))
            for url in urls
        ]
        _, _ = await post(session, f"{urls[1]}/v1/jobs", {"queue": "before"})
        assert await cluster.stop_node(leader) == 0
        assert await cluster.leader() in others
        await post_until_answered(
            session, urls[1:], "/v1/jobs/batch", {"jobs": [{"queue": "handed"}] * 3}
        )
        claimed = await asyncio.wait_for(asyncio.gather(*polling), LIMIT_S)
    assert [len(answer["executions"]) for _, answer in claimed] == [1, 1, 1]
    log = cluster.log_path(leader).read_text("utf-8")
    assert "has ended" in log
    assert "Traceback" not in log
    await cluster.restart(leader)


async def test_a_node_without_a_majority_is_not_ready_and_refuses(cluster: LocalCluster) -> None:
    leader = await cluster.leader()
    for name in cluster.names:
        if name != leader:
            await cluster.kill(name)

    async def refuses() -> bool:
        return not await cluster.is_ready(leader)

    await eventually(refuses)

    async def steps_down() -> bool:
        async with aiohttp.ClientSession() as session:
            status, problem = await post(session, f"{cluster.url(leader)}/v1/jobs", {})
        assert status == 503
        return bool(problem["type"].endswith(":no-leader"))

    await eventually(steps_down)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{cluster.url(leader)}/healthz") as answer,
    ):
        assert answer.status == 200


async def get(session: aiohttp.ClientSession, url: str) -> tuple[int, int, Any]:
    """Status, position and body of a read, which comes long before a long-poll's end."""
    async with session.get(
        url,
        headers={"Accept": "application/msgpack"},
        timeout=aiohttp.ClientTimeout(total=10),
    ) as answer:
        position = int(answer.headers["Timeball-Applied-Index"])
        return answer.status, position, msgspec.msgpack.decode(await answer.read())


async def test_raft12_a_leader_whose_followers_are_stopped_reads_and_grants_nothing(
    cluster: LocalCluster,
) -> None:
    """It believes for a while that it leads: nobody gets more from it than an old state, marked."""
    leader = await cluster.leader()
    url = cluster.url(leader)
    followers = [name for name in cluster.names if name != leader]
    later = {"queue": "cut", "schedule": {"type": "after", "delay_ms": 300}}
    ready = {"queue": "cut", "worker": "w", "request_id": "ready", "wait_ms": 30_000}
    waits = {"queue": "nothing", "worker": "w", "wait_ms": 30_000}
    async with aiohttp.ClientSession() as session:
        _, created = await post(session, f"{url}/v1/jobs", later)
        job = f"{url}/v1/jobs/{created['job_id']}"
        assert (await get(session, f"{job}?consistency=strong"))[0] == 200
        for name in followers:
            cluster.signal(name, signal.SIGSTOP)
        strong, by_default, *claims = await asyncio.gather(
            get(session, f"{job}?consistency=strong"),
            get(session, job),
            post(session, f"{url}/v1/claims", ready),
            post(session, f"{url}/v1/claims", waits),
        )
        assert (strong[0], strong[2]["type"]) == (503, "urn:timeball:problem:no-leader")
        assert (by_default[0], by_default[2]["state"]) == (200, "active")
        assert [status for status, _ in claims] == [503, 503]
        kinds = [problem["type"].rsplit(":", 1)[1] for _, problem in claims]
        # The grant was written, and may yet be committed; of the other nothing was.
        assert kinds == ["outcome-unknown", "no-leader"]
        # Now it knows.
        assert (await get(session, f"{job}?consistency=strong"))[0] == 503
        assert (await post(session, f"{url}/v1/claims", waits))[0] == 503
        status, position, _ = await get(session, job)
        assert status == 200
        assert (await get(session, f"{job}?min_index={position}"))[0] == 200
        status, _, problem = await get(session, f"{job}?min_index={position + 1}")
        assert (status, problem["type"]) == (503, "urn:timeball:problem:not-caught-up")
        for name in followers:
            cluster.signal(name, signal.SIGCONT)
        _, claimed = await post_until_answered(session, cluster.urls, "/v1/claims", ready)
        assert [each["job_id"] for each in claimed["executions"]] == [created["job_id"]]
        for each in cluster.urls:
            target = f"{each}/v1/jobs/{created['job_id']}?consistency=strong"

            async def shows_the_lease(target: str = target) -> bool:
                # Those that were away may call an election yet, and have nobody to ask meanwhile.
                status, _, view = await get(session, target)
                assert status in (200, 503)
                return status == 200 and bool(view["execution_counts"]["leased"] == 1)

            await eventually(shows_the_lease)
    await digests_agree(cluster)


async def test_a_node_that_was_away_catches_up_before_it_is_ready(cluster: LocalCluster) -> None:
    leader = await cluster.leader()
    behind = next(name for name in cluster.names if name != leader)
    await cluster.kill(behind)
    async with aiohttp.ClientSession() as session:
        for _ in range(20):
            jobs = {"jobs": [{"queue": "late", "payload": "x" * 100}] * 100}
            status, answer = await post(session, f"{cluster.url(leader)}/v1/jobs/batch", jobs)
            assert status == 200
        last = answer["results"][-1]["job_id"]
        await cluster.restart(behind)

        async def has_it() -> bool:
            async with session.get(f"{cluster.url(behind)}/v1/jobs/{last}") as found:
                return found.status == 200

        await eventually(has_it)
        # The same with an empty disk.
        await cluster.kill(behind)
        shutil.rmtree(cluster.settings.data_dir(behind))
        await cluster.restart(behind)
        await eventually(has_it)
    await digests_agree(cluster)


async def test_limits_and_closed_queues_are_answered_by_name(tmp_path: Path) -> None:
    limits = {"max_pending": 3}
    one = LocalCluster.in_folder(tmp_path, names=("solo",), queues=["only"], limits=limits)
    async with one, aiohttp.ClientSession() as session:
        url = one.urls[0]
        later = {"type": "after", "delay_ms": 3_600_000}
        jobs = {"jobs": [{"queue": "only", "schedule": later}] * 4}
        status, answer = await post(session, f"{url}/v1/jobs/batch", jobs)
        assert status == 200
        assert [result["status"] for result in answer["results"]] == ["created"] * 3 + ["refused"]
        assert answer["results"][3]["problem"]["status"] == 429
        status, problem = await post(session, f"{url}/v1/jobs", {"queue": "only"})
        assert status == 429
        assert problem["type"] == "urn:timeball:problem:overloaded"
        assert problem["retry_after_ms"] > 0
        for path, body, field in [
            ("/v1/jobs", {"queue": "other"}, "queue"),
            ("/v1/jobs/batch", {"jobs": [{"queue": "only"}, {}]}, "jobs[1].queue"),
            ("/v1/claims", {"queue": "other", "worker": "w"}, "queue"),
        ]:
            status, problem = await post(session, url + path, body)
            assert (status, problem["errors"][0]["field"]) == (404, field)
        async with session.get(f"{url}/v1/jobs?queue=only&limit=1") as found:
            assert found.status == 200


async def run_server(config: Path, node: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "timeball.cluster.commands", "server"),
        *("--config", str(config), "--node", node),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, output.decode()


def config_in(folder: Path) -> tuple[Path, list[int]]:
    ports = free_ports(6)
    config = folder / "timeball.toml"
    write_config(config, http_ports=ports[:3], raft_ports=ports[3:])
    return config, ports


async def test_wrong_configurations_end_with_one_line_and_code_2(tmp_path: Path) -> None:
    config, ports = config_in(tmp_path)
    code, output = await run_server(config, "z")
    assert (code, output.count("\n")) == (2, 1)
    assert "no node is named 'z'; the nodes are a, b, c" in output

    broken = tmp_path / "broken.toml"
    broken.write_text(config.read_text().replace('name = "dev"\n', ""))
    code, output = await run_server(broken, "a")
    assert (code, output.count("\n")) == (2, 1)
    assert "broken.toml: name: required field is missing" in output

    code, output = await run_server(tmp_path / "none.toml", "a")
    assert (code, output.count("\n")) == (2, 1)
    assert "none.toml: cannot be read" in output

    for port in (ports[0], ports[3]):
        with socket.create_server(("127.0.0.1", port)):
            code, output = await run_server(config, "a")
        assert code == 2, output
        line = output.strip().splitlines()[-1]
        assert f"127.0.0.1:{port} is already in use" in line
        assert "Traceback" not in output

    nowhere = tmp_path / "nowhere.toml"
    for port, kind in ((ports[0], "http"), (ports[3], "raft")):
        nowhere.write_text(config.read_text().replace(f"127.0.0.1:{port}", f"no.invalid:{port}"))
        code, output = await run_server(nowhere, "a")
        assert code == 2, output
        assert f"node a, {kind}: no.invalid:{port} cannot be used" in output
        assert "Traceback" not in output


async def test_a_node_that_cannot_trust_its_files_says_which_and_ends(
    cluster: LocalCluster,
) -> None:
    name = await cluster.leader()
    async with Client(cluster.url(name)) as client:
        for number in range(10):  # each is answered before the next: ten batches of the journal
            await client.create(payload=number)
    await cluster.stop_node(name)
    folder = cluster.settings.data_dir(name)
    journal = max(
        (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 64),
        key=lambda path: path.stat().st_size,
    )
    content = bytearray(journal.read_bytes())
    content[len(content.rstrip(b"\0")) // 3] ^= 0xFF
    journal.write_bytes(content)
    code, output = await run_server(cluster.config, name)
    assert code == 3, output
    assert str(journal) in output
    assert "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_dev_runs_a_cluster_until_it_is_interrupted(
    tmp_path: Path, number: signal.Signals
) -> None:
    (base,) = free_ports(1)
    command = (sys.executable, "-m", "timeball.cluster.commands", "dev")
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--data", str(tmp_path / "data"), "--base-port", str(base)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        seen = b""
        while b"Ctrl-C" not in seen:
            line = await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
            assert line, seen
            seen += line
        for place in range(3):
            assert f"http://127.0.0.1:{base + place}".encode() in seen
        # A second one finds the ports taken, and says so in one line.
        second = await asyncio.create_subprocess_exec(
            *command,
            *("--data", str(tmp_path / "other"), "--base-port", str(base)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(second.communicate(), LIMIT_S)
        assert second.returncode == 2, errors
        assert errors.count(b"\n") == 1
        assert b"is already in use" in errors
    finally:
        process.send_signal(number)
        await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0

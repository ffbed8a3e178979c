"""HTTP against three real nodes: bad input, forwarding, limits, clients that go away."""

from __future__ import annotations

import asyncio
import io
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from timeball.client.messages import MAX_BODY_BYTES, MAX_PAYLOAD_BYTES
from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

JSON = {"Content-Type": "application/json"}
PACK = {"Content-Type": "application/msgpack"}
pack = msgspec.msgpack.encode
LIMIT_S = 20.0
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


@pytest_asyncio.fixture(loop_scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """One connection at most: a connection that breaks shows."""
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition of the cluster, within a bound that only a failure reaches."""
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 — the condition lives in other processes
            await asyncio.sleep(0.02)


async def call(
    session: aiohttp.ClientSession, method: str, url: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    data = None if body is None else io.BytesIO(msgspec.json.encode(body))
    async with session.request(method, url, data=data, headers={**JSON, **headers}) as answer:
        raw = await answer.read()
        return answer.status, msgspec.json.decode(raw) if "json" in answer.content_type else raw


async def digests(cluster: LocalCluster) -> set[str]:
    """The digests of all nodes once they have applied the same entries."""
    found: set[str] = set()

    async def settled() -> bool:
        views = [await cluster.view(name, digest=True) for name in cluster.names]
        if any(view is None for view in views):
            return False
        found.clear()
        found.update(str(view.state_digest) for view in views if view is not None)
        return len({view.applied_index for view in views if view is not None}) == 1

    await eventually(settled)
    return found


async def roles(cluster: LocalCluster) -> tuple[str, list[str]]:
    """The URL of the leader, and those of the others."""
    leader = await cluster.leader()
    return cluster.url(leader), [cluster.url(name) for name in cluster.names if name != leader]


BIG = "x" * MAX_PAYLOAD_BYTES
BAD: list[tuple[str, bytes, dict[str, str], int, str]] = [
    ("/v1/jobs", b"{", JSON, 400, "body"),
    ("/v1/jobs", b"\xff\xfe", JSON, 400, "body"),
    ("/v1/jobs", b"\xc1", PACK, 400, "body"),
    ("/v1/jobs", b"[1, 2]", JSON, 400, "body"),
    ("/v1/jobs", b'{"payload": NaN}', JSON, 400, "payload"),
    ("/v1/jobs", b'{"payload": -Infinity}', JSON, 400, "payload"),
    ("/v1/jobs", b'{"payload": 1e999}', JSON, 400, "payload"),
    ("/v1/jobs", b'{"payload": "\\ud800"}', JSON, 400, "body"),
    ("/v1/jobs", pack({"payload": math.nan}), PACK, 400, "payload"),
    ("/v1/jobs", pack({"payload": {"a": [math.inf]}}), PACK, 400, "payload"),
    ("/v1/jobs", pack({"payload": msgspec.msgpack.Ext(9, b"")}), PACK, 400, "payload"),
    ("/v1/jobs", pack({"payload": {1: 1}}), PACK, 400, "payload"),
    ("/v1/jobs", pack({"payload": "a\x7f"}).replace(b"\x7f", b"\xff"), PACK, 400, "payload"),
    ("/v1/jobs", b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400, "body"),
    ("/v1/jobs", b'{"priority": true}', JSON, 400, "priority"),
    ("/v1/jobs", b'{"priority": 1.5}', JSON, 400, "priority"),
    ("/v1/jobs", b'{"surprise": 1}', JSON, 400, "surprise"),
    ("/v1/jobs", b'{"queue": ""}', JSON, 400, "queue"),
    ("/v1/jobs", b'{"schedule": {"type": "at", "time": -1}}', JSON, 400, "schedule.time"),
    *(  # TIMR-01: beyond the horizon, or no instant at all
        ("/v1/jobs", b'{"schedule": {"type": "at", "time": %s}}' % time, JSON, 400, "schedule.time")
        for time in (
            *(b"%d" % number for number in (2**53, 2**63 - 1, 2**63, 2**64, 10**18, 10**30)),
            *(b"1.0", b"-0.0", b"1e400", b"true", b'"10000-01-01T00:00:00Z"', b'"0"'),
            *(b'"2026-01-01T00:00:00"', b'"2016-12-31T23:59:60Z"', b'"20260101103000Z"'),
            *(b'"2026-01-01T00:00:00Z\\u0000"', b'"2026-01-01T00:00:00+24:00"'),
        )
    ),
    *(
        (
            "/v1/jobs",
            b'{"schedule": {"type": "after", "delay_ms": %s}}' % delay,
            JSON,
            400,
            "schedule.",
        )
        for delay in (
            *(b"%d" % number for number in (2**63 - 1, 2**63, 2**64, 10**18, 10**30)),
            *(b"-1", b"-1764480000000", b"1.5", b"-0.0", b"1e400", b'"5"', b"3162240000001"),
        )
    ),
    ("/v1/jobs", b'{"schedule": {"type": "cron", "expression": "x"}}', JSON, 400, "schedule."),
    ("/v1/jobs", b'{"timeout_ms": 3162240000001}', JSON, 400, "timeout_ms"),
    ("/v1/jobs", msgspec.json.encode({"payload": BIG}), JSON, 413, "payload"),
    ("/v1/jobs", pack({"payload": BIG}), PACK, 413, "payload"),
    ("/v1/jobs/batch", msgspec.json.encode({"jobs": [{}] * 1001}), JSON, 413, "jobs"),
    ("/v1/jobs/batch", pack({"jobs": [{}, {"payload": BIG}]}), PACK, 413, "jobs[1].payload"),
    ("/v1/jobs/batch", b'{"jobs": []}', JSON, 400, "jobs"),
    ("/v1/jobs/batch", b" " * (MAX_BODY_BYTES + 1), JSON, 413, "body"),
    ("/v1/claims", b'{"worker": "w", "max_executions": 0}', JSON, 400, "max_executions"),
    ("/v1/claims", b'{"worker": "", "queue": "q"}', JSON, 400, "worker"),
    (
        "/v1/executions/complete",
        pack({"items": [{"execution_id": "1-1", "token": 1, "result": BIG}]}),
        PACK,
        413,
        "items[0].result",
    ),
    ("/v1/executions/1-1/complete", pack({"token": 1, "result": math.nan}), PACK, 400, "result"),
    ("/v1/executions/heartbeat", b'{"items": [{"execution_id": 1}]}', JSON, 400, "items[0]."),
    ("/v1/dead/replay", b'{"execution_ids": [1]}', JSON, 400, "execution_ids[0]"),
]


async def test_bad_input_is_refused_by_name_and_changes_nothing(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    before = await digests(shared_cluster)
    assert len(before) == 1
    leader, others = await roles(shared_cluster)
    for url in (leader, others[0]):
        for path, body, headers, status, field in BAD:
            async with session.post(url + path, data=io.BytesIO(body), headers=headers) as answer:
                raw = await answer.read()
                assert answer.status == status, (path, body[:80], raw[:200])
                form = "msgpack" if headers is PACK else "json"
                assert answer.content_type == f"application/problem+{form}"
            decode = msgspec.msgpack.decode if headers is PACK else msgspec.json.decode
            problem = decode(raw)
            assert problem["status"] == status
            assert problem["outcome"] == "not_applied"
            assert problem["errors"][0]["field"].startswith(field), (path, body[:80], problem)
            # The next request on the same connection (or a new one, after a 413) is served.
            assert (await call(session, "GET", f"{url}/healthz"))[0] == 200
    assert await digests(shared_cluster) == before


async def test_unknown_forms_and_routes(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    url = shared_cluster.urls[0]
    for method, path, headers, status in [
        ("POST", "/v1/jobs", {"Content-Type": "text/plain"}, 415),
        ("POST", "/v1/jobs", {**JSON, "Content-Encoding": "gzip"}, 415),
        ("GET", "/v1/jobs", {"Accept": "text/html"}, 406),
        ("GET", "/v1/unknown", {}, 404),
        ("PATCH", "/v1/jobs", JSON, 405),
    ]:
        body = b"{}" if method in ("POST", "PATCH") else None
        async with session.request(method, url + path, data=body, headers=headers) as answer:
            assert answer.status == status
            assert msgspec.json.decode(await answer.read())["status"] == status


async def test_a_long_body_is_refused_before_it_is_sent(shared_cluster: LocalCluster) -> None:
    node = shared_cluster.settings.nodes[0].http
    for head in (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n",
        "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        f"Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(node.host, node.port)
        writer.write(head.encode())
        status = await asyncio.wait_for(reader.readline(), LIMIT_S)
        assert status.startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_body_without_length_is_cut_off(shared_cluster: LocalCluster) -> None:
    node = shared_cluster.settings.nodes[0].http
    reader, writer = await asyncio.open_connection(node.host, node.port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"

    async def send() -> None:
        for _ in range(2 * MAX_BODY_BYTES // 0x10000):
            writer.write(chunk)
            await writer.drain()

    sending = asyncio.ensure_future(send())
    assert (await asyncio.wait_for(reader.readline(), LIMIT_S)).startswith(b"HTTP/1.1 413")
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    writer.close()


async def test_a_body_that_is_expected_is_asked_for(shared_cluster: LocalCluster) -> None:
    node = shared_cluster.settings.nodes[0].http
    reader, writer = await asyncio.open_connection(node.host, node.port)
    body = b'{"queue": "expected", "schedule": {"type": "after", "delay_ms": 3600000}}'
    writer.write(
        b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    assert (await asyncio.wait_for(reader.readline(), LIMIT_S)) == b"HTTP/1.1 100 Continue\r\n"
    assert await reader.readline() == b"\r\n"
    writer.write(body)
    assert (await asyncio.wait_for(reader.readline(), LIMIT_S)).startswith(b"HTTP/1.1 201")
    writer.close()


async def test_a_request_is_forwarded_once(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    leader, others = await roles(shared_cluster)
    job = {"queue": "hops", "schedule": {"type": "after", "delay_ms": 3_600_000}}
    for url in others:
        status, created = await call(session, "POST", f"{url}/v1/jobs", job)
        assert (status, created["status"]) == (201, "created")
        status, problem = await call(
            session, "POST", f"{url}/v1/jobs", job, **{"Timeball-Hops": "1"}
        )
        assert status == 503
        assert problem["type"] == "urn:timeball:problem:no-leader"
        assert problem["outcome"] == "not_applied"
        assert problem["leader"] == leader
        assert problem["retry_after_ms"] > 0


async def test_every_node_serves_reads_of_its_own_state(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    leader, others = await roles(shared_cluster)
    job = {"queue": "reads", "schedule": {"type": "after", "delay_ms": 3_600_000}}
    _, created = await call(session, "POST", f"{leader}/v1/jobs", job)
    for url in (leader, *others):
        path = f"{url}/v1/jobs/{created['job_id']}"

        async def served(path: str = path) -> bool:
            async with session.get(path) as answer:
                # Also told by a node that has not got as far as the job.
                assert int(answer.headers["Timeball-Applied-Index"]) > 0
                return answer.status == 200

        await eventually(served)


async def test_large_batches_travel_in_parts(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    leader, _ = await roles(shared_cluster)
    jobs = [
        {
            "queue": "large",
            "payload": "x" * 60_000,
            "schedule": {"type": "after", "delay_ms": 10**9},
        }
    ] * 60
    body = {"jobs": jobs, "request_id": "large-batch"}
    status, first = await call(session, "POST", f"{leader}/v1/jobs/batch", body)
    assert status == 200
    ids = [result["job_id"] for result in first["results"]]
    assert len(set(ids)) == 60
    assert ids == sorted(ids, key=int)
    status, again = await call(session, "POST", f"{leader}/v1/jobs/batch", body)
    assert [result["job_id"] for result in again["results"]] == ids
    # Pages are bounded by bytes too, and lose nothing.
    listed: list[str] = []
    path = f"{leader}/v1/jobs?queue=large&limit=1000"
    cursor: str | None = ""
    while cursor is not None:
        _, page = await call(session, "GET", path + (f"&cursor={cursor}" if cursor else ""))
        assert len(page["jobs"]) < 60
        listed += [job["job_id"] for job in page["jobs"]]
        cursor = page["cursor"]
    assert listed == ids[::-1]
    for job_id in ids:
        await call(session, "DELETE", f"{leader}/v1/jobs/{job_id}")


async def test_parallel_creates_with_one_key_make_one_job(shared_cluster: LocalCluster) -> None:
    """IDEM-01, without a failure; `test_cluster_failures` kills the leader in the middle."""
    job = {"queue": "one-key", "payload": {"n": 1}, "idempotency_key": "only-one"}
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(
            *(
                call(session, "POST", f"{shared_cluster.urls[place % 3]}/v1/jobs", job)
                for place in range(200)
            )
        )
    assert {status for status, _ in answers} == {200, 201}
    assert sum(status == 201 for status, _ in answers) == 1
    assert len({answer["job_id"] for _, answer in answers}) == 1


async def test_http_01_pollers_that_hang_up_leave_no_lease(shared_cluster: LocalCluster) -> None:
    """HTTP-01: pollers hang up all the time while jobs come in; no attempt is burnt."""
    leader, others = await roles(shared_cluster)
    stop = asyncio.Event()
    hung_up = 0

    async def hang_up_again_and_again(place: int) -> None:
        nonlocal hung_up
        host, port = (leader, *others)[place % 3].removeprefix("http://").split(":")
        body = b'{"queue": "hang-up", "worker": "ghost", "wait_ms": 30000, "lease_ms": 600000}'
        request = (
            b"POST /v1/claims HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        ) + body
        while not stop.is_set():
            _, writer = await asyncio.open_connection(host, int(port))
            # A ghost reads nothing, or it would have taken an answer that comes in time.
            writer.transport.pause_reading()
            writer.write(request)
            await writer.drain()
            await asyncio.sleep(0.001 * (place % 7))
            if place % 2:
                writer.transport.abort()
            else:
                writer.close()
            hung_up += 1

    ghosts = [asyncio.ensure_future(hang_up_again_and_again(place)) for place in range(12)]
    created = 0
    async with aiohttp.ClientSession() as session:
        while created < 300:
            jobs = {"jobs": [{"queue": "hang-up"}] * 5}
            status, _ = await call(session, "POST", f"{leader}/v1/jobs/batch", jobs)
            assert status == 200
            created += 5
        stop.set()
        await asyncio.gather(*ghosts)
        assert hung_up > 100

        async def nothing_is_leased() -> bool:
            view = await shared_cluster.view(await shared_cluster.leader())
            assert view is not None
            (queue,) = [queue for queue in view.queues if queue.name == "hang-up"]
            return queue.leased == 0 and queue.waiting_claims == 0

        await eventually(nothing_is_leased)
        seen: set[str] = set()
        while len(seen) < created:
            claim = {"queue": "hang-up", "worker": "w", "max_executions": 100, "wait_ms": 5000}
            _, claimed = await call(session, "POST", f"{leader}/v1/claims", claim)
            assert claimed["executions"], f"{created - len(seen)} executions are held by nobody"
            for delivery in claimed["executions"]:
                assert delivery["attempt"] == 1, "a claim that was never answered burnt an attempt"
                seen.add(delivery["execution_id"])
            items = [
                {"execution_id": each["execution_id"], "token": each["token"]}
                for each in claimed["executions"]
            ]
            await call(session, "POST", f"{leader}/v1/executions/complete", {"items": items})


async def test_a_long_poll_is_answered_when_work_comes(shared_cluster: LocalCluster) -> None:
    leader, others = await roles(shared_cluster)
    async with aiohttp.ClientSession() as session:
        # A queue can be looked at from its first job on.
        later = {"type": "after", "delay_ms": 3_600_000}
        await call(session, "POST", f"{leader}/v1/jobs", {"queue": "poll", "schedule": later})
        for url in (leader, others[0]):
            claim = {"queue": "poll", "worker": "w", "wait_ms": 20_000}
            waiting = asyncio.ensure_future(call(session, "POST", f"{url}/v1/claims", claim))

            async def waits() -> bool:
                view = await shared_cluster.view(await shared_cluster.leader())
                assert view is not None
                return any(each.waiting_claims for each in view.queues if each.name == "poll")

            await eventually(waits)
            await call(session, "POST", f"{url}/v1/jobs", {"queue": "poll", "payload": url})
            status, claimed = await asyncio.wait_for(waiting, LIMIT_S)
            assert status == 200
            assert [each["payload"] for each in claimed["executions"]] == [url]


async def test_metrics_name_what_happened(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    leader, _ = await roles(shared_cluster)
    for _ in range(2):
        await call(session, "POST", f"{leader}/v1/jobs", {"queue": "measured"})
    claim = {"queue": "measured", "worker": "w", "wait_ms": 5000}
    await call(session, "POST", f"{leader}/v1/claims", claim)
    async with session.get(f"{leader}/metrics", headers={"Accept": "text/plain"}) as answer:
        assert answer.status == 200
        text = await answer.text()
    for name in (
        "timeball_fire_lag_seconds_bucket",
        "timeball_commit_seconds_count",
        "timeball_journal_sync_seconds_sum",
        "timeball_raft_term",
        "timeball_raft_serving 1.0",
        "timeball_raft_applied_lag",
        "timeball_loop_stall_seconds_max",
        "timeball_created_total",
        "timeball_claimed_total",
        "timeball_stale_total",
        "timeball_duplicates_total",
        "timeball_expired_total",
        "timeball_coalesced_total",
        "timeball_ready_executions",
        "timeball_oldest_due_age_seconds",
        "timeball_waiting_claims",
        "timeball_http_requests_total",
        "timeball_raft_snapshot_bytes",
    ):
        assert name in text, name
    served = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    for name in re.findall(r"`(timeball_\w+)`", ARCHITECTURE.read_text("utf-8")):
        assert name in served, f"the documents name a metric that is not served: {name}"


async def test_each_node_takes_a_snapshot_when_it_is_asked(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    for name in shared_cluster.names:
        url = shared_cluster.url(name)
        status, begun = await call(session, "POST", f"{url}/v1/cluster/snapshot")
        assert (status, begun["node"]) == (202, name)

        async def durable(url: str = url, index: float = begun["index"]) -> bool:
            async with session.get(f"{url}/metrics") as answer:
                lines = dict(line.rsplit(" ", 1) for line in (await answer.text()).splitlines())
            return (
                float(lines["timeball_raft_snapshot_index"]) >= index
                and float(lines["timeball_raft_snapshot_under_way"]) == 0
                and float(lines["timeball_raft_snapshot_bytes"]) > 0
            )

        await eventually(durable)


async def test_labels_of_metrics_are_bounded(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    leader, _ = await roles(shared_cluster)
    later = {"type": "after", "delay_ms": 3_600_000}
    jobs = [{"queue": f"label-{number:03}", "schedule": later} for number in range(150)]
    _, created = await call(session, "POST", f"{leader}/v1/jobs/batch", {"jobs": jobs})
    async with session.get(f"{leader}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    labelled = [line for line in lines if line.startswith("timeball_scheduled_executions{")]
    assert len(labelled) == 101
    (other,) = [line for line in labelled if 'queue="(other)"' in line]
    assert float(other.split()[-1]) >= 50
    for result in created["results"]:
        await call(session, "DELETE", f"{leader}/v1/jobs/{result['job_id']}")

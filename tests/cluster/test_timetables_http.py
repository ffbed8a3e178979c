"""Timetables on three real nodes: edits from everywhere at once, and while an occurrence runs."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from timeball.cluster.localcluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMIT_S = 20.0
DAY_MS = 86_400_000
FAR = "2096-01-01T00:00:00Z"


@pytest_asyncio.fixture(loop_scope="session")
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, body: Any = None, **headers: str
) -> tuple[int, Any, Any]:
    data = None if body is None else io.BytesIO(msgspec.json.encode(body))
    sent = {"Content-Type": "application/json", **headers}
    async with session.request(method, url, data=data, headers=sent) as answer:
        return answer.status, msgspec.json.decode(await answer.read()), answer.headers


def put(name: str, interval_ms: int, **rest: Any) -> tuple[str, str, dict[str, Any]]:
    schedule = {"type": "every", "interval_ms": interval_ms, "anchor": FAR}
    return "PUT", f"/v1/jobs/by-name/{name}", {"schedule": schedule, **rest}


async def settled(
    session: aiohttp.ClientSession, cluster: LocalCluster, job: str
) -> list[tuple[Any, Any]]:
    """The job and its executions as each node has them, once the pending one is planned."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = []
            for url in cluster.urls:
                fresh = "consistency=strong"
                _, view, _ = await ask(session, "GET", f"{url}/v1/jobs/{job}?{fresh}")
                _, page, _ = await ask(session, "GET", f"{url}/v1/executions?job={job}&{fresh}")
                found.append((view, page["executions"]))
            if all(executions for _, executions in found):
                return found
            await asyncio.sleep(0.02)


async def test_RECU_06_a_hundred_puts_from_three_nodes_leave_one_pending_occurrence(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    rng = random.Random(6)

    async def change(number: int) -> tuple[int, int]:
        await asyncio.sleep(rng.random())
        interval_ms = DAY_MS + number
        method, path, body = put("recu-06", interval_ms, payload=number)
        status, answer, _ = await ask(session, method, rng.choice(shared_cluster.urls) + path, body)
        assert status in (200, 201), answer
        return answer["version"], number

    changed = await asyncio.gather(*(change(number) for number in range(100)))
    versions = dict(changed)
    assert sorted(versions) == list(range(1, 101)), "each put is a version of its own"
    last = versions[100]
    _, named, _ = await ask(
        session, "GET", f"{shared_cluster.urls[0]}/v1/jobs/by-name/recu-06?consistency=strong"
    )
    for view, executions in await settled(session, shared_cluster, named["job_id"]):
        assert (view["payload"], view["schedule"]["interval_ms"]) == (last, DAY_MS + last)
        assert view["version"] == 100
        (pending,) = executions
        assert (pending["state"], pending["nominal_at"]) == (
            "scheduled",
            "2096-01-01T00:00:00.000Z",
        )
        assert (view["timetable"]["fired"], view["timetable"]["skipped"]) == (1, 0)


async def test_RECU_06_a_name_is_given_again_within_a_second(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    jobs = []
    for turn in range(20):
        one, other = (shared_cluster.urls[(turn + node) % 3] for node in (0, 1))
        method, path, body = put("again", DAY_MS, payload=turn)
        status, created, _ = await ask(session, method, one + path, body)
        assert (status, created["version"]) == (201, 1)
        jobs.append(created["job_id"])
        status, _, _ = await ask(session, "DELETE", f"{other}/v1/jobs/{jobs[-1]}")
        assert status == 200
    assert len(set(jobs)) == 20
    method, path, body = put("again", 2 * DAY_MS)
    _, created, _ = await ask(session, method, shared_cluster.urls[0] + path, body)
    for view, executions in await settled(session, shared_cluster, created["job_id"]):
        assert (view["version"], view["timetable"]["name"], len(executions)) == (1, "again", 1)
    for job in jobs:
        _, page, _ = await ask(
            session, "GET", f"{shared_cluster.urls[1]}/v1/executions?job={job}&consistency=strong"
        )
        assert [execution["state"] for execution in page["executions"]] == ["cancelled"]


async def test_RECU_06_an_occurrence_that_ran_during_an_edit_is_retried_as_it_began(
    shared_cluster: LocalCluster, session: aiohttp.ClientSession
) -> None:
    one, two, three = shared_cluster.urls
    schedule = {"type": "every", "interval_ms": DAY_MS, "anchor": FAR}
    body = {
        "queue": "edited",
        "schedule": schedule,
        "payload": "old",
        "retry": {"max_attempts": 2, "initial_ms": 0},
    }
    _, created, _ = await ask(session, "POST", f"{one}/v1/jobs", body)
    job = created["job_id"]
    _, triggered, _ = await ask(session, "POST", f"{two}/v1/jobs/{job}/trigger")
    claim = {"queue": "edited", "worker": "w", "wait_ms": 10_000}
    _, claimed, _ = await ask(session, "POST", f"{three}/v1/claims", claim)
    (delivery,) = claimed["executions"]
    assert (delivery["execution_id"], delivery["payload"]) == (triggered["execution_id"], "old")

    change = {"payload": "new", "schedule": {**schedule, "interval_ms": 2 * DAY_MS}}
    change["retry"] = {"max_attempts": 9}
    _, changed, headers = await ask(
        session, "PATCH", f"{two}/v1/jobs/{job}", change, **{"If-Match": '"1"'}
    )
    assert (changed["version"], headers["ETag"]) == (2, '"2"')
    report = {"token": delivery["token"], "error_type": "Oops"}
    path = f"/v1/executions/{delivery['execution_id']}/fail"
    status, _, _ = await ask(session, "POST", one + path, report)
    assert status == 200
    _, claimed, _ = await ask(session, "POST", f"{one}/v1/claims", claim)
    (again,) = claimed["executions"]
    assert (again["execution_id"], again["payload"]) == (delivery["execution_id"], "old")
    assert (again["attempt"], again["max_attempts"]) == (2, 2)

    for _, executions in await settled(session, shared_cluster, job):
        states = {execution["state"]: execution["max_attempts"] for execution in executions}
        assert states == {"scheduled": 9, "leased": 2}
    _, second, _ = await ask(session, "POST", f"{three}/v1/jobs/{job}/trigger")
    _, claimed, _ = await ask(session, "POST", f"{two}/v1/claims", claim)
    assert claimed["executions"][0]["execution_id"] == second["execution_id"]
    assert claimed["executions"][0]["payload"] == "new"

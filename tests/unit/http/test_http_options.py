"""What few jobs ask for, over HTTP: keys, requirements, tags and expiry."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.cluster.state.operations import Options
from timeball.cluster.state.usual import NO_OPTIONS

MINUTE_MS = 60_000
EVERY_MINUTE = {"type": "every", "interval_ms": MINUTE_MS}
NOON = "2030-01-01T12:00:00.000Z"
NOON_MS = 1_893_499_200_000


async def view(desk, job: str) -> dict[str, Any]:
    return (await desk.ask("GET", f"/v1/jobs/{job}")).body


async def test_options_reach_the_log_as_sets_and_are_shown(desk) -> None:
    job = await desk.create(
        concurrency_key="ann", requires=["gpu", "eu", "gpu"], tags=["b", "a"],
        expires_at=NOON, expires_after_ms=500,
    )  # fmt: skip
    (new,) = desk.proposed[0].jobs
    assert new.options == Options("ann", ("eu", "gpu"), ("a", "b"), NOON_MS, 500)
    shown = await view(desk, job)
    assert shown["concurrency_key"] == "ann"
    assert (shown["requires"], shown["tags"]) == (["eu", "gpu"], ["a", "b"])
    assert (shown["expires_at"], shown["expires_after_ms"]) == (NOON, 500)


async def test_a_job_without_options_carries_none(desk, log) -> None:
    job = await desk.create(requires=[], tags=[], concurrency_key="", expires_at=None)
    assert desk.proposed[0].jobs[0].options is None
    assert log.machine.job(int(job)).options is NO_OPTIONS
    assert (await view(desk, job))["expires_at"] is None


@pytest.mark.parametrize(
    ("rest", "field"),
    [
        ({"requires": ["gpu", ""]}, "requires[1]"),
        ({"tags": ["t" * 65]}, "tags[0]"),
        ({"tags": [f"t{number}" for number in range(17)]}, "tags"),
        ({"requires": "gpu"}, "requires"),
        ({"concurrency_key": "k" * 256}, "concurrency_key"),
        ({"expires_after_ms": 0}, "expires_after_ms"),
        ({"expires_after_ms": True}, "expires_after_ms"),
        ({"expires_at": "2030-01-01T12:00:00"}, "expires_at"),
        ({"expires_at": -1}, "expires_at"),
        ({"expires_at": NOON, "schedule": {"type": "at", "time": NOON}}, "expires_at"),
        ({"expires_at": NOON, "schedule": EVERY_MINUTE}, "expires_at"),
        ({"expires_after_ms": 9, "schedule": {**EVERY_MINUTE, "jitter_ms": 9}}, "expires_after_ms"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(desk, rest: dict[str, Any], field: str) -> None:
    reply = await desk.ask("POST", "/v1/jobs", rest)
    assert (reply.status, reply.field) == (400, field)
    batch = await desk.ask("POST", "/v1/jobs/batch", {"jobs": [{}, rest]})
    assert (batch.status, batch.field) == (400, f"jobs[1].{field}")
    assert not desk.proposed


async def test_options_belong_to_what_an_idempotency_key_stands_for(desk) -> None:
    asked = {"idempotency_key": "k", "requires": ["a", "b"], "expires_at": NOON}
    first = await desk.ask("POST", "/v1/jobs", asked)
    same = {**asked, "requires": ["b", "a", "b"], "expires_at": NOON_MS}
    again = await desk.ask("POST", "/v1/jobs", same)
    assert (again.status, again.body["job_id"]) == (200, first.body["job_id"])
    for other in ({"requires": ["a"]}, {"tags": ["a"]}, {"expires_after_ms": 1}):
        assert (await desk.ask("POST", "/v1/jobs", {**asked, **other})).status == 422


async def test_an_update_changes_the_options_that_it_names(desk) -> None:
    job = await desk.create(
        {"type": "at", "time": "2030-01-01T00:00:00Z"},
        concurrency_key="ann", requires=["gpu"], tags=["a"], expires_at=NOON, expires_after_ms=9,
    )  # fmt: skip
    for body, told in (
        ({"requires": []}, {"requires": [], "tags": ["a"]}),
        ({"tags": ["c", "b"]}, {"tags": ["b", "c"], "expires_at": NOON}),
        ({"expires_at": None}, {"expires_at": None, "expires_after_ms": 9}),
        ({"expires_after_ms": None}, {"expires_after_ms": None, "concurrency_key": "ann"}),
    ):
        assert (await desk.ask("PATCH", f"/v1/jobs/{job}", body)).body["status"] == "changed"
        shown = await view(desk, job)
        assert {name: shown[name] for name in told} == told
        again = await desk.ask("PATCH", f"/v1/jobs/{job}", body)
        assert again.body["status"] == "unchanged"
    assert (await view(desk, job))["version"] == 5


@pytest.mark.parametrize(
    ("schedule", "body", "status"),
    [
        (EVERY_MINUTE, {"expires_at": NOON}, 409),
        ({"type": "at", "time": NOON}, {"expires_at": NOON}, 400),
        ({"type": "at", "time": 1}, {"expires_at": 5, "schedule": {"type": "at", "time": 5}}, 400),
    ],
)
async def test_an_update_to_an_instant_that_can_not_be_is_refused(
    desk, schedule: Any, body: dict[str, Any], status: int
) -> None:
    job = await desk.create(schedule)
    reply = await desk.ask("PATCH", f"/v1/jobs/{job}", body)
    assert (reply.status, reply.field) == (status, "expires_at")


async def test_an_update_to_a_jitter_beyond_the_expiry_is_refused(desk) -> None:
    job = await desk.create(EVERY_MINUTE, expires_after_ms=500)
    jittery = {"schedule": {**EVERY_MINUTE, "jitter_ms": 500}}
    reply = await desk.ask("PATCH", f"/v1/jobs/{job}", jittery)
    assert (reply.status, reply.field) == (400, "expires_after_ms")
    assert (
        await desk.ask("PATCH", f"/v1/jobs/{job}", {**jittery, "expires_after_ms": 501})
    ).status == 200


@pytest.mark.parametrize("headers", [{}, {"if_match": "*"}])
async def test_a_put_replaces_all_options_but_the_concurrency_key(
    desk, headers: dict[str, str]
) -> None:
    put = await desk.put("nightly", EVERY_MINUTE, concurrency_key="a", requires=["gpu"])
    job = put.body["job_id"]
    other = await desk.put("nightly", EVERY_MINUTE, concurrency_key="b", **headers)
    assert (other.status, other.field) == (409, "queue")
    rest = {"concurrency_key": "a", "tags": ["t"], "expires_after_ms": 7}
    changed = await desk.put("nightly", EVERY_MINUTE, **rest, **headers)
    assert (changed.body["status"], changed.body["version"]) == ("changed", 2)
    shown = await view(desk, job)
    assert {name: shown[name] for name in rest} == rest
    assert shown["requires"] == []
    refused = await desk.put("nightly", EVERY_MINUTE, expires_at=NOON)
    assert (refused.status, refused.field) == (400, "expires_at")


async def test_too_many_different_requirements_are_named(desk) -> None:
    jobs = [{"queue": "q", "requires": [f"host-{number}"]} for number in range(257)]
    results = (await desk.ask("POST", "/v1/jobs/batch", {"jobs": jobs})).body["results"]
    assert [result["status"] for result in results] == ["created"] * 256 + ["refused"]
    problem = results[-1]["problem"]
    assert (problem["status"], problem["errors"][0]["field"]) == (429, "jobs[256].requires")
    job = results[0]["job_id"]
    reply = await desk.ask("PATCH", f"/v1/jobs/{job}", {"requires": ["another"]})
    assert (reply.status, reply.field) == (429, "requires")
    assert int(reply.headers["Retry-After"]) > 0


async def test_lists_are_restricted_to_a_tag(desk) -> None:
    jobs = [await desk.create(tags=tags) for tags in (["a"], ["a", "b"], [], ["b"])]
    listed = (await desk.ask("GET", "/v1/jobs?tag=a")).body["jobs"]
    assert [job["job_id"] for job in listed] == [jobs[1], jobs[0]]
    page = (await desk.ask("GET", "/v1/executions?tag=b&limit=1")).body
    assert [one["job_id"] for one in page["executions"]] == [jobs[3]]
    page = (await desk.ask("GET", f"/v1/executions?tag=b&cursor={page['cursor']}")).body
    assert [one["job_id"] for one in page["executions"]] == [jobs[1]]
    of_job = (await desk.ask("GET", f"/v1/executions?tag=b&job={jobs[0]}")).body
    assert of_job["executions"] == []
    for query in ("tag=", f"tag={'t' * 65}", "tag=a&tag=b"):
        for path in ("/v1/jobs", "/v1/executions"):
            reply = await desk.ask("GET", f"{path}?{query}")
            assert (reply.status, reply.field) == (400, "tag")

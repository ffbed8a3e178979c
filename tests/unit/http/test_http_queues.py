"""Queues over HTTP: what they show, how their settings change, and what a draining one answers."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.cluster.state.operations import Options

QUEUE = "/v1/queues/mail"
DEFAULTS = {
    "name": "mail",
    "state": "active",
    "max_concurrency": None,
    "max_concurrency_per_key": None,
    "rate_limit": None,
    "version": 0,
    "scheduled": 0,
    "leased": 0,
    "dead": 0,
    "ready": 3,
    "oldest_due_ms": 17,
    "waiting_claims": 2,
    "held_back_by": ["paused"],
    "applied_index": 7,
}


async def patch(desk, body: dict[str, Any], **headers: str):
    return await desk.ask("PATCH", QUEUE, body, **headers)


async def test_a_queue_without_settings_of_its_own_shows_the_default(desk) -> None:
    reply = await desk.ask("GET", QUEUE)
    assert (reply.status, reply.headers["ETag"]) == (200, '"0"')
    assert reply.body == DEFAULTS


async def test_what_only_the_leader_knows_is_null_elsewhere(desk) -> None:
    desk.leads = False
    reply = await desk.ask("GET", QUEUE)
    only_here = ("ready", "oldest_due_ms", "waiting_claims", "held_back_by")
    assert [reply.body[name] for name in only_here] == [None] * 4


async def test_a_queue_shows_what_it_holds(desk) -> None:
    desk.log.claimed(options=Options("a"))
    desk.log.create()
    reply = await desk.ask("GET", QUEUE)
    assert (reply.body["scheduled"], reply.body["leased"]) == (1, 1)


async def test_a_patch_changes_what_it_names_and_null_takes_a_bound_away(desk) -> None:
    limit = {"executions": 10, "per_ms": 500}
    reply = await patch(desk, {"max_concurrency": 4, "rate_limit": limit})
    assert (reply.status, reply.headers["ETag"]) == (200, '"1"')
    assert reply.body["rate_limit"] == {**limit, "burst": 10}, "as many as the rate says"
    await patch(desk, {"max_concurrency_per_key": 2, "state": "paused"})
    reply = await patch(desk, {"max_concurrency": None, "rate_limit": None})
    assert reply.body == {
        **DEFAULTS,
        "state": "paused",
        "max_concurrency_per_key": 2,
        "version": 3,
    }
    assert (await desk.ask("GET", QUEUE)).body == reply.body


async def test_a_put_gives_all_settings_and_an_empty_one_the_default(desk) -> None:
    await patch(desk, {"max_concurrency": 4, "state": "draining"})
    reply = await desk.ask("PUT", QUEUE, {"max_concurrency_per_key": 1})
    assert reply.body == {**DEFAULTS, "max_concurrency_per_key": 1, "version": 2}
    reply = await desk.ask("PUT", QUEUE, {})
    assert (reply.body, reply.headers["ETag"]) == (DEFAULTS, '"0"')
    assert not desk.log.machine.configured


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "paused"), ("drain", "draining"), ("resume", "active")]
)
async def test_a_queue_is_paused_drained_and_resumed_and_its_limits_stay(
    desk, verb: str, state: str
) -> None:
    await patch(desk, {"max_concurrency": 4})
    reply = await desk.ask("POST", f"{QUEUE}/{verb}")
    assert (reply.status, reply.body["state"], reply.body["max_concurrency"]) == (200, state, 4)
    again = await desk.ask("POST", f"{QUEUE}/{verb}")
    assert again.body["version"] == reply.body["version"]


async def test_settings_change_at_the_version_asked_for_and_at_no_other(desk) -> None:
    assert (await patch(desk, {"state": "paused"}, if_match='"1"')).status == 412
    assert (await patch(desk, {"state": "paused"}, if_match='"0"')).status == 200
    stale = await patch(desk, {"state": "active"}, if_match='"0"')
    assert (stale.status, stale.body["type"]) == (412, "urn:timeball:problem:precondition-failed")
    assert (await patch(desk, {"state": "active"}, if_match='W/"1"')).status == 412
    assert (await patch(desk, {"state": "active"}, if_match='"7-1"')).status == 412
    assert (await patch(desk, {"max_concurrency": 3}, if_match='"9", "1"')).status == 200
    assert (await desk.ask("POST", f"{QUEUE}/resume", if_match="*")).status == 200
    assert (await desk.ask("PUT", QUEUE, {}, if_match='"2"')).status == 412


async def test_a_version_that_comes_late_is_refused_by_the_log(desk) -> None:
    def meanwhile(_operation: Any) -> None:
        desk.before = lambda _operation: None
        desk.log.apply(type(_operation)("mail", -1, _operation.change.__class__("draining")))

    desk.before = meanwhile
    assert (await patch(desk, {"state": "paused"}, if_match='"0"')).status == 412
    assert desk.log.machine.configured["mail"].settings.state == "draining"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"state": "closed"}, "state"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": 1_000_001}, "max_concurrency"),
        ({"max_concurrency_per_key": True}, "max_concurrency_per_key"),
        ({"rate_limit": {"executions": 0}}, "rate_limit.executions"),
        ({"rate_limit": {"executions": 1, "per_ms": 86_400_001}}, "rate_limit.per_ms"),
        ({"rate_limit": {"executions": 1, "burst": 0}}, "rate_limit.burst"),
        ({"rate_limit": {"per_ms": 1_000}}, "rate_limit.executions"),
        ({"limit": 3}, "limit"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_bad_settings_are_refused_by_name(desk, method, body, field) -> None:
    reply = await desk.ask(method, QUEUE, body)
    assert (reply.status, reply.field) == (400, field)
    assert desk.proposed == []


async def test_a_name_that_no_queue_can_have_is_refused(desk) -> None:
    for method, path in [("GET", ""), ("PUT", ""), ("POST", "/pause")]:
        reply = await desk.ask(
            method, f"/v1/queues/no%20queue{path}", {} if method != "GET" else None
        )
        assert (reply.status, reply.field) == (400, "queue")


async def test_a_queue_outside_of_a_closed_list_is_not_found(desk) -> None:
    desk.services.settings.queues = ["sms"]
    assert (await desk.ask("GET", QUEUE)).status == 404
    assert (await patch(desk, {"state": "paused"})).status == 404


async def test_conditions_that_would_be_ignored_are_refused(desk) -> None:
    reply = await desk.ask("PUT", QUEUE, {}, if_none_match="*")
    assert (reply.status, reply.field) == (400, "if-none-match")


async def test_a_draining_queue_refuses_jobs_by_name_one_by_one(desk) -> None:
    await desk.ask("POST", f"{QUEUE}/drain")
    reply = await desk.ask("POST", "/v1/jobs", {"queue": "mail"})
    assert (reply.status, reply.field) == (409, "queue")
    assert reply.body["type"] == "urn:timeball:problem:queue-draining"
    assert reply.body["outcome"] == "not_applied"
    batch = {"jobs": [{"queue": "sms"}, {"queue": "mail"}]}
    results = (await desk.ask("POST", "/v1/jobs/batch", batch)).body["results"]
    assert [one["status"] for one in results] == ["created", "refused"]
    assert results[1]["problem"]["errors"][0]["field"] == "jobs[1].queue"
    daily = {"type": "every", "interval_ms": 86_400_000}
    assert (await desk.put("nightly", daily, queue="mail")).status == 409


async def test_as_many_queues_as_may_have_settings(desk, monkeypatch) -> None:
    monkeypatch.setattr("timeball.cluster.state.limits.MAX_CONFIGURED_QUEUES", 0)
    reply = await patch(desk, {"state": "paused"})
    assert (reply.status, reply.body["type"]) == (429, "urn:timeball:problem:overloaded")


async def test_queues_are_listed_by_name_page_by_page(desk) -> None:
    for name in ("mail", "sms"):
        desk.log.create(queue=name)
    await desk.ask("POST", "/v1/queues/fax/pause")
    first = (await desk.ask("GET", "/v1/queues?limit=2")).body
    assert [queue["name"] for queue in first["queues"]] == ["fax", "mail"]
    assert first["queues"][0]["state"] == "paused"
    rest = (await desk.ask("GET", f"/v1/queues?limit=2&cursor={first['cursor']}")).body
    assert [queue["name"] for queue in rest["queues"]] == ["sms"]
    assert rest["cursor"] is None
    bad = await desk.ask("GET", "/v1/queues?cursor=%20")
    assert (bad.status, bad.field) == (400, "cursor")

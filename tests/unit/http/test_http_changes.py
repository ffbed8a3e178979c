"""Changes over HTTP: update, put by name, pause, resume, trigger and backfill."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.cluster.state.operations import CancelJobs, Change, UpdateJob

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
EVERY_MINUTE = {"type": "every", "interval_ms": MINUTE_MS}
DAILY = {"type": "every", "interval_ms": DAY_MS}
PAST = "2025-11-30T05:20:00.000Z"  # where the virtual clock begins


async def patch(desk, job: str, body: dict[str, Any], **headers: str):
    return await desk.ask("PATCH", f"/v1/jobs/{job}", body, **headers)


async def view(desk, job: str) -> dict[str, Any]:
    return (await desk.ask("GET", f"/v1/jobs/{job}")).body


async def executions(desk, job: str, state: str = "") -> list[dict[str, Any]]:
    restriction = f"&state={state}" if state else ""
    return (await desk.ask("GET", f"/v1/executions?job={job}{restriction}")).body["executions"]


# --- update --------------------------------------------------------------------------------------


async def test_an_update_changes_what_it_names_and_nothing_else(desk) -> None:
    job = await desk.create(EVERY_MINUTE, payload=1, priority=3, timeout_ms=500)
    reply = await patch(desk, job, {"payload": {"to": "ann"}})
    assert (reply.status, reply.headers["ETag"]) == (200, '"2"')
    assert reply.body == {
        "status": "changed",
        "job_id": job,
        "version": 2,
        "next_fires": [f"2025-11-30T05:2{minute}:00.000Z" for minute in range(1, 6)],
    }
    shown = await view(desk, job)
    assert (shown["payload"], shown["priority"], shown["timeout_ms"]) == ({"to": "ann"}, 3, 500)
    assert shown["version"] == 2


async def test_an_update_can_take_away_what_may_be_absent(desk) -> None:
    job = await desk.create(EVERY_MINUTE, payload=1, timeout_ms=500)
    assert (await patch(desk, job, {"payload": None, "timeout_ms": None})).body["version"] == 2
    shown = await view(desk, job)
    assert (shown["payload"], shown["timeout_ms"]) == (None, None)


async def test_an_update_back_to_the_default_policy_is_one(desk) -> None:
    job = await desk.create(EVERY_MINUTE, retry={"max_attempts": 2})
    await patch(desk, job, {"retry": {}})
    assert (await view(desk, job))["retry"]["max_attempts"] == 5


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"payload": {"b": 2, "a": 1}},
        {"priority": 3, "timeout_ms": None, "retry": {}},
        {"schedule": EVERY_MINUTE},
        {"schedule": {**EVERY_MINUTE, "anchor": PAST, "overlap": "allow"}},
    ],
)
async def test_an_update_that_changes_nothing_says_so_and_keeps_the_version(desk, body) -> None:
    job = await desk.create(EVERY_MINUTE, payload={"b": 2, "a": 1}, priority=3)
    desk.pass_ms(10 * MINUTE_MS)
    reply = await patch(desk, job, body)
    assert (reply.status, reply.body["status"], reply.body["version"]) == (200, "unchanged", 1)
    assert reply.headers["ETag"] == '"1"'


async def test_TIMR_06_frequent_edits_do_not_push_a_long_interval_away(desk) -> None:
    job = await desk.create(DAILY)
    for interval_ms in (DAY_MS, 2 * DAY_MS, DAY_MS, DAY_MS + 1, DAY_MS):
        desk.pass_ms(HOUR_MS)
        await patch(desk, job, {"schedule": {"type": "every", "interval_ms": interval_ms}})
    assert (await view(desk, job))["next_fires"][0] == "2025-12-01T05:20:00.000Z"


async def test_an_anchor_that_is_given_replaces_the_old_one(desk) -> None:
    job = await desk.create(DAILY)
    reply = await patch(desk, job, {"schedule": {**DAILY, "anchor": "2025-11-30T06:00:00Z"}})
    assert reply.body["next_fires"][0] == "2025-11-30T06:00:00.000Z"


async def test_an_interval_in_place_of_a_cron_expression_begins_now(desk) -> None:
    job = await desk.create({"type": "cron", "expression": "@daily"})
    desk.pass_ms(1_000)
    reply = await patch(desk, job, {"schedule": EVERY_MINUTE})
    assert reply.body["next_fires"][0] == "2025-11-30T05:21:01.000Z"


async def test_intervals_of_a_union_keep_their_anchors_by_place(desk) -> None:
    union = {"type": "union", "schedules": [{"type": "every", "interval_ms": HOUR_MS}]}
    job = await desk.create({"type": "every", "interval_ms": HOUR_MS, "anchor": 5_000})
    desk.pass_ms(1_000)
    union["schedules"].append({"type": "every", "interval_ms": DAY_MS})
    await patch(desk, job, {"schedule": union})
    rules = (await view(desk, job))["schedule"]["schedules"]
    assert [rule["anchor"] for rule in rules] == [
        "1970-01-01T00:00:05.000Z",
        "2025-11-30T05:20:01.000Z",
    ]


async def test_a_one_shot_job_is_planned_anew(desk) -> None:
    job = await desk.create({"type": "after", "delay_ms": HOUR_MS})
    reply = await patch(desk, job, {"schedule": {"type": "at", "time": "2030-01-01T00:00:00Z"}})
    assert reply.body["status"] == "changed"
    assert (await view(desk, job))["next_fires"] == ["2030-01-01T00:00:00.000Z"]
    await patch(desk, job, {"schedule": {"type": "after", "delay_ms": MINUTE_MS}})
    assert (await view(desk, job))["next_fires"] == ["2025-11-30T05:21:00.000Z"]


async def test_what_a_job_is_not_conflicts(desk) -> None:
    once = await desk.create({"type": "after", "delay_ms": HOUR_MS})
    again = await desk.create(EVERY_MINUTE)
    for job, schedule in ((once, EVERY_MINUTE), (again, {"type": "after", "delay_ms": 1})):
        reply = await patch(desk, job, {"schedule": schedule})
        assert (reply.status, reply.field) == (409, "schedule")
        assert reply.body["outcome"] == "not_applied"


async def test_a_one_shot_job_that_has_begun_is_not_planned_anew(desk, log) -> None:
    job = await desk.create()
    (execution,) = await executions(desk, job)
    log.claim(tuple(map(int, execution["execution_id"].split("-"))))
    reply = await patch(desk, job, {"schedule": {"type": "after", "delay_ms": 1}})
    assert (reply.status, reply.field) == (409, "schedule")


async def test_a_job_that_has_ended_is_not_changed(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    await desk.ask("POST", f"/v1/jobs/{job}/cancel")
    for method, path, body in (
        ("PATCH", "", {"payload": 1}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/trigger", None),
        ("POST", "/backfill", {"start": PAST, "until": PAST}),
    ):
        reply = await desk.ask(method, f"/v1/jobs/{job}{path}", body)
        assert (reply.status, reply.body["detail"]) == (409, "the job has ended")


@pytest.mark.parametrize("job", ["1", "x", "0x1", "9" * 17, "%00"])
async def test_there_is_no_such_job(desk, job: str) -> None:
    for method, path, body in (
        ("PATCH", "", {"payload": 1}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/trigger", None),
        ("POST", "/backfill", {"start": 0, "until": 1}),
        ("GET", "/explain", None),
    ):
        reply = await desk.ask(method, f"/v1/jobs/{job}{path}", body)
        assert (reply.status, reply.field) == (404, "job_id")


async def test_that_a_job_is_not_there_is_said_only_with_certainty(desk) -> None:
    await patch(desk, "1", {"payload": 1})
    assert desk.replica.strong_reads == 1


# --- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition", ["*", '"1"', '"7", "1"', '"x" , W/"2" ,, "1"', '"1-1", "1"', '\t"1" ']
)
async def test_a_change_upon_the_version_asked_for_is_made(desk, condition: str) -> None:
    job = await desk.create(EVERY_MINUTE)
    assert (await patch(desk, job, {"payload": 1}, if_match=condition)).status == 200


@pytest.mark.parametrize(
    "condition", ['"2"', 'W/"1"', '"01"', '"1-1"', '""', '"x"', '"2", W/"1"', '"' + "9" * 16 + '"']
)
async def test_a_change_upon_another_version_is_not(desk, condition: str) -> None:
    job = await desk.create(EVERY_MINUTE)
    reply = await patch(desk, job, {"payload": 1}, if_match=condition)
    assert (reply.status, reply.body["type"]) == (412, "urn:timeball:problem:precondition-failed")
    assert "version 1" in reply.body["detail"]
    assert reply.body["outcome"] == "not_applied"
    assert (await view(desk, job))["payload"] is None


@pytest.mark.parametrize(
    "condition",
    ["1", '"1', '1"', '"1" "2"', "**", '* , "1"', 'w/"1"', '"a b"', "", '"1";', '"\x7f"'],
)
async def test_a_condition_that_is_none_is_refused(desk, condition: str) -> None:
    job = await desk.create(EVERY_MINUTE)
    reply = await patch(desk, job, {"payload": 1}, if_match=condition)
    if condition == "":
        assert reply.status == 412  # a list of nothing: no version matches
    else:
        assert (reply.status, reply.field) == (400, "if-match")


async def test_the_log_decides_at_which_version_a_change_comes(desk) -> None:
    job = await desk.create(EVERY_MINUTE)

    def somebody_else(_operation: Any) -> None:
        desk.before = lambda _operation: None
        desk.log.apply(UpdateJob(int(job), 0, Change(payload=b"\x09")))

    desk.before = somebody_else
    reply = await patch(desk, job, {"payload": 1}, if_match='"1"')
    assert (reply.status, (await view(desk, job))["payload"]) == (412, 9)


async def test_a_version_that_this_node_has_not_seen_yet_is_left_to_the_log(desk) -> None:
    job = await desk.create(EVERY_MINUTE)

    def somebody_else(_operation: Any) -> None:
        desk.before = lambda _operation: None
        desk.log.apply(UpdateJob(int(job), 0, Change(payload=b"\x09")))

    desk.before = somebody_else
    assert (await patch(desk, job, {"payload": 1}, if_match='"2"')).body["version"] == 3


async def test_a_condition_is_never_ignored(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    reply = await patch(desk, job, {"payload": 1}, if_none_match="*")
    assert (reply.status, reply.field) == (400, "if-none-match")
    for method, verb in (
        ("POST", "/pause"), ("POST", "/resume"), ("POST", "/trigger"), ("POST", "/cancel"),
        ("DELETE", ""),
    ):  # fmt: skip
        reply = await desk.ask(method, f"/v1/jobs/{job}{verb}", if_match='"1"')
        assert (reply.status, reply.field) == (400, "if-match")


# --- by name -------------------------------------------------------------------------------------


async def test_a_put_creates_then_changes_then_changes_nothing(desk) -> None:
    created = await desk.put("nightly", DAILY, payload=1)
    job = created.body["job_id"]
    assert (created.status, created.body["status"], created.body["version"]) == (201, "created", 1)
    assert created.headers["Location"] == f"/v1/jobs/{job}"
    assert created.headers["ETag"] == f'"{job}-1"'
    changed = await desk.put("nightly", DAILY, payload=2)
    assert (changed.status, changed.body["status"], changed.body["version"]) == (200, "changed", 2)
    assert changed.body["job_id"] == job
    same = await desk.put("nightly", DAILY, payload=2)
    assert (same.status, same.body["status"], same.headers["ETag"]) == (
        200, "unchanged", f'"{job}-2"',
    )  # fmt: skip
    named = await desk.ask("GET", "/v1/jobs/by-name/nightly")
    assert (named.body["job_id"], named.headers["ETag"]) == (job, f'"{job}-2"')
    assert named.body["timetable"]["name"] == "nightly"
    assert (await desk.ask("GET", f"/v1/jobs/{job}")).headers["ETag"] == '"2"'


async def test_RECU_06_a_put_again_and_again_keeps_its_interval(desk) -> None:
    await desk.put("nightly", DAILY)
    for payload in range(100):
        desk.pass_ms(10)
        assert (await desk.put("nightly", DAILY, payload=payload)).status == 200
    named = (await desk.ask("GET", "/v1/jobs/by-name/nightly")).body
    assert named["next_fires"][0] == "2025-12-01T05:20:00.000Z"
    desk.pass_ms(DAY_MS)
    assert len(await executions(desk, named["job_id"])) == 2  # that one, and the next


async def test_RECU_06_a_job_put_again_after_it_was_cancelled_starts_clean(desk) -> None:
    first = (await desk.put("nightly", DAILY, payload=1)).body["job_id"]
    await desk.ask("DELETE", f"/v1/jobs/{first}")
    assert (await desk.ask("GET", "/v1/jobs/by-name/nightly")).status == 404
    second = await desk.put("nightly", EVERY_MINUTE, payload=2)
    assert second.status == 201
    assert second.body["version"] == 1
    assert second.body["job_id"] != first
    (execution,) = await executions(desk, second.body["job_id"])
    assert execution["state"] == "scheduled"


async def test_a_tag_of_an_earlier_job_of_the_name_does_not_match_the_later(desk) -> None:
    first = await desk.put("nightly", DAILY)
    await desk.ask("DELETE", f"/v1/jobs/{first.body['job_id']}")
    await desk.put("nightly", DAILY, payload="of somebody else")
    reply = await desk.put("nightly", DAILY, payload=2, if_match=first.headers["ETag"])
    assert reply.status == 412


async def test_a_put_upon_a_version(desk) -> None:
    job = (await desk.put("nightly", DAILY)).body["job_id"]
    for condition, status in (
        (f'"{job}-1"', 200), ('"2"', 200), ("*", 200), ('"1"', 412), (f'"{job}-9"', 412),
        ('"9-4"', 412), ('W/"4"', 412),
    ):  # fmt: skip
        payload = len(desk.proposed)
        reply = await desk.put("nightly", DAILY, payload=payload, if_match=condition)
        assert reply.status == status, condition


@pytest.mark.parametrize("condition", ["*", '"1"'])
async def test_a_put_upon_a_job_that_is_not_there_creates_none(desk, condition: str) -> None:
    reply = await desk.put("nightly", DAILY, if_match=condition)
    assert (reply.status, desk.replica.strong_reads) == (412, 1)
    assert not desk.proposed


async def test_a_put_of_what_must_be_new(desk) -> None:
    assert (await desk.put("nightly", DAILY, if_none_match="*")).status == 201
    reply = await desk.put("nightly", DAILY, payload=2, if_none_match="*")
    assert (reply.status, reply.body["detail"]) == (412, "the job is at version 1")
    assert (await desk.put("nightly", DAILY)).body["status"] == "unchanged"
    reply = await desk.put("nightly", DAILY, if_none_match='"1"')
    assert (reply.status, reply.field) == (400, "if-none-match")
    reply = await desk.put("nightly", DAILY, if_match='"1"', if_none_match="*")
    assert (reply.status, reply.field) == (400, "if-none-match")


async def test_of_two_puts_of_what_must_be_new_one_creates(desk) -> None:
    def somebody_else(operation: Any) -> None:
        desk.before = lambda _operation: None
        desk.log.apply(operation)

    desk.before = somebody_else
    assert (await desk.put("nightly", DAILY, if_none_match="*")).status == 412


async def test_a_put_upon_a_job_that_ends_under_way_creates_none(desk) -> None:
    job = (await desk.put("nightly", DAILY)).body["job_id"]

    def somebody_else(_operation: Any) -> None:
        desk.before = lambda _operation: None
        desk.log.apply(CancelJobs([int(job)]))

    desk.before = somebody_else
    assert (await desk.put("nightly", DAILY, payload=2, if_match="*")).status == 412


@pytest.mark.parametrize("headers", [{}, {"if_match": "*"}])
async def test_the_queue_and_the_partition_key_stay(desk, headers: dict[str, str]) -> None:
    await desk.put("nightly", DAILY, queue="mail", partition_key="a")
    for rest in ({"queue": "other", "partition_key": "a"}, {"queue": "mail"}):
        reply = await desk.put("nightly", DAILY, **rest, **headers)
        assert (reply.status, reply.field) == (409, "queue")


@pytest.mark.parametrize("name", ["%00", "a%0A", "-a", "a b", "x" * 65, "%2e%2e%2fetc", "é"])
async def test_a_name_that_cannot_be_is_refused(desk, name: str) -> None:
    reply = await desk.put(name, DAILY)
    assert (reply.status, reply.field) == (400, "name")
    reply = await desk.ask("GET", f"/v1/jobs/by-name/{name}")
    assert (reply.status, reply.field) == (404, "name")


@pytest.mark.parametrize("name", ["cancel", "pause", "explain", "by-name", "trigger", "1"])
async def test_a_job_may_be_named_like_a_part_of_a_path(desk, name: str) -> None:
    job = (await desk.put(name, DAILY)).body["job_id"]
    assert (await desk.ask("GET", f"/v1/jobs/by-name/{name}")).body["job_id"] == job
    assert (await desk.put(name, DAILY)).body["status"] == "unchanged"


async def test_a_put_needs_a_timetable(desk) -> None:
    for schedule in (None, {"type": "at", "time": 1}, {"type": "after", "delay_ms": 1}):
        reply = await desk.put("nightly", schedule)
        assert (reply.status, reply.field.split(".")[0]) == (400, "schedule")


# --- pause and resume ----------------------------------------------------------------------------


async def test_a_pause_withdraws_what_is_to_come_and_is_seen(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    reply = await desk.ask("POST", f"/v1/jobs/{job}/pause", {"reason": "the mail is down"})
    assert (reply.status, reply.body["status"], reply.body["next_fires"]) == (200, "changed", [])
    assert reply.headers["ETag"] == '"1"'
    shown = await view(desk, job)
    assert shown["timetable"]["paused"] == {"since_at": PAST, "reason": "the mail is down"}
    assert (shown["next_fires"], shown["execution_counts"]) == ([], {})
    again = await desk.ask("POST", f"/v1/jobs/{job}/pause")
    assert again.body["status"] == "unchanged"
    assert (await view(desk, job))["timetable"]["paused"]["reason"] == "the mail is down"


@pytest.mark.parametrize(("body", "runs"), [(None, 0), ({}, 0), ({"missed": "catch_up"}, 1)])
async def test_a_resume_goes_by_what_it_says_of_the_missed(desk, body: Any, runs: int) -> None:
    job = await desk.create(EVERY_MINUTE)
    await desk.ask("POST", f"/v1/jobs/{job}/pause")
    desk.pass_ms(10 * MINUTE_MS + 30_000)
    reply = await desk.ask("POST", f"/v1/jobs/{job}/resume", body)
    assert reply.body["status"] == "changed"
    assert reply.body["next_fires"][0] == "2025-11-30T05:31:00.000Z"
    desk.pass_ms(0)
    due = [execution for execution in await executions(desk, job) if execution["due"]]
    assert len(due) == runs
    again = await desk.ask("POST", f"/v1/jobs/{job}/resume")
    assert again.body["status"] == "unchanged"


async def test_a_one_shot_job_has_no_timetable(desk) -> None:
    job = await desk.create({"type": "after", "delay_ms": HOUR_MS})
    for method, path, body in (
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/trigger", None),
        ("POST", "/backfill", {"start": PAST, "until": PAST}),
        ("GET", "/explain", None),
    ):
        reply = await desk.ask(method, f"/v1/jobs/{job}{path}", body)
        assert (reply.status, reply.field) == (409, "job_id")
        assert "runs once" in reply.body["detail"]


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("pause", {"reason": "x" * 501}, "reason"),
        ("pause", {"why": ""}, "why"),
        ("resume", {"missed": "all"}, "missed"),
        ("trigger", {"payload": 1}, "payload"),
        ("backfill", {"start": 0}, "until"),
        ("backfill", {"start": 5, "until": 4}, "until"),
        ("backfill", {"start": PAST, "until": "2025-11-30T05:20:00.001Z"}, "until"),
        ("backfill", {"start": -1, "until": 4}, "start"),
        ("backfill", {"start": "x\0", "until": 4}, "start"),
    ],
)
async def test_a_body_that_cannot_be_is_refused(desk, verb: str, body: Any, field: str) -> None:
    job = await desk.create(EVERY_MINUTE)
    proposed = len(desk.proposed)
    reply = await desk.ask("POST", f"/v1/jobs/{job}/{verb}", body)
    assert (reply.status, reply.field) == (400, field)
    assert len(desk.proposed) == proposed


# --- trigger and backfill ------------------------------------------------------------------------


async def test_a_trigger_makes_one_now_and_does_not_move_the_timetable(desk) -> None:
    job = await desk.create(DAILY)
    desk.pass_ms(1_234)
    reply = await desk.ask("POST", f"/v1/jobs/{job}/trigger")
    identity = reply.body["execution_id"]
    assert (reply.status, reply.body["status"]) == (201, "created")
    assert reply.headers["Location"] == f"/v1/executions/{identity}"
    execution = (await desk.ask("GET", f"/v1/executions/{identity}")).body
    assert (execution["origin"], execution["due"]) == ("trigger", True)
    assert (await view(desk, job))["next_fires"][0] == "2025-12-01T05:20:00.000Z"
    (planned,) = [one for one in await executions(desk, job) if not one["due"]]
    assert planned["origin"] == "timetable"


async def test_a_trigger_is_repeatable(desk) -> None:
    job = await desk.create(DAILY)
    target = f"/v1/jobs/{job}/trigger"
    first = await desk.ask("POST", target, timeball_request_id="t")
    desk.pass_ms(5)
    again = await desk.ask("POST", target, timeball_request_id="t")
    assert (again.status, again.body["status"]) == (200, "duplicate")
    assert again.body["execution_id"] == first.body["execution_id"]
    other = await desk.create(DAILY)
    reply = await desk.ask("POST", f"/v1/jobs/{other}/trigger", timeball_request_id="t")
    assert (reply.status, reply.field) == (422, "request_id")


async def test_a_trigger_is_subject_to_the_overlap_rule(desk) -> None:
    job = await desk.create({**DAILY, "overlap": "skip"})
    await desk.ask("POST", f"/v1/jobs/{job}/trigger")
    desk.pass_ms(1)
    reply = await desk.ask("POST", f"/v1/jobs/{job}/trigger")
    assert (reply.status, reply.body["status"]) == (200, "skipped")
    skipped = (await desk.ask("GET", f"/v1/executions/{reply.body['execution_id']}")).body
    assert skipped["state"] == "skipped"


async def test_a_backfill_answers_what_it_made_and_what_was_there(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    desk.pass_ms(2 * MINUTE_MS)
    body = {"start": PAST, "until": "2025-11-30T05:22:00Z"}
    reply = await desk.ask("POST", f"/v1/jobs/{job}/backfill", body)
    base = 1_764_480_000_000
    assert reply.body == {
        "job_id": job,
        "created": [f"{job}-{base}"],
        "existing": [f"{job}-{base + MINUTE_MS}", f"{job}-{base + 2 * MINUTE_MS}"],
    }
    again = (await desk.ask("POST", f"/v1/jobs/{job}/backfill", body)).body
    assert (again["created"], len(again["existing"])) == ([], 3)
    one = (await desk.ask("GET", f"/v1/executions/{job}-{base}")).body
    assert (one["origin"], one["due"]) == ("backfill", True)


async def test_a_backfill_of_too_much_says_how_far_it_would_have_come(desk) -> None:
    job = await desk.create({**EVERY_MINUTE, "anchor": 0})
    proposed = len(desk.proposed)
    reply = await desk.ask("POST", f"/v1/jobs/{job}/backfill", {"start": 0, "until": PAST})
    assert (reply.status, reply.field) == (400, "until")
    assert "1970-01-01T16:39:00.000Z" in reply.body["detail"]
    assert len(desk.proposed) == proposed
    whole = {"start": 0, "until": "1970-01-01T16:39:00.000Z"}
    reply = await desk.ask("POST", f"/v1/jobs/{job}/backfill", whole)
    assert (reply.status, len(reply.body["created"])) == (200, 1_000)


async def test_a_backfill_names_its_times_anew_when_the_job_is_edited_meanwhile(desk) -> None:
    job = await desk.create({**EVERY_MINUTE, "anchor": 0})
    hourly = {"type": "every", "interval_ms": HOUR_MS, "anchor": 0}

    async def edit() -> None:
        await patch(desk, job, {"schedule": hourly})

    edits = [edit()]

    def somebody_else(_operation: Any) -> None:
        if edits:
            with pytest.raises(StopIteration):
                edits.pop().send(None)

    desk.before = somebody_else
    body = {"start": 0, "until": 2 * HOUR_MS}
    reply = await desk.ask("POST", f"/v1/jobs/{job}/backfill", body)
    assert reply.body["created"] == [f"{job}-{hour * HOUR_MS}" for hour in range(3)]


async def test_a_backfill_of_a_job_that_is_edited_all_the_time_gives_up(desk) -> None:
    job = await desk.create({**EVERY_MINUTE, "anchor": 0})

    def somebody_else(_operation: Any) -> None:
        payload = len(desk.proposed) % 100
        desk.log.apply(UpdateJob(int(job), 0, Change(payload=bytes([payload]))))

    desk.before = somebody_else
    reply = await desk.ask("POST", f"/v1/jobs/{job}/backfill", {"start": 0, "until": 1})
    assert (reply.status, reply.body["type"]) == (503, "urn:timeball:problem:overloaded")


async def test_RECU_06_a_retry_keeps_the_payload_that_it_began_with(desk, log) -> None:
    job = await desk.create(EVERY_MINUTE, payload="old", retry={"max_attempts": 3})
    desk.pass_ms(MINUTE_MS)
    hold = (int(job), log.now_ms)
    (token,) = log.claim(hold)
    await patch(desk, job, {"payload": "new", "retry": {"max_attempts": 9}})
    log.fail(hold, token)
    shown = (await desk.ask("GET", f"/v1/executions/{job}-{log.now_ms}")).body
    assert (shown["state"], shown["max_attempts"]) == ("retry", 3)
    (planned,) = await executions(desk, job, "scheduled")
    assert planned["max_attempts"] == 9

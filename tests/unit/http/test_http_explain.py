"""Explain and preview: what became of a job's nominal times, and which are to come."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.operations import ParkTimetables

MINUTE_MS = 60_000
DAY_MS = 86_400_000
EVERY_MINUTE = {"type": "every", "interval_ms": MINUTE_MS}


async def explain(desk, job: str, query: str = "") -> dict[str, Any]:
    reply = await desk.ask("GET", f"/v1/jobs/{job}/explain{query}")
    assert reply.status == 200, reply
    return reply.body


def fates(explained: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    return [
        (fate["first_at"][11:16], fate["fate"], fate["count"], fate["reason"])
        for fate in explained["past"]
    ]


async def preview(desk, schedule: Any, after: Any = None, count: int = 5) -> list[dict[str, Any]]:
    body = {"schedule": schedule, "count": count, **({} if after is None else {"after": after})}
    reply = await desk.ask("POST", "/v1/schedules/preview", body)
    assert reply.status == 200, reply
    return reply.body["fires"]


async def test_a_new_job_has_one_occurrence_that_is_planned(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    explained = await explain(desk, job)
    assert fates(explained) == [("05:21", "planned", 1, "")]
    assert explained["past"][0]["state"] == "scheduled"
    assert [fire["nominal_at"][11:16] for fire in explained["next"]] == [
        "05:21", "05:22", "05:23", "05:24", "05:25",
    ]  # fmt: skip
    assert (explained["state"], explained["version"]) == ("active", 1)
    assert explained["applied_index"] == 7


async def test_what_ran_what_was_folded_and_what_was_asked_for_newest_first(desk, log) -> None:
    job = await desk.create(EVERY_MINUTE)
    desk.pass_ms(MINUTE_MS)
    hold = (int(job), log.now_ms)
    (token,) = log.claim(hold)
    log.succeed(hold, token)
    desk.pass_ms(10 * MINUTE_MS + 30_000)
    await desk.ask("POST", f"/v1/jobs/{job}/trigger")
    body = {"start": "2025-11-30T05:19:00Z", "until": "2025-11-30T05:20:00Z"}
    await desk.ask("POST", f"/v1/jobs/{job}/backfill", body)
    explained = await explain(desk, job)
    assert fates(explained) == [
        ("05:32", "planned", 1, ""),
        ("05:31", "triggered", 1, ""),
        ("05:31", "fired", 1, ""),
        ("05:23", "coalesced", 8, "catch_up"),
        ("05:22", "coalesced", 1, "catch_up"),
        ("05:21", "fired", 1, ""),
        ("05:20", "backfilled", 1, ""),
    ]
    states = [fate["state"] for fate in explained["past"]]
    assert states == [
        "scheduled", "scheduled", "scheduled", None, "skipped", "succeeded", "scheduled",
    ]  # fmt: skip
    assert explained["timetable"]["coalesced"] == 9
    assert fates(await explain(desk, job, "?limit=2")) == fates(explained)[:2]


async def test_what_overlaps_is_skipped_and_says_why(desk) -> None:
    job = await desk.create({**EVERY_MINUTE, "overlap": "skip"})
    desk.pass_ms(MINUTE_MS)
    desk.pass_ms(MINUTE_MS)
    explained = await explain(desk, job)
    assert fates(explained) == [
        ("05:23", "planned", 1, ""),
        ("05:22", "skipped", 1, "overlap"),
        ("05:21", "fired", 1, ""),
    ]
    assert explained["past"][1]["execution_id"] is not None
    assert explained["timetable"]["skipped"] == 1


async def test_what_fell_into_a_pause_is_skipped(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    await desk.ask("POST", f"/v1/jobs/{job}/pause", {"reason": "why not"})
    explained = await explain(desk, job)
    assert (explained["past"], explained["next"]) == ([], [])
    assert explained["timetable"]["paused"]["reason"] == "why not"
    desk.pass_ms(3 * MINUTE_MS + 30_000)
    await desk.ask("POST", f"/v1/jobs/{job}/resume")
    desk.pass_ms(0)
    assert fates(await explain(desk, job)) == [
        ("05:24", "planned", 1, ""),
        ("05:21", "skipped", 3, "paused"),
    ]


async def test_a_parked_timetable_says_so(desk, log) -> None:
    job = await desk.create(EVERY_MINUTE)
    log.apply(ParkTimetables([(int(job), 1, "it fails")]))
    explained = await explain(desk, job)
    assert (explained["timetable"]["parked"], explained["next"]) == ("it fails", [])
    assert (await desk.ask("GET", f"/v1/jobs/{job}")).body["next_fires"] == []


async def test_a_timetable_ends_with_its_last_run(desk) -> None:
    job = await desk.create({**EVERY_MINUTE, "max_runs": 3})
    for left in (3, 2, 1, 0):
        explained = await explain(desk, job)
        shown = (await desk.ask("GET", f"/v1/jobs/{job}")).body
        assert len(explained["next"]) == len(shown["next_fires"]) == left
        desk.pass_ms(MINUTE_MS)


async def test_jitter_tells_when_each_is_due(desk) -> None:
    job = await desk.create({**EVERY_MINUTE, "jitter_ms": 50_000})
    offset_ms = jitter_offset(int(job), 50_000)
    explained = await explain(desk, job, "?fires=2")
    (execution,) = (await desk.ask("GET", f"/v1/executions?job={job}")).body["executions"]
    assert explained["next"][0]["due_at"] == execution["due_at"]
    assert offset_ms > 0
    desk.log.pass_ms(MINUTE_MS)  # its nominal time has come, and it is not due
    again = await explain(desk, job, "?fires=2")
    assert (again["past"][0]["fate"], again["next"]) == ("planned", explained["next"])


async def test_excluded_times_stand_between_the_others_and_do_not_count_as_runs(desk) -> None:
    schedule = {
        "type": "cron",
        "expression": "0 12 * * *",
        "max_runs": 2,
        "exclude": [{"type": "dates", "dates": ["2025-12-01"]}],
    }
    job = await desk.create(schedule)
    fires = (await explain(desk, job))["next"]
    told = [(fire["nominal_at"][8:10], fire["excluded"]) for fire in fires]
    assert told[:3] == [("30", False), ("01", True), ("02", False)]
    (why,) = fires[1]["why"]
    assert why.startswith("excluded by exclude[0]")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?limit=0", "limit"), ("?limit=1001", "limit"), ("?limit=x", "limit"),
        ("?fires=101", "fires"), ("?fires=-1", "fires"), ("?fires=", "fires"),
        ("?fires=99999999999", "fires"), ("?min_index=x", "min_index"),
        ("?consistency=some", "consistency"), ("?count=1", "count"),
    ],
)  # fmt: skip
async def test_a_parameter_that_cannot_be_is_refused(desk, query: str, field: str) -> None:
    job = await desk.create(EVERY_MINUTE)
    reply = await desk.ask("GET", f"/v1/jobs/{job}/explain{query}")
    assert (reply.status, reply.field) == (400, field)


async def test_an_explanation_can_be_as_fresh_as_asked_for(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    await explain(desk, job, "?consistency=strong&limit=1&fires=0")
    assert desk.replica.strong_reads == 1


async def test_any_node_explains_and_only_a_leader_changes(desk) -> None:
    job = await desk.create(EVERY_MINUTE)
    desk.leads = False
    await explain(desk, job)
    await preview(desk, EVERY_MINUTE)
    for method, path, body in (
        ("PATCH", f"{job}", {"payload": 1}),
        ("PUT", "by-name/nightly", {"schedule": EVERY_MINUTE}),
        ("POST", f"{job}/pause", None),
        ("POST", f"{job}/resume", None),
        ("POST", f"{job}/trigger", None),
        ("POST", f"{job}/backfill", {"start": 0, "until": 1}),
    ):
        reply = await desk.ask(method, f"/v1/jobs/{path}", body)
        assert (reply.status, reply.body["type"]) == (503, "urn:timeball:problem:no-leader")
        assert reply.body["outcome"] == "not_applied"


# --- preview -------------------------------------------------------------------------------------


async def test_a_preview_creates_nothing(desk) -> None:
    await preview(desk, EVERY_MINUTE)
    assert not desk.proposed
    assert (await desk.ask("GET", "/v1/jobs")).body["jobs"] == []


async def test_CRON_01_a_preview_explains_what_the_clocks_do(desk) -> None:
    schedule = {"type": "cron", "expression": "30 2 * * *", "time_zone": "America/New_York"}
    fires = await preview(desk, schedule, "2026-03-07T12:00:00Z", 3)
    assert [fire["nominal_at"] for fire in fires] == [
        "2026-03-08T07:00:00.000Z", "2026-03-09T06:30:00.000Z", "2026-03-10T06:30:00.000Z",
    ]  # fmt: skip
    assert fires[0]["local"] == "2026-03-08T03:00:00-04:00"
    assert "02:30" in " ".join(fires[0]["why"])
    assert fires[2]["why"] == []


async def test_a_preview_of_a_union_names_the_rule_as_it_was_written(desk) -> None:
    union = {
        "type": "union",
        "schedules": [{"type": "at", "times": [1_900_000_000_000]}, {**EVERY_MINUTE, "anchor": 0}],
    }
    (fire,) = await preview(desk, union, count=1)
    assert fire["why"] == ["named by schedules[1]"]


async def test_a_preview_of_one_instant(desk) -> None:
    (fire,) = await preview(desk, {"type": "after", "delay_ms": MINUTE_MS})
    assert (fire["nominal_at"], fire["due_at"]) == ("2025-11-30T05:21:00.000Z",) * 2
    (fire,) = await preview(desk, {"type": "at", "time": 0})
    assert fire["nominal_at"] == "1970-01-01T00:00:00.001Z"
    assert fire["due_at"] == "2025-11-30T05:20:00.000Z"
    assert fire["why"] == ["it is past: due at once"]


async def test_a_preview_tells_the_most_that_jitter_can_do(desk) -> None:
    (fire,) = await preview(desk, {**EVERY_MINUTE, "jitter_ms": 5_000}, count=1)
    assert "up to 5000 ms later" in fire["why"][0]


async def test_a_preview_stops_where_the_runs_end(desk) -> None:
    assert len(await preview(desk, {**EVERY_MINUTE, "max_runs": 2})) == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "schedule"),
        ({"schedule": EVERY_MINUTE, "count": 0}, "count"),
        ({"schedule": EVERY_MINUTE, "count": 101}, "count"),
        ({"schedule": EVERY_MINUTE, "after": "now"}, "after"),
        ({"schedule": EVERY_MINUTE, "after": -1}, "after"),
        ({"schedule": {**EVERY_MINUTE, "until": 1_900_000_000_000}, "after": 1_900_000_000_000},
         "schedule.until"),
        ({"schedule": EVERY_MINUTE, "after": 253_402_300_799_999}, "schedule"),
    ],
)  # fmt: skip
async def test_a_preview_that_cannot_be_is_refused(desk, body: Any, field: str) -> None:
    reply = await desk.ask("POST", "/v1/schedules/preview", body)
    assert (reply.status, reply.field) == (400, field), reply

"""Schedules on the wire: what is read, what is shown again, and what is refused by which name."""

from __future__ import annotations

from typing import Any

import pytest

from timeball.client import messages
from timeball.cluster.http.schedule_views import show_timetable
from timeball.cluster.http.schedules import read_schedule

DAY_MS = 86_400_000
DEFAULTS = {
    "start": None,
    "until": None,
    "max_runs": None,
    "jitter_ms": 0,
    "exclude": [],
    "catch_up": "one",
    "catch_up_window_ms": None,
    "catch_up_limit": 1_000,
    "overlap": "allow",
    "pause_on_failure": False,
}


def cron(expression: str, time_zone: str | None = None, **rest: Any) -> dict[str, Any]:
    zone = {} if time_zone is None else {"time_zone": time_zone}
    return {"type": "cron", "expression": expression, **zone, **rest}


async def test_a_view_shows_every_default(desk) -> None:
    job = await desk.create(cron("@daily"))
    shown = (await desk.ask("GET", f"/v1/jobs/{job}")).body["schedule"]
    assert shown == {"type": "cron", "expression": "@daily", "time_zone": "UTC", **DEFAULTS}


async def test_an_interval_shows_the_anchor_that_it_began_with(desk) -> None:
    job = await desk.create({"type": "every", "interval_ms": 60_000})
    shown = (await desk.ask("GET", f"/v1/jobs/{job}")).body["schedule"]
    assert shown == {
        "type": "every",
        "interval_ms": 60_000,
        "anchor": "2025-11-30T05:20:00.000Z",
        **DEFAULTS,
    }


async def test_everything_that_a_timetable_can_have_is_shown_as_it_is_understood(desk) -> None:
    job = await desk.create(
        {
            "type": "union",
            "schedules": [
                {"type": "at", "times": [1_800_000_060_000, "2027-01-15T08:00:00Z"]},
                {"type": "every", "interval_ms": DAY_MS, "anchor": "2025-01-01T01:00:00+01:00"},
                cron("0 9 * * mon-fri", "Europe/Berlin"),
            ],
            "start": "2026-01-01T00:00:00Z",
            "until": 1_900_000_000_000,
            "max_runs": 7,
            "jitter_ms": 500,
            "exclude": [
                {
                    "type": "dates",
                    "dates": ["2026-12-26", "2026-12-24/2026-12-25", "2027-05-01"],
                },
                {"type": "window", "expression": "* 0-5 * * *", "time_zone": "UTC"},
            ],
            "catch_up": "all",
            "catch_up_window_ms": 1_000,
            "catch_up_limit": 5,
            "overlap": "buffer_one",
            "pause_on_failure": True,
        }
    )
    shown = (await desk.ask("GET", f"/v1/jobs/{job}")).body["schedule"]
    assert shown == {
        "type": "union",
        "schedules": [
            {"type": "at", "times": ["2027-01-15T08:00:00.000Z", "2027-01-15T08:01:00.000Z"]},
            {"type": "every", "interval_ms": DAY_MS, "anchor": "2025-01-01T00:00:00.000Z"},
            {"type": "cron", "expression": "0 9 * * mon-fri", "time_zone": "Europe/Berlin"},
        ],
        "start": "2026-01-01T00:00:00.000Z",
        "until": "2030-03-17T17:46:40.000Z",
        "max_runs": 7,
        "jitter_ms": 500,
        "exclude": [
            {
                "type": "dates",
                "dates": ["2026-12-24/2026-12-26", "2027-05-01"],
                "time_zone": "Europe/Berlin",
            },
            {"type": "window", "expression": "* 0-5 * * *", "time_zone": "UTC"},
        ],
        "catch_up": "all",
        "catch_up_window_ms": 1_000,
        "catch_up_limit": 5,
        "overlap": "buffer_one",
        "pause_on_failure": True,
    }


async def test_what_is_shown_can_be_asked_for_and_means_the_same(desk) -> None:
    for schedule in (
        cron("0 9 * * *", "Europe/Berlin", exclude=[{"type": "dates", "dates": ["2026-12-24"]}]),
        {"type": "every", "interval_ms": 1_000, "max_runs": 3},
        {"type": "union", "schedules": [{"type": "at", "times": [1_900_000_000_000, 1]}]},
    ):
        job = await desk.create(schedule)
        shown = (await desk.ask("GET", f"/v1/jobs/{job}")).body["schedule"]
        reply = await desk.ask("PATCH", f"/v1/jobs/{job}", {"schedule": shown})
        assert (reply.status, reply.body["status"]) == (200, "unchanged")


def meaning(schedule: Any, now_ms: int) -> tuple[Any, ...]:
    return read_schedule(schedule, "", now_ms).meaning


def test_the_same_request_has_the_same_meaning_whenever_it_comes() -> None:
    every = messages.Every(interval_ms=1_000)
    assert meaning(every, 1_000_000) == meaning(every, 2_000_000)
    assert meaning(every, 1_000_000) != meaning(messages.Every(interval_ms=1_001), 1_000_000)


def test_one_instant_written_in_two_ways_means_the_same() -> None:
    one = messages.Every(interval_ms=1_000, anchor=0, until="2030-01-01T00:00:00Z")
    other = messages.Every(
        interval_ms=1_000, anchor="1970-01-01T01:00:00+01:00", until=1_893_456_000_000
    )
    assert meaning(one, 1) == meaning(other, 5)


@pytest.mark.parametrize(
    "rest",
    [
        {"start": 1},
        {"until": 1_900_000_000_000},
        {"max_runs": 1},
        {"jitter_ms": 1},
        {"exclude": [messages.WindowExcluded("0 0 * * *")]},
        {"catch_up": "none"},
        {"catch_up_window_ms": 1},
        {"catch_up_limit": 1},
        {"overlap": "skip"},
        {"pause_on_failure": True},
    ],
)
def test_each_part_of_a_timetable_has_a_meaning(rest: dict[str, Any]) -> None:
    plain = messages.Cron("* * * * *")
    assert meaning(messages.Cron("* * * * *", **rest), 1) != meaning(plain, 1)


async def test_an_idempotency_key_knows_a_timetable_again_later(desk) -> None:
    body = {"schedule": {"type": "every", "interval_ms": 60_000}, "idempotency_key": "k"}
    first = await desk.ask("POST", "/v1/jobs", body)
    desk.pass_ms(150_000)
    again = await desk.ask("POST", "/v1/jobs", body)
    assert (again.status, again.body["status"]) == (200, "duplicate")
    assert again.body["job_id"] == first.body["job_id"]
    other = {**body, "schedule": {"type": "every", "interval_ms": 60_000, "overlap": "skip"}}
    assert (await desk.ask("POST", "/v1/jobs", other)).status == 422


def test_an_interval_alone_is_shown_as_such_even_from_a_union() -> None:
    union = messages.Union(schedules=[messages.EveryRule(interval_ms=1_000, anchor=0)])
    timetable = read_schedule(union, "", 5_000).timetable
    assert timetable is not None
    assert show_timetable(timetable) == messages.Every(
        interval_ms=1_000, anchor="1970-01-01T00:00:00.000Z"
    )


# --- what is refused -----------------------------------------------------------------------------

ZONES = (
    "localtime", "right/UTC", "posix/UTC", "Factory", "posixrules", "../../etc/passwd",
    "/etc/localtime", "europe/berlin", "Z", "+05:30", "GMT+5", "", "UTC\0", "Europe/Berlin\n",
    " UTC", "Europe", "Europe/", "\U0001f600", "x" * 64, "x" * 65, "con", "tzdata",
)  # fmt: skip


@pytest.mark.parametrize("zone", ZONES, ids=ascii)
async def test_CRON_19_a_zone_that_is_not_on_the_list_is_refused_by_name(desk, zone: str) -> None:
    union = {"type": "union", "schedules": [{"type": "at", "times": [1]}, cron("@daily", zone)]}
    dates = {"type": "dates", "dates": ["2026-01-01"], "time_zone": zone}
    window = {"type": "window", "expression": "0 0 * * *", "time_zone": zone}
    for schedule, field in (
        (cron("@daily", zone), "schedule.time_zone"),
        (union, "schedule.schedules[1].time_zone"),
        (cron("@daily", "UTC", exclude=[window, dates]), "schedule.exclude[0].time_zone"),
        (cron("@daily", "UTC", exclude=[dates]), "schedule.exclude[0].time_zone"),
    ):
        for method, path in (("POST", "/v1/jobs"), ("POST", "/v1/schedules/preview")):
            reply = await desk.ask(method, path, {"schedule": schedule})
            assert (reply.status, reply.field) == (400, field)
    assert not desk.proposed


async def test_CRON_19_an_inverted_name_tells_its_offset(desk) -> None:
    body = {"schedule": cron("@daily", "Etc/GMT+5")}
    reply = await desk.ask("POST", "/v1/schedules/preview", body)
    fire = reply.body["fires"][0]
    assert fire["local"].endswith("-05:00")
    assert "UTC-05:00" in " ".join(fire["why"])


EXPRESSIONS = (
    "0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *",  # CRON-16: never
    "0 0 1 1 * 0 2099", "* * * *", "* * * * * * *",  # CRON-17: neither five fields nor six
    "0 22-2 * * *", "0 0 * * fri-mon", "*/90 * * * *", "0 */25 * * *", "*/0 * * * *",
    "1,,2 * * * *", ",1 * * * *", "1, * * * *", "-5 * * * *", "1.5 * * * *", "60 * * * *",
    "0 24 * * *", "0 0 0 * *", "0 0 * * 8",  # CRON-18
    "", " ", "\0", "0 0 * * *\n", "0 0 * * *\0", "\u0660 * * * *", "1" * 256, "*," * 128,
    "@never", "@", "0 0 ? ? *", "0 0 * * 1#6", "0 0 0L * *", "L" * 200,
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=ascii)
async def test_CRON_16_CRON_17_CRON_18_an_expression_that_cannot_be_is_refused_at_once(
    desk, expression: str
) -> None:
    job = await desk.create({"type": "every", "interval_ms": 60_000})
    window = {"type": "window", "expression": expression}
    union = {"type": "union", "schedules": [{"type": "at", "times": [1]}, cron(expression)]}
    proposed = len(desk.proposed)
    for schedule, field in (
        (cron(expression), "schedule.expression"),
        (union, "schedule.schedules[1].expression"),
        (cron("@daily", exclude=[window]), "schedule.exclude[0].expression"),
    ):
        if "exclude" in schedule and expression.startswith("0 0 3"):
            continue  # a window that never opens excludes nothing
        for method, path in (
            ("POST", "/v1/jobs"),
            ("PATCH", f"/v1/jobs/{job}"),
            ("PUT", "/v1/jobs/by-name/nightly"),
            ("POST", "/v1/schedules/preview"),
        ):
            reply = await desk.ask(method, path, {"schedule": schedule})
            assert (reply.status, reply.field) == (400, field), (reply, expression)
    assert len(desk.proposed) == proposed


async def test_CRON_16_mondays_in_february_are_no_30th(desk) -> None:
    reply = await desk.ask(
        "POST",
        "/v1/schedules/preview",
        {"schedule": cron("0 0 31 2 1"), "after": "2026-01-01T00:00:00Z", "count": 2},
    )
    fires = [fire["nominal_at"] for fire in reply.body["fires"]]
    assert fires == ["2026-02-02T00:00:00.000Z", "2026-02-09T00:00:00.000Z"]


async def test_CRON_17_a_create_echoes_what_six_fields_mean(desk) -> None:
    reply = await desk.ask("POST", "/v1/jobs", {"schedule": cron("0 0 9 * * *")})
    assert reply.body["next_fires"][:2] == ["2025-11-30T09:00:00.000Z", "2025-12-01T09:00:00.000Z"]


EVERY = {"type": "every", "interval_ms": 60_000}
WRONG: list[tuple[Any, str]] = [
    ({"type": "after", "delay_ms": -1}, "schedule.delay_ms"),
    ({"type": "after", "delay_ms": 2**63 - 1}, "schedule.delay_ms"),
    ({"type": "after", "delay_ms": 2**63}, "schedule.delay_ms"),
    ({"type": "after", "delay_ms": 10**18}, "schedule.delay_ms"),
    ({"type": "at", "time": -1}, "schedule.time"),
    ({"type": "at", "time": 2**63}, "schedule.time"),
    ({"type": "at", "time": "10000-01-01T00:00:00Z"}, "schedule.time"),
    ({"type": "at", "time": 253_402_300_800_000}, "schedule.time"),
    ({"type": "at", "time": "2026-01-01T00:00:00Z\0"}, "schedule.time"),
    ({"type": "at", "time": "2026-01-01T00:00:00Z\n"}, "schedule.time"),
    ({"type": "at", "time": None}, "schedule.time"),
    ({**EVERY, "interval_ms": 2**63}, "schedule.interval_ms"),
    ({**EVERY, "interval_ms": 0}, "schedule.interval_ms"),
    ({**EVERY, "interval_ms": True}, "schedule.interval_ms"),
    ({**EVERY, "anchor": "9999-01-01T00:00:00Z"}, "schedule.anchor"),
    ({**EVERY, "anchor": "yesterday"}, "schedule.anchor"),
    ({**EVERY, "start": "9999-01-01T00:00:00Z"}, "schedule.start"),
    ({**EVERY, "start": 2_000_000_000_000, "until": 1_900_000_000_000}, "schedule.until"),
    ({**EVERY, "until": 1}, "schedule.until"),
    ({**EVERY, "until": "x"}, "schedule.until"),
    ({**EVERY, "max_runs": 0}, "schedule.max_runs"),
    ({**EVERY, "max_runs": 2**63}, "schedule.max_runs"),
    ({**EVERY, "jitter_ms": -1}, "schedule.jitter_ms"),
    ({**EVERY, "jitter_ms": 86_400_001}, "schedule.jitter_ms"),
    ({**EVERY, "catch_up": "two"}, "schedule.catch_up"),
    ({**EVERY, "catch_up_window_ms": 0}, "schedule.catch_up_window_ms"),
    ({**EVERY, "catch_up_window_ms": 100 * 366 * DAY_MS + 1}, "schedule.catch_up_window_ms"),
    ({**EVERY, "catch_up_limit": 10_001}, "schedule.catch_up_limit"),
    ({**EVERY, "overlap": "maybe"}, "schedule.overlap"),
    ({**EVERY, "pause_on_failure": 1}, "schedule.pause_on_failure"),
    ({**EVERY, "surprise": 1}, "schedule.surprise"),
    ({**EVERY, "exclude": [{"type": "window", "expression": "* * * * *"}]},
     "schedule.exclude[0].expression"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": []}]}, "schedule.exclude[0].dates"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["2026-01-01"] * 367}]},
     "schedule.exclude[0].dates"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["2026-01-01", "2026-02-30"]}]},
     "schedule.exclude[0].dates[1]"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["2026-1-1"]}]},
     "schedule.exclude[0].dates[0]"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["2026-01-01\n"]}]},
     "schedule.exclude[0].dates[0]"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["2026-01-02/2026-01-01"]}]},
     "schedule.exclude[0].dates[0]"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["2026-01-01", "1969-12-31"]}]},
     "schedule.exclude[0].dates[1]"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["0000-01-01"]}]},
     "schedule.exclude[0].dates[0]"),
    ({**EVERY, "exclude": [{"type": "dates", "dates": ["1970-01-01/9999-12-31"]}]},
     "schedule.exclude"),
    ({**EVERY, "exclude": [{"type": "window", "expression": "0 0 * * *"}] * 17},
     "schedule.exclude"),
    ({"type": "union", "schedules": []}, "schedule.schedules"),
    ({"type": "union", "schedules": [EVERY] * 17}, "schedule.schedules"),
    ({"type": "union", "schedules": [{"type": "at", "times": []}]}, "schedule.schedules[0].times"),
    ({"type": "union", "schedules": [{"type": "at", "times": [1] * 1_001}]},
     "schedule.schedules[0].times"),
    ({"type": "union", "schedules": [{"type": "at", "times": [1, -1]}]},
     "schedule.schedules[0].times[1]"),
    ({"type": "union", "schedules": [{"type": "at", "times": [253_402_300_799_999, 1]}]},
     "schedule.schedules[0].times[0]"),
    ({"type": "union", "schedules": [{"type": "at", "times": [1, 2]}]}, "schedule.schedules"),
    ({"type": "union", "schedules": [{**EVERY, "interval_ms": 1}]},
     "schedule.schedules[0].interval_ms"),
    ({"type": "union", "schedules": [{**EVERY, "until": 1}]}, "schedule.schedules[0].until"),
    ({"type": "union", "schedules": [{"type": "union"}]}, "schedule.schedules[0].type"),
    ({"type": "sometimes"}, "schedule.type"),
    ({}, "schedule.type"),
    ("@daily", "schedule"),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "field"), WRONG)
async def test_TIMR_01_TIMR_02_what_cannot_be_is_refused_by_its_name(
    desk, schedule: Any, field: str
) -> None:
    for form in ("json", "msgpack"):
        reply = await desk.ask("POST", "/v1/jobs", {"schedule": schedule}, form=form)
        assert (reply.status, reply.field) == (400, field), reply
        batch = {"jobs": [{}, {"schedule": schedule}]}
        reply = await desk.ask("POST", "/v1/jobs/batch", batch, form=form)
        assert (reply.status, reply.field) == (400, f"jobs[1].{field}"), reply
    assert not desk.proposed


async def test_TIMR_01_a_delay_beyond_64_bits_is_refused(desk) -> None:
    raw = b'{"schedule": {"type": "after", "delay_ms": 1' + b"0" * 30 + b"}}"
    reply = await desk.ask("POST", "/v1/jobs", raw)
    assert (reply.status, reply.field) == (400, "schedule.delay_ms")


async def test_TIMR_01_the_last_instant_of_all_is_accepted(desk) -> None:
    job = await desk.create({"type": "at", "time": "9999-12-31T23:59:59.999Z"})
    view = (await desk.ask("GET", f"/v1/jobs/{job}")).body
    assert view["next_fires"] == ["9999-12-31T23:59:59.999Z"]


@pytest.mark.parametrize("past", [0, 1, 1_764_479_999_999, "1999-01-01T00:00:00Z"])
async def test_TIMR_02_what_is_past_is_due_at_once(desk, past: Any) -> None:
    job = await desk.create({"type": "at", "time": past})
    (execution,) = (await desk.ask("GET", f"/v1/executions?job={job}")).body["executions"]
    assert (execution["state"], execution["due"]) == ("scheduled", True)


async def test_a_list_that_is_longer_than_any_is_refused(desk) -> None:
    times = list(range(1, 200_000))
    schedule = {"type": "union", "schedules": [{"type": "at", "times": times}]}
    reply = await desk.ask("POST", "/v1/jobs", {"schedule": schedule})
    assert (reply.status, reply.field) == (400, "schedule.schedules[0].times")


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("known_by", ["request", "key"])
async def test_a_repeat_is_answered_as_at_first_though_its_timetable_is_over(
    desk, batch: bool, known_by: str
) -> None:
    until_ms = desk.log.now_ms + 60_000
    job = {"schedule": {"type": "every", "interval_ms": 1_000, "until": until_ms}}
    headers = {}
    if known_by == "key":
        job["idempotency_key"] = "k"
    else:
        headers = {"timeball_request_id": "r"}
    path, body = ("/v1/jobs/batch", {"jobs": [job]}) if batch else ("/v1/jobs", job)

    async def ask(body: Any, headers: dict[str, str]) -> Any:
        reply = await desk.ask("POST", path, body, **headers)
        return reply, reply.body["results"][0] if batch and "results" in reply.body else reply.body

    _, first = await ask(body, headers)
    desk.log.pass_ms(120_000)
    reply, again = await ask(body, headers)
    assert reply.status == 200
    assert again["job_id"] == first["job_id"]
    # And what was never asked before is refused by its name, and makes nothing.
    other = {**job, "idempotency_key": "new"} if known_by == "key" else job
    body = {"jobs": [other]} if batch else other
    reply, refused = await ask(body, headers and {"timeball_request_id": "other"})
    problem = refused["problem"] if batch else refused
    assert problem["status"] == 400
    (error,) = problem["errors"]
    assert error["field"] == ("jobs[0].schedule.until" if batch else "schedule.until")
    assert len(desk.log.machine.list_jobs().items) == 1

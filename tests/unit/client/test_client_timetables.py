"""The calls of recurring jobs against scripted peers on loopback."""

from __future__ import annotations

import msgspec
import pytest

from timeball.client import (
    After,
    AtRule,
    Client,
    Conflict,
    Cron,
    CronRule,
    DatesExcluded,
    Every,
    EveryRule,
    InvalidRequest,
    OutcomeUnknown,
    PreconditionFailed,
    Retry,
    Union,
    WindowExcluded,
)

CHANGED = {"status": "changed", "job_id": "7", "version": 3, "next_fires": ["2026-01-01T00:00:00Z"]}
TRIGGERED = {"status": "created", "job_id": "7", "execution_id": "7-5"}
TIMETABLE = {
    "name": "nightly", "planned_at": "2026-01-01T00:00:00Z", "ended": False, "paused": None,
    "parked": None, "fired": 3, "coalesced": 0, "skipped": 0, "missed": 0,
}  # fmt: skip
FIRE = {
    "nominal_at": "2026-03-08T07:00:00Z", "local": "2026-03-08T03:00:00-04:00",
    "time_zone": "America/New_York", "due_at": "2026-03-08T07:00:00Z", "excluded": False,
    "why": ["02:30 is skipped"],
}  # fmt: skip
EXPLAINED = {
    "job_id": "7", "state": "active", "version": 3, "timetable": TIMETABLE, "next": [FIRE],
    "schedule": {"type": "cron", "expression": "30 2 * * *"}, "applied_index": 9,
    "past": [{"first_at": "a", "last_at": "b", "count": 2, "fate": "skipped",
              "reason": "overlap", "execution_id": None, "state": None}],
}  # fmt: skip
ALL = Union(
    schedules=[EveryRule(60_000), CronRule("0 9 * * *", "Europe/Berlin"), AtRule([5, "2027"])],
    start=1,
    until="2030-01-01T00:00:00Z",
    max_runs=9,
    jitter_ms=500,
    exclude=[DatesExcluded(["2026-12-25"]), WindowExcluded("* 0-5 * * *", "UTC")],
    catch_up="all",
    catch_up_window_ms=3_600_000,
    catch_up_limit=7,
    overlap="skip",
    pause_on_failure=True,
)


def test_a_create_takes_a_timetable_with_everything(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs", kit.Answer(201, {"status": "created", "job_id": "7"}))
            await client.create(schedule=ALL)
            sent = peer.seen[0].body["schedule"]
            assert msgspec.convert(sent, Union) == ALL
            assert sent["type"] == "union"
            assert [rule["type"] for rule in sent["schedules"]] == ["every", "cron", "at"]

    kit.run(scenario())


def test_an_update_sends_only_what_it_changes_and_for_which_version(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs/7", *[kit.Answer(200, CHANGED)] * 3)
            answer = await client.update_job("7", priority=9, if_version=2)
            assert (answer.status, answer.version) == ("changed", 3)
            await client.update_job("7", payload=None, timeout_ms=None)
            await client.update_job("7", schedule=Every(500), retry=Retry(max_attempts=2))
            first, second, third = peer.seen
            assert {seen.method for seen in peer.seen} == {"PATCH"}
            assert (first.body, first.headers["if-match"]) == ({"priority": 9}, '"2"')
            assert second.body == {"payload": None, "timeout_ms": None}, "None is a value too"
            assert "if-match" not in second.headers
            assert third.body.keys() == {"schedule", "retry"}

    kit.run(scenario())


def test_a_change_of_another_version_raises(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            refused = kit.problem("precondition-failed", 412, detail="the job is at version 4")
            peer.then("/v1/jobs/7", kit.Answer(412, refused))
            peer.then("/v1/jobs/by-name/nightly", kit.Answer(412, refused))
            with pytest.raises(PreconditionFailed, match="at version 4"):
                await client.update_job("7", payload=1, if_version=3)
            with pytest.raises(PreconditionFailed):
                await client.put_job("nightly", schedule=Every(500), if_version=3)
            assert [seen.headers["if-match"] for seen in peer.seen] == ['"3"', '"3"']

    kit.run(scenario())


def test_after_a_lost_answer_another_version_is_no_proof_of_failure(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:
            refused = kit.problem("precondition-failed", 412, detail="the job is at version 4")
            one.then("/v1/jobs/7", None)
            two.then("/v1/jobs/7", kit.Answer(412, refused))
            with pytest.raises(OutcomeUnknown, match="at version 4"):
                await client.update_job("7", payload=1, if_version=3)

    kit.run(scenario())


def test_a_put_names_the_job_and_says_it_all(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            path = "/v1/jobs/by-name/nightly.report"
            peer.then(path, kit.Answer(201, {**CHANGED, "status": "created", "version": 1}))
            schedule = Cron("0 3 * * *", "Europe/Berlin")
            answer = await client.put_job("nightly.report", schedule=schedule, queue="mail")
            assert (answer.status, answer.version) == ("created", 1)
            [seen] = peer.seen
            assert (seen.method, seen.body["queue"]) == ("PUT", "mail")
            assert seen.body["schedule"]["expression"] == "0 3 * * *"
            assert seen.body["retry"]["max_attempts"] == Retry().max_attempts
            assert "if-match" not in seen.headers

    kit.run(scenario())


def test_pause_and_resume_say_why_and_what_of_the_missed(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs/7/pause", kit.Answer(200, CHANGED))
            peer.then("/v1/jobs/7/resume", *[kit.Answer(200, CHANGED)] * 2)
            await client.pause_job("7", reason="invoices are wrong")
            await client.resume_job("7")
            await client.resume_job("7", missed="catch_up")
            assert [seen.body for seen in peer.seen] == [
                {"reason": "invoices are wrong"},
                {"missed": "skip"},
                {"missed": "catch_up"},
            ]

    kit.run(scenario())


def test_a_trigger_is_repeated_under_one_request_id(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:
            path = "/v1/jobs/7/trigger"
            one.then(path, None)
            two.then(path, *[kit.Answer(201, TRIGGERED)] * 3)
            assert (await client.trigger_job("7")).execution_id == "7-5"
            await client.trigger_job("7")
            await client.trigger_job("7", request_id="mine")
            ids = [seen.headers["timeball-request-id"] for seen in [*one.seen, *two.seen]]
            assert ids[0] == ids[1] != ids[2]
            assert ids[3] == "mine"

    kit.run(scenario())


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_change_whose_answer_was_lost_is_repeated_as_it_was(kit, verb) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:
            path = f"/v1/jobs/7/{verb}"
            one.then(path, None)
            two.then(path, kit.Answer(200, {**CHANGED, "status": "unchanged"}))
            answer = await getattr(client, f"{verb}_job")("7")
            assert answer.status == "unchanged"
            assert one.seen[0].body == two.seen[0].body

    kit.run(scenario())


def test_a_backfill_names_its_range(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            filled = {"job_id": "7", "created": ["7-1", "7-2"], "existing": ["7-3"]}
            peer.then("/v1/jobs/7/backfill", kit.Answer(200, filled))
            answer = await client.backfill_job("7", start="2026-01-01T00:00Z", until=3)
            assert (answer.created, answer.existing) == (["7-1", "7-2"], ["7-3"])
            assert peer.seen[0].body == {"start": "2026-01-01T00:00Z", "until": 3}

    kit.run(scenario())


def test_explain_is_a_read_like_any_other(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs/7/explain", *[kit.Answer(200, EXPLAINED)] * 2)
            explained = await client.explain_job("7", limit=3, fires=1, min_index=9)
            assert explained.past[0].reason == "overlap"
            assert explained.next[0].why == ["02:30 is skipped"]
            assert peer.seen[0].query == {"limit": "3", "fires": "1", "min_index": "9"}
            await client.explain_job("7", consistency="strong")
            assert peer.seen[1].query["consistency"] == "strong"

    kit.run(scenario())


def test_a_job_is_read_by_its_name(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            path = "/v1/jobs/by-name/a%2Fb"
            peer.then(path, kit.Answer(404, kit.problem("invalid-request", 400)))
            with pytest.raises(InvalidRequest):
                await client.job_by_name("a/b", consistency="strong")
            assert peer.seen[0].path == path
            assert peer.seen[0].query == {"consistency": "strong"}

    kit.run(scenario())


def test_a_preview_creates_nothing_and_says_so_when_it_fails(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, timeout_ms=500) as client:
            path = "/v1/schedules/preview"
            peer.then(path, kit.Answer(200, {"schedule": {"type": "after", "delay_ms": 5},
                                             "fires": [FIRE]}))  # fmt: skip
            answer = await client.preview_schedule(After(5), after=17, count=3)
            assert answer.schedule == After(5)
            assert peer.seen[0].body["count"] == 3
            assert peer.seen[0].body["after"] == 17

    kit.run(scenario())


def test_what_the_state_of_a_job_forbids_is_a_conflict(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs/7/pause", kit.Answer(409, kit.problem("conflict", 409)))
            with pytest.raises(Conflict):
                await client.pause_job("7")

    kit.run(scenario())

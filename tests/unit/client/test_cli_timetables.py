"""The command line for schedules and recurring jobs, against a scripted peer on loopback."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from timeball.client.cli import main
from timeball.client.cli.durations import in_words
from timeball.client.cli.scheduling import describe, details
from timeball.client.messages import (
    After,
    At,
    AtRule,
    Cron,
    CronRule,
    DatesExcluded,
    Every,
    EveryRule,
    Union,
    WindowExcluded,
)

NOON = "2026-01-01T12:00:00Z"
CREATED = {"status": "created", "job_id": "7", "next_fires": [NOON]}
CHANGED = {"status": "changed", "job_id": "7", "version": 3, "next_fires": [NOON]}
TIMETABLE = {
    "name": "nightly", "planned_at": NOON, "ended": False, "parked": None,
    "paused": {"since_at": "2026-01-01T11:00:00Z", "reason": "invoices"},
    "fired": 3, "coalesced": 4, "skipped": 2, "missed": 0,
}  # fmt: skip
JOB = {
    "job_id": "7", "queue": "mail", "state": "active", "payload": {"a": 1}, "priority": 5,
    "schedule": {"type": "cron", "expression": "0 9 * * *", "time_zone": "Europe/Berlin",
                 "jitter_ms": 90_000, "exclude": [{"type": "dates", "dates": ["2026-12-25"]}]},
    "partition_key": "", "retry": {"max_attempts": 5, "initial_ms": 250}, "timeout_ms": None,
    "idempotency_key": None, "created_at": NOON, "next_fires": [], "execution_counts": {},
    "version": 4, "timetable": TIMETABLE,
}  # fmt: skip
FIRES = [
    {"nominal_at": "2026-03-08T07:00:00Z", "local": "2026-03-08T03:00:00-04:00",
     "time_zone": "America/New_York", "due_at": "2026-03-08T07:00:01Z", "excluded": False,
     "why": ["02:30 does not exist on this day: the first instant after the gap, not later",
             "due 1000 ms later"]},
    {"nominal_at": "2026-03-09T06:30:00Z", "local": "2026-03-09T02:30:00-04:00",
     "time_zone": "America/New_York", "due_at": "2026-03-09T06:30:00Z", "excluded": True,
     "why": ["excluded by exclude[0]"]},
]  # fmt: skip
EXPLAINED = {
    "job_id": "7", "state": "active", "version": 3, "timetable": TIMETABLE, "next": FIRES,
    "schedule": JOB["schedule"], "applied_index": 9,
    "past": [{"first_at": "2026-03-01T00:00:00Z", "last_at": "2026-03-02T00:00:00Z", "count": 2,
              "fate": "skipped", "reason": "overlap", "execution_id": None, "state": None},
             {"first_at": "2026-02-28T00:00:00Z", "last_at": "2026-02-28T00:00:00Z", "count": 1,
              "fate": "fired", "reason": "", "execution_id": "7-9", "state": "dead"}],
}  # fmt: skip


def call(*arguments, url="http://127.0.0.1:1"):
    return CliRunner().invoke(main, [*arguments], env={"TIMEBALL_URLS": url})


def answered(kit, path, answer, *arguments, status=200):
    """Run a command against a peer that gives one answer; also what the peer saw."""
    with kit.serving() as peer:
        peer.then(path, kit.Answer(status, answer))
        result = call(*arguments, url=peer.url)
    return result, peer.seen


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        (["--cron", "@daily", "--tz", "Asia/Tokyo"],
         {"type": "cron", "expression": "@daily", "time_zone": "Asia/Tokyo"}),
        (["--every", "90s", "--anchor", "5"], {"interval_ms": 90_000, "anchor": 5}),
        (["--every", "1m", "--start", "5", "--until", "2027-01-01T00:00Z", "--max-runs", "3"],
         {"start": 5, "until": "2027-01-01T00:00Z", "max_runs": 3}),
        (["--every", "1m", "--jitter", "30s"], {"jitter_ms": 30_000}),
        (["--every", "1m", "--exclude-date", "2026-12-25", "--exclude-date", "2026-12-31",
          "--exclude-window", "* 0-5 * * *", "--tz", "Europe/Paris"],
         {"exclude": [
             {"type": "dates", "dates": ["2026-12-25", "2026-12-31"], "time_zone": "Europe/Paris"},
             {"type": "window", "expression": "* 0-5 * * *", "time_zone": "Europe/Paris"}]}),
        (["--every", "1m", "--catch-up", "all", "--catch-up-window", "2h",
          "--catch-up-limit", "9"],
         {"catch_up": "all", "catch_up_window_ms": 7_200_000, "catch_up_limit": 9}),
        (["--every", "1m", "--overlap", "buffer_one", "--pause-on-failure"],
         {"overlap": "buffer_one", "pause_on_failure": True}),
        (["--every", "1m"], {"overlap": "allow", "pause_on_failure": False, "catch_up": "one",
                             "catch_up_limit": 1_000, "exclude": [], "jitter_ms": 0}),
        (["--cron", "0 9 * * *", "--cron", "0 17 * * *", "--every", "1h", "--at", "5"],
         {"type": "union", "schedules": [
             {"type": "every", "interval_ms": 3_600_000, "anchor": None},
             {"type": "cron", "expression": "0 9 * * *", "time_zone": "UTC"},
             {"type": "cron", "expression": "0 17 * * *", "time_zone": "UTC"},
             {"type": "at", "times": [5]}]}),
        (["--at", "5", "--at", "9"], {"type": "union", "schedules": [
            {"type": "at", "times": [5, 9]}]}),
        (["--at", "5", "--jitter", "1s"], {"type": "union", "jitter_ms": 1_000}),
        (["--at", "5"], {"type": "at", "time": 5}),
        (["--schedule", '{"type": "every", "interval_ms": 500, "max_runs": 2}'],
         {"type": "every", "interval_ms": 500, "max_runs": 2}),
    ],
)  # fmt: skip
def test_the_options_of_a_schedule(kit, words, schedule) -> None:
    result, seen = answered(kit, "/v1/jobs", CREATED, "job", "create", *words, status=201)
    assert result.exit_code == 0, result.output
    assert schedule.items() <= seen[0].body["schedule"].items()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--after", "1s", "--at", "5"], "--at and --after"),
        (["--after", "1s", "--max-runs", "2"], "--max-runs go with"),
        (["--overlap", "skip"], "--overlap go with"),
        (["--anchor", "5", "--cron", "@daily"], "--anchor goes with --every"),
        (["--every", "1s", "--tz", "UTC"], "--time-zone goes with"),
        (["--every", "1s", "--overlap", "forbid"], "--overlap"),
        (["--every", "1s", "--max-runs", "0"], "--max-runs"),
        (["--schedule", "{"], "--schedule"),
        (["--schedule", '{"type": "every", "interval_ms": 500, "x": 1}'], "x"),
        (["--schedule", '{"type": "after", "delay_ms": 5}', "--jitter", "1s"], "--jitter"),
        (["--name", "x"], "--name goes with"),
        (["--name", "x", "--after", "1s"], "--name goes with"),
        (["--name", "x", "--every", "1s", "--key", "k"], "--name and --key"),
    ],
)
def test_options_that_say_nothing_together_are_a_usage_error(words, named) -> None:
    result = call("job", "create", *words)
    assert result.exit_code == 2, result.output
    assert named in result.stderr


def test_a_create_with_a_name_puts_the_whole_definition(kit) -> None:
    words = ["--name", "nightly", "--cron", "@daily", "--queue", "mail", "--max-attempts", "2"]
    path = "/v1/jobs/by-name/nightly"
    result, [seen] = answered(kit, path, CHANGED, "job", "create", *words)
    assert result.exit_code == 0, result.output
    assert ["version", "3"] in [line.split() for line in result.stdout.splitlines()]
    assert (seen.method, seen.body["queue"]) == ("PUT", "mail")
    assert (seen.body["retry"]["max_attempts"], seen.body["payload"]) == (2, None)


def test_an_update_sends_what_was_given_and_no_more(kit) -> None:
    words = ["--payload", "null", "--every", "5s", "--priority", "1", "--no-attempt-timeout"]
    result, [seen] = answered(
        kit, "/v1/jobs/7", CHANGED, "job", "update", "7", *words, "--if-version", "2"
    )
    assert result.exit_code == 0, result.output
    assert (seen.method, seen.headers["if-match"]) == ("PATCH", '"2"')
    assert seen.body.keys() == {"payload", "schedule", "priority", "timeout_ms"}
    assert (seen.body["payload"], seen.body["timeout_ms"]) == (None, None)


def test_one_number_of_the_retry_policy_changes_and_the_others_stay(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/jobs/7", kit.Answer(200, JOB), kit.Answer(200, CHANGED))
        result = call("job", "update", "7", "--max-attempts", "9", url=peer.url)
    assert result.exit_code == 0, result.output
    read, change = peer.seen
    assert read.query == {"consistency": "strong"}
    assert change.headers["if-match"] == '"4"', "what was read is what is changed"
    assert change.body["retry"]["max_attempts"] == 9
    assert change.body["retry"]["initial_ms"] == 250


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "nothing to change"),
        (["--attempt-timeout", "1s", "--no-attempt-timeout"], "exclude each other"),
        (["--if-version", "0", "--priority", "1"], "--if-version"),
    ],
)
def test_an_update_that_says_nothing_is_a_usage_error(words, named) -> None:
    result = call("job", "update", "7", *words)
    assert result.exit_code == 2
    assert named in result.stderr


def test_another_version_is_one_line(kit) -> None:
    refused = kit.problem("precondition-failed", 412, detail="the job is at version 4")
    result, _ = answered(
        kit, "/v1/jobs/7", refused, "job", "update", "7", "--priority", "1", status=412
    )
    assert (result.exit_code, result.stderr) == (1, "Error: the job is at version 4\n")


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["pause", "7", "--reason", "why not"], {"reason": "why not"}),
        (["pause", "7"], {"reason": ""}),
        (["resume", "7"], {"missed": "skip"}),
        (["resume", "7", "--missed", "catch_up"], {"missed": "catch_up"}),
    ],
)
def test_pause_and_resume(kit, words, body) -> None:
    result, [seen] = answered(kit, f"/v1/jobs/7/{words[0]}", CHANGED, "job", *words)
    assert result.exit_code == 0, result.output
    assert seen.body == body
    assert "changed" in result.stdout


@pytest.mark.parametrize(
    ("status", "told"), [("created", "7-5"), ("duplicate", "already"), ("skipped", "overlap rule")]
)
def test_a_trigger_tells_what_it_did(kit, status, told) -> None:
    answer = {"status": status, "job_id": "7", "execution_id": "7-5"}
    result, [seen] = answered(kit, "/v1/jobs/7/trigger", answer, "job", "trigger", "7")
    assert told in result.stdout
    assert len(seen.headers["timeball-request-id"]) == 32


def test_a_backfill_lists_what_it_made_and_found(kit) -> None:
    answer = {"job_id": "7", "created": ["7-1", "7-2"], "existing": ["7-3"]}
    words = ["job", "backfill", "7", "--start", "1", "--until", NOON]
    result, [seen] = answered(kit, "/v1/jobs/7/backfill", answer, *words)
    assert seen.body == {"start": 1, "until": NOON}
    assert "2 created, 1 existing" in result.stdout
    assert ["7-3", "existing"] in [line.split() for line in result.stdout.splitlines()]
    empty = {"job_id": "7", "created": [], "existing": []}
    result, _ = answered(kit, "/v1/jobs/7/backfill", empty, *words)
    assert result.stdout == "job 7: 0 created, 0 existing\n"


def test_explain_tells_how_it_stands_what_was_and_what_comes(kit) -> None:
    words = ["job", "explain", "7", "--limit", "3", "--fires", "2", "--consistency", "strong"]
    result, [seen] = answered(kit, "/v1/jobs/7/explain", EXPLAINED, *words)
    assert result.exit_code == 0, result.output
    assert seen.query == {"limit": "3", "fires": "2", "consistency": "strong"}
    head, past, coming = result.stdout.split("\n\n")
    assert "since 2026-01-01T11:00:00Z (invoices)" in head
    assert "fired 3, coalesced 4, skipped 2, missed 0" in head
    assert past.splitlines()[1].split() == [
        "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z", "2", "skipped", "-", "-", "overlap"
    ]  # fmt: skip
    assert past.splitlines()[2].split()[3:6] == ["fired", "dead", "7-9"]
    assert coming.splitlines()[2:4] == [
        "    02:30 does not exist on this day: the first instant after the gap, not later",
        "    due 1000 ms later",
    ]
    assert [line.split()[4] for line in coming.splitlines() if line[0] == "2"] == ["yes", "no"]


def test_explain_of_what_has_neither_past_nor_future(kit) -> None:
    answer = {**EXPLAINED, "past": [], "next": []}
    result, _ = answered(kit, "/v1/jobs/7/explain", answer, "job", "explain", "7")
    assert result.stdout.split("\n\n")[1:] == ["no past yet", "nothing to come\n"]


def test_explain_in_json_is_the_answer(kit) -> None:
    result, _ = answered(kit, "/v1/jobs/7/explain", EXPLAINED, "job", "explain", "7", "--json")
    assert json.loads(result.stdout)["next"] == FIRES


def test_a_preview_shows_local_and_utc_time_and_why(kit) -> None:
    answer = {"schedule": JOB["schedule"], "fires": FIRES}
    words = ["--cron", "30 2 * * *", "--tz", "America/New_York", "--count", "10", "--from", NOON]
    result, [seen] = answered(kit, "/v1/schedules/preview", answer, "schedule", "preview", *words)
    assert result.exit_code == 0, result.output
    assert (seen.body["count"], seen.body["after"]) == (10, NOON)
    assert seen.body["schedule"]["time_zone"] == "America/New_York"
    head, table = result.stdout.split("\n\n")
    assert head.splitlines()[0].split(maxsplit=1) == ["schedule", "0 9 * * * (Europe/Berlin)"]
    assert table.splitlines()[0].split() == ["LOCAL", "TIME", "ZONE", "UTC", "DUE", "RUNS"]
    assert table.splitlines()[1].split()[:4] == [
        "2026-03-08T03:00:00-04:00", "America/New_York", "2026-03-08T07:00:00Z",
        "2026-03-08T07:00:01Z",
    ]  # fmt: skip


def test_a_preview_of_nothing() -> None:
    result = call("schedule", "preview")
    assert result.exit_code == 2
    assert "--cron" in result.stderr


def test_a_preview_that_never_fires(kit) -> None:
    answer = {"schedule": {"type": "at", "time": 5}, "fires": []}
    words = ["schedule", "preview", "--at", "5"]
    result, _ = answered(kit, "/v1/schedules/preview", answer, *words)
    assert result.stdout.endswith("\n\nnever fires\n")


@pytest.mark.parametrize(
    ("words", "fresh"),
    [
        *((word, {"consistency": "strong"}) for word in ("pause", "trigger", "cancel")),
        *((word, {}) for word in ("get", "explain")),
        ("get --min-index 5", {"min_index": "5"}),
        ("explain --consistency strong", {"consistency": "strong"}),
    ],
)
def test_a_job_may_be_named(kit, words, fresh) -> None:
    """What acts finds the job that has the name now, a read as fresh a one as it asks for."""
    with kit.serving() as peer:
        peer.then("/v1/jobs/by-name/nightly", kit.Answer(200, JOB))
        call("job", *words.split(), "--name", "nightly", url=peer.url)
    named, then = peer.seen
    assert (named.method, named.query) == ("GET", fresh)
    assert then.path.startswith("/v1/jobs/7")


def test_a_job_is_told_by_id_or_name_and_not_by_both() -> None:
    for words in ([], ["7", "--name", "nightly"]):
        result = call("job", "pause", *words)
        assert result.exit_code == 2
        assert "a JOB_ID or a --name" in result.stderr


def test_a_job_is_shown_with_its_timetable(kit) -> None:
    result, _ = answered(kit, "/v1/jobs/7", JOB, "job", "get", "7")
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    for fact in (["name", "nightly"], ["jitter", "90s"], ["excluded", "2026-12-25"],
                 ["catch-up", "one"], ["overlap", "allow"], ["version", "4"]):  # fmt: skip
        assert fact in lines


def test_a_list_tells_names_and_what_is_paused(kit) -> None:
    parked = {**JOB, "timetable": {**TIMETABLE, "paused": None, "parked": "no such zone"}}
    page = {"jobs": [JOB, parked], "cursor": None, "applied_index": 1}
    result, _ = answered(kit, "/v1/jobs", page, "job", "list")
    assert "active (paused)" in result.stdout
    assert "active (stands still)" in result.stdout
    assert "nightly" in result.stdout


def test_schedules_in_words() -> None:
    rules = [EveryRule(60_000), CronRule("0 9 * * *"), AtRule([5]), AtRule([1, 2, 3])]
    for schedule, words in (
        (None, "at once"),
        (At(5), "at 5"),
        (After(1_500), "after 1500ms"),
        (Every(86_400_000), "every 1d"),
        (Cron("@daily", "Asia/Tokyo"), "@daily (Asia/Tokyo)"),
        (Union(rules), "every 1m + 0 9 * * * (UTC) + at 5 + at 1 and 2 more"),
    ):
        assert describe(schedule) == words


def test_what_a_timetable_asks_for_in_facts() -> None:
    assert details(After(5)) == []
    given = Every(
        500,
        max_runs=3,
        exclude=[DatesExcluded(["2026-12-25", "2026-12-31"], "UTC"), WindowExcluded("* 0 * * *")],
        catch_up="all",
        catch_up_window_ms=60_000,
        catch_up_limit=7,
        pause_on_failure=True,
    )
    facts = dict(details(given))
    assert facts["at most"] == "3 runs"
    assert facts["excluded"] == "2026-12-25, 2026-12-31 (UTC); * 0 * * *"
    assert facts["catch-up"] == "all, at most 7, of the last 1m"
    assert facts["on failure"] == "pause"


@pytest.mark.parametrize(
    ("length_ms", "words"),
    [(0, "0s"), (1, "1ms"), (1_000, "1s"), (90_000, "90s"), (7_200_000, "2h"), (864 * 10**5, "1d")],
)
def test_lengths_in_words(length_ms, words) -> None:
    assert in_words(length_ms) == words

"""The command line against a scripted peer on loopback."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, version

import pytest
from click.testing import CliRunner

from timeball.client.cli import group, main, output, replacing
from timeball.client.cli.durations import DURATION

CREATED = {"status": "created", "job_id": "7", "next_fires": ["2026-01-01T00:00:00Z"]}
EXECUTION = {
    "execution_id": "7-2", "job_id": "7", "queue": "mail", "state": "dead",
    "reason": "attempts_exhausted:failed", "origin": "timetable",
    "nominal_at": "2026-01-01T00:00:00Z", "due_at": "2026-01-01T00:00:00Z", "due": False,
    "finished_at": "2026-01-01T00:00:01Z",
    "attempts_used": 1, "max_attempts": 1, "cancel_requested": False, "result": None,
    "attempts": [
        {"number": 1, "worker": "w1", "token": 4096, "outcome": "failed",
         "claimed_at": "c", "started_at": None, "finished_at": "f",
         "error_type": "ValueError", "message": "bad\x1b[31m\nthing"}
    ],
}  # fmt: skip
RULE = {
    "window_ms": None, "scope": "cluster", "until": "window_ends", "on_duplicate": "return",
}  # fmt: skip
JOB = {
    "job_id": "7", "queue": "mail", "state": "active", "payload": {"a": 1}, "priority": 5,
    "schedule": {"type": "cron", "expression": "0 9 * * *", "time_zone": "Europe/Berlin"},
    "partition_key": "", "retry": {}, "timeout_ms": None, "idempotency_key": None,
    "created_at": "2026-01-01T00:00:00Z", "next_fires": ["2026-01-02T08:00:00Z"],
    "execution_counts": {"succeeded": 3, "dead": 0}, "version": 4,
    "timetable": {
        "name": "morning", "planned_at": "2026-01-02T08:00:00Z", "ended": False, "paused": None,
        "parked": None, "fired": 3, "coalesced": 0, "skipped": 1, "missed": 2,
    },
}  # fmt: skip
CLUSTER = {
    "cluster": "demo", "node": "b", "version": "0.1.0", "role": "follower", "serving": True,
    "leader": "a", "term": 4, "commit_index": 90, "applied_index": 89, "log_time_ms": 1,
    "nodes": [{"name": "a", "http_url": "http://a", "role": "leader", "connected": True,
               "match_index": 90, "last_contact_ms": 3}],
    "queues": [{"name": "default", "scheduled": 12, "leased": 1, "ready": None,
                "oldest_due_ms": None, "waiting_claims": None}],
    "totals": {"created": 5},
}  # fmt: skip


def call(*arguments, url="http://127.0.0.1:1"):
    return CliRunner().invoke(main, [*arguments], env={"TIMEBALL_URLS": url})


def test_create_sends_what_was_asked_for(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/jobs", kit.Answer(201, CREATED))
        words = "job create --queue mail --after 1.5s --priority 9 --key k --max-attempts 2"
        words += " --attempt-timeout 2m --timeout-ms 9000"
        result = call(*words.split(), "--payload", '{"a": [1]}', url=peer.url)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].split() == ["job", "7"]
    body = peer.seen[0].body
    assert body["schedule"] == {"type": "after", "delay_ms": 1_500}
    assert (body["payload"], body["priority"], body["idempotency_key"]) == ({"a": [1]}, 9, "k")
    assert (body["retry"]["max_attempts"], body["timeout_ms"]) == (2, 120_000)


def test_a_key_comes_with_how_it_holds(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/jobs", *[kit.Answer(201, CREATED)] * 2)
        words = "job create --key k --key-window 1h --key-scope queue --on-duplicate reject"
        assert call(*words.split(), url=peer.url).exit_code == 0
        words = "job create --key k --key-until job_ends"
        assert call(*words.split(), url=peer.url).exit_code == 0
        rules = [seen.body["idempotency"] for seen in peer.seen]
    assert rules == [
        {**RULE, "window_ms": 3_600_000, "scope": "queue", "on_duplicate": "reject"},
        {**RULE, "until": "job_ends"},
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--key-window 1h", "go with --key"),
        ("--key k --key-window 1h --key-until job_ends", "exclude each other"),
        ("--key k --key-window 0s", "longer than nothing"),
        ("--key k --name n --every 1h", "--name and --key exclude"),
    ],
)
def test_a_key_rule_that_can_not_be_is_refused_here(words, why) -> None:
    refused = call("job", "create", *words.split())
    assert refused.exit_code == 2
    assert why in refused.stderr


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (None, "no more"),
        ({"scope": "cluster", "until": "window_ends", "expires_at": "2026-…"}, "until 2026-…"),
        (
            {"scope": "queue", "until": "job_ends", "expires_at": None},
            "until the job has ended, in this queue",
        ),
    ],
)
def test_a_job_tells_how_its_key_holds(kit, key, told) -> None:
    with kit.serving() as peer:
        view = {**JOB, "idempotency_key": "k", "idempotency": key}
        peer.then("/v1/jobs/7", kit.Answer(200, view))
        shown = call("job", "get", "7", url=peer.url)
    assert shown.exit_code == 0, shown.output
    assert f"key holds        {told}" in shown.stdout


@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        (["--at", "1764480000000"], {"type": "at", "time": 1_764_480_000_000}),
        (["--at", "2026-01-01T00:00Z"], {"type": "at", "time": "2026-01-01T00:00Z"}),
        (["--every", "250ms", "--catch-up", "all"], {"interval_ms": 250, "catch_up": "all"}),
        (["--cron", "0 9 * * *", "--time-zone", "Europe/Berlin"], {"time_zone": "Europe/Berlin"}),
        ([], None),
    ],
)  # fmt: skip
def test_schedules(kit, words, schedule) -> None:
    with kit.serving() as peer:
        peer.then("/v1/jobs", kit.Answer(201, CREATED))
        assert call("job", "create", *words, url=peer.url).exit_code == 0
    sent = peer.seen[0].body.get("schedule")
    assert sent == schedule if schedule is None else schedule.items() <= sent.items()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--payload", "{"], "--payload"),
        (["--payload", "[" * 5_000], "--payload"),
        (["--queue", "\udcff"], "queue"),
        (["--after", "5"], "--after"),
        (["--after", "1s", "--cron", "* * * * *"], "--after and --cron"),
        (["--time-zone", "UTC"], "--time-zone"),
        (["--until", "1"], "--until"),
        (["--priority", "10"], "--priority"),
        (["--url", "ftp://x"], "--url"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_usage_error_names_the_option_and_exits_with_2(words, named) -> None:
    result = call("job", "create", *words)
    assert result.exit_code == 2
    assert named in result.stderr


def test_a_refusal_is_one_line_that_names_the_fields(kit) -> None:
    fields = [
        {"field": "schedule.expression", "detail": "61 is no minute"},
        {"field": "priority", "detail": "too high"},
    ]
    problem = kit.problem("invalid-request", 400, detail="schedule.expression: no", errors=fields)
    with kit.serving() as peer:
        peer.then("/v1/jobs", kit.Answer(400, problem))
        result = call("job", "create", "--cron", "61 * * * *", url=peer.url)
    assert result.exit_code == 1
    assert result.stderr == "Error: schedule.expression: no; priority: too high\n"
    assert result.stdout == ""


def test_an_unreachable_cluster_is_one_line() -> None:
    result = call("cluster", "--timeout-ms", "50")
    assert result.exit_code == 1
    assert "could not be reached" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_job_is_shown_and_listed(kit) -> None:
    with kit.serving() as peer:
        page = {"jobs": [JOB] * 3, "cursor": "more", "applied_index": 1}
        peer.then("/v1/jobs/7", kit.Answer(200, JOB))
        peer.then("/v1/jobs", kit.Answer(200, page))
        one = call("job", "get", "7", url=peer.url)
        many = call("job", "list", "--limit", "2", "--queue", "mail", url=peer.url)
    assert "0 9 * * * (Europe/Berlin)" in one.stdout
    assert "succeeded 3" in one.stdout
    assert "dead 0" not in one.stdout
    assert len(many.stdout.splitlines()) == 3
    assert peer.seen[1].query == {"queue": "mail", "limit": "2"}


def test_json_is_json(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/jobs/7", kit.Answer(200, JOB))
        answer = json.loads(call("job", "get", "7", "--json", url=peer.url).stdout)
    assert answer["schedule"]["type"] == "cron"
    assert answer["timetable"]["missed"] == 2


def test_a_cancel_tells_what_it_did(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/jobs/7/cancel", kit.Answer(200, {"job_id": "7", "status": "requested"}))
        result = call("job", "cancel", "7", url=peer.url)
    assert "worker still holds" in result.stdout


def test_an_execution_is_shown_with_its_attempts_and_nothing_moves_the_cursor(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/executions/7-2", kit.Answer(200, EXECUTION))
        result = call("execution", "get", "7-2", url=peer.url)
    assert "attempts_exhausted:failed" in result.stdout
    assert "ValueError: bad\\x1b[31m\\nthing" in result.stdout
    assert "\x1b" not in result.stdout


def test_dead_letters_are_listed_and_replayed(kit) -> None:
    with kit.serving() as peer:
        page = {"executions": [EXECUTION], "cursor": None, "applied_index": 1}
        answers = [
            {"execution_id": "7-2", "status": "replayed"},
            {"execution_id": "8-2", "status": "not_dead"},
        ]
        peer.then("/v1/dead", kit.Answer(200, page))
        peer.then("/v1/dead/replay", kit.Answer(200, {"results": answers}))
        listed = call("dead", "list", url=peer.url)
        replayed = call("dead", "replay", "7-2", "8-2", url=peer.url)
    assert "7-2" in listed.stdout
    assert peer.seen[1].body == {"execution_ids": ["7-2", "8-2"]}
    assert replayed.exit_code == 1
    assert "1 of 2" in replayed.stderr


def test_the_cluster_is_shown(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/cluster", kit.Answer(200, CLUSTER))
        result = call("cluster", url=peer.url)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["leader", "a"] in lines
    assert ["default", "12", "-", "1", "-"] in lines


def test_a_snapshot_is_asked_for(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/cluster/snapshot", kit.Answer(202, {"node": "b", "index": 12}))
        result = call("cluster", "snapshot", url=peer.url)
        misplaced = call("cluster", "--url", peer.url, "snapshot")
    assert result.stdout == "b writes a snapshot of position 12\n"
    assert len(peer.seen) == 1
    assert (peer.seen[0].method, misplaced.exit_code) == ("POST", 2)
    assert "after 'snapshot'" in misplaced.stderr


def replacement(**differing):
    view = {
        "node": "b", "connected": True, "standing": "voter", "incarnation": 1, "match_index": 100,
        "commit_index": 100, "snapshot_percent": None, "quorum": 2, "voters": ["a", "c"],
    }  # fmt: skip
    return {**view, **differing}


def replace(kit, monkeypatch, *views, wait="60", options=()):
    monkeypatch.setattr(replacing, "POLL_S", 0.001)
    with kit.serving() as peer:
        for view in views:
            peer.then("/v1/cluster/nodes/b", kit.Answer(200, view))
        peer.usual["/v1/cluster/nodes/b"] = kit.Answer(200, views[-1])
        return call("cluster", "replace", "b", "--wait-s", wait, *options, url=peer.url)


def test_the_replacement_of_a_node_is_watched_until_it_votes(kit, monkeypatch) -> None:
    new = {"incarnation": 2, "standing": "joining"}
    result = replace(
        kit,
        monkeypatch,
        replacement(),
        replacement(),
        replacement(connected=False),
        replacement(standing=None, incarnation=None),
        replacement(**new, match_index=0, snapshot_percent=40),
        replacement(**new, match_index=70),
        replacement(**new, match_index=70),
        replacement(incarnation=2),
    )
    assert (result.exit_code, result.stdout) == (0, "b votes\n")
    assert result.stderr.splitlines() == [
        "a, c vote and can spare b. Now stop b, put an empty data folder in its place, and start b "
        "with the same configuration",
        "b still votes with the disk that it had",
        "b is down",
        "b is connected, and has not answered yet",
        "b joins: 40 % of a snapshot has arrived",
        "b joins: holds 70 % of the log",
        "b votes",
    ]


def test_a_node_that_was_replaced_before_is_watched_too(kit, monkeypatch) -> None:
    joining = replacement(standing="joining", incarnation=2)
    result = replace(kit, monkeypatch, joining, joining, replacement(incarnation=2))
    assert (result.exit_code, result.stderr.splitlines()[0]) == (0, "b has a new disk already")
    dead = replacement(connected=False, standing=None, incarnation=None)
    result = replace(kit, monkeypatch, dead, replacement(), options=["--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, replacement())


def test_a_node_that_the_others_can_not_spare_is_not_to_be_replaced(kit, monkeypatch) -> None:
    result = replace(kit, monkeypatch, replacement(voters=["a"]))
    assert result.exit_code == 1
    assert "2 members must vote and be in touch, but 1 do (a)" in result.stderr


def test_a_replacement_that_takes_too_long_is_a_failure_that_says_how_far_it_is(
    kit, monkeypatch
) -> None:
    slow = replacement(standing="joining", incarnation=2, match_index=5)
    result = replace(kit, monkeypatch, replacement(), slow, wait="1")
    assert result.exit_code == 1
    assert "after 1 s; the last: b joins: holds 5 % of the log" in result.stderr


def test_several_urls_may_be_given(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/cluster", kit.Answer(200, CLUSTER))
        dead = "http://127.0.0.1:1"
        assert call("cluster", "--url", dead, "--url", peer.url).exit_code == 0


def test_the_version_is_the_distributions() -> None:
    assert version("timeball") in call("--version").stdout


def test_commands_of_other_parts_are_found(monkeypatch) -> None:
    entry = EntryPoint("hello", "timeball.client.cli.cluster:cluster", group.COMMANDS)
    _install(monkeypatch, entry)
    assert "hello" in call("--help").stdout
    assert "nodes and queues" in call("hello", "--help").stdout


@pytest.mark.parametrize("target", ["timeball_absent.commands:x", "timeball.client.cli:absent"])
def test_a_command_whose_part_is_missing_says_so_in_one_line(monkeypatch, target) -> None:
    _install(monkeypatch, EntryPoint("server", target, group.COMMANDS))
    assert call("--help").exit_code == 0
    result = call("server", "--config", "x", "positional")
    assert result.exit_code == 2
    assert "timeball[server]" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def _install(monkeypatch, entry) -> None:
    from importlib.metadata import EntryPoints

    installed = EntryPoints([entry])
    monkeypatch.setattr(group, "entry_points", lambda **wanted: installed.select(**wanted))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250ms", 250), ("1.5s", 1_500), ("10m", 600_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_durations(text, expected) -> None:
    assert DURATION.convert(text, None, None) == expected


def test_tables_align_also_wide_characters() -> None:
    text = output.table(["name", "n"], [("東京", 5), ("a", None), ("b", 120)])
    assert text.splitlines() == ["NAME    N", "東京    5", "a       -", "b     120"]
    assert output.table(["a"], []) == "nothing"
    assert output.table(["a"], [("x" * 100,)]).splitlines()[1] == "x" * 59 + "…"


def test_every_command_that_reads_takes_how_fresh_it_must_be(kit) -> None:
    executions = {"executions": [], "cursor": None, "applied_index": 9}
    fresh = ["--consistency", "strong", "--min-index", "9"]
    with kit.serving() as peer:
        peer.then("/v1/jobs/7", kit.Answer(200, JOB))
        peer.then("/v1/jobs", kit.Answer(200, {"jobs": [], "cursor": None, "applied_index": 9}))
        peer.then("/v1/executions/7-2", kit.Answer(200, EXECUTION))
        peer.then("/v1/executions", kit.Answer(200, executions))
        peer.then("/v1/dead", kit.Answer(200, executions))
        peer.then("/v1/cluster", kit.Answer(200, CLUSTER))
        for words in (
            "job get 7", "job list", "execution get 7-2", "execution list", "dead list", "cluster"
        ):  # fmt: skip
            result = call(*words.split(), *fresh, url=peer.url)
            assert result.exit_code == 0, result.output
            assert peer.seen[-1].query["consistency"] == "strong"
            assert peer.seen[-1].query["min_index"] == "9"
    assert len(peer.seen) == 6


def test_a_freshness_that_is_none_is_refused_before_anybody_is_asked() -> None:
    for words in ("--consistency weak", "--min-index -1", "--min-index 9007199254740992"):
        result = call("job", "get", "7", *words.split())
        assert result.exit_code == 2
        assert words.split()[0] in result.stderr

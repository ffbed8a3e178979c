"""The calls and commands of dead letters, against a scripted peer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from timeball.client import Client, Overloaded
from timeball.client.cli import main

LETTER = {
    "execution_id": "7-2", "job_id": "7", "queue": "mail", "state": "dead",
    "reason": "attempts_exhausted:failed", "origin": None, "nominal_at": "", "due_at": "",
    "due": False, "finished_at": "2026-01-01T00:00:01.500Z", "attempts_used": 1,
    "max_attempts": 1, "cancel_requested": False, "result": None,
    "attempts": [
        {"number": 1, "worker": "w1", "token": 4096, "outcome": "failed",
         "claimed_at": "c", "started_at": None, "finished_at": "f",
         "error_type": "ValueError", "message": "bad", "backtrace": "line 1\nline \x1b[31m2"}
    ],
}  # fmt: skip
UNTIL = "2026-01-01T00:00:01.501000+00:00"


def page(*letters, cursor=None):
    return {"executions": [*letters], "cursor": cursor, "applied_index": 1}


def moved(matched, count, cursor=None):
    return {"matched": matched, "moved": count, "cursor": cursor, "applied_index": 1}


def call(*arguments, url, typed=None):
    return CliRunner().invoke(main, [*arguments], input=typed, env={"TIMEBALL_URLS": url})


def test_what_dies_while_dead_letters_are_moved_is_left_alone(kit) -> None:
    """The newest of now is looked up first; what is dead later is out of every page."""

    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/dead", kit.Answer(200, page(LETTER, cursor="more")))
            path = "/v1/dead/replay-matching"
            answers = [moved(1_000, 990, "c1"), moved(0, 0, "c2"), moved(5, 5)]
            peer.then(path, *(kit.Answer(200, answer) for answer in answers))
            assert await client.replay_matching(queue="mail", reason="attempts_exhausted") == 995
            chosen = {"queue": "mail", "reason": "attempts_exhausted"}
            assert peer.seen[0].query == {**chosen, "limit": "1", "consistency": "strong"}
            bodies = [seen.body for seen in peer.to(path)]
            rest = {**chosen, "died_before": UNTIL, "limit": 1_000}
            assert bodies == [{**rest, "cursor": cursor} for cursor in (None, "c1", "c2")]

    kit.run(scenario())


def test_a_limit_bounds_all_pages_together(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/dead", kit.Answer(200, page(LETTER)))
            path = "/v1/dead/purge-matching"
            peer.then(path, *(kit.Answer(200, moved(n, n, "more")) for n in (1_000, 200)))
            assert await client.purge_matching(job="7", limit=1_200) == 1_200
            assert peer.seen[0].query["job"] == "7"
            assert [seen.body["limit"] for seen in peer.to(path)] == [1_000, 200]
            assert [seen.body["job_id"] for seen in peer.to(path)] == ["7", "7"]

    kit.run(scenario())


def test_nothing_is_moved_where_nothing_is_dead(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/dead", *(kit.Answer(200, page(cursor=c)) for c in ("more", None)))
            assert await client.purge_matching() == 0
            assert [seen.method for seen in peer.seen] == ["GET", "GET"]

    kit.run(scenario())


def test_what_was_moved_before_an_error_is_noted(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, timeout_ms=1_000) as client:
            peer.then("/v1/dead", kit.Answer(200, page(LETTER)))
            full = {"type": "urn:timeball:problem:overloaded", "title": "", "status": 429,
                    "outcome": "not_applied"}  # fmt: skip
            peer.then(
                "/v1/dead/purge-matching",
                kit.Answer(200, moved(9, 9, "more")),
                *[kit.Answer(429, full)] * 50,
            )
            with pytest.raises(Overloaded) as refused:
                await client.purge_matching()
            assert "9 dead letters of earlier pages" in refused.value.__notes__[0]

    kit.run(scenario())


def test_dead_letters_are_listed_by_what_they_died_of(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/dead", kit.Answer(200, page(LETTER)))
        words = ["--queue", "mail", "--error-type", "", "--reason", "non_retryable"]
        words += ["--died-after", "2026-01-01T00:00Z", "--died-before", "1764480000000"]
        result = call("dead", "list", *words, url=peer.url)
    assert result.exit_code == 0, result.output
    assert peer.seen[0].query == {
        "queue": "mail",
        "error_type": "",
        "reason": "non_retryable",
        "died_after": "2026-01-01T00:00Z",
        "died_before": "1764480000000",
        "limit": "50",
    }


@pytest.mark.parametrize(("command", "verb"), [("replay", "Replay"), ("purge", "Purge")])
def test_many_are_moved_once_that_is_confirmed(kit, command, verb) -> None:
    path = f"/v1/dead/{command}-matching"
    with kit.serving() as peer:
        peer.then("/v1/dead", *[kit.Answer(200, page(LETTER))] * 3)
        peer.then(path, *[kit.Answer(200, moved(4, 4))] * 3)
        words = ["dead", command, "--queue", "mail", "--limit", "9"]
        refused = call(*words, url=peer.url, typed="n\n")
        silent = call(*words, url=peer.url, typed="")
        assert peer.seen == []
        agreed = call(*words, url=peer.url, typed="y\n")
        sure = call("dead", command, "--all", "--yes", "--json", url=peer.url)
        bodies = [seen.body for seen in peer.to(path)]
    assert (refused.exit_code, silent.exit_code) == (1, 1)
    assert f"{verb} the newest 9 dead letters (queue mail)?" in refused.output
    assert agreed.exit_code == 0
    assert agreed.stdout.endswith(f"4 {command.rstrip('e')}ed\n"[-12:])
    assert list(json.loads(sure.stdout).values()) == [4]
    assert (bodies[0]["queue"], bodies[0]["limit"]) == ("mail", 9)
    assert "queue" not in bodies[1]


@pytest.mark.parametrize("command", ["replay", "purge"])
@pytest.mark.parametrize(
    "words",
    [
        ["--yes"],
        ["--yes", "--limit", "5"],
        ["--yes", "--all", "--queue", "mail"],
        ["7-2", "--queue", "mail"],
        ["7-2", "--all"],
        ["7-2", "--limit", "5"],
        ["--yes", "--reason", "bad-luck"],
        ["--yes", "--limit", "0", "--all"],
    ],
)
def test_what_chooses_nothing_or_two_things_is_a_usage_error(kit, command, words) -> None:
    with kit.serving() as peer:
        result = call("dead", command, *words, url=peer.url)
        assert result.exit_code == 2, result.output
        assert peer.seen == []


def test_those_that_are_named_are_purged_without_a_question(kit) -> None:
    with kit.serving() as peer:
        answers = [
            {"execution_id": "7-2", "status": "purged"},
            {"execution_id": "8-2", "status": "unknown"},
        ]
        peer.then("/v1/dead/purge", kit.Answer(200, {"results": answers}))
        result = call("dead", "purge", "7-2", "8-2", url=peer.url)
        assert peer.seen[0].body == {"execution_ids": ["7-2", "8-2"]}
    assert result.exit_code == 1
    assert "1 of 2 were not purged" in result.stderr


def test_an_execution_is_shown_with_the_backtrace_of_its_last_error(kit) -> None:
    with kit.serving() as peer:
        peer.then("/v1/executions/7-2", kit.Answer(200, LETTER))
        result = call("execution", "get", "7-2", url=peer.url)
    told = result.stdout.splitlines()
    assert told[-3:] == ["backtrace of attempt 1", "  line 1", "  line \\x1b[31m2"]

"""Queues in the client and on the command line, against a scripted peer on loopback."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from timeball.client import (
    Client,
    OutcomeUnknown,
    PreconditionFailed,
    QueueDraining,
    QueueSettings,
    RateLimit,
    SyncClient,
)
from timeball.client.cli import main

QUEUE = {
    "name": "mail", "state": "active", "max_concurrency": 4, "max_concurrency_per_key": None,
    "rate_limit": {"executions": 100, "per_ms": 60_000, "burst": 5}, "version": 3,
    "scheduled": 9, "leased": 4, "dead": 0, "ready": 2, "oldest_due_ms": 17,
    "waiting_claims": 1, "held_back_by": ["max_concurrency", "rate_limit"], "applied_index": 12,
}  # fmt: skip
PATH = "/v1/queues/mail"


@pytest.fixture
def peer(kit):
    with kit.serving() as peer:
        yield peer


def test_a_queue_is_read_and_queues_are_iterated_over(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(PATH, kit.Answer(200, QUEUE))
            page = {"queues": [QUEUE], "cursor": "mail", "applied_index": 12}
            last = {**page, "cursor": None}
            peer.then("/v1/queues", kit.Answer(200, page), kit.Answer(200, last))
            queue = await client.queue("mail")
            assert (queue.version, queue.rate_limit) == (
                3,
                RateLimit(executions=100, per_ms=60_000, burst=5),
            )
            assert [one.name async for one in client.queues(page_size=1)] == ["mail", "mail"]

    kit.run(scenario())


def test_a_change_says_what_it_changes_and_nothing_else(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(PATH, *[kit.Answer(200, QUEUE)] * 2)
            for verb in ("pause", "drain", "resume"):
                peer.then(f"{PATH}/{verb}", kit.Answer(200, QUEUE))
            limit = RateLimit(executions=5)
            await client.update_queue("mail", rate_limit=limit, max_concurrency=None, if_version=0)
            await client.put_queue("mail", QueueSettings(max_concurrency_per_key=1))
            await client.pause_queue("mail", if_version=3)
            await client.drain_queue("mail")
            await client.resume_queue("mail")
            update, put, pause, *_ = peer.seen
            assert (update.method, update.headers["if-match"]) == ("PATCH", '"0"')
            assert update.body["max_concurrency"] is None
            assert "state" not in update.body
            assert put.method == "PUT"
            assert put.body["max_concurrency_per_key"] == 1
            assert put.body["state"] == "active"
            assert pause.headers["if-match"] == '"3"'

    kit.run(scenario())


def test_problems_of_queues_are_exceptions_of_their_own(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:
            draining = kit.problem("queue-draining", 409, detail="queue: this queue is draining")
            one.then("/v1/jobs", kit.Answer(409, draining))
            with pytest.raises(QueueDraining, match="draining"):
                await client.create(queue="mail")
            stale = kit.Answer(412, kit.problem("precondition-failed", 412, detail="at version 4"))
            one.then(PATH, stale, None)
            two.then(PATH, stale)
            with pytest.raises(PreconditionFailed):
                await client.update_queue("mail", state="paused", if_version=3)
            with pytest.raises(OutcomeUnknown, match="at version 4"):
                await client.update_queue("mail", state="paused", if_version=3)

    kit.run(scenario())


def test_a_program_without_a_loop_configures_queues_too(peer, kit) -> None:
    peer.then(f"{PATH}/pause", kit.Answer(200, QUEUE))
    with SyncClient(peer.url) as client:
        assert client.pause_queue("mail").name == "mail"


def run(peer, *words, code=0):
    result = CliRunner().invoke(main, ["queue", *words, "--url", peer.url])
    assert result.exit_code == code, result.output
    return result.output


def test_show_and_list_say_how_a_queue_stands(peer, kit) -> None:
    peer.then(PATH, *[kit.Answer(200, QUEUE)] * 2)
    shown = run(peer, "show", "mail")
    assert "100/1m, burst 5" in shown
    assert "max_concurrency, rate_limit" in shown
    assert json.loads(run(peer, "show", "mail", "--json"))["version"] == 3
    page = {"queues": [QUEUE], "cursor": None, "applied_index": 12}
    peer.then("/v1/queues", kit.Answer(200, page))
    assert "mail" in run(peer, "list")


@pytest.mark.parametrize("verb", ["pause", "drain", "resume"])
def test_a_queue_is_paused_drained_and_resumed(peer, kit, verb) -> None:
    peer.then(f"{PATH}/{verb}", kit.Answer(200, QUEUE))
    run(peer, verb, "mail", "--if-version", "3")
    assert peer.seen[0].headers["if-match"] == '"3"'


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["--max-concurrency", "4"], {"max_concurrency": 4}),
        (["--max-concurrency-per-key", "none"], {"max_concurrency_per_key": None}),
        (
            ["--rate", "100/1s", "--burst", "7"],
            {"rate_limit": {"executions": 100, "per_ms": 1_000, "burst": 7}},
        ),
        (["--rate", "none"], {"rate_limit": None}),
    ],
)
def test_limits_are_set_one_by_one(peer, kit, words, body) -> None:
    peer.then(PATH, kit.Answer(200, QUEUE))
    run(peer, "set", "mail", *words)
    assert peer.seen[0].body == body


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--max-concurrency", "0"],
        ["--max-concurrency", "1000001"],
        ["--max-concurrency-per-key", "many"],
        ["--rate", "100"],
        ["--rate", "100/"],
        ["--rate", "0/1s"],
        ["--burst", "3"],
        ["--rate", "none", "--burst", "3"],
    ],
)
def test_limits_that_mean_nothing_are_usage_errors(peer, words) -> None:
    run(peer, "set", "mail", *words, code=2)
    assert peer.seen == []

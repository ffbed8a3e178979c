"""What few jobs ask for, through the client library and on the command line."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from timeball.client import Client, Every, Worker, task
from timeball.client.cli import main

CREATED = {"status": "created", "job_id": "7", "execution_id": "7-1", "next_fires": []}
CHANGED = {"status": "changed", "job_id": "7", "version": 2, "next_fires": []}
JOB = {
    "job_id": "7", "queue": "mail", "state": "active", "payload": None, "schedule": None,
    "priority": 5, "partition_key": "", "retry": {}, "timeout_ms": None, "idempotency_key": None,
    "created_at": "2026-01-01T00:00:00Z", "next_fires": [], "execution_counts": {}, "version": 1,
    "timetable": None, "concurrency_key": "ann", "requires": ["eu", "gpu"], "tags": ["t"],
    "expires_at": "2026-01-02T00:00:00Z", "expires_after_ms": 90_000,
}  # fmt: skip
OPTIONS = {
    "concurrency_key": "ann", "requires": ["gpu", "eu"], "tags": ["t"],
    "expires_at": "2026-01-02T00:00:00Z", "expires_after_ms": 90_000,
}  # fmt: skip


def call(kit, words: str, path: str, answer, *, method: str = ""):
    with kit.serving() as peer:
        peer.then(path, answer)
        result = CliRunner().invoke(main, words.split(), env={"TIMEBALL_URLS": peer.url})
        assert result.exit_code == 0, result.output
        return peer.seen[-1], result.stdout


def test_a_create_carries_them_and_leaves_out_what_is_not_given(kit) -> None:
    @task(queue="mail", requires=["gpu"], tags=["t"], expires_after_ms=5)
    def send(to: str) -> None: ...

    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs", *[kit.Answer(201, CREATED)] * 3)
            await client.create(**OPTIONS)
            await client.create()
            await send.submit(client, to="ann")
            first, second, third = (seen.body for seen in peer.seen)
            assert {name: first[name] for name in OPTIONS} == OPTIONS
            assert not OPTIONS.keys() & second.keys()
            assert (third["requires"], third["expires_after_ms"]) == (["gpu"], 5)

    kit.run(scenario())


def test_one_text_is_no_sequence_of_tags(kit) -> None:
    async def scenario() -> None:
        async with Client("http://127.0.0.1:1") as client:
            for field in ("requires", "tags"):
                with pytest.raises(TypeError, match=field):
                    await client.create(**{field: "gpu"})
            with pytest.raises(TypeError, match="tags"):
                Worker(client, "mail", lambda _: None, tags="gpu")

    kit.run(scenario())


def test_changes_name_what_they_change(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs/7", *[kit.Answer(200, CHANGED)] * 2)
            peer.then("/v1/jobs/by-name/n", kit.Answer(200, CHANGED))
            await client.update_job("7", requires=[], expires_at=None)
            await client.update_job("7", tags=["a"], expires_after_ms=3)
            await client.put_job("n", schedule=Every(60_000), requires=["gpu"], tags=["a"])
            assert peer.seen[0].body == {"requires": [], "expires_at": None}
            assert peer.seen[1].body == {"tags": ["a"], "expires_after_ms": 3}
            assert (peer.seen[2].body["requires"], peer.seen[2].body["tags"]) == (["gpu"], ["a"])

    kit.run(scenario())


def test_a_worker_offers_its_tags_with_every_claim(kit) -> None:
    async def scenario() -> None:
        async with (
            kit.peers(1) as [peer],
            Client(peer.url) as client,
            Worker(client, "mail", lambda _: None, tags=["gpu", "eu"]),
        ):
            await peer.until(lambda: len(peer.to("/v1/claims")) >= 2)
            assert all(seen.body["tags"] == ["gpu", "eu"] for seen in peer.to("/v1/claims"))

    kit.run(scenario())


def test_lists_are_restricted_to_a_tag(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs", kit.Answer(200, {"jobs": [], "cursor": None, "applied_index": 1}))
            page = {"executions": [], "cursor": None, "applied_index": 1}
            peer.then("/v1/executions", kit.Answer(200, page))
            assert [job async for job in client.jobs(tag="a")] == []
            assert [one async for one in client.executions(tag="a")] == []
            assert [seen.query["tag"] for seen in peer.seen] == ["a", "a"]

    kit.run(scenario())


def test_the_command_line_creates_with_them(kit) -> None:
    words = (
        "job create --concurrency-key ann --requires gpu --requires eu --tag t --expires-after 90s"
    )
    seen, _ = call(
        kit, f"{words} --expires-at 2026-01-02T00:00:00Z", "/v1/jobs", kit.Answer(201, CREATED)
    )
    assert {name: seen.body[name] for name in OPTIONS} == OPTIONS
    words = "job create --name n --every 1m --requires gpu --expires-after 1s"
    seen, _ = call(kit, words, "/v1/jobs/by-name/n", kit.Answer(200, CHANGED))
    assert (seen.body["requires"], seen.body["expires_after_ms"]) == (["gpu"], 1_000)


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ("--requires gpu --expires-at 17", {"requires": ["gpu"], "expires_at": 17}),
        ("--no-requires --no-tags", {"requires": [], "tags": []}),
        ("--no-expiry", {"expires_at": None, "expires_after_ms": None}),
    ],
)
def test_the_command_line_changes_them(kit, words: str, body) -> None:
    seen, _ = call(kit, f"job update 7 {words}", "/v1/jobs/7", kit.Answer(200, CHANGED))
    assert (seen.method, seen.body) == ("PATCH", body)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("job update 7 --requires gpu --no-requires", "--requires"),
        ("job update 7 --tag a --no-tags", "--tag"),
        ("job update 7 --expires-after 1s --no-expiry", "--expires-after"),
        ("job create --name n --every 1m --expires-at 17", "--expires-at"),
    ],
)
def test_options_that_contradict_each_other_are_named(words: str, named: str) -> None:
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2
    assert named in result.stderr


def test_the_command_line_shows_them_and_lists_by_tag(kit) -> None:
    _, told = call(kit, "job get 7", "/v1/jobs/7", kit.Answer(200, JOB))
    for words in ("concurrency key  ann", "eu", "gpu", "2026-01-02T00:00:00Z", "90s"):
        assert words in told
    page = {"cursor": None, "applied_index": 1}
    for noun, path in (("job", "/v1/jobs"), ("execution", "/v1/executions")):
        answer = kit.Answer(200, {f"{noun}s": [], **page})
        seen, _ = call(kit, f"{noun} list --tag t", path, answer)
        assert seen.query["tag"] == "t"

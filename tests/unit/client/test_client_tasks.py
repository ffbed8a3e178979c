"""Tasks: what is submitted, what a worker makes of it, and what is refused by name."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from kinds import square

from timeball.client import (
    After,
    Client,
    InvalidRequest,
    Retry,
    SyncClient,
    Worker,
    current_execution,
    task,
)
from timeball.client.tasks import InvalidArguments

CLAIMS = "/v1/claims"
COMPLETE = "/v1/executions/complete"
FAIL = "/v1/executions/fail"
CREATED = {"status": "created", "job_id": "7", "execution_id": "7-1764480000000"}


@dataclass
class Address:
    street: str
    zip_code: int


@task(queue="mail", retry=Retry(max_attempts=3), priority=7)
async def send(to: str, copies: int = 1, *, at: datetime | None = None) -> list[object]:
    """Send a letter."""
    return [to, copies, at, current_execution().attempt]


@task(queue="mail", name="deliver")
def bring(where: Address, raw: bytes = b"") -> object:
    return [type(where).__name__, where.zip_code, raw]


def test_a_submit_is_a_create_with_the_tasks_options_and_the_arguments_by_name(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs", *[kit.Answer(201, CREATED)] * 2)
            created = await send.submit(client, "ann", at=datetime(2026, 1, 2, tzinfo=UTC))
            assert created.job_id == "7"
            later = send.with_options(schedule=After(delay_ms=5), priority=1)
            await later.submit(client, to="bob", copies=2)
            first, second = (seen.body for seen in peer.seen)
        assert first["payload"] == {
            "task": "send",
            "args": {"to": "ann", "at": "2026-01-02T00:00:00Z"},
        }
        assert (first["queue"], first["priority"], first["retry"]["max_attempts"]) == ("mail", 7, 3)
        assert (second["queue"], second["priority"]) == ("mail", 1)
        assert second["schedule"] == {"type": "after", "delay_ms": 5}
        assert second["payload"]["args"] == {"to": "bob", "copies": 2}

    kit.run(scenario())


def test_the_synchronous_client_submits_too(kit) -> None:
    with kit.serving() as peer, SyncClient(peer.url) as client:
        peer.then("/v1/jobs", kit.Answer(201, CREATED))
        assert bring.submit(client, Address("Elm", 12)).job_id == "7"
    [seen] = peer.seen
    assert seen.body["payload"] == {
        "task": "deliver",
        "args": {"where": {"street": "Elm", "zip_code": 12}},
    }


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "says"),
    [
        ((), {}, TypeError, "send: missing a required argument: 'to'"),
        (("ann",), {"subject": "hi"}, TypeError, "unexpected keyword argument 'subject'"),
        (("ann", 1, 2), {}, TypeError, "too many positional"),
        ((5,), {}, InvalidRequest, "send.to: Expected `str`, got `int`"),
        (("ann",), {"copies": True}, InvalidRequest, "send.copies: Expected `int`, got `bool`"),
        (("ann",), {"copies": object()}, InvalidRequest, "send.copies"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_anything_is_sent(
    args, kwargs, kind, says
) -> None:
    with pytest.raises(kind, match=says):
        send.envelope(*args, **kwargs)


def test_a_nested_argument_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        bring.envelope(Address("Elm", "12"))  # type: ignore[arg-type]
    assert [error.field for error in caught.value.errors] == ["deliver.where.zip_code"]


def test_a_worker_dispatches_by_name_with_typed_arguments(kit) -> None:
    async def scenario() -> None:
        payloads = [
            {"task": "send", "args": {"to": "ann", "at": "2026-01-02T00:00:00Z"}},
            {"task": "deliver", "args": {"where": {"street": "Elm", "zip_code": 1}, "raw": "aGk="}},
        ]
        grant = kit.granted(
            *[kit.delivery(n, payload=p, queue="mail") for n, p in enumerate(payloads)]
        )
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, grant)
            async with Worker(client, tasks=[send, bring], concurrency={"mail": 2}):
                await peer.until(lambda: sum(len(s.body["items"]) for s in peer.to(COMPLETE)) == 2)
        assert peer.to(CLAIMS)[0].body["queue"] == "mail"
        assert peer.to(CLAIMS)[0].body["max_executions"] == 2
        done = {i["token"]: i["result"] for s in peer.to(COMPLETE) for i in s.body["items"]}
        assert done[1_000][:2] == ["ann", 1]
        assert done[1_000][2] == datetime(2026, 1, 2, tzinfo=UTC)
        assert done[1_001] == ["Address", 1, b"hi"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("payload", "kind", "says"),
    [
        ({"task": "sent", "args": {}}, "UnknownTask", "'sent' is not a task.*deliver, send"),
        ({"task": "send", "args": {"too": "x"}}, "InvalidArguments", "unknown field `too`"),
        ({"task": "send"}, "InvalidArguments", "missing required field `to`"),
        ({"task": "send", "args": {"to": 1}}, "InvalidArguments", r"Expected `str`.*\$.to"),
        (["send"], "InvalidArguments", "not a task's"),
    ],
)
def test_a_payload_that_does_not_fit_fails_its_attempt_with_the_reason(
    kit, payload, kind, says
) -> None:
    async def scenario() -> None:
        grant = kit.granted(kit.delivery(1, payload=payload, queue="mail"))
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, grant)
            async with Worker(client, tasks=[send, bring]):
                await peer.until(lambda: peer.to(FAIL))
        [item] = peer.to(FAIL)[0].body["items"]
        assert item["error_type"] == kind
        assert not item["non_retryable"]  # a newer worker may know better
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(item["message"])

    kit.run(scenario())


def test_a_task_can_run_in_a_process(kit) -> None:
    async def scenario() -> None:
        payload = {"task": "square", "args": {"number": 7}}
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(1, payload=payload)))
            async with asyncio.timeout(30), Worker(client, tasks=[square]):
                await peer.until(lambda: peer.to(COMPLETE))
        number, pid = peer.to(COMPLETE)[0].body["items"][0]["result"]
        assert number == 49
        assert pid != os.getpid()

    asyncio.run(scenario())


def test_a_task_is_called_like_its_function() -> None:
    assert square(3)[0] == 9
    assert send.__doc__ == "Send a letter."
    assert (send.queue, send.name, bring.name) == ("mail", "send", "deliver")


def test_functions_that_can_not_be_tasks_are_refused_by_parameter() -> None:
    def bare(x): ...
    def many(*xs: int): ...
    def odd(x: int): ...
    def ahead(x: int, /): ...

    odd.__annotations__ = {"x": type("Lock", (), {})}
    for function, says in ((bare, "'x'.*no annotation"), (many, "'xs'"), (odd, "'x'.*type")):
        with pytest.raises(TypeError, match=says):
            task(function)
    with pytest.raises(TypeError, match="'x'"):
        task(ahead)


def test_tasks_of_one_queue_have_different_names_and_handlers_are_no_tasks(kit) -> None:
    async def scenario() -> None:
        async with Client() as client:
            with pytest.raises(ValueError, match="'mail' are named 'send'"):
                Worker(client, tasks=[send, send.with_options(priority=1)])
            with pytest.raises(TypeError, match="not a task"):
                Worker(client, tasks=[print])  # type: ignore[list-item]
            with pytest.raises(TypeError, match=r"tasks=\[send\]"):
                Worker(client, "mail", send)

    kit.run(scenario())


def test_arguments_are_made_of_a_payload_with_the_functions_own_defaults() -> None:
    assert send.arguments({"to": "ann"}) == {"to": "ann"}
    with pytest.raises(InvalidArguments):
        send.arguments({})

"""The event stream without sockets: where it begins, what it tells, how it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from timeball.client.errors import NotCaughtUp
from timeball.client.messages import EventType
from timeball.cluster.history import History
from timeball.cluster.http.application import Application
from timeball.cluster.http.event_views import TYPES
from timeball.cluster.http.events import Events
from timeball.cluster.http.exchange import Request, Response, StreamBroken
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.state.operations import NewJob


class Replica:
    """A replica that has applied what the log has; no other position comes in time."""

    def __init__(self, log: Any) -> None:
        self.log = log

    @property
    def applied_index(self) -> int:
        return self.log.index

    async def read(self, index: int, *, strong: bool) -> None:
        raise NotCaughtUp(f"{index} was not applied in time")


class Stage:
    """A log whose entries a node's history follows, and the handler of its stream."""

    def __init__(self, log: Any, *, events: int = 1_000, streams: int = 4) -> None:
        self.log = log
        self.history = History(log.machine, events, 10**9)
        apply = log.machine.apply

        def applying(index: int, entry: bytes) -> Any:
            applied = apply(index, entry)
            self.history.on_applied(index, 1, entry, applied)
            return applied

        log.machine.apply = applying
        services: Any = SimpleNamespace(
            replica=Replica(log),
            applied_index=7,
            history=self.history,
            settings=SimpleNamespace(process=SimpleNamespace(event_streams=streams)),
        )
        self.application = Application(
            Events(services).routes(),
            serving=lambda: False,
            has_room=lambda: True,
            applied_index=lambda: log.index,
            forwarder=Forwarder(lambda: None, "http://here"),
        )

    async def open(self, query: str = "", **headers: str) -> Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.application.handle(
            Request("GET", "/v1/events", query=query, headers=sent)
        )

    async def told(self, query: str = "", **headers: str) -> list[dict[str, Any]]:
        """What a stream tells until it has told everything."""
        response = await self.open(f"follow=false&{query}".rstrip("&"), **headers)
        assert response.status == 200, response.body
        return [event async for event in events(response)]

    async def refused(self, query: str = "", **headers: str) -> dict[str, Any]:
        response = await self.open(query, **headers)
        assert response.stream is None
        problem = msgspec.json.decode(response.body)
        assert problem["status"] == response.status
        return problem


async def events(response: Response) -> AsyncIterator[dict[str, Any]]:
    assert response.stream is not None
    async for part in response.stream.parts:
        for frame in part.decode().split("\n\n"):
            if "data: " in frame:
                head, data = frame.split("\ndata: ")
                event = msgspec.json.decode(data)
                assert head == f"id: {event['id']}"
                yield event


@pytest.fixture
def stage(log) -> Stage:
    return Stage(log)


async def test_a_life_is_told_under_rising_ids(stage):
    log = stage.log
    begun = log.index
    hold, token = log.claimed()
    log.succeed(hold, token)
    told = await stage.told(f"after={begun}")
    assert [event["type"] for event in told] == [
        *("execution.created", "execution.leased"),
        "execution.succeeded",
    ]
    assert [event["id"] for event in told] == [f"{begun + n}-0" for n in (1, 2, 3)]
    assert told[1] == {
        **{"id": f"{begun + 2}-0", "type": "execution.leased", "queue": "mail"},
        **{"at": "2025-11-30T05:20:00.000Z", "job_id": str(hold[0]), "state": "leased"},
        **{"execution_id": f"{hold[0]}-{hold[1]}", "due_at": "2025-11-30T05:20:00.000Z"},
        **{"attempt": 1, "token": token, "worker": "w1"},
    }


async def test_a_stream_goes_on_behind_an_event_in_the_middle_of_an_entry(stage):
    stage.log.create_all(*[NewJob("mail", b"\xc0") for _ in range(3)])
    index = stage.log.index
    everything = await stage.told(f"after={index - 1}")
    assert [event["id"] for event in everything] == [f"{index}-{n}" for n in range(3)]
    assert await stage.told(f"after={index}-0") == everything[1:]
    assert await stage.told(f"after={index}-2") == []
    assert await stage.told(f"after={index}") == []
    # A browser asks as at first, and says in the header how far it has come.
    assert await stage.told("after=1", last_event_id=f"{index}-1") == everything[2:]


async def test_without_a_position_only_what_comes_is_told(stage):
    stage.log.create()
    response = await stage.open()
    coming = events(response)
    first = asyncio.ensure_future(anext(coming))
    await asyncio.sleep(0)
    hold = stage.log.create()
    assert (await first)["job_id"] == str(hold[0])
    await response.stream.parts.aclose()
    assert stage.history.counts.open == 0


async def test_filters_let_through_what_all_of_them_admit(stage):
    log = stage.log
    hold, token = log.claimed()
    log.fail(hold, token, non_retryable=True, error_type="Boom")
    other, _ = log.claimed(queue="other")
    log.cancel(other)

    async def types(query: str) -> list[str]:
        return [event["type"] for event in await stage.told(f"after=oldest&{query}")]

    assert await types("queue=other&type=execution.created") == ["execution.created"]
    assert await types(f"job={hold[0]}") == [
        *("execution.created", "execution.leased"),
        "execution.failed",
    ]
    assert await types("type=job") == ["job.cancelled"]
    assert await types("type=job,execution.failed") == ["execution.failed", "job.cancelled"]
    assert await types("state=dead,scheduled&queue=mail") == [
        *("execution.created", "execution.failed"),
    ]
    assert await types("queue=none") == []
    (failed,) = await stage.told("after=oldest&state=dead")
    assert (failed["error_type"], failed["reason"]) == ("Boom", "non_retryable")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("after=x", "after"),
        ("after=-1", "after"),
        ("after=1-", "after"),
        ("after=1-2-3", "after"),
        (f"after={2**53}", "after"),
        ("type=execution.exploded", "type"),
        ("type=", "type"),
        ("state=due", "state"),
        ("queue=%20", "queue"),
        ("job=x", "job"),
        ("follow=1", "follow"),
        ("min_index=1", "min_index"),
    ],
)
async def test_a_wrong_parameter_is_named(stage, query, field):
    problem = await stage.refused(query)
    assert (problem["status"], problem["errors"][0]["field"]) == (400, field)


async def test_a_wrong_last_event_id_is_named(stage):
    problem = await stage.refused(last_event_id="here")
    assert problem["errors"][0]["field"] == "last-event-id"


async def test_only_an_event_stream_is_to_be_had(stage):
    assert (await stage.refused(accept="application/json"))["status"] == 406
    for accept in ("*/*", "text/event-stream", "application/json, text/*;q=0.5"):
        assert (await stage.open("follow=false", accept=accept)).status == 200


async def test_what_is_not_kept_is_gone_by_name(log):
    stage = Stage(log, events=3)
    for _ in range(5):
        log.create()
    problem = await stage.refused(f"after={log.index - 4}")
    assert (problem["status"], problem["oldest_index"]) == (410, log.index - 3)
    assert problem["type"] == "urn:timeball:problem:events-gone"
    assert len(await stage.told(f"after={problem['oldest_index']}")) == 3
    assert len(await stage.told("after=oldest")) == 3
    assert stage.history.events == 3


async def test_the_history_is_bounded_by_bytes_too(log):
    stage = Stage(log)
    log.create()
    bytes_each = stage.history.bytes
    stage.history._max_bytes = 3 * bytes_each + 20
    for _ in range(9):
        log.create()
    assert stage.history.events == 3
    assert stage.history.bytes <= stage.history._max_bytes
    log.create(queue="q" * 60)
    assert stage.history.events == 2, "its texts count"


async def test_nothing_of_the_history_is_walked_by_the_collector(log):
    stage = Stage(log)
    log.create()
    batch = stage.history.batch(stage.history.next - 1)
    assert batch is not None
    assert not gc.is_tracked(batch)
    assert not gc.is_tracked(batch.packed)


async def test_a_position_that_this_node_has_not_reached_is_waited_for(stage):
    problem = await stage.refused(f"after={stage.log.index + 1}")
    assert problem["type"] == "urn:timeball:problem:not-caught-up"


async def test_a_client_that_is_slower_than_the_log_is_cut_off(log):
    stage = Stage(log, events=3)
    response = await stage.open()
    coming = events(response)
    first = asyncio.ensure_future(anext(coming))
    await asyncio.sleep(0)
    log.create()
    await first
    for _ in range(5):
        log.create()
    with pytest.raises(StreamBroken):
        await anext(coming)
    assert (stage.history.counts.cut_off, stage.history.counts.open) == (1, 0)


async def test_one_more_stream_than_the_limit_is_refused(log):
    stage = Stage(log, streams=1)
    response = await stage.open()
    await anext(response.stream.parts)
    problem = await stage.refused()
    assert (problem["status"], problem["type"]) == (503, "urn:timeball:problem:overloaded")
    await response.stream.parts.aclose()
    assert (await stage.open()).status == 200


async def test_a_node_that_stops_breaks_its_streams(stage):
    response = await stage.open()
    await anext(response.stream.parts)
    waiting = asyncio.ensure_future(anext(response.stream.parts))
    await asyncio.sleep(0)
    stage.history.close()
    with pytest.raises(StreamBroken):
        await waiting


async def test_a_stream_says_where_it_is_though_its_filter_lets_nothing_through(stage):
    response = await stage.open("queue=none")
    stage.log.create()
    assert await anext(response.stream.parts) == f"id: {stage.log.index}\n\n".encode()
    await response.stream.parts.aclose()


async def test_a_long_stretch_is_told_in_bounded_parts(log):
    stage = Stage(log, events=10_000)
    for _ in range(3):
        log.create_all(*[NewJob("mail", b"\xc0") for _ in range(1_000)])
    response = await stage.open("after=oldest&follow=false")
    parts = [part async for part in response.stream.parts]
    assert len(parts) > 6
    assert max(map(len, parts)) < 40_000
    assert sum(part.count(b"data: ") for part in parts) == 3_000


async def test_a_snapshot_that_takes_the_state_on_leaves_a_gap_that_is_told(stage):
    """Also to whoever was reading, and stood at the end."""
    log = stage.log
    response = await stage.open()
    await anext(response.stream.parts)
    waiting = asyncio.ensure_future(anext(response.stream.parts))
    await asyncio.sleep(0)
    ahead = type(log)()
    ahead.index = log.index
    ahead.settings()
    ahead.create()
    log.machine.load(list(ahead.machine.dump()))
    stage.history.on_installed(ahead.index)
    with pytest.raises(StreamBroken):
        await waiting
    begun, log.index = log.index, ahead.index
    assert (await stage.refused(f"after={begun}"))["oldest_index"] == ahead.index
    log.create()
    assert len(await stage.told(f"after={ahead.index}")) == 1


async def test_a_gap_is_noticed_though_nobody_asked_before_the_next_entry(stage):
    log = stage.log
    log.create()
    begun = log.index
    ahead = type(log)()
    ahead.index = begun
    ahead.settings()
    ahead.create()
    log.machine.load(list(ahead.machine.dump()))
    log.index = ahead.index
    log.create()
    assert (await stage.refused(f"after={begun}"))["oldest_index"] == ahead.index
    assert len(await stage.told("after=oldest")) == 1


def test_every_type_has_its_name():
    names = dict(TYPES)
    assert len(names) == len(EventType.__args__)
    for happened, name in names.items():
        noun, _, verb = name.partition(".")
        assert happened.name == (verb if noun == "execution" else f"job_{verb}").upper()

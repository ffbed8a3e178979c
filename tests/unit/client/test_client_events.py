"""Following the event stream: what a client does when nodes fail, lag, forget or fall silent."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from timeball.client import Client, EventsGone, InternalError, InvalidRequest, SyncClient
from timeball.client.errors import PROBLEM_PREFIX, TimeballError, Unavailable
from timeball.client.event_stream import Frames

STREAM = "text/event-stream"


def event(event_id: str, kind: str = "execution.created") -> bytes:
    data = {"id": event_id, "type": kind, "at": "", "queue": "q", "job_id": "1"}
    return b"id: " + event_id.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def told(kit, *frames: bytes):
    return kit.Answer(200, b"".join(frames), content_type=STREAM)


def gone(kit, oldest: int):
    body = msgspec.json.encode(kit.problem("events-gone", 410, oldest_index=oldest))
    return kit.Answer(410, body, content_type="application/problem+json")


def behind(kit):
    body = msgspec.json.encode(kit.problem("not-caught-up", 503))
    return kit.Answer(503, body, content_type="application/problem+json")


def test_frames_are_taken_apart_wherever_they_are_cut() -> None:
    whole = event("7-0") + b": a comment\n\n" + b"id: 9\n\n" + event("9-1")
    for size in range(1, len(whole)):
        frames, ids, lasts = Frames(), [], []
        for start in range(0, len(whole), size):
            ids += [one.id for one in frames.feed(whole[start : start + size])]
            lasts.append(frames.last_id)
        assert ids == ["7-0", "9-1"]
        assert lasts[-1] == "9-1"


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(InternalError, match="no event"):
        list(Frames().feed(b"data: {}\n\n"))
    with pytest.raises(InternalError, match="more than"):
        list(Frames().feed(b"data: " + b"x" * 2**20))


def test_another_node_goes_on_where_the_first_broke(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as (one, two), Client([one.url, two.url]) as client:
            one.then("/v1/events", told(kit, event("5-0"), event("5-1")))
            two.then("/v1/events", behind(kit))
            one.then("/v1/events", told(kit, event("6-0"), b"id: 9\n\n"))
            two.then("/v1/events", told(kit, event("10-0")))
            async with aclosing(client.events(after=4, queue="q", types=["job"])) as events:
                ids = [(await anext(events)).id for _ in range(4)]
            assert ids == ["5-0", "5-1", "6-0", "10-0"]
            asked = [(s.peer, s.query["after"]) for s in one.seen + two.seen]
            assert asked == [("n1", "4"), ("n1", "5-1"), ("n2", "5-1"), ("n2", "9")]
            assert all((s.query["queue"], s.query["type"]) == ("q", "job") for s in one.seen)

    kit.run(scenario())


def test_a_node_that_breaks_each_stream_is_asked_at_a_slowing_pace(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as (one,), Client([one.url]) as client:
            one.usual["/v1/events"] = lambda _: answered()

            async def answered():
                if len(one.seen) > 12:
                    return told(kit, event("5-0"))
                return told(kit, b"id: 4\n\n")

            async with aclosing(client.events()) as events:
                assert (await anext(events)).id == "5-0"
            spans = [b.at - a.at for a, b in zip(one.seen, one.seen[1:], strict=False)]
            assert sum(spans) > 1.0

    kit.run(scenario())


def test_events_are_gone_when_no_node_keeps_them(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as (one, two), Client([one.url, two.url]) as client:
            one.then("/v1/events", gone(kit, 90), gone(kit, 90))
            two.then("/v1/events", told(kit, event("8-0")), gone(kit, 80))
            events = client.events(after=7)
            assert (await anext(events)).id == "8-0"
            with pytest.raises(EventsGone) as raised:
                await anext(events)
            assert raised.value.oldest_index == 80

    kit.run(scenario())


def test_without_follow_it_ends_only_when_everything_was_told(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as (one,), Client([one.url]) as client:
            one.then("/v1/events", None, told(kit, event("5-0"), b"id: 6\n\n"))
            ids = [e.id async for e in client.events(after="oldest", follow=False)]
            assert ids == ["5-0"]
            assert [s.query for s in one.seen] == [{"after": "oldest", "follow": "false"}] * 2

    kit.run(scenario())


def test_a_refusal_is_raised_and_a_cluster_that_is_away_is_unavailable(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as (one,), Client([one.url], timeout_ms=500) as client:
            problem = msgspec.json.encode(kit.problem("invalid-request", 400, detail="queue"))
            refusal = kit.Answer(400, problem, content_type="application/problem+json")
            one.then("/v1/events", refusal)
            with pytest.raises(InvalidRequest, match="queue"):
                await anext(client.events(queue="?"))
            with pytest.raises(InvalidRequest, match="after"):
                await anext(client.events(after=-1))
            await one.stop()
            with pytest.raises(Unavailable):
                await anext(client.events())

    kit.run(scenario())


def test_a_node_that_falls_silent_is_left(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as (one, two), Client([one.url, two.url]) as client:

            async def silent(_):
                await asyncio.Event().wait()

            one.then("/v1/events", silent)
            two.then("/v1/events", told(kit, event("5-0")))
            assert (await anext(client.events())).id == "5-0"

    kit.run(scenario())


def test_the_synchronous_client_follows_too_and_lets_go(kit) -> None:
    with kit.serving() as peer, SyncClient(peer.url) as client:
        peer.then("/v1/events", told(kit, event("5-0"), event("5-1")), told(kit, event("6-0")))
        ids = []
        for each in client.events(after=4):
            ids.append(each.id)
            if len(ids) == 3:
                break
        assert ids == ["5-0", "5-1", "6-0"]
        assert [seen.query["after"] for seen in peer.seen] == ["4", "5-1"]
        peer.then("/v1/events", gone(kit, 90))
        with pytest.raises(EventsGone):
            list(client.events(after=1))


def test_the_problem_carries_the_oldest_position() -> None:
    error = EventsGone.before(12, 40)
    problem = error.problem()
    assert (problem.status, problem.oldest_index) == (410, 12)
    assert problem.type == PROBLEM_PREFIX + "events-gone"
    assert isinstance(error, TimeballError)
    assert "12" in problem.detail

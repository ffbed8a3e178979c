"""The client against scripted peers on loopback: repeats, failover, lost answers, pages."""

from __future__ import annotations

import asyncio
import socket

import pytest

from timeball.client import (
    After,
    Client,
    Hold,
    InvalidRequest,
    KeyReused,
    NewJob,
    NotFound,
    OutcomeUnknown,
    Success,
    TimeballError,
    Unavailable,
    transport,
)
from timeball.client.calls import parse_urls
from timeball.client.messages import MAX_BATCH

CREATED = {"status": "created", "job_id": "7", "execution_id": "7-1764480000000"}


def created_batch(kit):
    async def play(seen):
        results = [CREATED for _ in seen.body["jobs"]]
        return kit.Answer(200, {"results": results, "applied_index": 9})

    return play


def test_a_create_says_what_the_protocol_says(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs", kit.Answer(201, CREATED))
            job = await client.create(
                queue="mail", payload={"to": "x"}, schedule=After(delay_ms=500), priority=7
            )
            assert (job.status, job.job_id) == ("created", "7")
            [seen] = peer.seen
            assert seen.method == "POST"
            assert seen.headers["content-type"] == seen.headers["accept"] == "application/msgpack"
            assert len(seen.headers["timeball-request-id"]) == 32
            assert seen.body["schedule"] == {"type": "after", "delay_ms": 500}
            assert (seen.body["queue"], seen.body["priority"]) == ("mail", 7)

    kit.run(scenario())


def test_a_create_whose_answer_was_lost_is_repeated_elsewhere_under_one_request_id(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:
            one.then("/v1/jobs", None)
            two.then("/v1/jobs", kit.Answer(200, CREATED))
            assert (await client.create(payload=1)).job_id == "7"
            [first], [second] = one.seen, two.seen
            assert first.headers["timeball-request-id"] == second.headers["timeball-request-id"]
            assert (first.method, first.body) == (second.method, second.body)

    kit.run(scenario())


def test_an_unknown_outcome_is_repeated_and_each_create_has_its_own_id(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            unknown = kit.Answer(503, kit.problem("outcome-unknown", 503, outcome="unknown"))
            peer.then("/v1/jobs", unknown, kit.Answer(200, CREATED), kit.Answer(201, CREATED))
            await client.create()
            await client.create()
            ids = [seen.headers["timeball-request-id"] for seen in peer.seen]
            assert ids[0] == ids[1] != ids[2]

    kit.run(scenario())


def test_a_dead_node_costs_no_pause_and_is_not_asked_again(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [dead, alive], Client([dead.url, alive.url]) as client:
            await dead.stop()
            alive.then("/v1/jobs", *[kit.Answer(201, CREATED)] * 2)
            before = asyncio.get_running_loop().time()
            await client.create()
            await client.create()
            assert asyncio.get_running_loop().time() == before
            assert len(alive.seen) == 2

    kit.run(scenario())


def test_a_node_that_hangs_is_left_after_the_attempts_time(kit) -> None:
    async def scenario() -> None:
        async def hang(seen):
            await asyncio.sleep(3_600)

        async with (
            kit.peers(2) as [one, two],
            Client([one.url, two.url], attempt_timeout_ms=1_500) as client,
        ):
            one.then("/v1/jobs", hang)
            two.then("/v1/jobs", kit.Answer(201, CREATED))
            before = asyncio.get_running_loop().time()
            await client.create()
            assert 1.4 < asyncio.get_running_loop().time() - before < 1.7

    kit.run(scenario())


def test_without_any_node_the_call_ends_at_its_deadline(kit) -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            async with Client(url, timeout_ms=4_000) as client:
                before = asyncio.get_running_loop().time()
                with pytest.raises(Unavailable, match="could not be reached"):
                    await client.create()
                assert asyncio.get_running_loop().time() - before <= 4.0

    kit.run(scenario())


def test_a_lost_answer_and_then_no_cluster_is_an_unknown_outcome(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, timeout_ms=1_000) as client:

            async def die(seen):
                asyncio.get_running_loop().call_soon(stopping.set)

            stopping = asyncio.Event()
            peer.then("/v1/jobs", die)
            creating = asyncio.create_task(client.create())
            await stopping.wait()
            await peer.stop()
            with pytest.raises(OutcomeUnknown):
                await creating

    kit.run(scenario())


def test_problems_become_exceptions_that_name_the_field(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            fields = [{"field": "priority", "detail": "Expected `int` <= 9"}]
            bad = kit.problem("invalid-request", 400, detail="priority: …", errors=fields)
            reused = kit.problem("idempotency-key-reused", 422)
            peer.then("/v1/jobs", kit.Answer(400, bad), kit.Answer(422, reused))
            with pytest.raises(InvalidRequest) as caught:
                await client.create(priority=10)
            assert caught.value.errors[0].field == "priority"
            with pytest.raises(KeyReused):
                await client.create(idempotency_key="k")
            with pytest.raises(NotFound):
                await client.job("../cluster")
            assert peer.seen[-1].path == "/v1/jobs/..%2Fcluster"

    kit.run(scenario())


def test_http_09_a_redirect_is_not_followed(kit) -> None:
    """A node never redirects; following one could turn a POST into a GET (HTTP-09)."""

    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client(one.url) as client:
            away = kit.Answer(302, b"", {"Location": f"{two.url}/v1/jobs"}, "text/html")
            one.then("/v1/jobs", away)
            with pytest.raises(TimeballError, match="302"):
                await client.create()
            assert not two.seen

    kit.run(scenario())


def test_an_answer_without_end_is_not_read_to_its_end(kit, monkeypatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 1_000)
        async with kit.peers(1) as [peer], Client(peer.url, timeout_ms=500) as client:
            peer.usual["/v1/cluster"] = too_much
            with pytest.raises(Unavailable, match="exceeds 1000 bytes"):
                await client.cluster()

    async def too_much(seen):
        return kit.Answer(200, b"x" * 2_000)

    kit.run(scenario())


def test_many_jobs_go_in_batches_each_under_its_own_request_id(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.usual["/v1/jobs/batch"] = created_batch(kit)
            results = await client.create_many([NewJob(payload=i) for i in range(2 * MAX_BATCH)])
            assert len(results) == 2 * MAX_BATCH
            first, second = peer.seen
            assert [job["payload"] for job in second.body["jobs"]][:2] == [1_000, 1_001]
            assert first.body["request_id"] != second.body["request_id"]

    kit.run(scenario())


def test_a_refused_later_batch_tells_what_was_created_before(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            refused = kit.Answer(400, kit.problem("invalid-request", 400))
            peer.then("/v1/jobs/batch", created_batch(kit), refused)
            with pytest.raises(InvalidRequest) as caught:
                await client.create_many([NewJob()] * (MAX_BATCH + 1))
            assert "first 1000 jobs" in caught.value.__notes__[0]

    kit.run(scenario())


def test_lists_follow_their_cursors(kit) -> None:
    async def scenario() -> None:
        def page(jobs, cursor):
            return kit.Answer(200, {"executions": jobs, "cursor": cursor, "applied_index": 1})

        execution = {
            "execution_id": "1-2", "job_id": "1", "queue": "q", "state": "dead", "reason": "",
            "origin": None, "nominal_at": "", "due_at": "", "due": True, "finished_at": None,
            "attempts_used": 5, "max_attempts": 5, "cancel_requested": False,
            "result": None, "attempts": [],
        }  # fmt: skip
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(
                "/v1/dead", page([execution] * 2, "c2"), page([], "c3"), page([execution], None)
            )
            found = [letter async for letter in client.dead(queue="q", page_size=2)]
            assert len(found) == 3
            assert peer.seen[0].query == {"queue": "q", "limit": "2"}
            assert [seen.query.get("cursor") for seen in peer.seen] == [None, "c2", "c3"]

    kit.run(scenario())


def test_a_report_whose_answer_was_lost_is_repeated_as_it_was(kit) -> None:
    async def scenario() -> None:
        path = "/v1/executions/complete"
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:

            async def duplicate(seen):
                return kit.reports(seen, "duplicate", 200)

            one.then(path, None)
            two.then(path, duplicate)
            [report] = await client.complete([Success("7-1", 42, result={"n": 1}, started_ms=5)])
            assert report.verdict == "duplicate"
            assert one.seen[0].body == two.seen[0].body

    kit.run(scenario())


def test_a_claim_is_repeated_under_its_request_id(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(2) as [one, two], Client([one.url, two.url]) as client:
            one.then("/v1/claims", None)
            two.then("/v1/claims", kit.granted(kit.delivery(1)))
            claimed = await client.claim(worker="w", max_executions=5, wait_ms=100)
            assert claimed.executions[0].payload == {"number": 1}
            assert one.seen[0].body == two.seen[0].body

    kit.run(scenario())


def test_more_reports_than_a_batch_holds_are_split(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            holds = [Hold(execution_id=f"{i}-1", token=i) for i in range(1, MAX_BATCH + 2)]
            assert len(await client.release(holds)) == MAX_BATCH + 1
            assert len(await client.heartbeat(holds)) == MAX_BATCH + 1
            assert [len(seen.body["items"]) for seen in peer.seen] == [1_000, 1] * 2

    kit.run(scenario())


def test_a_closed_client_refuses(kit) -> None:
    async def scenario() -> None:
        client = Client("http://127.0.0.1:1")
        await client.close()
        with pytest.raises(RuntimeError, match="closed"):
            await client.create()

    kit.run(scenario())


@pytest.mark.parametrize(
    "bad",
    ["", ",", [], "127.0.0.1:7001", "ftp://a", "http://", "http://u@a", "http://a?x=1", ["x"] * 40],
)
def test_urls_are_checked(bad) -> None:
    with pytest.raises(ValueError, match="URL"):
        parse_urls(bad)


def test_urls_may_be_one_string() -> None:
    assert parse_urls(" http://a:1/ , http://b:2") == ["http://a:1", "http://b:2"]


JOB = {
    "job_id": "7", "queue": "mail", "state": "active", "payload": None, "schedule": None,
    "priority": 5, "partition_key": "", "retry": {}, "timeout_ms": None, "idempotency_key": None,
    "created_at": "2026-01-01T00:00:00Z", "next_fires": [], "execution_counts": {}, "version": 1,
    "timetable": None,
}  # fmt: skip
CLUSTER = {
    "cluster": "demo", "node": "b", "version": "0.1.0", "role": "follower", "serving": True,
    "leader": "a", "term": 4, "commit_index": 90, "applied_index": 89, "log_time_ms": 1,
    "nodes": [], "queues": [], "totals": {},
}  # fmt: skip


def at(index: object) -> dict[str, str]:
    return {"Timeball-Applied-Index": str(index)}


def test_every_read_asks_for_the_freshness_that_it_is_given(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            fresh = {"consistency": "strong", "min_index": 9}
            page = {"executions": [], "cursor": None, "applied_index": 9}
            peer.then("/v1/jobs/7", *[kit.Answer(200, JOB)] * 2)
            peer.then("/v1/jobs", kit.Answer(200, {"jobs": [], "cursor": None, "applied_index": 9}))
            peer.then("/v1/executions", kit.Answer(200, page))
            peer.then("/v1/dead", kit.Answer(200, page))
            peer.then("/v1/cluster", kit.Answer(200, CLUSTER))
            await client.job("7", **fresh)
            with pytest.raises(NotFound):
                await client.execution("7-1", **fresh)
            for listing in (client.jobs, client.executions, client.dead):
                assert [item async for item in listing(**fresh)] == []
            await client.cluster(**fresh)
            for seen in peer.seen:
                assert (seen.query["consistency"], seen.query["min_index"]) == ("strong", "9")
            assert len(peer.seen) == 6
            await client.job("7")
            assert peer.seen[-1].query == {}, "the default is left out"

    kit.run(scenario())


def test_a_client_reads_what_it_wrote_and_never_less_than_it_has_seen(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, read_your_writes=True) as client:
            peer.then("/v1/jobs", kit.Answer(201, CREATED, at(41)))
            peer.then("/v1/jobs/8", kit.Answer(404, kit.problem("not-found", 404), at(50)))
            peer.then("/v1/jobs/7", *[kit.Answer(200, JOB, at(45))] * 4)
            await client.job("7")
            assert peer.seen[-1].query == {}, "nothing was seen yet"
            await client.create()
            assert client.seen_index == 45, "it never falls"
            await client.job("7")
            assert peer.seen[-1].query == {"min_index": "45"}
            with pytest.raises(NotFound):
                await client.job("8")
            await client.job("7", min_index=3)
            assert peer.seen[-1].query == {"min_index": "50"}, "what is missing was seen, too"
            await client.job("7", min_index=60)
            assert peer.seen[-1].query == {"min_index": "60"}

    kit.run(scenario())


def test_a_position_that_is_no_number_is_not_believed(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            for odd in ("", "x", "-1", "1.5", "9" * 40):
                peer.then("/v1/jobs/7", kit.Answer(200, JOB, at(odd)))
                await client.job("7")
            assert client.seen_index == 0

    kit.run(scenario())


def test_without_read_your_writes_positions_are_kept_and_not_asked_for(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then("/v1/jobs", kit.Answer(201, CREATED, at(41)))
            peer.then("/v1/jobs/7", kit.Answer(200, JOB))
            await client.create()
            await client.job("7")
            assert client.seen_index == 41
            assert peer.seen[-1].query == {}

    kit.run(scenario())

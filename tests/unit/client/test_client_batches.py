"""Creates that are gathered: one request, an answer for each, and one wrong job alone."""

from __future__ import annotations

import asyncio

import pytest

from timeball.client import (
    Client,
    InvalidRequest,
    KeyReused,
    NotFound,
    OutcomeUnknown,
    Overloaded,
)
from timeball.client.messages import MAX_BATCH

ONE, BATCH = "/v1/jobs", "/v1/jobs/batch"


def by_payload(kit):
    """Answers each job by its payload, as a node would."""

    async def play(seen):
        for place, job in enumerate(seen.body["jobs"]):
            if job["payload"] == "malformed":
                detail = f"jobs[{place}].priority: wrong"
                return kit.Answer(400, kit.problem("invalid-request", 400, detail=detail))
            if job.get("queue") == "nowhere":
                return kit.Answer(404, kit.problem("not-found", 404, detail="queue"))
        results = []
        for job in seen.body["jobs"]:
            if job["payload"] == "reused":
                problem = kit.problem("idempotency-key-reused", 422)
                results.append({"status": "refused", "problem": problem})
            elif job["payload"] == "full":
                results.append({"status": "refused", "problem": kit.problem("overloaded", 429)})
            else:
                results.append({"status": "created", "job_id": f"j{job['payload']}"})
        return kit.Answer(200, {"results": results, "applied_index": 9})

    return play


def test_concurrent_creates_go_as_one_request_and_each_has_its_answer(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, gather_creates_ms=1) as client:
            peer.usual[BATCH] = by_payload(kit)
            created = await asyncio.gather(*[client.create(payload=n) for n in range(50)])
            assert [job.job_id for job in created] == [f"j{n}" for n in range(50)]
            assert (await client.create(payload="alone")).job_id == "jalone"
        first, second = peer.to(BATCH)
        assert (len(first.body["jobs"]), len(second.body["jobs"])) == (50, 1)
        assert first.body["request_id"] != second.body["request_id"]

    kit.run(scenario())


def test_without_the_option_each_create_is_a_request_of_its_own(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            answers = [kit.Answer(201, {"status": "created", "job_id": "1"})] * 3
            peer.then(ONE, *answers)
            await asyncio.gather(*[client.create() for _ in range(3)])
        assert len(peer.to(ONE)) == 3

    kit.run(scenario())


def test_a_create_with_a_request_id_of_its_own_goes_alone(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, gather_creates_ms=1) as client:
            peer.then(ONE, kit.Answer(201, {"status": "created", "job_id": "1"}))
            await client.create(request_id="mine")
        assert peer.to(ONE)[0].headers["timeball-request-id"] == "mine"

    kit.run(scenario())


def test_each_refused_job_raises_for_its_own_caller_only(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, gather_creates_ms=1) as client:
            peer.usual[BATCH] = by_payload(kit)
            payloads = [0, "reused", 1, "full", "malformed", 2, 3, 4]
            creating = [client.create(payload=what) for what in payloads]
            creating.append(client.create(queue="nowhere", payload=5))
            creating.append(client.create(payload=object()))
            answers = await asyncio.gather(*creating, return_exceptions=True)
        kinds = {1: KeyReused, 3: Overloaded, 4: InvalidRequest, 8: NotFound, 9: InvalidRequest}
        for place, answer in enumerate(answers):
            if place in kinds:
                assert type(answer) is kinds[place]
            else:
                assert answer.job_id == f"j{payloads[place]}"
        # Only what was not refused whole made a job, and every one once.
        whole = [s for s in peer.to(BATCH) if "malformed" not in str(s) and "nowhere" not in str(s)]
        made = [job["payload"] for seen in whole for job in seen.body["jobs"]]
        assert sorted(map(str, made)) == ["0", "1", "2", "3", "4", "full", "reused"]

    kit.run(scenario())


def test_idem_04_a_batch_whose_answer_was_lost_is_repeated_under_its_request_id(kit) -> None:
    async def scenario() -> None:
        urls = kit.peers(2)
        async with (
            urls as [one, two],
            Client([one.url, two.url], gather_creates_ms=1) as client,
        ):
            one.then(BATCH, None)
            two.usual[BATCH] = by_payload(kit)
            await asyncio.gather(*[client.create(payload=n) for n in range(3)])
        assert one.to(BATCH)[0].body == two.to(BATCH)[0].body

    kit.run(scenario())


def test_an_unknown_outcome_is_every_callers(kit) -> None:
    async def scenario() -> None:
        options = {"gather_creates_ms": 1, "timeout_ms": 500}
        async with kit.peers(1) as [peer], Client(peer.url, **options) as client:
            unknown = kit.Answer(503, kit.problem("outcome-unknown", 503))
            peer.then(BATCH, *[unknown] * 100)
            answers = await asyncio.gather(
                *[client.create() for _ in range(3)], return_exceptions=True
            )
        assert [type(answer) for answer in answers] == [OutcomeUnknown] * 3
        assert len({id(answer) for answer in answers}) == 3

    kit.run(scenario())


def test_batches_keep_to_the_limits_of_a_request(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, gather_creates_ms=1) as client:
            peer.usual[BATCH] = by_payload(kit)
            await asyncio.gather(*[client.create(payload=n) for n in range(2 * MAX_BATCH + 5)])
            sizes = [len(seen.body["jobs"]) for seen in peer.to(BATCH)]
            assert max(sizes) == MAX_BATCH
            assert sum(sizes) == 2 * MAX_BATCH + 5
            peer.seen.clear()
            await asyncio.gather(*[client.create(payload="x" * 60_000) for _ in range(100)])
            sizes = [len(seen.body["jobs"]) for seen in peer.to(BATCH)]
            assert sum(sizes) == 100
            assert max(sizes) <= 69

    asyncio.run(scenario())


def test_a_close_has_what_is_gathered_sent_and_answered(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url, gather_creates_ms=50) as client:
            peer.usual[BATCH] = by_payload(kit)
            creating = asyncio.create_task(client.create(payload=1))
            await asyncio.sleep(0)
        assert (await creating).job_id == "j1"

    kit.run(scenario())


def test_the_wait_has_a_bound() -> None:
    with pytest.raises(ValueError, match="gather_creates_ms"):
        Client(gather_creates_ms=-1)

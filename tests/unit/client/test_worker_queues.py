"""A worker of several queues, what it claims ahead, and how its leases end; in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from timeball.client import Client, LeaseLost, Worker

CLAIMS = "/v1/claims"
BEAT = "/v1/executions/heartbeat"
COMPLETE = "/v1/executions/complete"
FAIL = "/v1/executions/fail"
RELEASE = "/v1/executions/release"


@asynccontextmanager
async def working(kit, handler, *scripts, **options):
    """A peer with scripted claims, and a worker on it that is stopped at the end."""
    async with kit.peers(1) as [peer], Client(peer.url) as client:
        peer.then(CLAIMS, *scripts)
        options = {"lease_ms": 3_000, **options}
        async with Worker(client, "default", handler, **options) as worker:
            yield peer, worker


def now() -> float:
    return asyncio.get_running_loop().time()


def tokens(peer, path):
    return [item["token"] for seen in peer.to(path) for item in seen.body["items"]]


async def endless(context) -> None:
    await asyncio.Event().wait()


def test_each_queue_has_its_own_slots_and_its_own_handler(kit) -> None:
    async def scenario() -> None:
        ran: list[tuple[str, int]] = []

        def handler(name):
            async def handle(context):
                ran.append((name, context.token))
                await asyncio.Event().wait()

            return handle

        async def by_queue(seen):
            queue, most = seen.body["queue"], seen.body["max_executions"]
            first = {"mail": 0, "images": 10}[queue]
            if len([s for s in peer.to(CLAIMS) if s.body["queue"] == queue]) > 1:
                return await peer._nothing_due(seen)
            grants = [kit.delivery(first + n, queue=queue) for n in range(most)]
            return await kit.granted(*grants)(seen)

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.usual[CLAIMS] = by_queue
            worker = Worker(client, "mail", handler("m"), concurrency=2, lease_ms=3_000)
            worker.serve("images", handler("i"), concurrency=1)
            async with worker:
                await peer.until(lambda: len(peer.to(BEAT)) == 2)
                assert sorted(ran) == [("i", 1_010), ("m", 1_000), ("m", 1_001)]
                assert len(peer.to(CLAIMS)) == 2  # both are full
                assert {len(seen.body["items"]) for seen in peer.to(BEAT)} == {3}
                await worker.stop(0)
            assert sorted(tokens(peer, RELEASE)) == [1_000, 1_001, 1_010]

    kit.run(scenario())


def test_what_is_prefetched_is_kept_by_heartbeats_and_runs_when_a_slot_is_free(kit) -> None:
    async def scenario() -> None:
        ran = []

        async def handler(context):
            ran.append((context.token, now()))
            await asyncio.sleep(10)

        grant = kit.granted(*[kit.delivery(n) for n in range(4)])
        async with working(kit, handler, grant, concurrency=1, prefetch=3) as (peer, worker):
            began = now()
            await peer.until(lambda: len(ran) == 4)
            assert [token for token, _ in ran] == [1_000, 1_001, 1_002, 1_003]
            assert [round(at - began, 1) for _, at in ran] == [0, 10, 20, 30]
            assert worker.counts["lost"] == 0
            await worker.stop(0)
        claims = [seen.body["max_executions"] for seen in peer.to(CLAIMS)]
        assert claims[0] == 4
        assert set(claims[1:]) <= {1, 2, 3}

    kit.run(scenario())


def test_leas_05_what_is_prefetched_is_released_at_once_by_a_stop(kit) -> None:
    async def scenario() -> None:
        started = []

        async def handler(context):
            started.append(context.token)
            await asyncio.sleep(4)

        grant = kit.granted(*[kit.delivery(n) for n in range(3)])
        async with working(kit, handler, grant, concurrency=1, prefetch=2) as (peer, worker):
            await peer.until(lambda: peer.to(CLAIMS))
            await asyncio.sleep(0.1)
            began = now()
            stopping = asyncio.create_task(worker.stop(10_000))
            await peer.until(lambda: peer.to(RELEASE))
            assert now() - began < 0.1
            await stopping
        assert tokens(peer, RELEASE) == [1_001, 1_002]
        assert (started, tokens(peer, COMPLETE)) == ([1_000], [1_000])

    kit.run(scenario())


@pytest.mark.parametrize(("verdict", "given_back"), [("lost", False), ("cancel_requested", True)])
def test_what_is_prefetched_and_then_lost_or_cancelled_never_runs(kit, verdict, given_back) -> None:
    async def scenario() -> None:
        started = []

        async def handler(context):
            started.append(context.token)
            await asyncio.sleep(2)

        async def second_is_over(seen):
            answer = kit.beats(seen, "extended")
            for item in answer.body["results"]:
                if item["execution_id"].startswith("1-"):
                    item["verdict"] = verdict
            return answer

        grant = kit.granted(*[kit.delivery(n) for n in range(3)])
        async with working(kit, handler, grant, concurrency=1, prefetch=2) as (peer, worker):
            peer.usual[BEAT] = second_is_over
            await peer.until(lambda: len(tokens(peer, COMPLETE)) == 2)
            assert started == [1_000, 1_002]
            assert tokens(peer, RELEASE) == ([1_001] if given_back else [])
            assert worker.counts["lost"] == (0 if given_back else 1)

    kit.run(scenario())


def test_leas_05_what_an_unanswered_claim_was_granted_is_asked_for_by_the_next(kit) -> None:
    """The node granted, but no answer came within the patience: one request id more."""

    async def scenario() -> None:
        async def handler(context):
            return "done"

        async with kit.peers(1) as [peer], Client(peer.url) as client:

            async def granted_but_not_answered(seen):
                first = peer.to(CLAIMS)[0]
                if seen.at < first.at + 1.99:  # the patience of the first
                    await asyncio.sleep(3_600)
                if seen.body["request_id"] == first.body["request_id"]:
                    return await kit.granted(kit.delivery(1, lease_ms=2_000))(seen)
                return await peer._nothing_due(seen)

            peer.usual[CLAIMS] = granted_but_not_answered
            async with Worker(client, "default", handler, wait_ms=500, lease_ms=2_000):
                await peer.until(lambda: peer.to(COMPLETE))
        # Its lease counts from the first claim, so it is confirmed before it is begun.
        assert peer.to(BEAT)[0].at < peer.to(COMPLETE)[0].at
        assert tokens(peer, COMPLETE) == [1_001]

    kit.run(scenario())


def test_an_unanswered_claim_is_given_up_after_a_second_patience(kit) -> None:
    async def scenario() -> None:
        async def silent(seen):
            await asyncio.sleep(3_600)

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.usual[CLAIMS] = silent
            worker = Worker(client, "default", endless, wait_ms=500, lease_ms=2_000)
            async with worker:
                await peer.until(lambda: len({s.body["request_id"] for s in peer.to(CLAIMS)}) == 2)
                began = peer.to(CLAIMS)[0].at
                assert peer.to(CLAIMS)[-1].at - began >= 2 * 2.0
                peer.usual[CLAIMS] = peer._nothing_due
                await worker.stop(0)

    kit.run(scenario())


def test_leas_11_the_timeout_of_an_attempt_is_honoured_here_too(kit) -> None:
    """The cluster clips what it extends; when it is silent, the worker's own clock counts."""

    async def scenario() -> None:
        ended = []

        async def handler(context):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append((now(), context.error))

        async def clipped(seen):
            left_ms = int((began + 5.0 - now()) * 1_000)
            return kit.beats(seen, "extended", lease_ms=min(left_ms, 3_000))

        began = now()
        grant = kit.granted(kit.delivery(1, timeout_ms=5_000))
        async with working(kit, handler, grant, concurrency=1) as (peer, worker):
            peer.usual[BEAT] = clipped
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            [(at, error)] = ended
            assert 4.9 < at - began < 5.1
            assert isinstance(error, LeaseLost)
            assert "timeout_ms, 5000, is over" in str(error)
            assert len(peer.to(BEAT)) <= 6
            assert worker.counts["lost"] == 1
        assert not peer.to(COMPLETE) + peer.to(FAIL) + peer.to(RELEASE)

    kit.run(scenario())


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000])
def test_leas_08_the_clock_of_a_worker_has_no_say_in_its_leases(kit, off_ms) -> None:
    """Deliveries tell a length, which is measured on the monotonic clock."""

    async def scenario() -> None:
        ended = []

        async def handler(context):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(now())

        async def silent(seen):
            await asyncio.sleep(3_600)

        grant = kit.granted(kit.delivery(1))
        clock = {"wall_clock_ms": lambda: 1_764_480_000_000 + off_ms}
        async with working(kit, handler, grant, concurrency=1, **clock) as (peer, _):
            peer.usual[BEAT] = silent
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            assert 2.9 < ended[0] - peer.to(CLAIMS)[0].at < 3.1

    kit.run(scenario())


def test_leas_11_a_timeout_holds_although_heartbeats_are_extended_for_ever(kit) -> None:
    """A new leader may not know how long an attempt has run."""

    async def scenario() -> None:
        began = now()
        ended = []

        async def handler(context):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(now() - began)

        grant = kit.granted(kit.delivery(1, timeout_ms=7_000))
        async with working(kit, handler, grant, concurrency=1) as (peer, _):
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            assert 6.9 < ended[0] < 7.1

    kit.run(scenario())


def test_leas_11_a_timeout_shorter_than_the_lease_counts_from_the_claim(kit) -> None:
    """When the cluster began to count is not known here; not before the claim was sent."""

    async def scenario() -> None:
        ended = []

        async def slow(seen):
            await asyncio.sleep(0.4)
            return await kit.granted(kit.delivery(1, timeout_ms=1_000))(seen)

        async def silent(seen):
            await asyncio.sleep(3_600)

        async def handler(context):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append((now(), context.error))

        async with working(kit, handler, slow, concurrency=1) as (peer, _):
            peer.usual[BEAT] = silent
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            [(at, error)] = ended
            assert 0.9 < at - peer.to(CLAIMS)[0].at < 1.1
            assert isinstance(error, LeaseLost)

    kit.run(scenario())


def test_a_short_timeout_counts_from_the_claim_until_the_cluster_says_more(kit) -> None:
    """A long poll spends the attempt's time on this worker's clock; a heartbeat tells the truth."""

    async def scenario() -> None:
        async def late(seen):
            await asyncio.sleep(1.2)
            return await kit.granted(kit.delivery(1, timeout_ms=1_000))(seen)

        async def handler(context):
            return "done"

        async with working(kit, handler, late, wait_ms=1_500) as (peer, _):

            async def left(seen):
                return kit.beats(seen, "extended", lease_ms=990)

            peer.usual[BEAT] = left
            await peer.until(lambda: peer.to(COMPLETE))
            assert tokens(peer, BEAT)[:1] == [1_001]

    kit.run(scenario())


def test_leas_04_a_heartbeat_that_meets_the_completion_ends_quietly(kit, caplog) -> None:
    """The execution is finished by the report under way: no more beats, no failure."""

    async def scenario() -> None:
        async def handler(context):
            return "done"

        async def slow(seen):
            await asyncio.sleep(2.5)
            return kit.reports(seen, "accepted", 200)

        async def finished(seen):
            return kit.beats(seen, "finished")

        async with working(kit, handler, kit.granted(kit.delivery(1)), concurrency=1) as (peer, w):
            peer.then(COMPLETE, slow)
            peer.usual[BEAT] = finished
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            assert len(peer.to(BEAT)) == 1
            assert w.counts == {"claimed": 1, "completed": 1}
        assert not peer.to(FAIL) + peer.to(RELEASE)
        assert not [record for record in caplog.records if record.levelname != "INFO"]

    kit.run(scenario())


def test_the_task_of_a_lost_lease_ends_with_lease_lost_for_middleware_to_see(kit) -> None:
    async def scenario() -> None:
        ends = []

        async def watch(context, call_next):
            try:
                return await call_next(context)
            except LeaseLost as error:
                ends.append(error)
                raise

        async def lost(seen):
            return kit.beats(seen, "lost")

        grant = kit.granted(kit.delivery(1))
        async with working(kit, endless, grant, concurrency=1, middleware=[watch]) as (peer, _):
            peer.then(BEAT, lost)
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
        assert len(ends) == 1

    kit.run(scenario())

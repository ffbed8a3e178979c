"""The worker against scripted peers on loopback, in virtual time."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from timeball.client import Client, LeaseLost, NonRetryable, NotFound, RetryLater, Worker

CLAIMS = "/v1/claims"
BEAT = "/v1/executions/heartbeat"
COMPLETE = "/v1/executions/complete"
FAIL = "/v1/executions/fail"
RELEASE = "/v1/executions/release"


@asynccontextmanager
async def working(kit, handler, *scripts, peers=1, **options):
    """A peer with scripted claims, and a worker on it that is stopped at the end."""
    async with kit.peers(peers) as nodes, Client([node.url for node in nodes]) as client:
        nodes[0].then(CLAIMS, *scripts)
        options = {"lease_ms": 3_000, "wall_clock_ms": lambda: 1_764_480_000_123, **options}
        async with Worker(client, "default", handler, **options) as worker:
            yield nodes[0] if peers == 1 else nodes, worker


def now() -> float:
    return asyncio.get_running_loop().time()


async def endless(context) -> None:
    await asyncio.Event().wait()


def test_a_result_is_reported_with_the_token_and_the_workers_stamp(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            assert (context.attempt, context.queue) == (1, "default")
            return {"twice": 2 * context.payload["number"]}

        async with working(kit, handler, kit.granted(kit.delivery(4))) as (peer, _):
            await peer.until(lambda: peer.to(COMPLETE))
        [item] = peer.to(COMPLETE)[0].body["items"]
        assert item == {
            "execution_id": "4-1764480000000",
            "token": 1_004,
            "result": {"twice": 8},
            "started_ms": 1_764_480_000_123,
        }

    kit.run(scenario())


def test_claims_ask_for_the_free_slots_only(kit) -> None:
    async def scenario() -> None:
        grant = kit.granted(*[kit.delivery(n) for n in range(3)])
        async with working(kit, endless, grant, concurrency=5) as (peer, worker):
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            asked = [seen.body["max_executions"] for seen in peer.to(CLAIMS)]
            await worker.stop(0)
        assert asked == [5, 2]
        assert peer.to(CLAIMS)[0].body["wait_ms"] <= 1_500

    kit.run(scenario())


def test_more_than_was_asked_for_is_released(kit) -> None:
    async def scenario() -> None:
        grant = kit.granted(kit.delivery(1), kit.delivery(2))
        async with working(kit, endless, grant, concurrency=1) as (peer, worker):
            await peer.until(lambda: peer.to(RELEASE))
            assert [item["token"] for item in peer.to(RELEASE)[0].body["items"]] == [1_002]
            await worker.stop(0)

    kit.run(scenario())


def test_a_full_worker_does_not_claim(kit) -> None:
    async def scenario() -> None:
        async with working(kit, endless, kit.granted(kit.delivery(1)), concurrency=1) as (peer, w):
            await peer.until(lambda: len(peer.to(BEAT)) == 3)
            assert len(peer.to(CLAIMS)) == 1
            await w.stop(0)

    kit.run(scenario())


def test_completions_are_gathered_into_one_request(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            await asyncio.sleep(context.payload["number"] / 200_000)

        grant = kit.granted(*[kit.delivery(n) for n in range(200)])
        async with working(kit, handler, grant, concurrency=200) as (peer, worker):
            await peer.until(lambda: peer.to(COMPLETE))
        assert [len(seen.body["items"]) for seen in peer.to(COMPLETE)] == [200]
        assert worker.counts["completed"] == 200

    kit.run(scenario())


def test_more_completions_than_a_batch_holds_are_all_reported(kit) -> None:
    async def scenario() -> None:
        everyone = asyncio.Event()

        async def handler(context):
            if context.payload["number"] == 1_199:
                everyone.set()
            await everyone.wait()

        grants = [
            kit.granted(*[kit.delivery(n, lease_ms=60_000) for n in range(*span)])
            for span in ((0, 1_000), (1_000, 1_200))
        ]
        async with working(kit, handler, *grants, concurrency=1_200) as (peer, worker):
            await peer.until(lambda: len(peer.to(COMPLETE)) == 2)
        assert [len(seen.body["items"]) for seen in peer.to(COMPLETE)] == [1_000, 200]
        assert worker.counts["completed"] == 1_200

    kit.run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such order"), {"error_type": "ValueError", "message": "no such order"}),
        (RetryLater(250), {"retry_after_ms": 250, "error_type": "RetryLater"}),
        (NonRetryable("poison"), {"non_retryable": True, "message": "poison"}),
        (KeyError("k"), {"message": "'k'"}),
        (ValueError("x" * 5_000), {"message": "x" * 1_999 + "…"}),
        (ValueError("\ud800"), {"message": "?"}),
        (asyncio.CancelledError(), {"error_type": "CancelledError"}),
    ],
)
def test_an_exception_is_a_failed_attempt(kit, error, expected) -> None:
    async def scenario() -> None:
        async def handler(context):
            raise error

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, _):
            await peer.until(lambda: peer.to(FAIL))
        [item] = peer.to(FAIL)[0].body["items"]
        assert expected.items() <= item.items()
        assert item["token"] == 1_001

    kit.run(scenario())


def test_a_failed_attempt_tells_where_its_error_was_raised(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            try:
                raise KeyError("the cause")
            except KeyError as error:
                raise ValueError("no such order") from error

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, _):
            await peer.until(lambda: peer.to(FAIL))
        [item] = peer.to(FAIL)[0].body["items"]
        assert "KeyError: 'the cause'" in item["backtrace"]
        assert "in handler" in item["backtrace"]
        assert item["backtrace"].endswith("ValueError: no such order\n")

    kit.run(scenario())


@pytest.mark.parametrize("result", [object(), "x" * 70_000])
def test_a_result_that_cannot_be_kept_is_a_failed_attempt_of_its_own(kit, result) -> None:
    async def scenario() -> None:
        async def handler(context):
            return result if context.payload["number"] == 1 else "good"

        grant = kit.granted(kit.delivery(1), kit.delivery(2))
        async with working(kit, handler, grant) as (peer, _):
            await peer.until(lambda: peer.to(FAIL) and peer.to(COMPLETE))
        assert peer.to(COMPLETE)[0].body["items"][0]["result"] == "good"
        assert "result" in peer.to(FAIL)[0].body["items"][0]["message"]

    kit.run(scenario())


def test_one_refused_report_does_not_hold_up_the_others(kit) -> None:
    async def scenario() -> None:
        async def refuse_the_first(seen):
            if any(item["token"] == 1_001 for item in seen.body["items"]):
                return kit.Answer(400, kit.problem("invalid-request", 400))
            return kit.reports(seen, "accepted", 200)

        async def handler(context):
            return None

        grant = kit.granted(*[kit.delivery(n) for n in range(3)])
        async with working(kit, handler, grant) as (peer, worker):
            peer.usual[COMPLETE] = refuse_the_first
            await peer.until(lambda: peer.to(FAIL))
        assert worker.counts["completed"] == 2
        assert peer.to(FAIL)[0].body["items"][0]["token"] == 1_001

    kit.run(scenario())


def test_heartbeats_go_at_a_third_of_the_lease_in_one_batch(kit) -> None:
    async def scenario() -> None:
        grant = kit.granted(kit.delivery(1), kit.delivery(2))
        began = now()
        async with working(kit, endless, grant, concurrency=2) as (peer, worker):
            await peer.until(lambda: len(peer.to(BEAT)) == 4)
            await worker.stop(0)
        beats = peer.to(BEAT)
        assert all(len(seen.body["items"]) == 2 for seen in beats)
        for number, seen in enumerate(beats, start=1):
            assert number * 0.9 <= seen.at - began <= number * 1.01

    kit.run(scenario())


def test_leas_11_a_lease_is_lost_at_its_local_deadline_without_any_network(kit) -> None:
    """LEAS-11: nobody says so, the worker's own clock does."""

    async def scenario() -> None:
        ends = asyncio.get_running_loop().create_future()

        async def handler(context):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.set_result((now(), context))
                raise

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, worker):
            await peer.until(lambda: peer.to(CLAIMS))
            sent = peer.to(CLAIMS)[0].at
            await peer.until(lambda: peer.to(BEAT))
            await peer.stop()
            ended, context = await ends
            answered = peer.to(BEAT)[-1].at
            assert sent + 3.0 <= ended <= answered + 3.01
            assert context.lost.is_set()
            with pytest.raises(LeaseLost, match="no heartbeat"):
                context.raise_if_lost()
            await worker.stop(0)
            assert worker.counts["lost"] == 1

    kit.run(scenario())


def test_the_lease_counts_from_the_moment_that_the_claim_was_sent(kit) -> None:
    """A slow answer eats into the lease: what came after the deadline is confirmed first."""

    async def scenario() -> None:
        started = []

        async def handler(context):
            started.append(context.execution_id)

        async def late(seen):
            await asyncio.sleep(2.1)
            grants = [kit.delivery(1, lease_ms=2_000), kit.delivery(2, lease_ms=9_000)]
            return await kit.granted(*grants)(seen)

        async def only_lost(seen):
            return kit.beats(seen, "lost")

        async with working(kit, handler, late, wait_ms=1_500) as (peer, _):
            peer.then(BEAT, only_lost)
            await peer.until(lambda: peer.to(COMPLETE))
        assert [item["token"] for item in peer.to(BEAT)[0].body["items"]] == [1_001]
        assert started == ["2-1764480000000"]

    kit.run(scenario())


@pytest.mark.parametrize("verdict", ["lost", "finished", "unknown"])
def test_a_heartbeat_that_says_so_ends_the_handler_and_nothing_is_reported(kit, verdict) -> None:
    async def scenario() -> None:
        contexts = []

        async def handler(context):
            contexts.append(context)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "too late"

        async def answer(seen):
            return kit.beats(seen, verdict)

        async with working(kit, handler, kit.granted(kit.delivery(1)), concurrency=1) as (peer, w):
            peer.then(BEAT, answer)
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
        assert isinstance(contexts[0].error, LeaseLost)
        assert not peer.to(COMPLETE) + peer.to(FAIL) + peer.to(RELEASE)
        assert len(peer.to(BEAT)) == 1
        assert w.counts["lost"] == 1

    kit.run(scenario())


def test_a_cancelled_job_is_released_so_that_it_ends_cancelled(kit) -> None:
    async def scenario() -> None:
        contexts = []

        async def handler(context):
            contexts.append(context)
            await asyncio.Event().wait()

        async def cancel(seen):
            return kit.beats(seen, "cancel_requested")

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, _):
            peer.then(BEAT, cancel)
            await peer.until(lambda: peer.to(RELEASE))
        assert contexts[0].cancelled.is_set()
        assert not contexts[0].lost.is_set()
        assert peer.to(RELEASE)[0].body["items"] == [
            {"execution_id": "1-1764480000000", "token": 1_001}
        ]

    kit.run(scenario())


def test_a_handler_that_finishes_although_cancelled_has_done_the_work(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "done anyway"

        async def cancel(seen):
            return kit.beats(seen, "cancel_requested")

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, _):
            peer.then(BEAT, cancel)
            await peer.until(lambda: peer.to(COMPLETE))
        assert peer.to(COMPLETE)[0].body["items"][0]["result"] == "done anyway"

    kit.run(scenario())


def test_heartbeats_continue_until_the_report_is_answered(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            return "done"

        async def slow(seen):
            await asyncio.sleep(2.2)
            return kit.reports(seen, "accepted", 200)

        async with working(kit, handler, kit.granted(kit.delivery(1)), concurrency=1) as (peer, w):
            peer.then(COMPLETE, slow)
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            assert len(peer.to(BEAT)) == 2
            assert w.counts == {"claimed": 1, "completed": 1}

    kit.run(scenario())


@pytest.mark.parametrize(("verdict", "status"), [("finished", 409), ("unknown", 404)])
def test_leas_03_an_execution_that_ended_before_is_not_a_failure(kit, verdict, status) -> None:
    """LEAS-03: the first answer was lost, the repeat finds the execution ended, or trimmed."""

    async def scenario() -> None:
        async def handler(context):
            return "done"

        async def ended(seen):
            return kit.reports(seen, verdict, status)

        async with working(kit, handler, kit.granted(kit.delivery(1)), peers=2) as (nodes, worker):
            one, two = nodes
            one.then(COMPLETE, None)
            two.then(COMPLETE, ended)
            await two.until(lambda: two.to(COMPLETE))
        assert one.to(COMPLETE)[0].body == two.to(COMPLETE)[0].body
        assert worker.counts["refused"] == 0
        assert worker.counts["completed"] == 1

    kit.run(scenario())


def test_a_stale_report_is_counted(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            return "late"

        async def stale(seen):
            return kit.reports(seen, "stale", 409)

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, worker):
            peer.then(COMPLETE, stale)
            await peer.until(lambda: peer.to(COMPLETE))
        assert worker.counts["refused"] == 1

    kit.run(scenario())


def test_a_worker_outlives_an_outage(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            return None

        no_leader = kit.Answer(503, kit.problem("no-leader", 503, retry_after_ms=200))
        outage = [no_leader] * 300
        grant = kit.granted(kit.delivery(1))
        began = now()
        async with working(kit, handler, *outage, grant) as (peer, worker):
            await peer.until(lambda: peer.to(COMPLETE))
            assert now() - began > 60
        assert worker.counts["completed"] == 1

    kit.run(scenario())


def test_reports_outlive_an_outage_and_keep_their_slots(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            return None

        grant = kit.granted(kit.delivery(1), kit.delivery(2))
        unavailable = kit.Answer(503, kit.problem("no-leader", 503, retry_after_ms=1_000))
        async with working(kit, handler, grant, concurrency=2) as (peer, worker):
            peer.then(COMPLETE, *[unavailable] * 100)
            await peer.until(lambda: len(peer.to(COMPLETE)) == 101)
            assert len(peer.to(CLAIMS)) == 1
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
        assert worker.counts["completed"] == 2

    kit.run(scenario())


def test_leas_05_a_stop_cuts_the_poll_first_and_releases_what_still_arrives(kit) -> None:
    """LEAS-05: the answer may be under way when the poll is cut."""

    async def scenario() -> None:
        started = []
        cut = asyncio.Event()

        async def handler(context):
            started.append(context)

        async def long_poll(seen):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cut.set()
                raise

        async with working(kit, handler, long_poll, concurrency=3) as (peer, worker):
            peer.then(CLAIMS, kit.granted(kit.delivery(1), kit.delivery(2)))
            await peer.until(lambda: peer.to(CLAIMS))
            await worker.stop()
            await cut.wait()
        poll, question = peer.to(CLAIMS)
        assert question.body["request_id"] == poll.body["request_id"]
        assert question.body["wait_ms"] == 0
        assert [item["token"] for item in peer.to(RELEASE)[0].body["items"]] == [1_001, 1_002]
        assert not started

    kit.run(scenario())


def test_a_stop_lets_handlers_finish_within_the_grace_and_releases_the_rest(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            await asyncio.sleep(context.payload["number"])
            return "done"

        grant = kit.granted(kit.delivery(2), kit.delivery(60))
        async with working(kit, handler, grant, concurrency=3) as (peer, worker):
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            began = now()
            await worker.stop(5_000)
            assert 4.9 < now() - began < 5.2
        assert [item["token"] for item in peer.to(COMPLETE)[0].body["items"]] == [1_002]
        assert [item["token"] for item in peer.to(RELEASE)[0].body["items"]] == [1_060]
        polls_after_the_stop = [s for s in peer.to(CLAIMS)[2:] if s.body["wait_ms"] > 0]
        assert not polls_after_the_stop
        assert worker.counts == {"claimed": 2, "completed": 1, "released": 1}

    kit.run(scenario())


def test_a_handler_that_ignores_its_cancellation_is_left_not_released(kit) -> None:
    async def scenario() -> None:
        stubborn = asyncio.Event()

        async def handler(context):
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue

        async with working(kit, handler, kit.granted(kit.delivery(1))) as (peer, worker):
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            await worker.stop(0)
            stubborn.set()
        assert not peer.to(RELEASE)

    kit.run(scenario())


def test_a_stop_without_a_cluster_ends_too(kit) -> None:
    async def scenario() -> None:
        async with working(kit, endless, kit.granted(kit.delivery(1))) as (peer, worker):
            await peer.until(lambda: len(peer.to(CLAIMS)) == 2)
            await peer.stop()
            began = now()
            await worker.stop(1_000)
            assert now() - began < 15

    kit.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_ends_quietly_on_a_signal_with_everything_reported(kit, number) -> None:
    async def scenario() -> None:
        async def handler(context):
            os.kill(os.getpid(), number)
            await asyncio.sleep(1)
            return "finished in the grace"

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(1)))
            worker = Worker(client, "default", handler)
            await worker.run(grace_ms=5_000)
        assert worker.counts["completed"] == 1

    kit.run(scenario())


def test_a_second_signal_ends_the_grace(kit) -> None:
    async def scenario() -> None:
        async def handler(context):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(1)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(3_600)

        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.granted(kit.delivery(1)))
            worker = Worker(client, "default", handler)
            began = now()
            await worker.run(grace_ms=600_000)
            assert now() - began < 5
        assert worker.counts["released"] == 1

    kit.run(scenario())


def test_a_queue_that_is_not_served_ends_the_worker(kit) -> None:
    async def scenario() -> None:
        async with kit.peers(1) as [peer], Client(peer.url) as client:
            peer.then(CLAIMS, kit.Answer(404, kit.problem("not-found", 404, detail="queue: x")))
            with pytest.raises(NotFound, match="queue"):
                await Worker(client, "x", endless).run()

    kit.run(scenario())


def test_what_can_not_work_is_refused(kit) -> None:
    async def scenario() -> None:
        async with Client() as client:
            refused = [
                (TypeError, "function of one", {"handler": "send"}),
                (TypeError, "async function", {"handler": endless, "run_in": "thread"}),
                (TypeError, "plain function", {"handler": print, "run_in": "loop"}),
                (TypeError, "import", {"handler": lambda context: 1, "run_in": "process"}),
                (ValueError, "run_in", {"handler": print, "run_in": "fiber"}),
                (ValueError, "concurrency", {"handler": endless, "concurrency": 0}),
                (ValueError, "prefetch", {"handler": endless, "prefetch": -1}),
            ]
            for kind, says, options in refused:
                with pytest.raises(kind, match=says):
                    Worker(client, "q", **options)
            with pytest.raises(TypeError, match="together"):
                Worker(client, "q")
            with pytest.raises(ValueError, match="'q' has a handler"):
                Worker(client, "q", endless).serve("q", endless)
            with pytest.raises(RuntimeError, match="at least one queue"):
                Worker(client).start()

    kit.run(scenario())

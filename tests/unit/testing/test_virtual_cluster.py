"""The virtual cluster: real workers and clients on a real node, in virtual time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from timeball.client import (
    After,
    At,
    Client,
    Cron,
    Every,
    ExecutionContext,
    Hold,
    InvalidRequest,
    NonRetryable,
    NotFound,
    OutcomeUnknown,
    Retry,
    RetryLater,
    Success,
    Unavailable,
    Worker,
    current_execution,
    task,
)
from timeball.client.testing import NotIdle, VirtualCluster

SUNDAY = "2026-03-08T06:00Z"
"""An hour before the clocks of New York go forward."""


@pytest.fixture
async def cluster():
    async with VirtualCluster(start=SUNDAY) as cluster:
        yield cluster


@pytest.fixture
def client(cluster) -> Client:
    return cluster.client()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def listed(client: Client, **wanted):
    """Executions, oldest first."""
    return [execution async for execution in client.executions(**wanted)][::-1]


async def succeed(_context: ExecutionContext) -> str:
    return "done"


async def fail(_context: ExecutionContext) -> None:
    raise ValueError("no")


# --- time --------------------------------------------------------------------------------------


async def test_time_begins_where_it_is_told_and_stands_until_it_is_moved(cluster, client) -> None:
    assert cluster.now == at("2026-03-08T06:00:00+00:00")
    for _ in range(3):
        await client.create(payload=1)
    assert cluster.now == at("2026-03-08T06:00:00+00:00")
    await cluster.advance(hours=1, milliseconds=1)
    assert cluster.now == at("2026-03-08T07:00:00.001+00:00")
    await cluster.advance(timedelta(days=400), seconds=1)
    assert cluster.now == at("2027-04-12T07:00:01.001+00:00")
    await cluster.advance_to("2028-02-29T12:00:00+01:00")
    assert cluster.now == at("2028-02-29T11:00:00+00:00")
    await cluster.advance_to(datetime(2028, 3, 1, tzinfo=UTC))
    await cluster.advance_to(cluster.now_ms)
    assert cluster.now == at("2028-03-01T00:00:00+00:00")


async def test_time_does_not_go_back(cluster) -> None:
    with pytest.raises(ValueError, match="time does not go back: 2026-03-08T05:59Z is before"):
        await cluster.advance_to("2026-03-08T05:59Z")
    with pytest.raises(ValueError, match="time does not go back"):
        await cluster.advance(hours=-1)


def test_a_start_that_is_no_instant_is_refused() -> None:
    for start in ("yesterday", "2026-03-08T06:00", datetime(2026, 3, 8), -1):
        with pytest.raises(InvalidRequest, match="start"):
            VirtualCluster(start=start)


async def test_time_passes_while_the_test_waits(cluster, client) -> None:
    async def call(at: datetime) -> None:
        await asyncio.sleep(7.5)
        assert cluster.now == at

    began = time.monotonic()
    await asyncio.gather(call(at("2026-03-08T06:00:07.500+00:00")), asyncio.sleep(3_600))
    assert cluster.now == at("2026-03-08T07:00:00+00:00")
    claimed = await client.claim(worker="w", wait_ms=30_000)
    assert not claimed.executions
    assert cluster.now == at("2026-03-08T07:00:30+00:00")
    assert time.monotonic() - began < 60


async def test_a_timeout_ends_at_its_instant(cluster) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(86_000):
            await asyncio.Event().wait()
    assert cluster.now == at("2026-03-09T05:53:20+00:00")


# --- executions --------------------------------------------------------------------------------


async def test_a_job_runs_at_its_instant_and_not_before(cluster, client) -> None:
    seen: list[datetime] = []

    async def handler(context: ExecutionContext) -> object:
        seen.append(cluster.now)
        return context.payload

    job = await client.create(payload={"n": 7}, schedule=After(delay_ms=3_600_000))
    async with Worker(client, "default", handler):
        await cluster.advance(minutes=59, seconds=59, milliseconds=999)
        assert not seen
        assert (await client.execution(job.execution_id)).state == "scheduled"
        await cluster.advance(milliseconds=1)
        execution = await client.execution(job.execution_id)
    assert seen == [at("2026-03-08T07:00:00+00:00")]
    assert execution.state == "succeeded"
    assert execution.result == {"n": 7}
    assert execution.finished_at == "2026-03-08T07:00:00.000Z"
    [attempt] = execution.attempts
    assert attempt.claimed_at == attempt.finished_at == "2026-03-08T07:00:00.000Z"


async def test_what_is_due_is_run_and_not_what_is_due_in_a_moment(cluster, client) -> None:
    job = await client.create(schedule=After(delay_ms=1_000))
    # With claims to spare, a cluster grants a lease shortly before the due time: not this one.
    async with Worker(client, "default", succeed), Worker(client, "default", succeed):
        await cluster.advance(milliseconds=990)
        assert await cluster.run_due() == timedelta()
        assert (await client.execution(job.execution_id)).state == "scheduled"


async def test_a_handler_that_sleeps_keeps_its_lease_and_costs_no_time(cluster, client) -> None:
    async def slow(_context: ExecutionContext) -> str:
        await asyncio.sleep(3_600)
        return "slept"

    job = await client.create()
    async with Worker(client, "default", slow, lease_ms=10_000):
        await cluster.advance(minutes=59)
        running = await client.execution(job.execution_id)
        assert (running.state, running.attempts_used) == ("running", 1)
        took = await cluster.run_due()
    assert took == timedelta(minutes=1)
    done = await client.execution(job.execution_id)
    assert (done.state, done.result, len(done.attempts)) == ("succeeded", "slept", 1)


async def test_retries_come_after_their_backoff(cluster, client) -> None:
    retry = Retry(max_attempts=4, initial_ms=60_000, jitter_pct=0)
    job = await client.create(retry=retry)
    async with Worker(client, "default", fail):
        assert await cluster.run_due() == timedelta()
        waiting = await client.execution(job.execution_id)
        assert (waiting.state, waiting.due_at) == ("retry", "2026-03-08T06:01:00.000Z")
        assert await cluster.run_until_idle() == timedelta(minutes=1 + 2 + 4)
    dead = await client.execution(job.execution_id)
    assert dead.state == "dead"
    assert [attempt.claimed_at[11:19] for attempt in dead.attempts] == [
        "06:00:00", "06:01:00", "06:03:00", "06:07:00",
    ]  # fmt: skip
    assert {attempt.error_type for attempt in dead.attempts} == {"ValueError"}


async def test_what_a_handler_raises_steers_the_next_attempt(cluster, client) -> None:
    async def handler(context: ExecutionContext) -> str:
        if context.payload == "never":
            raise NonRetryable("no use")
        if context.attempt == 1:
            raise RetryLater(90_000)
        return "at last"

    later, never = await client.create(payload="later"), await client.create(payload="never")
    async with Worker(client, "default", handler):
        assert await cluster.run_until_idle() == timedelta(seconds=90)
    assert (await client.execution(later.execution_id)).result == "at last"
    assert [letter.execution_id async for letter in client.dead()] == [never.execution_id]
    await client.replay([never.execution_id])
    with pytest.raises(NotIdle, match=r"1 executions are left:\n.* is due, and no worker takes it"):
        await cluster.run_until_idle(within=timedelta(minutes=1))


async def test_a_timetable_keeps_wall_clock_time_over_the_change(cluster, client) -> None:
    ran: list[str] = []

    async def nightly(_context: ExecutionContext) -> None:
        ran.append(cluster.now.isoformat())

    cron = Cron("30 2 * * *", time_zone="America/New_York")
    job = await client.create(queue="nightly", schedule=cron)
    worker = Worker(client, "nightly", nightly, lease_ms=120_000, wait_ms=60_000)
    async with worker:
        await cluster.advance_to("2026-03-10T06:30Z")
    # Half past two does not exist on the 8th: it runs when the clocks have gone forward.
    assert ran == [
        "2026-03-08T07:00:00+00:00",
        "2026-03-09T06:30:00+00:00",
        "2026-03-10T06:30:00+00:00",
    ]
    states = [execution.state for execution in await listed(client, job=job.job_id)]
    assert states == ["succeeded", "succeeded", "succeeded", "scheduled"]


async def test_what_a_timetable_has_planned_keeps_nobody_from_being_idle(cluster, client) -> None:
    await client.create(schedule=Every(interval_ms=60_000))
    await client.create(queue="q", schedule=At(time="2026-03-08T06:00:30Z"))
    async with Worker(client, "q", succeed):
        assert await cluster.run_until_idle() == timedelta(seconds=30)


async def test_what_a_timetable_repeats_is_waited_for(cluster, client) -> None:
    async def handler(context: ExecutionContext) -> None:
        if context.attempt == 1:
            raise RetryLater(60_000)

    await client.create(schedule=Every(interval_ms=3_600_000))
    async with Worker(client, "default", handler):
        await cluster.advance(hours=1)
        assert await cluster.run_until_idle() == timedelta(minutes=1)


async def test_the_lease_of_a_worker_that_says_nothing_runs_out(cluster, client) -> None:
    retry = Retry(max_attempts=2, initial_ms=1_000, jitter_pct=0)
    job = await client.create(retry=retry)
    [first] = (await client.claim(worker="gone", lease_ms=10_000)).executions
    await cluster.advance(seconds=10)
    assert (await client.execution(job.execution_id)).state == "leased"
    await cluster.advance(milliseconds=1)  # the millisecond in which it began is not counted
    assert (await client.execution(job.execution_id)).state == "retry"
    await cluster.advance(seconds=1)
    [second] = (await client.claim(worker="next")).executions
    assert second.token > first.token
    [late] = await client.complete([Success(execution_id=job.execution_id, token=first.token)])
    assert late.verdict == "stale"
    outcomes = [each.outcome for each in (await client.execution(job.execution_id)).attempts]
    assert outcomes == ["lease_expired", "open"]
    await cluster.advance(seconds=10, milliseconds=1)
    dead = await client.execution(job.execution_id)
    assert (dead.state, dead.reason) == ("dead", "attempts_exhausted:lease_expired")


async def test_a_worker_without_a_network_loses_its_lease(cluster, client) -> None:
    ended: list[str] = []

    async def handler(context: ExecutionContext) -> None:
        if context.attempt == 1:
            try:
                await asyncio.sleep(3_600)
            finally:
                ended.append(f"{cluster.now:%H:%M:%S} {bool(context.lost)}")

    job = await client.create(retry=Retry(initial_ms=1_000, jitter_pct=0))
    async with Worker(client, "default", handler, lease_ms=9_000):
        await cluster.advance(seconds=4)
        with cluster.unreachable():
            with pytest.raises(Unavailable, match="the network is cut"):
                await client.job(job.job_id)
            await cluster.advance(minutes=5)
        await cluster.run_until_idle()
    assert ended == ["06:00:12 True"]  # nine seconds after the last heartbeat, at the third
    execution = await client.execution(job.execution_id)
    assert [attempt.outcome for attempt in execution.attempts] == ["lease_expired", "succeeded"]


async def test_a_poll_that_the_network_cuts_leaves_no_lease(cluster, client) -> None:
    job = await client.create(schedule=After(delay_ms=2_000))
    claim = asyncio.create_task(client.claim(worker="w", wait_ms=60_000, timeout_ms=1))
    await cluster.advance(seconds=1)
    with cluster.unreachable():
        await cluster.advance(minutes=2)
    with pytest.raises(OutcomeUnknown, match="the network is cut"):
        await claim
    assert (await client.execution(job.execution_id)).state == "scheduled"


async def test_a_cancelled_job_ends_its_handler(cluster, client) -> None:
    ended: list[bool] = []

    async def handler(context: ExecutionContext) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.append(bool(context.cancelled))

    job = await client.create()
    async with Worker(client, "default", handler):
        await cluster.advance(minutes=1)
        await client.cancel(job.job_id)
        await cluster.run_due()
    assert ended == [True]
    assert (await client.execution(job.execution_id)).state == "cancelled"


async def test_tasks_run_with_their_context_and_middleware(cluster, client) -> None:
    around: list[str] = []

    async def told(context, call_next):
        around.append(context.execution_id)
        return await call_next(context)

    @task(queue="mail", retry=Retry(max_attempts=3, initial_ms=1_000))
    async def send(to: str) -> str:
        if current_execution().attempt < 3:
            raise ConnectionError("not yet")
        return f"sent to {to}"

    job = await send.submit(client, to="ann")
    async with Worker(client, tasks=[send], middleware=[told]):
        await cluster.run_until_idle()
    assert (await client.execution(job.execution_id)).result == "sent to ann"
    assert around == [job.execution_id] * 3


async def test_a_worker_stops_in_virtual_time(cluster, client) -> None:
    async def endless(_context: ExecutionContext) -> None:
        await asyncio.Event().wait()

    job = await client.create()
    worker = Worker(client, "default", endless)
    worker.start()
    await cluster.advance(seconds=1)
    await worker.stop(grace_ms=600_000)
    assert cluster.now == at("2026-03-08T06:10:01+00:00")
    released = await client.execution(job.execution_id)
    assert (released.state, released.attempts_used) == ("scheduled", 0)


# --- what is left, and who says so -------------------------------------------------------------


async def test_what_is_left_is_told(cluster, client) -> None:
    async def endless(_context: ExecutionContext) -> None:
        await asyncio.Event().wait()

    held, due = await client.create(), await client.create(queue="nobody")
    far = await client.create(schedule=After(delay_ms=30 * 86_400_000))
    async with Worker(client, "default", endless):
        with pytest.raises(NotIdle) as told:
            await cluster.run_until_idle(within=timedelta(minutes=1))
        assert str(told.value).splitlines() == [
            "after 0:01:00, 3 executions are left:",
            f"  {held.execution_id} of queue 'default', 1 attempts, is in the hands of a worker",
            f"  {due.execution_id} of queue 'nobody', 0 attempts, is due, and no worker takes it",
            f"  {far.execution_id} of queue 'default', 0 attempts, "
            "is due at 2026-04-07T06:00:00+00:00",
        ]
        with pytest.raises(NotIdle, match="2 executions are left"):
            await cluster.run_due(within=timedelta(minutes=1))


async def test_queues_can_be_a_closed_list() -> None:
    async with VirtualCluster(queues=["mail"]) as cluster:
        client = cluster.client()
        await client.create(queue="mail")
        with pytest.raises(NotFound, match="does not serve a queue 'post'"):
            await client.create(queue="post")


async def test_every_request_of_the_protocol_reaches_the_node(cluster, client) -> None:
    view = await client.cluster(digest=True, consistency="strong")
    assert (view.role, view.serving, view.leader) == ("leader", True, "virtual")
    assert view.feature_level == view.nodes[0].supported_level
    begun = await client.take_snapshot()
    assert begun.index == view.applied_index
    assert (await client.replacement("virtual")).quorum == 1
    preview = await client.preview_schedule(Cron("0 3 * * *"), count=2)
    assert [fire.nominal_at for fire in preview.fires] == [
        "2026-03-09T03:00:00.000Z",
        "2026-03-10T03:00:00.000Z",
    ]


async def test_a_lost_claim_gives_back_what_it_was_granted(cluster, client) -> None:
    job = await client.create(schedule=After(delay_ms=1_000))
    claim = asyncio.create_task(client.claim(worker="w", wait_ms=60_000))
    await cluster.advance(milliseconds=500)
    claim.cancel()
    await cluster.advance(seconds=1)
    execution = await client.execution(job.execution_id)
    assert (execution.state, execution.attempts_used) == ("scheduled", 0)
    [delivery] = (await client.claim(worker="other")).executions
    [beat] = await client.heartbeat([Hold(execution_id=job.execution_id, token=delivery.token)])
    assert (beat.verdict, beat.lease_remaining_ms) == ("extended", 10_000)


async def test_two_runs_of_one_test_are_the_same_to_the_millisecond() -> None:
    async def story() -> list[object]:
        async with VirtualCluster(start=SUNDAY, seed=3) as cluster:
            client = cluster.client()
            for number in range(20):
                await client.create(payload=number, retry=Retry(max_attempts=5))
            async with Worker(client, "default", fail, name="w", concurrency=3):
                await cluster.run_until_idle()
            return [*await listed(client), cluster.now, client.new_request_id()]

    first, second = await story(), await story()
    assert first == second
    assert len(first) == 22


async def test_events_are_followed_also_over_a_cut_of_the_network(cluster, client) -> None:
    """What happens meanwhile is told afterwards, once."""
    told: list[str] = []

    async def follow() -> None:
        async for event in client.events(after="oldest"):
            told.append(event.type)  # noqa: PERF401 — it has no end

    following = asyncio.create_task(follow())
    job = await client.create()
    await cluster.advance(seconds=1)
    assert told == ["execution.created"]
    with cluster.unreachable():
        async with Worker(cluster.client(), "default", succeed):
            await cluster.advance(seconds=10)
    async with Worker(client, "default", succeed):
        await cluster.run_until_idle()
    await cluster.advance(seconds=10)
    assert told == ["execution.created", "execution.leased", "execution.succeeded"]
    view = await client.execution(job.execution_id)
    assert view.state == "succeeded"
    following.cancel()


async def test_an_end_is_waited_for(cluster, client) -> None:
    job = await client.create(schedule=After(delay_ms=45_000))
    waiting = asyncio.create_task(client.wait(job.execution_id, wait_ms=3_600_000))
    hasty = asyncio.create_task(client.wait(job.execution_id, wait_ms=2_000))
    async with Worker(client, "default", succeed):
        await cluster.advance(seconds=44)
        assert (await hasty).state == "scheduled"
        assert not waiting.done()
        await cluster.advance(seconds=2)
        assert ((await waiting).state, (await waiting).result) == ("succeeded", "done")
    with pytest.raises(NotFound):
        await client.wait("1-1")

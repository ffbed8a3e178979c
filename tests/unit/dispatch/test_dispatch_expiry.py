"""Expiry by the leader's timers: what no claim took in time is skipped, on time and once."""

from __future__ import annotations

import pytest

from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import (
    Change,
    ConfigureQueue,
    Every,
    NewJob,
    Options,
    QueueChange,
    RetryPolicy,
    SkipExpired,
    Timetable,
    UpdateJob,
)
from timeball.cluster.state.records import ExecutionState

SCHEDULED, SKIPPED = ExecutionState.SCHEDULED, ExecutionState.SKIPPED
SECOND = 1_000


def after(ms):
    return Options(expires_after_ms=ms)


def skips(world):
    return [op for entry in world.commit.entries for op in entry if isinstance(op, SkipExpired)]


async def test_what_nobody_claims_is_skipped_at_its_expiry_and_not_before(world) -> None:
    holds = [await world.job(delay_ms=500, options=after(ms)) for ms in (1_000, 1_000, 2_000)]
    await world.pass_ms(1_499)
    assert [world.execution(hold).state for hold in holds] == [SCHEDULED] * 3
    await world.pass_ms(1)
    assert [world.execution(hold).state for hold in holds] == [SKIPPED, SKIPPED, SCHEDULED]
    assert world.execution(holds[0]).reason == "expired"
    assert world.execution(holds[0]).finished_ms == world.now_ms
    assert world.dispatcher.ready_depth("q") == 1
    assert [len(op.executions) for op in skips(world)] == [2]
    (grant,) = await world.claim()
    assert grant.execution is world.execution(holds[2])


async def test_a_claim_in_the_last_millisecond_gets_it_and_a_later_one_does_not(world) -> None:
    first, second = [await world.job(options=after(1_000)) for _ in range(2)]
    await world.pass_ms(999)
    (grant,) = await world.claim()
    assert grant.execution is world.execution(first)
    world.timers.now_ms += 1  # no timer has had its turn yet
    task = world.asking(wait_ms=0)
    await world.pass_ms(300)
    assert task.result() == []
    assert world.execution(second).state is SKIPPED
    await world.pass_ms(5 * SECOND)
    assert len(skips(world)) == 1
    assert world.heartbeat(grant).verdict == "extended"


async def test_a_waiting_claim_gets_what_is_in_time_and_has_no_timer_left(world) -> None:
    task = world.asking()
    await world.job(delay_ms=500, options=after(1_000))
    await world.pass_ms(500)
    (grant,) = task.result()
    assert not world.dispatcher._duty.expiries
    await world.succeed(grant)
    await world.pass_ms(5 * SECOND)
    assert skips(world) == []


async def test_a_retry_in_backoff_is_watched_when_it_is_due(world) -> None:
    policy = RetryPolicy(max_attempts=5, initial_ms=1_000, jitter_pct=0)
    hold = await world.job(options=after(1_500), retry=policy)
    (grant,) = await world.claim()
    await world.fail(grant)
    assert world.execution(hold).state is SCHEDULED
    await world.pass_ms(1_500)
    assert world.execution(hold).state is SKIPPED
    assert len(world.execution(hold).attempts) == 1


async def test_the_next_leader_skips_what_expired_without_one(world) -> None:
    holds = [await world.job(delay_ms=100, options=after(ms)) for ms in (500, 5_000)]
    await world.lose_leadership()
    await world.pass_ms(2 * SECOND)
    assert world.execution(holds[0]).state is SCHEDULED
    await world.lead(2)
    assert [world.execution(hold).state for hold in holds] == [SKIPPED, SCHEDULED]
    await world.pass_ms(4 * SECOND)
    assert world.execution(holds[1]).state is SKIPPED


async def test_a_leader_whose_skip_is_not_taken_tries_again(world) -> None:
    hold = await world.job(options=after(1_000))
    await world.pass_ms(999)
    world.commit.error = Overloaded()
    await world.pass_ms(150)
    assert world.execution(hold).state is SCHEDULED
    assert world.seen.failed == ["skip"] * 2
    world.commit.error = None
    await world.pass_ms(200)
    assert world.execution(hold).state is SKIPPED


async def test_what_is_on_its_way_to_a_claim_is_left_to_its_verdict(world) -> None:
    hold = await world.job(options=after(1_000))
    world.commit.stalled = True
    await world.pass_ms(900)
    task = world.asking()
    await world.pass_ms(200)  # the claim was written in time, and is applied when it is not
    assert skips(world) == []
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert len(task.result()) == 1
    assert world.execution(hold).state is ExecutionState.LEASED
    await world.pass_ms(SECOND)
    assert skips(world) == []


async def test_a_change_of_the_expiry_moves_the_timer(world) -> None:
    longer, shorter = [await world.job(options=after(1_000)) for _ in range(2)]
    await world.write(UpdateJob(longer[0], 0, Change(expires_after_ms=3_000)))
    await world.write(UpdateJob(shorter[0], 0, Change(expires_after_ms=200)))
    await world.pass_ms(200)
    assert world.execution(shorter).state is SKIPPED
    await world.pass_ms(2_799)
    assert world.execution(longer).state is SCHEDULED
    await world.pass_ms(1)
    assert world.execution(longer).state is SKIPPED


async def test_a_clock_that_steps_back_skips_nothing_too_early_and_does_not_spin(world) -> None:
    hold = await world.job(options=after(1_000))
    world.commit.stalled = True
    await world.pass_ms(500)
    world.wall_offset_ms += 500  # the expiry has come by this clock …
    await world.pass_ms(0)
    await world.pass_ms(1)
    world.wall_offset_ms -= 500
    world.commit.stalled = False
    world.commit.commit()
    await world.pass_ms(10)
    assert world.execution(hold).state in (SCHEDULED, SKIPPED)
    await world.pass_ms(SECOND)
    assert world.execution(hold).state is SKIPPED
    assert len(skips(world)) <= 3


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "cancel_running", "allow"])
async def test_an_occurrence_that_is_held_back_expires_all_the_same(world, overlap) -> None:
    first_ms = world.wall_ms() + 60_000
    timetable = Timetable((Every(60_000, first_ms),), overlap=overlap)
    options = after(90_000)
    new = NewJob("q", b"\xc0", first_ms=first_ms, timetable=timetable, options=options)
    ((job, _),) = await world.create(new)
    await world.pass_ms(60_000)
    (grant,) = await world.claim(lease_ms=600_000)
    await world.pass_ms(60_000)
    second = world.state.execution(job, first_ms + 60_000)
    await world.pass_ms(90_000)
    assert second.state is SKIPPED
    reasons = {"skip": "skipped:overlap", "cancel_running": "skipped:superseded"}
    assert second.reason == reasons.get(overlap, "expired")
    recurrence = world.state.job(job).recurrence
    assert grant.execution.state is ExecutionState.LEASED
    made = len(world.state.executions_of(world.state.job(job)))
    assert recurrence.fired + recurrence.skipped == made


@pytest.mark.parametrize("change", [{"max_concurrency_per_key": 1}, {"state": "paused"}])
async def test_what_a_queue_holds_back_expires_all_the_same(world, change) -> None:
    options = Options("ann", expires_after_ms=1_000)
    first = await world.job(options=options)
    task = world.asking(lease_ms=60_000)
    await world.settle()
    await world.write(ConfigureQueue("q", -1, QueueChange(**change)))
    second = await world.job(options=options)
    waiting = world.asking(wait_ms=30_000)
    await world.pass_ms(999)
    assert world.dispatcher.ready_depth("q") == 1
    await world.pass_ms(1)
    assert world.execution(second).state is SKIPPED
    assert world.dispatcher.ready_depth("q") == 0
    assert task.result()[0].execution is world.execution(first)
    assert world.execution(first).state is ExecutionState.LEASED
    assert not waiting.done()


async def test_many_that_expire_at_once_are_skipped_in_bounded_steps(world) -> None:
    await world.lead(2, step=10)
    new = NewJob("q", b"\xc0", options=after(1_000))
    await world.create(*[new] * 95)
    await world.pass_ms(1_000)
    assert world.state.queues["q"].skipped == 95
    assert world.dispatcher.ready_depth("q") == 0

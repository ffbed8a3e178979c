"""From due time to a worker's hands: never early, in order, by priority, in bounded steps."""

from __future__ import annotations

import asyncio
import random

from timeball.cluster.state.operations import Claim, NewJob, RetryPolicy
from timeball.cluster.state.records import ExecutionState


def names(grants):
    return [(grant.execution.job.id, grant.execution.nominal_ms) for grant in grants]


async def test_a_job_is_handed_out_at_its_due_time_and_not_a_millisecond_before(world):
    due_ms = world.wall_ms() + 12_345
    hold = await world.job(first_ms=due_ms)
    task = world.asking()
    await world.pass_ms(12_344)
    assert not task.done()
    assert await world.claim(request_id="early") == []
    await world.pass_ms(due_ms - world.wall_ms())
    (grant,) = task.result()
    assert names([grant]) == [hold]
    assert world.state.log_time_ms >= due_ms
    assert grant.execution.state is ExecutionState.LEASED
    assert grant.attempt == 1


async def test_what_is_nearly_due_is_not_ready(world):
    """Though a lease would be granted: only claims to spare take what is not due."""
    await world.job(delay_ms=5)
    for _ in range(4):
        assert world.dispatcher.ready_depth("q") == 0
        await world.pass_ms(1)
    assert world.dispatcher.ready_depth("q") == 0
    await world.pass_ms(1)
    assert world.dispatcher.ready_depth("q") == 1


async def test_what_is_due_before_the_next_tick_brings_it_forward(world):
    late, soon = world.asking("late"), world.asking("soon")
    await world.settle()
    at_ms = world.wall_ms()
    await world.create(NewJob("late", b"", first_ms=at_ms + 2))
    await world.create(NewJob("soon", b"", first_ms=at_ms + 1))
    await world.pass_ms(1)
    assert soon.done()
    assert not late.done()
    await world.pass_ms(1)
    assert late.done()


async def test_random_due_times_arrive_in_order_and_each_at_its_time(world):
    rng = random.Random(7)
    start_ms = world.wall_ms()
    delays = [rng.choice([rng.randrange(5_000), rng.randrange(200_000)]) for _ in range(300)]
    await world.create(*(NewJob("q", b"", first_ms=start_ms + delay) for delay in delays))
    arrived: list[tuple[int, int]] = []
    task = world.asking(n=100, lease_ms=1_000_000)
    for _ in range(3_000):
        if len(arrived) == len(delays):
            break
        if task.done():
            arrived.extend((grant.execution.due_ms, world.now_ms) for grant in task.result())
            task = world.asking(n=100, lease_ms=1_000_000)
            await world.settle()
        else:
            await world.pass_ms(max(world.timers.next_at_ms() - world.timers.now_ms, 0))
    assert sorted(due for due, _ in arrived) == sorted(start_ms + delay for delay in delays)
    assert [due for due, _ in arrived] == sorted(due for due, _ in arrived)
    assert all(at == due for due, at in arrived)
    assert all(lag <= 1 for lag, _ in world.seen.lags)


async def test_jobs_of_the_past_are_due_at_once_oldest_first(world):
    """TIMR-02."""
    holds = await world.create(
        *(
            NewJob("q", b"", first_ms=first_ms, partition_key="p")
            for first_ms in (world.wall_ms() - 1, 1, world.wall_ms() - 315_360_000_000)
        )
    )
    assert names(await world.claim(n=10)) == [holds[1], holds[2], holds[0]]
    assert await world.claim(n=10) == []


async def test_far_jobs_stay_in_their_buckets(world):
    """TIMR-01: nothing derived is kept of what is years away, and nothing fires."""
    await world.job(first_ms=253_402_300_799_999)
    await world.pass_ms(10_000)
    duty = world.dispatcher._duty
    assert len(duty._wheel) == 0
    assert not duty._places


async def test_higher_priority_first_then_due_order_within_a_partition(world):
    at_ms = world.wall_ms()
    rows = [(5, 10), (9, 30), (5, 0), (9, 20), (0, 0)]
    holds = await world.create(
        *(
            NewJob("q", b"", first_ms=at_ms + delay, priority=priority, partition_key="p")
            for priority, delay in rows
        )
    )
    await world.pass_ms(100)
    assert names(await world.claim(n=10)) == [holds[i] for i in (3, 1, 2, 0, 4)]


async def test_equal_due_times_go_in_order_of_creation_in_bounded_steps(world):
    """TIMR-09: 10,000 on one instant; each turn moves at most a step, each fires once."""
    at_ms = world.wall_ms() + 5_000
    holds = []
    for _ in range(10):
        holds += await world.create(
            *(NewJob("q", b"", first_ms=at_ms, partition_key="p") for _ in range(1_000))
        )
    tasks = [world.asking(n=1_000) for _ in range(10)]
    await world.pass_ms(5_000)
    got = [name for task in tasks for name in names(task.result())]
    assert got == holds
    assert max(count for _, count in world.seen.lags) <= 2_000
    claims = [op for entry in world.commit.entries for op in entry if isinstance(op, Claim)]
    assert len(claims) == 10
    for entry in world.commit.entries:
        assert sum(len(op.executions) for op in entry if isinstance(op, Claim)) <= 4_096


async def test_a_higher_priority_of_the_same_instant_goes_first_though_it_is_fired_last(world):
    """All that is due is in before a choice is made, in however many steps it is fired."""
    await world.lead(2, step=10)
    at_ms = world.wall_ms() + 5_000
    await world.create(*(NewJob("q", b"", first_ms=at_ms, priority=5) for _ in range(35)))
    high = await world.create(
        *(NewJob("q", b"", first_ms=at_ms, priority=9, partition_key="p") for _ in range(5))
    )
    task = world.asking(n=5)
    await world.pass_ms(5_000)
    assert names(task.result()) == high


async def test_what_comes_due_while_much_is_fired_holds_up_no_claim(world):
    """More comes due than is fired, for as long as it is looked at."""
    await world.lead(2, step=2)
    at_ms = world.wall_ms() + 1_000
    await world.create(*(NewJob("q", b"", first_ms=at_ms + n // 3) for n in range(600)))
    task = world.asking()
    await world.pass_ms(999)
    for _ in range(20):
        await asyncio.sleep(0)
        world.timers.now_ms += 1
        world.timers.run_one()
    assert task.done()
    assert world.dispatcher._duty._wheel.next_expiry() <= world.wall_ms()


async def test_a_clock_that_steps_back_while_much_is_fired_holds_up_no_claim(world):
    await world.lead(2, step=10)
    at_ms = world.wall_ms() + 5_000
    await world.create(*(NewJob("q", b"", first_ms=at_ms) for _ in range(35)))
    await world.pass_ms(4_999)
    world.timers.now_ms += 1
    while not world.dispatcher.ready_depth("q"):
        world.timers.run_one()
    world.wall_offset_ms -= 1_000
    (hold,) = await world.create(NewJob("other", b""))
    assert names(await world.claim("other")) == [hold]


async def test_claims_of_a_queue_are_served_first_come_first_served(world):
    first, second, third = (world.asking() for _ in range(3))
    await world.settle()
    holds = await world.create(*(NewJob("q", b"", partition_key="p") for _ in range(2)))
    assert names(first.result() + second.result()) == holds
    assert not third.done()
    assert world.dispatcher.waiting_claims("q") == 1


async def test_queues_do_not_mix_and_are_served_in_turn(world):
    a, b = world.asking("a"), world.asking("b")
    await world.settle()
    (hold,) = await world.create(NewJob("b", b""))
    assert names(b.result()) == [hold]
    assert not a.done()


async def test_a_retry_waits_for_its_backoff(world):
    hold = await world.job()
    (grant,) = await world.claim()
    await world.fail(grant)
    due_ms = world.execution(hold).due_ms
    assert due_ms == world.state.log_time_ms + 1_000
    task = world.asking()
    await world.pass_ms(due_ms - world.wall_ms() - 1)
    assert not task.done()
    await world.pass_ms(1)
    (again,) = task.result()
    assert again.token > grant.token
    assert again.attempt == 2


async def test_a_cancelled_job_is_not_handed_out(world):
    """TIMR-10, from each place where it may stand."""
    ready = await world.job()
    near = await world.job(delay_ms=1_000)
    far = await world.job(delay_ms=600_000)
    for job, _ in (ready, near, far):
        await world.cancel_job(job)
    assert world.dispatcher.ready_depth("q") == 0
    task = world.asking(wait_ms=700_000)
    await world.pass_ms(700_000)
    assert task.result() == []


async def test_one_live_timer_for_each_execution_however_often_it_moves(world):
    """TIMR-06: fail and retry many times at random; every start is one the model expects."""
    rng = random.Random(3)
    policy = RetryPolicy(max_attempts=1_000, initial_ms=0, jitter_pct=0)
    hold = await world.job(retry=policy)
    for starts in range(1, 301):
        task = world.asking(wait_ms=10_000)
        await world.settle()
        while not task.done():
            await world.pass_ms(100)
        (grant,) = task.result()
        assert world.execution(hold).attempts_used == starts
        await world.fail(grant, retry_after_ms=rng.choice([0, 1, 50, 1_500, 2_500]))
        assert len(world.dispatcher._duty._places) <= 1
        assert len(world.dispatcher._duty._wheel) <= 1


async def test_a_late_failure_moves_the_one_timer_of_a_retry(world):
    """TIMR-06: expired, waiting for its retry, and then failed by the late holder."""
    hold = await world.job()
    (grant,) = await world.claim()
    await world.pass_ms(10_010)
    assert world.execution(hold).due_ms > world.now_ms
    await world.fail(grant, retry_after_ms=1_900)
    assert len(world.dispatcher._duty._wheel) == 1
    due_ms = world.execution(hold).due_ms
    task = world.asking()
    await world.pass_ms(due_ms - world.wall_ms() - 1)
    assert not task.done()
    await world.pass_ms(1)
    assert names(task.result()) == [hold]


async def test_a_late_failure_takes_a_ready_retry_back(world):
    hold = await world.job()
    (grant,) = await world.claim()
    await world.pass_ms(11_500)
    assert world.dispatcher.ready_depth("q") == 1
    await world.fail(grant, retry_after_ms=1_900)
    assert world.dispatcher.ready_depth("q") == 0
    await world.pass_ms(1_900)
    assert names(await world.claim()) == [hold]


async def test_depth_and_age_of_what_is_ready(world):
    at_ms = world.wall_ms()
    await world.create(NewJob("q", b"", first_ms=at_ms - 500), NewJob("q", b"", first_ms=at_ms))
    assert world.dispatcher.ready_depth("q") == 2
    assert world.dispatcher.oldest_due_ms("q") == at_ms - 500
    assert world.dispatcher.ready_depth("other") == 0
    assert world.dispatcher.oldest_due_ms("other") is None


async def test_an_idle_leader_only_looks_at_its_clocks(world):
    await world.pass_ms(5_000)
    before = len(world.commit.entries)
    await world.pass_ms(60_000)
    assert len(world.commit.entries) == before


# --- clocks ------------------------------------------------------------------------------------


async def test_a_clock_that_steps_back_repeats_and_stalls_nothing_that_was_due(world):
    """TIMR-07."""
    done = await world.job(delay_ms=100)
    await world.pass_ms(200)
    assert names(await world.claim()) == [done]
    waiting = await world.job()
    world.wall_offset_ms -= 12 * 3_600_000
    await world.pass_ms(1_500)
    assert names(await world.claim()) == [waiting]
    # Log-time does not go back, so what is created now is due now.
    created = await world.job()
    assert names(await world.claim()) == [created]
    assert await world.claim() == []


async def test_a_step_back_between_firing_and_claiming_hands_nothing_out_early(world):
    """The claim is refused by log-time, and the execution is not lost by that."""
    hold = await world.job(delay_ms=1_000)
    await world.pass_ms(1_000)
    assert world.dispatcher.ready_depth("q") == 1
    world.wall_offset_ms -= 500
    first, second = world.asking(), world.asking()
    await world.pass_ms(499)
    assert not first.done()
    await world.pass_ms(1)
    # Who was first has not lost its turn by the refusal.
    assert names(first.result()) == [hold]
    assert not second.done()


async def test_a_clock_that_jumps_ahead_fires_everything_in_order(world):
    at_ms = world.wall_ms()
    delays = [3_000_000, 1_500, 60_000, 3_600_000]
    holds = await world.create(
        *(NewJob("q", b"", first_ms=at_ms + delay, partition_key="p") for delay in delays)
    )
    world.wall_offset_ms += 7_200_000
    await world.pass_ms(1_000)
    assert names(await world.claim(n=10)) == [holds[i] for i in (1, 2, 0, 3)]

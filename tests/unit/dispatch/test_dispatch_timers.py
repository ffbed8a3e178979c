"""Timers under attack: masses on one instant, cancels at the due time, clocks that step (TIMR)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from timeball.cluster.state.operations import (
    CancelJobs,
    Claim,
    ClusterSettings,
    Cron,
    Lead,
    NewJob,
    RetryPolicy,
    Timetable,
)
from timeball.cluster.state.records import ExecutionState
from timeball.cluster.state.verdicts import CancelStatus

HOUR_MS = 3_600_000
STEP, PER_ENTRY = 1_000, 375
"""What one turn takes up at most, and an entry for claims, as production sets them."""


async def create_many(world, jobs):
    """Create any number of jobs, in entries that hold as many as an entry may."""
    holds = []
    for first in range(0, len(jobs), 1_000):
        holds += await world.create(*jobs[first : first + 1_000])
    return holds


def hold_of(grant):
    return (grant.execution.job.id, grant.execution.nominal_ms)


async def drain(world, *, n=1_000):
    """Claim until nothing is ready; what was handed out, in order."""
    got = []
    while world.dispatcher.ready_depth("q"):
        got += await world.claim(n=n, lease_ms=3_600_000)
    return got


# --- many on one instant -----------------------------------------------------------------------


@pytest.mark.parametrize("priorities", [[5], [0, 5, 9]])
async def test_timr_09_a_mass_on_one_instant_fires_in_order_whoever_leads(world, priorities):
    """TIMR-09: in bounded steps, by (due, sequence) within a priority, each once, though the
    leader is lost half way."""
    rng = random.Random(9)
    bounds = {"executions_per_entry": PER_ENTRY, "max_executions_per_claim": PER_ENTRY}
    await world.lose_leadership()
    await world.lead(2, **bounds)
    at_ms = world.wall_ms() + 20_000
    jobs = [
        NewJob("q", b"", first_ms=at_ms, priority=rng.choice(priorities), partition_key="p")
        for _ in range(20_000)
    ]
    holds = await create_many(world, jobs)
    place = {hold: number for number, hold in enumerate(holds)}
    await world.pass_ms(at_ms - world.wall_ms() - 1)
    assert world.dispatcher.ready_depth("q") == 0
    got = []
    waiting = [world.asking(n=400, lease_ms=3_600_000) for _ in range(20)]
    await world.pass_ms(1)
    for task in waiting:
        got += task.result()
    half = len(got)
    assert half == 20 * PER_ENTRY
    first = sorted(zip(jobs, holds, strict=True), key=lambda one: -one[0].priority)[:half]
    assert [hold_of(grant) for grant in got] == [hold for _, hold in first]
    await world.lose_leadership()
    await world.lead(3, **bounds)
    await world.pass_ms(0)
    got += await drain(world)
    assert Counter(hold_of(grant) for grant in got) == Counter(holds)
    assert max(count for _, count in world.seen.lags) <= max(STEP, PER_ENTRY)
    tokens = [grant.token for grant in got]
    assert tokens == sorted(tokens)
    for part in (got[:half], got[half:]):
        for priority in priorities:
            order = [place[hold_of(g)] for g in part if g.execution.job.priority == priority]
            assert order == sorted(order)
    for entry in world.commit.entries:
        assert sum(len(op.executions) for op in entry if isinstance(op, Claim)) <= 4_096


# --- cancel against fire -----------------------------------------------------------------------


async def test_timr_10_ten_thousand_cancels_around_the_due_instant(world):
    """TIMR-10: cancelled or fired, never both, never neither; counts stay sound."""
    rng = random.Random(10)
    start_ms = world.wall_ms() + 1_000
    jobs = [NewJob("q", b"", first_ms=start_ms + number // 20) for number in range(10_000)]
    holds = await create_many(world, jobs)
    at: dict[int, list[int]] = {}
    for job, due_ms in holds:
        for _ in range(rng.choice([1, 1, 2])):
            at.setdefault(due_ms + rng.choice([-1, 0, 1]), []).append(job)
    said: dict[int, list[CancelStatus]] = {}
    fired: dict[int, object] = {}
    tasks = [world.asking(n=rng.choice([1, 7, 50]), lease_ms=600_000) for _ in range(6)]
    counts = world.state.queues["q"]
    for now_ms in range(start_ms - 1, start_ms + 503):
        await world.pass_ms(max(now_ms - world.wall_ms(), 0))
        jobs_now = at.get(now_ms, [])
        rng.shuffle(jobs_now)
        for job in jobs_now:
            verdicts = world.commit.propose(CancelJobs([job]))
            if rng.random() < 0.05:
                await world.settle()
            said.setdefault(job, []).append(verdicts)
        await world.settle()
        assert min(counts.scheduled, counts.leased, counts.cancelled) >= 0
        assert counts.scheduled == len(world.state.pending)
        for number, task in enumerate(tasks):
            if task.done():
                for grant in task.result():
                    assert grant.execution.job.id not in fired, "twice"
                    fired[grant.execution.job.id] = grant
                tasks[number] = world.asking(n=rng.choice([1, 7, 50]), lease_ms=600_000)
    await world.pass_ms(1_000)
    for task in tasks:
        if task.done():
            fired.update((grant.execution.job.id, grant) for grant in task.result())
    outcomes = Counter()
    for hold in holds:
        job, execution = hold[0], world.execution(hold)
        if job in at.get(hold[1] - 1, ()):
            assert job not in fired, "cancelled before it was due, and handed out"
        answers = [CancelStatus(verdict.result()[0]) for verdict in said[job]]
        outcomes[answers[0]] += 1
        if answers[0] is CancelStatus.CANCELLED:
            assert job not in fired, "cancelled, and handed out"
            assert execution.state is ExecutionState.CANCELLED
        else:
            assert answers[0] is CancelStatus.REQUESTED
            if job in fired:
                assert execution.state is ExecutionState.LEASED
                assert world.heartbeat(fired[job]).verdict == "cancel_requested"
            else:  # leased ahead of its time, and given back when that came
                assert execution.state is ExecutionState.CANCELLED
        assert answers[1:] in ([], [answers[0]]) or answers[1:] == [CancelStatus.CANCELLED]
    assert min(outcomes[CancelStatus.CANCELLED], outcomes[CancelStatus.REQUESTED]) > 500
    assert counts.scheduled == 0 == len(world.state.pending)
    assert counts.leased == len(fired) == world.dispatcher.live_leases
    assert counts.leased + counts.cancelled == len(holds)
    assert not world.dispatcher._duty._places


# --- one live timer ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_timr_06_expiry_retry_report_and_cancel_race_for_one_timer(world, seed):
    """TIMR-06: whatever ends a lease in the very instant in which another thing does, each
    execution has one timer at most, and starts as often as the log has granted it."""
    rng = random.Random(seed)
    policy = RetryPolicy(max_attempts=10_000, initial_ms=rng.choice([0, 1, 900]), jitter_pct=0)
    holds = await world.create(*(NewJob("q", b"", retry=policy) for _ in range(5)))
    starts: Counter[tuple[int, int]] = Counter()
    duty = world.dispatcher._duty
    grants = []
    task = world.asking(n=3, lease_ms=500, wait_ms=60_000)
    for _ in range(400):
        await world.pass_ms(rng.choice([0, 1, 1, 20, 499, 500, 501]))
        if task.done():
            for grant in task.result():
                starts[hold_of(grant)] += 1
                grants.append(grant)
            task = world.asking(n=3, lease_ms=500, wait_ms=60_000)
        for grant in rng.sample(grants, min(len(grants), rng.choice([0, 1, 3]))):
            deed = rng.choice(["fail", "fail later", "release", "heartbeat"])
            match deed:
                case "fail":
                    await world.fail(grant)
                case "fail later":
                    await world.fail(grant, retry_after_ms=rng.choice([0, 1, 700, 2_500]))
                case "release":
                    await world.release(grant)
                case _:
                    world.heartbeat(grant)
        grants = grants[-12:]
        await world.settle()
        held = [hold for hold in holds if world.execution(hold).token in world.state.leased]
        assert world.dispatcher.live_leases == len(held)
        assert len(duty._places) + len(held) <= len(holds)
        assert len(duty._wheel) + world.dispatcher.ready_depth("q") <= len(holds) - len(held)
    await world.pass_ms(3_000)
    starts.update(hold_of(grant) for grant in (task.result() if task.done() else ()))
    assert starts.total() == world.state.counters.claimed, "a start that the log does not know"
    await world.write(CancelJobs([job for job, _ in holds]))
    await world.pass_ms(5_000)
    assert world.dispatcher.live_leases == 0
    assert not duty._places
    assert len(duty._wheel) == 0


# --- clocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_over", [False, True])
async def test_timr_07_the_clock_steps_back_twelve_hours_and_then_a_second(world, fail_over):
    """TIMR-07: under the leader, or under the follower that leads next: what is due goes on,
    no nominal time comes twice, and leases end by the monotonic clock."""
    start_ms = world.wall_ms()
    minute_ms = 60_000 - start_ms % 60_000
    (cron, _), *_ = await world.create(
        NewJob(
            "cron", b"", first_ms=start_ms + minute_ms, timetable=Timetable((Cron("* * * * *"),))
        )
    )
    await world.create(*(NewJob("q", b"") for _ in range(3)), NewJob("held", b""))
    (held,) = await world.claim("held", lease_ms=10_000)
    runs = []

    async def run_cron():
        for grant in await world.claim("cron", n=10):
            runs.append(grant.execution.nominal_ms)
            await world.succeed(grant)

    await world.pass_ms(1_000)
    for step_ms in (-12 * HOUR_MS, -1_000):
        before_ms = world.state.log_time_ms
        if fail_over:
            await world.lose_leadership()
        world.wall_offset_ms += step_ms
        if fail_over:
            await world.lead(2)
        await world.pass_ms(1_000)
        assert world.state.log_time_ms >= before_ms, "log-time went back"
        (due,) = await world.claim()  # what was due is, and a claim needs no clock to be answered
        await world.succeed(due)
        created = await world.job("now")
        (at_once,) = await world.claim("now")
        assert hold_of(at_once) == created
        await world.succeed(at_once)
        await run_cron()
    # One lease's length of monotonic time after the last leader began, give or take a tick.
    assert world.execution(hold_of(held)).state is ExecutionState.LEASED
    await world.pass_ms(10_500)
    assert world.execution(hold_of(held)).state is ExecutionState.SCHEDULED
    # The clock is set right: every minute has come once, also those over which it went back.
    world.wall_offset_ms += 12 * HOUR_MS + 1_000
    for _ in range(8):
        await world.pass_ms(30_000)
        await run_cron()
    assert runs == sorted(set(runs))
    assert len(runs) >= 4
    job = world.state.job(cron)
    accounted = len(runs) + job.recurrence.coalesced + job.recurrence.missed
    assert runs[0] + 60_000 * (accounted - 1) == runs[-1]


async def test_timr_07_a_suspended_machine_fires_what_it_slept_through_and_ends_no_lease(world):
    """The wall clock jumps ahead while the monotonic one stands: all is due in order, at the next
    look at the clocks, and a lease has its length yet."""
    (held_hold,) = await world.create(NewJob("held", b""))
    (held,) = await world.claim("held", lease_ms=10_000)
    at_ms = world.wall_ms()
    holds = await world.create(
        *(
            NewJob("q", b"", first_ms=at_ms + hour * HOUR_MS, partition_key="p")
            for hour in (5, 1, 3)
        )
    )
    task = world.asking(n=3)
    await world.settle()
    world.wall_offset_ms += 8 * HOUR_MS
    await world.pass_ms(1_100)
    assert [hold_of(grant) for grant in task.result()] == [holds[1], holds[2], holds[0]]
    assert world.heartbeat(held).verdict == "extended"
    assert world.execution(held_hold).state is ExecutionState.LEASED


# --- the edges of time -------------------------------------------------------------------------


async def test_timr_01_the_edges_of_the_numbers_wait_and_cost_no_turns(world):
    """TIMR-01: nothing that is far away fires, or wakes the leader more than anything does."""
    edges = [2**31 - 1, 2**31, 2**32, 2**40, 3_162_240_000_000]
    far = await world.create(
        *(NewJob("q", b"", delay_ms=edge) for edge in edges),
        NewJob("q", b"", first_ms=253_402_300_799_999),
    )
    assert [nominal_ms for _, nominal_ms in far[:-1]] == [
        world.state.log_time_ms + edge for edge in edges
    ]
    entries = len(world.commit.entries)
    await world.pass_ms(60_000)
    assert world.dispatcher.ready_depth("q") == 0
    assert len(world.dispatcher._duty._wheel) == 0
    assert len(world.commit.entries) == entries
    world.wall_offset_ms += edges[0] - 60_001  # a millisecond before the nearest
    await world.pass_ms(0)
    assert await world.claim() == []
    await world.pass_ms(1_100)
    assert [hold_of(grant) for grant in await world.claim(n=10)] == far[:2]


async def test_timr_02_zero_and_past_fire_once_at_once_and_leave_the_leader_idle(world):
    """TIMR-02."""
    now_ms = world.wall_ms()
    jobs = [NewJob("q", b"", delay_ms=0)] + [
        NewJob("q", b"", first_ms=first_ms)
        for first_ms in (1, now_ms - 315_360_000_000, now_ms - 1, now_ms)
    ]
    holds = await world.create(*jobs)
    assert world.dispatcher.ready_depth("q") == len(holds)
    assert world.dispatcher.oldest_due_ms("q") == 1
    got = await world.claim(n=10)
    assert sorted(hold_of(grant) for grant in got) == sorted(holds)
    for grant in got:
        await world.succeed(grant)
    entries, now = len(world.commit.entries), world.timers.now_ms
    turns = 0
    while world.timers.next_at_ms() is not None and world.timers.next_at_ms() <= now + 60_000:
        world.timers.run_one()
        turns += 1
    assert turns <= 150, "an idle leader looks at its clocks, and no more"
    assert len(world.commit.entries) == entries


# --- memory ------------------------------------------------------------------------------------


def sizes(world):
    """How many of each thing is held, derived structures with all that hides in them."""
    state, duty = world.state, world.dispatcher._duty
    wheel, ready = duty._wheel, duty.ready._queues.get("q")
    return {
        "jobs": len(state._store.jobs),
        "pending": len(state.pending),
        "spans": len(state.pending._spans),
        "span numbers": len(state.pending._span_numbers),
        "keys": state.windowed_keys,
        "finished": len(state._store.finished),
        "places": len(duty._places),
        "timers": len(wheel),
        "instants": len(wheel._instants) + len(wheel._slots) + len(wheel._blocks),
        "late": len(wheel._late),
        "blocks": len(wheel._block_numbers),
        "ready": 0 if ready is None else len(ready) + ready._plain._entries,
        "looks": len(duty.leases._looks),
    }


async def test_timr_06_a_hundred_thousand_created_and_cancelled_leave_everything_as_it_was(world):
    """Memory returns after the traffic: jobs due now, soon, and in centuries, some with keys."""
    rng = random.Random(6)
    kept = ClusterSettings(keep_finished=100, idempotency_keys=100)
    await world.write(Lead("n1", kept))

    async def traffic(rounds):
        for number in range(rounds):
            now_ms = world.wall_ms()
            jobs = [
                NewJob(
                    "q",
                    b"",
                    first_ms=now_ms + rng.choice([-5, 0, 1, 900, 1_900, 60_000, 2**35, 2**44]),
                    idempotency_key=f"{number}-{place}" if place % 4 == 0 else "",
                )
                for place in range(500)
            ]
            holds = await world.create(*jobs)
            await world.write(CancelJobs([job for job, _ in holds]))
            await world.pass_ms(rng.choice([0, 1, 3]))

    await traffic(4)
    before = sizes(world)
    await traffic(200)
    after = sizes(world)
    assert after["jobs"] == before["jobs"] == 100
    assert after["pending"] == after["places"] == after["timers"] == 0
    # Names of what is gone are swept once they are the greater part.
    assert all(after[name] <= max(before[name], 130) for name in after), after

"""Leases in the leader's memory: heartbeats, expiry, timeouts, and the grace of a new leader."""

from __future__ import annotations

import pytest

from timeball.cluster.dispatch.errors import NotServing
from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import Expire, Fail, Failure, NewJob, Release, Start
from timeball.cluster.state.records import ExecutionState, Outcome
from timeball.cluster.state.verdicts import Verdict


async def held(world, **rest):
    await world.job(**rest)
    (grant,) = await world.claim()
    return grant


def attempts(grant):
    return [attempt.outcome for attempt in grant.execution.attempts]


async def test_a_lease_ends_after_its_length_and_the_attempt_counts(world):
    grant = await held(world)
    await world.pass_ms(9_999)
    assert grant.execution.state is ExecutionState.LEASED
    await world.pass_ms(1)
    assert grant.execution.state is ExecutionState.LEASED, "its first millisecond had begun"
    await world.pass_ms(1)
    assert grant.execution.state is ExecutionState.SCHEDULED
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]
    assert world.dispatcher.live_leases == 0
    assert world.heartbeat(grant).verdict == "lost"


@pytest.mark.parametrize("late", ["release", "fail"])
async def test_a_lease_that_ends_twice_in_one_entry_makes_its_execution_ready_once(world, late):
    """Its holder reports late: the end of the lease is in the same entry, and was before it."""
    grant = await held(world)
    hold = (grant.execution.job.id, grant.execution.nominal_ms, grant.token)
    report = Release([hold]) if late == "release" else Fail([Failure(*hold, retry_after_ms=0)])
    verdicts = await world.write(Expire([(*hold, False)]), report)
    assert verdicts == [[Verdict.ACCEPTED], [Verdict.ACCEPTED]]
    assert len(world.commit.entries[-1]) == 2, "both are in one entry"
    assert world.dispatcher.ready_depth("q") == 1
    (again,) = await world.claim()
    assert again.execution is grant.execution


async def test_heartbeats_extend_a_lease_without_writing_to_the_log(world):
    grant = await held(world)
    assert world.heartbeat(grant).lease_remaining_ms == 10_000
    await world.settle()
    assert grant.execution.state is ExecutionState.RUNNING
    entries = len(world.commit.entries)
    for _ in range(20):
        await world.pass_ms(6_000)
        beat = world.heartbeat(grant)
        assert (beat.verdict, beat.lease_remaining_ms) == ("extended", 10_000)
    assert len(world.commit.entries) == entries
    assert len(world.dispatcher._duty.leases._wheel) == 1
    await world.pass_ms(10_001)
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]


async def test_starts_are_reported_once_and_together(world):
    await world.create(*(NewJob("q", b"") for _ in range(50)))
    grants = await world.claim(n=50)
    for _ in range(3):
        for grant in grants:
            world.heartbeat(grant)
    await world.settle()
    starts = [op for entry in world.commit.entries for op in entry if isinstance(op, Start)]
    assert [len(op.holds) for op in starts] == [50]
    assert all(grant.execution.state is ExecutionState.RUNNING for grant in grants)


async def test_what_a_heartbeat_says(world):
    grant = await held(world)
    assert world.dispatcher.heartbeat(1, 2, 3).verdict == "unknown"
    job, nominal_ms = grant.execution.job.id, grant.execution.nominal_ms
    assert world.dispatcher.heartbeat(job, nominal_ms, grant.token - 1).verdict == "lost"
    await world.cancel_job(job)
    beat = world.heartbeat(grant)
    assert (beat.verdict, beat.lease_remaining_ms) == ("cancel_requested", 10_000)
    await world.succeed(grant)
    assert world.heartbeat(grant).verdict == "finished"
    await world.lose_leadership()
    with pytest.raises(NotServing):
        world.heartbeat(grant)


async def test_leas_04_a_heartbeat_after_the_completion_revives_nothing(world):
    """LEAS-04."""
    grant = await held(world)
    await world.succeed(grant)
    world.heartbeat(grant)
    assert world.dispatcher.live_leases == 0
    await world.pass_ms(30_000)
    assert grant.execution.state is ExecutionState.SUCCEEDED
    assert world.seen.expired == 0


async def test_leas_11_the_timeout_bounds_an_attempt_whatever_heartbeats_say(world):
    """LEAS-11."""
    grant = await held(world, timeout_ms=25_000)
    for _ in range(4):
        await world.pass_ms(6_000)
        beat = world.heartbeat(grant)
        assert beat.verdict == "extended"
    assert beat.lease_remaining_ms <= 1_001
    await world.pass_ms(1_001)
    assert attempts(grant) == [Outcome.TIMED_OUT]
    assert world.heartbeat(grant).verdict == "lost"


@pytest.mark.parametrize("second", [5_000, 60_000])
async def test_leas_08_a_heartbeat_extends_by_the_length_that_was_granted(world, second):
    """Neither end's clock, nor what it would like, has a say in it."""
    await world.job()
    (grant,) = await world.claim(lease_ms=5_000)
    await world.pass_ms(2_000)
    assert world.heartbeat(grant).lease_remaining_ms == 5_000
    world.wall_offset_ms += second
    await world.pass_ms(4_999)
    assert grant.execution.state is ExecutionState.RUNNING
    await world.pass_ms(2)
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]


@pytest.mark.parametrize("beat_first", [True, False])
async def test_leas_04_a_heartbeat_that_crosses_the_completion_starts_nothing(world, beat_first):
    """Both are in one turn, in either order."""
    grant = await held(world)
    if beat_first:
        assert world.heartbeat(grant).verdict == "extended"
    await world.succeed(grant)
    assert world.heartbeat(grant).verdict == "finished"
    await world.pass_ms(60_000)
    assert grant.execution.state is ExecutionState.SUCCEEDED
    assert attempts(grant) == [Outcome.SUCCEEDED]
    assert world.dispatcher.live_leases == world.seen.expired == 0
    assert world.dispatcher._duty.leases.next_expiry_ms() is None


async def test_a_released_or_failed_execution_has_no_lease_timer(world):
    for end in (world.release, world.fail, world.succeed):
        grant = await held(world)
        await end(grant)
        assert world.dispatcher.live_leases == 0
        assert len(world.dispatcher._duty.leases._wheel) == 0
        await world.claim(n=10)
        for hold in list(world.state.leased.values()):
            await world.cancel_job(hold.job.id)
        await world.pass_ms(11_000)


async def test_an_execution_leased_anew_has_the_new_lease_only(world):
    """TIMR-06: the timer of the first lease does not end the second."""
    first = await held(world)
    await world.pass_ms(9_000)
    await world.release(first)
    (second,) = await world.claim()
    await world.pass_ms(9_000)
    assert second.execution.state is ExecutionState.LEASED
    assert world.heartbeat(second).verdict == "extended"
    assert world.heartbeat(first).verdict == "lost"


async def test_leases_that_end_together_share_a_timer_until_one_is_extended(world):
    await world.create(*(NewJob("q", b"") for _ in range(500)))
    grants = await world.claim(n=500)
    timers = world.dispatcher._duty.leases._wheel
    assert len(timers) == 1
    for grant in grants[:498]:
        await world.succeed(grant)
    assert len(timers) == 1
    await world.pass_ms(4_000)
    world.heartbeat(grants[498])
    await world.pass_ms(6_001)
    assert [attempts(grant) for grant in grants[498:]] == [[Outcome.OPEN], [Outcome.LEASE_EXPIRED]]
    assert len(timers) == 1
    await world.succeed(grants[498])
    assert len(timers) == 0


async def test_a_lease_that_was_extended_by_a_millisecond_ends_a_millisecond_later(world):
    grant = await held(world)
    await world.pass_ms(2)
    world.heartbeat(grant)
    await world.pass_ms(9_999)
    assert attempts(grant) == [Outcome.OPEN]
    await world.pass_ms(1)
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]


async def test_many_leases_that_ran_out_are_ended_in_steps(world):
    await world.lead(2, step=3)
    await world.create(*(NewJob("q", b"") for _ in range(10)))
    for _ in range(10):
        await world.claim()
        await world.pass_ms(1)
    world.timers.now_ms += 20_000
    ended = [0]
    while sum(ended) < 10:
        world.timers.run_one()
        ended.append(world.seen.expired - sum(ended))
    assert max(ended) == 3


async def test_expiries_are_batched(world):
    for _ in range(3):
        await world.create(*(NewJob("q", b"") for _ in range(1_000)))
    for _ in range(3):
        await world.claim(n=1_000)
    await world.pass_ms(11_500)
    expiries = [op for entry in world.commit.entries for op in entry if isinstance(op, Expire)]
    assert sum(len(op.holds) for op in expiries) == 3_000
    assert max(len(op.holds) for op in expiries) <= 1_000
    assert len(expiries) <= 5
    assert world.dispatcher.live_leases == 0


async def test_an_expiry_that_could_not_be_proposed_is_proposed_again(world):
    grant = await held(world)
    await world.pass_ms(9_500)
    world.commit.error = Overloaded()
    await world.pass_ms(1_000)
    assert grant.execution.state is ExecutionState.LEASED
    assert "expire" in world.seen.failed
    assert world.heartbeat(grant).verdict == "lost"
    world.commit.error = None
    await world.pass_ms(200)
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]


async def test_a_completion_while_the_expiry_waits_wins(world):
    grant = await held(world)
    world.commit.error = Overloaded()
    await world.pass_ms(10_050)
    world.commit.error = None
    await world.succeed(grant)
    await world.pass_ms(1_000)
    assert attempts(grant) == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("step_ms", [-12 * 3_600_000, -1_000, 30_000, 12 * 3_600_000])
async def test_leas_08_steps_of_the_wall_clock_neither_end_nor_prolong_a_lease(world, step_ms):
    """TIMR-07, LEAS-08."""
    grant = await held(world)
    await world.pass_ms(5_000)
    world.wall_offset_ms += step_ms
    await world.pass_ms(4_999)
    assert grant.execution.state is ExecutionState.LEASED
    await world.pass_ms(2)
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]


async def test_leas_09_a_new_leader_gives_every_lease_its_full_length_again(world):
    """25 s without a leader end none of 2,000 leases; only who does not come back loses one."""
    await world.create(*(NewJob("q", b"") for _ in range(2_000)))
    grants = [*await world.claim(n=1_000), *await world.claim(n=1_000)]
    assert world.seen.taken_over == 0
    await world.lose_leadership()
    world.timers.now_ms += 25_000
    await world.lead(2)
    assert world.dispatcher.live_leases == 2_000
    assert world.seen.taken_over == 2_000, "the grace is told to those who measure"
    await world.pass_ms(5_000)
    for grant in grants[:1_900]:
        assert world.heartbeat(grant).verdict == "extended"
    await world.pass_ms(4_999)
    assert world.seen.expired == 0
    await world.pass_ms(100)
    assert world.seen.expired == 100
    assert {g.execution.state for g in grants[:1_900]} == {ExecutionState.RUNNING}
    assert {g.token == g.execution.token for g in grants} == {True}, "nobody else got any"


@pytest.mark.parametrize("difference_ms", [-3_600_000, -60_000, -30_000, 30_000, 3_600_000])
async def test_leas_08_a_new_leader_with_another_clock_ends_no_lease_early(world, difference_ms):
    """LEAS-08."""
    grant = await held(world, timeout_ms=30_000)
    await world.lose_leadership()
    world.wall_offset_ms += difference_ms
    await world.lead(2)
    await world.pass_ms(9_999)
    assert grant.execution.state is ExecutionState.LEASED
    await world.pass_ms(20_100)
    assert grant.execution.state is not ExecutionState.LEASED


async def test_an_attempt_does_not_get_its_whole_timeout_again_from_a_new_leader(world):
    grant = await held(world, timeout_ms=30_000)
    for _ in range(5):
        await world.pass_ms(5_000)
        world.heartbeat(grant)
    await world.lose_leadership()
    await world.lead(2)
    # Five seconds of the timeout are left, but a new leader grants a whole lease.
    for _ in range(3):
        assert world.heartbeat(grant).verdict == "extended"
        await world.pass_ms(3_000)
    await world.pass_ms(1_002)
    assert attempts(grant) == [Outcome.TIMED_OUT]


async def test_many_leases_are_taken_over_in_steps(world):
    await world.lead(2, step=100)
    await world.create(*(NewJob("q", b"") for _ in range(950)))
    await world.claim(n=950)
    await world.lose_leadership()
    world.dispatcher = world._new_dispatcher(step=100)
    world.dispatcher.start(3)
    assert world.dispatcher.live_leases == 100
    for turn in range(2, 10):
        world.timers.run_one()
        assert world.dispatcher.live_leases == 100 * turn
    await world.settle()
    assert world.dispatcher.live_leases == 950


async def test_a_leader_that_stopped_ends_nothing(world):
    grant = await held(world)
    await world.lose_leadership()
    entries = len(world.commit.entries)
    await world.pass_ms(60_000)
    assert len(world.commit.entries) == entries
    assert grant.execution.state is ExecutionState.LEASED


async def test_what_an_earlier_leadership_had_still_to_end_gets_the_grace_of_the_next(world):
    """The expiry that could not be proposed died with the leadership that wanted it."""
    grant = await held(world)
    world.commit.error = Overloaded()
    await world.pass_ms(10_050)
    assert "expire" in world.seen.failed
    world.commit.error = None
    await world.lose_leadership()
    await world.lead(2)
    await world.pass_ms(9_999)
    assert attempts(grant) == [Outcome.OPEN]
    await world.pass_ms(2)
    assert attempts(grant) == [Outcome.LEASE_EXPIRED]

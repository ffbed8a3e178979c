"""Leasing ahead: claims to spare are bound to what comes due next, and answered when it is due."""

from __future__ import annotations

import asyncio
import random

import pytest

from timeball.cluster.dispatch.seams import DispatchSettings
from timeball.cluster.raft.errors import OutcomeUnknown, Overloaded
from timeball.cluster.state.limits import MAX_LEAD_MS
from timeball.cluster.state.operations import Claim, NewJob
from timeball.cluster.state.records import ExecutionState, Outcome

SCHEDULED, LEASED = ExecutionState.SCHEDULED, ExecutionState.LEASED


def names(grants):
    return [(grant.execution.job.id, grant.execution.nominal_ms) for grant in grants]


def states(world, holds):
    return [world.execution(hold).state for hold in holds]


def claims_of(entry):
    return [operation for operation in entry if isinstance(operation, Claim)]


def at_rest(world):
    """Nothing is left of any claim."""
    duty = world.dispatcher._duty
    return not (
        world.dispatcher.live_leases
        or world.dispatcher.waiting_claims()
        or duty.claims._by_request
        or duty.claims._early
        or duty._places
    )


async def gone(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def asking(world, count, **rest):
    """Claims that wait, the first one first."""
    tasks = [world.asking(**rest) for _ in range(count)]
    await world.settle()
    return tasks


async def jobs_in(world, *delays_ms, **rest):
    """Jobs that are due so much later."""
    at_ms = world.wall_ms()
    return await world.create(
        *(NewJob("q", b"", first_ms=at_ms + delay_ms, **rest) for delay_ms in delays_ms)
    )


async def leased_ahead(world, *, before_ms=10, **claim):
    """A job leased ahead to the first of two claims, so long before it is due."""
    (hold,) = await jobs_in(world, 1_000)
    first, second = await asking(world, 2, **claim)
    await world.pass_ms(1_000 - before_ms)
    assert states(world, [hold]) == [LEASED]
    return hold, first, second


# --- what is bound ahead -------------------------------------------------------------------------


async def test_a_claim_to_spare_is_leased_ahead_and_answered_when_its_execution_is_due(world):
    (hold,) = await jobs_in(world, 1_000)
    first, second = await asking(world, 2)
    await world.pass_ms(979)
    assert states(world, [hold]) == [SCHEDULED]
    await world.pass_ms(5)
    assert states(world, [hold]) == [LEASED]
    await world.pass_ms(15)
    await world.job(queue="other")
    assert not first.done()
    await world.pass_ms(1)
    assert names(first.result()) == [hold]
    assert not second.done()
    assert world.execution(hold).attempts[-1].claimed_ms == hold[1] == world.now_ms
    assert world.seen.lags == [(0, 1)]


async def test_the_last_claim_of_a_queue_is_kept_for_what_comes_at_once(world):
    holds = await jobs_in(world, 1_000, 1_010)
    first, second = await asking(world, 2)
    await asking(world, 1, queue="other")
    await world.pass_ms(990)
    assert states(world, holds) == [LEASED, SCHEDULED]
    at_once = await world.job()
    assert names(second.result()) == [at_once]
    assert not first.done()
    third = world.asking()
    await world.pass_ms(20)
    assert names(first.result() + third.result()) == holds


async def test_what_is_due_within_the_span_goes_to_one_claim_at_the_last_of_it(world):
    await world.lead(2, lead_span_ms=2)
    holds = await jobs_in(world, 15, 17, 18)
    first, second, third = await asking(world, 3, n=10)
    await world.job(queue="other")
    assert states(world, holds) == [LEASED] * 3
    await world.pass_ms(16)
    assert not first.done()
    await world.pass_ms(1)
    assert names(first.result()) == holds[:2]
    await world.pass_ms(1)
    assert names(second.result()) == holds[2:]
    assert not third.done()


async def test_of_more_than_the_claims_can_take_nothing_is_leased_before_its_order_is_known(world):
    at_ms = world.wall_ms()
    before = await jobs_in(world, 997)
    rows = [(0, "flood"), (5, "flood"), (5, "flood"), (5, "other"), (9, "flood")]
    holds = await world.create(
        *(
            NewJob("q", b"", first_ms=at_ms + 1_000, priority=priority, partition_key=key)
            for priority, key in rows
        )
    )
    after = await jobs_in(world, 1_001)
    tasks = await asking(world, 5)
    await world.pass_ms(999)
    assert states(world, before + holds + after) == [LEASED] + [SCHEDULED] * 6
    await world.pass_ms(1)
    got = [name for task in tasks for name in names(task.result())]
    assert got[:2] == [*before, holds[4]]
    assert holds[3] in got[2:4]
    assert holds[0] not in got


async def test_a_claim_takes_no_part_of_an_instant_that_the_claims_can_not_take_whole(world):
    holds = await jobs_in(world, 1_000, 1_000, 1_001, 1_001)
    await asking(world, 2, n=3)
    await world.pass_ms(999)
    assert states(world, holds) == [LEASED, LEASED, SCHEDULED, SCHEDULED]


async def test_an_instant_waits_until_there_are_claims_for_all_of_it(world):
    holds = await jobs_in(world, 1_000, 1_000)
    await asking(world, 2)
    await world.pass_ms(985)
    assert states(world, holds) == [SCHEDULED, SCHEDULED]
    await asking(world, 1)
    await world.job(queue="other")
    assert states(world, holds) == [LEASED, LEASED]


async def test_an_entry_leases_a_bounded_number_ahead_and_an_instant_whole_or_not(world):
    await world.lead(2, executions_per_entry=3)
    holds = await jobs_in(world, 1_000, 1_000, 1_001, 1_001)
    await asking(world, 10)
    world.commit.stalled = True
    await world.pass_ms(985)
    assert [len(op.executions) for op in claims_of(world.commit.entries[-1])] == [1, 1]
    assert {hold for op in claims_of(world.commit.entries[-1]) for hold in op.executions} == set(
        holds[:2]
    )
    world.commit.stalled = False
    world.commit.commit()


async def test_what_is_ready_goes_before_what_comes_due(world):
    await world.lead(2, executions_per_entry=1)
    (coming,) = await jobs_in(world, 15)
    ready = await jobs_in(world, 0, 0, 0)
    tasks = await asking(world, 4)
    assert sorted(names(lease for task in tasks[:3] for lease in task.result())) == sorted(ready)
    assert states(world, [coming]) == [SCHEDULED]
    await world.pass_ms(15)
    assert names(tasks[3].result()) == [coming]


async def test_nothing_is_leased_ahead_while_more_is_due_than_one_turn_takes(world):
    await world.lead(2, step=1)
    overdue = await jobs_in(world, 500, 501, 502, 510)
    await asking(world, 10)
    world.wall_offset_ms += 505
    world.commit.stalled = True
    assert not list(world.dispatcher._duty.source(world.wall_ms(), 1_000))
    await world.settle()
    taken = [hold for claim in world.commit.entries[-1] for hold in claim.executions]
    assert sorted(taken[:3]) == sorted(overdue[:3])
    world.commit.stalled = False
    world.commit.commit()


async def test_a_claim_that_comes_before_the_look_ahead_counts(world):
    (hold,) = await jobs_in(world, 500)
    await asking(world, 1)
    await world.pass_ms(400)
    await asking(world, 1)
    await world.pass_ms(90)
    assert states(world, [hold]) == [LEASED]


async def test_without_a_lead_nothing_is_leased_ahead_nor_late(world):
    await world.lead(2, lead_ms=0)
    (hold,) = await jobs_in(world, 1_000)
    first, _ = await asking(world, 2)
    await world.pass_ms(999)
    assert states(world, [hold]) == [SCHEDULED]
    await world.pass_ms(1)
    assert names(first.result()) == [hold]


def test_no_lead_is_longer_than_the_state_machine_grants():
    DispatchSettings(lead_ms=MAX_LEAD_MS).validate()
    with pytest.raises(ValueError, match="lead_ms"):
        DispatchSettings(lead_ms=MAX_LEAD_MS + 1).validate()


def count_wakes(world):
    """When the log was woken, and when the leader set a timer, from now on."""
    wakes, timers = [], []
    wake, call_later = world.commit.wake, world.timers.call_later

    def set_timer(delay_ms, callback):
        timers.append(world.timers.now_ms)
        return call_later(delay_ms, callback)

    world.commit.wake = lambda: (wakes.append(world.timers.now_ms), wake())
    world.timers.call_later = set_timer
    return wakes, timers


@pytest.mark.parametrize(("claims", "most_wakes"), [(1, 1), (2, 4)])
async def test_an_idle_leader_wakes_for_a_far_job_at_most_once_a_level(world, claims, most_wakes):
    await jobs_in(world, 600_000)
    first, *_ = await asking(world, claims, wait_ms=700_000)
    wakes, timers = count_wakes(world)
    await world.pass_ms(600_000)
    assert first.done()
    assert 1 <= len(wakes) <= most_wakes
    assert 1 <= len(timers) <= 600 + 10


async def test_the_log_is_woken_once_for_what_no_claim_is_to_spare_for(world):
    (hold,) = await jobs_in(world, 1_000)
    await asking(world, 1)
    await asking(world, 2, queue="other")
    await world.pass_ms(900)
    wakes, _ = count_wakes(world)
    await world.pass_ms(84)
    for _ in range(5):
        await world.job(queue="third")
        await world.pass_ms(1)
    assert len(wakes) == 1 + 5
    assert states(world, [hold]) == [SCHEDULED]


# --- what becomes of the claim meanwhile ---------------------------------------------------------


async def test_a_lease_granted_ahead_lasts_its_length_from_the_due_time(world):
    _, first, _ = await leased_ahead(world, lease_ms=1_000)
    await world.pass_ms(10 + 1_000)
    (grant,) = first.result()
    assert world.heartbeat(grant).verdict == "extended"
    await world.pass_ms(1_003)
    assert world.seen.expired == 1


async def test_a_claim_whose_time_ends_before_the_due_time_still_gets_what_it_was_granted(world):
    hold, first, second = await leased_ahead(world, wait_ms=995)
    await world.pass_ms(9)
    assert not first.done()
    assert second.result() == []
    await world.pass_ms(1)
    assert names(first.result()) == [hold]


async def test_a_repeat_waits_for_the_due_time_with_the_claim_that_it_repeats(world):
    (hold,) = await jobs_in(world, 1_000)
    first = world.asking(request_id="r")
    await asking(world, 1)
    await world.pass_ms(990)
    assert states(world, [hold]) == [LEASED]
    again = world.asking(request_id="r")
    await world.pass_ms(9)
    assert not first.done()
    assert not again.done()
    await world.pass_ms(1)
    assert first.result()[0] is again.result()[0]
    await world.succeed(again.result()[0])
    assert world.dispatcher._duty.claims._by_request == {}


async def test_a_repeat_takes_the_place_of_a_client_that_went_away(world):
    (hold,) = await jobs_in(world, 1_000)
    first = world.asking(request_id="r")
    await asking(world, 1)
    await world.pass_ms(990)
    await gone(first)
    again = world.asking(request_id="r")
    await world.pass_ms(10)
    assert names(again.result()) == [hold]
    assert world.dispatcher.live_leases == 1


async def test_a_client_that_goes_away_before_the_due_time_leaves_the_execution_to_the_next(world):
    hold, first, second = await leased_ahead(world)
    await gone(first)
    await world.pass_ms(9)
    assert not second.done()
    await world.pass_ms(1)
    (grant,) = second.result()
    assert names([grant]) == [hold]
    assert world.execution(hold).attempts_used == 1
    assert [one.outcome for one in world.execution(hold).attempts] == [
        Outcome.RELEASED,
        Outcome.OPEN,
    ]
    await world.succeed(grant)
    assert at_rest(world)


async def test_what_is_cancelled_before_it_is_due_goes_to_nobody(world):
    hold, first, second = await leased_ahead(world)
    await world.cancel_job(hold[0])
    await world.pass_ms(10)
    assert first.result() == []
    assert world.execution(hold).state is ExecutionState.CANCELLED
    assert world.execution(hold).attempts_used == 0
    await gone(second)
    assert at_rest(world)


async def test_what_is_taken_back_before_it_is_due_goes_to_the_next_claim(world):
    """As by the withdrawal of the claim that a node has forwarded."""
    hold, first, second = await leased_ahead(world)
    (lease,) = world.dispatcher._duty.claims._early._heap[0].leases
    await world.release(lease)
    await world.pass_ms(10)
    assert first.result() == []
    assert names(second.result()) == [hold]
    assert second.result()[0].token > lease.token


async def test_what_could_not_be_proposed_ahead_is_delivered_when_it_is_due(world):
    (hold,) = await jobs_in(world, 1_000)
    first, _ = await asking(world, 2)
    world.commit.error = Overloaded()
    await world.pass_ms(990)
    world.commit.error = None
    assert states(world, [hold]) == [SCHEDULED]
    await world.pass_ms(10)
    assert names(first.result()) == [hold]


async def test_what_the_log_does_not_ask_for_any_more_stays_where_it_is(world):
    """An entry is full after the first of two claims."""
    holds = await jobs_in(world, 1_000, 1_005)
    tasks = await asking(world, 3)
    await world.pass_ms(970)
    world.wall_offset_ms += 15
    duty = world.dispatcher._duty
    source = duty.source(world.wall_ms(), 1_000)
    _, _, verdict = next(source)
    source.close()
    assert len(duty._wheel) == 1
    verdict.set_exception(Overloaded())
    assert len(duty._wheel) == 2
    await world.pass_ms(20)
    assert names(lease for task in tasks[:2] for lease in task.result()) == holds


async def test_a_span_that_is_not_over_is_left_to_a_later_entry(world):
    """So that what is due within a span goes to one claim, however often entries are written."""
    await world.lead(2, lead_span_ms=2)
    holds = await jobs_in(world, 30, 31, 32)
    tasks = await asking(world, 4, n=10)
    await world.pass_ms(11)
    await world.job(queue="other")
    assert states(world, holds) == [SCHEDULED] * 3
    await world.pass_ms(1)
    assert states(world, holds) == [LEASED] * 3
    await world.pass_ms(20)
    assert [names(task.result()) for task in tasks if task.done()] == [holds]


# --- clocks and leaders --------------------------------------------------------------------------


async def test_a_clock_that_steps_back_leaves_no_claim_waiting_and_uses_no_attempt(world):
    hold, first, second = await leased_ahead(world)
    world.wall_offset_ms -= 3_600_000
    await world.pass_ms(150)
    assert first.result() == []
    assert states(world, [hold]) == [SCHEDULED]
    assert world.execution(hold).attempts_used == 0
    assert world.dispatcher.live_leases == 0
    world.wall_offset_ms += 3_600_000 - 150
    await world.pass_ms(9)
    assert not second.done()
    await world.pass_ms(20)
    assert names(second.result()) == [hold]


async def test_what_is_on_its_way_back_is_not_handed_out_early_to_a_repeat(world):
    (hold,) = await jobs_in(world, 1_000)
    first = world.asking(request_id="r")
    await asking(world, 1)
    await world.pass_ms(990)
    world.wall_offset_ms -= 3_600_000
    world.commit.stalled = True
    await world.pass_ms(150)
    assert first.result() == []
    assert states(world, [hold]) == [LEASED]
    again = world.asking(request_id="r")
    await world.pass_ms(150)
    assert again.result() == []
    world.commit.stalled = False
    world.commit.commit()
    assert states(world, [hold]) == [SCHEDULED]


@pytest.mark.parametrize("behind_ms", [1, 100])
async def test_a_clock_that_is_little_behind_is_waited_for(world, behind_ms):
    """A correction of some milliseconds takes no attempt back."""
    hold, first, _ = await leased_ahead(world)
    world.wall_offset_ms -= behind_ms
    await world.pass_ms(9 + behind_ms)
    assert not first.done()
    await world.pass_ms(1)
    assert names(first.result()) == [hold]


async def test_a_clock_that_steps_back_and_forth_hands_out_when_it_says_due(world):
    hold, first, _ = await leased_ahead(world)
    world.wall_offset_ms -= 5
    await world.pass_ms(9)
    world.wall_offset_ms += 5
    assert not first.done()
    await world.pass_ms(1)
    assert names(first.result()) == [hold]


async def test_nothing_is_leased_ahead_while_log_time_is_ahead_of_the_clock(world):
    (hold,) = await jobs_in(world, 15)
    world.wall_offset_ms -= 10
    await asking(world, 2)
    await world.job(queue="other")
    await world.pass_ms(9)
    await world.job(queue="other")
    assert states(world, [hold]) == [SCHEDULED]
    await world.pass_ms(1)
    await world.job(queue="other")
    assert states(world, [hold]) == [LEASED]


async def test_what_was_handed_out_is_told_again_at_once_though_the_clock_steps_back(world):
    (hold,) = await jobs_in(world, 1_000)
    first = world.asking(request_id="r")
    await asking(world, 1)
    await world.pass_ms(1_000)
    assert names(first.result()) == [hold]
    world.wall_offset_ms -= 3_600_000
    again = world.asking(request_id="r")
    await world.settle()
    assert names(again.result()) == [hold]
    assert states(world, [hold]) == [LEASED]


async def test_a_leader_lost_before_the_due_time_leaves_the_answer_to_the_next(world):
    (hold,) = await jobs_in(world, 1_000)
    first = world.asking(request_id="r", lease_ms=1_000)
    await asking(world, 1)
    await world.pass_ms(990)
    await world.lose_leadership()
    with pytest.raises(OutcomeUnknown):
        first.result()
    await world.lead(2)
    again = world.asking(request_id="r")
    await world.pass_ms(9)
    assert not again.done()
    await world.pass_ms(1)
    (grant,) = again.result()
    assert names([grant]) == [hold]
    assert world.execution(hold).attempts_used == 1
    await world.pass_ms(1_000)
    assert world.heartbeat(grant).verdict == "extended"


async def test_a_verdict_after_the_leadership_is_not_handed_out_early(world):
    (hold,) = await jobs_in(world, 1_000)
    first, _ = await asking(world, 2)
    world.commit.stalled = True
    await world.pass_ms(990)
    world.dispatcher.stop()
    world.commit.stalled = False
    world.commit.commit()
    assert states(world, [hold]) == [LEASED]
    await world.settle()
    with pytest.raises(OutcomeUnknown):
        first.result()


# --- all together --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_with_claims_to_spare_each_is_delivered_once_in_order_and_never_early(world, seed):
    rng = random.Random(seed)
    span_ms = DispatchSettings().lead_span_ms
    wanted: set[tuple[int, int]] = set()
    got: list[tuple[int, int]] = []
    tasks: list[asyncio.Task[object]] = []
    latest_ms = 0

    def take_answers():
        nonlocal latest_ms
        for task in [task for task in tasks if task.done()]:
            tasks.remove(task)
            for grant in task.result():
                due_ms = grant.execution.due_ms
                assert due_ms <= world.now_ms <= due_ms + span_ms
                assert due_ms >= latest_ms - span_ms
                latest_ms = max(latest_ms, due_ms)
                got.extend(names([grant]))

    async def keep_asking():
        take_answers()
        while len(tasks) < 6:
            tasks.append(world.asking(n=rng.choice([1, 2, 5]), lease_ms=1_000_000))
            await world.settle()
            take_answers()

    for turn in range(800):
        await keep_asking()
        if turn < 700 and rng.random() < 0.3:
            holds = await jobs_in(world, *(rng.randrange(60) for _ in range(rng.randrange(1, 5))))
            wanted.update(holds)
            await keep_asking()
            if rng.random() < 0.1 and holds[0] not in got:
                await world.cancel_job(holds[0][0])
                wanted.discard(holds[0])
        if rng.random() < 0.1:
            await gone(tasks.pop(rng.randrange(len(tasks))))
            await world.settle()
            await keep_asking()
        await world.pass_ms(rng.choice([0, 1, 1]))
    assert sorted(got) == sorted(wanted)
    for task in tasks:
        await gone(task)
    assert not world.dispatcher._duty._places

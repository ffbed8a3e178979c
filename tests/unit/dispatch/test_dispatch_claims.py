"""Waiting claims: repeats, bounds, and clients that go away at any moment (HTTP-01, HTTP-02)."""

from __future__ import annotations

import asyncio

import pytest

from timeball.cluster.dispatch.errors import NotServing, TooManyClaims
from timeball.cluster.raft.errors import OutcomeUnknown, Overloaded
from timeball.cluster.state.operations import Claim, CreateJobs, NewJob
from timeball.cluster.state.records import ExecutionState, Outcome


def claims_of(world):
    return [op for entry in world.commit.entries for op in entry if isinstance(op, Claim)]


async def gone(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def given_back(world, hold):
    execution = world.execution(hold)
    assert execution.state is ExecutionState.SCHEDULED
    assert execution.attempts_used == 0
    assert world.dispatcher.live_leases == 0
    return world.dispatcher.ready_depth("q") == 1


async def test_a_claim_that_finds_nothing_answers_when_its_time_is_over(world):
    task = world.asking(wait_ms=3_000)
    await world.pass_ms(2_999)
    assert not task.done()
    await world.pass_ms(1)
    assert task.result() == []
    assert world.dispatcher.waiting_claims() == 0


async def test_a_claim_that_does_not_wait_answers_at_once(world):
    task = world.asking(wait_ms=0)
    await world.settle()
    assert task.result() == []
    assert not claims_of(world)


async def test_one_claim_too_many_is_refused(world):
    await world.lead(2, max_waiting_claims=2)
    tasks = [world.asking(), world.asking("other")]
    await world.settle()
    with pytest.raises(TooManyClaims):
        await world.claim(wait_ms=1_000)
    await gone(tasks[0])
    third = world.asking()
    await world.settle()
    assert not third.done()


async def test_http_01_http_02_a_client_that_goes_away_while_it_waits_leaves_nothing(world):
    """HTTP-01, before there is a job; the count returns to 0 (HTTP-02)."""
    tasks = [world.asking(request_id=f"r{place % 7_000}") for place in range(10_000)]
    await world.settle()
    assert world.dispatcher.waiting_claims() == 7_000
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError)
        for end in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert world.dispatcher.waiting_claims() == 0
    duty = world.dispatcher._duty
    assert not duty.claims._line._queues
    assert not duty.claims._by_request
    assert duty.claims._line.listening == 0
    hold = await world.job()
    await world.pass_ms(100)
    assert given_back(world, hold)
    assert not claims_of(world)


async def test_http_01_a_client_that_goes_away_while_its_claim_is_proposed_gives_it_back(world):
    """HTTP-01, at the millisecond in which the claim is proposed."""
    hold = await world.job()
    world.commit.stalled = True
    task = world.asking()
    await world.settle()
    assert len(claims_of(world)) == 1
    await gone(task)
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert given_back(world, hold)
    assert [attempt.outcome for attempt in world.execution(hold).attempts] == [Outcome.RELEASED]
    assert world.seen.released == 1


async def test_a_waiting_claim_goes_on_in_the_turn_after_its_entry_is_applied(world):
    await world.job()
    world.commit.stalled = True
    task = world.asking()
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    await asyncio.sleep(0)
    assert task.done()


async def test_http_01_a_client_that_goes_away_between_commit_and_answer_gives_it_back(world):
    """HTTP-01, after the commit, before the handler has gone on."""
    hold = await world.job()
    world.commit.stalled = True
    task = world.asking()
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    # The verdict has set the answer; the task goes on in the next turn.
    assert world.execution(hold).state is ExecutionState.LEASED
    assert not task.done()
    await gone(task)
    await world.settle()
    assert given_back(world, hold)


async def test_http_01_an_answer_that_cannot_be_written_gives_it_back(world):
    """HTTP-01, half way through the body."""
    hold = await world.job()
    grants = await world.claim()
    world.dispatcher.release_unused(grants)
    await world.settle()
    assert given_back(world, hold)
    # Twice does no harm, nor after somebody else has it.
    (again,) = await world.claim()
    world.dispatcher.release_unused(grants)
    await world.settle()
    assert world.execution(hold).state is ExecutionState.LEASED
    assert world.heartbeat(again).verdict == "extended"


async def test_http_01_pollers_that_hang_up_each_second_hold_nothing(world):
    """HTTP-01."""
    done = set()
    for second in range(10):
        tasks = [world.asking(n=3) for _ in range(50)]
        await world.create(*(NewJob("q", b"", delay_ms=second * 7) for _ in range(20)))
        await world.pass_ms(1_000)
        for place, task in enumerate(tasks):
            if not task.done():
                await gone(task)
            elif place % 2:
                world.dispatcher.release_unused(task.result())
            else:
                for grant in task.result():
                    await world.succeed(grant)
                    done.add((grant.execution.job.id, grant.execution.nominal_ms))
    await world.settle()
    assert world.dispatcher.live_leases == 0
    assert world.dispatcher.waiting_claims() == 0
    assert len(done) + world.dispatcher.ready_depth("q") == 200


async def test_a_repeated_claim_answers_as_the_first(world):
    await world.job()
    await world.job()
    (first,) = await world.claim(request_id="r")
    (again,) = await world.claim(request_id="r")
    assert (again.execution, again.token) == (first.execution, first.token)
    await world.succeed(first)
    assert await world.claim(request_id="r") == []
    assert len(claims_of(world)) == 1


async def test_a_repeat_is_not_granted_what_is_on_its_way_back(world):
    hold = await world.job()
    grants = await world.claim(request_id="r")
    world.commit.stalled = True
    world.dispatcher.release_unused(grants)
    await world.settle()
    assert world.execution(hold).state is ExecutionState.LEASED, "not given back yet"
    assert await world.claim(request_id="r") == []
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert given_back(world, hold)


async def test_repeats_at_the_same_time_share_one_grant(world):
    await world.create(NewJob("q", b""), NewJob("q", b""))
    world.commit.stalled = True
    first = world.asking(request_id="r")
    second = world.asking(request_id="r")
    await world.settle()
    third = world.asking(request_id="r")
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert len(claims_of(world)) == 1
    tokens = {task.result()[0].token for task in (first, second, third)}
    assert len(tokens) == 1
    # The lease goes back only when none of the answers arrived.
    world.dispatcher.release_unused(first.result())
    world.dispatcher.release_unused(second.result())
    await world.settle()
    assert world.dispatcher.live_leases == 1
    world.dispatcher.release_unused(third.result())
    await world.settle()
    assert world.dispatcher.live_leases == 0


async def test_when_one_of_two_repeats_goes_away_the_other_gets_the_grant(world):
    world.commit.stalled = True
    first, second = (world.asking(request_id="r") for _ in range(2))
    await world.settle()
    await gone(first)
    world.commit.stalled = False
    hold = await world.job()
    (grant,) = second.result()
    assert (grant.execution.job.id, grant.execution.nominal_ms) == hold
    assert world.dispatcher.live_leases == 1


async def test_a_repeat_keeps_waiting_for_as_long_as_it_says(world):
    first = world.asking(request_id="r", wait_ms=1_000)
    await world.pass_ms(900)
    second = world.asking(request_id="r", wait_ms=1_000)
    await world.pass_ms(99)
    assert not first.done()
    await world.pass_ms(1)
    assert first.result() == []
    await world.pass_ms(899)
    assert not second.done()
    await world.pass_ms(1)
    assert second.result() == []
    assert world.dispatcher._duty.claims._by_request == {}


@pytest.mark.parametrize("wait_ms", [0, 1_000])
async def test_a_repeat_waits_no_longer_than_it_says_though_the_first_still_does(world, wait_ms):
    """As when the node has not heard yet that the first connection went."""
    first = world.asking(request_id="r")
    await world.settle()
    again = world.asking(request_id="r", wait_ms=wait_ms)
    await world.pass_ms(wait_ms)
    assert again.result() == []
    assert not first.done()
    hold = await world.job()
    (grant,) = first.result()
    assert (grant.execution.job.id, grant.execution.nominal_ms) == hold
    assert grant.answers == 1


async def test_a_claim_waits_no_longer_than_the_last_who_is_left_says(world):
    first = world.asking(request_id="r")
    again = world.asking(request_id="r", wait_ms=1_000)
    await world.settle()
    await gone(first)
    assert world.dispatcher.waiting_claims() == 1
    await world.pass_ms(1_000)
    assert again.result() == []
    assert world.dispatcher.waiting_claims() == 0
    hold = await world.job()
    await world.pass_ms(100)
    assert given_back(world, hold)
    assert not claims_of(world)


async def test_a_grant_belongs_to_those_who_listen_by_then(world):
    short, long, longest = (
        world.asking(request_id="r", wait_ms=wait_ms) for wait_ms in (500, 1_000, 1_500)
    )
    await world.pass_ms(500)
    assert short.result() == []
    world.dispatcher.release_unused(short.result())
    hold = await world.job()
    assert long.result() == longest.result() != []
    world.dispatcher.release_unused(long.result())
    await world.settle()
    assert world.dispatcher.live_leases == 1
    world.dispatcher.release_unused(longest.result())
    await world.settle()
    assert given_back(world, hold)


async def test_a_repeat_that_does_not_wait_learns_the_verdict_on_what_is_under_way(world):
    hold = await world.job()
    world.commit.stalled = True
    first = world.asking(request_id="r")
    await world.settle()
    again = world.asking(request_id="r", wait_ms=0)
    await world.pass_ms(500)
    assert not again.done()
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert first.result() == again.result()
    assert [one.execution.job.id for one in again.result()] == [hold[0]]


async def test_when_a_claim_was_not_made_only_those_whose_time_is_not_over_wait_on(world):
    await world.job()
    world.commit.stalled = True
    short, long = (world.asking(request_id="r", wait_ms=wait_ms) for wait_ms in (100, 60_000))
    await world.pass_ms(200)
    assert not short.done()
    _, (verdict,) = world.commit._written.pop()
    world.commit.stalled = False
    verdict.set_exception(Overloaded())
    await world.settle()
    assert short.result() == []
    assert len(long.result()) == 1


async def test_repeats_count_towards_the_bound_of_what_waits(world):
    await world.lead(2, max_waiting_claims=2)
    first = world.asking(request_id="r")
    second = world.asking(request_id="r")
    await world.settle()
    with pytest.raises(TooManyClaims):
        await world.claim(request_id="r", wait_ms=1_000)
    await gone(second)
    third = world.asking(request_id="r")
    await world.job()
    assert first.result() == third.result() != []


async def test_a_claim_that_is_repeated_keeps_its_turn(world):
    first, second = world.asking(request_id="r", wait_ms=1_000), world.asking()
    await world.settle()
    again = world.asking(request_id="r", wait_ms=60_000)
    await world.pass_ms(1_000)
    assert first.result() == []
    await world.job()
    assert len(again.result()) == 1
    assert not second.done()


async def test_two_claims_never_get_the_same_execution(world):
    await world.create(*(NewJob("q", b"") for _ in range(5)))
    tasks = [world.asking(n=3, wait_ms=1_000) for _ in range(4)]
    await world.pass_ms(1_000)
    tokens = [grant.token for task in tasks for grant in task.result()]
    assert len(tokens) == len(set(tokens)) == 5
    assert [len(task.result()) for task in tasks] == [3, 2, 0, 0]


async def test_what_a_new_leader_still_loads_is_not_offered_while_a_claim_has_it(world):
    """A bucket is read after one of its executions has been bound to a claim."""
    now_ms = world.wall_ms()
    ages = [60_000] * 19 + [0]
    await world.create(*(NewJob("old", b"", first_ms=now_ms - age) for age in ages))
    await world.lose_leadership()
    world.dispatcher = world._new_dispatcher(step=2)
    world.dispatcher.start(2)
    first, second = world.asking(wait_ms=5_000), world.asking(wait_ms=5_000)
    await asyncio.sleep(0)
    verdict = world.commit.propose(CreateJobs("", [NewJob("q", b"")]))
    world.commit._flush()
    (created,) = verdict.result().jobs
    world.commit.stalled = True
    world.commit._flush()
    assert len(claims_of(world)) == 1
    assert world.dispatcher.ready_depth("old") < 20
    await world.pass_ms(100)
    assert world.dispatcher.ready_depth("old") == 20
    assert world.dispatcher.ready_depth("q") == 0
    assert len(claims_of(world)) == 1
    world.commit.stalled = False
    world.commit.commit()
    await world.pass_ms(5_000)
    assert [grant.execution.job.id for grant in first.result()] == [created.job]
    assert second.result() == []


async def test_a_flood_in_one_queue_does_not_hold_up_the_claims_of_another(world):
    await world.lead(2, executions_per_entry=4_096)
    for _ in range(5):
        await world.create(*(NewJob("a", b"") for _ in range(1_000)))
    await world.create(NewJob("b", b""))
    world.commit.stalled = True
    tasks = [world.asking("a", n=1_000) for _ in range(5)]
    tasks.append(world.asking("b"))
    await world.settle()
    sizes = [len(op.executions) for op in world.commit.entries[-2] if isinstance(op, Claim)]
    assert sizes == [1_000, 1, 1_000, 1_000, 1_000]
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert all(task.done() for task in tasks)


async def test_an_entry_binds_a_bounded_number_of_executions_and_the_next_goes_on(world):
    await world.lead(2, executions_per_entry=100)
    await world.create(*(NewJob("q", b"", partition_key="p") for _ in range(700)))
    first = len(world.commit.entries)
    tasks = [world.asking(n=70) for _ in range(10)]
    await world.settle()
    sizes = [
        [len(op.executions) for op in entry if isinstance(op, Claim)]
        for entry in world.commit.entries[first:]
    ]
    assert sizes == [[70]] * 10
    tokens = [lease.token for task in tasks for lease in task.result()]
    assert tokens == sorted(tokens)
    assert len(tokens) == 700


@pytest.mark.parametrize(("room", "sizes"), [(1, [1]), (70, [70]), (139, [70]), (250, [70] * 3)])
async def test_claims_take_no_more_than_the_room_that_an_entry_has_left(world, room, sizes):
    """What did not fit would be overtaken by what the next entry binds."""
    await world.lead(2)
    await world.create(*(NewJob("q", b"", partition_key="p") for _ in range(300)))
    first = len(world.commit.entries)
    world.commit.room = room
    tasks = [world.asking(n=70) for _ in range(4)]
    await world.settle()
    entries = [
        [len(op.executions) for op in entry if isinstance(op, Claim)]
        for entry in world.commit.entries[first:]
    ]
    assert entries[0] == sizes
    assert sum(map(len, entries)) == 4
    tokens = [lease.token for task in tasks for lease in task.result()]
    assert tokens == sorted(tokens)


async def test_claims_bind_nothing_where_an_entry_has_no_room_for_them(world):
    await world.lead(2)
    await world.create(NewJob("q", b""))
    world.commit.room = 0
    task = world.asking()
    await asyncio.sleep(0)
    assert not list(world.dispatcher._source(world.wall_ms(), 0))
    world.commit.room = 1
    await world.settle()
    assert len(task.result()) == 1


async def test_an_execution_whose_claim_was_certainly_not_made_is_ready_again(world):
    hold = await world.job()
    world.commit.error = Overloaded()
    task = world.asking()
    await asyncio.sleep(0)
    for _ in range(3):
        world.timers.run_one()
    assert world.dispatcher.ready_depth("q") == 1
    assert not task.done()
    world.commit.error = None
    await world.settle()
    (grant,) = task.result()
    assert (grant.execution.job.id, grant.execution.nominal_ms) == hold


async def test_a_claim_of_unknown_outcome_can_be_asked_for_again(world):
    hold = await world.job()
    world.commit.stalled = True
    task = world.asking(request_id="r")
    await world.settle()
    # The log stalls past its deadline, and goes on later.
    _, (verdict,) = world.commit._written[0]
    verdict.set_exception(OutcomeUnknown("the deadline passed"))
    await world.settle()
    with pytest.raises(OutcomeUnknown):
        task.result()
    again = world.asking(request_id="r")
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    (grant,) = again.result()
    assert (grant.execution.job.id, grant.execution.nominal_ms) == hold
    assert world.execution(hold).attempts_used == 1


async def test_what_a_claim_of_unknown_outcome_got_after_all_is_not_ready_any_more(world):
    hold = await world.job()
    world.commit.stalled = True
    task = world.asking()
    await world.settle()
    _, (verdict,) = world.commit._written[0]
    verdict.set_exception(OutcomeUnknown("the deadline passed"))
    await world.settle()
    assert isinstance(task.exception(), OutcomeUnknown)
    assert world.dispatcher.ready_depth("q") == 1
    world.commit.stalled = False
    world.commit.commit()
    assert world.execution(hold).state is ExecutionState.LEASED
    assert world.dispatcher.ready_depth("q") == 0
    assert world.dispatcher.live_leases == 1


async def test_waiting_claims_learn_that_the_leadership_is_lost(world):
    task = world.asking()
    await world.settle()
    await world.lose_leadership()
    with pytest.raises(NotServing):
        task.result()
    with pytest.raises(NotServing):
        await world.claim()


async def test_a_bound_claim_learns_that_its_outcome_is_unknown(world):
    hold = await world.job()
    world.commit.stalled = True
    task = world.asking(request_id="r")
    await world.settle()
    await world.lose_leadership(applied_elsewhere=True)
    with pytest.raises(OutcomeUnknown):
        task.result()
    world.commit.stalled = False
    await world.lead(2)
    (grant,) = await world.claim(request_id="r")
    assert (grant.execution.job.id, grant.execution.nominal_ms) == hold
    assert world.execution(hold).attempts_used == 1

"""Workers that are told to claim no more: they get nothing, and learn of it at once."""

from __future__ import annotations

import asyncio

from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import InstructWorker


async def tell(world, worker="w", instruction="quiet"):
    await world.write(InstructWorker(worker, instruction))


async def test_a_waiting_claim_of_a_worker_is_answered_at_once_when_it_is_told(world):
    task, other = world.asking(), world.asking(worker="other")
    await world.settle()
    await tell(world)
    assert task.result() == []
    assert not other.done()
    assert world.dispatcher.waiting_claims() == 1


async def test_a_worker_that_is_told_gets_nothing_and_does_not_wait(world):
    await tell(world, instruction="terminate")
    hold = await world.job()
    task = world.asking()
    await world.settle()
    assert task.result() == []
    assert world.dispatcher.ready_depth("q") == 1
    (lease,) = await world.claim(worker="other")
    assert (lease.execution.job.id, lease.execution.nominal_ms) == hold


async def test_a_worker_that_is_resumed_gets_work_again(world):
    await tell(world)
    assert await world.claim() == []
    await tell(world, instruction="")
    task = world.asking()
    await world.settle()
    assert not task.done()
    await world.job()
    assert len(task.result()) == 1


async def test_heartbeats_tell_it_and_leases_go_on(world):
    await world.job()
    (lease,) = await world.claim()
    assert world.heartbeat(lease).instruction is None
    await tell(world, "other", "terminate")
    assert world.heartbeat(lease).instruction is None
    await tell(world)
    beat = world.heartbeat(lease)
    assert (beat.verdict, beat.instruction, beat.lease_remaining_ms) == (
        "extended",
        "quiet",
        10_000,
    )
    await world.cancel_job(lease.execution.job.id)
    beat = world.heartbeat(lease)
    assert (beat.verdict, beat.instruction) == ("cancel_requested", "quiet")


async def test_a_repeat_of_a_claim_gets_what_that_was_granted_before(world):
    await world.job()
    (lease,) = await world.claim(request_id="r")
    await tell(world)
    assert await world.claim(request_id="r") == [lease]


async def test_a_claim_on_its_way_into_the_log_gets_its_work_yet(world):
    await world.job()
    world.commit.stalled = True
    task = world.asking()
    await world.settle()
    world.commit.propose(InstructWorker("w", "quiet"))
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert len(task.result()) == 1
    assert await world.claim() == []


async def test_a_claim_that_came_to_nothing_does_not_wait_on_once_its_worker_is_told(world):
    hold = await world.job()
    world.commit.stalled = True
    task = world.asking()
    await world.settle()
    telling = world.commit.propose(InstructWorker("w", "quiet"))
    await world.settle()
    (_, claims), (entry, answers) = world.commit._written
    world.commit._written = [(entry, answers)]  # the claim's entry is lost, the other is not
    world.commit.stalled = False
    world.commit.commit()
    assert telling.done()
    for claim in claims:
        claim.set_exception(Overloaded())
    await asyncio.sleep(0)
    assert task.result() == []
    assert world.execution(hold).token == 0


async def test_a_new_leader_knows_of_it(world):
    await tell(world)
    await world.lose_leadership()
    await world.lead(2)
    task = world.asking()
    await world.settle()
    assert task.result() == []

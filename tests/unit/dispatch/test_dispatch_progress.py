"""Progress in heartbeats: into the log at a bounded rate, together, the latest of each."""

from __future__ import annotations

import pytest

from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import NewJob, ReportProgress


async def held(world, count=1, **rest):
    await world.create(*(NewJob("q", b"") for _ in range(count)))
    return await world.claim(n=count, **rest)


def written(world):
    return [op for entry in world.commit.entries for op in entry if isinstance(op, ReportProgress)]


def kept(grant):
    return grant.execution.attempts[-1].progress


def waiting(world):
    return len(world.dispatcher._duty.leases.progress)


async def test_progress_is_written_once_a_second_at_most_and_the_latest_wins(world):
    (grant,) = await held(world)
    for number in range(50):
        assert world.heartbeat(grant, b"%d" % number).verdict == "extended"
        await world.pass_ms(100)
    values = [item[3] for op in written(world) for item in op.items]
    assert values == [b"0", b"9", b"19", b"29", b"39", b"49"]
    assert kept(grant) == b"49"
    assert waiting(world) == 0


async def test_what_many_tell_within_a_second_is_one_operation(world):
    first, *others = await held(world, 200)
    world.heartbeat(first, b"1")
    await world.settle()
    assert kept(first) == b"1"
    for place, grant in enumerate(others):
        world.heartbeat(grant, b"%d" % place)
        await world.pass_ms(3)
    await world.pass_ms(1_000)
    assert [len(op.items) for op in written(world)] == [1, 199]
    assert [kept(grant) for grant in others] == [b"%d" % place for place in range(199)]


async def test_large_progress_is_cut_into_operations_of_bounded_size(world):
    grants = await held(world, 100)
    for place, grant in enumerate(grants):
        world.heartbeat(grant, b"%03d" % place + b"x" * 1_000)
    await world.pass_ms(2_000)
    assert all(sum(len(item[3]) for item in op.items) <= 32 * 1_000 for op in written(world))
    assert all(kept(grant) for grant in grants)


async def test_progress_that_stands_is_not_written_again(world):
    (grant,) = await held(world)
    for _ in range(20):
        world.heartbeat(grant, b"7")
        await world.pass_ms(1_000)
    assert len(written(world)) == 1
    world.heartbeat(grant)
    await world.pass_ms(1_000)
    assert kept(grant) == b"7"


async def test_progress_that_could_not_be_proposed_is_proposed_again_as_it_is_by_then(world):
    (grant,) = await held(world)
    world.heartbeat(grant)
    await world.settle()
    world.commit.error = Overloaded()
    world.heartbeat(grant, b"1")
    await world.pass_ms(50)
    assert "progress" in world.seen.failed
    world.heartbeat(grant, b"2")
    world.commit.error = None
    await world.pass_ms(2_000)
    assert kept(grant) == b"2"
    assert waiting(world) == 0


async def test_what_is_told_while_the_log_is_slow_is_not_lost(world):
    (grant,) = await held(world)
    world.heartbeat(grant)
    await world.settle()
    world.commit.stalled = True
    world.heartbeat(grant, b"1")
    await world.pass_ms(500)
    world.heartbeat(grant, b"2")
    await world.pass_ms(10)
    world.commit.stalled = False
    world.commit.commit()
    await world.pass_ms(2_000)
    assert kept(grant) == b"2"
    assert waiting(world) == 0


async def test_progress_that_returns_while_another_is_on_its_way_is_written(world):
    (grant,) = await held(world)
    world.heartbeat(grant, b"a")
    await world.pass_ms(1_000)
    world.commit.stalled = True
    world.heartbeat(grant, b"b")
    await world.pass_ms(1_000)
    world.heartbeat(grant, b"a")
    await world.pass_ms(1_000)
    world.commit.stalled = False
    world.commit.commit()
    await world.pass_ms(2_000)
    assert [item[3] for op in written(world) for item in op.items] == [b"a", b"b", b"a"]
    assert kept(grant) == b"a"
    assert waiting(world) == 0


@pytest.mark.parametrize("end", ["succeed", "release", "fail"])
async def test_progress_of_a_lease_that_has_ended_is_forgotten(world, end):
    (grant,) = await held(world)
    world.heartbeat(grant, b"1")
    await world.pass_ms(10)
    world.heartbeat(grant, b"2")
    await getattr(world, end)(grant)
    await world.pass_ms(2_000)
    assert len(written(world)) == 1
    assert kept(grant) == b"1"
    assert waiting(world) == 0


async def test_who_holds_nothing_tells_nothing(world):
    (grant,) = await held(world)
    execution = grant.execution
    lost = world.dispatcher.heartbeat(execution.job.id, execution.nominal_ms, grant.token - 1, b"1")
    assert lost.verdict == "lost"
    await world.pass_ms(2_000)
    assert not written(world)


async def test_an_earlier_leadership_writes_no_progress(world):
    (grant,) = await held(world)
    world.heartbeat(grant, b"1")
    await world.pass_ms(10)
    world.heartbeat(grant, b"2")
    await world.lose_leadership()
    await world.pass_ms(5_000)
    assert len(written(world)) == 1
    await world.lead(2)
    world.heartbeat(grant, b"2")
    await world.pass_ms(10)
    assert kept(grant) == b"2"

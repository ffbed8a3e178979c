"""Work that requires something: who gets it, in which order, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from timeball.cluster.dispatch.errors import TooManyClaims
from timeball.cluster.state.operations import Change, Claim, NewJob, Options, UpdateJob

SECOND = 1_000


def requiring(*tags, **rest):
    return NewJob("q", b"\xc0", options=Options(requires=tuple(sorted(tags))), **rest)


def claims_of(world):
    return [op for entry in world.commit.entries for op in entry if isinstance(op, Claim)]


def taken(task):
    return [(grant.execution.job.id, grant.execution.nominal_ms) for grant in task.result()]


async def test_only_a_claim_that_offers_all_that_is_required_gets_it(world) -> None:
    (hold,) = await world.create(requiring("gpu", "eu"))
    for offered in ((), ("gpu",), ("eu", "ssd")):
        assert await world.claim(offered=offered) == []
    (grant,) = await world.claim(offered=("ssd", "eu", "gpu"))
    assert grant.execution is world.execution(hold)
    assert claims_of(world)[-1].offered == ("eu", "gpu", "ssd")


async def test_work_goes_to_the_first_claim_in_line_that_may_take_it(world) -> None:
    plain, gpu, both = (world.asking(offered=tags) for tags in ((), ("gpu",), ("eu", "gpu")))
    await world.settle()
    (hold,) = await world.create(requiring("gpu"))
    assert taken(gpu) == [hold]
    (hold,) = await world.create(requiring("gpu"))
    assert taken(both) == [hold]
    assert not plain.done()
    (hold,) = await world.create(NewJob("q", b"\xc0"))
    assert taken(plain) == [hold]
    assert [len(op.executions) for op in claims_of(world)] == [1, 1, 1]


async def test_what_nobody_may_take_holds_up_nothing_and_wakes_nobody(world) -> None:
    tasks = [world.asking(wait_ms=60_000) for _ in range(3)]
    await world.create(*(requiring("gpu") for _ in range(5)))
    before = len(world.commit.entries)
    wakes = 0
    wake = world.commit.wake

    def counted() -> None:
        nonlocal wakes
        wakes += 1
        wake()

    world.commit.wake = counted
    await world.pass_ms(5 * SECOND)
    assert (len(world.commit.entries), wakes) == (before, 0)
    holds = await world.create(NewJob("q", b"\xc0"), NewJob("q", b"\xc0"))
    assert sorted(taken(tasks[0]) + taken(tasks[1])) == sorted(holds)
    assert not tasks[2].done()
    assert world.dispatcher.ready_depth("q") == 5
    grants = await world.claim(n=9, offered=("gpu",))
    assert len(grants) == 5


async def test_priority_then_due_time_decide_between_what_may_be_taken(world) -> None:
    at_ms = world.now_ms + 1_000
    order = [
        requiring("a", priority=9, first_ms=at_ms + 3),
        requiring("b", first_ms=at_ms),
        NewJob("q", b"\xc0", first_ms=at_ms + 1),
        requiring("a", "b", first_ms=at_ms + 2),
        requiring("a", priority=1, first_ms=at_ms),
    ]
    holds = await world.create(*order)
    await world.create(requiring("c", priority=9, first_ms=at_ms))
    await world.pass_ms(2 * SECOND)
    grants = await world.claim(n=9, offered=("a", "b"))
    got = [(grant.execution.job.id, grant.execution.nominal_ms) for grant in grants]
    assert got == holds


async def test_ahead_of_its_time_a_queue_is_not_given_away_past_what_requires_something(
    world,
) -> None:
    tasks = [world.asking(offered=("gpu",)) for _ in range(4)]
    at_ms = world.now_ms + 500
    early, late, demanding = await world.create(
        NewJob("q", b"\xc0", first_ms=at_ms),
        NewJob("q", b"\xc0", first_ms=at_ms + 6),
        requiring("gpu", priority=9, first_ms=at_ms + 6),
    )
    await world.pass_ms(490)
    assert [list(op.executions) for op in claims_of(world)] == [[early]]
    await world.pass_ms(20)
    assert [taken(task) for task in tasks[:3]] == [[early], [demanding], [late]]


async def test_work_is_leased_ahead_although_other_work_waits_that_nobody_may_take(world) -> None:
    await world.create(requiring("gpu"))
    tasks = [world.asking() for _ in range(3)]
    at_ms = world.now_ms + 500
    (hold,) = await world.create(NewJob("q", b"\xc0", first_ms=at_ms))
    await world.pass_ms(490)
    assert [list(op.executions) for op in claims_of(world)] == [[hold]]
    assert not tasks[0].done()
    await world.pass_ms(10)
    assert taken(tasks[0]) == [hold]


async def test_a_change_of_the_requirements_moves_ready_work(world) -> None:
    (hold,) = await world.create(requiring("gpu"))
    task = world.asking(offered=("eu",))
    await world.settle()
    await world.write(UpdateJob(hold[0], 0, Change(requires=("eu",))))
    assert taken(task) == [hold]


async def test_a_change_that_overtakes_a_bound_claim_leaves_the_work_to_others(world) -> None:
    (hold,) = await world.create(requiring("gpu"))
    world.commit.stalled = True
    change = world.commit.propose(UpdateJob(hold[0], 0, Change(requires=("eu",))))
    task = world.asking(offered=("gpu",))
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert change.result().version == 2
    assert not task.done()
    assert len(await world.claim(offered=("eu",))) == 1


async def test_too_many_different_offers_are_refused(world) -> None:
    await world.lead(2, max_offers=2)
    tasks = [world.asking(offered=tags) for tags in ((), ("a",), ("a",))]
    await world.settle()
    with pytest.raises(TooManyClaims, match="different sets of tags"):
        await world.claim(wait_ms=1_000, offered=("b",))
    other = world.asking("other", offered=("b",))
    await world.settle()
    assert not any(task.done() for task in (*tasks, other))


class Model:
    """Claims and work as two lists: the first claim that may take anything takes its best."""

    def __init__(self) -> None:
        self.claims = []  # (task, offered, n)
        self.work = []  # (-priority, due, hold, requires)
        self.expected = {}

    def resolve(self) -> None:
        while True:
            found = next((claim for claim in self.claims if self.fitting(claim)), None)
            if found is None:
                return
            self.claims.remove(found)
            mine = sorted(self.fitting(found))[: found[2]]
            self.work = [one for one in self.work if one not in mine]
            self.expected[found[0]] = [one[2] for one in mine]

    def fitting(self, claim):
        return [one for one in self.work if set(one[3]) <= set(claim[1])]


@pytest.mark.parametrize("seed", range(12))
async def test_claims_and_work_meet_as_two_plain_lists_would(world, seed) -> None:
    rng = Random(seed)
    await world.lead(2, lead_ms=0, lead_span_ms=0)
    model = Model()

    def tags(most):
        return tuple(sorted(rng.sample(("a", "b", "c"), rng.randint(0, most))))

    for _ in range(60):
        kind = rng.random()
        if kind < 0.4:
            offered, n = tags(3), rng.randint(1, 3)
            task = world.asking(n=n, offered=offered)
            model.claims.append((task, offered, n))
        elif kind < 0.8:
            asked = [
                (tags(2), rng.choice((1, 5, 9)), world.now_ms) for _ in range(rng.randint(1, 3))
            ]
            holds = await world.create(
                *(
                    requiring(*requires, priority=priority, partition_key="p")
                    for requires, priority, _ in asked
                )
            )
            for hold, (requires, priority, due_ms) in zip(holds, asked, strict=True):
                model.work.append((-priority, due_ms, hold, requires))
        elif kind < 0.9 and model.claims:
            gone = model.claims.pop(rng.randrange(len(model.claims)))
            gone[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone[0]
        else:
            await world.pass_ms(rng.randint(1, 30))
        model.resolve()
        await world.pass_ms(1)
        for task, holds in model.expected.items():
            assert taken(task) == holds
        assert not any(task.done() for task, _, _ in model.claims)
        assert world.dispatcher.ready_depth("q") == len(model.work)

"""Queues with settings: what is held back, and that it comes as soon as it may."""

from __future__ import annotations

import asyncio
import random

import pytest

from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import (
    CancelJobs,
    Change,
    Claim,
    ConfigureQueue,
    Fail,
    Failure,
    NewJob,
    Options,
    Release,
    RetryPolicy,
    Succeed,
    Success,
    UpdateJob,
)
from timeball.cluster.state.queue_settings import QueueChange, RateLimit
from timeball.cluster.state.queues import rate_room
from timeball.cluster.state.records import ExecutionState

OPTIONS = [
    *(None, Options("a"), Options("a"), Options("b"), Options("c")),
    *(Options("a", requires=("gpu",)), Options(requires=("gpu",))),
]
HELD = (ExecutionState.LEASED, ExecutionState.RUNNING)
AGAIN = RetryPolicy(9, 0, 100, 0, 0)


async def configure(world, queue="q", **change):
    await world.write(ConfigureQueue(queue, -1, QueueChange(**change)))


async def keyed(world, key, **rest):
    return await line(world, options=Options(key), **rest)


async def line(world, **rest):
    """One more job, all in one partition: they go in order."""
    return await world.job(partition_key="p", **rest)


def hold_of(lease):
    return lease.execution.job.id, lease.execution.nominal_ms


def got(task):
    """What a claim got so far."""
    return [hold_of(lease) for lease in task.result()] if task.done() else None


def flushes(world):
    """How often the log asked for operations from now on."""
    asked = []
    (source,) = world.commit._sources

    def counting(log_time_ms, room):
        asked.append(log_time_ms)
        return source(log_time_ms, room)

    world.commit._sources[:] = [counting]
    return asked


# The queue as a whole


async def test_a_paused_queue_keeps_its_claims_waiting_and_a_resumed_one_answers_them(
    world,
):
    await configure(world, state="paused")
    task = world.asking()
    hold = await line(world)
    await world.pass_ms(5_000)
    assert not task.done()
    assert world.dispatcher.held_back_by("q") == ["paused"]
    await configure(world, state="active")
    assert got(task) == [hold]


async def test_a_claim_that_does_not_wait_is_answered_at_once_by_a_paused_queue(world):
    await configure(world, state="paused")
    await line(world)
    task = world.asking(wait_ms=0)
    await world.settle()
    assert task.result() == []


async def test_what_a_queue_holds_back_costs_the_log_nothing(world):
    await configure(world, state="paused")
    tasks = [world.asking() for _ in range(3)]
    await world.settle()
    await line(world)
    asked = flushes(world)
    await world.pass_ms(30_000)
    for _ in range(10):
        tasks.append(world.asking())
        await world.settle()
    assert len(asked) <= 2
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("end", ["succeed", "fail", "release"])
async def test_as_many_as_the_queue_may_have_and_the_next_when_one_ends(world, end):
    await configure(world, max_concurrency=2)
    holds = [await line(world, retry=AGAIN) for _ in range(3)]
    tasks = [world.asking(n=5) for _ in range(3)]
    await world.settle()
    assert [got(task) for task in tasks] == [holds[:2], None, None]
    assert world.dispatcher.held_back_by("q") == ["max_concurrency"]
    await getattr(world, end)(tasks[0].result()[0])
    assert len(got(tasks[1])) == 1
    assert world.seen.refused == 0
    tasks[2].cancel()


async def test_what_is_bound_and_not_committed_counts(world):
    await configure(world, max_concurrency=2)
    for _ in range(4):
        await line(world)
    world.commit.stalled = True
    tasks = [world.asking() for _ in range(4)]
    for _ in range(4):
        world.commit.wake()
        await world.settle()
    written = [op for entry in world.commit.entries for op in entry if isinstance(op, Claim)]
    assert len(written) == 2
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert [task.done() for task in tasks] == [True, True, False, False]
    assert world.seen.refused == 0
    for task in tasks:
        task.cancel()


async def test_a_lowered_limit_refuses_what_is_under_way_and_it_comes_later(world):
    holds = [await line(world) for _ in range(2)]
    world.commit.stalled = True
    verdict = world.commit.propose(ConfigureQueue("q", -1, QueueChange(max_concurrency=1)))
    await world.settle()
    task = world.asking(n=2)
    await world.settle()
    world.commit.stalled = False
    world.commit.commit()
    await world.settle()
    assert verdict.done()
    assert got(task) == holds[:1]
    assert world.seen.refused == 1
    other = world.asking()
    await world.settle()
    assert not other.done()
    await world.succeed(task.result()[0])
    assert got(other) == holds[1:]


async def test_a_limit_that_is_taken_away_lets_all_go(world):
    await configure(world, max_concurrency=1, max_concurrency_per_key=1)
    holds = [await keyed(world, "a") for _ in range(3)]
    tasks = [world.asking() for _ in range(3)]
    await world.settle()
    assert [got(task) for task in tasks] == [holds[:1], None, None]
    await configure(world, max_concurrency=0, max_concurrency_per_key=0)
    assert sorted(got(tasks[1]) + got(tasks[2])) == holds[1:]


# Keys


async def test_who_finds_its_key_full_stands_aside_for_others_and_comes_back_in_order(world):
    await configure(world, max_concurrency_per_key=1)
    late = [await keyed(world, "a") for _ in range(3)]
    urgent = await keyed(world, "a", priority=9)
    other, none = await keyed(world, "b"), await line(world)
    first = world.asking(n=10)
    await world.settle()
    assert sorted(got(first)) == sorted([urgent, other, none])
    assert world.dispatcher.ready_depth("q") == 3
    assert world.dispatcher.held_back_by("q") == ["max_concurrency_per_key"]
    lease = next(one for one in first.result() if hold_of(one) == urgent)
    for hold in late:
        task = world.asking(n=10)
        await world.settle()
        assert not task.done()
        await world.succeed(lease)
        assert got(task) == [hold]
        (lease,) = task.result()
    assert world.seen.refused == 0


async def test_one_that_is_cancelled_while_it_stands_aside_goes_to_nobody(world):
    await configure(world, max_concurrency_per_key=1)
    holds = [await keyed(world, "a") for _ in range(3)]
    (lease,) = await world.claim(n=5)
    await world.cancel_job(holds[1][0])
    assert world.dispatcher.ready_depth("q") == 1
    await world.succeed(lease)
    assert [hold_of(one) for one in await world.claim(n=5)] == [holds[2]]


async def test_one_that_came_back_and_is_cancelled_makes_room_for_the_next(world):
    await configure(world, max_concurrency_per_key=1)
    holds = [await keyed(world, "a") for _ in range(3)]
    (lease,) = await world.claim(n=5)
    await world.succeed(lease)  # nobody claims: the second is ready, the third stands aside
    await world.cancel_job(holds[1][0])
    assert [hold_of(one) for one in await world.claim(n=5)] == [holds[2]]


async def test_those_that_want_other_workers_are_not_waited_for(world):
    await configure(world, max_concurrency_per_key=1)
    first = await keyed(world, "a")
    await line(world, options=Options("a", requires=("gpu",)))
    plain = await keyed(world, "a")
    (lease,) = await world.claim(n=1)
    assert hold_of(lease) == first
    assert await world.claim(n=9, offered=["gpu"]) == []
    aside = world.dispatcher._duty.ready.aside
    assert aside.depth("q") == 2
    await world.succeed(lease)
    assert aside.depth("q") == 0, "one of each kind has come back"
    assert [hold_of(one) for one in await world.claim(n=9)] == [plain]


async def test_what_comes_to_require_something_else_leaves_its_place(world):
    await configure(world, max_concurrency_per_key=1)
    holds = [await keyed(world, "a") for _ in range(3)]
    (lease,) = await world.claim(n=9)
    for change in (Change(requires=("gpu",)), Change(requires=())):
        await world.write(UpdateJob(holds[1][0], 0, change))
        assert world.dispatcher.ready_depth("q") == 2
    await world.write(UpdateJob(holds[1][0], 0, Change(requires=("gpu",))))
    await world.succeed(lease)
    (lease,) = await world.claim(n=9)
    assert hold_of(lease) == holds[2]
    await world.succeed(lease)
    (lease,) = await world.claim(n=9, offered=["gpu"])
    assert hold_of(lease) == holds[1]


async def test_those_who_went_while_there_was_no_limit_take_no_room_of_a_later_one(world):
    await configure(world, max_concurrency_per_key=1)
    for _ in range(4):
        await keyed(world, "a")
    (lease,) = await world.claim(n=9)
    await configure(world, max_concurrency_per_key=0)
    for each in (lease, *await world.claim(n=9)):
        await world.succeed(each)
    await configure(world, max_concurrency_per_key=1)
    first, second = [await keyed(world, "a") for _ in range(2)]
    (lease,) = await world.claim(n=9)
    assert hold_of(lease) == first
    await world.succeed(lease)
    assert [hold_of(one) for one in await world.claim(n=9)] == [second]


async def test_many_that_stand_aside_are_met_a_bounded_number_at_a_time(world):
    await world.lead(2, executions_per_entry=50)
    await configure(world, max_concurrency_per_key=1)
    await world.create(*[NewJob("q", b"\xc0", options=Options("a"))] * 400)
    other = await keyed(world, "b")
    aside, depths = world.dispatcher._duty.ready.aside, []
    put = aside.put
    met = []
    asked = flushes(world)

    def counting(execution):
        met.append(len(asked))
        put(execution)

    aside.put = counting
    tasks = [world.asking() for _ in range(2)]
    await world.settle()
    assert all(task.done() for task in tasks)
    assert other in [hold_of(task.result()[0]) for task in tasks]
    assert max(met.count(turn) for turn in met) <= 50
    assert depths == []


async def test_a_limit_that_is_taken_away_brings_back_a_bounded_number_a_turn(world):
    await world.lead(2, step=20)
    await configure(world, max_concurrency_per_key=1)
    await world.create(*[NewJob("q", b"\xc0", options=Options("a"))] * 90)
    await world.claim(n=99)
    aside = world.dispatcher._duty.ready.aside
    assert aside.depth("q") == 89
    verdict = world.commit.propose(ConfigureQueue("q", -1, QueueChange(max_concurrency_per_key=0)))
    while not verdict.done():
        world.timers.run_one()
    assert aside.depth("q") == 69
    await world.settle()
    assert aside.depth("q") == 0


# Rates


async def test_a_rate_limited_queue_is_looked_at_when_there_is_room_and_not_before(world):
    await configure(world, rate_limit=RateLimit(1, 10_000, 1))
    holds = [await line(world) for _ in range(3)]
    tasks = [world.asking() for _ in range(3)]
    await world.settle()
    assert [got(task) for task in tasks] == [holds[:1], None, None]
    asked = flushes(world)
    await world.pass_ms(9_999)
    assert not tasks[1].done()
    assert len(asked) == 0
    await world.pass_ms(1)
    assert got(tasks[1]) == holds[1:2]
    await world.pass_ms(10_000)
    assert got(tasks[2]) == holds[2:]
    assert world.seen.refused == 0


async def test_a_new_leader_goes_on_with_the_same_bucket(world):
    await configure(world, rate_limit=RateLimit(1, 10_000, 2))
    for _ in range(4):
        await line(world)
    assert len(await world.claim(n=9)) == 2
    await world.lose_leadership()
    await world.lead(2)
    task = world.asking(n=9)
    await world.pass_ms(9_500)
    assert not task.done()
    await world.pass_ms(500)
    assert len(got(task)) == 1


# Ahead of time


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"state": "paused"}, 0),
        ({"max_concurrency": 1}, 1),
        ({"rate_limit": RateLimit(1, 60_000, 1)}, 1),
        ({"max_concurrency_per_key": 1}, 1),
        ({"max_concurrency": 3}, 2),
    ],
)
async def test_what_is_leased_ahead_of_time_keeps_to_the_settings(world, change, expected):
    await configure(world, **change)
    at_ms = world.now_ms + 500
    for later_ms in (0, 5):
        await keyed(world, "a", first_ms=at_ms + later_ms)
    tasks = [world.asking() for _ in range(4)]
    await world.settle()
    await world.pass_ms(499)
    leased = len(world.state.leased)
    await world.pass_ms(200)
    assert sum(task.done() for task in tasks) == len(world.state.leased) == expected
    assert leased == min(expected, 1) or expected == 2, "the first was leased ahead of time"
    assert world.seen.refused == 0
    for task in tasks:
        task.cancel()


# Everything at once, against a dumb model


class Fate:
    """Random work on a world, and what must hold after each step."""

    QUEUES = ("q", "r")

    def __init__(self, world, seed):
        self.world = world
        self.rng = random.Random(seed)
        self.tasks = []
        self.term = 1
        self.refused = 0
        self.changed = False
        """Whether the log took something away meanwhile from what claims were bound to."""
        self.buckets = {}
        self.granted = 0
        self.watch()

    def watch(self):
        """Look at each entry as it is applied."""
        apply = self.world.state.apply

        def watched(index, entry):
            applied = apply(index, entry)
            self.look(index, set(applied.queues))
            return applied

        self.world.state.apply = watched

    def look(self, index, reconfigured):
        """At no moment more leases than the settings say."""
        state = self.world.state
        for name in self.QUEUES:
            configured = state.configured.get(name)
            held = [one for one in state.leased.values() if one.job.queue == name]
            new = [one for one in held if one.token // 4096 == index]
            self.granted += len(new)
            if name in reconfigured:
                self.changed = True
                self.buckets[name] = []
            if configured is None or not new or name in reconfigured:
                continue
            settings = configured.settings
            assert settings.state != "paused"
            assert len(held) <= (settings.max_concurrency or len(held))
            for one in new:
                key = one.job.options.concurrency_key
                of_key = sum(other.job.options.concurrency_key == key for other in held)
                assert not key or of_key <= (settings.max_concurrency_per_key or of_key)
            if settings.rate_limit is not None:
                times = self.buckets.setdefault(name, [])
                times += [state.log_time_ms] * len(new)
                rate = settings.rate_limit
                for at, since_ms in enumerate(times):
                    grown = (state.log_time_ms - since_ms) * rate.executions / rate.per_ms
                    assert len(times) - at <= rate.burst + grown

    def at_rest(self):
        """Whatever may be handed out to a claim that waits has been."""
        world, state = self.world, self.world.state
        assert self.changed or world.seen.refused == self.refused
        self.changed, self.refused = False, world.seen.refused
        for name in self.QUEUES:
            line = world.dispatcher._duty.claims._line
            offers = [one.request.offered for one in line if one.request.queue == name]
            if not offers:
                continue
            due = [
                one
                for _, items in state.pending.upto(world.now_ms)
                for one in items
                if one.job.queue == name and one.due_ms <= world.now_ms
            ]
            assert len(due) == world.dispatcher.ready_depth(name)
            configured = state.configured.get(name)
            settings = configured.settings if configured else None
            may = []
            for one in due:
                held = [e for e in state.leased.values() if e.job.queue == name]
                key = one.job.options.concurrency_key
                of_key = sum(other.job.options.concurrency_key == key for other in held)
                if not any(tags.issuperset(one.job.options.requires) for tags in offers):
                    continue
                if settings is None or (
                    settings.state != "paused"
                    and not 0 < settings.max_concurrency <= len(held)
                    and not (key and 0 < settings.max_concurrency_per_key <= of_key)
                    and (settings.rate_limit is None or rate_room(configured, world.now_ms))
                ):
                    may.append(one)
            assert not may, (name, settings, len(due), world.dispatcher.held_back_by(name))

    async def step(self):
        if self.world.commit.stalled and self.rng.random() < 0.3:
            await self.stall()
        await self.rng.choice(self.STEPS)(self)
        await self.world.settle()
        if not self.world.commit.stalled:
            self.at_rest()

    async def create(self):
        rng = self.rng
        jobs = [
            NewJob(
                rng.choice(self.QUEUES),
                b"\xc0",
                delay_ms=rng.choice([0, 0, 0, 7, 30, 400]),
                priority=rng.choice([5, 5, 1, 9]),
                partition_key=rng.choice(["", "x", "y"]),
                retry=AGAIN,
                options=rng.choice(OPTIONS),
            )
            for _ in range(rng.randint(1, 6))
        ]
        await self.world.create(*jobs) if not self.world.commit.stalled else None

    async def claim(self):
        rng = self.rng
        for _ in range(rng.randint(1, 3)):
            wait_ms = rng.choice([0, 500, 60_000])
            queue, offered = rng.choice(self.QUEUES), rng.choice([(), (), ("gpu",)])
            number = rng.randint(1, 4)
            task = self.world.asking(queue, n=number, wait_ms=wait_ms, offered=offered)
            self.tasks.append(task)
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            if rng.random() < 0.1:
                task.cancel()

    async def hang_up(self):
        if self.tasks:
            self.rng.choice(self.tasks).cancel()

    async def end(self):
        rng, world = self.rng, self.world
        held = list(world.state.leased.values())
        for one in rng.sample(held, min(len(held), rng.randint(1, 4))):
            hold = (one.job.id, one.nominal_ms, one.token)
            operation = rng.choice(
                [
                    Succeed([Success(*hold)]),
                    Succeed([Success(*hold)]),
                    Fail([Failure(*hold, retry_after_ms=rng.choice([0, 40]))]),
                    Fail([Failure(*hold, non_retryable=True)]),
                    Release([hold]),
                    CancelJobs([one.job.id]),
                ]
            )
            self.changed |= isinstance(operation, CancelJobs)
            world.commit.propose(operation)

    async def cancel(self):
        self.changed = True
        jobs = self.world.state.list_jobs(limit=30).items
        if jobs:
            self.world.commit.propose(CancelJobs([self.rng.choice(jobs).id]))

    async def configure(self):
        rng = self.rng
        change = QueueChange(
            rng.choice(["active", "active", "active", "active", "paused", "draining"]),
            rng.choice([-1, 0, 0, 1, 3]),
            rng.choice([-1, 0, 1, 1, 2]),
            rng.choice([None, None, RateLimit(0, 0, 0), RateLimit(2, 100, 2), RateLimit(1, 9, 1)]),
        )
        self.world.commit.propose(ConfigureQueue(rng.choice(self.QUEUES), -1, change))

    async def wait(self):
        if not self.world.commit.stalled:
            await self.world.pass_ms(self.rng.choice([1, 5, 20, 100, 300, 11_000]))

    async def stall(self):
        commit = self.world.commit
        commit.stalled = not commit.stalled
        if not commit.stalled:
            commit.commit()

    async def congest(self):
        commit = self.world.commit
        if not commit.stalled:
            await self.claim()
            await asyncio.sleep(0)
            commit.error = Overloaded()
            commit._flush()
            commit.error = None

    async def change_leader(self):
        self.world.commit.stalled = False
        self.changed = True
        await self.world.lose_leadership(applied_elsewhere=self.rng.random() < 0.5)
        self.term += 1
        await self.world.lead(self.term)

    STEPS = (
        *(create, create, create, claim, claim, claim, end, end, end, end),
        *(cancel, configure, configure, wait, wait, wait, stall, congest, hang_up, change_leader),
    )


@pytest.mark.parametrize("seed", range(25))
async def test_no_more_than_the_settings_allow_and_no_wake_up_lost(world, seed):
    fate = Fate(world, seed)
    for _ in range(300):
        await fate.step()
    assert fate.granted > 20
    for task in fate.tasks:
        task.cancel()

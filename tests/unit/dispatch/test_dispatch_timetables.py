"""Recurring jobs: each nominal time has exactly one execution, or is counted (RECU)."""

from __future__ import annotations

import pytest

from timeball.cluster.dispatch import planner, timetable
from timeball.cluster.dispatch.timetable import LAST_INSTANT_MS, first_after, plan
from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import AdvanceTimetables, Cron, Every, NewJob, RetryPolicy
from timeball.cluster.state.records import ExecutionState, Job, Recurrence

SECOND = 1_000
MINUTE = 60_000
HOUR = 3_600_000
DAY = 24 * HOUR


async def recurring(world, schedule):
    first_ms = first_after(schedule, world.wall_ms())
    (hold,) = await world.create(NewJob("q", b"", first_ms=first_ms, timetable=schedule))
    return world.state.job(hold[0])


def nominals(world, job):
    return [execution.nominal_ms for execution in world.state.executions_of(job)]


def due(world, job):
    return [nominal for nominal in nominals(world, job) if nominal <= world.now_ms]


def advances(world):
    return [
        item
        for entry in world.commit.entries
        for op in entry
        if isinstance(op, AdvanceTimetables)
        for item in op.items
    ]


async def away(world, ms, wait_ms=0):
    """No leader for so long; then a new one, which gets time to work."""
    await world.lose_leadership()
    world.timers.now_ms += ms
    await world.lead(2)
    await world.pass_ms(wait_ms)


async def test_every_nominal_time_has_one_execution_ahead_of_its_time(world):
    start_ms = world.wall_ms()
    job = await recurring(world, Every(500, start_ms + 100))
    await world.pass_ms(10_000)
    assert due(world, job) == list(range(start_ms + 100, start_ms + 10_001, 500))
    assert len(nominals(world, job)) == len(due(world, job)) + 1
    assert job.planned_ms == nominals(world, job)[-1]


async def test_occurrences_are_handed_out_at_their_nominal_time(world):
    job = await recurring(world, Cron("*/15 * * * * *"))
    for _ in range(5):
        nominal_ms = job.planned_ms
        task = world.asking()
        await world.pass_ms(nominal_ms - world.wall_ms() - 1)
        assert not task.done()
        await world.pass_ms(1)
        (grant,) = task.result()
        assert grant.execution.nominal_ms == nominal_ms
        await world.succeed(grant)


@pytest.mark.parametrize("rule", ["one", "all", "none"])
@pytest.mark.parametrize("gap_ms", [100, 3_000, 9_900])
async def test_recu_02_an_election_neither_loses_nor_folds_a_run(world, rule, gap_ms):
    start_ms = world.wall_ms()
    job = await recurring(world, Every(SECOND, start_ms, catch_up=rule))
    await world.pass_ms(5_500)
    await away(world, gap_ms, 2_000)
    expected = list(range(start_ms + SECOND, world.now_ms + 1, SECOND))
    assert due(world, job) == expected
    assert (job.recurrence.coalesced, job.recurrence.missed) == (0, 0)


@pytest.mark.parametrize("written", [True, False])
async def test_recu_03_a_leader_lost_at_the_very_instant_makes_none_twice(world, written):
    """The step is proposed, and the leader is lost before it knows whether it counts."""
    start_ms = world.wall_ms()
    job = await recurring(world, Every(SECOND, start_ms))
    for _ in range(10):
        await world.pass_ms(job.planned_ms - world.wall_ms() - 1)
        world.commit.stalled = True
        await world.pass_ms(1)
        await world.lose_leadership(applied_elsewhere=written)
        world.commit.stalled = False
        await world.lead(2)
        await world.pass_ms(100)
    assert due(world, job) == list(range(start_ms + SECOND, world.now_ms + 1, SECOND))


async def test_recu_01_a_week_away_is_counted_not_walked_and_the_timetable_goes_on(world):
    start_ms = world.wall_ms()
    jobs = [
        await recurring(world, Every(SECOND, start_ms)),
        await recurring(world, Cron("* * * * * *")),
        await recurring(world, Cron("* * * * *")),
        await recurring(world, Cron("* * * * * *", catch_up="none")),
    ]
    await world.pass_ms(100)
    before = len(advances(world))
    await away(world, 7 * DAY, 5_000)
    assert len(advances(world)) - before <= 4 * 8
    for job, period_ms in zip(jobs, (SECOND, SECOND, MINUTE, SECOND), strict=True):
        got = nominals(world, job)
        assert got == sorted(set(got))
        fired = len(due(world, job))
        told = fired + job.recurrence.coalesced + job.recurrence.missed
        assert told == (world.now_ms - start_ms) // period_ms
        assert job.planned_ms > world.now_ms
    assert jobs[0].recurrence.coalesced > 604_000
    assert jobs[3].recurrence.missed > 604_000


def standing(schedule, planned_ms):
    """A job whose timetable stands there."""
    return Job(1, "q", b"", 0, RetryPolicy(), 5, "", 0, "", {}, Recurrence(schedule, planned_ms))


def missed_by(catch_up, period_ms, away_ms):
    """The step of a job that was last planned `away_ms` ago."""

    job = standing(Every(period_ms, 0, catch_up=catch_up), 1_000 * period_ms)
    now_ms = job.planned_ms + away_ms
    return job, now_ms, plan(job, now_ms)


@pytest.mark.parametrize("period_ms", [SECOND, MINUTE, HOUR])
def test_recu_02_catch_up_rules_of_what_is_older_than_the_grace(period_ms):
    away_ms = 3 * HOUR + 7 * MINUTE
    for rule in ("none", "one", "all"):
        job, now_ms, step = missed_by(rule, period_ms, away_ms)
        late = range(job.planned_ms + period_ms, now_ms + 1, period_ms)
        old = [at for at in late if at < now_ms - 10_000]
        recent = [at for at in late if at >= now_ms - 10_000]
        if rule == "all":
            wanted = [*late, late[-1] + period_ms][:100]
        else:
            wanted = [*(old[-1:] if rule == "one" else []), *recent, late[-1] + period_ms]
        assert step.nominals == wanted
        assert step.coalesced == (len(old) - 1 if rule == "one" else 0)
        assert step.missed == (len(old) if rule == "none" else 0)
        assert step.planned_ms == wanted[-1]
        assert step.after_ms == job.planned_ms


async def test_recu_02_all_creates_each_oldest_first_in_bounded_steps(world):
    start_ms = world.wall_ms()
    job = await recurring(world, Every(MINUTE, start_ms, catch_up="all"))
    await away(world, 8 * HOUR, 1_000)
    assert due(world, job) == list(range(start_ms + MINUTE, world.now_ms + 1, MINUTE))
    assert max(len(item.nominals) for item in advances(world)) <= 100


async def test_the_end_of_a_timetable_ends_the_job(world):
    start_ms = world.wall_ms()
    job = await recurring(world, Every(SECOND, start_ms, until_ms=start_ms + 3 * SECOND))
    await world.pass_ms(10_000)
    assert nominals(world, job) == [start_ms + n * SECOND for n in (1, 2, 3)]
    assert job.timetable_ended
    for grant in await world.claim(n=10):
        await world.succeed(grant)
    assert job.state.name == "COMPLETED"
    await world.pass_ms(10_000)
    assert len(world.dispatcher._duty._wheel) == 0


async def test_a_cancelled_job_plans_nothing_more(world):
    job = await recurring(world, Every(SECOND, world.wall_ms()))
    await world.pass_ms(3_500)
    await world.cancel_job(job.id)
    count = len(nominals(world, job))
    await world.pass_ms(10_000)
    assert len(nominals(world, job)) == count
    assert all(
        execution.state is ExecutionState.CANCELLED for execution in world.state.executions_of(job)
    )


async def test_recu_09_a_timetable_that_breaks_its_promise_is_parked_and_the_others_go_on(
    world, monkeypatch, caplog
):
    jobs = [await recurring(world, Every(SECOND, world.wall_ms() + n + 1)) for n in range(20)]
    faulty = jobs[7].timetable
    honest = timetable._first_of_every

    def broken(every, after_ms):
        return after_ms if every == faulty else honest(every, after_ms)

    monkeypatch.setattr(timetable, "_first_of_every", broken)
    await world.pass_ms(5_500)
    assert world.seen.parked == [jobs[7].id]
    assert "not later" in world.dispatcher.parked_timetables[jobs[7].id]
    assert f"job {jobs[7].id} stands still" in caplog.text
    for job in jobs:
        assert len(due(world, job)) == (1 if job is jobs[7] else 6)
    entries = len(world.commit.entries)
    await world.cancel_job(jobs[7].id)
    assert not world.dispatcher.parked_timetables
    assert len(world.commit.entries) == entries + 1


async def test_whatever_a_timetable_raises_only_parks_it(world, monkeypatch, caplog):
    good = await recurring(world, Every(SECOND, world.wall_ms()))
    bad = await recurring(world, Every(SECOND, world.wall_ms()))
    honest = planner.plan

    def broken(job, now_ms, **bounds):
        if job is bad:
            raise OverflowError("of the calendar")
        return honest(job, now_ms, **bounds)

    monkeypatch.setattr(planner, "plan", broken)
    await world.pass_ms(3_500)
    assert len(due(world, good)) == 3
    assert world.dispatcher.parked_timetables == {bad.id: "OverflowError: of the calendar"}


async def test_a_step_that_the_state_refuses_parks_the_job_instead_of_looping(world, monkeypatch):
    job = await recurring(world, Every(SECOND, world.wall_ms()))
    honest = planner.plan

    def backwards(job, now_ms, **bounds):
        step = honest(job, now_ms, **bounds)
        return step and type(step)(step.job, step.after_ms, [step.after_ms], step.after_ms)

    monkeypatch.setattr(planner, "plan", backwards)
    await world.pass_ms(3_500)
    assert world.seen.parked == [job.id]
    assert len(advances(world)) == 1


async def test_a_step_that_could_not_be_proposed_is_proposed_again(world):
    start_ms = world.wall_ms()
    job = await recurring(world, Every(SECOND, start_ms))
    await world.pass_ms(500)
    world.commit.error = Overloaded()
    await world.pass_ms(3_000)
    assert "advance" in world.seen.failed
    world.commit.error = None
    await world.pass_ms(500)
    assert due(world, job) == list(range(start_ms + SECOND, world.now_ms + 1, SECOND))


async def test_many_timetables_of_one_instant_move_on_in_batches(world):
    at_ms = world.wall_ms() + 500
    for _ in range(3):
        every = [Every(HOUR, at_ms) for _ in range(500)]
        await world.create(*(NewJob("q", b"", first_ms=at_ms, timetable=one) for one in every))
    await world.pass_ms(500)
    steps = [op for entry in world.commit.entries for op in entry if type(op) is AdvanceTimetables]
    assert sum(len(op.items) for op in steps) == 1_500
    assert max(len(op.items) for op in steps) <= 1_000
    assert len(steps) <= 20


async def test_a_turn_of_the_loop_plans_a_bounded_number_of_timetables(world):
    await world.lead(2, plans_per_turn=10)
    at_ms = world.wall_ms() + 500
    await world.create(
        *(NewJob("q", b"", first_ms=at_ms, timetable=Every(HOUR, at_ms)) for _ in range(35))
    )
    await world.pass_ms(500)
    steps = [op for entry in world.commit.entries for op in entry if type(op) is AdvanceTimetables]
    assert [len(op.items) for op in steps] == [10, 10, 10, 5]


async def test_far_timetables_wait_in_their_buckets(world):
    job = await recurring(world, Every(HOUR, world.wall_ms()))
    await world.pass_ms(MINUTE)
    assert len(world.dispatcher._duty._wheel) == 0
    await world.pass_ms(2 * HOUR)
    assert len(due(world, job)) == 2


def test_the_end_of_time_ends_a_timetable():
    job = standing(Every(SECOND, 0), LAST_INSTANT_MS - 500)
    step = plan(job, LAST_INSTANT_MS)
    assert (step.nominals, step.planned_ms, step.ended) == ([], job.planned_ms, True)


def test_only_a_timetable_whose_instant_has_come_moves():
    job = standing(Every(SECOND, 0), 5_000)
    assert plan(job, 4_999) is None
    assert plan(job, 5_000).nominals == [6_000]
    job.recurrence.ended = True
    assert plan(job, 5_000) is None
    job.recurrence = None
    assert plan(job, 5_000) is None

"""Recurring jobs: each nominal time has exactly one execution, or is counted (RECU)."""

from __future__ import annotations

import pytest

from timeball.cluster.dispatch import catchup, rules
from timeball.cluster.dispatch.timetable import LAST_INSTANT_MS, first_after
from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.state.operations import (
    AdvanceTimetables,
    Change,
    ClusterSettings,
    Cron,
    Every,
    Lead,
    NewJob,
    ParkTimetables,
    PauseJob,
    ResumeJob,
    RetryPolicy,
    Timetable,
    UpdateJob,
    Window,
)
from timeball.cluster.state.records import Execution, ExecutionState, Job, Recurrence

SECOND = 1_000
MINUTE = 60_000
HOUR = 3_600_000
DAY = 24 * HOUR


def every(interval_ms, anchor_ms, **rest):
    return Timetable((Every(interval_ms, anchor_ms),), **rest)


def cron(expression, **rest):
    return Timetable((Cron(expression),), **rest)


async def recurring(world, schedule, **rest):
    first_ms = first_after(schedule, world.wall_ms())
    (hold,) = await world.create(NewJob("q", b"", first_ms=first_ms, timetable=schedule, **rest))
    return world.state.job(hold[0])


def nominals(world, job):
    """The nominal times that have a run, made or to come."""
    return [
        execution.nominal_ms
        for execution in world.state.executions_of(job)
        if execution.state is not ExecutionState.SKIPPED
    ]


def told(job):
    """What became of all nominal times up to the planned one."""
    recurrence = job.recurrence
    return (recurrence.fired, recurrence.coalesced, recurrence.skipped, recurrence.missed)


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
    job = await recurring(world, every(500, start_ms + 100))
    await world.pass_ms(10_000)
    assert due(world, job) == list(range(start_ms + 100, start_ms + 10_001, 500))
    assert len(nominals(world, job)) == len(due(world, job)) + 1
    assert job.planned_ms == nominals(world, job)[-1]


async def test_occurrences_are_handed_out_at_their_nominal_time(world):
    job = await recurring(world, cron("*/15 * * * * *"))
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
    job = await recurring(world, every(SECOND, start_ms, catch_up=rule))
    await world.pass_ms(5_500)
    await away(world, gap_ms, 2_000)
    expected = list(range(start_ms + SECOND, world.now_ms + 1, SECOND))
    assert due(world, job) == expected
    assert told(job) == (len(expected) + 1, 0, 0, 0)


@pytest.mark.parametrize("written", [True, False])
async def test_recu_03_a_leader_lost_at_the_very_instant_makes_none_twice(world, written):
    """The step is proposed, and the leader is lost before it knows whether it counts."""
    start_ms = world.wall_ms()
    job = await recurring(world, every(SECOND, start_ms))
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
        await recurring(world, every(SECOND, start_ms)),
        await recurring(world, cron("* * * * * *")),
        await recurring(world, cron("* * * * *")),
        await recurring(world, cron("* * * * * *", catch_up="none")),
    ]
    await world.pass_ms(100)
    before = len(advances(world))
    await away(world, 7 * DAY, 5_000)
    assert len(advances(world)) - before <= 4 * 7
    for job, period_ms in zip(jobs, (SECOND, SECOND, MINUTE, SECOND), strict=True):
        got = nominals(world, job)
        assert got == sorted(set(got))
        assert sum(told(job)) == (world.now_ms - start_ms) // period_ms + 1
        assert job.planned_ms > world.now_ms
    week = 7 * DAY // SECOND
    assert told(jobs[0]) == (1 + 5 + 1, week - 1, 0, 0)
    assert told(jobs[3]) == (5 + 1, 0, 0, week)


async def test_recu_01_a_week_of_pause_is_skipped_and_the_timetable_goes_on(world):
    start_ms = world.wall_ms()
    jobs = [
        await recurring(world, every(SECOND, start_ms)),
        await recurring(world, cron("* * * * *")),
    ]
    await world.pass_ms(90_500)
    before = [told(job)[0] - 1 for job in jobs]
    for job in jobs:
        await world.write(PauseJob(job.id))
    await away(world, 7 * DAY)
    steps = len(advances(world))
    for job in jobs:
        await world.write(ResumeJob(job.id))
    await world.pass_ms(2 * MINUTE)
    assert len(advances(world)) - steps <= 2 * 2 + 121 + 3
    for job, period_ms, fired in zip(jobs, (SECOND, MINUTE), before, strict=True):
        away_for = 7 * DAY // period_ms
        assert told(job) == (fired + 2 * MINUTE // period_ms + 1, 0, away_for, 0)
        assert job.recurrence.ledger[-1].reason == "paused"


async def test_recu_01_what_fell_into_a_pause_may_be_caught_up(world):
    job = await recurring(world, every(MINUTE, world.wall_ms(), catch_up="one"))
    await world.pass_ms(90_000)
    await world.write(PauseJob(job.id))
    await away(world, HOUR)
    await world.write(ResumeJob(job.id, catch_up=True))
    await world.pass_ms(1_000)
    assert told(job) == (1 + 1 + 1, 59, 0, 0)


async def test_recu_01_a_yearly_schedule_becomes_one_of_each_second_at_once(world):
    yearly = await recurring(world, cron("0 0 1 1 *"))
    await world.pass_ms(5_000)
    change = Change(timetable=every(SECOND, 0))
    await world.write(UpdateJob(yearly.id, yearly.version, change))
    await world.pass_ms(10_000)
    assert told(yearly) == (11, 0, 0, 0)
    assert yearly.planned_ms - world.now_ms <= SECOND


AWAY_MS = 3 * HOUR + 7 * MINUTE
RULES = {
    "none": {"catch_up": "none"},
    "one": {"catch_up": "one"},
    "all": {"catch_up": "all", "catch_up_limit": 100},
    "window": {"catch_up": "all", "catch_up_window_ms": 5 * MINUTE},
    "one, window": {"catch_up": "one", "catch_up_window_ms": 5 * MINUTE},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("period_ms", [SECOND, MINUTE, DAY])
async def test_recu_02_what_runs_after_three_hours_and_seven_minutes(world, rule, period_ms):
    """In exact numbers; an occurrence that was made ahead for the time away is one of them."""
    # The daily one is due in the middle of the outage, the others at its very end too.
    anchor_ms = world.wall_ms() + (HOUR if period_ms == DAY else period_ms)
    job = await recurring(world, every(period_ms, anchor_ms, **RULES[rule]))
    await away(world, AWAY_MS, 500)
    missed = list(range(anchor_ms, world.now_ms - 499, period_ms))
    assert len(missed) == {SECOND: 11_220, MINUTE: 187, DAY: 1}[period_ms]
    in_window = [at for at in missed if at >= world.now_ms - 500 - 5 * MINUTE]
    runs = {
        "none": [],
        "one": missed[-1:],
        "all": missed[-100:],
        "window": in_window,
        "one, window": in_window[-1:],
    }[rule]
    assert due(world, job) == runs
    assert job.planned_ms == missed[-1] + period_ms
    left = len(missed) - len(runs)
    coalesced = {"one": left, "one, window": max(len(in_window) - 1, 0)}.get(rule, 0)
    assert told(job) == (len(runs) + 1, coalesced, 0, left - coalesced)
    # The last step of many may find none that is later than the grace.
    assert len(runs) - 10 <= world.state.counters.caught_up <= len(runs)
    reasons = {
        "none": {"catch_up"},
        "one": {"catch_up"},
        "all": {"limit"},
        "window": {"window"},
        "one, window": {"window", "catch_up"},
    }[rule]
    assert {fate.reason for fate in job.recurrence.ledger} <= reasons
    handed_out = [grant.execution.nominal_ms for grant in await world.claim(n=1_000)]
    assert handed_out == runs


async def test_recu_02_the_planned_occurrence_goes_to_nobody_before_the_rule_has_decided(
    world, monkeypatch
):
    """It was made ahead, and the cluster was down; now its timetable waits for the budget."""
    job = await recurring(world, every(MINUTE, world.wall_ms()))
    await world.pass_ms(100)
    monkeypatch.setattr(type(world.state), "catch_up_room", lambda *_: 0)
    await away(world, HOUR, 5_000)
    assert await world.claim(n=10) == []
    await away(world, SECOND, 5_000)
    assert await world.claim(n=10) == []
    monkeypatch.undo()
    await world.pass_ms(200)
    (grant,) = await world.claim(n=10)
    assert grant.execution.nominal_ms == job.planned_ms - MINUTE
    assert told(job) == (2, 59, 0, 0)


async def test_recu_02_all_creates_each_oldest_first_in_bounded_steps(world):
    start_ms = world.wall_ms()
    job = await recurring(world, every(MINUTE, start_ms, catch_up="all"))
    await away(world, 8 * HOUR, 1_000)
    assert due(world, job) == list(range(start_ms + MINUTE, world.now_ms + 1, MINUTE))
    assert max(len(item.nominals) for item in advances(world)) <= 100


async def test_recu_02_the_cluster_catches_up_at_a_bounded_rate(world):
    """Two hundred timetables with a hundred missed times each, at ten runs a second."""
    anchor_ms = world.wall_ms() + MINUTE
    rule = every(MINUTE, anchor_ms, catch_up="all")
    await world.write(Lead("n1", ClusterSettings(catch_up_per_s=10)))
    new = [NewJob("q", b"", first_ms=anchor_ms, timetable=rule) for _ in range(20)]
    jobs = [world.state.job(job) for job, _ in await world.create(*new)]
    await world.lose_leadership()
    world.timers.now_ms += 100 * MINUTE
    world.dispatcher = world._new_dispatcher()
    world.dispatcher.start(2)
    await world.pass_ms(0)
    assert world.state.counters.caught_up == 100  # the burst
    steps = len(advances(world))
    await world.pass_ms(100 * SECOND)
    assert 1_090 <= world.state.counters.caught_up <= 1_100
    assert len(advances(world)) - steps <= 1_100
    assert "advance" not in world.seen.failed
    await world.pass_ms(110 * SECOND)
    for job in jobs:
        assert due(world, job) == list(range(anchor_ms, world.now_ms + 1, MINUTE))
        assert told(job)[1:] == (0, 0, 0)


async def test_recu_02_who_waits_for_the_budget_does_not_spin(world):
    await world.write(Lead("n1", ClusterSettings(catch_up_per_s=1)))
    anchor_ms = world.wall_ms() + MINUTE
    rule = every(MINUTE, anchor_ms)
    new = [NewJob("q", b"", first_ms=anchor_ms, timetable=rule) for _ in range(300)]
    await world.create(*new)
    await world.lose_leadership()
    world.timers.now_ms += HOUR
    world.dispatcher = world._new_dispatcher()
    planned = []
    honest = catchup.plan
    world.dispatcher.start(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            catchup,
            "plan",
            lambda job, now_ms, **rest: planned.append(job) or honest(job, now_ms, **rest),
        )
        await world.pass_ms(20 * SECOND)
    assert world.state.counters.caught_up == 30
    assert len(planned) <= 300 + 60


async def test_the_end_of_a_timetable_ends_the_job(world):
    start_ms = world.wall_ms()
    job = await recurring(world, every(SECOND, start_ms, until_ms=start_ms + 3 * SECOND))
    await world.pass_ms(10_000)
    assert nominals(world, job) == [start_ms + n * SECOND for n in (1, 2, 3)]
    assert job.timetable_ended
    for grant in await world.claim(n=10):
        await world.succeed(grant)
    assert job.state.name == "COMPLETED"
    await world.pass_ms(10_000)
    assert len(world.dispatcher._duty._wheel) == 0


async def test_a_cancelled_job_plans_nothing_more(world):
    job = await recurring(world, every(SECOND, world.wall_ms()))
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
    jobs = [await recurring(world, every(SECOND, world.wall_ms() + n + 1)) for n in range(20)]
    bad = jobs[7]
    faulty = bad.timetable.rules[0]
    honest = rules._first_of_every
    monkeypatch.setattr(
        rules,
        "_first_of_every",
        lambda rule, after_ms: after_ms if rule == faulty else honest(rule, after_ms),
    )
    await world.pass_ms(5_500)
    assert world.seen.parked == [bad.id]
    assert "not later" in bad.recurrence.parked
    assert f"job {bad.id} stands still" in caplog.text
    for job in jobs:
        assert len(due(world, job)) == (1 if job is bad else 6)
    await away(world, 3_000, 1_000)  # the next leader knows of it, too
    assert world.seen.parked == [bad.id]
    assert len(due(world, jobs[8])) == 10
    monkeypatch.undo()
    await world.write(ResumeJob(bad.id))
    await world.pass_ms(1_000)
    assert not bad.recurrence.parked
    assert len(due(world, bad)) == 11


async def test_whatever_a_timetable_raises_only_parks_it(world, monkeypatch):
    good = await recurring(world, every(SECOND, world.wall_ms()))
    bad = await recurring(world, every(SECOND, world.wall_ms()))
    honest = catchup.plan

    def broken(job, now_ms, **bounds):
        if job is bad:
            raise OverflowError("of the calendar")
        return honest(job, now_ms, **bounds)

    monkeypatch.setattr(catchup, "plan", broken)
    await world.pass_ms(3_500)
    assert len(due(world, good)) == 3
    assert bad.recurrence.parked == "OverflowError: of the calendar"
    assert len(await world.claim(n=10)) == 3 + 1


async def test_one_that_fails_at_take_over_is_parked_and_its_occurrence_goes_on(world, monkeypatch):
    good = await recurring(world, every(MINUTE, world.wall_ms(), catch_up="none"))
    bad = await recurring(world, every(MINUTE, world.wall_ms(), catch_up="none"))
    honest = catchup.plan

    def broken(job, now_ms, **bounds):
        if job is bad:
            raise ZeroDivisionError
        return honest(job, now_ms, **bounds)

    monkeypatch.setattr(catchup, "plan", broken)
    await away(world, HOUR, 100)
    assert bad.recurrence.parked.startswith("ZeroDivisionError")
    assert told(good) == (1, 0, 0, 60)
    (grant,) = await world.claim(n=10)
    assert grant.execution.job is bad


async def test_a_step_that_the_state_refuses_parks_the_job_instead_of_looping(world, monkeypatch):
    job = await recurring(world, every(SECOND, world.wall_ms()))
    honest = catchup.plan

    def backwards(job, now_ms, **bounds):
        step = honest(job, now_ms, **bounds)
        return step and type(step)(
            step.job, step.version, step.after_ms, [step.after_ms], step.after_ms
        )

    monkeypatch.setattr(catchup, "plan", backwards)
    await world.pass_ms(3_500)
    assert world.seen.parked == [job.id]
    assert "refused" in job.recurrence.parked
    assert len(advances(world)) == 1


async def test_a_parking_that_could_not_be_proposed_is_proposed_again(world, monkeypatch):
    job = await recurring(world, every(SECOND, world.wall_ms()))
    monkeypatch.setattr(catchup, "plan", lambda *_, **__: 1 // 0)
    world.commit.error = Overloaded()
    await world.pass_ms(2_000)
    assert "park" in world.seen.failed
    assert not job.recurrence.parked
    world.commit.error = None
    await world.pass_ms(500)
    assert job.recurrence.parked
    parkings = [op for entry in world.commit.entries for op in entry if type(op) is ParkTimetables]
    assert len(parkings) == 1
    assert world.seen.parked == [job.id]


async def test_a_budget_that_others_took_is_waited_for(world, monkeypatch):
    """The leader thought that there was room; the log says no."""
    job = await recurring(world, every(MINUTE, world.wall_ms(), catch_up="all"))
    await world.write(Lead("n1", ClusterSettings(catch_up_per_s=1)))
    await world.lose_leadership()
    world.timers.now_ms += HOUR
    world.dispatcher = world._new_dispatcher()
    monkeypatch.setattr(type(world.state), "catch_up_room", lambda *_: 30)
    world.dispatcher.start(2)
    await world.pass_ms(1_000)
    assert told(job) == (1, 0, 0, 0)
    monkeypatch.undo()
    await world.pass_ms(60 * SECOND)
    assert told(job) == (60 + 1 + 1, 0, 0, 0)


@pytest.mark.parametrize("what", ["pause", "edit"])
async def test_a_step_that_comes_too_late_for_a_change_changes_nothing(world, what):
    start_ms = world.wall_ms()
    job = await recurring(world, every(SECOND, start_ms))
    await world.pass_ms(999)
    operation = PauseJob(job.id)
    if what == "edit":
        operation = UpdateJob(job.id, 0, Change(timetable=every(MINUTE, start_ms)))
    world.commit.stalled = True
    verdict = world.commit.propose(operation)
    await world.pass_ms(1)
    world.commit.stalled = False
    world.commit.commit()
    await world.pass_ms(2 * MINUTE)
    assert verdict.done()
    assert told(job) == ((0, 0, 0, 0) if what == "pause" else (3, 0, 0, 0))


async def test_a_step_that_could_not_be_proposed_is_proposed_again(world):
    start_ms = world.wall_ms()
    job = await recurring(world, every(SECOND, start_ms))
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
        hourly = [every(HOUR, at_ms) for _ in range(500)]
        await world.create(*(NewJob("q", b"", first_ms=at_ms, timetable=one) for one in hourly))
    await world.pass_ms(500)
    steps = [op for entry in world.commit.entries for op in entry if type(op) is AdvanceTimetables]
    assert sum(len(op.items) for op in steps) == 1_500
    assert max(len(op.items) for op in steps) <= 1_000
    assert len(steps) <= 20


async def test_a_turn_of_the_loop_plans_a_bounded_number_of_timetables(world):
    await world.lead(2, plans_per_turn=10)
    at_ms = world.wall_ms() + 500
    await world.create(
        *(NewJob("q", b"", first_ms=at_ms, timetable=every(HOUR, at_ms)) for _ in range(35))
    )
    await world.pass_ms(500)
    steps = [op for entry in world.commit.entries for op in entry if type(op) is AdvanceTimetables]
    assert [len(op.items) for op in steps] == [10, 10, 10, 5]


async def test_a_turn_of_the_loop_plans_few_timetables_that_cost_much(world):
    """Sixteen rules count for sixteen; one that is dear goes alone."""
    await world.lead(2, plans_per_turn=40)
    at_ms = world.wall_ms() + 500
    rule = Timetable(tuple(Every(HOUR, at_ms + n) for n in range(16)))
    await world.create(*(NewJob("q", b"", first_ms=at_ms, timetable=rule) for _ in range(5)))
    await world.pass_ms(500)
    steps = [op for entry in world.commit.entries for op in entry if type(op) is AdvanceTimetables]
    assert [len(op.items) for op in steps[:3]] == [2, 2, 1]
    await world.lose_leadership()
    world.timers.now_ms += 2 * HOUR
    before = len(world.commit.entries)
    await world.lead(3, plans_per_turn=40)
    await world.pass_ms(10)
    steps = [
        len(op.items)
        for entry in world.commit.entries[before:]
        for op in entry
        if type(op) is AdvanceTimetables
    ]
    assert steps[:5] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("gap_ms", [2 * HOUR, 515 * SECOND])
async def test_a_long_gap_of_many_rules_is_dealt_with_in_bounded_steps(world, gap_ms):
    start_ms = world.wall_ms()
    rules_ = tuple(Every(2_000, start_ms + n * 500) for n in range(4))
    jobs = [
        await recurring(world, Timetable(rules_, catch_up=rule, catch_up_limit=50))
        for rule in ("none", "one", "all")
    ]
    await world.pass_ms(100)
    await away(world, gap_ms, 1_000)
    missed = gap_ms // 500
    for job, runs in zip(jobs, (0, 1, 50), strict=True):
        assert sum(told(job)) == (world.now_ms - start_ms) // 500 + 1
        late = [at for at in due(world, job) if at <= start_ms + 100 + gap_ms]
        assert len(late) == runs
        assert late == [start_ms + n * 500 for n in range(missed - runs + 1, missed + 1)]
    folded = [item for item in advances(world) if item.fates and not item.nominals]
    assert len(folded) >= 3 * (missed // 1_000 - 1)
    assert folded
    assert max(fate.count for item in folded for fate in item.fates) <= 1_000


async def test_a_gap_whose_times_are_dear_to_find_is_dealt_with_in_bounded_steps(world):
    """Every other second is excluded, so a walk comes only so far: the next step goes on."""
    start_ms = -(-world.wall_ms() // (2 * SECOND)) * 2 * SECOND
    every_second = (Every(SECOND, start_ms),)
    windows = (Window("*/2 * * * * *"),)
    jobs = [
        await recurring(
            world,
            Timetable(every_second, exclusions=windows, catch_up=rule, catch_up_limit=50),
        )
        for rule in ("none", "one", "all")
    ]
    await world.pass_ms(5 * SECOND)
    left_ms = world.now_ms
    await away(world, 2 * HOUR, 1_000)
    odd = range(start_ms + SECOND, world.now_ms, 2 * SECOND)
    for job, runs in zip(jobs, (0, 1, 50), strict=True):
        assert sum(told(job)) == len(odd) + 1, "and the one ahead"
        missed = [at for at in odd if left_ms < at <= left_ms + 2 * HOUR]
        late = [at for at in due(world, job) if left_ms < at <= left_ms + 2 * HOUR]
        assert late == missed[len(missed) - runs :]
    folded = [item for item in advances(world) if item.fates and not item.nominals]
    assert len(folded) >= 3 * 3


async def test_far_timetables_wait_in_their_buckets(world):
    job = await recurring(world, every(HOUR, world.wall_ms()))
    await world.pass_ms(MINUTE)
    assert len(world.dispatcher._duty._wheel) == 0
    await world.pass_ms(2 * HOUR)
    assert len(due(world, job)) == 2


def test_only_a_timetable_whose_instant_has_come_moves():
    recurrence = Recurrence(every(SECOND, 0), 5_000, made=1)
    job = Job(1, "q", b"", 0, RetryPolicy(), 5, "", 0, "", {}, recurrence)
    bounds = {"grace_ms": 10_000, "limit": 100, "room": 100}
    assert catchup.plan(job, 4_999, **bounds) is None
    assert catchup.plan(job, 5_000, **bounds).nominals == (6_000,)
    for stop in ({"paused_ms": 1}, {"parked": "why"}, {"ended": True}):
        for name, value in stop.items():
            setattr(recurrence, name, value)
        assert catchup.plan(job, 5_000, **bounds) is None
        for name, value in stop.items():
            setattr(recurrence, name, type(value)())
    job.recurrence = None
    assert catchup.plan(job, 5_000, **bounds) is None


def test_the_end_of_time_ends_a_timetable():
    recurrence = Recurrence(every(SECOND, 0), LAST_INSTANT_MS - 500, made=1)
    job = Job(1, "q", b"", 0, RetryPolicy(), 5, "", 0, "", {}, recurrence)
    step = catchup.plan(job, LAST_INSTANT_MS, grace_ms=10_000, limit=100, room=100)
    assert (step.nominals, step.planned_ms, step.ended) == ((), job.planned_ms, True)


async def test_max_runs_counts_the_runs_and_ends_the_job(world):
    start_ms = world.wall_ms()
    job = await recurring(world, every(SECOND, start_ms, max_runs=3))
    await world.pass_ms(1_500)
    await away(world, MINUTE, 5_000)
    assert due(world, job)[0] == start_ms + SECOND
    assert told(job)[0] == 3
    assert job.timetable_ended
    assert len(due(world, job)) == 3


@pytest.mark.parametrize("pending", [True, False])
def test_a_step_makes_no_more_runs_of_the_past_than_there_is_room_for(pending):
    recurrence = Recurrence(every(MINUTE, 0, catch_up="all"), HOUR, made=1)
    job = Job(1, "q", b"", 0, RetryPolicy(), 5, "", 0, "", {}, recurrence)
    if pending:
        job.executions[HOUR] = Execution(job, HOUR, HOUR, 1)
    late = [HOUR + n * MINUTE for n in range(1, 31)]
    for room in (0, 1, 3, 40):
        step = catchup.plan(job, late[-1], grace_ms=10_000, limit=100, room=room)
        if not room:
            assert step is None
            continue
        made = room - pending
        assert list(step.nominals) == (late[:made] if room < 31 else [*late, late[-1] + MINUTE])
        assert step.caught_up == min(room, 30 + pending)
        assert step.planned_ms > job.planned_ms

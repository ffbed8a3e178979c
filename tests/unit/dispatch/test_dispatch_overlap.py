"""Overlap, pauses and edits as workers see them: what is handed out, and when (RECU)."""

from __future__ import annotations

import pytest

from timeball.cluster.state.operations import (
    AdvanceTimetables,
    BackfillJob,
    Change,
    Every,
    NewJob,
    PauseJob,
    Replay,
    RetryPolicy,
    Timetable,
    TriggerJob,
    UpdateJob,
)

SECOND = 1_000
MINUTE = 60_000
ONCE = RetryPolicy(max_attempts=1)


async def minutely(world, overlap, *, retry=None, **rest):
    """A job of every minute, whose first occurrence is a minute away."""
    first_ms = world.wall_ms() + MINUTE
    timetable = Timetable((Every(MINUTE, first_ms),), overlap=overlap)
    new = NewJob("q", b"\xc0", first_ms=first_ms, timetable=timetable, retry=retry, **rest)
    ((job, _),) = await world.create(new)
    return world.state.job(job)


async def change_leader(world, ms=300):
    await world.lose_leadership()
    await world.pass_ms(ms)
    await world.lead(2)


class Workers:
    """Two workers that always wait, and run what they get for a while; the checker of RECU-08."""

    def __init__(self, world, takes_ms, lease_ms=200_000):
        self.world = world
        self.takes_ms = takes_ms
        self.lease_ms = lease_ms
        self.running = {}
        self.ran = []
        self.most = 0
        self.tasks = []

    async def pass_ms(self, ms, step_ms=500):
        world = self.world
        for _ in range(ms // step_ms):
            for task in [task for task in self.tasks if task.done()]:
                self.tasks.remove(task)
                for grant in () if task.exception() else task.result():
                    self.running[grant] = world.now_ms
                    self.ran.append(grant.execution.nominal_ms)
            held = list(world.state.leased.values())
            self.most = max(self.most, len(held))
            for grant, since_ms in list(self.running.items()):
                if world.now_ms - since_ms >= self.takes_ms:
                    del self.running[grant]
                    await world.succeed(grant)
            while len(self.tasks) < 2 and world.dispatcher.term is not None:
                self.tasks.append(world.asking(wait_ms=30_000, lease_ms=self.lease_ms))
            await world.pass_ms(step_ms)

    def stop(self):
        for task in self.tasks:
            task.cancel()


@pytest.mark.parametrize(
    ("overlap", "most", "ran", "skipped"),
    [
        ("skip", 1, [0, 2, 4, 6, 8], 5),
        ("buffer_one", 1, [0, 1, 2, 4, 5, 7], 3),
        ("allow", 2, list(range(10)), 0),
        ("cancel_running", 1, [0, 1, 3, 4, 6, 7], 3),
    ],
)
async def test_recu_08_ninety_seconds_each_minute(world, overlap, most, ran, skipped):
    """Ten minutes with a change of leader in the middle of each run."""
    job = await minutely(world, overlap)
    first_ms = job.planned_ms
    workers = Workers(world, 90 * SECOND)
    for _ in range(5):
        await workers.pass_ms(100 * SECOND)
        await change_leader(world)
        await workers.pass_ms(20 * SECOND)
    workers.stop()
    assert workers.most == most
    minutes = [(at - first_ms) // MINUTE for at in workers.ran]
    assert minutes == ran
    assert job.recurrence.skipped == skipped


@pytest.mark.parametrize("end", ["success", "death", "expiry", "cancel"])
async def test_recu_08_whatever_ends_a_run_lets_the_next_one_go(world, end):
    job = await minutely(world, "buffer_one", retry=ONCE)
    await world.pass_ms(MINUTE)
    (first,) = await world.claim(lease_ms=200_000 if end != "expiry" else 90_000)
    await world.pass_ms(MINUTE)
    assert await world.claim(n=10) == []
    waiting = world.asking(wait_ms=100_000)
    await world.pass_ms(SECOND)
    assert not waiting.done()
    if end == "success":
        await world.succeed(first)
    elif end == "death":
        await world.fail(first)
    elif end == "cancel":
        rules = job.timetable.rules
        change = Change(timetable=Timetable(rules, overlap="cancel_running"))
        await world.write(UpdateJob(job.id, 0, change))
        await world.pass_ms(MINUTE)
        assert world.heartbeat(first).verdict == "cancel_requested"
        await world.release(first)
    else:
        await world.pass_ms(35 * SECOND)
    await world.settle()
    (second,) = waiting.result()
    later_ms = 2 * MINUTE if end == "cancel" else MINUTE  # and the newest goes
    assert second.execution.nominal_ms == first.execution.nominal_ms + later_ms


async def test_recu_08_a_retry_goes_before_what_came_due_meanwhile(world):
    policy = RetryPolicy(max_attempts=3, initial_ms=90_000, jitter_pct=0)
    await minutely(world, "buffer_one", retry=policy)
    await world.pass_ms(MINUTE)
    (first,) = await world.claim()
    await world.fail(first)
    await world.pass_ms(MINUTE)
    assert await world.claim(n=10) == []
    await change_leader(world)
    assert await world.claim(n=10) == []
    await world.pass_ms(31 * SECOND)
    (again,) = await world.claim(n=10)
    assert again.execution is first.execution
    await world.succeed(again)
    (second,) = await world.claim(n=10)
    assert second.execution is not first.execution


async def test_recu_08_a_claim_to_spare_is_not_given_the_next_one_ahead(world):
    """Leased shortly before it is due would be two at a time."""
    await minutely(world, "buffer_one")
    await world.pass_ms(MINUTE)
    (first,) = await world.claim(lease_ms=200_000)
    tasks = [world.asking(n=5, wait_ms=200_000) for _ in range(3)]
    await world.pass_ms(MINUTE - 5)
    assert len(world.state.leased) == 1
    await world.pass_ms(10)
    assert len(world.state.leased) == 1
    await world.succeed(first)
    await world.settle()
    assert sum(task.done() for task in tasks) == 1


async def test_recu_08_a_dead_letter_that_is_replayed_takes_its_turn_and_none_is_stuck(world):
    job = await minutely(world, "buffer_one", retry=ONCE)
    await world.pass_ms(MINUTE)
    (dead,) = await world.claim()
    await world.fail(dead)
    await world.pass_ms(MINUTE)
    assert world.dispatcher.ready_depth("q") == 1
    await world.write(Replay([(job.id, dead.execution.nominal_ms, 0)]))
    seen = []
    for _ in range(2):
        (grant,) = await world.claim(n=10)
        assert len(world.state.leased) == 1
        seen.append(grant.execution.nominal_ms)
        await world.succeed(grant)
    assert seen == [dead.execution.nominal_ms, dead.execution.nominal_ms + MINUTE]


async def test_recu_08_what_waits_goes_when_the_rule_is_taken_back(world):
    job = await minutely(world, "buffer_one", retry=ONCE)
    await world.pass_ms(MINUTE)
    (dead,) = await world.claim()
    await world.fail(dead)
    await world.pass_ms(MINUTE)
    (running,) = await world.claim(lease_ms=200_000)
    await world.write(Replay([(job.id, dead.execution.nominal_ms, 0)]))
    await world.pass_ms(MINUTE)
    assert await world.claim(n=10) == []
    rules = job.timetable.rules
    await world.write(UpdateJob(job.id, 0, Change(timetable=Timetable(rules))))
    freed = await world.claim(n=10)
    assert [grant.execution.nominal_ms for grant in freed] == [dead.execution.nominal_ms]
    assert running.execution.state.name == "LEASED"


async def test_backfilled_ones_go_one_after_another_and_none_is_stuck(world):
    job = await minutely(world, "skip")
    past = [world.wall_ms() - n * MINUTE for n in range(20, 0, -1)]
    await world.write(BackfillJob(job.id, job.version, past))
    seen = []
    for _ in range(20):
        (grant,) = await world.claim(n=10)
        assert await world.claim(n=10) == []
        seen.append(grant.execution.nominal_ms)
        await world.succeed(grant)
    assert seen == past
    assert await world.claim(n=10) == []


async def test_a_trigger_runs_at_once_and_does_not_shift_the_timetable(world):
    job = await minutely(world, "allow")
    planned_ms = job.planned_ms
    await world.pass_ms(20 * SECOND)
    await world.write(TriggerJob(job.id))
    (grant,) = await world.claim(n=10)
    assert grant.execution.nominal_ms == world.now_ms
    await world.succeed(grant)
    assert job.planned_ms == planned_ms
    await world.pass_ms(40 * SECOND)
    (grant,) = await world.claim(n=10)
    assert grant.execution.nominal_ms == planned_ms


async def test_a_paused_job_finishes_what_is_due_and_fires_nothing_more(world):
    job = await minutely(world, "allow")
    await world.pass_ms(MINUTE)
    await world.write(PauseJob(job.id))
    (grant,) = await world.claim(n=10)
    await world.succeed(grant)
    await world.pass_ms(10 * MINUTE)
    assert await world.claim(n=10) == []
    assert len(world.dispatcher._duty._wheel) == 0


async def test_a_new_priority_counts_for_what_is_ready_already(world):
    jobs = [await minutely(world, "allow", priority=5) for _ in range(3)]
    await world.pass_ms(MINUTE)
    assert world.dispatcher.ready_depth("q") == 3
    await world.write(UpdateJob(jobs[2].id, 0, Change(priority=9)))
    assert world.dispatcher.ready_depth("q") == 3
    (grant,) = await world.claim()
    assert grant.execution.job is jobs[2]


async def test_recu_06_a_lease_keeps_the_timeout_that_it_began_with(world):
    job = await minutely(world, "allow", timeout_ms=20 * SECOND, retry=ONCE)
    await world.pass_ms(MINUTE)
    (grant,) = await world.claim(lease_ms=15 * SECOND)
    await world.write(UpdateJob(job.id, 0, Change(timeout_ms=5 * SECOND)))
    await change_leader(world, 100)
    for _ in range(3):
        await world.pass_ms(4 * SECOND)
        assert world.heartbeat(grant).verdict == "extended"
    await world.pass_ms(20 * SECOND)
    assert world.heartbeat(grant).verdict in ("lost", "finished")


async def test_an_occurrence_that_waits_for_catch_up_is_not_stuck_when_the_clock_steps_back(
    world, monkeypatch
):
    """It was held back by a clock that was ahead; by the right one there is nothing to decide."""
    job = await minutely(world, "allow")
    nominal_ms = job.planned_ms
    await world.lose_leadership()
    world.wall_offset_ms += MINUTE + 30 * SECOND
    monkeypatch.setattr(type(world.state), "catch_up_room", lambda *_: 0)
    world.dispatcher = world._new_dispatcher()
    world.dispatcher.start(2)
    await world.settle()
    assert world.dispatcher.ready_depth("q") == 0
    world.wall_offset_ms -= 25 * SECOND
    monkeypatch.undo()
    await world.pass_ms(SECOND)
    assert world.dispatcher.ready_depth("q") == 1
    (grant,) = await world.claim(n=10)
    assert grant.execution.nominal_ms == nominal_ms


def set_back_before_the_step(world, monkeypatch, ms):
    """The clock is set back once the next step is planned, before its entry is put together."""
    propose = world.commit.propose

    def propose_late(op, **rest):
        verdict = propose(op, **rest)
        if type(op) is AdvanceTimetables:
            monkeypatch.undo()
            world.wall_offset_ms -= ms
        return verdict

    monkeypatch.setattr(world.commit, "propose", propose_late)


@pytest.mark.parametrize("overlap", ["skip", "cancel_running"])
async def test_the_rule_speaks_though_the_clock_is_set_back_when_a_step_is_planned(
    world, monkeypatch, overlap
):
    """It speaks in that step alone: by an earlier log-time the occurrence would not be due yet."""
    job = await minutely(world, overlap)
    nominal_ms = job.planned_ms
    await world.write(TriggerJob(job.id))
    (held,) = await world.claim(lease_ms=200_000)
    set_back_before_the_step(world, monkeypatch, 8 * SECOND)
    await world.pass_ms(MINUTE)
    occurrence = world.execution((job.id, nominal_ms))
    assert job.planned_ms == nominal_ms + MINUTE
    assert held.execution.cancel_requested == (overlap == "cancel_running")
    await world.succeed(held)
    granted = [grant.execution for grant in await world.claim(n=10)]
    assert granted == ([] if overlap == "skip" else [occurrence])
    assert occurrence.reason == ("skipped:overlap" if overlap == "skip" else "")


async def test_a_backfill_after_the_step_does_not_go_first_though_the_clock_is_set_back(
    world, monkeypatch
):
    """Else it would be active when the occurrence comes due, which `skip` then leaves out."""
    job = await minutely(world, "skip")
    nominal_ms = job.planned_ms
    past_ms = nominal_ms - 2 * MINUTE
    set_back_before_the_step(world, monkeypatch, 8 * SECOND)
    await world.pass_ms(MINUTE)
    await world.write(BackfillJob(job.id, 1, [past_ms]))
    ran = []
    for _ in range(2):
        (grant,) = await world.claim(n=10)
        ran.append(grant.execution.nominal_ms)
        await world.succeed(grant)
    assert ran == [nominal_ms, past_ms]


async def test_recu_08_what_waits_is_not_ready(world):
    await minutely(world, "buffer_one")
    await world.pass_ms(MINUTE)
    (first,) = await world.claim(lease_ms=200_000)
    await world.pass_ms(MINUTE)
    assert world.dispatcher.ready_depth("q") == 0
    await change_leader(world)
    assert world.dispatcher.ready_depth("q") == 0
    await world.succeed(first)
    assert world.dispatcher.ready_depth("q") == 1


@pytest.mark.parametrize("end", ["failure", "release", "expiry"])
async def test_what_is_first_in_line_once_another_is_given_back_goes(world, end):
    """A replayed dead letter waits for what is leased, whose next turn comes later than its own."""
    retry = RetryPolicy(max_attempts=2, initial_ms=10 * SECOND, jitter_pct=0)
    job = await minutely(world, "skip", retry=retry)
    await world.pass_ms(MINUTE)
    (dead,) = await world.claim()
    await world.fail(dead, non_retryable=True)
    await world.pass_ms(MINUTE)
    (held,) = await world.claim(lease_ms=10 * SECOND)
    await world.write(Replay([(job.id, dead.execution.nominal_ms, 0)]))
    await world.pass_ms(SECOND)
    assert await world.claim() == []
    if end == "failure":
        await world.fail(held)
    elif end == "release":
        await world.release(held)
    else:
        await world.pass_ms(10 * SECOND)
    (replayed,) = await world.claim()
    assert replayed.execution is dead.execution
    await world.succeed(replayed)
    await world.pass_ms(15 * SECOND)
    (again,) = await world.claim()
    assert again.execution is held.execution

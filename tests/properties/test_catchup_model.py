"""Catch-up against a model that knows every nominal time: each has one fate, by the rule."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from timeball.cluster.dispatch import catchup
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    AdvanceTimetables,
    At,
    Claim,
    ClusterSettings,
    CreateJobs,
    Dates,
    Every,
    Fate,
    Lead,
    NewJob,
    PauseJob,
    ResumeJob,
    Succeed,
    Success,
    Timetable,
    encode_entry,
)
from timeball.cluster.state.records import ExecutionState, FateKind
from timeball.cluster.state.verdicts import Moved

DAY = 86_400_000
START = 20_000 * DAY
GRACE = 10_000


def nominal_times(timetable, to_ms):
    """Every nominal time from START on, found by looking at each."""
    times = set()
    for rule in timetable.rules:
        if isinstance(rule, Every):
            first = rule.anchor_ms
            times.update(range(first, to_ms + 1, rule.interval_ms))
        else:
            times.update(at for at in rule.times_ms if at <= to_ms)
    out = {day for one in timetable.exclusions for a, b in one.days for day in range(a, b + 1)}
    first_day = 719_163  # 1970-01-01
    return sorted(
        at for at in times if first_day + at // DAY not in out and not 0 < timetable.until_ms < at
    )


@dataclass
class Log:
    """A state machine, and what the steps of its timetable said."""

    now_ms: int = START
    index: int = 0
    state: StateMachine = field(default_factory=StateMachine)
    fates: list[Fate] = field(default_factory=list)
    made: list[int] = field(default_factory=list)

    def write(self, operation):
        self.index += 1
        applied = self.state.apply(self.index, encode_entry(self.now_ms, [operation]))
        assert applied.halt is None, applied.halt
        return applied.verdicts[0]

    def create(self, timetable):
        first_ms = nominal_times(timetable, START + ahead(timetable))[0]
        new = NewJob("q", b"", first_ms=first_ms, timetable=timetable)
        self.job = self.state.job(self.write(CreateJobs("", [new])).jobs[0].job)
        self.made.append(first_ms)

    def step(self, limit=100, room=None):
        """One step, if there is one now."""
        if room is None:
            room = self.state.catch_up_room(self.now_ms)
        step = catchup.plan(self.job, self.now_ms, grace_ms=GRACE, limit=limit, room=room)
        if step is None:
            return False
        assert step.caught_up <= room
        before_ms = self.job.planned_ms
        assert self.write(AdvanceTimetables([step])) == [Moved.MOVED]
        assert self.job.planned_ms > before_ms or self.job.timetable_ended
        self.fates += step.fates
        self.made += step.nominals
        if step.pending is not None:
            self.made.remove(step.pending.first_ms)
            self.fates.append(step.pending)
        return True

    def catch_up(self, **bounds):
        steps = 0
        while self.step(**bounds):
            steps += 1
            assert steps < 3_000, "it never comes to an end"

    def check(self):
        """Each nominal time up to where it stands has one fate."""
        recurrence = self.job.recurrence
        times = nominal_times(recurrence.timetable, self.job.planned_ms)
        fates = dict.fromkeys(self.made, "fired")
        assert len(fates) == len(self.made), "made twice"
        for fate in self.fates:
            covered = [at for at in times if fate.first_ms <= at <= fate.last_ms]
            assert len(covered) == fate.count
            assert (covered[0], covered[-1]) == (fate.first_ms, fate.last_ms)
            for at in covered:
                assert at not in fates, "two fates"
                fates[at] = FateKind(fate.kind).name
        assert sorted(fates) == times
        by_kind = [list(fates.values()).count(kind.name) for kind in list(FateKind)[:3]]
        assert [recurrence.coalesced, recurrence.skipped, recurrence.missed] == by_kind
        assert recurrence.fired == len(self.made) == recurrence.made

    def lease(self, nominal_ms):
        (token,) = self.write(Claim("w", "", 10_000, [(self.job.id, nominal_ms)]))
        if token:
            self.write(Succeed([Success(self.job.id, nominal_ms, token)]))


@st.composite
def timetables(draw, simple=None):
    interval = draw(st.sampled_from([100, 1_000, 7_000, 60_000, 300_000, 3_600_000, DAY]))
    rules = [Every(interval, START + draw(st.integers(0, interval)))]
    exclusions = ()
    if draw(st.booleans()) if simple is None else not simple:
        extra = draw(st.integers(0, 2))
        if extra == 0:
            other = draw(st.sampled_from([interval, 3 * interval // 2, 13_000]))
            rules.append(Every(max(other, 100), START + draw(st.integers(0, 50_000))))
        elif extra == 1 or interval < 60_000:
            times = draw(st.sets(st.integers(START + 1, START + 200_000), min_size=1, max_size=9))
            rules.append(At(tuple(sorted(times))))
        else:
            first = 719_163 + 20_000 + draw(st.integers(0, 3))
            exclusions = (Dates(((first, first + draw(st.integers(0, 1))),)),)
    return Timetable(
        tuple(rules),
        catch_up=draw(st.sampled_from(["none", "one", "all"])),
        catch_up_limit=draw(st.sampled_from([1, 3, 100, 1_000])),
        catch_up_window_ms=draw(st.sampled_from([0, 0, 5_000, 300_000, DAY])),
        jitter_ms=draw(st.sampled_from([0, 0, 30_000])),
        exclusions=exclusions,
    )


def gap(timetable):
    """How long an outage may be for the model to be quick."""
    shortest = min(rule.interval_ms for rule in timetable.rules if isinstance(rule, Every))
    return min(3_000 * shortest, 20 * DAY)


def ahead(timetable):
    """Within how long there is a next time, wherever it stands."""
    longest = max(rule.interval_ms for rule in timetable.rules if isinstance(rule, Every))
    return 2 * longest + (8 * DAY if timetable.exclusions else 0)


def expected_runs(timetable, present_ms, pending_ms, planned_ms):
    """Which times run after an outage, by the words of the rule; where it is in force."""
    late = [at for at in nominal_times(timetable, present_ms) if at > planned_ms]
    if pending_ms is not None:
        late.insert(0, pending_ms)
    if not any(at < present_ms - GRACE for at in late):
        return late
    window_ms = timetable.catch_up_window_ms
    recent = [at for at in late if not window_ms or at >= present_ms - window_ms]
    if timetable.catch_up == "none":
        return []
    return recent[-1:] if timetable.catch_up == "one" else recent[-timetable.catch_up_limit :]


ON_THE_INSTANT = Timetable((Every(100, START),), catch_up="one", catch_up_limit=1)


@settings(max_examples=150, deadline=None)
@given(timetables(), st.floats(0, 1), st.booleans(), st.sampled_from([1, 7, 100]))
@example(ON_THE_INSTANT, 1.0, False, 1)
def test_recu_02_an_outage_is_dealt_with_by_the_words_of_the_rule(timetable, share, leased, limit):
    log = Log()
    log.write(Lead("n", ClusterSettings(catch_up_per_s=0)))
    log.create(timetable)
    offset_ms = jitter_offset(log.job.id, timetable.jitter_ms)
    planned_ms = log.job.planned_ms
    if leased:
        log.now_ms = planned_ms + offset_ms
        log.lease(planned_ms)
    log.now_ms = max(planned_ms + offset_ms, START + int(share * gap(timetable)))
    present_ms = log.now_ms - offset_ms
    wanted = expected_runs(timetable, present_ms, None if leased else planned_ms, planned_ms)
    log.catch_up(limit=limit)
    log.check()
    assert [at for at in log.made if at <= present_ms and not (leased and at == planned_ms)] == (
        wanted
    )
    coming = nominal_times(timetable, present_ms + ahead(timetable))
    following_ms = next(at for at in coming if at > present_ms)
    if log.job.planned_ms == present_ms + 1 < following_ms:
        # The last that a step may make was of this very moment: the next one goes on behind it.
        assert len(log.made) >= limit
        log.now_ms += 1
        log.catch_up(limit=limit)
        log.check()
    assert log.job.planned_ms == following_ms


class Doings:
    """What may happen to a recurring job between two steps."""

    every = st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 0.3)),
        st.tuples(st.just("tick"), st.integers(1, 15_000)),
        st.tuples(st.just("step"), st.sampled_from([1, 3, 100])),
        st.tuples(st.just("lease"), st.none()),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("resume"), st.booleans()),
        st.tuples(st.just("room"), st.integers(0, 5)),
    )


@settings(max_examples=200, deadline=None)
@given(timetables(), st.lists(Doings.every, max_size=20), st.sampled_from([0, 5]))
def test_whatever_happens_every_nominal_time_has_one_fate(timetable, doings, rate):
    log = Log()
    log.write(Lead("n", ClusterSettings(catch_up_per_s=rate)))
    log.create(timetable)
    walked = 0.0
    for kind, how in doings:
        if kind == "wait" and walked + how <= 1:
            walked += how
            log.now_ms += int(how * gap(timetable))
        elif kind == "tick":
            log.now_ms += how
        elif kind == "step":
            log.step(limit=how)
        elif kind == "room":
            log.step(room=min(how, log.state.catch_up_room(log.now_ms)))
        elif kind == "lease":
            log.lease(log.job.planned_ms)
        elif kind == "pause":
            pending_ms = log.job.planned_ms
            log.write(PauseJob(log.job.id))
            if log.state.execution(log.job.id, pending_ms) is None and pending_ms in log.made:
                log.made.remove(pending_ms)
        elif kind == "resume":
            log.write(ResumeJob(log.job.id, how))
        log.check()
    log.write(ResumeJob(log.job.id))
    if rate:  # a timetable that names more than the budget allows is never done with its past
        log.write(Lead("n", ClusterSettings(catch_up_per_s=1_000)))
    for _ in range(200):
        log.catch_up()
        if log.state.catch_up_room(log.now_ms):
            break
        log.now_ms += 1_000
    assert log.job.moves_at_ms > log.now_ms
    log.check()
    for execution in log.state.executions_of(log.job):
        assert (execution.nominal_ms in log.made) != (execution.state is ExecutionState.SKIPPED)

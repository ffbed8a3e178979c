"""The state machine against a dumb model: dicts, lists and the rules in plain words.

Random operations, several to an entry, with stale and invented tokens. The model says
each verdict beforehand; after each entry everything that both hold is compared. A second
replica applies the same entries, and is restored from a dump of the first now and then.
"""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from state_model import (
    EPOCH_MS,
    HELD,
    KEY_RULES,
    OPTIONS,
    POLICIES,
    RATES,
    SETTINGS,
    TERMINAL,
    TIMETABLES,
    Model,
)

from timeball.cluster.state.happenings import RETRY, Happened
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    BackfillJob,
    CancelJobs,
    Change,
    Claim,
    ConfigureQueue,
    CreateJobs,
    Expire,
    Fail,
    Failure,
    Fate,
    InstructWorker,
    Lead,
    NewJob,
    ParkTimetables,
    PauseJob,
    PurgeDead,
    PutJob,
    Release,
    Replay,
    ReportProgress,
    ResumeJob,
    SkipExpired,
    Start,
    Succeed,
    Success,
    TriggerJob,
    UpdateJob,
)
from timeball.cluster.state.overlap import waits
from timeball.cluster.state.queue_settings import (
    QueueChange,
    RateLimit,
)
from timeball.cluster.state.queues import rate_room, rate_room_ms
from timeball.cluster.state.records import (
    ExecutionState,
    FateKind,
    Outcome,
    definition_of,
    origin_of,
)
from timeball.cluster.state.sizes import kept_bytes
from timeball.cluster.state.store import EndedJob
from timeball.cluster.state.verdicts import (
    ChangeStatus,
    JobsCreated,
    Moved,
)


class Driver:
    """Draws operations with `pick`, lets the model answer first, and compares."""

    def __init__(self, pick):
        self.pick = pick
        self.model = Model()
        self.one, self.other = StateMachine(), StateMachine()
        self.index = 0
        self.holds: list[tuple[int, int]] = [(1, 1)]
        self.tokens: list[int] = [0, -1, 2**60]
        self.batch: list[tuple[object, object]] = []
        self.followed: dict[tuple[int, int], int] = {}

    def lead(self):
        self.begin(EPOCH_MS)
        self.batch.append((Lead("n1", SETTINGS), None))
        self.commit()

    def begin(self, ms):
        self.index += 1
        self.log_time_ms = self.model.now_ms + ms
        self.model.now_ms = max(self.model.now_ms, self.log_time_ms)
        self.model.next_job = self.model.next_token = self.index * 4096
        self.model.next_occurrence = self.index * 4096

    def add(self, operation, expected):
        self.batch.append((operation, expected))
        if len(self.batch) == 3 or self.pick([False, True]):
            self.commit()

    def commit(self):
        self.model.trim()
        # As a leader and a follower: what one has encoded it does not decode, the other does.
        entry = self.one.encode(self.log_time_ms, [operation for operation, _ in self.batch])
        applied = self.one.apply(self.index, entry)
        assert applied.halt is None, applied.halt
        found = [
            (verdict.repeated, [(c.status, c.job, c.nominal_ms) for c in verdict.jobs])
            if isinstance(verdict, JobsCreated)
            else verdict
            for verdict in applied.verdicts
        ]
        assert found == [expected for _, expected in self.batch]
        self.mirror(applied.happened)
        told = self.other.apply(self.index, entry)
        assert (told.halt, [*told.happened]) == (None, [*applied.happened])
        if self.pick(range(0, 5)) == 0:
            self.other = StateMachine()
            self.other.load(list(self.one.dump()))
        assert self.one.digest() == self.other.digest()
        self.batch = []
        self.compare(self.one)
        self.compare(self.other)
        self.begin(self.pick([0, 1, 700, 1_000, 5_000, -50]))

    def mirror(self, happened):
        """Follow what each entry tells: that alone leads to the state of every execution."""
        ended = {*TERMINAL} - {ExecutionState.DEAD}  # what retention drops without a word
        for what, state, _, job, nominal_ms, *_ in happened:
            if what in (Happened.WITHDRAWN, Happened.PURGED):
                del self.followed[(job, nominal_ms)]
            elif what < Happened.JOB_CREATED:
                before = self.followed.get((job, nominal_ms))
                if what == Happened.CREATED:
                    assert before is None or before in ended
                else:
                    assert before is not None
                self.followed[(job, nominal_ms)] = state
        for execution in self.one.list_executions(limit=10_000).items:
            state = self.followed[(execution.job.id, execution.nominal_ms)]
            retried = execution.state is ExecutionState.SCHEDULED and execution.attempts_used
            assert state == (RETRY if retried else execution.state)
        for hold, state in self.followed.items():
            assert state in ended or self.one.execution(*hold) is not None

    def compare(self, machine):
        model = self.model
        assert machine.log_time_ms == model.now_ms
        for name, total in model.counts.items():
            assert getattr(machine.counters, name) == total, name
        listed = machine.list_executions(limit=10_000).items
        assert {(e.job.id, e.nominal_ms) for e in listed} == {e.hold for e in model.executions()}
        for expected in model.executions():
            found = machine.execution(*expected.hold)
            assert found.state is expected.state
            assert found.due_ms == expected.due_ms
            assert (found.token, found.attempts_used) == (expected.token, expected.used)
            definition = definition_of(found)
            if found.state not in TERMINAL:
                assert found.attempts_used <= definition.retry.max_attempts
            assert (
                definition.payload,
                definition.retry,
                definition.priority,
            ) == (expected.definition or expected.job.definition)
            assert origin_of(found) is expected.origin
            assert found.reason == expected.reason
            assert (
                waits(found)
                == (found.state is ExecutionState.SCHEDULED and bool(model.ahead(expected)))
                or found.state is not ExecutionState.SCHEDULED
            )
            assert found.cancel_requested == expected.cancel_requested
            assert (found.finished_ms, found.result) == (expected.ended_ms, expected.result)
            attempts = [[a.token, a.outcome, a.progress] for a in found.attempts or ()]
            assert attempts == expected.attempts
            assert attempts == sorted(attempts), "tokens rise"
            for attempt in found.attempts or ():
                error = attempt.error
                told = None if error is None else (error.error_type, error.backtrace)
                assert told == expected.errors.get(attempt.token)
        assert [job.id for job in machine.list_jobs(limit=10_000).items] == list(model.jobs)[::-1]
        for expected in model.jobs.values():
            job = machine.job(expected.id)
            assert (job.state, job.planned_ms) == (expected.state(), expected.planned_ms)
            assert job.timetable_ended == expected.ended
            assert (job.version, job.options) == (expected.version, expected.options)
            if expected.recurring:
                self.compare_timetable(job.recurrence, expected)
        self.compare_indexes(machine)

    def compare_timetable(self, found, expected):
        fates = expected.fates
        assert (found.made, found.fired) == (fates["made"], fates["runs"] - fates["lost"])
        assert (found.coalesced, found.skipped, found.missed) == (
            *(fates["coalesced"], fates["skipped"]),
            fates["missed"],
        )
        assert bool(found.paused_ms) is (expected.paused is not None)
        assert found.pause_reason == (expected.paused or "")
        assert found.parked == expected.parked
        live = {one.hold[1] for one in expected.live()}
        assert set(found.live) == live

    def compare_indexes(self, machine):
        model = self.model
        pending = [e for _, items in machine.pending.upto(2**62) for e in items]
        assert len(pending) == len(machine.pending)
        assert sorted((e.job.id, e.nominal_ms) for e in pending) == sorted(
            e.hold for e in model.pending()
        )
        standing = [job.id for _, jobs in machine.timetables.upto(2**62) for job in jobs]
        assert sorted(standing) == [job.id for job in model.jobs.values() if job.moves()]
        names = {job.name: job.id for job in model.jobs.values() if job.name and not job.ended}
        assert {name: machine.named(name).id for name in names} == names
        assert machine.catch_up_room(model.now_ms) == model.room()
        held = sorted(e.token for e in model.executions() if e.state in HELD)
        assert list(machine.leased) == held
        assert all(execution.token == token for token, execution in machine.leased.items())
        assert (machine.windowed_keys, machine.held_keys) == (len(model.keys), len(model.held))
        known = {model.holder(name)[1] for name in [*model.held, *(key[0] for key in model.keys)]
                 if model.holder(name)}  # fmt: skip
        kept = machine.list_jobs(limit=10_000).items
        assert {job.id for job in kept if machine.key_of(job)} == known & set(model.jobs)
        dead = [e.hold for e in model.dead]
        assert sorted((e.job.id, e.nominal_ms) for e in machine.list_dead().items) == sorted(dead)
        store = machine._store
        ended = [one.job if isinstance(one, EndedJob) else one for one in store.finished]
        assert store.finished_bytes == sum(map(kept_bytes, ended))
        assert store.dead_bytes == sum(map(kept_bytes, store.dead))
        kept = Counter((e.job.queue, e.state) for e in model.executions())
        assert set(machine.queues) == {job.queue for job in model.jobs.values()}
        self.compare_settings(machine)
        assert list(machine.instructions.items()) == list(model.told.items())
        keys = Counter((e.job.queue, e.job.key) for e in model.executions() if e.state in HELD)
        for name, counts in machine.queues.items():
            of_key = {key: n for (queue, key), n in keys.items() if queue == name and key}
            assert counts.leased_by_key == of_key
            assert counts.jobs == sum(job.queue == name for job in model.jobs.values())
            sets = Counter(job.options.requires for job in model.jobs.values() if job.queue == name)
            del sets[()]
            assert counts.requirements == sets
            assert counts.scheduled == kept[name, ExecutionState.SCHEDULED]
            assert (
                counts.leased
                == kept[name, ExecutionState.LEASED] + kept[name, ExecutionState.RUNNING]
            )
            assert counts.succeeded == kept[name, ExecutionState.SUCCEEDED]
            assert counts.dead == kept[name, ExecutionState.DEAD]
            assert counts.cancelled == kept[name, ExecutionState.CANCELLED]
            assert counts.skipped == kept[name, ExecutionState.SKIPPED]

    def compare_settings(self, machine):
        queues = self.model.queues
        assert machine.configured.keys() == queues.keys()
        for name, expected in queues.items():
            found = machine.configured[name]
            assert (found.settings, found.version) == (expected.settings, expected.version)
            rate = found.settings.rate_limit
            if rate is not None:
                expected.refill(self.model.now_ms)
                assert rate_room(found, self.model.now_ms) == int(expected.tokens)
                for leases in range(1, rate.burst + 1):
                    at_ms = max(rate_room_ms(found, leases), self.model.now_ms)
                    assert rate_room(found, at_ms) >= leases
                    assert at_ms == self.model.now_ms or rate_room(found, at_ms - 1) < leases

    # Drawing

    def draw_hold(self):
        return self.pick(self.holds[-12:])

    def draw_held(self):
        """A hold with a token: mostly its latest, else an earlier or invented one."""
        hold = self.draw_hold()
        execution = self.model.execution(hold)
        if execution and self.pick(range(0, 4)):
            return hold, execution.token
        return hold, self.pick(self.tokens[-8:])

    # Operations

    def step(self):
        """One random operation."""
        self.pick(self.OPERATIONS)(self)

    def create(self):
        def new_job():
            recurring = self.pick(range(0, 3)) == 0
            return NewJob(
                self.pick(["mail", "sms"]),
                b"\xc0",
                first_ms=self.pick([0, 0, EPOCH_MS + 3_000]),
                delay_ms=self.pick([0, 0, 1_500]),
                timetable=self.pick(TIMETABLES) if recurring else None,
                retry=self.pick(POLICIES),
                idempotency_key=self.pick(["", "", "k1", "k2", "k3"]),
                fingerprint=self.pick([b"f1", b"f1", b"f2"]),
                options=self.pick(OPTIONS),
                key_rule=self.pick([None, *KEY_RULES]),
            )

        request_id = self.pick(["", "", "r1", "r2"])
        new_jobs = [new_job() for _ in range(self.pick(range(1, 3)))]
        expected = self.model.create(request_id, new_jobs)
        self.holds += [(job, nominal_ms) for _, job, nominal_ms in expected[1] if job]
        self.add(CreateJobs(request_id, new_jobs), expected)

    def claim(self):
        request_id = self.pick(["", "", "c1", "c2"])
        holds = [self.draw_hold() for _ in range(self.pick(range(1, 4)))]
        offered = self.pick([(), ("a",), ("a", "b"), ("a", "b")])
        expected = self.model.claim(request_id, holds, offered)
        self.tokens += [token for token in expected if token]
        self.add(Claim("w1", request_id, 1_000, holds, offered), expected)

    def start(self):
        hold, token = self.draw_held()
        self.add(Start([(*hold, token)]), [self.model.start(hold, token)])

    def report_progress(self):
        hold, token = self.draw_held()
        progress = self.pick([b"\x01", b"\x02"])
        verdict = self.model.report_progress(hold, token, progress)
        self.add(ReportProgress([(*hold, token, progress)]), [verdict])

    def succeed(self):
        result = self.pick([b"\x01", b"\x02"])
        hold, token = self.draw_held()
        expected = self.model.report(hold, token, Outcome.SUCCEEDED, result)
        self.add(Succeed([Success(*hold, token, result)]), [expected])

    def fail(self):
        delay_ms, fatal = self.pick([-1, -1, -1, 0, 2_000]), self.pick([False, False, True])
        error_type = self.pick(["", "KeyError", "ValueError"])
        backtrace = self.pick(["", "line 1", "x" * 9_000])
        hold, token = self.draw_held()
        failure = (fatal, error_type, backtrace)
        expected = self.model.report(
            hold, token, Outcome.FAILED, delay_ms=delay_ms, failure=failure
        )
        item = Failure(*hold, token, error_type, "", delay_ms, fatal, backtrace=backtrace)
        self.add(Fail([item]), [expected])

    def release(self):
        hold, token = self.draw_held()
        expected = self.model.report(hold, token, Outcome.RELEASED)
        self.add(Release([(*hold, token)]), [expected])

    def expire(self):
        timed_out = self.pick([False, True])
        hold, token = self.draw_held()
        outcome = Outcome.TIMED_OUT if timed_out else Outcome.LEASE_EXPIRED
        expected = self.model.report(hold, token, outcome)
        self.add(Expire([(*hold, token, timed_out)]), [expected])

    def skip(self):
        holds = [self.draw_hold() for _ in range(self.pick(range(1, 3)))]
        self.add(SkipExpired(holds), [self.model.skip_expired(hold) for hold in holds])

    def cancel(self):
        job, _ = self.draw_hold()
        self.add(CancelJobs([job]), [self.model.cancel(job)])

    def replay(self):
        hold, token = self.draw_letter()
        self.add(Replay([(*hold, token)]), [self.model.replay(hold, token)])

    def purge(self):
        hold, token = self.draw_letter()
        self.add(PurgeDead([(*hold, token)]), [self.model.purge(hold, token)])

    def draw_letter(self):
        """Mostly what is dead, by the token that it died of, or any, or another."""
        hold = self.pick([*(one.hold for one in self.model.dead), *self.holds[-3:]])
        execution = self.model.execution(hold)
        token = execution.token if execution else 7
        return hold, self.pick([0, token, token, self.pick(self.tokens[-8:])])

    def advance(self):
        jobs = [job for job in self.model.jobs.values() if job.recurring]
        if not jobs:
            return
        job = self.pick(jobs)
        after_ms = job.planned_ms - self.pick([0, 0, 0, 1_000])
        steps = [self.pick(range(-1, 5)) for _ in range(self.pick(range(4)))]
        if self.pick(range(0, 4)):
            steps = sorted({abs(step) + 1 for step in steps})
        nominals = [after_ms + 1_000 * step for step in steps]
        planned_ms = after_ms + 1_000 * self.pick([max([0, *steps]), 0, 6])
        fates = [
            Fate(after_ms, after_ms, self.pick([1, 3]), kind, "because")
            for kind in self.pick(
                [(), (), (FateKind.MISSED,), (FateKind.COALESCED, FateKind.SKIPPED)]
            )
        ]
        pending = self.pick([None, None, Fate(after_ms, after_ms, 1, FateKind.MISSED, "late")])
        version = job.version - self.pick([0, 0, 0, 1])
        caught_up = self.pick([0, 0, 1, len(nominals), len(nominals) + 2])
        item = Advance(
            *(job.id, version, after_ms, nominals, planned_ms, fates, pending, caught_up),
            self.pick([False, False, True]),
        )
        expected = self.model.advance(item)
        if expected is Moved.MOVED:
            self.holds += [(job.id, nominal_ms) for nominal_ms in nominals]
        self.add(AdvanceTimetables([item]), [expected])

    def pause(self):
        job, _ = self.draw_hold()
        self.add(PauseJob(job, "why"), self.model.pause(job, "why"))

    def resume(self):
        job, _ = self.draw_hold()
        self.add(ResumeJob(job, self.pick([False, True])), self.model.resume(job))

    def park(self):
        job, _ = self.draw_hold()
        version = self.pick([1, 1, 2])
        self.add(ParkTimetables([(job, version, "err")]), [self.model.park(job, version, "err")])

    def trigger(self):
        job, _ = self.draw_hold()
        request_id = self.pick(["", "r1", "t1", "t2"])
        expected = self.model.trigger(job, request_id)
        if expected.nominal_ms:
            self.holds.append((job, expected.nominal_ms))
        self.add(TriggerJob(job, request_id), expected)

    def backfill(self):
        job, _ = self.draw_hold()
        nominals = sorted({self.model.now_ms + self.pick([-3_000, -2, -1, 0, 1]) for _ in "123"})
        version = self.pick([1, 1, 2, 3])
        expected = self.model.backfill(job, version, nominals)
        self.holds += [(job, nominal_ms) for nominal_ms in expected.created]
        self.add(BackfillJob(job, version, nominals), expected)

    def update(self):
        job, _ = self.draw_hold()
        change = Change(
            self.pick([None, None, b"\xc0", b"another"]),
            self.pick([None, *POLICIES]),
            self.pick([-1, -1, 3]),
            timetable=self.pick([None, *TIMETABLES]),
            requires=self.pick([None, None, (), ("a",)]),
            tags=self.pick([None, None, ("u",)]),
            expires_ms=self.pick([-1, -1, 0, EPOCH_MS + 20_000]),
            expires_after_ms=self.pick([-1, -1, 0, 1_500]),
        )
        if change.timetable is None and self.pick([False, True]):
            change = msgspec.structs.replace(change, first_ms=self.model.now_ms + 500)
        version = self.pick([0, 0, 1, 2])
        expected = self.model.update(job, version, change)
        if change.first_ms and expected.status is ChangeStatus.CHANGED:
            self.holds.append((job, change.first_ms))
        self.add(UpdateJob(job, version, change), expected)

    def put(self):
        new = NewJob(
            self.pick(["mail", "mail", "sms"]),
            self.pick([b"\xc0", b"other"]),
            self.model.now_ms + self.pick([0, 700]),
            timetable=self.pick(TIMETABLES),
            retry=self.pick(POLICIES),
            options=self.pick(OPTIONS),
        )
        name = self.pick(["nightly", "hourly"])
        expected = self.model.put(name, new)
        if expected.status is ChangeStatus.CREATED:
            self.holds.append((expected.job, new.first_ms))
        self.add(PutJob(name, new), expected)

    def configure(self):
        name = self.pick(["mail", "mail", "sms", "empty"])
        rate = self.pick([None, None, None, RateLimit(0, 0, 0), *RATES])
        change = QueueChange(
            self.pick(["", "", "active", "active", "paused", "draining", "closed"]),
            *(self.pick([-1, -1, 0, 1, 2, -7]) for _ in range(2)),
            rate,
        )
        known = self.model.queues.get(name)
        version = self.pick([-1, -1, known.version if known else 0, 1])
        expected = self.model.configure(name, version, change)
        self.add(ConfigureQueue(name, version, change), expected)

    def instruct(self):
        worker = self.pick(["w1", "w2", "w3", ""])
        instruction = self.pick(["quiet", "terminate", "", "sing"])
        expected = self.model.instruct(worker, instruction)
        self.add(InstructWorker(worker, instruction), expected)

    OPERATIONS = (
        *(configure, instruct),
        *(create, claim, claim, claim, start, report_progress, succeed, fail, fail),
        *(release, expire, expire, cancel, advance, advance, advance, replay, skip, skip),
        *(pause, resume, resume, park, trigger, backfill, update, put, purge),
    )


class StateAgainstModel(RuleBasedStateMachine):
    """The driver with choices that Hypothesis makes, and shrinks."""

    @initialize(data=st.data())
    def begin(self, data):
        self.driver = Driver(lambda options: data.draw(st.sampled_from(options)))
        self.driver.lead()

    @rule(data=st.data(), operation=st.sampled_from(Driver.OPERATIONS))
    def apply(self, data, operation):
        self.driver.pick = lambda options: data.draw(st.sampled_from(options))
        operation(self.driver)


TestStateAgainstModel = StateAgainstModel.TestCase
TestStateAgainstModel.settings = hypothesis_settings(
    max_examples=12, stateful_step_count=40, deadline=None
)


@pytest.mark.parametrize("seed", range(8))
def test_long_random_lives(seed):
    """Much longer runs than Hypothesis makes, which a seed repeats."""
    driver = Driver(random.Random(seed).choice)
    driver.lead()
    for _ in range(400):
        driver.step()

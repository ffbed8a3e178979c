"""The state machine against a dumb model: dicts, lists and the rules in plain words.

Random operations, several to an entry, with stale and invented tokens. The model says
each verdict beforehand; after each entry everything that both hold is compared. A second
replica applies the same entries, and is restored from a dump of the first now and then.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from timeball.cluster.state.limits import ATTEMPTS_KEPT, MAX_LEAD_MS
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CancelJobs,
    Claim,
    ClusterSettings,
    CreateJobs,
    Every,
    Expire,
    Fail,
    Failure,
    Lead,
    NewJob,
    Release,
    Replay,
    RetryPolicy,
    Start,
    Succeed,
    Success,
    Timetable,
    encode_entry,
)
from timeball.cluster.state.records import ExecutionState, JobState, Outcome
from timeball.cluster.state.sizes import kept_bytes
from timeball.cluster.state.store import EndedJob
from timeball.cluster.state.verdicts import CancelStatus, CreateStatus, JobsCreated, Verdict

EPOCH_MS = 1_764_480_000_000
TERMINAL = (ExecutionState.SUCCEEDED, ExecutionState.DEAD, ExecutionState.CANCELLED)
HELD = (ExecutionState.LEASED, ExecutionState.RUNNING)
SETTINGS = ClusterSettings(
    keep_finished=4,
    keep_finished_ms=20_000,
    keep_dead=3,
    idempotency_window_ms=9_000,
    idempotency_keys=2,
    claim_memory_ms=5_000,
    max_pending=12,
    request_memory_ms=7_000,
    request_memory=3,
    claim_memory=3,
)


@dataclass
class ModelExecution:
    hold: tuple[int, int]
    job: ModelJob
    due_ms: int
    state: ExecutionState = ExecutionState.SCHEDULED
    token: int = 0
    used: int = 0
    cancel_requested: bool = False
    ended_ms: int = 0
    result: bytes = b""
    attempts: list[list] = field(default_factory=list)  # [token, outcome]
    completions: int = 0


@dataclass
class ModelJob:
    id: int
    queue: str
    max_attempts: int
    recurring: bool
    planned_ms: int
    ended: bool
    cancelled: bool = False
    executions: dict[int, ModelExecution] = field(default_factory=dict)

    def state(self):
        if self.cancelled:
            return JobState.CANCELLED
        idle = all(one.state in TERMINAL for one in self.executions.values())
        return JobState.COMPLETED if self.ended and idle else JobState.ACTIVE


class Model:
    """What the state should be."""

    def __init__(self):
        self.jobs = {}
        self.now_ms = 0
        self.next_job = self.next_token = 0
        self.finished = []  # (ended_ms, execution or job), in order
        self.dead = []
        self.keys = []  # (key, since_ms, fingerprint, job, nominal_ms)
        self.requests = []  # (id, since_ms, answer as tuples)
        self.claims = []  # (id, since_ms, grants)
        self.counts = Counter()

    def execution(self, hold):
        job = self.jobs.get(hold[0])
        return job and job.executions.get(hold[1])

    def executions(self):
        return [one for job in self.jobs.values() for one in job.executions.values()]

    def pending(self):
        return [one for one in self.executions() if one.state is ExecutionState.SCHEDULED]

    def remembered(self, memory, key, window_ms):
        for record in reversed(memory):
            if record[0] == key:
                return record if record[1] + window_ms > self.now_ms else None
        return None

    # Operations

    def create(self, request_id, new_jobs):
        if request_id:
            known = self.remembered(self.requests, request_id, SETTINGS.request_memory_ms)
            if known:
                self.counts["duplicates"] += len(known[2])
                return True, known[2]
        answer = [self.create_one(new) for new in new_jobs]
        if request_id and any(job for _, job, _ in answer):
            self.requests.append((request_id, self.now_ms, answer))
        return False, answer

    def create_one(self, new):
        key = new.idempotency_key
        known = key and self.remembered(self.keys, key, SETTINGS.idempotency_window_ms)
        if known:
            if known[2] != new.fingerprint:
                return CreateStatus.KEY_REUSED, 0, 0
            self.counts["duplicates"] += 1
            return CreateStatus.DUPLICATE, known[3], known[4]
        if len(self.pending()) >= SETTINGS.max_pending:
            return CreateStatus.FULL, 0, 0
        nominal_ms = new.first_ms or self.now_ms + new.delay_ms
        recurring = new.timetable is not None
        job = ModelJob(
            self.next_job, new.queue, new.retry.max_attempts, recurring, nominal_ms, not recurring
        )
        self.next_job += 1
        self.jobs[job.id] = job
        self.add_execution(job, nominal_ms)
        if key:
            self.keys.append((key, self.now_ms, new.fingerprint, job.id, nominal_ms))
        return CreateStatus.CREATED, job.id, nominal_ms

    def add_execution(self, job, nominal_ms):
        self.counts["created"] += 1
        job.executions[nominal_ms] = ModelExecution((job.id, nominal_ms), job, nominal_ms)

    def claim(self, request_id, holds):
        known = request_id and self.remembered(self.claims, request_id, SETTINGS.claim_memory_ms)
        if known:
            still = {
                hold: token
                for hold, token in known[2]
                if (one := self.execution(hold)) and one.state in HELD and one.token == token
            }
            return [still.get(hold, 0) for hold in holds]
        tokens = []
        for hold in holds:
            token, self.next_token = self.next_token, self.next_token + 1
            one = self.execution(hold)
            near_ms = self.now_ms + MAX_LEAD_MS
            if one and one.state is ExecutionState.SCHEDULED and one.due_ms <= near_ms:
                one.state, one.token = ExecutionState.LEASED, token
                one.used += 1
                one.attempts = [*one.attempts, [token, Outcome.OPEN]][-ATTEMPTS_KEPT:]
                self.counts["claimed"] += 1
                tokens.append(token)
            else:
                tokens.append(0)
        grants = [(hold, token) for hold, token in zip(holds, tokens, strict=True) if token]
        if request_id and grants:
            self.claims.append((request_id, self.now_ms, grants))
        return tokens

    def start(self, hold, token):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        if one.state in HELD and token == one.token:
            if one.state is ExecutionState.RUNNING:
                return Verdict.DUPLICATE
            one.state = ExecutionState.RUNNING
            return Verdict.ACCEPTED
        self.counts["stale"] += 1
        over = token and token == one.token and one.state in TERMINAL
        return Verdict.FINISHED if over else Verdict.STALE

    def report(self, hold, token, outcome, result=b"", delay_ms=-1, non_retryable=False):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        known = next((ended for granted, ended in one.attempts if granted == token), None)
        if known is outcome:
            if outcome is Outcome.SUCCEEDED and result != one.result:
                self.counts["stale"] += 1
                return Verdict.FINISHED
            return Verdict.DUPLICATE
        expiry = outcome in (Outcome.LEASE_EXPIRED, Outcome.TIMED_OUT)
        verdict = Verdict.ACCEPTED
        if known is None or token != one.token:
            verdict = Verdict.STALE
        elif one.state in TERMINAL:
            verdict = Verdict.FINISHED
        elif known is not Outcome.OPEN and (expiry or known in (Outcome.FAILED, Outcome.RELEASED)):
            verdict = Verdict.STALE
        if verdict is not Verdict.ACCEPTED:
            self.counts["stale"] += not expiry
            return verdict
        one.attempts[-1][1] = outcome
        if outcome is Outcome.SUCCEEDED:
            one.result = result
            one.completions += 1
            assert one.completions == 1
            self.counts["succeeded"] += 1
            self.end(one, ExecutionState.SUCCEEDED)
        elif outcome is Outcome.RELEASED:
            one.used = max(0, one.used - 1)
            self.counts["released"] += 1
            self.go_on(one, self.now_ms)
        else:
            self.counts["expired" if expiry else "failed"] += 1
            growing_ms = min(1_000 * 2 ** (max(one.used, 1) - 1), 3_000)
            exhausted = non_retryable or one.used >= one.job.max_attempts
            if not exhausted and not one.cancel_requested and one.state in HELD:
                self.counts["retried"] += 1
            self.go_on(one, self.now_ms + (growing_ms if delay_ms < 0 else delay_ms), exhausted)
        return verdict

    def go_on(self, one, due_ms, exhausted=False):
        if one.cancel_requested:
            self.counts["cancelled"] += 1
            self.end(one, ExecutionState.CANCELLED)
        elif exhausted:
            self.counts["died"] += 1
            self.end(one, ExecutionState.DEAD)
        else:
            if one.state in HELD:  # it may have been leased ahead of its due time
                due_ms = max(due_ms, one.due_ms)
            one.state, one.due_ms = ExecutionState.SCHEDULED, due_ms

    def end(self, one, state):
        one.state, one.ended_ms = state, self.now_ms
        if state is ExecutionState.DEAD:
            self.dead.append(one)
        else:
            self.finished.append((self.now_ms, one))

    def cancel(self, job_id):
        job = self.jobs.get(job_id)
        if not job:
            return CancelStatus.UNKNOWN
        if job.state() is JobState.COMPLETED:
            return CancelStatus.FINISHED
        executions = list(job.executions.values())
        if not job.cancelled:
            if not executions and not job.ended:
                self.finished.append((self.now_ms, job))
            job.cancelled = job.ended = True
            for one in executions:
                if one.state is ExecutionState.SCHEDULED:
                    self.counts["cancelled"] += 1
                    self.end(one, ExecutionState.CANCELLED)
                elif one.state in HELD:
                    one.cancel_requested = True
        if any(one.state in HELD for one in executions):
            return CancelStatus.REQUESTED
        if not job.recurring and executions[0].state is not ExecutionState.CANCELLED:
            return CancelStatus.FINISHED
        return CancelStatus.CANCELLED

    def advance(self, item):
        job = self.jobs.get(item.job)
        if not job or job.ended or job.planned_ms != item.after_ms:
            return False
        instants = [item.after_ms, *item.nominals]
        if sorted(set(instants)) != instants or item.planned_ms < instants[-1]:
            return False
        if item.planned_ms == item.after_ms and not item.ended:
            return False
        job.planned_ms = item.planned_ms
        self.counts["coalesced"] += item.coalesced
        self.counts["missed"] += item.missed
        for nominal_ms in item.nominals:
            self.add_execution(job, nominal_ms)
        job.ended = item.ended
        if item.ended and not job.executions:
            self.finished.append((self.now_ms, job))
        return True

    def replay(self, hold):
        one = self.execution(hold)
        if not one:
            return Verdict.UNKNOWN
        if one.state is not ExecutionState.DEAD:
            return Verdict.NOT_DEAD
        if one.job.cancelled:
            return Verdict.JOB_CANCELLED
        self.dead.remove(one)
        one.state, one.due_ms, one.used, one.ended_ms, one.completions = (
            *(ExecutionState.SCHEDULED, max(self.now_ms, one.due_ms)),
            *(0, 0, 0),
        )
        self.counts["replayed"] += 1
        return Verdict.ACCEPTED

    # Retention

    def trim(self):
        oldest_ms = self.now_ms - SETTINGS.keep_finished_ms
        while self.finished and (
            len(self.finished) > SETTINGS.keep_finished or self.finished[0][0] <= oldest_ms
        ):
            _, ended = self.finished.pop(0)
            if isinstance(ended, ModelJob):
                del self.jobs[ended.id]
            else:
                self.drop(ended)
        while len(self.dead) > SETTINGS.keep_dead:
            self.drop(self.dead.pop(0))
        self.keys = self.keys[-SETTINGS.idempotency_keys :]
        while sum(len(answer) for *_, answer in self.requests) > SETTINGS.request_memory:
            self.requests.pop(0)
        while sum(len(grants) for *_, grants in self.claims) > SETTINGS.claim_memory:
            self.claims.pop(0)

    def drop(self, one):
        del one.job.executions[one.hold[1]]
        if not one.job.executions and one.job.state() is not JobState.ACTIVE:
            del self.jobs[one.job.id]


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

    def lead(self):
        self.begin(EPOCH_MS)
        self.batch.append((Lead("n1", SETTINGS), None))
        self.commit()

    def begin(self, ms):
        self.index += 1
        self.log_time_ms = self.model.now_ms + ms
        self.model.now_ms = max(self.model.now_ms, self.log_time_ms)
        self.model.next_job = self.model.next_token = self.index * 4096

    def add(self, operation, expected):
        self.batch.append((operation, expected))
        if len(self.batch) == 3 or self.pick([False, True]):
            self.commit()

    def commit(self):
        self.model.trim()
        entry = encode_entry(self.log_time_ms, [operation for operation, _ in self.batch])
        applied = self.one.apply(self.index, entry)
        assert applied.halt is None, applied.halt
        found = [
            (verdict.repeated, [(c.status, c.job, c.nominal_ms) for c in verdict.jobs])
            if isinstance(verdict, JobsCreated)
            else verdict
            for verdict in applied.verdicts
        ]
        assert found == [expected for _, expected in self.batch]
        assert self.other.apply(self.index, entry).halt is None
        if self.pick(range(0, 5)) == 0:
            self.other = StateMachine()
            self.other.load(list(self.one.dump()))
        assert self.one.digest() == self.other.digest()
        self.batch = []
        self.compare(self.one)
        self.compare(self.other)
        self.begin(self.pick([0, 1, 700, 1_000, 5_000, -50]))

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
            assert found.attempts_used <= found.job.retry.max_attempts
            assert found.cancel_requested == expected.cancel_requested
            assert (found.finished_ms, found.result) == (expected.ended_ms, expected.result)
            attempts = [[a.token, a.outcome] for a in found.attempts or ()]
            assert attempts == expected.attempts
            assert attempts == sorted(attempts), "tokens rise"
        assert [job.id for job in machine.list_jobs(limit=10_000).items] == list(model.jobs)[::-1]
        for expected in model.jobs.values():
            job = machine.job(expected.id)
            assert (job.state, job.planned_ms) == (expected.state(), expected.planned_ms)
            assert job.timetable_ended == expected.ended
        self.compare_indexes(machine)

    def compare_indexes(self, machine):
        model = self.model
        pending = [e for _, items in machine.pending.upto(2**62) for e in items]
        assert len(pending) == len(machine.pending)
        assert sorted((e.job.id, e.nominal_ms) for e in pending) == sorted(
            e.hold for e in model.pending()
        )
        standing = [job.id for _, jobs in machine.timetables.upto(2**62) for job in jobs]
        assert sorted(standing) == [job.id for job in model.jobs.values() if not job.ended]
        held = sorted(e.token for e in model.executions() if e.state in HELD)
        assert list(machine.leased) == held
        assert all(execution.token == token for token, execution in machine.leased.items())
        dead = [e.hold for e in model.dead]
        assert sorted((e.job.id, e.nominal_ms) for e in machine.list_dead().items) == sorted(dead)
        store = machine._store
        ended = [one.job if isinstance(one, EndedJob) else one for one in store.finished]
        assert store.finished_bytes == sum(map(kept_bytes, ended))
        assert store.dead_bytes == sum(map(kept_bytes, store.dead))
        kept = Counter((e.job.queue, e.state) for e in model.executions())
        assert set(machine.queues) == {job.queue for job in model.jobs.values()}
        for name, counts in machine.queues.items():
            assert counts.jobs == sum(job.queue == name for job in model.jobs.values())
            assert counts.scheduled == kept[name, ExecutionState.SCHEDULED]
            assert (
                counts.leased
                == kept[name, ExecutionState.LEASED] + kept[name, ExecutionState.RUNNING]
            )
            assert counts.succeeded == kept[name, ExecutionState.SUCCEEDED]
            assert counts.dead == kept[name, ExecutionState.DEAD]
            assert counts.cancelled == kept[name, ExecutionState.CANCELLED]

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
            recurring = self.pick(range(0, 4)) == 0
            return NewJob(
                self.pick(["mail", "sms"]),
                b"\xc0",
                first_ms=self.pick([0, 0, EPOCH_MS + 3_000]),
                delay_ms=self.pick([0, 0, 1_500]),
                timetable=Timetable((Every(1_000, 0),)) if recurring else None,
                retry=RetryPolicy(self.pick(range(1, 4)), 1_000, 200, 3_000, 0),
                idempotency_key=self.pick(["", "", "k1", "k2", "k3"]),
                fingerprint=self.pick([b"f1", b"f1", b"f2"]),
            )

        request_id = self.pick(["", "", "r1", "r2"])
        new_jobs = [new_job() for _ in range(self.pick(range(1, 3)))]
        expected = self.model.create(request_id, new_jobs)
        self.holds += [(job, nominal_ms) for _, job, nominal_ms in expected[1] if job]
        self.add(CreateJobs(request_id, new_jobs), expected)

    def claim(self):
        request_id = self.pick(["", "", "c1", "c2"])
        holds = [self.draw_hold() for _ in range(self.pick(range(1, 4)))]
        expected = self.model.claim(request_id, holds)
        self.tokens += [token for token in expected if token]
        self.add(Claim("w1", request_id, 1_000, holds), expected)

    def start(self):
        hold, token = self.draw_held()
        self.add(Start([(*hold, token)]), [self.model.start(hold, token)])

    def succeed(self):
        result = self.pick([b"\x01", b"\x02"])
        hold, token = self.draw_held()
        expected = self.model.report(hold, token, Outcome.SUCCEEDED, result)
        self.add(Succeed([Success(*hold, token, result)]), [expected])

    def fail(self):
        delay_ms, fatal = self.pick([-1, -1, 0, 2_000]), self.pick([False, True])
        hold, token = self.draw_held()
        expected = self.model.report(
            hold, token, Outcome.FAILED, delay_ms=delay_ms, non_retryable=fatal
        )
        item = Failure(*hold, token, retry_after_ms=delay_ms, non_retryable=fatal)
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

    def cancel(self):
        job, _ = self.draw_hold()
        self.add(CancelJobs([job]), [self.model.cancel(job)])

    def replay(self):
        dead = [one.hold for one in self.model.dead]
        hold = self.pick([*dead, *self.holds[-3:]])
        self.add(Replay([hold]), [self.model.replay(hold)])

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
        item = Advance(job.id, after_ms, nominals, planned_ms, 1, 2, self.pick([False, True]))
        expected = self.model.advance(item)
        if expected:
            self.holds += [(job.id, nominal_ms) for nominal_ms in nominals]
        self.add(AdvanceTimetables([item]), [expected])

    OPERATIONS = (
        *(create, claim, claim, claim, start, succeed, fail, fail),
        *(release, expire, expire, cancel, advance, replay),
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

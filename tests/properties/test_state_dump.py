"""A dump is of one position, whatever is applied while it is read.

Random lives of a state with something of everything, in which entries and chunks of a
dump come in random turns. What the dump gives must be, byte for byte, what a dump gave
that nothing interrupted, and must load to a state of the same digest.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from timeball.cluster.state import snapshot
from timeball.cluster.state.fifo import Fifo
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    BackfillJob,
    CancelJobs,
    Change,
    Claim,
    ClusterSettings,
    ConfigureQueue,
    CreateJobs,
    Every,
    Expire,
    Fail,
    Failure,
    Fate,
    InstructWorker,
    KeyRule,
    Lead,
    NewJob,
    Options,
    ParkTimetables,
    PauseJob,
    PurgeDead,
    PutJob,
    Release,
    Replay,
    ReportProgress,
    ResumeJob,
    RetryPolicy,
    SkipExpired,
    Start,
    Succeed,
    Success,
    Timetable,
    TriggerJob,
    UpdateJob,
    encode_entry,
)
from timeball.cluster.state.queue_settings import (
    QueueChange,
    RateLimit,
)
from timeball.cluster.state.records import ExecutionState

EPOCH_MS = 1_764_480_000_000
SETTINGS = ClusterSettings(
    keep_finished=40,
    keep_dead=15,
    idempotency_keys=90,
    request_memory=80,
    claim_memory=70,
    idempotency_keys_held=60,
)
KEY_RULES = [KeyRule(800), KeyRule(90_000, within_queue=True), *[KeyRule(until_ended=True)] * 3]
DEAD = ExecutionState.DEAD
POLICIES = [
    None,
    RetryPolicy(2, 1_000, 200, 3_000, 0),
    RetryPolicy(3, 0, backoff="list", delays_ms=(5, 900), non_retryable_errors=("F",)),
]


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Chunks of few records, so that much happens between the first and the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "RECORDS_PER_CHUNK", 5)
        yield


OPTIONS = [
    None,
    None,
    Options(requires=("gpu",), tags=("a", "b"), expires_after_ms=3_000),
    Options("key", expires_ms=EPOCH_MS + 20_000),
]
TIMETABLES = [
    Timetable((Every(1_000, 0),)),
    Timetable((Every(1_000, 0),), overlap="skip", pause_on_failure=True),
    Timetable((Every(1_000, 0),), overlap="cancel_running", jitter_ms=900),
]


class Life:
    """A state that random operations change; the index leaps, so that jobs lie far apart."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.machine = StateMachine()
        self.index = 0
        self.now_ms = EPOCH_MS
        self.apply(Lead("n1", SETTINGS))

    def apply(self, *operations):
        self.index += self.rng.choice([1, 1, 9])
        self.now_ms += self.rng.choice([0, 1, 700])
        applied = self.machine.apply(self.index, encode_entry(self.now_ms, operations))
        assert applied.halt is None, applied.halt

    def executions(self):
        return self.machine.list_executions(limit=10_000).items

    def some(self, *states):
        """A few executions in one of these states, or in any."""
        found = [one for one in self.executions() if not states or one.state in states]
        return self.rng.sample(found, min(len(found), self.rng.randint(1, 3)))

    def step(self):
        self.rng.choice(self.STEPS)(self)

    def create(self):
        jobs = [
            NewJob(
                self.rng.choice(["mail", "sms", f"q{self.rng.randrange(30)}"]),
                self.rng.randbytes(self.rng.choice([1, 1, 300])),
                delay_ms=self.rng.choice([0, 0, 5_000]),
                timetable=self.rng.choice([None, None, *TIMETABLES]),
                retry=self.rng.choice(POLICIES),
                **self.rng.choice([{}, {"idempotency_key": f"k{self.rng.randrange(500)}"}]),
                options=self.rng.choice(OPTIONS),
            )
            for _ in range(self.rng.randint(1, 6))
        ]
        jobs += [
            NewJob("mail", b"", idempotency_key=f"u{self.rng.randrange(40)}", key_rule=rule)
            for rule in self.rng.sample(KEY_RULES, 2)
        ]
        self.apply(CreateJobs(f"r{self.rng.randrange(10**6)}", jobs))

    def claim(self):
        due = self.some(ExecutionState.SCHEDULED)
        wanted = [(one.job.id, one.nominal_ms) for one in due]
        offered = self.rng.choice([(), ("gpu",)])
        self.apply(Claim("w", f"c{self.rng.randrange(10**6)}", 1_000, wanted, offered))

    def held(self):
        held = self.some(ExecutionState.LEASED, ExecutionState.RUNNING)
        return [(one.job.id, one.nominal_ms, one.token) for one in held]

    def start(self):
        self.apply(Start(self.held()))

    def report_progress(self):
        self.apply(ReportProgress([(*hold, b"half") for hold in self.held()]))

    def succeed(self):
        self.apply(Succeed([Success(*hold, b"done") for hold in self.held()]))

    def fail(self):
        fatal = self.rng.choice([False, True])
        self.apply(Fail([Failure(*hold, "E", "m", -1, fatal, 0, "b") for hold in self.held()]))

    def release(self):
        self.apply(Release(self.held()))

    def expire(self):
        self.apply(Expire([(*hold, False) for hold in self.held()]))

    def replay(self):
        self.apply(Replay([(one.job.id, one.nominal_ms, 0) for one in self.some(DEAD)]))

    def purge(self):
        self.apply(PurgeDead([(one.job.id, one.nominal_ms, one.token) for one in self.some(DEAD)]))

    def skip(self):
        waiting = self.some(ExecutionState.SCHEDULED)
        self.apply(SkipExpired([(one.job.id, one.nominal_ms) for one in waiting]))

    def cancel(self):
        self.apply(CancelJobs([one.job.id for one in self.some()]))

    def advance(self):
        standing = [job for _, jobs in self.machine.timetables.upto(2**62) for job in jobs]
        items = []
        for job in self.rng.sample(standing, min(len(standing), 4)):
            at_ms = job.planned_ms
            nominals = [at_ms + 1_000 * step for step in range(1, self.rng.randint(1, 5))]
            ended = self.rng.random() < 0.2
            fate = Fate(at_ms, at_ms + 6_000, 2, self.rng.choice([0, 1, 2]), "why")
            pending = self.rng.choice([None, None, fate])
            rest = ([fate], pending, 0, ended)
            items.append(Advance(job.id, job.version, at_ms, nominals, at_ms + 6_000, *rest))
        self.apply(AdvanceTimetables(items))

    def a_job(self):
        """A job, recurring if there is one; none of the kind may be left."""
        jobs = self.machine.list_jobs(limit=10_000).items
        recurring = [job for job in jobs if job.recurrence is not None]
        if not jobs:
            self.create()
            return self.a_job()
        return self.rng.choice(recurring or jobs)

    def pause(self):
        self.apply(PauseJob(self.a_job().id, "why"))

    def resume(self):
        self.apply(ResumeJob(self.a_job().id))

    def park(self):
        job = self.a_job()
        self.apply(ParkTimetables([(job.id, job.version, "why")]))

    def trigger(self):
        self.apply(TriggerJob(self.a_job().id, f"t{self.rng.randrange(10**6)}"))

    def backfill(self):
        job = self.a_job()
        self.apply(BackfillJob(job.id, job.version, [self.now_ms - 5_000, self.now_ms - 1]))

    def update(self):
        timetable = self.rng.choice(TIMETABLES)
        change = Change(self.rng.randbytes(30), priority=3, timetable=timetable)
        self.apply(UpdateJob(self.a_job().id, 0, change))

    def put(self):
        new = NewJob("mail", b"p", self.now_ms, timetable=self.rng.choice(TIMETABLES))
        self.apply(PutJob(f"n{self.rng.randrange(9)}", new))

    def configure(self):
        rate = RateLimit(self.rng.randrange(3), 50, self.rng.randint(1, 4))
        most = self.rng.randrange(3)
        change = QueueChange(self.rng.choice(["active", "paused"]), 9 * most, 2 * most, rate)
        name = f"q{self.rng.randrange(30)}"
        self.apply(ConfigureQueue(self.rng.choice(["mail", name, name]), -1, change))

    def instruct(self):
        told = self.rng.choice(["quiet", "terminate", ""])
        self.apply(InstructWorker(f"w{self.rng.randrange(9)}", told))

    STEPS = (
        *(configure, instruct),
        *(create, claim, claim, claim, start, report_progress, succeed, succeed, fail, fail),
        *(release, expire, replay, skip, cancel, advance, advance),
        *(pause, resume, park, trigger, backfill, update, put, purge),
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_dump_holds_the_position_at_which_it_began(seed):
    life = Life(seed)
    for _ in range(60):
        life.step()
    for _ in range(6):
        machine, rng = life.machine, life.rng
        digest, whole = machine.digest(), list(machine.dump())
        dump, chunks = machine.dump(), []
        burst = rng.choice([1, 3, 8])
        for chunk in dump:
            chunks.append(chunk)
            for _ in range(rng.randrange(burst + 1)):
                life.step()
        assert machine.digest() != digest
        assert chunks == whole
        loaded = StateMachine()
        loaded.load(chunks)
        assert loaded.digest() == digest


@pytest.mark.parametrize("seed", range(6))
def test_a_dump_keeps_nothing_that_it_has_read_or_will_not_read(seed):
    life = Life(seed)
    for _ in range(60):
        life.step()
    dump = life.machine.dump()
    for _ in dump:
        for _ in range(3):
            life.step()
    assert (dump._jobs, dump._executions) == ({}, {})
    assert life.machine._store.dump is None


def test_a_job_that_is_dropped_without_an_execution_is_kept_too():
    life = Life(0)
    life.apply(
        CreateJobs(
            "", [NewJob("q", bytes(1), first_ms=1, timetable=Timetable((Every(1_000, 0),)))] * 8
        )
    )
    recurring = life.executions()
    held = [(one.job.id, one.nominal_ms) for one in recurring]
    life.apply(Claim("w", "", 1_000, held))
    life.apply(
        Succeed([Success(*hold, one.token) for hold, one in zip(held, recurring, strict=True)])
    )
    keep_none = msgspec.structs.replace(SETTINGS, keep_finished=0)
    life.apply(Lead("n1", keep_none))
    life.apply(Lead("n1", SETTINGS))
    life.apply(CancelJobs([job for job, _ in held]))
    digest, dump = life.machine.digest(), life.machine.dump()
    chunks = [next(dump)]
    life.apply(Lead("n1", keep_none))
    assert life.machine.list_jobs().items == []
    loaded = StateMachine()
    loaded.load([*chunks, *dump])
    assert loaded.digest() == digest


def test_a_dump_that_is_closed_leaves_room_for_the_next():
    life = Life(2)
    for _ in range(20):
        life.step()
    dump = life.machine.dump()
    next(dump)
    dump.close()
    life.step()
    assert life.machine._store.dump is None
    assert list(dump) == []
    loaded = StateMachine()
    loaded.load(life.machine.dump())
    assert loaded.digest() == life.machine.digest()


def test_there_is_one_dump_at_a_time():
    machine = StateMachine()
    machine.dump()
    with pytest.raises(AssertionError):
        machine.dump()


def test_large_records_make_short_chunks(monkeypatch):
    monkeypatch.setattr(snapshot, "BYTES_PER_CHUNK", 1_000)
    monkeypatch.setattr(snapshot, "RECORDS_PER_CHUNK", 500)
    life = Life(3)
    life.apply(CreateJobs("", [NewJob("q", bytes(400))] * 20))
    assert max(map(len, life.machine.dump())) < 2_000


@given(st.lists(st.integers(-400, 400)))
def test_a_fifo_is_a_list_and_is_read_as_it_was(moves):
    fifo, plain = Fifo[int](), []
    readers = []
    for number, move in enumerate(moves):
        for step in range(max(move, 0)):
            fifo.append(number + step)
            plain.append(number + step)
        for _ in range(min(max(-move, 0), len(plain))):
            assert fifo.oldest == plain[0]
            assert fifo.take() == plain.pop(0)
        assert len(fifo) == len(plain)
        assert not plain or (fifo.oldest, fifo.newest) == (plain[0], plain[-1])
        readers.append((iter(fifo), list(plain)))
    for reader, expected in readers:
        assert list(reader) == expected

"""The state as bytes and back: everything, the same everywhere, and nothing unsound."""

from __future__ import annotations

import gc

import msgspec
import pytest

from timeball.cluster.state import snapshot
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    Cron,
    Every,
    Fate,
    InstructWorker,
    NewJob,
    Timetable,
)
from timeball.cluster.state.records import ExecutionState


@pytest.fixture
def full(log):
    """A state with something of everything in it."""
    recurring = log.create(timetable=Timetable((Cron("* * * * *", "Europe/Berlin"),)), queue="cron")
    job, first_ms = recurring
    log.apply(
        AdvanceTimetables(
            [
                Advance(
                    job,
                    1,
                    first_ms,
                    [first_ms + 1],
                    first_ms + 9,
                    fates=[Fate(first_ms + 2, first_ms + 9, 1, 2)],
                )
            ]
        )
    )
    ended = log.create(timetable=Timetable((Every(1_000, 0),)), queue="cron")
    log.create_all(
        NewJob("q", b"1", idempotency_key="k", fingerprint=b"f", delay_ms=5), request_id="r"
    )
    failed, token = log.claimed()
    log.fail(failed, token, error_type="E", message="m")
    released, token = log.claimed()
    log.release(released, token)
    died, token = log.claimed()
    log.fail(died, token, non_retryable=True)
    log.pass_ms(1)
    died, token = log.claimed()
    log.fail(died, token, non_retryable=True)
    replayed, token = log.claimed()
    log.fail(replayed, token, non_retryable=True)
    log.replay(replayed)
    done, token = log.claimed()
    log.succeed(done, token, result=b"\x07")
    cancelled = log.create()
    log.cancel(cancelled)
    log.cancel(ended)
    held = [log.create() for _ in range(3)]
    tokens = log.claim(*held, request_id="c")
    log.start(held[1], tokens[1])
    log.cancel(held[2])
    log.apply(InstructWorker("w1", "quiet"))
    log.pass_ms(1)
    log.apply(InstructWorker("w2", "terminate"))
    return log


def restored(machine):
    other = StateMachine()
    other.load(list(machine.dump()))
    return other


def test_a_restored_state_dumps_to_the_same_bytes(full):
    other = restored(full.machine)
    assert list(other.dump()) == list(full.machine.dump())
    assert other.digest() == full.machine.digest()


def test_a_restored_state_behaves_the_same(full):
    twin = type(full)()
    twin.machine, twin.index, twin.now_ms = restored(full.machine), full.index, full.now_ms
    for log in (full, twin):
        for execution in list(log.machine.leased.values()):
            hold = (execution.job.id, execution.nominal_ms)
            log.pass_ms(10)
            log.expire(hold, execution.token)
        log.create_all(NewJob("q", b"1", idempotency_key="k", fingerprint=b"f"), request_id="x")
        log.create_all(NewJob("q", b"1"), request_id="r")
        log.create()
        log.settings(keep_finished=1, keep_dead=0)
    assert twin.machine.digest() == full.machine.digest()
    assert twin.applied.verdicts == full.applied.verdicts


def test_indexes_are_derived_anew(full):
    other = restored(full.machine)
    assert len(other.pending) == len(full.machine.pending)
    assert len(other.timetables) == len(full.machine.timetables) == 1
    assert list(other.leased) == list(full.machine.leased)
    assert other.remembered_claim("c") == full.machine.remembered_claim("c")
    for name, counts in full.machine.queues.items():
        assert other.queues[name] == counts


def test_an_empty_state_can_be_restored():
    assert restored(StateMachine()).digest() == StateMachine().digest()


def test_chunks_hold_a_bounded_number_of_records(log, monkeypatch):
    monkeypatch.setattr(snapshot, "RECORDS_PER_CHUNK", 10)
    log.create_all(*[NewJob("q", b"")] * 25)
    job, first_ms = log.create(timetable=Timetable((Cron("* * * * *"),)))
    nominals = [first_ms + step for step in range(1, 25)]
    log.apply(AdvanceTimetables([Advance(job, 1, first_ms, nominals, nominals[-1])]))
    sizes = [len(msgspec.msgpack.decode(chunk)[1]) for chunk in log.machine.dump()]
    assert max(sizes[1:-1]) == 10
    assert restored(log.machine).digest() == log.machine.digest()


def test_loading_lets_go_of_the_state_before(full, bytes_grown_by):
    """Jobs and executions refer to each other, and the collector does not see them."""
    chunks = list(full.machine.dump())
    machine = StateMachine()

    def load(times):
        for _ in range(times // 10):
            machine.load(chunks)
        gc.collect()

    assert bytes_grown_by(load) < 50_000


def test_the_state_goes_on_while_another_is_loaded(full):
    chunks = list(full.machine.dump())
    other = type(full)()
    other.create(idempotency_key="k")
    digest = other.machine.digest()
    loading = other.machine.loading()
    for chunk in chunks:
        loading.add(chunk)
        assert other.machine.digest() == digest
    before = other.machine._store
    remains = loading.finish()
    assert other.machine.digest() == full.machine.digest()
    assert len(before.jobs) == len(before.pending) == before.keys.windowed == 1
    assert list(remains)
    assert len(before.jobs) == len(before.pending) == before.keys.windowed == 0


def test_a_dump_that_is_not_whole_changes_nothing(full):
    other = StateMachine()
    loading = other.loading()
    for chunk in list(full.machine.dump())[:-1]:
        loading.add(chunk)
    with pytest.raises(ValueError, match="state dump: the end is missing"):
        loading.finish()
    assert other.digest() == StateMachine().digest()


def test_loading_ends_a_halt(full):
    chunks = list(full.machine.dump())
    full.machine.apply(full.index + 1, b"garbage")
    full.machine.load(chunks)
    full.create()


def test_a_dump_that_is_cut_or_shuffled_is_refused_and_the_old_state_stays(full):
    chunks = list(full.machine.dump())
    other = StateMachine()
    before = other.digest()
    for at in range(len(chunks)):
        with pytest.raises(ValueError, match="state dump"):
            other.load(chunks[:at] + chunks[at + 1 :])
        with pytest.raises(ValueError, match="state dump"):
            other.load(chunks[:at])
        with pytest.raises(ValueError, match="state dump"):
            other.load([*chunks[:at], chunks[at], *chunks[at:]])
        with pytest.raises(ValueError, match="state dump"):
            other.load([*chunks[:at], chunks[at][:-1], *chunks[at + 1 :]])
    assert other.digest() == before


def altered(machine, kind, change):
    """The dump of `machine` with the records of one kind changed in place."""
    chunks = []
    for chunk in machine.dump():
        found, records = msgspec.msgpack.decode(chunk)
        if found == kind:
            change(records)
        chunks.append(msgspec.msgpack.encode([found, records]))
    return chunks


def held_one(records):
    states = (ExecutionState.LEASED, ExecutionState.RUNNING)
    return next(job[-1] for job in records if job[-1] and job[-1][4] in states)


def in_state(records, state):
    return next(job for job in records if job[-1] and job[-1][4] == state)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (snapshot.HEADER, lambda header: header.__setitem__(0, "other")),
        (snapshot.HEADER, lambda header: header.__setitem__(1, snapshot.VERSION + 1)),
        (snapshot.HEADER, lambda header: header.__setitem__(2, 1)),
        (snapshot.HEADER, lambda header: header.__setitem__(3, -1)),
        (snapshot.QUEUES, lambda queues: queues.__setitem__(0, ["none", 0, 0, 0, 0])),
        (snapshot.QUEUES, lambda queues: queues.__setitem__(0, queues[1])),
        (snapshot.JOBS, lambda jobs: jobs.reverse()),
        (snapshot.JOBS, lambda jobs: jobs[0].__setitem__(9, 1)),
        (snapshot.JOBS, lambda jobs: jobs[0].__setitem__(10, -1)),
        (snapshot.JOBS, lambda jobs: jobs[0].__setitem__(11, -1)),
        (snapshot.JOBS, lambda jobs: jobs[2].__setitem__(-1, None)),
        (snapshot.JOBS, lambda jobs: in_state(jobs, ExecutionState.SUCCEEDED).__setitem__(9, 0)),
        (snapshot.JOBS, lambda jobs: jobs[1].__setitem__(9, 0)),
        (snapshot.JOBS, lambda jobs: held_one(jobs).__setitem__(5, 5)),
        (snapshot.JOBS, lambda jobs: held_one(jobs).__setitem__(4, 0)),
        (snapshot.JOBS, lambda jobs: held_one(jobs).__setitem__(0, 1)),
        (snapshot.JOBS, lambda jobs: held_one(jobs).__setitem__(8, 1)),
        (snapshot.JOBS, lambda jobs: held_one(jobs).__setitem__(3, 0)),
        (snapshot.EXECUTIONS, lambda executions: executions.reverse()),
        (snapshot.EXECUTIONS, lambda executions: executions[0].__setitem__(0, 1)),
        (snapshot.FINISHED, lambda places: places.reverse()),
        (snapshot.FINISHED, lambda places: places[0].__setitem__(2, 0)),
        (snapshot.FINISHED, lambda places: places[0].__setitem__(0, 1)),
        (snapshot.DEAD, lambda places: places[0].__setitem__(1, 1)),
        (snapshot.DEAD, lambda places: places[0].__setitem__(0, 1)),
        (snapshot.DEAD, lambda places: places.reverse()),
        (snapshot.DEAD, lambda places: places.__setitem__(1, places[0])),
        (snapshot.KEYS, lambda keys: keys[0].__setitem__(1, 2**62)),
        (snapshot.REQUESTS, lambda requests: requests[0][2][0].__setitem__(1, 2**63)),
        (snapshot.CLAIMS, lambda claims: claims[0][2].__setitem__(0, 2**63)),
        (snapshot.INSTRUCTED, lambda told: told[0].__setitem__(0, "")),
        (snapshot.INSTRUCTED, lambda told: told[0].__setitem__(1, "sing")),
        (snapshot.INSTRUCTED, lambda told: told[1].__setitem__(0, "w1")),
        (snapshot.INSTRUCTED, lambda told: told[1].__setitem__(2, 2**62)),
        (snapshot.INSTRUCTED, lambda told: told.reverse()),
    ],
)
def test_a_state_that_the_rules_can_not_reach_is_refused(full, kind, change):
    full.pass_ms(1)
    full.cancel(full.create())
    with pytest.raises(ValueError, match="state dump"):
        StateMachine().load(altered(full.machine, kind, change))

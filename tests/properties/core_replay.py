"""What the core makes of given work, told so that two builds of it can be compared.

Run as a program it reads a `Work` from its input and writes what came of it, in MessagePack.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterable
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path

import msgspec
from core_days import a_day

from timeball.cluster.state.backoff import backoff_ms
from timeball.cluster.state.jitter import jitter_offset
from timeball.cluster.state.keys import short_fingerprint
from timeball.cluster.state.machine import Applied, StateMachine
from timeball.cluster.state.operations import BACKOFFS, RetryPolicy
from timeball.cluster.state.records import Execution, Job
from timeball.wheel import ReadySets, TimeBuckets, TimingWheel, partition_of, partition_of_numbers

DIGEST_EVERY = 20
NUMBERS = [
    *(0, 1, 2, 5, 63, 64, 255, 256, 1_000, 4_095, 2**26, 2**31, 2**53, 10**15),
    # Where a machine word of the compiled core ends, with the bit that it keeps for itself.
    *(2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80),
]


class Life(msgspec.Struct, array_like=True):
    """A state from its dump (empty: a new one), and the entries that it is to apply."""

    dump: list[bytes]
    entries: list[tuple[int, bytes]]


class Work(msgspec.Struct, array_like=True):
    """All that is to be done, and which modules are asked whether they are compiled."""

    modules: list[str]
    lives: list[Life]
    days: list[int]
    """Seeds of days of dispatch (see `core_days`), and of sums and queues."""
    sums: list[int]


class Came(msgspec.Struct, array_like=True):
    """What came of it, in words: what differs is to be read in a report of a test."""

    compiled: list[str]
    halts: list[int]
    lives: list[list[str]]
    days: list[list[str]]
    sums: list[list[str]]


def are_compiled(modules: Iterable[str]) -> list[str]:
    """Which of these modules run compiled."""
    return [name for name in modules if Path(_file_of(name)).suffix not in SOURCE_SUFFIXES]


def _file_of(name: str) -> str:
    return importlib.import_module(name).__file__ or ""


def do(work: Work) -> Came:
    """All of it in this process."""
    lives = [live(life) for life in work.lives]
    return Came(
        are_compiled(work.modules),
        [halts for halts, _ in lives],
        [told for _, told in lives],
        [a_day(seed) for seed in work.days],
        [compute(random.Random(seed)) for seed in work.sums],
    )


def live(life: Life) -> tuple[int, list[str]]:
    """Apply the entries one after the other: how many halted, what each came to, and the state now
    and then."""
    machine = StateMachine()
    if life.dump:
        machine.load(life.dump)
    halts = 0
    told: list[str] = []
    for number, (index, entry) in enumerate(life.entries, 1):
        applied = machine.apply(index, entry)
        told.append(tell(applied))
        if applied.halt is not None:
            # It applies nothing any more; the rest is for one that did not see this entry.
            halts += 1
            chunks = list(machine.dump())
            machine = StateMachine()
            machine.load(chunks)
        if number % DIGEST_EVERY == 0 or number == len(life.entries) or applied.halt is not None:
            told.append(tell_state(machine))
    return halts, told


def tell(applied: Applied) -> str:
    """All that applying an entry says. By `repr`, which tells a member of an enum from a number."""
    touched = [
        f"{one.job.id}-{one.nominal_ms}:{one.state!r}" if isinstance(one, Execution) else one.id
        for one in applied.touched
    ]
    # The numbers of what happened are numbers in one build, and members of enums in the other.
    happened = [[str(part) for part in map(_plain, one)] for one in applied.happened]
    encoded = [msgspec.msgpack.encode(verdict) for verdict in applied.verdicts]
    return repr(
        (
            *(applied.halt, applied.previous, applied.verdicts, encoded, touched),
            *(list(applied.queues), list(applied.workers)),
            *(happened, applied.happened.pack()),
        )
    )


def _plain(part: object) -> object:
    return int(part) if isinstance(part, int) else part


def tell_state(machine: StateMachine) -> str:
    """Everything that a state holds, by its dump, and what derives from it, by its readers."""
    chunks = list(machine.dump())
    other = StateMachine()
    other.load(chunks)
    assert list(other.dump()) == chunks
    jobs = machine.list_jobs(limit=100)
    executions = machine.list_executions(limit=100)
    dead = machine.list_dead(limit=100)
    return repr(
        (
            *(machine.digest(), chunks, machine.counters, machine.log_time_ms, machine.level),
            *(_names(machine.pending), _names(machine.timetables)),
            *(list(machine.leased), machine.paused_timetables, machine.parked_timetables),
            *(dict(machine.queues), dict(machine.configured), dict(machine.instructions)),
            *(machine.windowed_keys, machine.held_keys, machine.catch_up_room(machine.log_time_ms)),
            *([job.id for job in jobs.items], jobs.next_after),
            *([_name(one) for one in executions.items], executions.next_after),
            *([_name(one) for one in dead.items], dead.next_after),
            [[_name(one) for one in machine.executions_of(job)] for job in jobs.items],
            [machine.key_of(job) is not None for job in jobs.items],
        )
    )


def _names(buckets: TimeBuckets[Execution] | TimeBuckets[Job]) -> list[object]:
    return [[start, [_name(one) for one in items]] for start, items in buckets.upto(2**90)]


def _name(record: Execution | Job) -> object:
    return record.id if isinstance(record, Job) else (record.job.id, record.nominal_ms)


def compute(rng: random.Random) -> list[str]:
    """What the functions on numbers answer, and wheels, buckets and ready queues in use."""
    told: list[str] = []
    for _ in range(100):
        policy = RetryPolicy(
            initial_ms=rng.choice(NUMBERS),
            multiplier_pct=rng.choice([1, 99, 100, 150, 10_000]),
            max_ms=rng.choice(NUMBERS),
            jitter_pct=rng.randint(0, 100),
            backoff=rng.choice(BACKOFFS),
            delays_ms=tuple(rng.choices(NUMBERS, k=rng.randint(1, 4))),
        )
        one, other, attempt = (rng.choice(NUMBERS) for _ in range(3))
        partitions = rng.choice([1, 2, 16, 17])
        told.append(
            repr(
                (
                    backoff_ms(policy, one, -other, attempt),
                    jitter_offset(one, other),
                    partition_of_numbers(one, -other, partitions),
                    partition_of(rng.choice([one, str(other), "é\ud800", b"\xff"]), partitions),
                    short_fingerprint(rng.randbytes(rng.choice([0, 1, 7, 8, 9, 32]))),
                )
            )
        )
    return [*told, *_wheel(rng), *_buckets(rng), *_ready(rng)]


def _wheel(rng: random.Random) -> Iterable[str]:
    wheel: TimingWheel[int] = TimingWheel(now := rng.choice(NUMBERS), moves_limit=7)
    timers = []
    for item in range(400):
        due_ms = now + rng.choice([-1, 1]) * rng.choice(NUMBERS) + rng.randint(-3, 3)
        timers.append(wheel.insert(rng.choice([now, due_ms]), item))
        if rng.random() < 0.3:
            yield repr(wheel.cancel(rng.choice(timers)))
        if rng.random() < 0.3:
            now += rng.choice([-5, 0, 1, 1, 300, rng.choice(NUMBERS)])
            now = max(now, 0)
            yield repr((wheel.advance(now, rng.choice([1, 3])), wheel.next_expiry(), len(wheel)))
            yield repr(list(wheel.at(now)))


def _buckets(rng: random.Random) -> Iterable[str]:
    buckets: TimeBuckets[int] = TimeBuckets(rng.choice([1, 1_000]))
    for _ in range(400):
        due_ms, item = rng.choice([-1, 1]) * rng.choice(NUMBERS), rng.randrange(20)
        if rng.random() < 0.7:
            buckets.add(due_ms, item)
        else:
            yield repr(buckets.discard(due_ms, item))
        yield repr((len(buckets), buckets.first(), buckets.items(buckets.start_of(due_ms))))
    for from_ms in (None, -(2**80), 0, 2**62):
        yield repr(list(buckets.upto(rng.choice(NUMBERS), from_ms=from_ms)))


def _ready(rng: random.Random) -> Iterable[str]:
    partitions = rng.choice([1, 4, 70])
    ready: ReadySets[int] = ReadySets(partitions)
    for item in range(400):
        requires = rng.choice([(), (), ("a",), ("a", "b")])
        due_ms = rng.choice([-1, 1]) * rng.choice(NUMBERS)
        place = (rng.randrange(partitions), rng.randrange(10))
        ready.of(requires).push(item, *place, due_ms, rng.choice(NUMBERS))
        offered = frozenset(rng.choice([(), ("a",), ("b", "a")]))
        if rng.random() < 0.4:
            yield repr(ready.take(rng.randint(0, 3), offered))
        yield repr((len(ready), ready.has(offered), ready.count(offered)))


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.msgpack.encode(do(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Work)))
    )

"""RAFT-08: whatever reaches `apply`, it answers, and a halt changes nothing.

Garbage bytes, damaged entries and well-formed operations with hostile values. A halt
must leave the state as it was; anything else must leave a state that can be dumped,
loaded and used.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    AnyOperation,
    Claim,
    ClusterSettings,
    ConfigureQueue,
    CreateJobs,
    Every,
    Fail,
    Failure,
    InstructWorker,
    KeyRule,
    Lead,
    NewJob,
    ReportProgress,
    Succeed,
    Success,
    Timetable,
    encode_entry,
)
from timeball.cluster.state.queue_settings import (
    QueueChange,
    RateLimit,
)
from timeball.cluster.state.restore import LevelTooHigh

EPOCH_MS = 1_764_480_000_000


def a_state() -> StateMachine:
    """A scheduled, a leased, a succeeded, a dead and a recurring one, and a queue with limits;
    ids as in the fuzz."""
    machine = StateMachine()
    jobs = [NewJob("q", b"", idempotency_key=f"k{n}", fingerprint=b"f") for n in range(2)]
    once = KeyRule(until_ended=True)
    jobs += [NewJob("q", b"", idempotency_key=f"k{n}", key_rule=once) for n in (2, 3)]
    jobs.append(NewJob("q", b"", timetable=Timetable((Every(1_000, 0),))))
    holds = [(2 * 4096 + n, EPOCH_MS) for n in range(5)]
    for index, operation in enumerate(
        [
            Lead("n1", ClusterSettings()),
            CreateJobs("r1", jobs),
            Claim("w1", "c1", 1_000, holds[1:4]),
            ReportProgress([(*holds[1], 3 * 4096, b"\x07")]),
            Succeed([Success(*holds[2], 3 * 4096 + 1)]),
            Fail([Failure(*holds[3], 3 * 4096 + 2, non_retryable=True)]),
            ConfigureQueue("q", 0, QueueChange("", 2, 1, RateLimit(1, 1_000, 5))),
            InstructWorker("w1", "quiet"),
        ],
        1,
    ):
        assert machine.apply(index, encode_entry(EPOCH_MS, [operation])).halt is None
    return machine


DUMP = list(a_state().dump())
DIGEST = a_state().digest()


def apply_fuzz(entry: bytes) -> StateMachine:
    machine = StateMachine()
    machine.load(DUMP)
    index = machine.applied_index + 1
    applied = machine.apply(index, entry)
    if applied.halt is not None:
        assert machine.digest() == DIGEST
        assert (applied.verdicts, applied.touched) == ([], [])
    else:
        again = StateMachine()
        again.load(list(machine.dump()))
        assert again.digest() == machine.digest()
        after = encode_entry(EPOCH_MS, [Lead("n1", ClusterSettings()), CreateJobs("", [])])
        assert machine.apply(index + 1, after).halt is None
    return machine


INTEGERS = [
    *(0, 1, 2, 5, 100, -1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), 2**64 - 1),
    *range(2 * 4096, 2 * 4096 + 6),
    *range(3 * 4096, 3 * 4096 + 4),
    *(EPOCH_MS - 1, EPOCH_MS, EPOCH_MS + 1, EPOCH_MS + 1_000),
]
TEXTS = ["", "q", "k1", "k2", "r1", "c1", "x" * 300, "é\x00", "UTC"]
BLOBS = [b"", b"f", b"g", bytes(100), bytes(1_100)]
WRONG = [None, True, 1.5, float("nan"), "text", b"bytes", [], [[[]]], {}, {"a": 1}, -1]


def hostile(kind: msgspec.inspect.Type, rng: random.Random, wrong: float) -> object:
    """A value of a field's type as it stands in an entry, now and then of a wrong type."""
    if rng.random() < wrong:
        return rng.choice(WRONG)
    match kind:
        case msgspec.inspect.IntType():
            return rng.choice(INTEGERS)
        case msgspec.inspect.StrType():
            return rng.choice(TEXTS)
        case msgspec.inspect.BytesType():
            return rng.choice(BLOBS)
        case msgspec.inspect.BoolType():
            return rng.choice([True, False])
        case msgspec.inspect.NoneType():
            return None
        case msgspec.inspect.TupleType(item_types=items):
            return [hostile(item, rng, wrong) for item in items]
        case (
            msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item)
        ):
            return [hostile(item, rng, wrong) for _ in range(rng.randrange(4))]
        case msgspec.inspect.UnionType(types=types):
            return hostile(rng.choice(types), rng, wrong)
        case msgspec.inspect.StructType(fields=fields, tag=tag):
            # Fields at the end may be missing, as from an older release.
            least = sum(field.required for field in fields)
            given_fields = fields[: rng.randint(least, len(fields))]
            values = [hostile(field.type, rng, wrong) for field in given_fields]
            return values if tag is None else [tag, *values]
    raise AssertionError(f"no values for {kind}")


OPERATIONS = msgspec.inspect.type_info(AnyOperation)


@pytest.mark.parametrize("wrong", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(4))
def test_raft_08_hostile_operations_are_refused_or_halt(seed, wrong):
    rng = random.Random(seed)
    applied = 0
    for _ in range(100):
        operations = [hostile(OPERATIONS, rng, wrong) for _ in range(rng.randint(1, 3))]
        machine = apply_fuzz(msgspec.msgpack.encode([rng.choice(INTEGERS[:12]), operations]))
        applied += machine.halted is None
        assert machine.halted is None or "Error" not in machine.halted.replace(
            "ValidationError", ""
        ).replace("DecodeError", "")
    assert applied > 10


@given(st.binary(max_size=200))
def test_raft_08_garbage_bytes_halt_and_change_nothing(garbage):
    apply_fuzz(garbage)


SOUND = encode_entry(
    EPOCH_MS + 1,
    [
        CreateJobs("r2", [NewJob("q", b"payload", idempotency_key="k9", fingerprint=b"f")]),
        Claim("w", "c2", 1_000, [(2 * 4096, EPOCH_MS)]),
        Succeed([Success(2 * 4096 + 1, EPOCH_MS, 3 * 4096, b"ok")]),
    ],
)


@given(st.integers(0, len(SOUND) - 1), st.integers(0, 255), st.booleans())
@settings(max_examples=100)
def test_raft_08_a_damaged_entry_is_applied_whole_or_not_at_all(at, byte, cut):
    apply_fuzz(SOUND[:at] if cut else SOUND[:at] + bytes([byte]) + SOUND[at + 1 :])


def test_every_operation_is_fuzzed():
    assert isinstance(OPERATIONS, msgspec.inspect.UnionType)
    assert len(OPERATIONS.types) == 24


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_a_garbage_dump_is_refused(chunks):
    with pytest.raises(ValueError, match="state dump"):
        StateMachine().load(chunks)


@given(st.data())
@settings(max_examples=100)
def test_a_damaged_dump_is_refused_or_sound(data):
    at = data.draw(st.integers(0, len(DUMP) - 1))
    chunk = bytearray(DUMP[at])
    chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    machine = StateMachine()
    try:
        machine.load([*DUMP[:at], bytes(chunk), *DUMP[at + 1 :]])
    except (ValueError, LevelTooHigh):
        return
    again = StateMachine()
    again.load(list(machine.dump()))
    assert again.digest() == machine.digest()

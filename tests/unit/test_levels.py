"""The feature level of the state: what it lets through, and what stops a node (OPER-03).

The next release is played by patched tables: it knows one more operation, of level 2.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from timeball.client.errors import Conflict
from timeball.cluster.http.problems import as_timeball_error
from timeball.cluster.levels import common_level, objection_at
from timeball.cluster.raft.errors import LevelTooLow
from timeball.cluster.raft.interface import PeerStatus
from timeball.cluster.state import machine as machine_module
from timeball.cluster.state import operations
from timeball.cluster.state.dumped import Header
from timeball.cluster.state.levels import FIRST_LEVEL, LEVELS, SUPPORTED_LEVEL
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    AnyOperation,
    CreateJobs,
    NewJob,
    Operation,
    RaiseLevel,
    encode_entry,
)
from timeball.cluster.state.restore import LevelTooHigh

NOW_MS = 1_764_480_000_000


class Tally(Operation, frozen=True, tag=200):
    """An operation of level 2, which no release has."""

    count: int


class EntryOfNext(msgspec.Struct, frozen=True, array_like=True, gc=False):
    log_time_ms: int
    operations: list[AnyOperation | Tally]


def tally(store: Any, operation: Tally) -> int:
    store.counters.duplicates += operation.count
    return store.counters.duplicates


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEVELS, Tally, 2)
    monkeypatch.setitem(machine_module._RULES, Tally, tally)
    monkeypatch.setattr(operations, "_decoder", msgspec.msgpack.Decoder(EntryOfNext))


def apply(machine: StateMachine, index: int, *ops: Operation) -> Any:
    return machine.apply(index, encode_entry(NOW_MS, ops))  # type: ignore[arg-type]


def test_each_operation_has_a_level_a_rule_and_a_number_of_its_own():
    kinds = set(get_args(AnyOperation))
    assert kinds == set(LEVELS) == set(machine_module._RULES)
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert sorted(tags) == list(range(1, len(kinds) + 1)), "numbers are never reused or skipped"
    assert {FIRST_LEVEL} <= set(LEVELS.values())
    assert max(LEVELS.values()) <= SUPPORTED_LEVEL, "each release can apply what it knows"


@pytest.mark.usefixtures("next_release")
def test_oper_03_a_raise_is_conditional_and_counts_from_the_next_entry_on():
    machine = StateMachine(supported_level=2)
    assert machine.level == 1
    assert apply(machine, 1, RaiseLevel(2, 3)).verdicts == [False]
    assert apply(machine, 2, RaiseLevel(1, 1), RaiseLevel(1, 0)).verdicts == [False, False]
    assert machine.level == 1
    assert apply(machine, 3, RaiseLevel(1, 2), RaiseLevel(1, 2)).verdicts == [True, False]
    assert machine.level == 2
    assert apply(machine, 4, Tally(3)).verdicts == [3]


@pytest.mark.usefixtures("next_release")
@pytest.mark.parametrize("supported", [1, 2])
def test_oper_03_an_operation_above_the_level_stops_old_and_new_releases_alike(supported):
    machine = StateMachine(supported)
    digest = machine.digest()
    applied = apply(machine, 1, RaiseLevel(1, supported), Tally(1))
    assert applied.halt == (
        "entry 1: Tally needs feature level 2; the cluster is at level 1, and this release"
        f" supports level {supported}"
    )
    assert machine.digest() == digest, "nothing of the entry is applied"


def test_oper_03_an_unknown_operation_stops_the_node_and_is_never_skipped():
    machine = StateMachine()
    digest = machine.digest()
    applied = apply(machine, 1, CreateJobs("", [NewJob("q", b"")]), Tally(1))
    assert "200" in applied.halt
    assert apply(machine, 2).halt == applied.halt, "the halt is for good"
    assert machine.digest() == digest


def test_oper_03_a_raise_beyond_its_release_stops_the_node_and_names_both_levels():
    machine = StateMachine(supported_level=1)
    digest = machine.digest()
    applied = apply(machine, 1, RaiseLevel(1, 3))
    assert applied.halt == (
        "entry 1 raises the cluster to feature level 3; this release supports level 1: run one"
        " here that supports level 3"
    )
    assert machine.digest() == digest
    stale = StateMachine(supported_level=1)
    assert apply(stale, 1, RaiseLevel(2, 3)).halt is None, "a raise that does nothing stops nobody"


@pytest.mark.usefixtures("next_release")
def test_oper_03_the_level_is_a_part_of_the_state_and_of_its_dump():
    raised, plain = StateMachine(2), StateMachine(2)
    apply(raised, 1, RaiseLevel(1, 2))
    apply(plain, 1)
    assert raised.digest() != plain.digest()
    loaded = StateMachine(2)
    loaded.load(raised.dump())
    assert loaded.level == 2
    assert loaded.digest() == raised.digest()
    assert apply(loaded, 2, Tally(1)).verdicts == [1]

    old = StateMachine(1)
    with pytest.raises(LevelTooHigh, match="at feature level 2; this release supports level 1"):
        old.load(raised.dump())
    assert old.applied_index == 0
    assert old.halted is None


def test_a_dump_from_before_there_were_levels_is_of_the_first():
    machine = StateMachine()
    apply(machine, 1, CreateJobs("", [NewJob("q", b"")]))
    header, *rest = machine.dump()
    kind, fields = msgspec.msgpack.decode(header)
    loaded = StateMachine()
    place = Header.__struct_fields__.index("level")
    loaded.load([msgspec.msgpack.encode([kind, fields[:place]]), *rest])
    assert loaded.level == 1
    with pytest.raises(ValueError, match="there is no feature level 0"):
        loaded.load([msgspec.msgpack.encode([kind, [*fields[:place], 0]]), *rest])


@pytest.mark.usefixtures("next_release")
def test_oper_03_a_leader_names_what_it_does_not_propose():
    machine = StateMachine(2)
    objection = objection_at(machine)
    assert objection(CreateJobs("", [])) is None
    error = objection(Tally(1))
    assert isinstance(error, LevelTooLow)
    assert (error.needed, error.level) == (2, 1)
    told = as_timeball_error(error)
    assert isinstance(told, Conflict)
    assert "Tally needs feature level 2; the cluster is at level 1" in told.detail
    apply(machine, 1, RaiseLevel(1, 2))
    assert objection(Tally(1)) is None


@pytest.mark.parametrize(
    ("own", "peers", "common"),
    [(2, [2, 3], 2), (3, [2, 3], 2), (1, [2, 2], 1), (2, [2, None], None), (2, [], 2)],
)
def test_all_members_must_have_told_their_level(own, peers, common):
    statuses = [PeerStatus(f"n{at}", True, 1, 0.0, level=level) for at, level in enumerate(peers)]
    replica: Any = SimpleNamespace(peers=lambda: statuses)
    assert common_level(own, replica) == common

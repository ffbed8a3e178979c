"""OPER-03: journals that earlier releases recorded are replayed to the same state by this one.

A journal here is never recorded anew. If its outcome changes, clusters whose nodes run this
release and the one before would come to different states.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from timeball.cluster.state.levels import SUPPORTED_LEVEL
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    AnyOperation,
    At,
    Cron,
    Dates,
    Every,
    Window,
    decode_entry,
)
from timeball.cluster.state.records import Outcome

HERE = Path(__file__).parent
JOURNALS = sorted(HERE.glob("level-*.journal"))


def _load_record() -> Any:
    spec = importlib.util.spec_from_file_location("golden_record", HERE / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record = _load_record()


@pytest.mark.parametrize("journal", JOURNALS, ids=lambda path: path.stem)
def test_oper_03_a_recorded_journal_is_replayed_to_the_same_state(journal: Path) -> None:
    expected = json.loads(journal.with_suffix(".json").read_text("utf-8"))
    entries = record.load(journal)
    assert len(entries) >= 500
    machine = StateMachine()
    assert record.replay(entries, machine) == expected
    # And so by a node that starts from a snapshot in the middle of it.
    half = len(entries) // 2
    first, second = StateMachine(), StateMachine()
    record.replay(entries[:half], first)
    second.load(first.dump())
    assert record.replay(entries[half:], second) == expected


def test_oper_03_every_level_has_its_journal() -> None:
    assert [path.stem for path in JOURNALS] == [f"level-{at + 1}" for at in range(SUPPORTED_LEVEL)]


def test_oper_03_the_journals_hold_something_of_everything() -> None:
    operations: set[type] = set()
    parts: set[type] = set()
    machine = StateMachine()
    outcomes: set[Outcome] = set()
    totals: dict[str, int] = {}
    for journal in JOURNALS:
        machine = StateMachine()
        for index, entry in record.load(journal):
            for operation in decode_entry(entry).operations:
                operations.add(type(operation))
                for job in getattr(operation, "jobs", ()):
                    timetable = getattr(job, "timetable", None)
                    if timetable is not None:
                        parts |= {type(one) for one in (*timetable.rules, *timetable.exclusions)}
            applied = machine.apply(index, entry)
            for touched in applied.touched:
                for attempt in getattr(touched, "attempts", None) or ():
                    outcomes.add(attempt.outcome)
        for name, total in record.outcome(machine)["totals"].items():
            totals[name] = totals.get(name, 0) + total
    assert operations == set(get_args(AnyOperation))
    assert parts == {Every, Cron, At, Dates, Window}
    assert outcomes >= set(Outcome) - {Outcome.CANCELLED}, "which no rule gives as yet"
    assert all(totals.values()), totals

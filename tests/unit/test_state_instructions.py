"""What workers are told, and for how long."""

from __future__ import annotations

import pytest

from timeball.cluster.state import limits
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import InstructWorker
from timeball.cluster.state.verdicts import ChangeStatus


def tell(log, worker="w1", instruction="quiet"):
    return log.apply(InstructWorker(worker, instruction))[0]


def told(log):
    return {worker: instruction for worker, (instruction, _) in log.machine.instructions.items()}


def test_a_worker_is_told_the_latest_until_it_is_taken_back(log):
    assert tell(log) is ChangeStatus.CHANGED
    assert tell(log, instruction="terminate") is ChangeStatus.CHANGED
    assert tell(log, "w2") is ChangeStatus.CHANGED
    assert told(log) == {"w1": "terminate", "w2": "quiet"}
    assert tell(log, instruction="") is ChangeStatus.CHANGED
    assert told(log) == {"w2": "quiet"}
    assert tell(log, instruction="") is ChangeStatus.UNCHANGED


@pytest.mark.parametrize(
    ("worker", "instruction"), [("", "quiet"), ("w" * 201, "quiet"), ("w", "sing")]
)
def test_what_can_not_be_told_is_refused(log, worker, instruction):
    assert tell(log, worker, instruction) is ChangeStatus.INVALID
    assert not told(log)


def test_so_many_workers_are_told_something(log, monkeypatch):
    monkeypatch.setattr(limits, "MAX_INSTRUCTIONS", 2)
    tell(log, "w1")
    tell(log, "w2")
    assert tell(log, "w3") is ChangeStatus.FULL
    assert tell(log, "w1", "terminate") is ChangeStatus.CHANGED
    tell(log, "w2", "")
    assert tell(log, "w3") is ChangeStatus.CHANGED
    assert told(log) == {"w1": "terminate", "w3": "quiet"}


def test_it_is_forgotten_a_day_after_it_was_last_said(log):
    tell(log, "w1")
    tell(log, "w2")
    log.pass_ms(1_000)
    tell(log, "w1")
    log.pass_ms(limits.INSTRUCTION_KEPT_MS - 1_001)
    log.apply()
    assert told(log) == {"w1": "quiet", "w2": "quiet"}
    log.pass_ms(1)
    log.apply()
    assert told(log) == {"w1": "quiet"}
    log.pass_ms(1_000)
    log.apply()
    assert not told(log)


def test_an_entry_forgets_a_bounded_number(log):
    log.apply(*(InstructWorker(f"w{n}", "quiet") for n in range(300)))
    log.pass_ms(limits.INSTRUCTION_KEPT_MS)
    log.apply()
    assert len(told(log)) == 300 - limits.TRIM_STEP
    log.apply()
    assert not told(log)


def test_whoever_waits_learns_of_it(log):
    log.apply(InstructWorker("w1", "quiet"), InstructWorker("w2", ""), InstructWorker("w3", "sing"))
    assert log.applied.workers == ["w1"]
    log.apply()
    assert not log.applied.workers


def test_a_restored_state_tells_the_same(log):
    tell(log, "w2")
    tell(log, "w1", "terminate")
    other = StateMachine()
    other.load(log.machine.dump())
    assert list(other.instructions.items()) == list(log.machine.instructions.items())
    assert other.digest() == log.machine.digest()

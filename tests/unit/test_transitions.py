"""The transition table, the function that enforces it and the diagram drawn from it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from timeball.cluster import state
from timeball.cluster.state.diagram import render_mermaid
from timeball.cluster.state.operations import RetryPolicy
from timeball.cluster.state.records import Execution, ExecutionState, Job
from timeball.cluster.state.transitions import (
    TERMINAL,
    TRANSITIONS,
    Event,
    IllegalTransitionError,
    move,
)

ROOT = Path(__file__).parents[2]


JOB = Job(1, "q", b"", 1, RetryPolicy(), 5, "", 0, "", {})


@pytest.mark.parametrize("source", ExecutionState)
@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("target", ExecutionState)
def test_move_does_what_the_table_holds_and_refuses_the_rest(source, event, target):
    execution = Execution(JOB, 0, 0, 1, source)
    if any((row.source, row.event, row.target) == (source, event, target) for row in TRANSITIONS):
        move(execution, event, target)
        assert execution.state is target
    else:
        with pytest.raises(IllegalTransitionError):
            move(execution, event, target)
        assert execution.state is source


def test_no_row_leaves_a_terminal_state_but_a_replay_of_the_dead():
    leaving = {(row.source, row.event) for row in TRANSITIONS if row.source in TERMINAL}
    assert leaving == {(ExecutionState.DEAD, Event.REPLAY)}


def test_only_a_claim_leads_to_a_lease():
    assert {row.event for row in TRANSITIONS if row.target is ExecutionState.LEASED} == {
        Event.CLAIM
    }


def test_every_event_of_a_state_with_two_targets_says_which_in_its_guard():
    by_cause = itertools.groupby(TRANSITIONS, key=lambda row: (row.source, row.event))
    for _, rows in by_cause:
        guards = [row.guard for row in rows]
        assert len(set(guards)) == len(guards)


def test_the_diagram_in_the_docs_is_drawn_from_the_table():
    page = (ROOT / "docs" / "state-diagram.md").read_text()
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL)
    assert diagram == render_mermaid(), "run python -m timeball.cluster.state.diagram"


def test_the_diagram_is_drawn_by_the_command_that_the_docs_name():
    page = (ROOT / "docs" / "state-diagram.md").read_text()
    (module,) = re.findall(r"^    python -m (\S+)$", page, re.MULTILINE)
    drawn = subprocess.run(
        [sys.executable, "-P", "-m", module], capture_output=True, text=True, check=False
    )
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout == render_mermaid()


def test_no_other_module_sets_the_state_of_an_execution():
    modules = Path(state.__file__).parent.glob("*.py")
    setters = {
        module.name for module in modules if re.search(r"execution\.state = ", module.read_text())
    }
    assert setters == {"transitions.py"}

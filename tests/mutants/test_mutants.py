"""The table of safety rules fits the source, and the runner can tell a caught mutant from others.

`make mutants` runs all of it; here one mutant of each kind of outcome is enough.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutant import Mutant
from run import ROOT, Copy, Run, judge_all, verdict
from table import MUTANTS

QUORUM = "cluster/raft/elections.py::quorum"
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_applies_and_names_its_tests(mutant: Mutant):
    ast.parse(mutant.applied_to((ROOT / mutant.file).read_text("utf-8")))
    assert mutant.node_ids(ROOT)
    assert mutant.rule.endswith("."), "the rule is a sentence"


def test_names_are_unique():
    assert len(BY_NAME) == len(MUTANTS) > 30


def test_a_text_that_stands_twice_or_changes_nothing_is_refused():
    source = "def rule():\n    a = 1  # a\n    return a\n"
    for old, new in [("a", "b"), ("nothing of it", "b"), ("# a", "# b")]:
        with pytest.raises(ValueError, match=r"text stands|changes nothing"):
            Mutant("m", "r.", "f.py::rule", old, new, []).applied_to(source)
    with pytest.raises(ValueError, match="names 0 tests"):
        Mutant("m", "r.", "f.py::rule", "a", "b", ["test_of_nothing"]).node_ids(ROOT)


def test_the_runner_tells_caught_from_survived_broken_and_hung(tmp_path: Path):
    caught = BY_NAME["half-is-a-majority"]
    (test,) = caught.tests
    survives = Mutant("survives", "", QUORUM, "members // 2 + 1", "1 + members // 2", [test])
    breaks = survives._replace(name="breaks", old="def quorum", new="oops()\n\n\ndef quorum")
    hangs = survives._replace(name="hangs", old="return", new="while True: pass\n    return")
    copies = [Copy(tmp_path / "0"), Copy(tmp_path / "1")]
    outcomes = list(judge_all([caught, survives, breaks], copies, limit_s=60.0))
    outcomes.append(copies[0].judge(hangs, limit_s=4.0))
    assert [outcome.caught for outcome in outcomes] == [True, False, False, False]
    assert outcomes[1].why == f"passed without the rule: {test}"
    assert "broke with code" in outcomes[2].why
    assert outcomes[3].why == "did not end in time"
    source = (ROOT / caught.file).read_text("utf-8")
    assert [(copy.root / caught.file).read_text("utf-8") for copy in copies] == [source] * 2


def test_a_run_that_does_not_end_counts_only_where_the_table_says_so():
    run = Run(None, frozenset(), "")
    assert [verdict(MUTANTS[0]._replace(hangs=hangs), run)[0] for hangs in (False, True)] == [
        False,
        True,
    ]


def test_tests_that_fail_as_things_are_prove_nothing(tmp_path: Path):
    mutant = BY_NAME["half-is-a-majority"]
    copy = Copy(tmp_path)
    path = copy.root / mutant.file
    path.write_text(mutant.applied_to(path.read_text("utf-8")), "utf-8")
    with pytest.raises(RuntimeError, match="must pass before"):
        next(iter(judge_all([mutant], [copy], limit_s=30.0)))

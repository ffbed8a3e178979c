"""Each fault of the stock engine and each case of consensus from the field is named by a test.

The faults by id: what they are is told where they are tested. RAFT-10, -15, -18 and -19 are not
among the cases.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FAULTS = {f"F{number}" for number in range(1, 13)} | {f"F11{part}" for part in "abcde"}
OTHERS = {"L1", "M1", "C1", "O1", "T1", "P1", "H1"}
CASES = {f"RAFT-{number:02}" for number in (*range(1, 10), 11, 12, 13, 14, 16, 17, 20)}


def _ids_of(name: str) -> set[str]:
    """The ids that the name of a test holds: `test_f2_raft01_...` has F2 and RAFT-01."""
    words = re.sub(r"raft_(?=\d\d)", "raft", name).split("_")[1:]
    ids = set()
    for word in words:
        if case := re.fullmatch(r"raft(\d\d)", word):
            ids.add(f"RAFT-{case[1]}")
        elif fault := re.fullmatch(r"(f\d{1,2}|[lmcotph]1)([a-e]?)", word):
            ids.add(fault[1].upper() + fault[2])
        else:
            break
    return ids


def test_every_id_is_named_by_a_test() -> None:
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named |= _ids_of(node.name) if node.name.startswith("test_") else set()
    missing = (FAULTS | OTHERS | CASES) - named
    assert not missing, sorted(missing)


def test_ids_are_read_from_the_front_of_a_name() -> None:
    assert _ids_of("test_f2_f11a_raft01_raft_08_no_crash_of_l1") == {
        "F2",
        "F11a",
        "RAFT-01",
        "RAFT-08",
    }
    assert _ids_of("test_a_case_of_raft01") == set()

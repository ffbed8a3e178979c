"""Each fault of the stock engine and each case from the field is named by a test.

The faults by id: what they are is told where they are tested. Numbers that are left out are not
among the cases.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FAULTS = {f"F{number}" for number in range(1, 13)} | {f"F11{part}" for part in "abcde"}
OTHERS = {"L1", "M1", "C1", "O1", "T1", "P1", "H1"}
CASES = {f"RAFT-{number:02}" for number in (*range(1, 10), 11, 12, 13, 14, 16, 17, 20)}
TIMING = {
    *(f"CRON-{number:02}" for number in (1, 3, 4, 5, 7, 10, 11, 13, 14, 16, 17, 18, 19, 22)),
    *(f"TIMR-{number:02}" for number in (1, 2, 6, 7, 9, 10)),
    *(f"RECU-{number:02}" for number in (1, 2, 3, 6, 8, 9)),
}
WORKERS = {
    *(f"LEAS-{number:02}" for number in (1, 3, 4, 5, 8, 9, 11)),
    *(f"RETR-{number:02}" for number in (2, 3, 5)),
    *(f"IDEM-{number:02}" for number in (1, 4, 5)),
    *(f"HTTP-{number:02}" for number in (1, 2, 3, 5, 7, 9)),
}
_FIELD_ID = re.compile(
    r"(?<![a-z])(cron|timr|recu|leas|retr|idem|http)[-_]?(\d\d)(?!\d)", re.IGNORECASE
)


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


def _field_ids_of(module: ast.Module) -> set[str]:
    """The ids in the names of a module's tests, and in the names of their parameters."""
    texts = []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_"):
                texts.append(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value[:60])  # the name of a parameter, if it is none of a text
    found = (match for text in texts for match in _FIELD_ID.finditer(text))
    return {f"{match[1].upper()}-{match[2]}" for match in found}


@pytest.mark.parametrize("cases", [TIMING, WORKERS], ids=["timing", "workers"])
def test_every_case_from_the_field_is_named_by_a_test(cases: set[str]) -> None:
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__):
            named |= _field_ids_of(ast.parse(path.read_text("utf-8")))
    missing = cases - named
    assert not missing, sorted(missing)


def test_ids_from_the_field_are_read_from_names_and_parameters() -> None:
    module = ast.parse("""
def test_recu_03_and_CRON_01_hold(): pass
def test_http05_numbers(): pass
def helper_timr_09(): "RECU-01"
CASES = [("CRON-13 or", 1), ("macron_22", 2), ("CRON-145", 3)]
""")
    assert _field_ids_of(module) == {
        "RECU-03",
        "CRON-01",
        "CRON-13",
        "RECU-01",
        "HTTP-05",
    }


def test_ids_are_read_from_the_front_of_a_name() -> None:
    assert _ids_of("test_f2_f11a_raft01_raft_08_no_crash_of_l1") == {
        "F2",
        "F11a",
        "RAFT-01",
        "RAFT-08",
    }
    assert _ids_of("test_a_case_of_raft01") == set()

"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("client", "wheel", "cluster", "bench")
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout: nothing is tracked")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def test_there_are_sources() -> None:
    assert len(SOURCES) > 30
    assert len(TESTS) > 10


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_tells_its_purpose_in_its_first_sentence(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{path} has no docstring"
    assert re.match(r"[A-Z`].*[.:]", docstring.split("\n\n")[0].replace("\n", " ")), docstring


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_stays_one_readable_thing(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_clocks_and_chance_are_handed_in(path: Path) -> None:
    """No module below the node calls a clock or a random source of the process itself."""
    below = ("wheel", "cluster/state", "cluster/raft", "cluster/dispatch")
    if not str(path.relative_to(ROOT)).startswith(below):
        return
    calls = {
        f"{node.func.value.id}.{node.func.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    }
    banned = {"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.sleep"}
    banned |= {"random.random", "random.randrange", "random.randint", "random.uniform"}
    banned |= {"random.choice", "datetime.now", "datetime.utcnow", "uuid.uuid4"}
    assert not calls & banned


def test_private_names_of_the_engine_are_touched_in_one_module() -> None:
    touching = {str(p.relative_to(ROOT)) for p in SOURCES if "_SyncObj__" in p.read_text()}
    assert touching == {"cluster/raft/engine.py"}


def test_test_files_have_unique_names() -> None:
    """Two test modules of one name would shadow each other in reports."""
    names = [path.name for path in TESTS if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_nothing_is_skipped_or_swallowed() -> None:
    quiet = re.compile(r"pytest\.mark\.(skip|xfail)|except( Exception| BaseException)?:\s*pass\b")
    here = Path(__file__).resolve()
    guilty = [p for p in (*SOURCES, *TESTS) if p != here and quiet.search(p.read_text())]
    assert not guilty


def test_the_tree_holds_no_large_or_binary_file() -> None:
    for path in tracked():
        data = path.read_bytes()
        assert len(data) < 512 * 1024, path
        assert b"\0" not in data, path

"""A safety rule and how it is taken out of the source: the form of all entries of the table."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """One rule of the source, with what is left of it when it is removed."""

    name: str
    rule: str
    """What must hold, in one sentence."""
    place: str
    """File and function, `cluster/raft/engine.py::Engine.append`."""
    old: str
    """Stands exactly once in that function."""
    new: str
    tests: Sequence[str]
    """Functions of the test suite: each of them must fail without the rule."""
    hangs: bool = False
    """Whether not to end in time counts as failure."""

    @property
    def file(self) -> str:
        return self.place.partition("::")[0]

    def applied_to(self, source: str) -> str:
        """The source without the rule; ValueError when it does not stand where it is said to."""
        function = self.place.partition("::")[2]
        first, last = _lines_of(source, function)
        lines = source.splitlines(keepends=True)
        body = "".join(lines[first:last])
        found = body.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: its text stands {found} times in {self.place}")
        mutated = "".join([*lines[:first], body.replace(self.old, self.new), *lines[last:]])
        if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
            raise ValueError(f"{self.name}: it changes nothing")
        return mutated

    def node_ids(self, root: Path) -> list[str]:
        """What pytest calls its tests; ValueError for a name that is no test, or several."""
        places = _tests_of(root)
        for test in self.tests:
            if len(places.get(test, ())) != 1:
                raise ValueError(f"{self.name}: {test} names {len(places.get(test, ()))} tests")
        return [f"{places[test][0]}::{test}" for test in self.tests]


def _lines_of(source: str, function: str) -> tuple[int, int]:
    """Where a function stands, as a slice of the lines."""
    node: ast.AST = ast.parse(source)
    for name in function.split("."):
        node = _child(node, name)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef), function
    assert node.end_lineno is not None
    return node.lineno - 1, node.end_lineno


def _child(node: ast.AST, name: str) -> ast.AST:
    for child in ast.iter_child_nodes(node):
        if getattr(child, "name", None) == name:
            return child
    raise ValueError(f"there is no {name}")


@cache
def _tests_of(root: Path) -> dict[str, list[str]]:
    """The files of each test function."""
    places: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.M):
            places.setdefault(name, []).append(str(path.relative_to(root)))
    return places

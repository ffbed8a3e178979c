"""Rules of timetables taken out of production for a run, as the table of mutants takes them out.

`tests/mutants` changes a copy of the source and runs tests on it. Here the function of a mutant
gets the code of its changed text, in this process and for a time, wherever it was imported to.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import timetable_rules
from mutant import Mutant

ROOT = Path(__file__).parents[2]
BY_NAME: dict[str, Mutant] = {mutant.name: mutant for mutant in timetable_rules.RULES}


def without_rule(name: str) -> list[tuple[Any, str, Any]]:
    """The patch that takes a rule out."""
    mutant = BY_NAME[name]
    path, function = mutant.place.split("::")
    module = importlib.import_module(f"timeball.{path.removesuffix('.py').replace('/', '.')}")
    changed = dict(vars(module))
    text = mutant.applied_to((ROOT / path).read_text("utf-8"))
    exec(compile(text, path, "exec"), changed)
    return [(_at(vars(module), function), "__code__", _at(changed, function).__code__)]


def _at(namespace: dict[str, Any], path: str) -> Any:
    first, *rest = path.split(".")
    found = namespace[first]
    for name in rest:
        found = getattr(found, name)
    return found

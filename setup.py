"""Compiles the pure core ahead of time, with mypyc (docs/decisions/0022).

Everything else that an installation needs is in `pyproject.toml`. Without a C compiler, or
with `TIMEBALL_COMPILE=0`, the same modules are installed as they are and run interpreted:
the same answers, for more processor time and memory.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
TYPES = Path("build/types/timeball")
"""The layers under the name that they are imported by, for mypy reads folders."""

LAYERS = ("client", "wheel", "cluster", "bench")
# What is done for each execution: by every node …
COMPILED = ("wheel", "cluster/state")
INTERPRETED = frozenset(
    {
        "__init__.py",
        # A `msgspec.Struct` in a compiled module loses what its class says of itself in keywords
        # (`array_like`, `tag`), so these definitions stay as they are.
        "cluster_settings.py",
        "dumped.py",
        "operations.py",
        "queue_settings.py",
        "values.py",
        "verdicts.py",
        # Run as a program, which nothing compiled can be.
        "diagram.py",
        # What the rest of a node holds of the state, and its tests replace parts of.
        "machine.py",
    }
)
# … and by the leader.
DISPATCH = ("ahead", "claims", "duty", "leases", "ready", "waiting")
HTTP = (
    *("claims", "definitions", "executions", "instants", "jobs", "options", "schedules"),
    *("values", "views"),
)


def compiled_modules() -> list[Path]:
    """The sources that are compiled, relative to the root."""
    pure = [
        path.relative_to(ROOT)
        for folder in COMPILED
        for path in sorted((ROOT / folder).glob("*.py"))
        if path.name not in INTERPRETED
    ]
    return [
        *pure,
        *(Path("cluster/dispatch", f"{name}.py") for name in DISPATCH),
        *(Path("cluster/http", f"{name}.py") for name in HTTP),
    ]


def extensions() -> list[Extension]:
    """The compiled core; nothing where it is not wanted or can not be compiled."""
    if os.environ.get("TIMEBALL_COMPILE") == "0" or _compiler() is None:
        return []
    from mypyc.build import mypycify

    (ROOT / TYPES).mkdir(parents=True, exist_ok=True)
    for layer in LAYERS:
        link = ROOT / TYPES / layer
        if not link.is_symlink():
            link.symlink_to(Path("../../..") / layer)
    sources = [str(TYPES / path) for path in compiled_modules()]
    # Where only this is built, some libraries and their types are not there; none that a compiled
    # module needs. Whether all types are right is for `make types` to say.
    os.environ["MYPYPATH"] = str(TYPES.parent)
    lenient = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports")
    packages = ("--namespace-packages", "--explicit-package-bases")
    return mypycify(
        [*lenient, *packages, *sources],
        opt_level="3",
        debug_level="0",
        group_name="timeball.wheel.compiled",
    )


def _compiler() -> str | None:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0]) or shutil.which("cc")


if __name__ == "__main__":
    setup(ext_modules=extensions())

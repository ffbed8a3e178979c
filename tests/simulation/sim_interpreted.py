"""Imports the core from its sources, though it is compiled: what is patched has to be Python.

A compiled function calls those of other compiled modules directly, whatever their names stand for
by then. So whoever takes out a rule in a running process installs this first, before anything of
the product is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from types import ModuleType


class SourceFinder(PathFinder):
    """Finds the source beside each compiled module of the product."""

    @classmethod
    def find_spec(
        cls,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        if (
            spec is None
            or spec.origin is None
            or not fullname.startswith("timeball.")
            or not isinstance(spec.loader, ExtensionFileLoader)
        ):
            return None
        source = f"{spec.origin.partition('.')[0]}.py"
        return importlib.util.spec_from_file_location(fullname, source)


def install() -> None:
    """From now on; AssertionError if it is too late."""
    assert not any(name.startswith("timeball.cluster") for name in sys.modules), "too late"
    sys.meta_path.insert(0, SourceFinder)


def is_interpreted() -> bool:
    """Whether the core of this process can be patched."""
    spec = importlib.util.find_spec("timeball.cluster.state.leases")
    return spec is not None and str(spec.origin).endswith(".py")

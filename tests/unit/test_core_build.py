"""What is compiled ahead of time is what runs, is of today, and holds nothing that would change its
meaning by it (docs/decisions/0022)."""

from __future__ import annotations

import ast
import gc
import importlib
import re
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from timeball import cluster
from timeball.cluster.state.operations import NewJob

ROOT = Path(cluster.__file__).resolve().parents[1]
EAGER = {"all", "any", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"}
"""What reads all of a generator expression, or stops reading where nothing shows it."""


def module_of(source: Path) -> ModuleType:
    return importlib.import_module(".".join(("timeball", *source.with_suffix("").parts)))


def compiled_beside(source: Path) -> list[Path]:
    """What lies compiled beside a source, and would be imported in its place."""
    stem = ROOT / source.with_suffix("")
    beside = [stem.with_name(stem.name + suffix) for suffix in EXTENSION_SUFFIXES]
    return [path for path in beside if path.exists()]


def shared_code() -> list[Path]:
    """The library that holds the code of all compiled modules; each only leads to it."""
    return [
        path for suffix in EXTENSION_SUFFIXES for path in (ROOT / "wheel").glob(f"*__mypyc{suffix}")
    ]


def test_the_list_of_what_is_compiled_names_sources(compiled_modules: list[Path]) -> None:
    assert len(compiled_modules) > 30
    assert all((ROOT / source).is_file() for source in compiled_modules)


def test_all_of_it_is_compiled_or_nothing_is(compiled_modules: list[Path]) -> None:
    compiled = [source for source in compiled_modules if compiled_beside(source)]
    assert compiled in ([], compiled_modules)
    assert len(shared_code()) == bool(compiled)


def test_nothing_else_is_compiled(compiled_modules: list[Path]) -> None:
    found = {
        path
        for layer in ("client", "wheel", "cluster", "bench")
        for suffix in EXTENSION_SUFFIXES
        for path in (ROOT / layer).rglob(f"*{suffix}")
    }
    known = [path for source in compiled_modules for path in compiled_beside(source)]
    assert found == {*known, *shared_code()}, "run make: this is of an earlier build"


def test_what_lies_compiled_beside_a_source_is_what_runs(compiled_modules: list[Path]) -> None:
    for source in compiled_modules:
        module = module_of(source)
        parent = importlib.import_module(module.__name__.rpartition(".")[0])
        found = PathFinder.find_spec(module.__name__, parent.__path__)
        (expected,) = compiled_beside(source) or [ROOT / source]
        assert found is not None
        assert Path(str(found.origin)).resolve() == expected
        # What it says of its folder is made up, when it was another module that loaded it.
        assert Path(str(module.__file__)).name == expected.name


def test_nothing_compiled_is_older_than_its_source(compiled_modules: list[Path]) -> None:
    for source in compiled_modules:
        changed_ns = (ROOT / source).stat().st_mtime_ns
        for built in (*compiled_beside(source), *shared_code()):
            assert built.stat().st_mtime_ns >= changed_ns, f"{source} was edited: run make"


def test_make_compiles_anew_when_any_of_it_changes(compiled_modules: list[Path]) -> None:
    (folders,) = re.findall(r"^COMPILED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(folders.split()) == {str(source.parent) for source in compiled_modules}


def test_a_generator_expression_only_feeds_what_reads_all_of_it(
    compiled_modules: list[Path],
) -> None:
    """Compiled it is a list: all of it is computed where it stands, and kept."""
    lazy = [
        f"{source}:{node.lineno}: {ast.unparse(node)}"
        for source in compiled_modules
        for node in lazy_expressions(ast.parse((ROOT / source).read_text()))
    ]
    assert lazy == []


def lazy_expressions(module: ast.Module) -> list[ast.GeneratorExp]:
    read_at_once = {
        call.args[0]
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and len(call.args) == 1 and is_eager(call.func)
    }
    found = [node for node in ast.walk(module) if isinstance(node, ast.GeneratorExp)]
    return [node for node in found if node not in read_at_once]


def is_eager(function: ast.expr) -> bool:
    match function:
        case ast.Name(name):
            return name in EAGER
        case ast.Attribute(_, name):
            return name == "join"
        case _:
            return False


def test_a_lazy_generator_expression_is_found() -> None:
    module = ast.parse("""
any(one for one in ones)
sorted((one for one in ones), key=abs)
", ".join(one for one in ones)
zip(ones, (lazy for lazy in ones))
rest = (lazy for lazy in ones)
""")
    assert {node.lineno for node in lazy_expressions(module)} == {5, 6}


def test_no_struct_is_compiled(compiled_modules: list[Path]) -> None:
    """It would lose what its class says of itself in keywords, such as `array_like`."""
    structs = [
        (module.__name__, name)
        for module in map(module_of, compiled_modules)
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, msgspec.Struct)
        and one.__module__ == module.__name__
    ]
    assert structs == []


def test_a_program_is_not_compiled(compiled_modules: list[Path]) -> None:
    """`python -m` finds no code in what is compiled."""
    programs = [source for source in compiled_modules if "__main__" in (ROOT / source).read_text()]
    assert programs == []


@pytest.mark.parametrize("list_page", ["list_jobs", "list_executions", "list_dead"])
def test_a_page_leaves_nothing_to_the_collector(log, list_page) -> None:
    """A node practically never collects what has become old, so rings must not come to be."""
    log.create_all(*[NewJob("q", b"")] * 3)
    read = getattr(log.machine, list_page)
    read(limit=2)
    gc.collect()
    gc.disable()
    try:
        read(limit=2)
        assert gc.collect() == 0
    finally:
        gc.enable()

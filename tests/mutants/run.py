"""Remove each safety rule in turn, in a copy of the source, and see that its tests fail.

    PYTHONPATH=tests/mutants python tests/mutants/run.py [--only WORD ...] [--jobs N] [--limit-s S]

First the tests must pass as the source is. A mutant is caught when each of its tests fails: one
that passes, a run that breaks before its tests (a module that cannot be imported), or one that
does not end in time is no proof, unless the entry says that it hangs. Exits 1 if any survives.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from mutant import Mutant
from table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("client", "wheel", "cluster", "bench")
MEMORY_BYTES = 4 * 1024**3
"""What a run may take: a mutant that never ends must not take the machine with it."""


class Run(NamedTuple):
    """How a run of some tests ended."""

    code: int | None
    """The exit code of pytest; None when it did not end in time."""
    failed: frozenset[str]
    """Test functions that failed."""
    said: str


class Outcome(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    caught: bool
    why: str
    """Which tests failed, or what speaks against the proof."""
    took_s: float


class Copy:
    """A copy of the tree, from which `timeball` is imported instead of the checkout."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        unwanted = shutil.ignore_patterns("__pycache__", "*.so", ".*")
        for name in (*LAYERS, "tests"):
            shutil.copytree(ROOT / name, self.root / name, ignore=unwanted)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        packages = folder / "packages" / "timeball"
        packages.mkdir(parents=True)
        for layer in LAYERS:
            (packages / layer).symlink_to(self.root / layer)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(packages.parent),
            "PYTHONSAFEPATH": "1",
            "COLUMNS": "1000",  # names of tests are told whole
        }
        self._second = int(time.time())
        self._check_imports()

    def _check_imports(self) -> None:
        told = subprocess.run(
            [sys.executable, "-c", "import timeball.cluster as c; print(c.__file__)"],
            env=self._environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if Path(told.strip()).resolve() != (self.root / "cluster/__init__.py").resolve():
            raise RuntimeError(f"not the copy is imported, but {told}")

    def test(self, node_ids: Sequence[str], limit_s: float) -> Run:
        """Run tests here."""
        options = ["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
        options += ["--timeout=0", "--hypothesis-seed=0"]
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *node_ids],
            cwd=self.root, env=self._environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            try:
                said, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, _ = process.communicate()
                return Run(None, frozenset(), said)
        failed = re.findall(r"^FAILED [\w/.]+::(\w+)", said, re.MULTILINE)
        return Run(process.returncode, frozenset(failed), said)

    def judge(self, mutant: Mutant, limit_s: float) -> Outcome:
        """Take a rule out, run its tests, and put it back."""
        path = self.root / mutant.file
        source = path.read_text("utf-8")
        began = time.monotonic()
        self._write(path, mutant.applied_to(source))
        try:
            run = self.test(mutant.node_ids(ROOT), limit_s)
        finally:
            self._write(path, source)
        caught, why = verdict(mutant, run)
        return Outcome(mutant, caught, why, time.monotonic() - began)

    def _write(self, path: Path, source: str) -> None:
        """Change a module. Python tells a source from the cached one by its size and its second:
        each gets a second of its own."""
        path.write_text(source, "utf-8")
        self._second += 1
        os.utime(path, (self._second, self._second))


def verdict(mutant: Mutant, run: Run) -> tuple[bool, str]:
    """Whether the run proves that the rule is tested, and what speaks for or against it."""
    if run.code is None:
        return mutant.hangs, "did not end in time"
    passed = [test for test in mutant.tests if test not in run.failed]
    if run.code not in (0, 1):
        last = run.said.strip().rpartition("\n")[2]
        return False, f"the run broke with code {run.code}: {last}"
    if passed:
        return False, f"passed without the rule: {', '.join(passed)}"
    return True, ", ".join(mutant.tests)


def judge_all(
    mutants: Sequence[Mutant], copies: Sequence[Copy], limit_s: float
) -> Iterable[Outcome]:
    """The outcomes, in order, as they come; RuntimeError if a test fails as things are."""
    idle: queue.Queue[Copy] = queue.Queue()
    for copy in copies:
        idle.put(copy)

    def judge(mutant: Mutant) -> Outcome:
        copy = idle.get()
        try:
            return copy.judge(mutant, limit_s)
        finally:
            idle.put(copy)

    node_ids = sorted({test for mutant in mutants for test in mutant.node_ids(ROOT)})
    run = copies[0].test(node_ids, limit_s * 10)
    if run.code != 0:
        raise RuntimeError(f"the tests must pass before a rule is removed:\n{run.said}")
    pool = ThreadPoolExecutor(len(copies))
    try:
        yield from pool.map(judge, mutants)
    finally:
        pool.shutdown(cancel_futures=True)  # who interrupts waits for the runs under way only


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="*", default=[""], help="mutants whose name or place holds one of these"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of one run, in seconds")
    chosen = parser.parse_args(arguments)
    mutants = [
        one for one in MUTANTS if any(word in f"{one.name} {one.place}" for word in chosen.only)
    ]
    if not mutants:
        parser.error(f"no mutant holds any of {chosen.only}")
    survived = 0
    with tempfile.TemporaryDirectory(prefix="timeball-mutants-") as folder:
        try:
            copies = [Copy(Path(folder) / str(number)) for number in range(chosen.jobs)]
            for one in judge_all(mutants, copies, chosen.limit_s):
                survived += not one.caught
                word = "caught" if one.caught else "SURVIVED"
                print(f"{word:8} {one.took_s:5.1f} s  {one.mutant.name}: {one.mutant.rule}")
                if not one.caught:
                    print(f"{'':18}{one.mutant.place}: {one.why}")
                sys.stdout.flush()
        except (RuntimeError, ValueError) as error:
            print(error)
            return 2
    print(f"mutants: {len(mutants)} caught: {len(mutants) - survived} survived: {survived}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

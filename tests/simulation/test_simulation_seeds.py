"""Whole clusters under random faults: every seed must pass, and give one trace only.

More of them: `make simulate SEEDS=1000`. How to replay and shorten one is told in docs/testing.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_command import main
from sim_faults import plan
from sim_run import simulate
from sim_shrink import shrink

RUN = Path(__file__).with_name("simulate.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_no_seed_breaks_a_promise(first: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    arguments = ["--first", str(first), "--seeds", "10", "--traces", str(tmp_path)]
    code = main(arguments)
    assert code == 0, capfd.readouterr().out
    assert capfd.readouterr().out.endswith("seeds: 10 violations: 0\n")


def test_a_seed_is_one_trace_in_one_process():
    first, again, other = simulate(plan(9)), simulate(plan(9)), simulate(plan(11))
    assert first.trace == again.trace
    assert first.trace_hash != other.trace_hash


def test_some_of_what_a_run_hands_out_expires_or_requires_something():
    run = simulate(plan(4))
    assert run.demands > 20
    assert run.expired > 5


def test_in_some_runs_queues_are_bounded_while_leaders_change():
    run = simulate(plan(0))
    assert run.violations == []
    assert run.limited > 100
    assert run.leaderships > 1


def test_a_seed_is_one_trace_whatever_the_hashes(tmp_path: Path):
    def run(hash_seed: str) -> tuple[str, str]:
        told = subprocess.run(
            [sys.executable, str(RUN), "--seed", "9", "--traces", str(tmp_path / hash_seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return told.stdout, (tmp_path / hash_seed / "seed-9.trace").read_text()

    assert run("1") == run("2")


def test_a_failing_seed_can_be_replayed_and_shortened(tmp_path: Path):
    def run(*arguments: str) -> str:
        broken = ("--unsafe", "followers-differ", "--traces", str(tmp_path))
        told = subprocess.run(
            [sys.executable, RUN, *arguments, *broken], capture_output=True, text=True, check=False
        )
        assert told.returncode == 1, told.stderr
        return told.stdout

    kept = tmp_path / "seed-11-followers-differ.plan.json"
    assert f"--plan {kept} --shrink" in run("--seed", "11")
    told = run("--plan", str(kept), "--shrink")
    assert f"shortened from {len(plan(11).faults)} faults to " in told
    assert "VIOLATION" in kept.with_name("seed-11-followers-differ.trace").read_text()


def test_shrinking_leaves_out_what_can_be_left_out():
    tried: list[list[int]] = []

    def fails(items: list[int]) -> bool:
        tried.append(items)
        return {3, 17} <= set(items)

    assert shrink(range(40), fails) == [3, 17]
    assert len(tried) < 60
    assert shrink(range(40), lambda _: True) == []

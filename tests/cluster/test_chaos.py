"""Chaos as its users run it: a short storm, and what a damaged cluster looks like to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).parent / "timeball"), "bench", "chaos"]
LIMIT_S = 110


@pytest.mark.timeout(LIMIT_S + 30)
def test_a_short_storm_breaks_no_promise(tmp_path: Path) -> None:
    faults = "kill_leader,isolate_leader,power_off,one_way_link,cut_clients,stop_leader"
    command = [*COMMAND, "--minutes", "0.35", "--seed", "2", "--faults", faults, "--json"]
    done = subprocess.run(
        [*command, "--keep", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["seed"] == 2
    assert report["violations"] == 0
    assert not any(report["broken"].values())
    for rule in ("lost", "early", "double_accepted", "duplicate_jobs", "tokens", "undelivered"):
        assert report["examined"][rule] > 100, rule
    for rule in ("missed_occurrences", "stale_accepted", "replicas", "overcome", "reads"):
        assert report["examined"][rule] > 0, rule
    assert report["failover"]["count"] >= 1
    assert "seed 2" in done.stderr


def test_an_unknown_fault_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--faults", "meteor"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "'meteor' is none of kill_leader" in done.stderr


def test_a_folder_with_files_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = subprocess.run(
        [*COMMAND, "--keep", str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr

"""Timetables under faults, as users run it: the leader is struck at their very instants."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).parent / "timeball"), "bench", "timetables"]
LIMIT_S = 100


@pytest.mark.timeout(LIMIT_S + 30)
def test_recu03_each_nominal_time_fires_once_whatever_strikes_the_leader(tmp_path: Path) -> None:
    short = ["--minutes", "0.5", "--spacing", "10", "--pause", "6"]
    few = ["--each-second", "4", "--each-minute", "3"]
    done = subprocess.run(
        [*COMMAND, *short, *few, "--seed", "1", "--json", "--keep", str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["seed"] == 1
    assert report["violations"] == 0
    assert report["timetables"] in (4, 7)  # whether a full minute falls into the run, or not
    assert report["nominal_times"] > 4 * 25
    assert report["fired"] + report["coalesced"] == report["nominal_times"]
    assert report["strikes"] >= 2
    assert report["strikes_before"] >= 1
    for rule in ("accounted", "once", "folded", "early", "missed_occurrences"):
        assert report["examined"][rule] > 100, rule
    for rule in ("overcome", "replicas", "tokens", "double_accepted"):
        assert report["examined"][rule] > 0, rule


def test_an_unknown_spacing_is_refused() -> None:
    done = subprocess.run([*COMMAND, "--spacing", "7"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "'7' is not one of" in done.stderr


def test_a_folder_with_files_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = subprocess.run(
        [*COMMAND, "--keep", str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr

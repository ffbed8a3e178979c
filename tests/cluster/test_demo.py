"""The demo, run as its users run it: a process that must prove every promise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [str(Path(sys.executable).parent / "timeball"), "demo", "--json", "--keep"]
LIMIT_S = 110

ALWAYS_ZERO = (
    "lost",
    "early",
    "double_accepted",
    "stale_accepted",
    "missed_occurrences",
    "duplicate_occurrences",
    "duplicate_jobs",
    "tokens",
    "undelivered",
    "replicas",
)


@pytest.mark.timeout(LIMIT_S + 30)
def test_the_demo_shows_what_it_must(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, str(tmp_path / "kept")], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert {name: report[name] for name in ALWAYS_ZERO} == dict.fromkeys(ALWAYS_ZERO, 0)
    assert all(report["examined"][name] > 0 for name in ALWAYS_ZERO)
    assert all(report["planned"].values())
    assert len(report["planned"]) >= 9
    assert report["executions"] >= 500
    for name in ("stale_refused", "redelivered", "failovers", "retries", "replayed", "cancelled"):
        assert report[name] >= 1, name
    assert report["duplicates_suppressed"] >= 1
    assert report["digests_agree"] is True
    assert 0 < report["failover_gap_ms"] <= 1_500
    lag = report["fire_lag_ms"]
    assert 0 <= lag["p50"] <= lag["p99"] <= lag["max"]
    assert report["versions"]["timeball"]
    assert not _processes_naming(str(tmp_path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "kept"
    with subprocess.Popen([*COMMAND, str(folder)], stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "Submitting" in line:
                break
        assert _processes_naming(str(folder))
        demo.send_signal(number)
        assert demo.wait(timeout=30) == 130
    assert not _processes_naming(str(folder))


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = subprocess.run([*COMMAND, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def _processes_naming(folder: str) -> list[int]:
    """The processes, other than this one, with the folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:  # it has ended in the meantime
            continue
        if folder.encode() in command:
            found.append(int(entry.name))
    return found

"""The built distribution, installed in a clean environment, holds every module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("client", "wheel", "cluster", "bench")


def modules_in_the_tree() -> set[str]:
    """Every module of the four layers, as it should be importable."""
    found = set()
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            parts = ("timeball", *path.relative_to(ROOT).with_suffix("").parts)
            found.add(".".join(part for part in parts if part != "__init__"))
    return found


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH",)}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel file, built as a release would be: from the sources, without earlier leavings."""
    sources = tmp_path_factory.mktemp("sources") / "timeball"
    litter = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "*.so", "__pycache__", "tests"
    )
    shutil.copytree(ROOT, sources, ignore=litter)
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--wheel", "--outdir", out, sources, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("timeball-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a clean environment with the distribution and the extras of its modules."""
    home = tmp_path_factory.mktemp("clean")
    assert run(sys.executable, "-m", "venv", home / "venv", cwd=home).returncode == 0
    python = home / "venv" / "bin" / "python"
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = run(python, *install, f"{built}[otel,server]", cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


@pytest.mark.timeout(420)
def test_the_wheel_holds_exactly_the_modules_of_the_tree(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
    inside = {
        ".".join(part for part in Path(name).with_suffix("").parts if part != "__init__")
        for name in names
    }
    assert inside == modules_in_the_tree()
    assert not any(name == "timeball/__init__.py" for name in names)


@pytest.mark.timeout(420)
def test_every_module_imports_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    names = sorted(modules_in_the_tree())
    assert len(names) > 30
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = run(installed, "-W", "error", "-c", program, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run(installed, "-c", "import wheel, cluster", cwd=tmp_path).returncode != 0


@pytest.mark.timeout(420)
def test_the_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    done = run(installed.parent / "timeball", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for command in ("server", "dev", "demo", "job", "execution"):
        assert command in done.stdout


@pytest.mark.timeout(420)
def test_a_users_program_is_type_checked_against_the_installed_package(
    installed: Path, tmp_path: Path
) -> None:
    """py.typed is in the wheel, and mypy --strict sees what is right and what is wrong."""
    program = tmp_path / "program.py"
    text = Path(__file__).with_name("user_program.txt").read_text("utf-8")
    program.write_text(text, "utf-8")
    check = ("-m", "mypy", "--strict", "--python-executable", installed, program)
    done = run(sys.executable, *check, cwd=tmp_path)
    told = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    wanted = {n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# error")}
    assert told == wanted, done.stdout
    assert len(wanted) == 6


@pytest.mark.timeout(420)
def test_the_light_client_needs_no_server_package(
    built: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("light")
    assert run(sys.executable, "-m", "venv", home / "venv", cwd=home).returncode == 0
    python = home / "venv" / "bin" / "python"
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = run(python, *install, built, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(python, "-c", "import timeball.client", cwd=home).returncode == 0
    assert run(python, "-c", "import pysyncobj", cwd=home).returncode != 0
    refused = run(python.parent / "timeball", "server", cwd=home)
    assert refused.returncode == 2
    assert "timeball[server]" in refused.stderr
    assert "Traceback" not in refused.stderr

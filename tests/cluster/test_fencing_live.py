"""A zombie's write is refused by the database: real leases, real tokens, real stores."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from timeball.client import Client
from timeball.client.fencing import StaleToken, postgres, sqlite
from timeball.client.messages import Success

Write = Callable[[str, int, str], None]

MAKE = "CREATE TABLE reports (name TEXT PRIMARY KEY, body TEXT NOT NULL)"
PUT = """
    INSERT INTO reports VALUES ('night', {0})
    ON CONFLICT (name) DO UPDATE SET body = excluded.body
"""


class Store:
    """A database with one report; each write opens a connection, as another worker would."""

    def __init__(self, fences: Any, connect: Callable[[], Any], mark: str) -> None:
        self._fences = fences
        self._connect = connect
        self._put = PUT.format(mark)
        with closing(connect()) as connection:
            fences.create_tables(connection)
            connection.execute(MAKE)
            connection.commit()

    def write(self, resource: str, token: int, body: str) -> None:
        with (
            closing(self._connect()) as connection,
            self._fences.fenced(connection, resource, token),
        ):
            connection.execute(self._put, (body,))

    def report(self) -> str:
        with closing(self._connect()) as connection:
            [body] = connection.execute("SELECT body FROM reports").fetchone()
            return body


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        yield Store(sqlite, lambda: sqlite3.connect(tmp_path / "store.db"), "?")
    else:
        database = request.getfixturevalue("database")
        yield Store(postgres, lambda: psycopg.connect(database), "%s")


@pytest.mark.asyncio(loop_scope="session")
async def test_a_zombies_late_write_is_refused_by_the_database(
    shared_cluster, store, request
) -> None:
    """The first worker is paused for longer than its lease, in the middle of its work."""
    queue = "zombies-" + request.node.callspec.id
    async with Client(shared_cluster.urls) as client:
        created = await client.create(queue=queue)
        [zombie] = (
            await client.claim(worker="first", queue=queue, wait_ms=10_000, lease_ms=500)
        ).executions
        # It stops here: no heartbeat, no report. Its lease expires, and the retry comes due.
        [heir] = (
            await client.claim(worker="second", queue=queue, wait_ms=30_000, lease_ms=60_000)
        ).executions
        assert heir.execution_id == zombie.execution_id == created.execution_id
        assert heir.token > zombie.token
        store.write(heir.execution_id, heir.token, "by the second")
        # It wakes up, and knows of nothing.
        with pytest.raises(StaleToken):
            store.write(zombie.execution_id, zombie.token, "by the first")
        assert store.report() == "by the second"
        [late] = await client.complete([Success(zombie.execution_id, zombie.token)])
        assert (late.verdict, late.status) == ("stale", 409)
        [told] = await client.complete([Success(heir.execution_id, heir.token)])
        assert told.verdict == "accepted"

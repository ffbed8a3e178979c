"""Fences in PostgreSQL, on a real server: older tokens refused, effects done once, under races."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from timeball.client.fencing import StaleToken, postgres


@pytest.fixture
def store(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database) as connection:
        postgres.create_tables(connection)
        connection.execute("CREATE TABLE notes (id serial, text text NOT NULL)")
        connection.commit()
        yield connection


def notes(connection) -> list[str]:
    found = [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY id")]
    connection.rollback()
    return found


def write(connection, resource: str, token: int, text: str | None) -> None:
    with postgres.fenced(connection, resource, token):
        connection.execute("INSERT INTO notes (text) VALUES (%s)", (text,))


def test_an_older_token_is_refused_and_writes_nothing(store) -> None:
    high = 2**53 - 1
    write(store, "r", 5, "first")
    write(store, "r", 5, "the same holder again")
    write(store, "r", high, "the next holder")
    with pytest.raises(StaleToken, match="r: token 5 is older"):
        write(store, "r", 5, "zombie")
    write(store, "other", 5, "another resource")
    assert notes(store) == ["first", "the same holder again", "the next holder", "another resource"]


def test_a_block_that_raises_leaves_neither_write_nor_fence(store) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation):
        write(store, "r", 9, None)
    write(store, "r", 5, "an older one may still")
    assert notes(store) == ["an older one may still"]


def test_an_effect_is_done_once(store) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation), postgres.once(store, "7-1"):
        store.execute("INSERT INTO notes (text) VALUES (NULL)")
    done = []
    for _ in range(3):
        with postgres.once(store, "7-1") as first:
            if first:
                store.execute("INSERT INTO notes (text) VALUES ('paid')")
            done.append(first)
    assert done == [True, False, False]
    assert notes(store) == ["paid"]


def test_an_older_holder_waits_for_a_newer_one_and_is_refused(store, database) -> None:
    """Both write at the same moment: whoever waits is judged by what the other has committed."""
    outcome: list[BaseException] = []

    def be_a_zombie() -> None:
        with psycopg.connect(database, application_name="zombie") as connection:
            try:
                write(connection, "r", 5, "zombie")
            except StaleToken as error:
                outcome.append(error)

    zombie = threading.Thread(target=be_a_zombie)
    with postgres.fenced(store, "r", 9):
        zombie.start()
        with psycopg.connect(database, autocommit=True) as watcher:
            while True:
                [state] = watcher.execute(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE application_name = 'zombie' AND wait_event_type = 'Lock'"
                ).fetchone()
                if state:
                    break
        store.execute("INSERT INTO notes (text) VALUES ('new')")
    zombie.join()
    assert [type(error) for error in outcome] == [StaleToken]
    assert notes(store) == ["new"]


def test_many_who_race_for_an_effect_do_it_once(store, database) -> None:
    def race() -> None:
        with psycopg.connect(database) as connection, postgres.once(connection, "7-1") as first:
            if first:
                connection.execute("INSERT INTO notes (text) VALUES ('paid')")

    racers = [threading.Thread(target=race) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert notes(store) == ["paid"]


def test_tables_can_be_created_by_many_at_once(database) -> None:
    failures: list[BaseException] = []

    def create() -> None:
        try:
            with psycopg.connect(database) as connection:
                postgres.create_tables(connection)
        except psycopg.Error as error:
            failures.append(error)

    creators = [threading.Thread(target=create) for _ in range(8)]
    for creator in creators:
        creator.start()
    for creator in creators:
        creator.join()
    assert not failures


def test_autocommit_is_refused_and_hold_works_within_ones_own_transaction(store) -> None:
    store.autocommit = True
    with pytest.raises(ValueError, match="autocommit"):
        write(store, "r", 5, "a")
    for token, text in ((9, "new"), (9, "again")):
        with store.transaction():
            postgres.hold(store.cursor(), "r", token)
            store.execute("INSERT INTO notes (text) VALUES (%s)", (text,))
    with pytest.raises(StaleToken), store.transaction():
        postgres.hold(store.cursor(), "r", 5)
    assert [text for (text,) in store.execute("SELECT text FROM notes")] == ["new", "again"]


def test_old_marks_are_forgotten(store) -> None:
    write(store, "old", 9, "a")
    with postgres.once(store, "old"):
        pass
    for table in ("timeball_fences", "timeball_effects"):
        store.execute(f"UPDATE {table} SET at = at - interval '1000 seconds'")
    store.commit()
    write(store, "new", 9, "a")
    assert postgres.forget(store, older_than_s=2_000) == 0
    assert postgres.forget(store, older_than_s=500) == 2
    write(store, "old", 5, "nobody remembers")


async def test_asynchronous_connections(store, database) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        for token, text in ((9, "new"), (9, "again")):
            async with postgres.fenced_async(connection, "r", token):
                await connection.execute("INSERT INTO notes (text) VALUES (%s)", (text,))
        with pytest.raises(StaleToken):
            async with postgres.fenced_async(connection, "r", 5):
                raise AssertionError("the block must not run")
        done = []
        for _ in range(2):
            async with postgres.once_async(connection, "7-1") as first:
                done.append(first)
        assert done == [True, False]
        with pytest.raises(psycopg.errors.NotNullViolation):
            async with postgres.once_async(connection, "7-2"):
                await connection.execute("INSERT INTO notes (text) VALUES (NULL)")
        async with postgres.once_async(connection, "7-2") as first:
            assert first
        await connection.set_autocommit(True)
        with pytest.raises(ValueError, match="autocommit"):
            async with postgres.once_async(connection, "7-3"):
                raise AssertionError("the block must not run")
    assert notes(store) == ["new", "again"]

"""Fences in SQLite: an older token's write is refused, an effect is done once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from timeball.client.fencing import StaleToken, check, sqlite


@pytest.fixture(params=["default", "isolation_level=None"])
def store(request, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    options = {} if request.param == "default" else {"isolation_level": None}
    connection = sqlite3.connect(tmp_path / "store.db", **options)
    sqlite.create_tables(connection)
    connection.execute("CREATE TABLE notes (text TEXT NOT NULL)")
    yield connection
    connection.close()


def notes(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY rowid")]


def write(connection: sqlite3.Connection, resource: str, token: int, text: str) -> None:
    with sqlite.fenced(connection, resource, token):
        connection.execute("INSERT INTO notes VALUES (?)", (text,))


def test_an_older_token_is_refused_and_writes_nothing(store) -> None:
    write(store, "r", 5, "first")
    write(store, "r", 5, "the same holder again")
    write(store, "r", 9, "the next holder")
    with pytest.raises(StaleToken, match="r: token 5 is older") as raised:
        write(store, "r", 5, "zombie")
    assert (raised.value.resource, raised.value.token) == ("r", 5)
    write(store, "other", 5, "another resource")
    write(store, "r", 9, "still")
    assert notes(store) == [
        "first", "the same holder again", "the next holder", "another resource", "still",
    ]  # fmt: skip


def test_a_block_that_raises_leaves_neither_write_nor_fence(store) -> None:
    with pytest.raises(sqlite3.IntegrityError), sqlite.fenced(store, "r", 9):
        store.execute("INSERT INTO notes VALUES ('lost'), (NULL)")
    write(store, "r", 5, "an older one may still")
    assert notes(store) == ["an older one may still"]


def test_an_effect_is_done_once(store) -> None:
    done = []
    for _ in range(3):
        with sqlite.once(store, "7-1") as first:
            if first:
                store.execute("INSERT INTO notes VALUES ('paid')")
            done.append(first)
    assert done == [True, False, False]
    assert notes(store) == ["paid"]


def test_an_effect_that_failed_is_done_by_the_next(store) -> None:
    with pytest.raises(sqlite3.IntegrityError), sqlite.once(store, "7-1"):
        store.execute("INSERT INTO notes VALUES (NULL)")
    with sqlite.once(store, "7-1") as first:
        assert first


def test_another_connection_sees_the_write_and_waits_for_its_turn(store, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "store.db", timeout=0)
    try:
        with sqlite.fenced(store, "r", 9):
            store.execute("INSERT INTO notes VALUES ('a')")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                write(other, "r", 5, "zombie")
        assert notes(other) == ["a"]
        with pytest.raises(StaleToken):
            write(other, "r", 5, "zombie")
        assert not other.in_transaction
    finally:
        other.close()


def test_a_transaction_that_is_open_already_is_refused(store) -> None:
    store.execute("BEGIN")
    with pytest.raises(ValueError, match="commit or roll back first"):
        write(store, "r", 5, "a")
    assert store.in_transaction, "it is not ours to end"


def test_a_block_that_ends_the_transaction_is_told_so(store) -> None:
    with pytest.raises(RuntimeError, match="not fenced"), sqlite.fenced(store, "r", 5):
        store.commit()


def test_creating_the_tables_again_keeps_the_fences(store) -> None:
    write(store, "r", 9, "a")
    sqlite.create_tables(store)
    with pytest.raises(StaleToken):
        write(store, "r", 5, "zombie")


def test_old_marks_are_forgotten(store) -> None:
    write(store, "old", 9, "a")
    with sqlite.once(store, "old"):
        pass
    store.execute("UPDATE timeball_fences SET at = at - 1000")
    store.execute("UPDATE timeball_effects SET at = at - 1000")
    store.commit()
    write(store, "new", 9, "a")
    assert sqlite.forget(store, older_than_s=2_000) == 0
    assert sqlite.forget(store, older_than_s=500) == 2
    assert store.execute("SELECT resource FROM timeball_fences").fetchall() == [("new",)]


def test_a_write_renews_a_fence(store) -> None:
    write(store, "r", 9, "a")
    store.execute("UPDATE timeball_fences SET at = at - 1000")
    store.commit()
    write(store, "r", 9, "b")
    assert sqlite.forget(store, older_than_s=500) == 0


def test_a_fence_in_a_table_of_ones_own(store) -> None:
    store.execute("CREATE TABLE reports (id TEXT PRIMARY KEY, body TEXT, fence INTEGER NOT NULL)")
    store.execute("INSERT INTO reports VALUES ('r', '', 0)")

    def update(token: int, body: str) -> None:
        sql = "UPDATE reports SET body = ?, fence = ? WHERE id = 'r' AND fence <= ?"
        check(store.execute(sql, (body, token, token)).rowcount, "r", token)

    update(9, "new")
    with pytest.raises(StaleToken):
        update(5, "zombie")
    assert store.execute("SELECT body FROM reports").fetchone() == ("new",)


def test_an_unknown_number_of_rows_is_no_success() -> None:
    with pytest.raises(ValueError, match="not known"):
        check(-1, "r", 5)

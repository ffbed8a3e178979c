"""Fences in SQLite: the mark and the write in one transaction of the standard library's `sqlite3`.

The tables live beside your own, in the same file: otherwise no transaction can hold both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from timeball.client.fencing.stale import check

TABLES = (
    """
    CREATE TABLE IF NOT EXISTS timeball_fences (
        resource TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        at INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS timeball_effects (
        key TEXT PRIMARY KEY,
        at INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))
    )
    """,
)
"""The tables, for a migration; `at` is in epoch seconds."""

_FENCE = """
    INSERT INTO timeball_fences (resource, token) VALUES (?, ?)
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, at = excluded.at
    WHERE timeball_fences.token <= excluded.token
"""
_ONCE = "INSERT INTO timeball_effects (key) VALUES (?) ON CONFLICT (key) DO NOTHING"
_FORGET = (
    "DELETE FROM timeball_fences WHERE at < CAST(strftime('%s', 'now') AS INTEGER) - ?",
    "DELETE FROM timeball_effects WHERE at < CAST(strftime('%s', 'now') AS INTEGER) - ?",
)


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables unless they exist; at any time, by any number of workers."""
    with _transaction(connection):
        for statement in TABLES:
            connection.execute(statement)


@contextmanager
def fenced(connection: sqlite3.Connection, resource: str, token: int) -> Iterator[None]:
    """Write to `resource` as the holder of `token`: committed at the end, or nothing of it.

    Raises `StaleToken`, before the block, when a newer token has written to the resource. The
    same token may write any number of times. Nobody else writes to the database until the
    block ends. Raises ValueError when a transaction is open already, RuntimeError when the
    block ends the transaction by itself.
    """
    with _transaction(connection):
        check(connection.execute(_FENCE, (resource, token)).rowcount, resource, token)
        yield


@contextmanager
def once(connection: sqlite3.Connection, key: str) -> Iterator[bool]:
    """Do an effect once for `key`: gives True the first time, False when it is done already.

    What the block writes is committed together with the mark; when the block raises, neither
    is. With an execution's `idempotency_key`, its attempts do the effect once between them.
    """
    with _transaction(connection):
        yield connection.execute(_ONCE, (key,)).rowcount == 1


def forget(connection: sqlite3.Connection, *, older_than_s: int) -> int:
    """Delete marks that are older than this many seconds; how many there were.

    Only what is older than any worker could still be at, and any execution be replayed from:
    a mark that is gone refuses nothing.
    """
    with _transaction(connection):
        return sum(connection.execute(sql, (older_than_s,)).rowcount for sql in _FORGET)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction, whatever the connection's `isolation_level` or `autocommit`."""
    if connection.in_transaction:
        raise ValueError(
            "a transaction is open on this connection: commit or roll back first "
            "(a connection with autocommit=False always has one: use another mode)"
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if not connection.in_transaction:
            raise RuntimeError("the block ended the transaction: what it wrote is not fenced")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise

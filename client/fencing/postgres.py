"""Fences in PostgreSQL: the mark and the write in one transaction, over any DB-API driver.

Written for psycopg 3, whose asynchronous connections have `fenced_async` and `once_async`; any
driver will do whose parameters are written ``%s`` and whose `rowcount` tells what was changed.
The isolation level is yours: above READ COMMITTED a concurrent holder meets the driver's
serialization error instead of a refusal, and nothing is written either way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, LiteralString, Protocol

from timeball.client.fencing.stale import check

TABLES: tuple[LiteralString, ...] = (
    """
    CREATE TABLE IF NOT EXISTS timeball_fences (
        resource text PRIMARY KEY,
        token bigint NOT NULL,
        at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS timeball_effects (
        key text PRIMARY KEY,
        at timestamptz NOT NULL DEFAULT now()
    )
    """,
)
"""The tables, for a migration."""

_ONE_AT_A_TIME: LiteralString = (
    "SELECT pg_advisory_xact_lock(hashtext('timeball.client.fencing.create_tables'))"
)
"""IF NOT EXISTS alone fails when two create the same table at the same moment."""
_FENCE: LiteralString = """
    INSERT INTO timeball_fences AS fence (resource, token) VALUES (%s, %s)
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, at = excluded.at
    WHERE fence.token <= excluded.token
"""
_ONCE: LiteralString = "INSERT INTO timeball_effects (key) VALUES (%s) ON CONFLICT (key) DO NOTHING"
_FORGET: tuple[LiteralString, ...] = (
    "DELETE FROM timeball_fences WHERE at < now() - %s * interval '1 second'",
    "DELETE FROM timeball_effects WHERE at < now() - %s * interval '1 second'",
)


class Cursor(Protocol):
    """What is used of a DB-API cursor."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        ...

    def execute(self, query: LiteralString, params: Any = ..., /) -> object:
        """Run a statement."""
        ...


class Connection(Protocol):
    """What is used of a DB-API connection."""

    @property
    def autocommit(self) -> bool:
        """Whether each statement is a transaction of its own."""
        ...

    def cursor(self) -> Any:
        """Make a `Cursor`."""
        ...

    def commit(self) -> None:
        """End the transaction and keep what it wrote."""
        ...

    def rollback(self) -> None:
        """End the transaction and drop what it wrote."""
        ...


class AsyncConnection(Protocol):
    """What is used of a `psycopg.AsyncConnection`."""

    @property
    def autocommit(self) -> bool:
        """Whether each statement is a transaction of its own."""
        ...

    def cursor(self) -> Any:
        """Make a cursor whose `execute` is awaited."""
        ...

    def commit(self) -> Awaitable[None]:
        """End the transaction and keep what it wrote."""
        ...

    def rollback(self) -> Awaitable[None]:
        """End the transaction and drop what it wrote."""
        ...


def create_tables(connection: Connection) -> None:
    """Create the tables unless they exist; at any time, by any number of workers."""
    with _transaction(connection) as cursor:
        cursor.execute(_ONE_AT_A_TIME)
        for statement in TABLES:
            cursor.execute(statement)


def hold(cursor: Cursor, resource: str, token: int) -> None:
    """Hold `resource` as the holder of `token`, in the transaction that the cursor is in.

    For those who begin and commit by themselves; the write must be in the same transaction.
    Raises `StaleToken` when a newer token has written to the resource. Until the transaction
    ends, other holders of the resource wait.
    """
    cursor.execute(_FENCE, (resource, token))
    check(cursor.rowcount, resource, token)


@contextmanager
def fenced(connection: Connection, resource: str, token: int) -> Iterator[None]:
    """Write to `resource` as the holder of `token`: committed at the end, or nothing of it.

    Raises `StaleToken`, before the block, when a newer token has written to the resource. The
    same token may write any number of times. Other holders of the resource wait until the
    block ends. What was written before the block in a transaction that is still open has the
    block's fate. Raises ValueError on a connection in autocommit mode: use `hold` there.
    """
    with _transaction(connection) as cursor:
        hold(cursor, resource, token)
        yield


@contextmanager
def once(connection: Connection, key: str) -> Iterator[bool]:
    """Do an effect once for `key`: gives True the first time, False when it is done already.

    What the block writes is committed together with the mark; when the block raises, neither
    is. Somebody at the same key waits until the block ends. With an execution's
    `idempotency_key`, its attempts do the effect once between them.
    """
    with _transaction(connection) as cursor:
        cursor.execute(_ONCE, (key,))
        yield cursor.rowcount == 1


@asynccontextmanager
async def fenced_async(
    connection: AsyncConnection, resource: str, token: int
) -> AsyncIterator[None]:
    """Do as `fenced` does, on an asynchronous connection."""
    async with _transaction_async(connection) as cursor:
        await cursor.execute(_FENCE, (resource, token))
        check(cursor.rowcount, resource, token)
        yield


@asynccontextmanager
async def once_async(connection: AsyncConnection, key: str) -> AsyncIterator[bool]:
    """Do as `once` does, on an asynchronous connection."""
    async with _transaction_async(connection) as cursor:
        await cursor.execute(_ONCE, (key,))
        yield cursor.rowcount == 1


def forget(connection: Connection, *, older_than_s: int) -> int:
    """Delete marks that are older than this many seconds; how many there were.

    Only what is older than any worker could still be at, and any execution be replayed from:
    a mark that is gone refuses nothing.
    """
    count = 0
    with _transaction(connection) as cursor:
        for statement in _FORGET:
            cursor.execute(statement, (older_than_s,))
            count += cursor.rowcount
    return count


@contextmanager
def _transaction(connection: Connection) -> Iterator[Any]:
    _refuse_autocommit(connection.autocommit)
    try:
        yield connection.cursor()
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@asynccontextmanager
async def _transaction_async(connection: AsyncConnection) -> AsyncIterator[Any]:
    _refuse_autocommit(connection.autocommit)
    try:
        yield connection.cursor()
    except BaseException:
        await connection.rollback()
        raise
    await connection.commit()


def _refuse_autocommit(autocommit: bool) -> None:
    if autocommit:
        raise ValueError(
            "the connection is in autocommit mode, so mark and write would be two transactions: "
            "begin one yourself and call hold(cursor, …) in it"
        )

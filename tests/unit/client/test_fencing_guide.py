"""The guide to effects that are done once says what is so: its Python runs as it stands."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timeball.client.fencing import StaleToken, sqlite

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "idempotent-handlers.md"


class Cursor:
    """Takes what it is given: the server's part is tested with a server."""

    rowcount = 1

    def __init__(self, said: list[tuple[str, Any]]) -> None:
        self._said = said

    async def execute(self, sql: str, parameters: Any) -> None:
        self._said.append((" ".join(sql.split()).split(" ")[2], parameters))


class Connection:
    autocommit = False

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def cursor(self) -> Cursor:
        return Cursor(self.said)

    async def execute(self, sql: str, parameters: Any) -> None:
        await self.cursor().execute(sql, parameters)

    async def commit(self) -> None:
        self.said.append(("commit", None))


async def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S):
        exec(compile(block, str(GUIDE), "exec"), names)
    path = tmp_path / "store.db"
    connection = sqlite3.connect(path)
    sqlite.create_tables(connection)
    connection.executescript(
        "CREATE TABLE reports (text); CREATE TABLE payments (key, amount);"
        "CREATE TABLE documents (id, text, fence); INSERT INTO documents VALUES (1, '', 0);"
    )
    old, new = (SimpleNamespace(token=token, idempotency_key="7-1") for token in (5, 9))

    names["save_report"](path, new, "new")
    with pytest.raises(StaleToken):
        names["save_report"](path, old, "zombie")
    assert connection.execute("SELECT text FROM reports").fetchall() == [("new",)]

    for execution in (old, new, old):
        names["pay"](path, execution, 100)
    assert connection.execute("SELECT * FROM payments").fetchall() == [("7-1", 100)]

    names["update"](connection, new, "new")
    with pytest.raises(StaleToken):
        names["update"](connection, old, "zombie")
    assert connection.execute("SELECT text FROM documents").fetchall() == [("new",)]
    connection.close()

    there = Connection()
    await names["save"](there, new, "new")
    assert there.said == [
        ("timeball_fences", ("report", 9)),
        ("reports", ("new",)),
        ("commit", None),
    ]

"""Long work for one request lets everything else run in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from timeball.cluster.http import turns
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.jobs import Jobs
from timeball.cluster.http.services import Services
from timeball.cluster.settings import parse_settings
from timeball.cluster.state import operations
from timeball.cluster.state.machine import StateMachine

CONFIG = """
name = "x"
[[nodes]]
name = "a"
raft = "127.0.0.1:7101"
http = "127.0.0.1:7001"
"""
NOW_MS = 1_780_000_000_000


def services(tmp_path: Any) -> Services:
    state = StateMachine()

    async def propose(operation: operations.AnyOperation) -> Any:
        entry = operations.encode_entry(NOW_MS, [operation])
        return state.apply(state.applied_index + 1, entry).verdicts[0]

    settings = parse_settings(CONFIG, tmp_path / "timeball.toml")
    parts: Any = {
        "settings": settings, "me": settings.node("a"), "state": state,
        "replica": SimpleNamespace(applied_index=1), "dispatcher": None, "propose": propose,
        "congested": lambda: False, "serving": lambda: True, "ready": lambda: True,
        "take_snapshot": None, "history": None, "ends": None,
        "wall_clock_ms": lambda: NOW_MS,
    }  # fmt: skip
    return Services(**parts)


async def test_a_batch_of_timetables_lets_others_run_between_its_jobs(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LONGEST_TURN_S", 0.0)
    schedule = {"type": "cron", "expression": "0 0 29 2 *", "time_zone": "Europe/Berlin"}
    jobs = [{"schedule": schedule} for _ in range(50)]
    body = msgspec.json.encode({"jobs": jobs})
    request = Request(method="POST", path="/v1/jobs/batch", body=body, body_form="json")
    creating = asyncio.ensure_future(Jobs(services(tmp_path)).create_batch(request))
    others = 0
    while not creating.done():
        await asyncio.sleep(0)
        others += 1
    answer = cast("Any", creating.result().message)
    assert [result.status for result in answer.results] == ["created"] * 50
    assert others >= 2 * 50, "once after each job is read, once after each is answered"


async def test_a_short_turn_is_not_shared(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LONGEST_TURN_S", 3600.0)
    body = msgspec.json.encode({"jobs": [{}] * 50})
    request = Request(method="POST", path="/v1/jobs/batch", body=body, body_form="json")
    ran: list[int] = []
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await Jobs(services(tmp_path)).create_batch(request)
    assert not ran


async def test_a_turn_of_the_loop_has_one_bound_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    shared = turns.Turns()
    began: list[str] = []

    async def work(name: str) -> None:
        await shared.begin()
        began.append(name)

    await shared.begin()
    assert shared.clock() < shared.ends_s
    await work("in time")
    now_s += turns.LONGEST_TURN_S
    assert shared.clock() >= shared.ends_s
    asyncio.get_running_loop().call_soon(began.append, "others")
    await work("late")
    assert began == ["in time", "others", "late"]
    assert shared.clock() < shared.ends_s


async def test_a_shared_turn_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    shared = turns.Turns()
    await shared.begin()
    now_s += turns.LONGEST_TURN_S
    await shared.share()
    assert shared.clock() < shared.ends_s

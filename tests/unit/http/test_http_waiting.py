"""`Prefer: wait=`: who waits, for how long, and who tells them."""

from __future__ import annotations

import asyncio

import pytest

from timeball.cluster.http import waiting
from timeball.cluster.http.waiting import Ends, preferred_wait_s
from timeball.cluster.state.operations import CancelJobs, Change, UpdateJob


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *(("wait=10", 10), ("wait=0", 0), ("wait=60", 60), ("wait=61", 60), ("Wait = 7", 7)),
        *(('respond-async, wait="5"; x=y', 5), ("wait=3, wait=9", 3), ("", 0), ("wait", 0)),
        *(("wait=-1", 0), ("wait=1.5", 0), ("wait=soon", 0), ("waiting=5", 0), ("wait=²", 0)),
        ("wait=" + "9" * 5_000, 0),
    ],
)
def test_a_preference_is_read_or_passed_over(header: str, seconds: int) -> None:
    assert preferred_wait_s(header) == seconds


async def asking(desk, hold, prefer: str = "wait=60"):
    """A request under way, which waits for an execution by now."""
    path = f"/v1/executions/{hold[0]}-{hold[1]}"
    asked = asyncio.ensure_future(desk.ask("GET", path, prefer=prefer))
    for _ in range(3):
        await asyncio.sleep(0)
    return asked


async def test_the_answer_comes_in_the_turn_of_the_end(desk, log) -> None:
    hold, token = log.claimed()
    asked = await asking(desk, hold)
    log.claimed()
    await desk.ask("POST", f"/v1/executions/{hold[0]}-{hold[1]}/start", {"token": token})
    await asyncio.sleep(0)
    assert not asked.done()
    done = {"token": token, "result": 5}
    await desk.ask("POST", f"/v1/executions/{hold[0]}-{hold[1]}/complete", done)
    reply = await asked
    assert (reply.status, reply.body["state"], reply.body["result"]) == (200, "succeeded", 5)
    assert reply.headers["Preference-Applied"] == "wait=60"
    assert desk.ends._waiting == {}


async def test_what_has_ended_is_answered_at_once_and_a_retry_is_no_end(desk, log) -> None:
    hold, token = log.claimed()
    asked = await asking(desk, hold)
    fail = {"token": token, "error_type": "Boom"}
    await desk.ask("POST", f"/v1/executions/{hold[0]}-{hold[1]}/fail", fail)
    await asyncio.sleep(0)
    assert not asked.done()
    await desk._propose(CancelJobs([hold[0]]))
    assert (await asked).body["state"] == "cancelled"
    again = await asking(desk, hold)
    assert again.done()


async def test_an_execution_that_is_gone_is_told_as_gone(desk, log) -> None:
    hold = log.create(first_ms=log.now_ms + 5_000)
    asked = await asking(desk, hold)
    await desk._propose(UpdateJob(hold[0], 0, Change(first_ms=log.now_ms + 9_000)))
    assert (await asked).status == 404


async def test_the_wait_is_over_in_time(desk, log, monkeypatch) -> None:
    wait = desk.ends.wait
    monkeypatch.setattr(desk.ends, "wait", lambda one, seconds: wait(one, seconds / 1_000))
    reply = await (await asking(desk, log.create()))
    assert reply.body["state"] == "scheduled"
    assert desk.ends._waiting == {}


async def test_a_client_that_goes_away_leaves_nothing_behind(desk, log) -> None:
    hold = log.create()
    first, second = await asking(desk, hold), await asking(desk, hold)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert desk.ends._count == 1
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert (desk.ends._count, desk.ends._waiting) == (0, {})


async def test_beyond_the_limit_and_on_a_node_that_stops_nobody_waits(
    desk, log, monkeypatch
) -> None:
    hold = log.create()
    monkeypatch.setattr(waiting, "MAX_WAITING", 1)
    asked = await asking(desk, hold)
    other = await asking(desk, hold)
    assert other.done()
    assert "Preference-Applied" not in other.result().headers
    desk.ends.close()
    assert (await asked).body["state"] == "scheduled"
    assert (await asking(desk, hold)).done()


async def test_a_snapshot_lets_everyone_look_again(desk, log) -> None:
    asked = await asking(desk, log.create())
    desk.ends.on_installed(9)
    assert (await asked).body["state"] == "scheduled"


async def test_an_entry_costs_nothing_while_nobody_waits() -> None:
    class Untouched:
        """Something that nobody may look at."""

    Ends().on_applied(1, 1, b"", Untouched())

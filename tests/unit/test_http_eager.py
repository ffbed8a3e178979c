"""Coroutines that begin at once: what they wait for, how they end, how they are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from timeball.cluster.http.eager import Eager


class Run:
    """One coroutine and what became of it."""

    def __init__(self, coroutine: Coroutine[Any, None, None]) -> None:
        self.ended = 0
        self.eager = Eager(asyncio.get_running_loop(), coroutine, self._end)
        self.eager.start()

    def _end(self) -> None:
        self.ended += 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_waits_for_nothing_ends_at_once() -> None:
    async def work() -> None:
        done.append(1)

    done: list[int] = []
    assert Run(work()).ended == len(done) == 1


async def test_it_goes_on_in_the_turn_after_what_it_waits_for() -> None:
    async def work() -> None:
        seen.append(await first)
        await asyncio.sleep(0)
        try:
            await second
        except OSError:
            seen.append(2)

    seen: list[int] = []
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    second: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    run = Run(work())
    await turns(3)
    assert not seen
    first.set_result(1)
    second.set_exception(OSError())
    assert not seen
    await turns(1)
    assert seen == [1]
    assert not run.ended
    await turns(2)
    assert seen == [1, 2]
    assert run.ended == 1


@pytest.mark.parametrize("answered", [False, True])
async def test_cancelling_reaches_the_wait_even_when_its_answer_is_there(answered: bool) -> None:
    async def work() -> None:
        try:
            await answer
        except asyncio.CancelledError:
            seen.append(answer.cancelled())
            raise

    seen: list[bool] = []
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    run = Run(work())
    if answered:
        answer.set_result(1)
    run.eager.cancel()
    assert not seen, "nothing happens in the turn of who cancels"
    await turns(1)
    assert seen == [not answered]
    assert run.ended == 1


async def test_cancelling_between_two_turns() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise AssertionError("cancelled before")

    run = Run(work())
    run.eager.cancel()
    await turns(1)
    assert run.ended == 1


async def test_cancelling_from_within_reaches_the_next_wait() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        run.eager.cancel()
        await answer

    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    run = Run(work())
    await turns(3)
    assert answer.cancelled()
    assert run.ended == 1


async def test_cancelling_waits_for_the_task_that_it_waits_for() -> None:
    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(run.ended)

    async def work() -> None:
        await task

    cleaned: list[int] = []
    task = asyncio.get_running_loop().create_task(child())
    run = Run(work())
    await turns(1)
    run.eager.cancel()
    await turns(4)
    assert cleaned == [0], "it was still waiting"
    assert run.ended == 1


async def test_an_error_ends_it_and_is_not_swallowed() -> None:
    async def work() -> None:
        raise OSError("a defect")

    ended: list[int] = []
    eager = Eager(asyncio.get_running_loop(), work(), lambda: ended.append(1))
    with pytest.raises(OSError, match="a defect"):
        eager.start()
    assert ended == [1]

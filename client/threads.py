"""A bounded pool of threads for handlers that are plain functions.

Not the standard library's pool: that one keeps a program from ending while a handler hangs. These
are daemon threads, since a worker that stops leaves a handler that does not end to itself, and
its lease to expire.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from timeball.client.context import ExecutionContext

_Function = Callable[[ExecutionContext], object]


class _Work(NamedTuple):
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[object]
    copied: contextvars.Context
    function: _Function
    context: ExecutionContext


class ThreadPool:
    """At most `size` threads, each started when it is first needed.

    Whoever hands in work keeps to `size` pieces of it at a time, so none waits in here.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    async def run(self, function: _Function, context: ExecutionContext) -> object:
        """Run a function in a thread, with the context variables of here.

        Cancelling the wait does not end the function.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[object] = loop.create_future()
        if self._busy >= len(self._threads) < self._size:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = threading.Thread(target=_serve, args=(self._work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._busy += 1
        ended.add_done_callback(self._one_less)
        self._work.put(_Work(loop, ended, contextvars.copy_context(), function, context))
        return await ended

    def close(self) -> None:
        """Let every thread end once its work has."""
        for _ in self._threads:
            self._work.put(None)

    def _one_less(self, _: asyncio.Future[object]) -> None:
        self._busy -= 1


def _serve(work: SimpleQueue[_Work | None]) -> None:
    while (piece := work.get()) is not None:
        result, error = None, None
        try:
            result = piece.copied.run(piece.function, piece.context)
        except BaseException as raised:  # noqa: BLE001 - it goes to whoever waits
            error = raised
        _tell(piece, result, error)
        del piece, result, error


def _tell(piece: _Work, result: object, error: BaseException | None) -> None:
    def settle() -> None:
        if piece.ended.done():
            return
        if error is None:
            piece.ended.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            piece.ended.set_exception(error)
        else:  # what would end a loop, or could not be raised out of a coroutine
            piece.ended.set_exception(RuntimeError(f"the handler raised {error!r}"))

    if not piece.loop.is_closed():
        try:
            piece.loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the loop was closed just now: nobody waits any more

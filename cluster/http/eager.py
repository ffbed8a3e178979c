"""Coroutines that begin at once, in the turn of whoever starts them.

A Task takes its first step in the next turn of the loop, and costs more. (Python 3.12 has eager
Tasks; this does the same on 3.11.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Eager:
    """Runs one coroutine: up to its first wait at once, and on whenever what it waits for is done.

    Like a Task but for what nothing here needs: it has no result, nobody can await it, and it is
    no current task, so `asyncio.timeout` and what uses it want a Task of their own around them.
    """

    __slots__ = ("_awaited", "_cancelling", "_coroutine", "_ended", "_loop")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[asyncio.Future[Any] | None, None, None],
        ended: Callable[[], None],
    ) -> None:
        """`ended` is called once, when the coroutine has ended, however that came."""
        self._loop = loop
        self._coroutine = coroutine
        self._ended = ended
        self._awaited: asyncio.Future[Any] | None = None
        self._cancelling = False

    def start(self) -> None:
        """Take the first step now; it may be the last."""
        self._step()

    def cancel(self) -> None:
        """Raise CancelledError where the coroutine waits, or will wait next; not in this turn."""
        if self._awaited is None or not self._awaited.cancel():
            self._cancelling = True

    def _step(self, _done: object = None) -> None:
        self._awaited = None
        try:
            if self._cancelling:
                self._cancelling = False
                awaited = self._coroutine.throw(asyncio.CancelledError())
            else:
                awaited = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._ended()
        except BaseException:
            self._ended()
            raise
        else:
            self._wait(awaited)

    def _wait(self, awaited: asyncio.Future[Any] | None) -> None:
        if awaited is None:  # asyncio.sleep(0): nothing but the next turn
            self._loop.call_soon(self._step)
            return
        # `await` has set it; whoever waits takes it back (the protocol of futures and Tasks).
        awaited._asyncio_future_blocking = False
        self._awaited = awaited
        awaited.add_done_callback(self._step)
        if self._cancelling and awaited.cancel():
            self._cancelling = False


def carried_out(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """To be awaited in place of what goes on when whoever waits for it is cancelled.

    How it ends is looked at in any case: else the loop would complain of an error that nobody took.
    """
    future.add_done_callback(_look_at)
    return asyncio.shield(future)


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()

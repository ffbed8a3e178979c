"""Handlers: what kinds there are, and where each runs.

async def …                       "loop"     a task in the worker's event loop
def …                             "thread"   a thread of a bounded pool
def …, by run_in="process"        "process"  a process of its own
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, get_args

from timeball.client.context import ExecutionContext, enter_execution
from timeball.client.processes import ProcessPool
from timeball.client.threads import ThreadPool

RunIn = Literal["loop", "thread", "process"]

Handler = Callable[[ExecutionContext], Any]
"""A function of one `ExecutionContext`, async or plain. What it returns is kept as the result."""


class Handling(NamedTuple):
    """A handler and where it runs."""

    function: Handler
    run_in: RunIn


def handling(function: Handler, run_in: RunIn | None, what: str = "the handler") -> Handling:
    """Decide where a handler runs; raises TypeError or ValueError when it can not run there."""
    if not callable(function):
        raise TypeError(f"{what} is a function of one ExecutionContext, got {function!r}")
    if run_in is None:
        run_in = "loop" if is_async(function) else "thread"
    if run_in not in get_args(RunIn):
        raise ValueError(f"run_in is 'loop', 'thread' or 'process', got {run_in!r}")
    if run_in == "loop" and not is_async(function):
        raise TypeError(f"{what} is a plain function, which would stop the loop: run it in a "
                        "'thread' or a 'process', or make it an async function")  # fmt: skip
    if run_in != "loop" and is_async(function):
        raise TypeError(f"{what} is an async function: it runs in the 'loop', not in a {run_in!r}")
    return Handling(function, run_in)


def is_async(function: Callable[..., object]) -> bool:
    """Whether a function, or an object that can be called, is async."""
    call = getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not its being
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def check_importable(chosen: Handling, what: str = "the handler") -> Handling:
    """Give a handler back; raises TypeError if its process could not import it."""
    if chosen.run_in == "process":
        try:
            pickle.dumps(chosen.function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"{what} can not run in a process, which must be able to import it: define it at "
                f"the top of a module ({error})"
            ) from error
    return chosen


class Executors:
    """Runs the handlers of one queue, at most `size` at a time."""

    def __init__(
        self,
        size: int,
        name: str,
        elsewhere: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`elsewhere` is entered around what does not run in the loop."""
        self._elsewhere = elsewhere
        self._threads = ThreadPool(size, name)
        self._processes = ProcessPool(size, name)

    async def run(self, chosen: Handling, context: ExecutionContext) -> object:
        """Run a handler to its end. Raises what it raises, and `LeaseLost` when it was lost."""
        function, run_in = chosen
        enter_execution(context)
        if run_in != "loop":
            with self._elsewhere():
                if run_in == "process":
                    return await self._processes.run(function, context)
                return _no_coroutine(await self._threads.run(function, context))
        try:
            return await function(context)
        except asyncio.CancelledError:
            context.raise_if_lost()
            raise

    def close(self) -> None:
        """End what is idle."""
        self._threads.close()
        self._processes.close()


def _no_coroutine(result: object) -> object:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the handler is a plain function that returned a coroutine: make it async")
    return result

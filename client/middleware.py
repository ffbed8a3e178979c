"""Middleware: async functions around every handler of a worker, or every create of a client.

    async def timed(context, call_next):
        began = time.monotonic()
        try:
            return await call_next(context)
        finally:
            print(context.execution_id, time.monotonic() - began)

    Worker(client, "mail", send, middleware=[timed])

The first one is the outermost. One may hand on another value than it was given, call on more
than once or not at all, change the result, and raise; what it raises counts as the handler's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from timeball.client.context import ExecutionContext
from timeball.client.messages import JobCreated, NewJob

Given = TypeVar("Given")
Made = TypeVar("Made")

Handle = Callable[[ExecutionContext], Awaitable[object]]
HandlerMiddleware = Callable[[ExecutionContext, Handle], Awaitable[object]]
"""Around a handler, in the worker's loop, wherever the handler itself runs."""

Create = Callable[[NewJob], Awaitable[JobCreated]]
CreateMiddleware = Callable[[NewJob, Create], Awaitable[JobCreated]]
"""Around `Client.create`, and so around `Task.submit`."""


def chain(
    middleware: Sequence[Callable[[Given, Callable[[Given], Awaitable[Made]]], Awaitable[Made]]],
    last: Callable[[Given], Awaitable[Made]],
) -> Callable[[Given], Awaitable[Made]]:
    """Make one function of all, the first outermost."""
    for one in reversed(middleware):
        last = _before(one, last)
    return last


def _before(
    one: Callable[[Given, Callable[[Given], Awaitable[Made]]], Awaitable[Made]],
    following: Callable[[Given], Awaitable[Made]],
) -> Callable[[Given], Awaitable[Made]]:
    async def call(given: Given) -> Made:
        return await one(given, following)

    return call

"""The runner of commands: one child process for each execution, whose exit code is the outcome.

exit 0           success: what it wrote is the result
exit 75          failure (EX_TEMPFAIL): the next attempt comes after `retry_after_ms`
exit 65, …       failure for good (`fatal`): no further attempt
any other        failure: the retry policy decides
by a signal      failure, which says so
out of time      failure: the process group was ended
cancelled, lease lost, worker stops: the process group is ended
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Collection
from typing import Any

from timeball.client.context import ExecutionContext, NonRetryable, RetryLater
from timeball.client.runners.child import Child
from timeball.client.runners.facts import environment, payload_json
from timeball.client.runners.limits import Limits, limits
from timeball.client.runners.results import last_words, result_of

log = logging.getLogger("timeball.runners")

EX_TEMPFAIL = 75
"""sysexits.h: a temporary failure, try again later."""
FATAL_EXITS = frozenset({65})
"""sysexits.h: EX_DATAERR, the input is wrong."""
STOP_GRACE_MS = 800
"""Of a worker that stops, the grace for commands: shorter than the worker waits for them."""
MAX_WORDS = 1_800
"""Characters of the standard error that a message quotes."""


class CommandFailed(Exception):
    """The command ended with an exit code that says so, or by a signal."""


class CommandTimedOut(Exception):
    """The command took longer than its attempt may take."""


class CommandRefused(NonRetryable):
    """The command ended with an exit code that says: no retry will mend it."""


class CommandNotNow(RetryLater):
    """The command ended with exit code 75."""


class CommandRunner:
    """The handler that runs `command` in a shell for each execution.

    `timeout_ms` bounds an attempt beside the job's own. Of a group that is to end, the
    processes have `grace_ms` after SIGTERM before SIGKILL.
    """

    def __init__(
        self,
        command: str,
        *,
        timeout_ms: int | None = None,
        grace_ms: int = 5_000,
        retry_after_ms: int = 30_000,
        fatal: Collection[int] = FATAL_EXITS,
    ) -> None:
        if not command.strip() or "\0" in command:
            raise ValueError("the command is a text for the shell, and not empty")
        wrong = sorted(code for code in fatal if not 1 <= code <= 255 or code == EX_TEMPFAIL)
        if wrong:
            raise ValueError(f"exit codes for good are 1 to 255 but {EX_TEMPFAIL}, got {wrong[0]}")
        self._command = command
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._retry_after_ms = retry_after_ms
        self._fatal = frozenset(fatal)

    async def __call__(self, context: ExecutionContext) -> Any:
        """Run the command for an execution; its result."""
        delivery = context.delivery
        bound = limits(delivery.timeout_ms, self._timeout_ms, self._grace_ms)
        child = Child.start(
            self._command,
            {**os.environ, **environment(delivery)},
            payload_json(delivery.payload) + b"\n",
        )
        try:
            await self._run(child, context, bound)
            code = await child.collect()
        finally:
            child.close()
        log.info("%s, attempt %d: %s", delivery.execution_id, delivery.attempt, describe(code))
        return self._judge(code, child)

    async def _run(self, child: Child, context: ExecutionContext, bound: Limits) -> None:
        """Wait for the end of the command, or bring it about."""
        try:
            async with asyncio.timeout(None if bound.run_ms is None else bound.run_ms / 1_000):
                await child.ended()
        except TimeoutError:
            await child.end(bound.grace_ms)
            await child.collect()
            how = f"ended after {bound.run_ms} ms, its time was over"
            raise CommandTimedOut(_told(how, child)) from None
        except asyncio.CancelledError:
            stops = not (context.lost.is_set() or context.cancelled.is_set())
            await child.end(min(self._grace_ms, STOP_GRACE_MS) if stops else self._grace_ms)
            raise

    def _judge(self, code: int, child: Child) -> object:
        if code == 0:
            return result_of(child.output.kept, child.output.dropped)
        told = _told(describe(code), child)
        if code == EX_TEMPFAIL:
            raise CommandNotNow(self._retry_after_ms, told)
        if code in self._fatal:
            raise CommandRefused(told)
        raise CommandFailed(told)


def describe(code: int) -> str:
    """Say how a process ended: `code` is its exit code, or the negative number of a signal."""
    if code < 0:
        return f"killed by {_name(-code)}"
    if 128 < code < 160:
        return f"exit code {code}, as the shell tells of {_name(code - 128)}"
    return f"exit code {code}"


def _name(number: int) -> str:
    known: dict[int, str] = {item.value: item.name for item in signal.Signals}
    return known.get(number, f"signal {number}")


def _told(how: str, child: Child) -> str:
    words = last_words(child.complaint.kept, MAX_WORDS)
    return f"{how}: {words}" if words else how

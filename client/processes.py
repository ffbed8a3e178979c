"""A bounded pool of processes for handlers that compute, hang or crash.

Each handler has a process of its own while it runs; the process is kept for the next one. A
process that dies takes nothing with it but its attempt, which fails. One whose handler is to
end is told, and killed after `END_GRACE_MS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection

import msgspec

from timeball.client import child
from timeball.client.context import ExecutionContext
from timeball.client.outcomes import Failed, Told
from timeball.client.threads import ThreadPool

END_GRACE_MS = 750
"""How long a handler that is told to end may take; less than its worker's own patience."""

_processes = multiprocessing.get_context("spawn")  # forking a program with threads is unsafe


class ProcessDied(Exception):
    """The process of a handler ended before the handler did: an attempt that failed."""


class ProcessPool:
    """At most `size` processes, each started when it is first needed.

    Whoever hands in work keeps to `size` pieces of it at a time, so none waits in here.
    """

    def __init__(self, size: int, name: str) -> None:
        self._name = name
        self._idle: list[_Process] = []
        self._talking = ThreadPool(size, f"{name}-talks")

    async def run(
        self, function: Callable[[ExecutionContext], object], context: ExecutionContext
    ) -> object:
        """Run a function in a process; its result comes encoded.

        Raises `ProcessDied`; `Told` for what the handler raised; and when the process was ended
        because the handler was to end, what `raise_if_cancelled` raises.
        """
        process = self._take()
        run = child.Run(pickle.dumps(function), msgspec.msgpack.encode(context.delivery))
        talk = asyncio.create_task(
            self._talking.run(lambda _: process.handle(run, context), context)
        )
        watch = asyncio.create_task(_end_when_interrupted(process, context))
        try:
            answer = await talk
        except ProcessDied:
            context.raise_if_cancelled()
            raise
        finally:
            watch.cancel()
            if talk.done() and not talk.cancelled() and talk.exception() is None and process.fit:
                self._idle.append(process)
            else:
                process.end()
        if answer is None:
            context.raise_if_cancelled()
        if isinstance(answer, Failed):
            raise Told(answer)
        assert isinstance(answer, bytes)
        return msgspec.Raw(answer)

    def close(self) -> None:
        """End the idle processes; those at work end with their handlers."""
        for process in self._idle:
            process.end()
        self._idle.clear()
        self._talking.close()

    def _take(self) -> _Process:
        while self._idle:
            if (process := self._idle.pop()).fit:
                return process
        return _Process(self._name)


async def _end_when_interrupted(process: _Process, context: ExecutionContext) -> None:
    await context.interrupted.wait()
    lost = str(context.error) if context.error is not None else ""
    process.tell(child.Interrupt(context.token, lost, bool(context.cancelled)))
    await asyncio.sleep(END_GRACE_MS / 1_000)
    process.end()


class _Process:
    """One process and the pipe to it. Started, and waited for, in a thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pipe: connection.Connection | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
        self._speaking = threading.Lock()
        self._ended = False

    @property
    def fit(self) -> bool:
        """Whether it can handle another delivery."""
        return not self._ended and self._process is not None and self._process.is_alive()

    def handle(self, run: child.Run, context: ExecutionContext) -> object:
        """Have a delivery handled; its context hears of progress. Raises `ProcessDied`."""
        try:
            with self._speaking:
                if self._pipe is None:
                    self._start()
                assert self._pipe is not None
                self._pipe.send(run)
            while isinstance(answer := self._pipe.recv(), child.Progress):
                if answer.token == context.token:  # else it came too late for its own
                    context.packed_progress = answer.packed
                    context.tell_progress()
            return answer
        except (EOFError, OSError) as error:
            raise ProcessDied(self._how_it_ended()) from error

    def tell(self, message: child.Interrupt) -> None:
        """Send a message while a delivery is handled; one that cannot hear it is ended soon."""
        if self._speaking.acquire(blocking=False):
            try:
                if self._pipe is not None:
                    with contextlib.suppress(OSError):
                        self._pipe.send(message)
            finally:
                self._speaking.release()

    def end(self) -> None:
        """Kill the process, if it lives."""
        self._ended = True
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def _start(self) -> None:
        ours, theirs = _processes.Pipe()
        process = _processes.Process(
            target=child.serve, args=(theirs,), name=self._name, daemon=True
        )
        process.start()
        theirs.close()
        self._pipe, self._process = ours, process
        if self._ended:  # it was to end while it began
            process.kill()

    def _how_it_ended(self) -> str:
        if self._process is None:
            return "the handler's process could not be started"
        self._process.join(1)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"the handler's process was ended by {signal.Signals(-code).name}"
        return f"the handler's process ended with exit code {code}"

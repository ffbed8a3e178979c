"""How the driver and its load generators talk: lines over the standard streams.

The driver says ``go START_MS`` and ``stop``; a generator says ``ready``, ``progress COUNT``,
``sent`` (a submitter whose last create is answered) and ``done`` (its record is written). A
generator whose driver is gone reads the end of its input and ends: none is left behind,
whatever ends the driver.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from timeball.bench.load.plan import Plan

PROGRESS_S = 0.1

Generate = Callable[[Plan, int, "Control"], Coroutine[Any, Any, None]]


class DriverGone(Exception):
    """The driver ended without a word."""


class Control:
    """A generator's end of the conversation."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._stop = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls) -> Control:
        """Listen on the standard input."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        return cls(reader)

    async def ready(self) -> int:
        """Say that everything is prepared; the start in epoch milliseconds."""
        self._tell("ready")
        words = await self._hear()
        assert words[0] == "go", words
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        return int(words[1])

    async def stopped(self) -> None:
        """Wait until the driver says stop; raises DriverGone."""
        assert self._listening is not None
        await self._listening

    async def report(self, count: Callable[[], int]) -> None:
        """Tell the count again and again, until cancelled."""
        while True:
            self._tell(f"progress {count()}")
            await asyncio.sleep(PROGRESS_S)

    def sent(self, count: int) -> None:
        """Say that everything is submitted; `stopped` comes next."""
        self._tell(f"progress {count}")
        self._tell("sent")

    def done(self, count: int) -> None:
        """Say that everything is written down."""
        self._tell(f"progress {count}")
        self._tell("done")

    async def _listen(self) -> None:
        words = await self._hear()
        assert words == ["stop"], words

    async def _hear(self) -> list[str]:
        line = await self._reader.readline()
        if not line:
            raise DriverGone
        return line.decode().split()

    @staticmethod
    def _tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def run_generator(generate: Generate) -> None:
    """Run a generator process, given its plan's file and its number as arguments."""
    plan = Plan.load(Path(sys.argv[1]))
    number = int(sys.argv[2])

    async def main() -> None:
        await until_broken(generate(plan, number, await Control.open()))

    # A pause of the generator's own collector would be measured as the cluster's lag; what
    # it makes has no cycles, and the process is short-lived.
    gc.disable()
    uvloop.run(main())


async def until_broken(generating: Coroutine[Any, Any, None]) -> None:
    """Generate; what goes wrong in a callback of the loop ends it, too, instead of being logged."""
    broken: list[BaseException] = []
    main = asyncio.current_task()
    assert main is not None

    def end(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        broken.append(context.get("exception") or RuntimeError(context["message"]))
        main.cancel()

    asyncio.get_running_loop().set_exception_handler(end)
    try:
        await generating
    except asyncio.CancelledError:
        if broken:
            raise broken[0] from None
        raise

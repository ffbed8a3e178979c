"""The driver's end of its load generators: started, told what to do, and ended in every case."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from timeball.bench.load.probes import Usage, read_usage

READY_S = 30.0
END_S = 5.0


class GeneratorFailed(Exception):
    """A load generator ended by itself: a defect of the harness, or a cluster out of reach."""


class Generator:
    """One worker or submitter process."""

    def __init__(self, role: str, number: int, plan: Path) -> None:
        self.role = role
        self.name = f"{plan.stem}-{role}-{number}"
        self._number = number
        self._plan = plan
        self._log = plan.with_name(f"{self.name}.log")
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._finished = asyncio.Event()
        self.progress = 0
        """Executions acknowledged or completed, as it last said."""
        self.sent = False
        """Whether a submitter's last create is answered."""
        self.done = False

    async def start(self) -> None:
        """Start it and wait until it is ready; raises GeneratorFailed."""
        module = f"timeball.bench.load.{self.role}"
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(self._plan), str(self._number)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._reading = asyncio.get_running_loop().create_task(self._read())
        async with asyncio.timeout(READY_S):
            await self._ready.wait()
        self.check()

    def usage(self) -> Usage | None:
        """Its CPU time and memory so far."""
        return None if self._process is None else read_usage(self._process.pid)

    def go(self, start_ms: int) -> None:
        """Have it begin; the first execution is due at `start_ms`."""
        self._tell(f"go {start_ms}")

    def stop(self) -> None:
        """Have it finish what is under way and write its record."""
        self._tell("stop")

    async def wait(self) -> None:
        """Wait until its record is written; raises GeneratorFailed."""
        await self._finished.wait()
        self.check()

    def check(self) -> None:
        """Raise GeneratorFailed when it has ended before its record was written."""
        if self._finished.is_set() and not self.done:
            end = self._log.read_text("utf-8", "replace")[-2_000:]
            raise GeneratorFailed(f"{self.name} ended: {end.strip() or 'its log is empty'}")

    async def end(self) -> None:
        """End it: the end of its input asks, SIGKILL follows."""
        process = self._process
        if process is None:
            return
        try:
            if process.stdin is not None:
                process.stdin.close()
            with contextlib.suppress(TimeoutError):  # it gets no more time
                async with asyncio.timeout(END_S):
                    await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            if self._reading is not None:
                await self._reading

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            match line.decode().split():
                case ["ready"]:
                    self._ready.set()
                case ["progress", count]:
                    self.progress = int(count)
                case ["sent"]:
                    self.sent = True
                case ["done"]:
                    self.done = True
                    self._finished.set()
        self._ready.set()
        self._finished.set()

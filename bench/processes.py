"""The worker processes of a run: started, signalled and ended by their process ids.

Each runs in its own session, so that a Ctrl-C at the terminal reaches the harness alone,
which then ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from timeball.bench.history import ProcessSignalled, Recorder, Signal

TERMINATE_S = 8.0
"""How long a process may take to end by itself before it is killed."""

_NUMBERS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "continue": signal.SIGCONT,
    "terminate": signal.SIGTERM,
}


class WorkerProcess:
    """One worker; what it logs goes to `<name>.log` beside its history."""

    def __init__(self, name: str, folder: Path, recorder: Recorder) -> None:
        self.name = name
        self.history = folder / f"{name}.history.jsonl"
        self._log = folder / f"{name}.log"
        self._recorder = recorder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, urls: Sequence[str], cure: Path, lease_ms: int) -> None:
        """Start it."""
        arguments = [
            *("--urls", ",".join(urls)),
            *("--name", self.name),
            *("--history", str(self.history)),
            *("--cure", str(cure)),
            *("--lease-ms", str(lease_ms)),
        ]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "timeball.bench.demo_worker", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._record("start")

    @property
    def running(self) -> bool:
        """Whether the process exists, stopped or not."""
        return self._process is not None and self._process.returncode is None

    def send(self, what: Signal) -> None:
        """Send it a signal, recorded before it is sent."""
        assert self._process is not None
        self._record(what)
        os.kill(self._process.pid, _NUMBERS[what])

    async def wait(self) -> int:
        """Wait for its end; the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def end(self) -> None:
        """End it whatever its condition: gracefully if it can, by SIGKILL if it doesn't."""
        if not self.running:
            return
        try:
            self._kill(signal.SIGCONT, signal.SIGTERM)
            async with asyncio.timeout(TERMINATE_S):
                await self.wait()
        except TimeoutError:
            self._kill(signal.SIGKILL)
            await self.wait()
        finally:
            if self.running:  # cancelled while waiting: no more patience
                self._kill(signal.SIGKILL)

    def _kill(self, *numbers: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):  # it ended in the meantime
            for number in numbers:
                os.kill(self._process.pid, number)

    def _record(self, what: Signal) -> None:
        self._recorder.record(
            ProcessSignalled(
                at_us=self._recorder.clock_us(),
                source=self._recorder.source,
                process=self.name,
                signal=what,
            )
        )

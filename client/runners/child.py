"""A child process in a process group of its own, of which nothing is left when it has ended.

    start ──▶ runs ──▶ first process ends ──▶ rest of the group killed ──▶ output read to its end
                └ end(grace): SIGTERM to the group, SIGKILL after the grace

The first process is watched through a descriptor (pidfd) and reaped last of all: until then the
number of its group can belong to nobody else, so no signal ever goes astray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import IO, Self

from timeball.client.runners.results import MAX_OUTPUT_BYTES, Tail

log = logging.getLogger("timeball.runners")

MAX_COMPLAINT_BYTES = 16 * 1024
"""Of the standard error, so many bytes are kept."""
LAST_OUTPUT_S = 1.0
"""How long output may stay open when the group is gone: in the hands of who left the group."""
REAP_S = 1.0
"""How long a killed process may take to be gone when there is no time to wait for it."""
READ_BYTES = 64 * 1024
SHELL = "/bin/sh"


class Child:
    """A shell command that runs. `output` and `complaint` are what it wrote last, bounded."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.output = Tail(MAX_OUTPUT_BYTES)
        self.complaint = Tail(MAX_COMPLAINT_BYTES)
        self._process = process
        self._pidfd = -1
        self._ended = asyncio.Event()
        self._pipes: list[_Pipe] = []

    @classmethod
    def start(cls, command: str, environment: Mapping[str, str], stdin: bytes) -> Self:
        """Start a command with this on its standard input. Raises OSError."""
        with _in_memory(stdin) as file:
            process = subprocess.Popen(
                [SHELL, "-c", command],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
            )
        child = cls(process)
        try:
            child._watch()
        except BaseException:
            child.close()
            raise
        return child

    async def ended(self) -> None:
        """Wait until the first process has ended."""
        await self._ended.wait()

    async def collect(self) -> int:
        """Of a child that has ended, end what it left and read what it wrote; its exit code.

        The code is negative for the signal that ended it.
        """
        self._signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_S):
                for pipe in self._pipes:
                    await pipe.closed.wait()
        self.close()
        return self._process.returncode

    async def end(self, grace_ms: int) -> None:
        """Have the group end: by SIGTERM, and by SIGKILL after the grace."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_ms / 1_000):
                await self._ended.wait()
        self._signal(signal.SIGKILL)
        await self._ended.wait()

    def close(self) -> None:
        """Leave nothing behind, at once; also in the middle of everything else."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_S)
        for pipe in self._pipes:
            pipe.close()
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _watch(self) -> None:
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes = [_Pipe(process.stdout, self.output), _Pipe(process.stderr, self.complaint)]
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._see_the_end)

    def _see_the_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._ended.set()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the whole group, which exists until its first process is reaped."""
        if self._process.returncode is not None:
            return
        try:
            os.killpg(self._process.pid, number)
        except PermissionError:
            log.warning("process group %d belongs to another user", self._process.pid)


class _Pipe:
    """The reading end of a pipe, whose last bytes go to a tail; `closed` when it has ended."""

    def __init__(self, file: IO[bytes], tail: Tail) -> None:
        self.closed = asyncio.Event()
        self._file = file
        self._tail = tail
        os.set_blocking(file.fileno(), False)
        asyncio.get_running_loop().add_reader(file.fileno(), self._read)

    def close(self) -> None:
        """Read no more."""
        if not self.closed.is_set():
            asyncio.get_running_loop().remove_reader(self._file.fileno())
            self._file.close()
            self.closed.set()

    def _read(self) -> None:
        if data := os.read(self._file.fileno(), READ_BYTES):
            self._tail.add(data)
        else:
            self.close()


def _in_memory(data: bytes) -> IO[bytes]:
    """Make a file of the data that no disk holds: a child may read it, or not, at its leisure."""
    file = os.fdopen(os.memfd_create("payload"), "w+b")
    file.write(data)
    file.seek(0)
    return file

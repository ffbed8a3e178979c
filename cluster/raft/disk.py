"""The few things consensus asks of a disk, as a seam, and the real disk behind it.

A simulated disk keeps apart what is written and what is synced, and forgets the rest in a crash.
Every method raises OSError, which names the file; whoever vouches for data stops the node then, and
never tries again: after a failed sync the kernel may have dropped the very pages that were to be
kept. Only a lack of space can be waited out, and only where it is met before anything relies on
the write (see `finding_room`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from timeball.cluster.raft.errors import DiskFull, Misconfigured

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SPARE_FILES = 16
"""A file system that can hold fewer new files than this counts as full."""


@contextmanager
def finding_room() -> Iterator[None]:
    """Tell a lack of space as DiskFull: what is done inside must leave nothing half done."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFull(str(error)) from error
        raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Calls on open files tell no name in their errors: add it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class DiskFile(Protocol):
    """An open file."""

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end; it is durable only after `sync`."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` over what is there from `offset` on, within the file."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make content and size durable."""

    def close(self) -> None: ...


class Lock(Protocol):
    """The hold on a data directory."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system, as far as consensus needs one."""

    def lock(self, directory: Path) -> Lock:
        """Create the directory if need be and hold it alone; Misconfigured when another does."""

    def names(self, directory: Path) -> list[str]:
        """The file names in a directory, sorted."""

    def create(self, path: Path) -> DiskFile:
        """An empty file, in place of any old one; its name is durable after `sync_directory`."""

    def open(self, path: Path) -> DiskFile:
        """An existing file; FileNotFoundError otherwise."""

    def replace(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def sync_directory(self, directory: Path) -> None:
        """Make creations, renames and removals in the directory durable."""

    def free_bytes(self, directory: Path) -> int:
        """What may still be written there; 0 when no more files can be made."""

    async def aside(self, work: Callable[[], None]) -> None:
        """Let bulky `work` on this disk be done without holding up the event loop.

        It has ended on return, also when the caller is cancelled meanwhile: until then nobody
        else may touch the files that it touches.
        """


class RealFile:
    """A `DiskFile` on the operating system's disk."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._fd = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o640)
        self._size = os.fstat(self._fd).st_size

    def append(self, data: bytes) -> None:
        self.write(self._size, data)

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        with _naming(self._path):
            while view:  # a write may be short, on a full disk for one
                written = os.pwrite(self._fd, view, offset)
                offset += written
                self._size = max(self._size, offset)
                view = view[written:]

    def read(self, offset: int, length: int) -> bytes:
        parts = []
        with _naming(self._path):
            while length > 0:
                part = os.pread(self._fd, length, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return b"".join(parts)

    def size(self) -> int:
        return self._size

    def truncate(self, size: int) -> None:
        with _naming(self._path):
            os.ftruncate(self._fd, size)
        self._size = size

    def sync(self) -> None:
        with _naming(self._path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealLock:
    """An exclusive `flock`; the kernel lets go of it when the process dies."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise Misconfigured(f"{path.parent} is in use by another process") from error

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """The `Disk` of the operating system."""

    def lock(self, directory: Path) -> Lock:
        directory.mkdir(parents=True, exist_ok=True)
        return RealLock(directory / "lock")

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def create(self, path: Path) -> DiskFile:
        return RealFile(path, os.O_CREAT | os.O_TRUNC)

    def open(self, path: Path) -> DiskFile:
        return RealFile(path, 0)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _naming(directory):
                os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: Path) -> int:
        found = os.statvfs(directory)
        if found.f_files and found.f_favail < SPARE_FILES:
            return 0
        return found.f_bavail * found.f_frsize

    async def aside(self, work: Callable[[], None]) -> None:
        done = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

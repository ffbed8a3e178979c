"""A node's disk in the simulator: syncs take time, space ends, bytes rot.

What is written and what is synced is told apart by the disk of the consensus tests, which this one
builds upon.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

from raft_harness import SimDisk, SimFile
from sim_loop import SimLoop

TYPICAL_SYNC_S = 0.0004


class AgeingFile(SimFile):
    """Knows where its last batch begins, and what would be undone by a death before now."""

    def write(self, offset: int, data: bytes) -> None:
        written, size = self._data.written, len(self._data.written)
        before = bytes(written[offset : offset + len(data)])

        def undo() -> None:
            written[offset : offset + len(before)] = before
            del written[size:]

        if data.strip(b"\0"):  # zeros keep a place for what is to come
            self._data.begins = min(offset, getattr(self._data, "begins", offset))
        try:
            super().write(offset, data)
        finally:
            self._disk.may_undo(undo)

    def truncate(self, size: int) -> None:
        written, tail = self._data.written, bytes(self._data.written[size:])
        super().truncate(size)
        self._disk.may_undo(lambda: written.extend(tail))

    def sync(self) -> None:
        disk, data = self._disk, self._data
        disk.may_fail("sync", self._path)
        disk.syncs += 1
        content, begins = bytes(data.written), data.__dict__.pop("begins", None)

        def durable() -> None:
            if begins is not None:
                data.settled = begins
            data.synced = content

        disk.once_done(durable)


class FaultyDisk(SimDisk):
    """One node's disk over all its lives.

    A sync ends when its time has passed. A process that dies meanwhile has written what it never
    made durable, and has not done what it would have done next.
    """

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        super().__init__()
        self._loop = loop
        self._rng = rng
        self.sync_s = TYPICAL_SYNC_S
        self._under_way: list[tuple[float, Callable[[], None]]] = []
        self._later: list[tuple[float, Callable[[], None]]] = []

    def may_fail(self, action: str, path: Path) -> None:
        if action == "sync":
            self._loop.consume(self.sync_s * self._rng.uniform(0.5, 1.5))
        super().may_fail(action, path)

    def once_done(self, effect: Callable[[], None]) -> None:
        """Have an effect when the sync that is under way ends."""
        self._under_way.append((self._loop.time(), effect))

    def may_undo(self, undo: Callable[[], None]) -> None:
        """What is done now comes after syncs of the same turn: it may turn out never to come."""
        now = self._loop.time()
        if now > self._loop.present:
            if self._later and self._later[-1][0] <= self._loop.present:
                self._later.clear()
            self._later.append((now, undo))

    def _end_syncs(self) -> None:
        """Let those take effect that have ended."""
        now = self._loop.present
        while self._under_way and self._under_way[0][0] <= now:
            self._under_way.pop(0)[1]()

    def interrupt(self) -> None:
        """The process has died: its syncs under way come to nothing."""
        self._end_syncs()
        self._under_way.clear()
        while self._later and self._later[-1][0] > self._loop.present:
            self._later.pop()[1]()
        self._later.clear()
        self.locked = False

    def sync_directory(self, directory: Path) -> None:
        self.may_fail("sync", directory)
        files = dict(self.files)

        def durable() -> None:
            self.durable = files

        self.once_done(durable)

    def crash(self, rng: random.Random) -> None:
        self.interrupt()
        super().crash(rng)

    def create(self, path):
        self._may_restore(path)
        super().create(path)
        return AgeingFile(self, self.files[path], path)

    def open(self, path):
        super().open(path)
        return AgeingFile(self, self.files[path], path)

    def replace(self, source: Path, target: Path) -> None:
        self._may_restore(source, target)
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self._may_restore(path)
        super().remove(path)

    def _may_restore(self, *paths: Path) -> None:
        before = {path: self.files.get(path) for path in paths}

        def undo() -> None:
            for path, data in before.items():
                self.files.pop(path, None)
                if data is not None:
                    self.files[path] = data

        self.may_undo(undo)

    def wipe(self) -> None:
        """Somebody empties it; no process uses it."""
        self.interrupt()
        super().wipe()

    def fill(self) -> None:
        """Hardly any space is left."""
        self.capacity = self.used + self._rng.choice([0, 0, 700, 9_000])

    def break_syncs(self) -> None:
        self.fail["sync"] = OSError(errno.EIO, "the simulated disk failed")

    def mend(self) -> None:
        self.fail.clear()
        self.capacity = None

    def rot(self) -> str | None:
        """Flip a bit of what is durable; the name of the file, None if there is none yet.

        The last batch of a journal is spared: damage there cannot be told from a torn write.
        """
        self._end_syncs()
        places = [
            (path, limit)
            for path, data in sorted(self.files.items())
            if (limit := self._rotting(path.name, data)) > 0
        ]
        if not places:
            return None
        path, limit = self._rng.choice(places)
        data = self.files[path]
        place = self._rng.randrange(limit)
        data.written[place] ^= 1 << self._rng.randrange(8)
        data.synced = bytes(data.written[: len(data.synced)])
        return path.name

    def _rotting(self, name: str, data) -> int:
        limit = len(data.synced)
        if name.startswith("journal-"):
            limit = getattr(data, "settled", 0)
        return min(limit, len(data.written))

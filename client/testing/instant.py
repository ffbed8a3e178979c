"""Consensus of one: what is written is committed and applied in the next turn, and kept nowhere.

It stands in for `timeball.cluster.raft.consensus`: one member that leads from its start on, with
neither disk nor peers nor an election.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

from timeball.cluster.raft.errors import NotLeader
from timeball.cluster.raft.interface import Observer, PeerStatus, StateMachine
from timeball.cluster.raft.stats import Stats

TERM = 1


class InstantConsensus:
    """The only member of a cluster; see `timeball.cluster.raft.interface.Member`."""

    role: Literal["leader"] = "leader"
    term = TERM
    quorum_seen = True
    standing: Literal["voter"] = "voter"
    incarnation = 1
    obstacle = None
    apply_s = 0.0
    waiting_reads = 0
    room: Literal["plenty"] = "plenty"
    free_bytes = 0

    def __init__(self, name: str, machine: StateMachine) -> None:
        self.leader = name
        self.leading_term: int | None = None
        self.applied_index = 0
        self.last_index = 0
        self.stats = Stats()
        self.observe_fsync: list[Callable[[float], None]] = []
        self._machine = machine
        self._observers: list[Observer] = []
        self._written: deque[bytes] = deque()

    @property
    def commit_index(self) -> int:
        """All that is written is committed."""
        return self.last_index

    @property
    def known_commit_index(self) -> int:
        return self.last_index

    def peers(self) -> list[PeerStatus]:
        return []

    def add_observer(self, observer: Observer) -> None:
        self._observers.append(observer)

    async def start(self) -> None:
        """Lead, from now until `stop`."""
        self.leading_term = TERM
        self.stats.leaderships += 1
        for observer in self._observers:
            observer.on_leadership(TERM)

    async def stop(self) -> None:
        """Lead no more; what is written and not applied is gone."""
        if self.leading_term is not None:
            self.leading_term = None
            self._written.clear()
            for observer in self._observers:
                observer.on_leadership(None)

    def append(self, entry: bytes) -> int:
        if self.leading_term is None:
            raise NotLeader(None)
        self.last_index += 1
        self._written.append(entry)
        asyncio.get_running_loop().call_soon(self._apply)
        return self.last_index

    def _apply(self) -> None:
        if not self._written:
            return
        entry = self._written.popleft()
        self.applied_index += 1
        applied = self._machine.apply(self.applied_index, entry)
        if applied.halt is not None:
            for observer in self._observers:
                observer.on_halt(applied.halt)
            raise AssertionError(f"the cluster has stopped itself: {applied.halt}")
        self.stats.entries_applied += 1
        for observer in self._observers:
            observer.on_applied(self.applied_index, TERM, entry, applied)

    def read(self, index: int, *, strong: bool) -> asyncio.Future[None]:  # noqa: ARG002
        """Every read is fresh: what is written is applied before anybody is answered."""
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        read.set_result(None)
        return read

    def take_snapshot(self) -> int:
        """There is no disk: the state is dumped and forgotten."""
        for _ in self._machine.dump():
            pass
        self.stats.snapshots_taken += 1
        return self.applied_index

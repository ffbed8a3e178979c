"""The one node of a virtual cluster: a real one, without sockets, peers, disk and watches.

State machine, group commit, dispatcher, HTTP routes and handlers are those of
`timeball.cluster.node`. Entries need no spacing here, nothing is leased ahead of its due time (so
that what a test sees is exact to the millisecond), and the dispatcher looks around once an hour
instead of each second, since its wall clock never steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from timeball.client.messages import MAX_INSTANT_MS
from timeball.client.testing.instant import InstantConsensus
from timeball.cluster.node import DISPATCH, Node
from timeball.cluster.raft.interface import Applied
from timeball.cluster.settings import Address, Limits, NodeSettings, Process, Settings
from timeball.cluster.state.records import Execution

NAME = "virtual"
URL = "http://virtual:80"
_LOOK_MS = 3_600_000
_ADDRESS = Address("virtual", 80)


class VirtualNode(Node):
    """A node that leads from its start on. `changed` is called after each entry."""

    def __init__(
        self,
        wall_clock_ms: Callable[[], int],
        changed: Callable[[], None],
        queues: Sequence[str] | None,
        seed: int,
    ) -> None:
        self._changed = changed
        settings = Settings(
            path=Path("virtual"),
            name=NAME,
            secret=b"",
            nodes=(NodeSettings(NAME, _ADDRESS, _ADDRESS),),
            queues=None if queues is None else frozenset(queues),
            limits=Limits(),
            process=Process(commit_spacing_ms=0),
        )
        super().__init__(
            settings,
            NAME,
            wall_clock_ms=wall_clock_ms,
            clock=asyncio.get_running_loop().time,
            rng=random.Random(seed),
            member=lambda machine: InstantConsensus(NAME, machine),
            dispatch=replace(
                DISPATCH,
                lead_ms=0,
                lead_span_ms=0,
                longest_wait_ms=_LOOK_MS,
                horizon_ms=2 * _LOOK_MS,
            ),
        )

    async def start(self) -> None:
        """Lead; nothing else is opened, and nothing is watched."""
        await self.consensus.start()

    async def stop(self) -> None:
        """Lead no more: claims that wait are refused."""
        await self.consensus.stop()

    def on_applied(self, index: int, term: int, entry: bytes, applied: Applied) -> None:
        """Tell whoever waits for a change, too."""
        super().on_applied(index, term, entry, applied)
        self._changed()

    # --- what is left to do ------------------------------------------------------------------

    def due(self) -> list[Execution]:
        """What waits for a worker, or is in the hands of one."""
        now_ms = self.wall_clock_ms()
        return self._left(lambda execution: execution.due_ms <= now_ms)

    def open(self) -> list[Execution]:
        """What is due or will be, but for occurrences that a timetable has planned ahead."""
        now_ms = self.wall_clock_ms()
        return self._left(
            lambda execution: (
                execution.job.recurrence is None
                or execution.token > 0
                or execution.due_ms <= now_ms
            )
        )

    def _left(self, counts: Callable[[Execution], bool]) -> list[Execution]:
        buckets = self.state.pending.upto(MAX_INSTANT_MS)
        scheduled = [each for _, bucket in buckets for each in bucket if counts(each)]
        return [*self.state.leased.values(), *scheduled]

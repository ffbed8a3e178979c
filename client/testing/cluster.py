"""The virtual cluster for asynchronous tests; see the head of the package."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Self

from timeball.client.client import Client
from timeball.client.messages import encode_execution_id
from timeball.client.middleware import CreateMiddleware
from timeball.client.surroundings import Surroundings
from timeball.client.testing.direct import DirectTransport, Way
from timeball.client.testing.node import URL, VirtualNode
from timeball.client.testing.virtual_time import VirtualTime
from timeball.cluster.http.instants import parse_instant
from timeball.cluster.state.records import ExecutionState

if TYPE_CHECKING:
    from timeball.cluster.state.records import Execution

Instant = str | int | datetime
"""ISO 8601 with an offset, epoch milliseconds, or a datetime with a time zone."""

START = "2026-01-01T00:00Z"
DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_SHOWN = 5


class NotIdle(AssertionError):
    """Executions are left when the time that they were given is over; the message names them."""


class VirtualCluster:
    """A cluster in this process, for tests: real rules, virtual time, neither sockets nor disk.

    ``async with VirtualCluster(start="2026-03-08T06:00Z") as cluster:`` begins at that instant.
    From then on the running event loop has virtual time, for all that runs in it: time passes only
    while everything waits, and costs nothing. The test lets it pass with `advance`, `advance_to`,
    `run_due` and `run_until_idle`, or simply by waiting for something.

    `queues` names the queues that the cluster serves, if it does not serve any. `seed` decides
    what is left to chance. `patience_s` is how long, in real seconds, time stands still for a
    handler that runs in a thread or process, or for what `elsewhere` covers.

    Raises RuntimeError in an event loop that is not asyncio's own (uvloop), and while another
    cluster has the loop; InvalidRequest for a start that is no instant.
    """

    def __init__(
        self,
        *,
        start: Instant = START,
        queues: Sequence[str] | None = None,
        seed: int = 0,
        patience_s: float = 5.0,
    ) -> None:
        if patience_s < 0:
            raise ValueError(f"patience_s is at least 0, got {patience_s}")
        self._start_ms = instant_ms(start, "start")
        self._queues = queues
        self._patience_s = patience_s
        self._rng = Random(seed)
        self._changed = asyncio.Event()
        self._time: VirtualTime | None = None
        self._node: VirtualNode | None = None
        self._way: Way | None = None

    async def __aenter__(self) -> Self:
        if self._time is not None:
            raise RuntimeError("a cluster is used once")
        self._time = time = VirtualTime(self._start_ms, self._patience_s)
        try:
            seed = self._rng.getrandbits(64)
            self._node = node = VirtualNode(
                lambda: time.now_ms, self._changed.set, self._queues, seed
            )
            self._way = Way(node.application.handle)
            await node.start()
            await time.rest()
            assert node.serving, "what is to be done at an instant is done in it"
            node.levels.stop()  # raised already, as far as can be; it would look once a second
        except BaseException:
            time.release()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        time, node, way = self._parts()
        try:
            way.end()
            await node.stop()
            await asyncio.sleep(0)  # who waited for an answer learns that there is none
        finally:
            time.release()

    # --- using it ----------------------------------------------------------------------------

    def client(
        self,
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        read_your_writes: bool = False,
        gather_creates_ms: int | None = None,
        middleware: Sequence[CreateMiddleware] = (),
    ) -> Client:
        """Make a client of this cluster; the options are those of `Client`. Workers that it is
        handed to live in virtual time, too."""
        time, _, way = self._parts()
        return Client(
            URL,
            timeout_ms=timeout_ms,
            attempt_timeout_ms=attempt_timeout_ms,
            read_your_writes=read_your_writes,
            gather_creates_ms=gather_creates_ms,
            middleware=middleware,
            rng=Random(self._rng.getrandbits(64)),
            transport=DirectTransport(way),
            surroundings=Surroundings(lambda: time.now_ms, 0, time.elsewhere),
        )

    @property
    def way(self) -> Way:
        """How clients reach this cluster, for transports of other kinds."""
        return self._parts()[2]

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Cut the network between this cluster and all its clients; requests under way are lost.

        The cluster goes on: leases run out, and timetables move.
        """
        _, _, way = self._parts()
        way.cut()
        try:
            yield
        finally:
            way.mend()

    def elsewhere(self) -> AbstractContextManager[None]:
        """Have virtual time stand still, for `patience_s` of real time at most: around what waits
        for the world outside, such as a database."""
        return self._parts()[0].elsewhere()

    # --- time --------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The present of the cluster, in UTC."""
        return _EPOCH + self.now_ms * _MS

    @property
    def now_ms(self) -> int:
        """The present of the cluster, in epoch milliseconds."""
        return self._parts()[0].now_ms

    async def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Let time pass, and all be done that can be done by then, at its own instant each.

        Without a length, what can be done at this instant is done. What takes longer goes on when
        more time passes.
        """
        length = (by or timedelta()) + timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        if length < timedelta():
            raise ValueError(f"time does not go back: {length}")
        await self._parts()[0].pass_until(self.now_ms + length // _MS)

    async def advance_to(self, instant: Instant) -> None:
        """Like `advance`, up to an instant. Raises ValueError for one that has passed."""
        to_ms = instant_ms(instant, "instant")
        if to_ms < self.now_ms:
            raise ValueError(f"time does not go back: {instant} is before {self.now.isoformat()}")
        await self._parts()[0].pass_until(to_ms)

    async def run_due(self, *, within: timedelta = DAY) -> timedelta:
        """Let all be run that is due, and what comes due meanwhile; tells how long that took.

        An attempt that fails and is to be repeated later is left for later. Raises `NotIdle` when
        something is left after `within`: no worker serves its queue, say.
        """
        return await self._run(self._parts()[1].due, within)

    async def run_until_idle(self, *, within: timedelta = DAY) -> timedelta:
        """Let everything be run that there is, now or later, with all attempts and the pauses
        between them; tells how long that took.

        Occurrences that a timetable has planned ahead are left. Raises `NotIdle` when something
        else is left after `within`.
        """
        return await self._run(self._parts()[1].open, within)

    async def _run(self, left: Callable[[], list[Execution]], within: timedelta) -> timedelta:
        time, _, _ = self._parts()
        began_ms = time.now_ms
        by_ms = began_ms + within // _MS
        with time.asked():
            await time.rest()
            while executions := left():
                if time.now_ms >= by_ms:
                    raise NotIdle(_tell(executions, time.now_ms, within))
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((by_ms - time.now_ms) / 1_000):
                        await self._changed.wait()
                await time.rest()
        return (time.now_ms - began_ms) * _MS

    def _parts(self) -> tuple[VirtualTime, VirtualNode, Way]:
        if self._time is None or self._node is None or self._way is None:
            raise RuntimeError("the cluster has not begun: use it with `async with`")
        return self._time, self._node, self._way


def instant_ms(instant: Instant, field: str) -> int:
    """Read an instant as epoch milliseconds; raises InvalidRequest naming `field`."""
    if isinstance(instant, datetime):
        return parse_instant(instant.isoformat(), field)
    return parse_instant(instant, field)


def _tell(executions: list[Execution], now_ms: int, within: timedelta) -> str:
    lines = [f"after {within}, {len(executions)} executions are left:"]
    for execution in executions[:_SHOWN]:
        if execution.state is not ExecutionState.SCHEDULED:
            how = "is in the hands of a worker"
        elif execution.due_ms <= now_ms:
            how = "is due, and no worker takes it"
        else:
            how = f"is due at {(_EPOCH + execution.due_ms * _MS).isoformat()}"
        name = encode_execution_id(execution.job.id, execution.nominal_ms)
        attempts = f"{execution.attempts_used} attempts"
        lines.append(f"  {name} of queue {execution.job.queue!r}, {attempts}, {how}")
    if len(executions) > _SHOWN:
        lines.append(f"  and {len(executions) - _SHOWN} more")
    return "\n".join(lines)

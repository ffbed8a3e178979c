"""Looking on while a run goes on: the workers' growing histories and each node's own view."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from timeball.bench.history import (
    AnyEvent,
    Event,
    FinalAnswers,
    HistoryReader,
    LeaderObserved,
    Recorder,
)
from timeball.client.client import Client
from timeball.client.errors import TimeballError
from timeball.client.messages import ClusterView

GLANCE_S = 0.02
"""How often a condition is looked at."""
IDLE_GLANCE_S = 0.1
PAGE_SIZE = 500
"""Of the lists of final answers."""
ANSWER_MS = 600
"""A node that takes longer than this to say how it stands counts as silent."""

E = TypeVar("E", bound=Event)
T = TypeVar("T")


class NotSeen(Exception):
    """Something that the run depends on did not happen in time."""


async def until_seen(what: str, look: Callable[[], T | None], timeout_s: float) -> T:
    """Look until there is something; raises NotSeen, naming `what`, after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            while (seen := look()) is None:  # noqa: ASYNC110 - a file wakes nobody
                await asyncio.sleep(GLANCE_S)
            return seen
    except TimeoutError:
        raise NotSeen(f"not seen within {timeout_s:g} s: {what}") from None


async def in_time(what: str, seeing: Awaitable[T], timeout_s: float) -> T:
    """Wait for a sight; raises NotSeen, naming `what`, after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            return await seeing
    except TimeoutError:
        raise NotSeen(f"not seen within {timeout_s:g} s: {what}") from None


class Watch:
    """Follows history files as they grow."""

    def __init__(self) -> None:
        self._readers: list[HistoryReader] = []
        self.events: list[AnyEvent] = []

    def follow(self, path: Path) -> None:
        """Follow one more file."""
        self._readers.append(HistoryReader(path))

    def refresh(self) -> None:
        """Read what is new."""
        for reader in self._readers:
            self.events.extend(reader.read())

    async def event(
        self, what: str, kind: type[E], matches: Callable[[E], bool], timeout_s: float
    ) -> E:
        """Wait for an event (earlier ones count); raises NotSeen."""
        checked = 0

        def look() -> E | None:
            nonlocal checked
            self.refresh()
            fresh, checked = self.events[checked:], len(self.events)
            return next((e for e in fresh if isinstance(e, kind) and matches(e)), None)

        return await until_seen(what, look, timeout_s)


class Nodes:
    """Each node asked by itself, without fail-over."""

    def __init__(self, clients: dict[str, Client], recorder: Recorder) -> None:
        self._clients = clients
        self._recorder = recorder

    async def view(self, name: str, *, digest: bool = False) -> ClusterView | None:
        """What a node says of the cluster; None when it can't be asked."""
        try:
            return await self._clients[name].cluster(digest=digest)
        except TimeballError:
            return None

    async def views(self, *, digest: bool = False) -> list[ClusterView]:
        """What each node says that can be asked."""
        views = await asyncio.gather(*(self.view(name, digest=digest) for name in self._clients))
        return [view for view in views if view is not None]

    async def snapshot(self, name: str) -> None:
        """Have a node begin a snapshot, if it can be asked and does not write one already."""
        with contextlib.suppress(TimeballError):
            await self._clients[name].take_snapshot()

    async def leader(self, *, above_term: int = 0, timeout_s: float = 15.0) -> ClusterView:
        """Wait for a node that leads and serves in a later term, and record it; raises NotSeen."""
        try:
            async with asyncio.timeout(timeout_s):
                while (view := await self._first_leader(above_term)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(GLANCE_S)
        except TimeoutError:
            raise NotSeen(f"no node leads within {timeout_s:g} s") from None
        self._observed(view)
        return view

    async def _first_leader(self, above_term: int) -> ClusterView | None:
        """Ask all at once and take the first that leads: a dead node keeps nobody waiting."""
        asked = [asyncio.create_task(self.view(name)) for name in self._clients]
        try:
            for answer in asyncio.as_completed(asked):
                view = await answer
                if view and view.role == "leader" and view.serving and view.term > above_term:
                    return view
            return None
        finally:
            for task in asked:
                task.cancel()

    async def agreed(self, timeout_s: float) -> list[ClusterView]:
        """Views with digests once all nodes stand at one index, else as they are in the end."""
        views: list[ClusterView] = []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    views = await self.views(digest=True)
                    standing = {view.applied_index for view in views}
                    if len(views) == len(self._clients) and len(standing) == 1:
                        return views
                    await asyncio.sleep(GLANCE_S)
        except TimeoutError:
            return views

    async def caught_up(self, name: str, timeout_s: float) -> None:
        """Wait until a node has applied all that is committed anywhere; raises NotSeen."""

        async def look() -> None:
            while True:
                views = {view.node: view for view in await self.views()}
                highest = max((view.commit_index for view in views.values()), default=0)
                if name in views and len(views) > 1 and views[name].applied_index >= highest:
                    return
                await asyncio.sleep(GLANCE_S)

        await in_time(f"{name} with all that was committed", look(), timeout_s)

    async def idle(self, timeout_s: float) -> None:
        """Wait until no execution is scheduled, leased or running anywhere; raises NotSeen."""

        async def look() -> None:
            while True:
                leader = await self.leader()
                if not any(queue.scheduled + queue.leased for queue in leader.queues):
                    return
                await asyncio.sleep(IDLE_GLANCE_S)

        await in_time("the end of all executions", look(), timeout_s)

    def _observed(self, view: ClusterView) -> None:
        self._recorder.record(
            LeaderObserved(
                at_us=self._recorder.clock_us(),
                source=self._recorder.source,
                leader=view.node,
                term=view.term,
            )
        )


@asynccontextmanager
async def asking(urls: Mapping[str, str], recorder: Recorder) -> AsyncIterator[Nodes]:
    """Open a client for each node, given by name."""
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(Client([url], timeout_ms=ANSWER_MS))
            for name, url in urls.items()
        }
        yield Nodes(clients, recorder)


async def final_answers(
    client: Client, nodes: Nodes, expected: int, asked_us: int, agree_s: float
) -> FinalAnswers:
    """What the cluster answers when a run is over; nodes get `agree_s` to stand at one index."""
    views = await nodes.agreed(agree_s)
    return FinalAnswers(
        asked_us=asked_us,
        jobs=[job async for job in client.jobs(page_size=PAGE_SIZE)],
        executions=[e async for e in client.executions(page_size=PAGE_SIZE)],
        nodes=views,
        expected_nodes=expected,
    )

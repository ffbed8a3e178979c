"""The event stream: everything that happens to executions and jobs, as Server-Sent Events.

Any node tells what it applies, and every node tells the same under the same ids, so a client goes
on at another one where the first left off. A stream asks the node's history for more whenever its
client has taken what came before: nothing is queued for a client, and one that is slower than the
log is cut off once its place in the history is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from timeball.client.errors import EventsGone, NotAcceptable, Overloaded
from timeball.cluster.history import Position, Reader, behind
from timeball.cluster.http.event_views import (
    EVENT_STREAM,
    EventFilter,
    frame_event,
    frame_position,
    read_filter,
    read_position,
)
from timeball.cluster.http.exchange import APPLIED_INDEX, Request, Response, Stream, StreamBroken
from timeball.cluster.http.paging import read_choice, read_query
from timeball.cluster.http.problems import RETRY_MS
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services

LAST_EVENT_ID = "last-event-id"
KEEP_ALIVE_S = 5.0
"""A stream that has nothing to tell says at least so often up to where that holds."""
SPACING_S = 0.01
"""A stream that has told everything rests so long, so that many entries share a write."""
LOOKED_AT = 500
"""Events that a stream looks at in one turn of the loop."""
PART_BYTES = 32 * 1024
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Nobody in between is to keep events, or to hold them back."""


class Events:
    """The handler of the event stream."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [Route(method="GET", pattern="/v1/events", handler=self.stream, plain=True)]

    async def stream(self, request: Request) -> Response:
        """Tell what happens, from a place in the log on."""
        known = ("after", "queue", "job", "type", "state", "follow")
        parameters = read_query(request.query, known)
        _require_accepted(request)
        wanted = read_filter(parameters)
        follow = read_choice(parameters, "follow", ("true", "false")) != "false"
        position = await self._begin(request, parameters)
        services = self._services
        limit = services.settings.process.event_streams
        if services.history.counts.open >= limit:
            raise Overloaded(
                f"this node tells events to {limit} clients, which is its limit",
                retry_after_ms=RETRY_MS,
            )
        applied_index = str(services.applied_index)
        return Response(
            200,
            content_type=EVENT_STREAM,
            headers={**_HEADERS, APPLIED_INDEX: applied_index},
            stream=Stream(
                self._parts(Reader(services.history, position), wanted, follow), self._cut_off
            ),
        )

    async def _begin(self, request: Request, parameters: dict[str, str]) -> Position:
        """Where the stream begins; waits, as a read does, until the node has come so far."""
        history, replica = self._services.history, self._services.replica
        # A browser repeats its first request, and tells in the header how far it has come.
        last = request.headers.get(LAST_EVENT_ID, "")
        text = last or parameters.get("after")
        if text is None:
            return behind(history.index)
        position = read_position(text, LAST_EVENT_ID if last else "after")
        if position is None:
            return behind(history.oldest)
        if position.entry > replica.applied_index:
            await replica.read(position.entry, strong=False)
        if position.entry < history.oldest:
            raise EventsGone.before(history.oldest, history.index)
        return position

    async def _parts(
        self, reader: Reader, wanted: EventFilter, follow: bool
    ) -> AsyncGenerator[bytes, None]:
        """The stream in parts of bounded size, each made in a bounded time."""
        history, clock = self._services.history, asyncio.get_running_loop().time
        spoke_s = -KEEP_ALIVE_S
        self._services.history.counts.open += 1
        try:
            while True:
                frames = self._frames(reader, wanted)
                if reader.at_end and (not follow or clock() - spoke_s >= KEEP_ALIVE_S):
                    frames.append(frame_position(reader.told))
                if frames:
                    spoke_s = clock()
                    yield b"".join(frames)
                if not reader.at_end:
                    await asyncio.sleep(0)
                elif not follow:
                    return
                elif history.closed:
                    raise StreamBroken
                elif frames:
                    await asyncio.sleep(SPACING_S)
                else:
                    await history.wait(KEEP_ALIVE_S)
        finally:
            self._services.history.counts.open -= 1

    def _frames(self, reader: Reader, wanted: EventFilter) -> list[bytes]:
        """What there is to tell in this turn; raises StreamBroken when it is gone."""
        frames: list[bytes] = []
        size = 0
        for _ in range(LOOKED_AT):
            if reader.at_end or size >= PART_BYTES:
                break
            found = reader.next()
            if found is None:
                self._cut_off()
                raise StreamBroken
            if wanted.admits(found.happening):
                frames.append(frame_event(found))
                size += len(frames[-1])
        self._services.history.counts.sent += len(frames)
        return frames

    def _cut_off(self) -> None:
        self._services.history.counts.cut_off += 1


def _require_accepted(request: Request) -> None:
    accept = request.headers.get("accept", "")
    ranges = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if accept and not {EVENT_STREAM, "text/*", "*/*"} & set(ranges):
        raise NotAcceptable(f"events come as {EVENT_STREAM} alone")

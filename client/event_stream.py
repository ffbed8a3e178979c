"""Following the event stream: from node to node, without a gap and without a repeat.

A node's stream is a sequence of frames; each brings an event, or says up to where everything has
been told. Whatever breaks it, the next node asked goes on behind the last frame.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Protocol
from urllib.parse import urlencode

import msgspec

from timeball.client import errors
from timeball.client.failover import Attempts, Trouble
from timeball.client.flow import NoReply, Policy, Reply, Send, Steps, judge, pausing
from timeball.client.messages import OLDEST, Event

SILENCE_MS = 15_000
"""A node says something every 5 s; one that is silent for so long is left."""
MAX_FRAME_BYTES = 1024 * 1024
EVENT_STREAM = "text/event-stream"


class Opened(Protocol):
    """An answer that comes in parts."""

    async def read(self) -> bytes | NoReply:
        """Wait for the next part: empty at the end, NoReply when it broke before."""
        ...

    async def close(self) -> None:
        """Read no more."""
        ...


class Opening(Protocol):
    """What a transport does for streams, besides flows."""

    async def drive(self, steps: Steps[None]) -> None:
        """Take a flow to its end."""
        ...

    async def open(self, send: Send) -> Opened | Reply | NoReply:
        """Send a request for a stream; anything but a success is read whole."""
        ...


class Frames:
    """Takes the bytes of a stream apart."""

    def __init__(self) -> None:
        self._rest = b""
        self.last_id = ""
        """Of the latest frame: everything up to there has been told."""

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that are whole by now; raises InternalError for what is none."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        if len(self._rest) > MAX_FRAME_BYTES:
            raise errors.InternalError(f"a frame of more than {MAX_FRAME_BYTES} bytes")
        for frame in frames:
            found = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line)
            event = self._event(found[b"data"]) if b"data" in found else None
            self.last_id = found.get(b"id", self.last_id.encode()).decode("ascii", "replace")
            if event is not None:
                yield event

    def _event(self, data: bytes) -> Event:
        try:
            return msgspec.json.decode(data, type=Event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise errors.InternalError(f"what the node told is no event: {error}") from error


class Following:
    """One reader of the stream, wherever it is connected."""

    def __init__(
        self, transport: Opening, policy: Policy, query: dict[str, str], timeout_ms: int
    ) -> None:
        """`timeout_ms` bounds the search for a node, each time."""
        self._transport = transport
        self._policy = policy
        self._query = query
        self._timeout_ms = timeout_ms
        self._fruitless = 0

    async def events(self, follow: bool) -> AsyncGenerator[Event, None]:
        """Yield what happens; unless it is to `follow`, until everything has been told."""
        while True:
            opened = await self._connect()
            url = self._policy.nodes.preferred
            frames = Frames()
            try:
                while not isinstance(part := await opened.read(), NoReply):
                    if not part and not follow:
                        return
                    if not part:
                        break
                    for event in frames.feed(part):
                        self._query["after"] = event.id
                        self._fruitless = 0
                        yield event
                    self._query["after"] = frames.last_id or self._query.get("after", "")
            finally:
                await opened.close()
            self._policy.nodes.failed(url, "")
            self._fruitless += 1
            if self._fruitless > 1:  # or a node that breaks each stream would be asked for ever
                backoff = self._policy.backoff
                await self._pause(backoff.draw_ms(self._fruitless, self._policy.rng))

    async def _connect(self) -> Opened:
        """Find a node that goes on from here; raises EventsGone when no node does."""
        nodes, now_ms = self._policy.nodes, self._policy.now_ms
        deadline_ms = now_ms() + self._timeout_ms
        attempts = Attempts(nodes, self._policy.backoff, self._policy.rng, deadline_ms)
        gone: dict[str, errors.EventsGone] = {}
        while True:
            query = {name: value for name, value in self._query.items() if value}
            path = f"/v1/events?{urlencode(query)}"
            patience_ms = max(1, min(SILENCE_MS, deadline_ms - now_ms()))
            headers = {"Accept": f"{EVENT_STREAM}, application/problem+json"}
            found = await self._transport.open(
                Send(attempts.url, "GET", path, headers, None, patience_ms)
            )
            if not isinstance(found, Reply | NoReply):
                attempts.succeeded()
                return found
            trouble, error = judge(found, attempts.url)
            assert error is not None, "a success is opened"
            if isinstance(error, errors.EventsGone):
                gone[attempts.url] = error
                if len(gone) == len(nodes.urls):
                    raise _the_least(gone)
                trouble = Trouble.BEHIND
            if trouble is None:
                raise error
            following = attempts.after(
                trouble, now_ms(), retry_after_ms=error.retry_after_ms, leader=error.leader
            )
            if following is None:
                raise _the_least(gone) if gone else error
            if following.pause_ms:
                await self._pause(following.pause_ms)

    async def _pause(self, pause_ms: int) -> None:
        await self._transport.drive(pausing(pause_ms))


def _the_least(gone: dict[str, errors.EventsGone]) -> errors.EventsGone:
    """The refusal of the node that keeps the most."""
    return min(gone.values(), key=lambda error: error.oldest_index or 0)


def query_of(
    after: str | int | None,
    queue: str | None,
    job: str | None,
    types: tuple[str, ...],
    states: tuple[str, ...],
    follow: bool,
) -> dict[str, str]:
    """Make the query of a stream; raises InvalidRequest for a negative position."""
    if isinstance(after, int) and after < 0:
        raise errors.InvalidRequest.at("after", f"a position of the log, or {OLDEST!r}")
    return {
        "after": "" if after is None else str(after),
        "queue": queue or "",
        "job": job or "",
        "type": ",".join(types),
        "state": ",".join(states),
        "follow": "" if follow else "false",
    }

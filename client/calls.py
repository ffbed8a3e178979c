"""How a client calls: where the cluster is, how long to try, what has been seen, how to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random, SystemRandom
from types import TracebackType
from typing import Protocol, Self, TypeVar
from urllib.parse import quote, urlencode
from uuid import UUID

from yarl import URL

from timeball.client.event_stream import Opened
from timeball.client.failover import Backoff, Nodes
from timeball.client.flow import Call, NoReply, Policy, Reply, Send, Steps, flow
from timeball.client.messages import Consistency
from timeball.client.surroundings import Surroundings
from timeball.client.transport import AsyncTransport

T = TypeVar("T")

DEFAULT_URLS = ("http://127.0.0.1:7001", "http://127.0.0.1:7002", "http://127.0.0.1:7003")
"""Where `timeball dev` serves."""
MAX_URLS = 32


class Transport(Protocol):
    """What takes a flow's steps; see `timeball.client.transport`."""

    async def drive(self, steps: Steps[T]) -> T:
        """Take a flow to its end: its value or its exception."""
        ...

    async def open(self, send: Send) -> Opened | Reply | NoReply:
        """Send a request for a stream; anything but a success is read whole."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def loop_ms() -> int:
    """Read the running loop's monotonic clock."""
    return int(asyncio.get_running_loop().time() * 1_000)


def as_tags(field: str, given: Sequence[str]) -> tuple[str, ...]:
    """Take tags as they are given. Raises TypeError, naming the field, for a single text."""
    if isinstance(given, str):
        raise TypeError(f"{field} takes a sequence of tags, such as [{given!r}], not one text")
    return tuple(given)


class Calls:
    """What the requests of all nouns share; `Client` documents it for users."""

    def __init__(
        self,
        urls: Sequence[str] | str = DEFAULT_URLS,
        *,
        timeout_ms: int = 30_000,
        attempt_timeout_ms: int = 5_000,
        connections: int = 100,
        read_your_writes: bool = False,
        backoff: Backoff | None = None,
        rng: Random | None = None,
        now_ms: Callable[[], int] = loop_ms,
        transport: Transport | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        if timeout_ms < 1 or attempt_timeout_ms < 1 or connections < 1:
            raise ValueError("timeout_ms, attempt_timeout_ms and connections are at least 1")
        self.timeout_ms = timeout_ms
        self.attempt_timeout_ms = attempt_timeout_ms
        self.rng = rng or SystemRandom()
        self.read_your_writes = read_your_writes
        self.surroundings = surroundings or Surroundings()
        self.seen_index = 0
        nodes = Nodes(parse_urls(urls))
        self._policy = Policy(nodes, backoff or Backoff(), self.rng, now_ms, self._saw)
        self._transport: Transport = transport or AsyncTransport(connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    def new_request_id(self) -> str:
        """Make a request id: 128 random bits as a version-4 UUID in hexadecimal."""
        return UUID(int=self.rng.getrandbits(128), version=4).hex

    def _fresh(self, consistency: Consistency, min_index: int) -> dict[str, str | int | None]:
        """Make the query of a read that is to be so fresh; what is the default is left out."""
        if self.read_your_writes:
            min_index = max(min_index, self.seen_index)
        return {
            "consistency": None if consistency == "applied" else consistency,
            "min_index": min_index or None,
        }

    def _saw(self, index: int) -> None:
        self.seen_index = max(self.seen_index, index)

    async def _get(self, path: str, answer: type[T], **query: str | int | None) -> T:
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        return await self._call(Call("GET", target, answer, writes=False))

    async def _call(self, call: Call[T], timeout_ms: int | None = None) -> T:
        steps = flow(
            call,
            self._policy,
            self.timeout_ms if timeout_ms is None else max(1, timeout_ms),
            self.attempt_timeout_ms,
        )
        return await self._transport.drive(steps)


def parse_urls(urls: Sequence[str] | str) -> list[str]:
    """Parse nodes' base URLs (a sequence, or one string with commas); raises ValueError."""
    given = urls.split(",") if isinstance(urls, str) else urls
    bases = [text.strip().rstrip("/") for text in given if text.strip()]
    if not 1 <= len(bases) <= MAX_URLS:
        raise ValueError(f"a client takes 1 to {MAX_URLS} URLs, got {len(bases)}")
    for base in bases:
        if not (url := URL(base)).host or url.scheme not in ("http", "https"):
            raise ValueError(f"not an http or https URL: {base!r}")
        if url.query_string or url.fragment or url.user:
            raise ValueError(f"a node's URL is scheme, host and port: {base!r}")
    return bases


def segment(text: str) -> str:
    """Quote a text for its place between two slashes of a path."""
    return quote(text, safe="")

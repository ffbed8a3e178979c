"""A scripted HTTP peer on loopback and a loop whose time passes only when nothing else happens."""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))  # for handlers that run in processes


class VirtualSelector(selectors.DefaultSelector):
    """Waits for sockets in real time, for timers not at all: it moves its own clock instead."""

    LOOPBACK_S = 0.003
    """Real time that bytes under way on loopback get before a timer may fire."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            return super().select(None)
        ready = super().select(self.LOOPBACK_S)
        if not ready:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class Seen(NamedTuple):
    """A request as the peer received it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    at: float
    peer: str


class Answer(NamedTuple):
    status: int
    body: Any
    headers: Mapping[str, str] = MappingProxyType({})
    content_type: str = ""


Script = Callable[[Seen], Awaitable["Answer | None"]]
"""What a peer does with a request; None: break the connection without an answer."""


class Peer:
    """One node of the protocol's transcripts: plays scripted answers, else the usual ones."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Seen] = []
        self.usual: dict[str, Script] = {
            "/v1/claims": self._nothing_due,
            "/v1/executions/heartbeat": self._extended,
            "/v1/executions/complete": self._accepted,
            "/v1/executions/fail": self._accepted,
            "/v1/executions/release": self._accepted,
            "/v1/executions/start": self._accepted,
        }
        self._scripted: dict[str, deque[Script]] = defaultdict(deque)
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.changed = asyncio.Event()

    def then(self, path: str, *answers: Answer | Script | None) -> None:
        """Append answers for a path; each is used once."""
        for answer in answers:
            self._scripted[path].append(answer if callable(answer) else _constant(answer))

    def to(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until what the peer has seen makes a condition true."""
        while not true():
            self.changed.clear()
            await self.changed.wait()

    async def start(self) -> None:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        seen = Seen(
            request.method,
            request.raw_path.split("?")[0],
            dict(request.query),
            {name.lower(): value for name, value in request.headers.items()},
            msgspec.msgpack.decode(raw) if raw else None,
            asyncio.get_running_loop().time(),
            self.name,
        )
        self.seen.append(seen)
        self.changed.set()
        queue = self._scripted[seen.path]
        script = queue.popleft() if queue else self.usual.get(seen.path)
        answer = await script(seen) if script else Answer(404, problem("not-found", 404))
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        kind = answer.content_type or (
            "application/problem+msgpack" if answer.status >= 400 else "application/msgpack"
        )
        body = answer.body if isinstance(answer.body, bytes) else encode(answer.body)
        return web.Response(
            status=answer.status, body=body, headers={**answer.headers, "Content-Type": kind}
        )

    @staticmethod
    async def _nothing_due(seen: Seen) -> Answer:
        await asyncio.sleep(seen.body["wait_ms"] / 1_000)
        return Answer(200, {"request_id": seen.body["request_id"], "executions": []})

    @staticmethod
    async def _accepted(seen: Seen) -> Answer:
        return reports(seen, "accepted", 200)

    @staticmethod
    async def _extended(seen: Seen) -> Answer:
        return beats(seen, "extended")


encode = msgspec.msgpack.encode


def _constant(answer: Answer | None) -> Script:
    async def play(_: Seen) -> Answer | None:
        return answer

    return play


def reports(seen: Seen, verdict: str, status: int) -> Answer:
    return Answer(
        200,
        {
            "results": [
                {"execution_id": item["execution_id"], "verdict": verdict, "status": status}
                for item in seen.body["items"]
            ]
        },
    )


def beats(seen: Seen, verdict: str, lease_ms: int = 3_000) -> Answer:
    return Answer(
        200,
        {
            "results": [
                {
                    "execution_id": item["execution_id"],
                    "verdict": verdict,
                    "lease_remaining_ms": lease_ms,
                }
                for item in seen.body["items"]
            ]
        },
    )


def problem(code: str, status: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": f"urn:timeball:problem:{code}",
        "title": code,
        "status": status,
        **fields,
    }


def delivery(number: int, *, lease_ms: int = 3_000, **fields: Any) -> dict[str, Any]:
    return {
        "execution_id": f"{number}-1764480000000",
        "job_id": str(number),
        "queue": "default",
        "token": 1_000 + number,
        "attempt": 1,
        "max_attempts": 5,
        "nominal_ms": 1_764_480_000_000,
        "due_ms": 1_764_480_000_000,
        "lease_ms": lease_ms,
        "timeout_ms": 0,
        "idempotency_key": f"{number}-1764480000000",
        "payload": {"number": number},
        **fields,
    }


def granted(*deliveries: dict[str, Any]) -> Script:
    async def play(seen: Seen) -> Answer:
        return Answer(200, {"request_id": seen.body["request_id"], "executions": list(deliveries)})

    return play


class Kit:
    """What tests of the client need, under one name."""

    Answer = Answer
    Peer = Peer
    Seen = Seen
    beats = staticmethod(beats)
    delivery = staticmethod(delivery)
    granted = staticmethod(granted)
    problem = staticmethod(problem)
    reports = staticmethod(reports)

    @staticmethod
    def run(scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario in virtual time."""
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(scenario)

    @staticmethod
    @asynccontextmanager
    async def peers(count: int) -> AsyncIterator[list[Peer]]:
        peers = [Peer(f"n{number}") for number in range(1, count + 1)]
        for peer in peers:
            await peer.start()
        try:
            yield peers
        finally:
            for peer in peers:
                await peer.stop()

    @staticmethod
    @contextmanager
    def serving() -> Iterator[Peer]:
        """A peer on a loop of its own thread, since a command brings its own loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        peer = Peer("n1")

        async def stop() -> None:
            await peer.stop()
            await asyncio.gather(
                *(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True
            )
            await asyncio.sleep(0)  # for transports that close now

        try:
            asyncio.run_coroutine_threadsafe(peer.start(), loop).result()
            yield peer
            asyncio.run_coroutine_threadsafe(stop(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@pytest.fixture
def kit() -> type[Kit]:
    return Kit

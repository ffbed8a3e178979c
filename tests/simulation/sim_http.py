"""HTTP in the simulator: the node's real connections, on streams of the simulated network.

Everything from the bytes on is production code: parsing, routing, handlers, forwarding, and what a
connection does when its client has gone. A stream carries one request and its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from sim_loop import Process
from sim_net import Network

from timeball.client.errors import OutcomeUnknown, Unavailable
from timeball.cluster.http.connection import Connection
from timeball.cluster.http.exchange import HOPS, Request, Response
from timeball.cluster.http.forward import (
    _PASSED_ON,
    _TAKEN_BACK,
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
)
from timeball.cluster.http.problems import RETRY_MS
from timeball.cluster.http.server import HttpServer


class Refused(Exception):
    """Nobody listens there: nothing was asked."""


class Lost(Exception):
    """The connection broke, or nothing was heard in time: what was asked may have been done."""


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes


class Host(msgspec.Struct, eq=False):
    """A node that listens."""

    process: Process
    server: HttpServer
    streams: dict[int, Stream]


class Web:
    """Who listens where."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.loop = network.loop
        self.hosts: dict[str, Host] = {}
        self._numbers = 0
        self._asking: dict[Process, dict[int, Stream]] = {}

    def listen(self, name: str, process: Process, server: HttpServer) -> None:
        self.hosts[name] = Host(process, server, {})

    def die(self, name: str, *, vanished: bool = False) -> None:
        """The node's process ends: its kernel resets what stood, unless it is gone too."""
        host = self.hosts.pop(name, None)
        if host is not None and not vanished:
            for stream in list(host.streams.values()):
                stream.break_for_client()

    def client_died(self, process: Process) -> None:
        """The kernel closes the connections of a client that was killed."""
        for stream in list(self._asking.pop(process, {}).values()):
            stream.close()

    async def ask(
        self, place: str, process: Process, target: str, request: bytes, timeout_s: float
    ) -> Answer:
        """Send a request from a place and wait for its answer; raises Refused or Lost."""
        self._numbers += 1
        stream = Stream(self, self._numbers, place, process, target)
        asking = self._asking.setdefault(process, {})
        asking[stream.number] = stream
        stream.connect(request)
        try:
            async with asyncio.timeout(timeout_s):
                return await stream.answered
        except TimeoutError:
            raise Lost("no answer in time") from None
        finally:
            asking.pop(stream.number, None)
            stream.close()


class Stream:
    """One connection, seen from both ends."""

    def __init__(self, web: Web, number: int, place: str, process: Process, target: str) -> None:
        self.web = web
        self.number = number
        self.target = target
        self.answered: asyncio.Future[Answer] = web.loop.create_future()
        self._place = place
        self._process = process
        self._host: Host | None = None
        self._protocol: Connection | None = None
        self._received = bytearray()
        self._client_open = True

    # --- from the client to the node ---------------------------------------------------------

    def connect(self, request: bytes) -> None:
        self._to_node(self._accept, request)

    def _to_node(self, callback: Any, *args: Any) -> None:
        network = self.web.network
        if network.passes(self._place, self.target):
            when = network.arrival(self._place, self.target)
            self.web.loop.call_at_for(None, when, self._reach, callback, *args)

    def _reach(self, callback: Any, *args: Any) -> None:
        if not self.web.network.passes(self._place, self.target):
            return
        host = self.web.hosts.get(self.target)
        if host is None or self._host not in (None, host):
            self.break_for_client(Refused("nobody listens there"))
        else:
            host.process.call_at(self.web.loop.time(), callback, host, *args)

    def _accept(self, host: Host, request: bytes) -> None:
        if host.server.draining:
            self.break_for_client(Refused("it takes no connection any more"))
            return
        self._host = host
        host.streams[self.number] = self
        self._protocol = Connection(host.server)
        self._protocol.connection_made(_Transport(self))
        if self._protocol is not None:
            self._protocol.data_received(request)

    def close(self) -> None:
        """The client is done with it, or has given up."""
        if self._client_open:
            self._client_open = False
            self._to_node(self._on_eof)

    def _on_eof(self, _host: Host) -> None:
        protocol = self._protocol
        if protocol is not None and not protocol.eof_received():
            self.lose(None)

    def _on_reset(self, _host: Host) -> None:
        self.lose(ConnectionResetError("the client has gone"))

    # --- from the node to the client ---------------------------------------------------------

    def to_client(self, data: bytes) -> None:
        assert self._host is not None
        self._host.process.call_now(self._send_to_client, data)

    def _send_to_client(self, data: bytes) -> None:
        network = self.web.network
        if network.passes(self.target, self._place):
            when = network.arrival(self.target, self._place)
            self._process.call_at(when, self._take, data)

    def _take(self, data: bytes) -> None:
        if not self._client_open or not self._process.alive:
            self._to_node(self._on_reset)
            return
        self._received += data
        answer = parse_answer(bytes(self._received))
        if answer is not None and not self.answered.done():
            self.answered.set_result(answer)

    def break_for_client(self, error: Exception | None = None) -> None:
        """The client learns that the connection is no more."""
        network = self.web.network
        if network.passes(self.target, self._place):
            when = network.arrival(self.target, self._place)
            self._process.call_at(when, self._fail, error or Lost("the connection was reset"))

    def _fail(self, error: Exception) -> None:
        if self._client_open:
            self._client_open = False
            if not self.answered.done():
                self.answered.set_exception(error)

    # --- the node's end ------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        return self._protocol is None

    def shut(self, error: Exception | None) -> None:
        """The node closes its end; its protocol is told in its next turn."""
        if self._protocol is not None:
            self.break_for_client()
            self.web.loop.call_soon(self.lose, error)

    def lose(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            assert self._host is not None
            self._host.streams.pop(self.number, None)
            protocol.connection_lost(error)


class _Transport(asyncio.Transport):
    """The node's end of a stream, as its protocol sees it."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._closing = False

    def write(self, data) -> None:
        if not self._closing:
            self._stream.to_client(bytes(data))

    def writelines(self, parts) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        return

    def is_closing(self) -> bool:
        return self._closing or self._stream.closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._stream.shut(None)

    def abort(self) -> None:
        self.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def get_extra_info(self, name, default=None):
        return default


def render_request(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "host: simulated"]
    head += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        head.append(f"content-length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


def parse_answer(raw: bytes) -> Answer | None:
    """The answer, once it is whole."""
    head, found, body = raw.partition(b"\r\n\r\n")
    if not found:
        return None
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    if len(body) < int(headers.get("Content-Length", "0")):
        return None
    return Answer(int(first.split()[1]), headers, body)


class Passing:
    """How a node passes a request on, in place of `Forwarder._send`: over simulated streams."""

    def __init__(self, web: Web, place: str, process: Process) -> None:
        self._web = web
        self._place = place
        self._process = process

    async def __call__(self, url: str, request: Request, *, write: bool) -> Response:
        node = node_at(url)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers[HOPS] = "1"
        target = request.path + (f"?{request.query}" if request.query else "")
        raw = render_request(request.method, target, request.body, headers)
        timeout_s = ANSWER_TIMEOUT_S
        if not self._web.network.passes(self._place, node):
            timeout_s = CONNECT_TIMEOUT_S  # the connection does not even come about
        try:
            answer = await self._web.ask(self._place, self._process, node, raw, timeout_s)
        except Refused as error:
            raise Unavailable("the leader cannot be reached", retry_after_ms=RETRY_MS) from error
        except Lost as error:
            if write:
                raise OutcomeUnknown(
                    "the connection to the leader was lost under way", retry_after_ms=RETRY_MS
                ) from error
            raise Unavailable("the leader did not answer", retry_after_ms=RETRY_MS) from error
        return Response(
            status=answer.status,
            body=answer.body,
            content_type=answer.headers.get("Content-Type", ""),
            headers={n: answer.headers[n] for n in _TAKEN_BACK if n in answer.headers},
        )


def node_at(url: str) -> str:
    """The nodes' HTTP hosts are their names."""
    return url.removeprefix("http://").partition(":")[0]

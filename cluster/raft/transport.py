"""Messages between members over TCP: framed, authenticated, bounded; nothing is ever unpickled.

A frame is its length (u32, big-endian), a MAC of 16 bytes, and a msgpack message; an empty one is
a ping. Handshake frames have no MAC and a small limit; a connection that has not proved itself in
time is closed, and so are strangers beyond a number.

Both sides dial while they have no connection, each with a quick, jittered backoff, so a direction
that is blocked does not matter. A connection carries both directions. When two stand, both sides
prefer the one that the higher name dialled; a newer one from the same dialler takes the place of
the older, whose other end is gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import msgspec

from timeball.cluster.raft.handshake import (
    MAC_BYTES,
    MAX_HANDSHAKE_FRAME,
    NONCE_BYTES,
    VERSION,
    Challenge,
    FrameMac,
    Hello,
    Proof,
    Refused,
    Transcript,
    digest_of,
)
from timeball.cluster.raft.messages import Message
from timeball.cluster.raft.network import Receiver
from timeball.cluster.raft.settings import MIN_SECRET_BYTES, RaftSettings

_logger = logging.getLogger(__name__)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_NOTHING = digest_of(b"")
_T = TypeVar("_T")


def _frame(content: bytes, mac: bytes = b"") -> bytes:
    return (len(mac) + len(content)).to_bytes(4, "big") + mac + content


def _decode(raw: bytes | memoryview, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(f"not a handshake: {error}") from error


class Connection(asyncio.Protocol):
    """One TCP connection, from its first byte on."""

    def __init__(self, network: TcpNetwork, dialled: str | None) -> None:
        self._network = network
        self._dialled = dialled
        self.peer: str | None = None
        """The member at the other end, once it has proved itself."""
        self.closed = False
        self.born_at = self.heard_at = self._spoke_at = network.clock()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._hello: Hello | None = None
        self._transcript: Transcript | None = None
        self._send_mac: FrameMac | None = None
        self._receive_mac: FrameMac | None = None

    @property
    def dials(self) -> bool:
        """Whether this node dialled."""
        return self._dialled is not None

    @property
    def dialler(self) -> str | None:
        """Who dialled this connection, by name."""
        return self._network.name if self._dialled is not None else self.peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        if not self._network.admit(self):
            self.abort()
        elif self._dialled is not None:
            self._hello = self._network.hello(self._dialled)
            self._say(self._hello)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._network.lost(self)

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _say(self, message: Hello | Challenge | Proof) -> None:
        assert self._transport is not None
        self._transport.write(_frame(_encoder.encode(message)))

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._network.clock()
        self._buffer += data
        try:
            self._take_frames()
        except Refused as refused:
            self._network.refused(self, str(refused))
            self.abort()

    def _take_frames(self) -> None:
        buffer = self._buffer
        start = 0
        while len(buffer) - start >= 4 and not self.closed:
            length = int.from_bytes(buffer[start : start + 4], "big")
            limit = self._network.settings.max_frame_bytes
            if length > (limit if self.peer is not None else MAX_HANDSHAKE_FRAME):
                raise Refused(f"a frame of {length} bytes is over the limit")
            if len(buffer) - start - 4 < length:
                break
            content = bytes(memoryview(buffer)[start + 4 : start + 4 + length])
            start += 4 + length
            if self.peer is not None:
                self._on_frame(self.peer, content)
            else:
                self._on_handshake(content)
        if start:
            del buffer[:start]

    def _on_frame(self, peer: str, content: bytes) -> None:
        assert self._receive_mac is not None
        view = memoryview(content)
        body = view[MAC_BYTES:]
        if not secrets.compare_digest(self._receive_mac.next(body), content[:MAC_BYTES]):
            raise Refused("a frame's MAC does not match")
        if not body:
            return
        try:
            message = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise Refused(f"not a message: {error}") from error
        self._network.receive(peer, message)

    def _on_handshake(self, content: bytes) -> None:
        if self._dialled is None and self._hello is None:
            hello = self._network.check_hello(_decode(content, Hello))
            challenge = Challenge(secrets.token_bytes(NONCE_BYTES))
            self._hello = hello
            self._transcript = self._network.transcript(hello, challenge)
            self._say(challenge)
        elif self._dialled is None:
            assert self._transcript is not None
            assert self._hello is not None
            self._transcript.check("dialler", _decode(content, Proof))
            self._say(self._transcript.proof("listener"))
            self._authenticated(self._hello.sender, "listener", "dialler")
        elif self._transcript is None:
            assert self._hello is not None
            self._transcript = self._network.transcript(self._hello, _decode(content, Challenge))
            self._say(self._transcript.proof("dialler"))
        else:
            self._transcript.check("listener", _decode(content, Proof))
            self._authenticated(self._dialled, "dialler", "listener")

    def _authenticated(self, peer: str, own_role: str, peer_role: str) -> None:
        assert self._transcript is not None
        self._send_mac = FrameMac(self._transcript.key(own_role))
        self._receive_mac = FrameMac(self._transcript.key(peer_role))
        self.peer = peer
        self._network.authenticated(self, peer)

    def send(self, content: bytes, digest: bytes) -> bool:
        """Send a frame; False when it was dropped, because too much is unsent already."""
        transport, mac = self._transport, self._send_mac
        assert transport is not None
        assert mac is not None
        if self.closed or transport.is_closing():
            return False
        unsent = transport.get_write_buffer_size()
        if unsent + len(content) > self._network.settings.max_send_buffer_bytes:
            return False
        self._spoke_at = self._network.clock()
        transport.write(_frame(content, mac.next_of(digest)))
        return True

    def ping_if_quiet(self, now: float, quiet_s: float) -> None:
        if now - self._spoke_at >= quiet_s:
            self.send(b"", _NOTHING)


_REFUSALS_TOLD_EVERY_S = 10.0


class TcpNetwork:
    """The `Network` of real clusters."""

    def __init__(
        self,
        name: str,
        members: Mapping[str, tuple[str, int]],
        cluster_id: str,
        secret: bytes,
        settings: RaftSettings,
        clock: Callable[[], float],
        rng: random.Random,
        founding: Callable[[], str] = lambda: "",
    ) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the cluster's secret must have at least {MIN_SECRET_BYTES} bytes")
        self.name = name
        self.settings = settings
        self.clock = clock
        self._members = dict(members)
        self._cluster_id = cluster_id
        self._secret = secret
        self._founding = founding
        self._rng = rng
        self._receiver: Receiver | None = None
        self._server: asyncio.Server | None = None
        self._strangers: dict[Connection, None] = {}
        """Connections that have not proved themselves yet, the oldest first."""
        self._connections: dict[str, dict[str, Connection]] = {}
        """By peer, then by who dialled."""
        self._message: Message | None = None
        """The last that was sent, as such, encoded, and hashed."""
        self._content = b""
        self._digest = _NOTHING
        self._tasks: list[asyncio.Task[None]] = []
        self.dropped = 0
        """Messages not sent, for want of a connection or of room in its buffer."""
        self.refusals = 0
        """Connections closed because the other side did not prove itself or broke the rules."""
        self._refusals_told = 0
        self._tell_refusals_at = float("-inf")

    async def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        host, port = self._members[self.name]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self, None), host, port)
        peers = sorted(set(self._members) - {self.name})
        self._connections = {peer: {} for peer in peers}
        self._tasks = [loop.create_task(self._keep_dialling(peer)) for peer in peers]
        self._tasks.append(loop.create_task(self._keep_alive()))

    async def stop(self) -> None:
        self._receiver = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._server is not None:
            self._server.close()
        for connection in self._all():
            connection.abort()
        await asyncio.sleep(0)  # aborted connections are closed in the loop's next turn

    def _all(self) -> list[Connection]:
        standing = [c for by_dialler in self._connections.values() for c in by_dialler.values()]
        return [*self._strangers, *standing]

    def send(self, peer: str, message: Message) -> bool:
        connection = self._preferred(peer)
        if message is not self._message:  # one that goes to several is encoded once
            self._message, self._content = message, _encoder.encode(message)
            self._digest = digest_of(self._content)
        if connection is None or not connection.send(self._content, self._digest):
            self.dropped += 1
            return False
        return True

    def _preferred(self, peer: str) -> Connection | None:
        by_dialler = self._connections.get(peer)
        if not by_dialler:
            return None
        return by_dialler[max(by_dialler)]

    # What connections ask and tell.

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may try to prove itself.

        Whom this node has dialled always may. Of those who dial it the one that has tried for
        longest makes room: a member proves itself in a moment, so it is not kept out by a crowd
        that says nothing.
        """
        if self._receiver is None:
            self.refusals += 1
            return False
        if not connection.dials:
            waiting = [stranger for stranger in self._strangers if not stranger.dials]
            if len(waiting) >= self.settings.max_strangers:
                self.refused(waiting[0], "too many try to prove themselves")
                waiting[0].abort()
                del self._strangers[waiting[0]]
        self._strangers[connection] = None
        return True

    def hello(self, peer: str) -> Hello:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Hello(VERSION, self._cluster_id, self._founding(), self.name, peer, nonce)

    def check_hello(self, hello: Hello) -> Hello:
        if hello.version != VERSION:
            raise Refused(f"it speaks version {hello.version}, this node speaks {VERSION}")
        if hello.cluster_id != self._cluster_id:
            raise Refused("it belongs to another cluster or another list of members")
        own = self._founding()
        if own and hello.founding and hello.founding != own:
            raise Refused(
                f"the disk of {hello.sender!r} is of a cluster of the same name that was founded "
                "at another time: empty one of the two disks"
            )
        if hello.receiver != self.name or hello.sender not in self._connections:
            raise Refused("it is no member, or looks for another node")
        return hello

    def transcript(self, hello: Hello, challenge: Challenge) -> Transcript:
        return Transcript(self._secret, hello, challenge.nonce)

    def authenticated(self, connection: Connection, peer: str) -> None:
        self._strangers.pop(connection, None)
        by_dialler = self._connections[peer]
        dialler = connection.dialler
        assert dialler is not None
        old = by_dialler.pop(dialler, None)
        if old is not None:
            old.abort()
        if self._receiver is None:
            connection.abort()
            return
        known = bool(by_dialler)
        by_dialler[dialler] = connection
        if old is not None and not known:
            self._receiver.on_disconnected(peer)
        if not known:
            self._receiver.on_connected(peer)

    def receive(self, peer: str, message: Message) -> None:
        if self._receiver is not None:
            self._receiver.on_message(peer, message)

    def refused(self, connection: Connection, reason: str) -> None:
        self.refusals += 1
        now = self.clock()
        if now < self._tell_refusals_at:
            return  # a peer with another secret dials several times a second, for ever
        others = self.refusals - self._refusals_told - 1
        self._refusals_told = self.refusals
        self._tell_refusals_at = now + _REFUSALS_TOLD_EVERY_S
        _logger.warning(
            "%s: closed the connection with %s: %s%s",
            self.name,
            connection.peer or "a stranger",
            reason,
            f" ({others} others since the last such line)" if others else "",
        )

    def lost(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        peer, dialler = connection.peer, connection.dialler
        if peer is None or dialler is None:
            return
        by_dialler = self._connections[peer]
        if by_dialler.get(dialler) is connection:
            del by_dialler[dialler]
            if not by_dialler and self._receiver is not None:
                self._receiver.on_disconnected(peer)

    # Keeping connections.

    async def _keep_dialling(self, peer: str) -> None:
        """Dial while there is no connection; names are resolved anew each time."""
        low, high = self.settings.redial_min_s, self.settings.redial_max_s
        wait = low
        loop = asyncio.get_running_loop()
        while True:
            if self._connections[peer]:
                wait = low
            else:
                host, port = self._members[peer]
                try:
                    # Not wait_for, which may lose a cancellation (Python 3.11).
                    async with asyncio.timeout(self.settings.handshake_timeout_s):
                        await loop.create_connection(lambda: Connection(self, peer), host, port)
                except (OSError, TimeoutError) as error:
                    _logger.debug("%s: dialling %s failed: %s", self.name, peer, error)
                else:
                    await asyncio.sleep(low)
                wait = min(high, wait * 2)
            await asyncio.sleep(wait * self._rng.uniform(0.5, 1.0))

    async def _keep_alive(self) -> None:
        """Ping quiet connections; close dead ones, and strangers that take too long."""
        quiet = self.settings.idle_timeout_s / 4
        while True:
            await asyncio.sleep(min(quiet, self.settings.handshake_timeout_s / 4))
            now = self.clock()
            for connection in self._all():
                if connection.peer is not None:
                    connection.ping_if_quiet(now, quiet)
                    overdue = now - connection.heard_at > self.settings.idle_timeout_s
                else:
                    overdue = now - connection.born_at > self.settings.handshake_timeout_s
                if overdue:
                    self.refused(connection, "nothing was heard in time")
                    connection.abort()

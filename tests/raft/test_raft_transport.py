"""The transport on real sockets: strangers get nothing, members meet (F5, RAFT-20, H1)."""

from __future__ import annotations

import asyncio
import pickle
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from timeball.cluster.raft.handshake import (
    MAX_HANDSHAKE_FRAME,
    VERSION,
    Challenge,
    FrameMac,
    Hello,
    Proof,
    Refused,
    Transcript,
)
from timeball.cluster.raft.messages import AppendReply, Message, SnapshotChunk, TimeoutNow
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.raft.transport import Connection, TcpNetwork

SECRET = b"the secret of the cluster"
CLUSTER = "c" * 32
SETTINGS = RaftSettings(handshake_timeout_s=0.3, max_strangers=5, idle_timeout_s=0.8)


class Receiver:
    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []
        self.connected: list[str] = []
        self.disconnected: list[str] = []

    def on_message(self, peer: str, message: Message) -> None:
        self.messages.append((peer, message))

    def on_connected(self, peer: str) -> None:
        self.connected.append(peer)

    def on_disconnected(self, peer: str) -> None:
        self.disconnected.append(peer)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Net:
    """Members on loopback, started one by one."""

    def __init__(self, names: str = "ab") -> None:
        ports = free_ports(len(names))
        self.members = {n: ("127.0.0.1", p) for n, p in zip(names, ports, strict=True)}
        self.networks: dict[str, TcpNetwork] = {}
        self.receivers: dict[str, Receiver] = {}
        self.writers: list[asyncio.StreamWriter] = []
        self.foundings: dict[str, str] = {}

    async def start(self, name: str, secret: bytes = SECRET, **over: Any) -> TcpNetwork:
        members = {**self.members, **over.pop("members", {})}
        network = TcpNetwork(
            name,
            members,
            over.pop("cluster", CLUSTER),
            secret,
            over.pop("settings", SETTINGS),
            asyncio.get_running_loop().time,
            random.Random(name),
            founding=lambda: self.foundings.get(name, ""),
        )
        self.networks[name] = network
        self.receivers[name] = Receiver()
        await network.start(self.receivers[name])
        return network

    async def dial(self, name: str = "a") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.members[name])
        self.writers.append(writer)
        return reader, writer


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what happens in sockets sets no event
            await asyncio.sleep(0.005)


@pytest_asyncio.fixture
async def net() -> AsyncIterator[Net]:
    net = Net()
    yield net
    for writer in net.writers:
        writer.transport.abort()
    for network in net.networks.values():
        await network.stop()


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def assert_closed(reader: asyncio.StreamReader) -> None:
    """The other side hangs up without another word."""
    async with asyncio.timeout(10):
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            return


async def shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes = SECRET
) -> Transcript:
    hello = Hello(VERSION, CLUSTER, "", "b", "a", b"n" * 32)
    writer.write(frame(msgspec.msgpack.encode(hello)))
    challenge = msgspec.msgpack.decode(await read_frame(reader), type=Challenge)
    transcript = Transcript(secret, hello, challenge.nonce)
    writer.write(frame(msgspec.msgpack.encode(transcript.proof("dialler"))))
    return transcript


async def test_members_find_each_other_and_talk_both_ways(net: Net):
    a, b = await net.start("a"), await net.start("b")
    await until(lambda: net.receivers["a"].connected and net.receivers["b"].connected)
    a.send("b", TimeoutNow(1))
    b.send("a", AppendReply(2, True, 3))
    await until(lambda: net.receivers["a"].messages and net.receivers["b"].messages)
    assert net.receivers["a"].messages == [("b", AppendReply(2, True, 3))]
    assert net.receivers["b"].messages == [("a", TimeoutNow(1))]


async def test_order_is_kept_and_nothing_is_sent_twice(net: Net):
    a, _ = await net.start("a"), await net.start("b")
    await until(lambda: net.receivers["a"].connected)
    for term in range(500):
        a.send("b", TimeoutNow(term))
    await until(lambda: len(net.receivers["b"].messages) == 500)
    assert [m.term for _, m in net.receivers["b"].messages] == list(range(500))


async def test_h1_a_peer_that_comes_back_is_found_again_soon(net: Net):
    await net.start("a")
    b = await net.start("b")
    await until(lambda: net.receivers["a"].connected)
    await b.stop()
    await until(lambda: net.receivers["a"].disconnected)
    await net.start("b")
    async with asyncio.timeout(2):
        await until(lambda: len(net.receivers["a"].connected) == 2)


@pytest.mark.parametrize("blind", ["a", "b"])
async def test_h1_one_blocked_direction_of_dialling_is_enough(net: Net, blind: str):
    other = "b" if blind == "a" else "a"
    await net.start(blind, members={other: ("127.0.0.1", free_ports(1)[0])})
    await net.start(other)
    await until(lambda: net.receivers[blind].connected)
    net.networks[blind].send(other, TimeoutNow(1))
    await until(lambda: net.receivers[other].messages)


async def test_h1_names_are_resolved_and_an_unknown_one_harms_nothing(net: Net):
    await net.start("a", members={"b": ("no-such-host.invalid", 1)})
    await net.start("b", members={"a": ("localhost", net.members["a"][1])})
    await until(lambda: net.receivers["a"].connected)


async def test_a_restarted_peer_is_told_as_gone_and_back(net: Net):
    """A newer connection from the same dialler means a new process behind it."""
    await net.start("a", members={"b": ("127.0.0.1", free_ports(1)[0])})
    for _ in range(2):
        reader, writer = await net.dial()
        await shake_hands(reader, writer)
        await read_frame(reader)
    receiver = net.receivers["a"]
    await until(lambda: receiver.connected == ["b", "b"] and receiver.disconnected == ["b"])


async def test_a_silent_connection_is_given_up(net: Net):
    await net.start("a", members={"b": ("127.0.0.1", free_ports(1)[0])})
    reader, writer = await net.dial()
    await shake_hands(reader, writer)
    await until(lambda: net.receivers["a"].connected)
    await until(lambda: net.receivers["a"].disconnected)


async def test_a_quiet_connection_is_kept_by_pings(net: Net):
    await net.start("a")
    await net.start("b")
    await until(lambda: net.receivers["a"].connected)
    await asyncio.sleep(SETTINGS.idle_timeout_s * 2)
    assert net.receivers["a"].disconnected == []


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        frame(b""),
        frame(b"\xff" * 100),
        frame(pickle.dumps({"type": "append_entries", "term": 99})),
        frame(msgspec.msgpack.encode(TimeoutNow(99))),
        frame(msgspec.msgpack.encode(Hello(VERSION + 1, CLUSTER, "", "b", "a", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, "d" * 32, "", "b", "a", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "stranger", "a", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "a", "a", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "b", "b", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "b", "a", b"short"))),
        (2**31 - 1).to_bytes(4, "big") + b"x",
        (MAX_HANDSHAKE_FRAME + 1).to_bytes(4, "big"),
    ],
    ids=lambda said: said[4:20].hex() or said.hex() or "silence",
)
async def test_f5_raft20_a_stranger_is_shown_the_door(net: Net, said: bytes):
    await net.start("a")
    reader, writer = await net.dial()
    writer.write(said)
    await assert_closed(reader)
    assert net.receivers["a"].messages == []
    assert net.receivers["a"].connected == []


@pytest.mark.parametrize(
    "said",
    [
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "stranger", "a", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "b", "elsewhere", b"n" * 32))),
        frame(msgspec.msgpack.encode(Hello(VERSION, "d" * 32, "", "b", "a", b"n" * 32))),
        (MAX_HANDSHAKE_FRAME + 1).to_bytes(4, "big"),
        (2**31 - 1).to_bytes(4, "big") + b"x",
    ],
    ids=["no member", "for another node", "of another cluster", "too long", "2 GiB"],
)
async def test_f5_raft20_a_stranger_gets_no_challenge(net: Net, said: bytes):
    """It is closed for what it said, not when its time is over."""
    await net.start("a", settings=RaftSettings(handshake_timeout_s=60))
    reader, writer = await net.dial()
    writer.write(said)
    await assert_closed(reader)


class Exploit:
    """Runs code when it is unpickled."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return (setattr, (Exploit, "ran", True))


async def test_f5_raft20_nothing_is_unpickled_before_or_after_the_handshake(net: Net):
    await net.start("a")
    reader, writer = await net.dial()
    writer.write(frame(pickle.dumps(Exploit())))
    await assert_closed(reader)
    reader, writer = await net.dial()
    transcript = await shake_hands(reader, writer)
    await read_frame(reader)
    body = pickle.dumps(Exploit())
    writer.write(frame(FrameMac(transcript.key("dialler")).next(body) + body))
    await assert_closed(reader)
    assert not Exploit.ran


async def test_raft16_disks_of_two_foundings_do_not_meet(net: Net, caplog):
    net.foundings = {"a": "1" * 16, "b": "2" * 16}
    await net.start("a")
    await net.start("b")
    await until(lambda: net.networks["a"].refusals >= 3 and net.networks["b"].refusals >= 3)
    assert net.receivers["a"].connected == net.receivers["b"].connected == []
    assert "founded at another time: empty one of the two disks" in caplog.text


@pytest.mark.parametrize("foundings", [{}, {"a": "1"}, {"b": "1"}, {"a": "1", "b": "1"}], ids=str)
async def test_raft16_a_disk_without_a_cluster_meets_any(net: Net, foundings: dict[str, str]):
    net.foundings = foundings
    await net.start("a")
    await net.start("b")
    await until(lambda: net.receivers["a"].connected and net.receivers["b"].connected)


async def test_raft16_a_member_that_is_led_to_itself_meets_nobody(net: Net):
    await net.start("a", members={"b": net.members["a"]})
    await until(lambda: net.networks["a"].refusals >= 2)
    assert net.receivers["a"].connected == []


async def test_raft20_a_dialler_without_the_secret_is_refused(net: Net):
    await net.start("a")
    reader, writer = await net.dial()
    await shake_hands(reader, writer, b"another secret, as long")
    await assert_closed(reader)
    assert net.receivers["a"].connected == []


async def test_raft20_a_listener_without_the_secret_is_refused(net: Net):
    await net.start("a")
    await net.start("b", secret=b"another secret, as long")
    await until(lambda: net.networks["a"].refusals > 3)
    assert net.receivers["a"].connected == []
    assert net.receivers["b"].connected == []


async def test_raft20_a_replayed_handshake_is_refused(net: Net):
    await net.start("a")
    reader, writer = await net.dial()
    transcript = await shake_hands(reader, writer)
    await read_frame(reader)
    recorded = [
        frame(msgspec.msgpack.encode(Hello(VERSION, CLUSTER, "", "b", "a", b"n" * 32))),
        frame(msgspec.msgpack.encode(transcript.proof("dialler"))),
    ]
    before = len(net.receivers["a"].connected)
    reader, writer = await net.dial()
    writer.write(recorded[0])
    await read_frame(reader)
    writer.write(recorded[1])
    await assert_closed(reader)
    assert len(net.receivers["a"].connected) == before


async def test_raft20_a_reflected_proof_is_refused():
    transcript = Transcript(SECRET, Hello(VERSION, CLUSTER, "", "b", "a", b"n" * 32), b"m" * 32)
    transcript.check("dialler", transcript.proof("dialler"))
    with pytest.raises(Refused):
        transcript.check("dialler", transcript.proof("listener"))
    assert transcript.key("dialler") != transcript.key("listener")


@pytest.mark.parametrize(
    "changed",
    [
        Hello(VERSION, CLUSTER, "", "a", "b", b"n" * 32),
        Hello(VERSION, CLUSTER, "", "b", "c", b"n" * 32),
        Hello(VERSION, "d" * 32, "", "b", "a", b"n" * 32),
        Hello(VERSION + 1, CLUSTER, "", "b", "a", b"n" * 32),
        Hello(VERSION, CLUSTER, "f" * 16, "b", "a", b"n" * 32),
        Hello(VERSION, CLUSTER, "", "b", "a", b"o" * 32),
    ],
)
async def test_raft20_a_proof_is_bound_to_all_that_was_said(changed: Hello):
    transcript = Transcript(SECRET, Hello(VERSION, CLUSTER, "", "b", "a", b"n" * 32), b"m" * 32)
    with pytest.raises(Refused):
        Transcript(SECRET, changed, b"m" * 32).check("dialler", transcript.proof("dialler"))


async def test_raft20_a_forged_repeated_or_damaged_frame_ends_the_connection(net: Net):
    await net.start("a")
    body = msgspec.msgpack.encode(TimeoutNow(1))
    other = msgspec.msgpack.encode(TimeoutNow(2))
    for forge, sound in (
        (lambda mac: frame(b"m" * 16 + body), []),
        (lambda mac: frame(mac.next(body) + other), []),
        (lambda mac: frame(mac.next(body) + body) * 2, [TimeoutNow(1)]),
        (lambda mac: frame(b"short"), []),
    ):
        reader, writer = await net.dial()
        transcript = await shake_hands(reader, writer)
        await read_frame(reader)
        net.receivers["a"].messages.clear()
        writer.write(forge(FrameMac(transcript.key("dialler"))))
        async with asyncio.timeout(5):
            while await reader.read(1000):
                pass
        assert [message for _, message in net.receivers["a"].messages] == sound


async def test_raft20_a_member_cannot_send_more_than_a_frame_holds(net: Net):
    await net.start("a")
    reader, writer = await net.dial()
    await shake_hands(reader, writer)
    await read_frame(reader)
    writer.write((SETTINGS.max_frame_bytes + 1).to_bytes(4, "big"))
    async with asyncio.timeout(5):
        while await reader.read(1000):
            pass


async def test_raft20_slow_strangers_are_closed_after_the_deadline(net: Net):
    await net.start("a")
    reader, writer = await net.dial()

    async def trickle() -> None:
        for byte in frame(b"x" * 400):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    slow = asyncio.create_task(trickle())
    began = asyncio.get_running_loop().time()
    await assert_closed(reader)
    assert asyncio.get_running_loop().time() - began < 5
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_raft20_of_strangers_beyond_the_limit_the_oldest_are_closed_at_once(net: Net):
    await net.start("a", settings=RaftSettings(handshake_timeout_s=60, max_strangers=5))
    strangers = [await net.dial() for _ in range(5)]
    await until(lambda: len(net.networks["a"]._strangers) == 5)
    strangers += [await net.dial() for _ in range(3)]
    for reader, _ in strangers[:3]:
        await assert_closed(reader)
    assert len(net.networks["a"]._strangers) == 5
    for _, writer in strangers:
        writer.close()
    await until(lambda: not net.networks["a"]._strangers)


@pytest.mark.parametrize("blind", ["a", "b"])
async def test_raft20_idle_strangers_keep_no_member_out(net: Net, blind: str):
    """Not even three hundred, of whom each comes back when it is closed; whoever dials."""
    settings = RaftSettings(handshake_timeout_s=60, max_strangers=5)
    (nowhere,) = free_ports(1)
    other = {"a": "b", "b": "a"}[blind]
    sees = {blind: {other: ("127.0.0.1", nowhere)}}
    await net.start("a", settings=settings, members=sees.get("a", {}))

    over = False

    async def idle() -> None:
        while not over:
            reader, writer = await net.dial()
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
            await asyncio.sleep(0.5)

    crowd = [asyncio.create_task(idle()) for _ in range(300)]
    await until(lambda: net.networks["a"].refusals > 100)
    await net.start("b", settings=settings, members=sees.get("b", {}))
    await until(lambda: net.receivers["a"].connected and net.receivers["b"].connected)
    a, b = net.networks["a"], net.networks["b"]
    a.send("b", TimeoutNow(1))
    b.send("a", TimeoutNow(2))
    await until(lambda: net.receivers["a"].messages and net.receivers["b"].messages)
    assert len([one for one in a._strangers if not one.dials]) <= 5
    over = True
    while not all(one.done() for one in crowd):
        for writer in net.writers:
            writer.transport.abort()
        await asyncio.wait(crowd, timeout=0.1)


async def test_messages_to_a_peer_that_does_not_read_are_dropped_not_kept(net: Net):
    settings = RaftSettings(
        max_frame_bytes=4 * 1024 * 1024, max_send_buffer_bytes=8 * 1024 * 1024, idle_timeout_s=60
    )
    a = await net.start("a", settings=settings)
    reader, writer = await net.dial()
    await shake_hands(reader, writer)
    await until(lambda: net.receivers["a"].connected)
    writer.transport.pause_reading()
    for _ in range(60):
        a.send("b", SnapshotChunk(1, 1, 1, 1, 0, bytes(1024 * 1024)))
    assert a.dropped > 40
    assert not a.send("nobody", TimeoutNow(1))
    writer.transport.abort()


async def test_a_weak_secret_is_refused():
    members = {"a": ("127.0.0.1", 1)}
    with pytest.raises(ValueError, match="at least 16 bytes"):
        TcpNetwork("a", members, CLUSTER, b"short", SETTINGS, lambda: 0.0, random.Random(1))


async def test_a_proof_must_be_one():
    transcript = Transcript(SECRET, Hello(VERSION, CLUSTER, "", "b", "a", b"n" * 32), b"m" * 32)
    with pytest.raises(Refused):
        transcript.check("dialler", Proof(b""))


async def test_refusals_are_logged_now_and_then_and_counted_always(
    caplog: pytest.LogCaptureFixture,
):
    now = 0.0
    network = TcpNetwork(
        "a", {"a": ("h", 1)}, CLUSTER, SECRET, SETTINGS, lambda: now, random.Random(1)
    )
    connection = Connection(network, None)
    for _ in range(50):
        network.refused(connection, "a wrong secret")
    now = 11.0
    network.refused(connection, "a wrong secret")
    assert network.refusals == 51
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith("a wrong secret")
    assert second.endswith("(49 others since the last such line)")

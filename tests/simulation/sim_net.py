"""The network of the simulator: places, the conditions between them, and what travels there.

A *place* is a node or a client, by name; conditions are kept for each direction of each pair of
places. Consensus messages and HTTP streams share them: a cut between two nodes stops what they
replicate and what they forward alike.

Consensus links behave like the TCP connections of production: a process that dies is noticed at
once, a host or a path that vanishes after a timeout, and a new connection may stand while messages
of the old one are still under way. Loss, repetition and reordering within a connection are added
on demand, which is more than TCP does. Streams keep their order, and lose everything that is sent
into a cut: whoever waits finds out by its own timeout.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from zlib import crc32

import msgspec
from sim_loop import Process, SimLoop

from timeball.cluster.raft.messages import Message

DELAY_S = 0.0003
VANISHED_AFTER_S = (1.0, 3.0)
"""When a connection without life is given up: a node closes one after three silent seconds."""
REDIAL_S = (0.02, 0.4)
_decoder = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


class Conditions(msgspec.Struct):
    """Of one direction between two places."""

    cuts: int = 0
    delay_s: float = DELAY_S
    jitter_s: float = 0.0002
    loss: float = 0.0
    repetition: float = 0.0
    reordering: float = 0.0
    clear_at: float = 0.0
    """The last arrival in order: nothing in order arrives before it."""


class Network:
    """All places and the conditions between them."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.checksum = 0
        """Of all consensus messages with their instants: equal in equal runs."""
        self.messages = 0
        self._conditions: dict[tuple[str, str], Conditions] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._epochs: dict[tuple[str, str], int] = {}
        """Per pair of nodes: counts what happened to its connection; odd while it stands."""

    def between(self, source: str, target: str) -> Conditions:
        link = source, target
        found = self._conditions.get(link)
        if found is None:
            found = self._conditions[link] = Conditions()
        return found

    def cut(self, source: str, target: str) -> Callable[[], None]:
        """Let nothing through in this direction; call the answer to undo it. Cuts add up."""
        conditions = self.between(source, target)
        conditions.cuts += 1
        self._doubt(source, target)

        def undo() -> None:
            conditions.cuts -= 1
            self._dial_soon(source, target)

        return undo

    def passes(self, source: str, target: str) -> bool:
        return not self.between(source, target).cuts

    def arrival(self, source: str, target: str) -> float:
        """When what leaves now arrives, in order; call it once for each thing that leaves."""
        conditions = self.between(source, target)
        when = self.loop.time() + conditions.delay_s
        when += self.rng.random() * conditions.jitter_s
        if conditions.loss and self.rng.random() < conditions.loss:
            when += 0.2  # a stream sends again
        conditions.clear_at = max(when, conditions.clear_at)
        return conditions.clear_at

    # --- consensus: connections ----------------------------------------------------------------

    def join(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.name] = endpoint
        for other in self._endpoints:
            if other != endpoint.name:
                self._dial_soon(endpoint.name, other)

    def leave(self, endpoint: Endpoint, *, vanished: bool = False) -> None:
        """Its process has ended; with its host, if it `vanished`, and then nobody is told."""
        if self._endpoints.get(endpoint.name) is not endpoint:
            return
        del self._endpoints[endpoint.name]
        for name in self._endpoints:
            pair = _pair(endpoint.name, name)
            if self._epochs.get(pair, 0) % 2:
                self._epochs[pair] += 1
                low, high = VANISHED_AFTER_S if vanished else (0.0005, 0.002)
                self._tell_later(name, endpoint.name, self.rng.uniform(low, high))

    def _tell_later(self, name: str, gone: str, delay_s: float) -> None:
        """Have a node learn that a connection is gone, unless a new one stands by then."""
        epoch = self._epochs[_pair(name, gone)]
        endpoint = self._endpoints[name]

        def tell() -> None:
            if endpoint.knows.pop(gone, None) is not None:
                endpoint.receiver.on_disconnected(gone)

        def still() -> None:
            if self._epochs[_pair(name, gone)] == epoch:
                tell()

        endpoint.process.call_at(self.loop.time() + delay_s, still)

    def break_link(self, one: str, other: str) -> None:
        """Both see their connection break; they dial again."""
        pair = _pair(one, other)
        if self._epochs.get(pair, 0) % 2:
            self._epochs[pair] += 1
            for name, gone in ((one, other), (other, one)):
                if name in self._endpoints:
                    self._tell_later(name, gone, 0.0)
            self._dial_soon(one, other)

    def _doubt(self, one: str, other: str) -> None:
        """A path between two nodes is cut: the connection goes when nobody hears of the other."""
        pair = _pair(one, other)
        epoch = self._epochs.get(pair, 0)
        if epoch % 2:
            wait = self.rng.uniform(*VANISHED_AFTER_S)
            self.loop.call_at_for(None, self.loop.time() + wait, self._give_up, one, other, epoch)

    def _give_up(self, one: str, other: str, epoch: int) -> None:
        if self._epochs[_pair(one, other)] == epoch and not self._open(one, other):
            self.break_link(one, other)

    def _open(self, one: str, other: str) -> bool:
        return self.passes(one, other) and self.passes(other, one)

    def _dial_soon(self, one: str, other: str) -> None:
        wait = self.rng.uniform(*REDIAL_S)
        self.loop.call_at_for(None, self.loop.time() + wait, self._connect, one, other)

    def _connect(self, one: str, other: str) -> None:
        pair = _pair(one, other)
        ends = [self._endpoints.get(name) for name in pair]
        if None in ends or self._epochs.get(pair, 0) % 2 or not self._open(one, other):
            return
        self._epochs[pair] = self._epochs.get(pair, 0) + 1
        for end, peer in zip(ends, reversed(pair), strict=True):
            assert end is not None
            end.process.call_at(self.loop.time(), end.connected, peer, self._epochs[pair])

    # --- consensus: messages -------------------------------------------------------------------

    def send(self, source: Endpoint, target: str, message: Any) -> None:
        epoch = self._epochs.get(_pair(source.name, target), 0)
        if source.knows.get(target) != epoch:
            return
        raw = _encode(message)
        conditions, rng = self.between(source.name, target), self.rng
        arrivals = [self.arrival(source.name, target)]
        if conditions.repetition and rng.random() < conditions.repetition:
            arrivals.append(arrivals[0] + rng.uniform(0, 0.1))
        for when in arrivals:
            if conditions.loss and rng.random() < conditions.loss:
                continue
            if conditions.reordering and rng.random() < conditions.reordering:
                when += rng.choice((0.002, 0.02, 0.2, 1.5)) * rng.random()
            endpoint = self._endpoints.get(target)
            if endpoint is not None and not conditions.cuts:
                endpoint.process.call_at(when, self._arrive, source.name, endpoint, raw)

    def _arrive(self, source: str, endpoint: Endpoint, raw: bytes) -> None:
        if endpoint.alive and source in endpoint.knows and self.passes(source, endpoint.name):
            self.messages += 1
            self.checksum = crc32(b"%.6f" % self.loop.time(), crc32(raw, self.checksum))
            endpoint.receiver.on_message(source, _decoder.decode(raw))


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


class Endpoint:
    """The `Network` that one life of a node is handed."""

    def __init__(self, network: Network, name: str, process: Process) -> None:
        self._network = network
        self.name = name
        self.process = process
        self.alive = False
        self.receiver: Any = None
        self.knows: dict[str, int] = {}
        """The peers that it is connected to, as it sees it, and by which connection."""

    async def start(self, receiver: Any) -> None:
        self.receiver = receiver
        self.alive = True
        self._network.join(self)

    async def stop(self) -> None:
        self.die()

    def die(self, *, vanished: bool = False) -> None:
        self.alive = False
        self._network.leave(self, vanished=vanished)

    def connected(self, peer: str, epoch: int) -> None:
        if not self.alive:
            return
        if self.knows.pop(peer, None) is not None:
            self.receiver.on_disconnected(peer)
        self.knows[peer] = epoch
        self.receiver.on_connected(peer)

    def send(self, peer: str, message: Any) -> bool:
        self.process.call_now(self._network.send, self, peer, message)
        return True


def split(names: list[str], left: int) -> list[tuple[str, str]]:
    """The pairs that a partition parts: the first `left` names from the rest."""
    return [(a, b) for a in names[:left] for b in names[left:]]


def ring(names: list[str]) -> list[tuple[str, str]]:
    """Neighbours in a circle."""
    return [*pairwise(names), (names[-1], names[0])]

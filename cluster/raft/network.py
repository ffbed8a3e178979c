"""The seam between consensus and whatever carries its messages."""

from __future__ import annotations

from typing import Protocol

from timeball.cluster.raft.messages import Message


class Receiver(Protocol):
    """What a network tells its node; all calls come from the event loop."""

    def on_message(self, peer: str, message: Message) -> None: ...

    def on_connected(self, peer: str) -> None:
        """A first, or a new, connection to the peer stands: it may be a new process."""

    def on_disconnected(self, peer: str) -> None:
        """The last connection to the peer is gone."""


class Network(Protocol):
    """Carries messages between members that have proved who they are.

    A message arrives at most once and may be lost; on one connection order is kept.
    """

    async def start(self, receiver: Receiver) -> None: ...

    async def stop(self) -> None: ...

    def send(self, peer: str, message: Message) -> bool:
        """Hand a message over; whether it is on its way. False: dropped."""

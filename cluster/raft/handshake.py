"""How two members prove to each other that they know the cluster's secret.

The dialler speaks first; C and S are fresh nonces of both sides:

    dialler  → listener   Hello(version, cluster id, founding, from, to, C)
    listener → dialler    Challenge(S)
    dialler  → listener   Proof(HMAC("dialler" | transcript))
    listener → dialler    Proof(HMAC("listener" | transcript))

The transcript holds everything said, lengths included: a proof is good for one connection, one
direction and these two names only, so neither a replay nor a reflection helps. A stranger learns
no HMAC from the listener. Both sides then derive one key for each direction; every later frame
carries a keyed BLAKE2b over its number and the SHA-256 of its content, so it cannot be forged,
dropped, repeated or reordered unnoticed; what goes to several members is hashed once. Nothing is
hidden from who listens: use a trusted network, or a tunnel.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

VERSION = 2
NONCE_BYTES = 32
MAC_BYTES = 16
MAX_HANDSHAKE_FRAME = 512


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who dials whom."""

    version: int
    cluster_id: str
    founding: str
    """Of which disks the sender's cluster was founded (a hash), or empty while it has none."""
    sender: str
    receiver: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    """The listener's nonce."""

    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True):
    """The HMAC that only a holder of the secret can make."""

    mac: bytes


class Refused(Exception):
    """The other side is not who it must be; the message says why."""


class Transcript:
    """What was said in one handshake, and what follows from it."""

    def __init__(self, secret: bytes, hello: Hello, listener_nonce: bytes) -> None:
        if len(hello.nonce) != NONCE_BYTES or len(listener_nonce) != NONCE_BYTES:
            raise Refused("a nonce has the wrong length")
        self._secret = secret
        said = [
            str(hello.version).encode(),
            hello.cluster_id.encode(),
            hello.founding.encode(),
            hello.sender.encode(),
            hello.receiver.encode(),
            hello.nonce,
            listener_nonce,
        ]
        self._said = b"".join(len(part).to_bytes(4, "big") + part for part in said)

    def _derive(self, label: bytes) -> bytes:
        message = b"timeball raft " + label + b"\0" + self._said
        return hmac.digest(self._secret, message, "sha256")

    def proof(self, role: str) -> Proof:
        return Proof(self._derive(b"proof of the " + role.encode()))

    def check(self, role: str, proof: Proof) -> None:
        """Raises Refused unless the proof is that of `role`."""
        if not hmac.compare_digest(self.proof(role).mac, proof.mac):
            raise Refused("it does not know the secret")

    def key(self, role: str) -> bytes:
        """The key of the frames that `role` sends."""
        return self._derive(b"frames of the " + role.encode())


def digest_of(content: bytes | memoryview) -> bytes:
    """What stands for a frame's content in its MAC."""
    return hashlib.sha256(content).digest()


class FrameMac:
    """The running MAC of one direction; each frame has its number."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=MAC_BYTES)
        self._number = 0

    def next(self, content: bytes | memoryview) -> bytes:
        """The MAC of the next frame."""
        return self.next_of(digest_of(content))

    def next_of(self, digest: bytes) -> bytes:
        """The same, by the digest of the frame's content."""
        state = self._keyed.copy()
        state.update(self._number.to_bytes(8, "big") + digest)
        self._number += 1
        return state.digest()

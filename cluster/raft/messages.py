"""What members say to one another. Every message carries its sender's term.

Fields are positional on the wire: append new ones at the end, with a default.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from timeball.cluster.raft.metadata import Standing


class PreVoteRequest(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Would you vote for me in the next term? Asked before the term is raised."""

    term: int
    last_index: int
    last_term: int


class PreVoteReply(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """`asked_term` repeats the request's term."""

    term: int
    asked_term: int
    granted: bool


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Vote for me in `term`. `transfer`: the leader itself asked for this election."""

    term: int
    last_index: int
    last_term: int
    transfer: bool


class VoteReply(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A granted vote is for `term`, and durable at its sender."""

    term: int
    granted: bool


class Append(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The entries that follow `prev_index`; none in a heartbeat."""

    term: int
    prev_index: int
    prev_term: int
    commit_index: int
    entries: list[tuple[int, bytes]]
    """Term and data of each."""
    round: int = 0
    """The leader's latest round (see `rounds`); 0 comes from a release without them."""


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Accepted: the log agrees with the leader's up to `index`, and is durable up to there.

    Refused: `index` repeats the request's `prev_index`, which the log does not hold with that
    term; `hint_index` and `hint_term` tell where to try: the first entry of the term found there,
    or, with term 0, the entry after the log's end.

    `incarnation` is the answering disk's; `votes`: whether it counts (durable at its sender).
    """

    term: int
    accepted: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0
    round: int = 0
    """Repeats the request's, or the highest of the requests that this answers."""
    incarnation: int = 0
    votes: bool = True
    level: int = 1
    """The highest feature level that the sender's release supports."""


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A piece of the snapshot file for the entries up to `index`, `size` bytes as a whole."""

    term: int
    index: int
    last_term: int
    size: int
    offset: int
    data: bytes


class SnapshotReply(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """`received` bytes of the snapshot are there; installed: the state is durable at `index`."""

    term: int
    index: int
    received: int
    installed: bool
    incarnation: int = 0
    votes: bool = True


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The leader hands over: stand for election at once."""

    term: int


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Up to where is the log committed now? Put only to a leader that sends rounds."""

    term: int
    number: int


class ReadReply(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """All that was committed when the question of that number came is at or below `index`."""

    term: int
    number: int
    index: int


class Introduction(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Which disk this member has, and what it counts for; it claims no term.

    `founders` are the cluster's; from a blank disk, the blank ones that it sees, its own included.
    """

    term: int
    incarnation: int
    standing: Standing
    founders: dict[str, int]


class Admission(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """From a leader to a joining disk: what you hold durably up to `index` is enough, vote."""

    term: int
    incarnation: int
    index: int
    founders: dict[str, int]


Message: TypeAlias = (
    PreVoteRequest
    | PreVoteReply
    | VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
    | ReadRequest
    | ReadReply
    | Introduction
    | Admission
)

"""The cluster, its nodes and queues."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from timeball.client.messages.fields import Answer

Standing = Literal["blank", "joining", "voter"]


class NodeView(Answer, frozen=True):
    """A node as the answering node sees it."""

    name: str
    http_url: str
    role: Literal["leader", "follower", "candidate", "unknown"]
    connected: bool
    match_index: int | None
    last_contact_ms: int | None
    standing: Standing | None = None
    """What its disk counts for; None when it has not said so."""
    supported_level: int | None = None
    """The highest feature level of its release: each tells its own, a leader that of all."""


class Replacement(Answer, frozen=True, kw_only=True):
    """How far a node with a new disk has come, as the leader sees it."""

    node: str
    connected: bool
    standing: Standing | None
    incarnation: int | None
    """The number of its disk; a new disk has another. None while the leader has not heard it."""
    match_index: int
    """What its disk is known to hold…"""
    commit_index: int
    """… of what is committed."""
    snapshot_percent: int | None
    """How much of the snapshot that it is being sent has arrived; None while there is none."""
    quorum: int
    """How many members must vote for anything to be committed."""
    voters: list[str]
    """The other members that vote and are in touch."""


class QueueView(Answer, frozen=True):
    """A queue's depth: replicated counts, and what only the leader knows (else None)."""

    name: str
    scheduled: int
    leased: int
    ready: int | None
    oldest_due_ms: int | None
    waiting_claims: int | None
    skipped: int = 0
    """Occurrences left out by rule, or taken back, since the queue began."""


class ClusterView(Answer, frozen=True, kw_only=True):
    """The cluster as the answering node sees it."""

    cluster: str
    node: str
    version: str
    role: Literal["leader", "follower", "candidate"]
    serving: bool
    leader: str | None
    term: int
    commit_index: int
    applied_index: int
    log_time_ms: int
    feature_level: int = 1
    """Which operations may be used; it rises once every node supports a higher one."""
    state_digest: str | UnsetType = UNSET
    nodes: list[NodeView]
    queues: list[QueueView]
    totals: dict[str, int]
    obstacle: str | None = None
    """What keeps the node from voting, or the cluster from a leader, in a sentence."""


class SnapshotBegun(Answer, frozen=True, kw_only=True):
    """A node has begun to write a snapshot; `index` is the log position that it covers."""

    node: str
    index: int

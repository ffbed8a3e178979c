"""The exceptions of the consensus layer, one small tree.

ConsensusError
├── NotLeader         definite: nothing was proposed, ask the leader
├── LevelTooLow       definite: the operation needs a feature level that not all nodes support
├── Overloaded        definite: operations wait for too long or are too many, nothing was proposed
├── Expired           definite: the deadline passed while the proposal still waited
├── DiskFull          definite: this node's disk has no room for more, nothing was proposed
├── EntryTooLarge     definite: the operation alone exceeds the size of an entry
├── SnapshotUnderWay  definite: a snapshot is being taken already, no other was begun
├── NotConfirmed      definite: it could not be told what is committed, nothing was read
├── NotCaughtUp       definite: this node has not applied that far, nothing was read
├── TooManyReads      definite: as many reads wait as this node allows
├── OutcomeUnknown    the operation may or may not be applied; repeat it with its request id
├── Damaged           a file refuses to be read: the node must not start
├── Misconfigured     the data directory belongs to another node or member list
└── Halted            the node has stopped itself (fail-stop)
"""

from __future__ import annotations

from pathlib import Path


class ConsensusError(Exception):
    """The base of all errors that the consensus layer raises on purpose."""


class NotLeader(ConsensusError):
    """This node does not lead; nothing was proposed. `leader` is the leader's name, if known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'unknown'}")
        self.leader = leader


class LevelTooLow(ConsensusError):
    """An operation needs a higher feature level than the cluster's; nothing was proposed."""

    def __init__(self, operation: str, needed: int, level: int) -> None:
        super().__init__(
            f"{operation} needs feature level {needed}; the cluster is at level {level} until"
            " every node runs a release that supports more"
        )
        self.needed = needed
        self.level = level


class Overloaded(ConsensusError):
    """The queue of proposals is full, or moves too slowly for new work; nothing was proposed."""

    def __init__(self) -> None:
        super().__init__("more operations wait to be committed than the node gets done in time")


class Expired(ConsensusError):
    """The proposal's deadline passed before it was written to the log; it was not applied."""

    def __init__(self) -> None:
        super().__init__("the deadline passed before the proposal was written to the log")


class DiskFull(ConsensusError):
    """The disk has no room for more, or too little to lead on; nothing was written."""


class EntryTooLarge(ConsensusError):
    """One operation alone is larger than an entry may be; nothing was proposed."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the operation takes {size} bytes, an entry holds at most {limit}")
        self.size = size
        self.limit = limit


class SnapshotUnderWay(ConsensusError):
    """This node is taking a snapshot already; `index` is its position."""

    def __init__(self, index: int) -> None:
        super().__init__(f"a snapshot at {index} is under way")
        self.index = index


class NotConfirmed(ConsensusError):
    """No leader has confirmed what is committed; nothing was read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it cannot be told what is committed: {reason}")
        self.reason = reason


class NotCaughtUp(ConsensusError):
    """This node did not apply the entry `index` in time; nothing was read."""

    def __init__(self, index: int, applied: int) -> None:
        super().__init__(f"this node has applied {applied}, not yet {index}")
        self.index = index
        self.applied = applied


class TooManyReads(ConsensusError):
    """As many reads wait as this node allows; nothing was read."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} reads wait already; try again later")


class OutcomeUnknown(ConsensusError):
    """The proposal was written to the log, and whether it will be applied is not known."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"outcome unknown: {reason}")
        self.reason = reason


class Damaged(ConsensusError):
    """A file cannot be trusted; the node must not start with it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
        self.reason = reason


class Misconfigured(ConsensusError):
    """The data directory and the configuration do not belong together."""


class Halted(ConsensusError):
    """The node has stopped itself, because going on could break a promise."""

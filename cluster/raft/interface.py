"""What the rest of a node sees of consensus, and what consensus asks of the state machine.

Consensus knows only bytes. An empty entry is the engine's own (the barrier that a new leader
writes): it is never handed to the state machine, so the indexes that `apply` sees rise but
have gaps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol

import msgspec

from timeball.cluster.raft.metadata import Standing
from timeball.cluster.raft.space import Room
from timeball.cluster.raft.stats import Stats

Role = Literal["leader", "follower", "candidate"]


class Applied(Protocol):
    """What one applied entry did."""

    @property
    def halt(self) -> str | None:
        """A reason to stop the node (fail-stop), such as an unknown operation; else None."""

    @property
    def verdicts(self) -> Sequence[object]:
        """One verdict for each operation of the entry, in order."""


class Dump(Protocol):
    """A dump that is under way; each step costs a bounded time."""

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...

    def close(self) -> None:
        """End it, read or not."""


class Loading(Protocol):
    """A dump that is being loaded; each step costs a bounded time."""

    def add(self, chunk: bytes) -> None:
        """Take the next chunk; ValueError when it is damaged.

        NotImplementedError when it is sound, and only a newer release can load it.
        """

    def finish(self) -> Iterable[None]:
        """Replace the state; ValueError, and no change, when something is missing.

        To iterate over the answer lets go of the state before, in small steps.
        """


class StateMachine(Protocol):
    """The replicated state: it reads no clock and never raises from `apply`."""

    def apply(self, index: int, entry: bytes) -> Applied:
        """Apply one committed entry; the same bytes in the same order give the same state."""

    def dump(self) -> Dump:
        """The whole state of now as chunks, each at most `MAX_CHUNK_BYTES`.

        Entries may be applied between two chunks, and the chunks still tell the state of the call.
        There is one dump at a time.
        """

    def load(self, chunks: Iterable[bytes]) -> None:
        """Replace the state by a dumped one, all or nothing; raises as `Loading` does."""

    def loading(self) -> Loading:
        """Begin to load a dump, while the present state goes on until it is replaced."""

    def digest(self) -> str:
        """A hash of the whole state, equal on nodes that applied the same entries."""


MAX_CHUNK_BYTES = 16 * 1024 * 1024
"""The largest chunk that `StateMachine.dump` may yield."""


class Observer:
    """Base of those who follow a node's progress; each method does nothing until overridden.

    Methods are called inside the engine's turn: they hand over, never block, never raise.
    """

    def on_applied(self, index: int, term: int, entry: bytes, applied: Applied) -> None:
        """An entry was applied here; called in log order, on every node, never for barriers."""

    def on_leadership(self, term: int | None) -> None:
        """With a term: this node leads, and all entries before its own barrier are applied.

        With None: it leads no more. Duties of a leader run only between the two.
        """

    def on_installed(self, index: int) -> None:
        """The state was replaced by a snapshot at `index`; `on_applied` skipped what it covers."""

    def on_halt(self, reason: str) -> None:
        """The node has stopped itself; nothing will be applied or accepted any more."""


class PeerStatus(msgspec.Struct, frozen=True):
    """How another member looks from here."""

    name: str
    connected: bool
    match_index: int | None
    """This and the next are known to a leader only."""
    last_response_age_s: float | None
    standing: Standing | None = None
    """What its disk counts for, and which disk it is; None when it has not said so."""
    incarnation: int | None = None
    snapshot_share: float | None = None
    """How much of a snapshot the leader has sent it and knows to have arrived, 0 to 1."""
    level: int | None = None
    """The feature level that it supports, if a leader has heard it since it is connected."""


class Replica(Protocol):
    """One node's part in the cluster, as the node's other layers see it."""

    @property
    def role(self) -> Role: ...

    @property
    def term(self) -> int: ...

    @property
    def leader(self) -> str | None:
        """The name of the leader as far as this node knows (maybe its own), else None."""

    @property
    def leading_term(self) -> int | None:
        """The term that this node leads with its barrier applied, else None."""

    @property
    def applied_index(self) -> int: ...

    @property
    def apply_s(self) -> float:
        """How long the state machine took over the latest entry, in seconds by the clock."""

    @property
    def commit_index(self) -> int: ...

    @property
    def known_commit_index(self) -> int:
        """What this node knows to be committed, though it may not hold all of it yet."""

    @property
    def last_index(self) -> int: ...

    @property
    def quorum_seen(self) -> bool:
        """Whether this node leads with a live majority, or hears from a leader."""

    def peers(self) -> list[PeerStatus]: ...

    @property
    def standing(self) -> Standing:
        """What this node's own disk counts for."""

    @property
    def incarnation(self) -> int:
        """Which disk this is, of all that the node's name has had."""

    @property
    def obstacle(self) -> str | None:
        """What keeps this node from voting, or the cluster from having a leader, in a sentence."""

    def read(self, index: int, *, strong: bool) -> asyncio.Future[None]:
        """Wait until `index` is applied here; if `strong`, also all that is committed by now.

        The future raises TooManyReads; NotConfirmed when no leader confirmed what is committed;
        NotCaughtUp when it was not applied here in time. It ends within `read_deadline_s`.
        """

    def append(self, entry: bytes) -> int:
        """Write one entry to the leader's log and send it; its index is returned.

        Raises NotLeader or DiskFull when nothing was written; OutcomeUnknown when the node stopped
        itself half way; ValueError when the entry is empty or too large.
        """

    def add_observer(self, observer: Observer) -> None:
        """Observers are called in the order in which they were added."""


class Member(Replica, Protocol):
    """A replica with its life and what is measured of it, as the node sees it that runs it."""

    stats: Stats
    observe_fsync: list[Callable[[float], None]]

    @property
    def waiting_reads(self) -> int: ...

    @property
    def room(self) -> Room: ...

    @property
    def free_bytes(self) -> int: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def take_snapshot(self) -> int: ...


class Proposer(Protocol):
    """Who is told, once, how an operation ended: a future, or what acts in that very call."""

    def done(self) -> bool: ...

    def set_result(self, result: object, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

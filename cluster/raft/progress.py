"""What a leader knows about one follower's log, and what it may send next.

    probing      the place where the logs agree is being looked for: one empty message in flight
    replicating  they agree up to `match`; entries go out ahead of the answers, within a limit
    installing   the follower needs a snapshot, its pieces go out within a window

The names and the flow follow the Raft paper, §5.3 and §7; the three states are those of etcd's
tracker. A success never moves `next` back; only a refusal, silence or a new connection does.
"""

from __future__ import annotations

import enum

from timeball.cluster.raft.messages import AppendReply
from timeball.cluster.raft.snapshots import Snapshot


class State(enum.Enum):
    """The three ways to treat a follower."""

    PROBING = "probing"
    REPLICATING = "replicating"
    INSTALLING = "installing"


PROBING, REPLICATING, INSTALLING = State
"""By names of this module, which are read in a tenth of the time of an enum's members."""


class Progress:
    """One follower, as its leader sees it."""

    def __init__(self, next_index: int, now: float) -> None:
        self.match = 0
        self.incarnation: int | None = None
        """The disk that answers; None before it has."""
        self.votes = True
        """Whether its answers count. What has not answered has acknowledged nothing either."""
        self.join_index: int | None = None
        """What a joining disk must hold, and a majority of the others, before it gets its vote."""
        self.next = next_index
        self.state = PROBING
        self.last_response = now
        self.level: int | None = None
        """The feature level that the follower supports; None until it has said so."""
        self.sent_at = float("-inf")
        """When the last message left."""
        self.commit_sent = 0
        self.snapshot: Snapshot | None = None
        self.snapshot_acked = 0
        self.snapshot_sent = 0
        self.snapshot_moved_at = now
        self._awaiting = False
        self._inflight: dict[int, int] = {}
        self._inflight_bytes = 0
        self._gone: set[int] = set()
        """Disks that answered before the one that does now."""

    def recognise(self, incarnation: int, votes: bool, next_index: int) -> bool:
        """Note whose answer has come; whether it is that of the disk in use.

        Nothing of one disk counts for another: late answers of a former one are dropped, and a
        new one is looked at from the beginning.
        """
        if incarnation == self.incarnation:
            self.votes = self.votes or votes
            return True
        if incarnation in self._gone:
            return False
        if self.incarnation is not None:
            self._gone.add(self.incarnation)
            self.restart(next_index)
        self.incarnation, self.votes, self.join_index = incarnation, votes, None
        return True

    def returned(self, incarnation: int, votes: bool) -> bool:
        """A disk has come, by a new connection; whether it is to be listened to.

        A former one may take its place again, but not with a vote when its successor got one: it
        is out of date then, since its name has vouched for more.
        """
        if not (votes and self.votes):
            self._gone.discard(incarnation)
        return incarnation not in self._gone

    @property
    def admissible(self) -> bool:
        """Whether a joining disk holds what it must."""
        return not self.votes and self.join_index is not None and self.match >= self.join_index

    @property
    def snapshot_share(self) -> float | None:
        """How much of the snapshot under way has arrived."""
        if self.snapshot is None:
            return None
        return self.snapshot_acked / max(1, self.snapshot.size)

    def restart(self, next_index: int) -> None:
        """The connection is new: the follower may have lost everything, so nothing counts."""
        self.match = 0
        self.level = None
        self.become_probing(next_index)

    def become_probing(self, next_index: int) -> None:
        self.next = max(next_index, 1)
        self.state = PROBING
        self._awaiting = False
        self._drop_inflight()
        self.close()

    def become_installing(self, snapshot: Snapshot, now: float) -> None:
        self.close()
        self.state = INSTALLING
        self.snapshot = snapshot
        self.snapshot_acked = self.snapshot_sent = 0
        self.snapshot_moved_at = now
        self._drop_inflight()

    def close(self) -> None:
        """Let go of the snapshot that was being sent."""
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None

    def _drop_inflight(self) -> None:
        self._inflight.clear()
        self._inflight_bytes = 0

    @property
    def may_probe(self) -> bool:
        return self.state is PROBING and not self._awaiting

    def may_replicate(self, max_inflight_bytes: int) -> bool:
        """Whether entries may go out now."""
        return self.state is REPLICATING and self._inflight_bytes < max_inflight_bytes

    def sent(self, last_index: int, size: int, commit_index: int, now: float) -> None:
        """A message with the entries from `next` to `last_index` has left."""
        self.sent_at = now
        self.commit_sent = commit_index
        if self.state is PROBING:
            self._awaiting = True
        elif self.state is REPLICATING and last_index >= self.next:
            self._inflight[last_index] = size
            self._inflight_bytes += size
            self.next = last_index + 1

    def accepted(self, index: int) -> bool:
        """The follower's log agrees up to `index`; whether that is news."""
        news = index > self.match
        self.match = max(self.match, index)
        if self.state is PROBING:
            self.state = REPLICATING
            self._awaiting = False
            self._drop_inflight()
            self.next = self.match + 1
        elif self.state is REPLICATING:
            self.next = max(self.next, self.match + 1)
            for last in [last for last in self._inflight if last <= index]:
                self._inflight_bytes -= self._inflight.pop(last)
        return news

    def refused(self, reply: AppendReply, next_index: int) -> bool:
        """The follower does not hold `reply.index`; probe at `next_index`, if that is news."""
        if self.state is INSTALLING or reply.index <= self.match:
            return False
        if self.state is PROBING and reply.index != self.next - 1:
            return False
        self.become_probing(max(self.match + 1, min(next_index, reply.index)))
        return True

    def installed(self, index: int) -> None:
        """The follower's state is durable at the snapshot's `index`."""
        self.match = max(self.match, index)
        self.become_probing(self.match + 1)

"""The settings of the consensus layer: times in seconds, sizes in bytes, each limit once."""

from __future__ import annotations

import msgspec

MAX_ENTRY_WEIGHT = 4096
"""Numbered items in one entry: item numbers are `index * 4096 + position`."""

MIN_SECRET_BYTES = 16


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Equal on all members of a cluster; the defaults suit a local network."""

    cluster: str = "timeball"
    """Peers of another cluster are refused, and so is another cluster's data directory."""

    tick_s: float = 0.02
    """The coarse timer: elections, heartbeats and the quorum check look at the clock this often."""

    heartbeat_s: float = 0.06
    election_min_s: float = 0.4
    election_max_s: float = 0.8
    """A follower that hears nothing for a random time between the two asks for an election."""

    broken_link_min_s: float = 0.08
    broken_link_max_s: float = 0.32
    """The same, when the connection to the leader has just broken: its process is likely gone.

    A leader, too, counts on a follower whose connection is broken for the longer of the two only.
    """

    leader_fallback_s: float = 1.0
    """A leader that a majority has not answered for this long steps down.

    Followers that do not hear it have elected another by then; what clients have asked of it waits
    until it steps down.
    """

    probe_retry_s: float = 0.2
    """A probe, a vote request or a snapshot chunk without an answer is repeated after this."""

    commit_notice_s: float = 0.01
    """Followers are told of a commit after this, or twice this at the latest, by a message of its
    own; the next entry is mostly sooner, and then there is none.

    To tell them apart from entries costs a message to each of them, and a wakeup there; it is also
    how far a follower's reads lag behind when no further entry comes.
    """

    read_deadline_s: float = 2.0
    """How long a read waits for what it needs to be applied here, or to be known."""

    max_waiting_reads: int = 4_096
    """Reads that wait on one node; more are refused."""

    transfer_timeout_s: float = 1.0
    """How long a stopping leader tries to hand leadership over."""

    max_entry_bytes: int = 2 * 1024 * 1024
    max_append_entries: int = 512
    max_append_bytes: int = 1024 * 1024
    """One message carries entries up to these (but always at least one entry)."""

    max_inflight_bytes: int = 8 * 1024 * 1024
    """Entries on their way to one follower."""

    max_apply_per_turn: int = 256
    max_apply_s: float = 0.005
    """Entries applied before the event loop gets its turn: so many, and no more after this."""

    segment_bytes: int = 64 * 1024 * 1024
    journal_step_bytes: int = 256 * 1024
    """Zeros are added to the journal's last segment in such steps, ahead of what is written."""

    min_free_bytes: int = 256 * 1024 * 1024
    """With less room than this on its disk a node neither leads nor stands for election. As a
    follower it goes on, into this reserve, down to a quarter of it."""

    disk_check_s: float = 1.0
    """How often the room on the disk is looked at, and a full disk is tried again."""

    mark_after_s: float = 1.0
    mark_every_s: float = 10.0
    """When nothing was written for the one, or no mark was made for the other, the node remembers
    durably how far its log goes."""

    snapshot_entries: int = 30_000
    """Each member takes a snapshot when the log passes its mark, once in so many entries.

    The marks of the members lie as far apart as they can, so they take turns: a full leader writes
    about 500 entries a second, and a busy one 200, which leaves three members 20 to 50 s each. All
    entries since the last snapshot are in the journal, and are applied anew at a start.
    """

    snapshot_bytes: int = 256 * 1024 * 1024
    """Whatever the marks, a snapshot is taken when the log has grown by this since the last one."""

    snapshot_share: float = 0.1
    """How much of the event loop's time a snapshot may take; a million jobs are half a minute."""

    trailing_entries: int = 1_000
    """Entries known behind a snapshot, so that a slow follower needs no snapshot."""

    log_memory_bytes: int = 8 * 1024 * 1024
    """The newest entries, kept in memory to be sent and applied, take about this; older ones are
    read from the journal again.

    A follower that lags further, and a node that starts, cost a leader or themselves reads of the
    disk, a bounded piece in a turn. A full leader writes 4 MB a second: two seconds of a follower's
    silence cost no read.
    """

    snapshot_chunk_bytes: int = 256 * 1024
    snapshot_window_chunks: int = 4
    max_snapshot_bytes: int = 64 * 1024 * 1024 * 1024

    max_frame_bytes: int = 8 * 1024 * 1024
    max_send_buffer_bytes: int = 32 * 1024 * 1024
    """Messages to a peer whose unsent bytes exceed this are dropped; Raft sends again."""

    handshake_timeout_s: float = 3.0
    max_strangers: int = 32
    """Incoming connections that have not proved themselves; of more the oldest are closed."""

    redial_min_s: float = 0.05
    redial_max_s: float = 0.5
    idle_timeout_s: float = 3.0
    """A connection that brought nothing for this long is dead; pings keep live ones alive."""

    def validate(self) -> None:
        """Check each field and the relations between them; ValueError says what would be right."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            _require(bool(value) and (isinstance(value, str) or value > 0), f"{name} must be > 0")
        _require(len(self.cluster) <= 64, "cluster must be at most 64 characters")
        _require(self.tick_s <= self.heartbeat_s, "tick_s must not exceed heartbeat_s")
        _require(
            self.heartbeat_s * 3 <= self.election_min_s, "election_min_s must be >= 3 x heartbeat_s"
        )
        _require(
            self.election_min_s < self.election_max_s, "election_max_s must exceed election_min_s"
        )
        _require(
            self.broken_link_min_s < self.broken_link_max_s <= self.election_max_s,
            "broken_link_min_s < broken_link_max_s <= election_max_s must hold",
        )
        _require(
            self.leader_fallback_s >= self.election_max_s,
            "leader_fallback_s must be at least election_max_s",
        )
        _require(
            self.max_frame_bytes
            >= max(self.max_entry_bytes + self.max_append_bytes, self.snapshot_chunk_bytes) + 65536,
            "max_frame_bytes must hold max_entry_bytes + max_append_bytes and a snapshot chunk",
        )
        _require(
            self.max_send_buffer_bytes >= 2 * self.max_frame_bytes,
            "max_send_buffer_bytes must hold two frames",
        )
        _require(self.mark_after_s <= self.mark_every_s, "mark_every_s must be >= mark_after_s")
        _require(
            self.log_memory_bytes >= self.max_entry_bytes,
            "log_memory_bytes must be at least max_entry_bytes",
        )
        _require(self.snapshot_share < 1, "snapshot_share must be less than 1")
        _require(self.redial_min_s <= self.redial_max_s, "redial_max_s must be >= redial_min_s")


class CommitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How operations are gathered into entries."""

    spacing_s: float = 0.005
    """The least time between two entries; two fifths of it after one that held next to nothing, or
    was full. An idle cluster writes at once."""

    max_in_flight: int = 2
    """Entries written but not yet applied."""

    max_entry_bytes: int = 1024 * 1024
    entry_weight: int = MAX_ENTRY_WEIGHT
    """Items of one entry, at most. An operation that weighs more has an entry of its own."""
    entry_weight_least: int = 250
    """What an entry may always hold, where that is less."""
    entry_apply_s: float = 0.003
    """Between the two, an entry holds what can be applied in this time, by what the latest ones
    took: it holds up the loop of each node for so long."""

    max_pending: int = 65_536
    max_pending_bytes: int = 64 * 1024 * 1024
    """Operations that wait for an entry; more are refused as Overloaded."""

    max_wait_s: float = 0.5
    """New work is refused while the oldest operation has waited longer than this for its verdict.

    A burst that is committed in that time passes. What a node gets twice as much of as it can do
    waits for a bit over twice this, since the oldest tells late of what has gathered behind it.
    """

    deadline_s: float = 5.0

    def validate(self) -> None:
        """Check each field; ValueError says what would be right."""
        for name in self.__struct_fields__:
            minimum = 0 if name == "spacing_s" else 1e-9
            _require(getattr(self, name) >= minimum, f"{name} must be > 0")
        _require(self.max_wait_s < self.deadline_s, "max_wait_s must be less than deadline_s")

"""Plain counters of one node's consensus, for metrics to read."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct):
    """Counters only rise; the `last_` fields tell of the latest event, 0 before the first."""

    elections: int = 0
    """Elections this node stood in."""
    leaderships: int = 0
    entries_applied: int = 0
    read_rounds: int = 0
    """Rounds of messages that this node, as leader, began for strong reads."""
    journal_bytes: int = 0
    snapshots_taken: int = 0
    snapshots_installed: int = 0
    snapshot_failures: int = 0
    last_snapshot_bytes: int = 0
    last_snapshot_s: float = 0.0
    """From its beginning to its being durable."""
    last_snapshot_index: int = 0
    """The position of this node's newest snapshot: taken, installed or found at the start."""
    snapshot_under_way: bool = False

"""The settings of a cluster, as a leader writes them into the log.

They are part of the log's format, as the operations are: a field is only ever added at the end,
with a default.
"""

from __future__ import annotations

import msgspec


class ClusterSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The settings that every node must share, because `apply` depends on them."""

    keep_finished: int = 10_000
    keep_finished_ms: int = 7 * 86_400_000
    keep_dead: int = 10_000
    idempotency_window_ms: int = 86_400_000
    idempotency_keys: int = 1_000_000
    claim_memory_ms: int = 60_000
    max_pending: int = 2_000_000
    request_memory_ms: int = 600_000
    request_memory: int = 200_000
    """Jobs whose create request is remembered by request id, at most."""
    claim_memory: int = 100_000
    """Leases whose claim is remembered by request id, at most."""
    keep_finished_bytes: int = 268_435_456
    """Of payloads, results and errors of what is finished; see `sizes.kept_bytes`."""
    keep_dead_bytes: int = 268_435_456
    """The same of dead letters."""
    catch_up_per_s: int = 200
    """Runs of the past that all timetables together may make in a second, after a burst of as
    many as in ten."""
    idempotency_max_window_ms: int = 30 * 86_400_000
    """The longest window that a request may ask for its key."""
    idempotency_keys_held: int = 1_000_000
    """Keys that hold until their job has ended, at most; a create beyond is refused."""

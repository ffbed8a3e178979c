"""What workers ask of dispatch, and what they are answered."""

from __future__ import annotations

from typing import Literal

import msgspec

from timeball.wheel import NOTHING


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for; lengths in milliseconds."""

    queue: str
    worker: str
    request_id: str
    max_executions: int
    wait_ms: int
    lease_ms: int
    offered: frozenset[str] = NOTHING
    """The tags that it offers: it gets what requires nothing else."""


class Heartbeat(msgspec.Struct, frozen=True):
    """The answer to one heartbeat; see the protocol for what each verdict means."""

    verdict: Literal["extended", "cancel_requested", "lost", "finished", "unknown"]
    lease_remaining_ms: int = 0
    instruction: str | None = None
    """What the lease's worker is told."""

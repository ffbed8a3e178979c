"""The plan of a run: what is due when, who submits it and how, fixed before anything starts.

Executions are numbered. The due instant of each number follows from the plan and the start
alone, so nothing that the cluster or a generator does can shift it: the load is an open
loop, and a stall shows up as the lag of everything that was due during it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

Mode = Literal["steady", "preloaded"]

NUMBER_DIGITS = 10
PAYLOAD_CHARACTERS = 62
"""With its MessagePack header, the payload takes 64 bytes."""
MAX_EXECUTIONS = 20_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generators need to know; written to a file that each of them reads."""

    urls: list[str]
    folder: str
    name: str
    """Part of every request id, so that no two runs on one cluster share any."""
    queue: str
    keyed: bool = False
    """Whether each job has an idempotency key, of 36 characters."""
    partition_key: str = ""
    """Empty: each execution is partitioned by its own id."""
    total: int
    """Executions, warm-up included."""
    rate: float
    """Executions due in a second; 0: all at one instant."""
    mode: Mode
    """Steady: each batch is sent `ahead_ms` before its first is due. Preloaded: all at once."""
    ahead_ms: int = 250
    jobs_per_post: int
    submitters: int = 1
    submitter_connections: int = 64
    """Most creates that one submitter has under way."""
    workers: int
    pollers: int = 4
    """Claims that one worker has under way."""
    reporters: int = 4
    """Batches of completions that one worker has under way."""
    executions_per_claim: int
    completions_per_post: int = 1_000
    gather_ms: int = 5
    """How long a worker gathers completions before it sends them."""
    wait_ms: int = 5_000
    lease_ms: int = 10_000

    @property
    def batches(self) -> int:
        """POSTs that create everything."""
        return -(-self.total // self.jobs_per_post)

    def due_ms(self, start_ms: int, number: int) -> int:
        """When that execution is due, for a run whose first is due at `start_ms`."""
        return start_ms + int(number * 1000 / self.rate) if self.rate else start_ms

    def dues_ms(self, start_ms: int, numbers: Iterable[int]) -> list[int]:
        """`due_ms` of several."""
        rate = self.rate
        if not rate:
            return [start_ms for _ in numbers]
        return [start_ms + int(number * 1000 / rate) for number in numbers]

    def numbers(self, batch: int) -> range:
        """The executions of one POST."""
        first = batch * self.jobs_per_post
        return range(first, min(first + self.jobs_per_post, self.total))

    def save(self, path: Path) -> None:
        """Write the plan for the generators to read."""
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(path: Path) -> Plan:
        """Read a plan."""
        return msgspec.json.decode(path.read_bytes(), type=Plan)


def write_payload(number: int) -> str:
    """A payload that carries the number, of the size that the headline figures are given for."""
    return f"{number:0{NUMBER_DIGITS}d}".ljust(PAYLOAD_CHARACTERS, ".")


def read_payload(payload: str) -> int:
    """The number that a payload carries."""
    return int(payload[:NUMBER_DIGITS])

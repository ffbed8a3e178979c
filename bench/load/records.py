"""What load generators write down: flat arrays by execution number, no line per execution.

Each generator holds its own and writes them to one file when it stops; the driver merges
them (`accounting`). An hour at 10,000 executions a second takes some hundred megabytes.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec

NEVER = 0xFFFF_FFFF
"""In an array of lags: not delivered."""
MOST = 255
"""Where the counters by execution stop counting."""
ACKNOWLEDGED = 1
REFUSED = 2


class WorkerRecord(msgspec.Struct, kw_only=True):
    """A worker's view of each execution; array fields are the bytes of arrays."""

    lags_us: bytes
    """uint32: due instant to the answer in hand, at the first delivery to this worker."""
    deliveries: bytes
    """uint8: how often it was delivered to this worker."""
    accepts: bytes
    """uint8: how many of this worker's completions were accepted."""
    jobs: bytes
    """uint64: the job that brought the number (0: none)."""
    tokens: bytes
    """uint64: the first token (0: none)."""
    early: int
    """Deliveries before the planned instant or before the due time that they tell."""
    foreign: int
    """Deliveries whose number came with two different jobs to this worker."""
    later_attempts: int
    """Deliveries that were not the first attempt."""
    verdicts: dict[str, int]
    claims: int
    reports: int
    repeats: int
    internal_errors: int


class SubmitterRecord(msgspec.Struct, kw_only=True):
    """A submitter's view; array fields are the bytes of arrays."""

    outcomes: bytes
    """uint8 by execution: 0 unknown or not this one's, 1 acknowledged, 2 refused."""
    lateness_us: bytes
    """uint32 by batch that had an instant (steady mode): how long after it it was sent."""
    latency_us: bytes
    """uint32 by batch that it sent: from the request to the answer."""
    sent_after_due: int
    """Executions sent when they were due already: their lag is the generator's own."""
    began_ns: int
    ended_ns: int
    repeats: int
    internal_errors: int


def write_record(path: Path, record: WorkerRecord | SubmitterRecord) -> None:
    """Write a record."""
    path.write_bytes(msgspec.msgpack.encode(record))


def read_worker(path: Path) -> WorkerRecord:
    """Read a worker's record."""
    return msgspec.msgpack.decode(path.read_bytes(), type=WorkerRecord)


def read_submitter(path: Path) -> SubmitterRecord:
    """Read a submitter's record."""
    return msgspec.msgpack.decode(path.read_bytes(), type=SubmitterRecord)


def numbers(data: bytes, kind: str) -> array[int]:
    """The array that the bytes are of."""
    values: array[int] = array(kind)
    values.frombytes(data)
    return values


class Tally:
    """A worker's arrays while it works."""

    def __init__(self, total: int) -> None:
        self.lags_us: array[int] = array("I", [NEVER]) * total
        self.deliveries = bytearray(total)
        self.accepts = bytearray(total)
        self.jobs: array[int] = array("Q", [0]) * total
        self.tokens: array[int] = array("Q", [0]) * total
        self.early = 0
        self.foreign = 0
        self.later_attempts = 0
        self.verdicts: dict[str, int] = {}
        self.settled = 0
        """Executions with a completion accepted for the first time."""

    def delivered(
        self,
        number: int,
        job: int,
        token: int,
        attempt: int,
        planned_ms: int,
        due_ms: int,
        now_ns: int,
    ) -> None:
        """An execution came into this worker's hands at `now_ns`."""
        if not self.deliveries[number]:
            self.lags_us[number] = min(max(0, now_ns // 1000 - planned_ms * 1000), NEVER - 1)
            self.jobs[number] = job
            self.tokens[number] = token
        elif self.jobs[number] != job:
            self.foreign += 1
        self.deliveries[number] = min(self.deliveries[number] + 1, MOST)
        self.early += now_ns < max(planned_ms, due_ms) * 1_000_000
        self.later_attempts += attempt > 1

    def reported(self, number: int, verdict: str) -> None:
        """A completion was answered. `duplicate`: its first sending counted, unheard."""
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        if verdict in ("accepted", "duplicate"):
            self.settled += not self.accepts[number]
            self.accepts[number] = min(self.accepts[number] + 1, MOST)

    def record(
        self, *, claims: int, reports: int, repeats: int, internal_errors: int
    ) -> WorkerRecord:
        """All of it, to be written down."""
        return WorkerRecord(
            lags_us=self.lags_us.tobytes(),
            deliveries=bytes(self.deliveries),
            accepts=bytes(self.accepts),
            jobs=self.jobs.tobytes(),
            tokens=self.tokens.tobytes(),
            early=self.early,
            foreign=self.foreign,
            later_attempts=self.later_attempts,
            verdicts=self.verdicts,
            claims=claims,
            reports=reports,
            repeats=repeats,
            internal_errors=internal_errors,
        )

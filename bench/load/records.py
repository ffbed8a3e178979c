"""What load generators write down: flat arrays, no line per execution.

Each generator holds its own and writes them to one file when it stops; the driver merges
them (`accounting`). An execution takes 35 bytes, an hour at 10,000/s about a gigabyte.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

NEVER = 0xFFFF_FFFF
"""In an array of lags: not delivered."""
MOST = 255
"""Where counters by execution stop counting."""
UNKNOWN = 0
ACKNOWLEDGED = 1
REFUSED = 2


class Delivered(Protocol):
    """What is written down of a delivery."""

    @property
    def job_id(self) -> str: ...

    @property
    def token(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def due_ms(self) -> int: ...


class WorkerRecord(msgspec.Struct, kw_only=True):
    """What a worker saw, in order; array fields are the bytes of arrays."""

    arrived_ns: bytes
    """uint64 by answer to a claim that delivered anything: when it was decoded."""
    sizes: bytes
    """uint32 by such an answer: its deliveries, which stand one after another in the next five."""
    numbers: bytes
    """uint32 by delivery: the execution."""
    jobs: bytes
    """uint64: the job that brought the number."""
    tokens: bytes
    """uint64: its token."""
    attempts: bytes
    """uint16: which attempt it is."""
    dues_ms: bytes
    """uint64: the due time that it tells."""
    accepted: bytes
    """uint32 by accepted completion: the execution."""
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


class Log:
    """A worker's record while it works: columns that grow by the batch, whatever comes.

    Nothing is counted before the load is over, since what a generator spends is missing from
    the cluster that shares its processor.
    """

    def __init__(self) -> None:
        self._arrived_ns: array[int] = array("Q")
        self._sizes: array[int] = array("I")
        self._numbers: array[int] = array("I")
        self._jobs: array[int] = array("Q")
        self._tokens: array[int] = array("Q")
        self._attempts: array[int] = array("H")
        self._dues_ms: array[int] = array("Q")
        self._accepted: array[int] = array("I")
        self._verdicts: Counter[str] = Counter()

    @property
    def settled(self) -> int:
        """Completions accepted."""
        return len(self._accepted)

    def delivered(
        self, now_ns: int, numbers: Sequence[int], deliveries: Sequence[Delivered]
    ) -> None:
        """Executions came into this worker's hands at `now_ns`, in one answer."""
        self._arrived_ns.append(now_ns)
        self._sizes.append(len(numbers))
        self._numbers.extend(numbers)
        self._jobs.extend([int(delivery.job_id) for delivery in deliveries])
        self._tokens.extend([delivery.token for delivery in deliveries])
        self._attempts.extend([delivery.attempt for delivery in deliveries])
        self._dues_ms.extend([delivery.due_ms for delivery in deliveries])

    def reported(self, numbers: Sequence[int], verdicts: Sequence[str]) -> None:
        """Completions were answered. `duplicate`: the first sending counted, unheard."""
        assert len(numbers) == len(verdicts)
        if verdicts.count("accepted") == len(verdicts):
            self._verdicts["accepted"] += len(verdicts)
            self._accepted.extend(numbers)
            return
        self._verdicts.update(verdicts)
        self._accepted.extend(
            number
            for number, verdict in zip(numbers, verdicts, strict=True)
            if verdict in ("accepted", "duplicate")
        )

    def record(
        self, *, claims: int, reports: int, repeats: int, internal_errors: int
    ) -> WorkerRecord:
        """All of it, to be written down."""
        return WorkerRecord(
            arrived_ns=self._arrived_ns.tobytes(),
            sizes=self._sizes.tobytes(),
            numbers=self._numbers.tobytes(),
            jobs=self._jobs.tobytes(),
            tokens=self._tokens.tobytes(),
            attempts=self._attempts.tobytes(),
            dues_ms=self._dues_ms.tobytes(),
            accepted=self._accepted.tobytes(),
            verdicts=dict(self._verdicts),
            claims=claims,
            reports=reports,
            repeats=repeats,
            internal_errors=internal_errors,
        )

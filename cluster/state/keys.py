"""Idempotency keys: which job holds each, until when, and how they are forgotten.

A key holds for a window from its create, or until its job has ended. Windows may differ from key
to key, and a key is never forgotten out of turn: keys lie in a queue for each power of two of their
window, in the order of their creates, so that forgetting looks at the heads of a few queues alone.
A key stays in memory for at most twice its window; that it is over shows at once. The lookup is
spread over many small dicts, as in `memory`.

A key that holds until its job has ended goes with it. It is remembered with the job beyond that,
since a dead letter that is replayed must hold it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from mypy_extensions import mypyc_attr

from timeball.cluster.state.fifo import Fifo
from timeball.cluster.state.records import Job

_SHARDS: Final = 64
_FINGERPRINT: Final = (1 << 60) - 1


UNTIL_ENDED: Final = 0
"""In place of a window: the key holds until its job has ended."""

KeyName = str | tuple[str, str]
"""Under which a key is known: itself, or (queue, key) if it is known within its queue alone."""


@mypyc_attr(acyclic=True)
class Key:
    """A key, when its job was created (log-time, epoch ms), and which request and job it is of.

    It holds for `window_ms` from `since_ms`, or `UNTIL_ENDED`.
    """

    __slots__ = ("fingerprint", "job", "name", "nominal_ms", "since_ms", "window_ms")

    def __init__(
        self,
        name: KeyName,
        since_ms: int,
        fingerprint: int,
        job: int,
        nominal_ms: int,
        window_ms: int,
    ) -> None:
        self.name = name
        self.since_ms = since_ms
        self.fingerprint = fingerprint
        self.job = job
        self.nominal_ms = nominal_ms
        self.window_ms = window_ms

    def holds(self, now_ms: int) -> bool:
        """Whether its window is not over, or it knows none."""
        return self.since_ms + self.window_ms > now_ms or self.window_ms == UNTIL_ENDED


def key_name(key: str, queue: str, *, within_queue: bool) -> KeyName:
    """The name under which a key is known."""
    return (queue, key) if within_queue else key


def short_fingerprint(fingerprint: bytes) -> int:
    """What is kept of a fingerprint: its last 60 bits, a third less memory than the bytes."""
    return int.from_bytes(fingerprint) & _FINGERPRINT


def window_class(window_ms: int) -> int:
    """Keys whose windows are of one class wait in one queue."""
    return window_ms.bit_length()


class Keys:
    """All keys that are known, and those of kept jobs that may be held again."""

    __slots__ = ("_of_jobs", "_orders", "_shards", "held", "windowed")

    def __init__(self) -> None:
        self._shards: list[dict[KeyName, Key]] = [{} for _ in range(_SHARDS)]
        self._orders: dict[int, Fifo[Key]] = {}
        """Keys with a window, by the class of it, in the order of their creates."""
        self._of_jobs: list[dict[int, Key]] = [{} for _ in range(_SHARDS)]
        """Keys that hold until their job has ended, by job, for as long as that is kept."""
        self.windowed = 0
        """How many keys with a window are in memory."""
        self.held = 0
        """How many keys hold until their job has ended."""

    def __iter__(self) -> Iterator[Key]:
        """The keys with a window of this moment: by class, and in it oldest first."""
        return chain.from_iterable([iter(order) for order in self._orders.values()])

    def find(self, name: KeyName, now_ms: int) -> Key | None:
        """What holds this name."""
        record = self._shards[hash(name) % _SHARDS].get(name)
        return record if record is not None and record.holds(now_ms) else None

    def of_job(self, job: Job, now_ms: int) -> Key | None:
        """The key by which a job is known; None if it has none, or that is free again."""
        key = job.idempotency_key
        if key:
            for within_queue in (False, True):
                record = self.find(key_name(key, job.queue, within_queue=within_queue), now_ms)
                if record is not None and record.job == job.id:
                    return record
        return None

    # With a window.

    def add(self, record: Key) -> None:
        """Know a key for its window; within a class of windows, jobs come in rising order.

        Of records of one name, whichever came first to a state that is restored, the one of the
        latest job counts, and one that is held before any: all others are over.
        """
        shard = self._shards[hash(record.name) % _SHARDS]
        known = shard.get(record.name)
        if known is None or (known.window_ms != UNTIL_ENDED and known.job < record.job):
            shard[record.name] = record
        number = window_class(record.window_ms)
        order = self._orders.get(number)
        if order is None:
            order = Fifo[Key]()
            self._orders = dict(sorted([*self._orders.items(), (number, order)]))
        order.append(record)
        self.windowed += 1

    def trim(self, now_ms: int, limit: int, steps: int) -> int:
        """Forget keys whose window is over and, beyond `limit`, those known longest.

        At most `steps` of them; the answer is how many were forgotten before their time.
        """
        for order in self._orders.values():
            while steps and len(order) and not order.oldest.holds(now_ms):
                self._forget(order)
                steps -= 1
        early = max(0, min(steps, self.windowed - limit))
        for _ in range(early):
            self._forget(min(filter(len, self._orders.values()), key=lambda one: one.oldest.job))
        return early

    def _forget(self, order: Fifo[Key]) -> None:
        record = order.take()
        self.windowed -= 1
        self._unname(record)

    def _unname(self, record: Key) -> None:
        shard = self._shards[hash(record.name) % _SHARDS]
        if shard.get(record.name) is record:
            del shard[record.name]

    # Until the job has ended.

    def keep(self, record: Key) -> None:
        """Remember the key of a job that holds it until it has ended, for as long as it is kept."""
        self._of_jobs[_shard(record.job)][record.job] = record

    def kept(self, job_id: int) -> Key | None:
        """The key that a job holds until it has ended, or held."""
        return self._of_jobs[_shard(job_id)].get(job_id)

    def hold(self, record: Key) -> None:
        """Let the name be held; nothing else may hold it."""
        self._shards[hash(record.name) % _SHARDS][record.name] = record
        self.held += 1

    def release(self, job_id: int) -> None:
        """The job has ended: its name, if it is one of these, is free."""
        record = self.kept(job_id)
        if record is not None and self._is_held_by(record):
            self._unname(record)
            self.held -= 1

    def hold_again(self, job_id: int, now_ms: int) -> bool:
        """The job begins anew, and holds its name again; False if another has it meanwhile.

        The bound on held keys does not count here: dead letters, which have their own, are all
        that may exceed it.
        """
        record = self.kept(job_id)
        if record is None or self._is_held_by(record):
            return True
        if self.find(record.name, now_ms) is not None:
            return False
        self.hold(record)
        return True

    def drop(self, job_id: int) -> None:
        """The job is forgotten."""
        self._of_jobs[_shard(job_id)].pop(job_id, None)

    def _is_held_by(self, record: Key) -> bool:
        return self._shards[hash(record.name) % _SHARDS].get(record.name) is record


def _shard(job_id: int) -> int:
    # Ids of one entry follow each other; of entries with one job each, the lower bits are equal.
    return (job_id ^ job_id >> 12) % _SHARDS

"""Jobs by id, spread over small dicts by range of id: one large dict rebuilds in one go, on all
nodes at the same entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

from timeball.cluster.state.records import Job

_SHARD_BITS: Final = 17
_NO_JOBS: Final[dict[int, Job]] = {}


class JobMap:
    """Jobs by id. Ids are added in rising order, so the order of time is kept for free."""

    __slots__ = ("_count", "_keys", "_shards")

    def __init__(self) -> None:
        self._shards: dict[int, dict[int, Job]] = {}
        self._keys: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, job_id: int) -> Job | None:
        """The job of this id."""
        return self._shards.get(job_id >> _SHARD_BITS, _NO_JOBS).get(job_id)

    def add(self, job: Job) -> None:
        """Add a job whose id is higher than all before."""
        job_id = job.id
        key = job_id >> _SHARD_BITS
        shard = self._shards.get(key)
        if shard is None:
            assert not self._keys or self._keys[-1] < key, "job ids must rise"
            shard = self._shards[key] = {}
            self._keys.append(key)
        held = len(shard)
        shard[job_id] = job
        assert len(shard) > held, "job ids must be new"
        self._count += 1

    def remove(self, job: Job) -> None:
        """Remove a job that is here."""
        job_id = job.id
        key = job_id >> _SHARD_BITS
        shard = self._shards[key]
        del shard[job_id]
        self._count -= 1
        if not shard:
            del self._shards[key]
            del self._keys[bisect_left(self._keys, key)]

    def shards(self) -> list[int]:
        """The names of the shards there are, oldest jobs first."""
        return list(self._keys)

    def shard_of(self, job_id: int) -> int:
        """The name of the shard to which an id belongs."""
        return job_id >> _SHARD_BITS

    def shard(self, name: int) -> Mapping[int, Job]:
        """The jobs of a shard by rising id; empty if it is gone."""
        return self._shards.get(name, _NO_JOBS)

    def oldest_first(self) -> Iterator[Job]:
        """All jobs by rising id; the map must not change meanwhile."""
        for key in self._keys:
            yield from self._shards[key].values()

    def newest_first(self, upto: int | None = None) -> Iterator[Job]:
        """Jobs by falling id, from `upto` (inclusive) on; the map must not change meanwhile."""
        position = len(self._keys)
        if upto is not None:
            position = bisect_left(self._keys, (upto >> _SHARD_BITS) + 1)
        for at in range(position - 1, -1, -1):
            for job in reversed(self._shards[self._keys[at]].values()):
                if upto is None or job.id <= upto:
                    yield job

"""Jobs by id. Those that one entry of the log created stand in a row, and are found by their place.

What no cache holds is dear to look up, and a dict of all jobs takes three such looks for each: at
its index, its line and the key. Rows are gathered in shards of 32 entries, because one large dict
rebuilds in one go, on all nodes at the same entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from timeball.cluster.state.operations import NUMBERED_PER_ENTRY
from timeball.cluster.state.records import Job

_ENTRY_BITS: Final = 12
_PLACES: Final = (1 << _ENTRY_BITS) - 1
_SHARD_BITS: Final = 17
_ENTRIES: Final = 1 << (_SHARD_BITS - _ENTRY_BITS)
assert 1 << _ENTRY_BITS == NUMBERED_PER_ENTRY


class _Row:
    """Jobs of one entry: one behind the other from its first number on, others by id.

    A job has a place of its own if none was left out before it, as when it is created. Of a
    snapshot, in which earlier ones are gone, it has none, and takes no room for them.
    """

    __slots__ = ("apart", "held", "places")

    def __init__(self) -> None:
        self.places: list[Job | None] = []
        self.apart: dict[int, Job] | None = None
        self.held = 0

    def get(self, job_id: int) -> Job | None:
        place = job_id & _PLACES
        if place < len(self.places):
            return self.places[place]
        return None if self.apart is None else self.apart.get(job_id)

    def add(self, job: Job) -> None:
        place = job.id & _PLACES
        if place == len(self.places) and self.apart is None:
            self.places.append(job)
        else:
            assert place > len(self.places), "job ids must rise"
            if self.apart is None:
                self.apart = {}
            self.apart[job.id] = job
        self.held += 1

    def remove(self, job: Job) -> None:
        place = job.id & _PLACES
        if place < len(self.places):
            assert self.places[place] is job, "a job that is here"
            self.places[place] = None
        else:
            assert self.apart is not None, "a job that is here"
            del self.apart[job.id]
        self.held -= 1

    def jobs(self) -> list[Job]:
        jobs = [job for job in self.places if job is not None]
        if self.apart is not None:
            jobs += self.apart.values()
        return jobs


class JobMap:
    """Jobs by id. Ids are added in rising order, so the order of time is kept for free."""

    __slots__ = ("_count", "_keys", "_shards")

    def __init__(self) -> None:
        self._shards: dict[int, dict[int, Job | _Row]] = {}
        """By entry: a row, or the only job, which needs none."""
        self._keys: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, job_id: int) -> Job | None:
        """The job of this id."""
        shard = self._shards.get(job_id >> _SHARD_BITS)
        if shard is None:
            return None
        found = shard.get(job_id >> _ENTRY_BITS)
        if found is None:
            return None
        if isinstance(found, _Row):
            return found.get(job_id)
        return found if found.id == job_id else None

    def add(self, job: Job) -> None:
        """Add a job whose id is higher than all before."""
        job_id = job.id
        key = job_id >> _SHARD_BITS
        shard = self._shards.get(key)
        if shard is None:
            assert not self._keys or self._keys[-1] < key, "job ids must rise"
            shard = self._shards[key] = {}
            self._keys.append(key)
        entry = job_id >> _ENTRY_BITS
        found = shard.get(entry)
        if found is None:
            shard[entry] = job
        elif isinstance(found, _Row):
            found.add(job)
        else:
            assert found.id < job_id, "job ids must rise"
            row = shard[entry] = _Row()
            row.add(found)
            row.add(job)
        self._count += 1

    def remove(self, job: Job) -> None:
        """Remove a job that is here."""
        job_id = job.id
        key, entry = job_id >> _SHARD_BITS, job_id >> _ENTRY_BITS
        shard = self._shards[key]
        found = shard[entry]
        if isinstance(found, _Row):
            found.remove(job)
        self._count -= 1
        if not isinstance(found, _Row) or not found.held:
            del shard[entry]
            if not shard:
                del self._shards[key]
                del self._keys[bisect_left(self._keys, key)]

    def shards(self) -> list[int]:
        """The names of the shards there are, oldest jobs first."""
        return list(self._keys)

    def entries_of(self, shard: int) -> range:
        """The entries whose jobs a shard holds."""
        return range(shard * _ENTRIES, (shard + 1) * _ENTRIES)

    def entry_of(self, job_id: int) -> int:
        """The entry that created a job."""
        return job_id >> _ENTRY_BITS

    def jobs_of(self, entry: int) -> list[Job]:
        """The jobs that an entry created and that are here, by rising id."""
        shard = self._shards.get(entry >> (_SHARD_BITS - _ENTRY_BITS))
        found = None if shard is None else shard.get(entry)
        if found is None:
            return []
        return found.jobs() if isinstance(found, _Row) else [found]

    def newest_first(self, upto: int | None = None) -> Iterator[Job]:
        """Jobs by falling id, from `upto` (inclusive) on; the map must not change meanwhile."""
        position = len(self._keys)
        if upto is not None:
            position = bisect_left(self._keys, (upto >> _SHARD_BITS) + 1)
        for at in range(position - 1, -1, -1):
            for entry in reversed(self._shards[self._keys[at]]):
                if upto is None or entry <= upto >> _ENTRY_BITS:
                    for job in reversed(self.jobs_of(entry)):
                        if upto is None or job.id <= upto:
                            yield job

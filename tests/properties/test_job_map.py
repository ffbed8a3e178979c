"""Jobs by id, in rows and apart, against a plain dict."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from timeball.cluster.state.jobmap import JobMap
from timeball.cluster.state.operations import NUMBERED_PER_ENTRY
from timeball.cluster.state.records import Job
from timeball.cluster.state.store import NO_EXECUTIONS
from timeball.cluster.state.usual import DEFAULT_POLICY

# Entries close to each other and far apart, on both sides of a shard's end.
ENTRIES = st.lists(st.integers(1, 80), min_size=1, max_size=6, unique=True).map(sorted)
PLACES = st.one_of(
    st.integers(0, 5).map(range),
    st.lists(
        st.integers(0, 9) | st.just(NUMBERED_PER_ENTRY - 1), min_size=1, max_size=5, unique=True
    ).map(sorted),
)
"""The numbers that an entry's jobs have in it: without gaps when created, with gaps in a dump."""


def job(job_id: int) -> Job:
    return Job(job_id, "q", b"", 0, DEFAULT_POLICY, 5, "", 0, "", NO_EXECUTIONS)


@settings(max_examples=200)
@given(ENTRIES, st.data())
def test_it_holds_what_a_dict_would(entries: list[int], data: st.DataObject) -> None:
    jobs, model = JobMap(), dict[int, Job]()
    for entry in entries:
        for place in data.draw(PLACES):
            one = job(entry * NUMBERED_PER_ENTRY + place)
            jobs.add(one)
            model[one.id] = one
    _compare(jobs, model, entries)
    leaving = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else []
    for job_id in leaving:
        jobs.remove(model.pop(job_id))
    _compare(jobs, model, entries)
    upto = data.draw(st.sampled_from([*model, *leaving, 0])) + data.draw(st.integers(-1, 1))
    newest = [one for job_id, one in sorted(model.items(), reverse=True) if job_id <= upto]
    assert list(jobs.newest_first(upto)) == newest


def _compare(jobs: JobMap, model: dict[int, Job], entries: list[int]) -> None:
    assert len(jobs) == len(model)
    for entry in entries:
        first = entry * NUMBERED_PER_ENTRY
        for job_id in (*range(first, first + 12), first + NUMBERED_PER_ENTRY - 1):
            assert jobs.get(job_id) is model.get(job_id)
    there = [model[job_id] for job_id in sorted(model)]
    by_entry = [entry for shard in jobs.shards() for entry in jobs.entries_of(shard)]
    assert [one for entry in by_entry for one in jobs.jobs_of(entry)] == there
    assert all(jobs.entry_of(one.id) in by_entry for one in there)
    assert list(jobs.newest_first()) == there[::-1]
    assert jobs.shards() == sorted({one.id // NUMBERED_PER_ENTRY // 32 for one in there})

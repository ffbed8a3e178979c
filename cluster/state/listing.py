"""Pages of records, newest first, by cursor.

A cursor names the last record seen, by its place in an order that never changes, so
records that come or go meanwhile neither repeat nor hide others. One call looks at a
bounded number of records: a page may be short, even empty, and still have a next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Generic, NamedTuple, TypeVar

from timeball.cluster.state.happenings import error_type_of
from timeball.cluster.state.limits import MAX_TIME_MS
from timeball.cluster.state.poison import is_of
from timeball.cluster.state.records import Execution, ExecutionState, Job, JobState
from timeball.cluster.state.store import Store

MOST_LOOKED_AT = 10_000
"""Records that one call looks at, whatever its filters let through."""

R = TypeVar("R")
C = TypeVar("C")


class Page(Generic[R, C]):
    """Some records and the cursor to go on from; `next_after` is None at the end."""

    __slots__ = ("items", "next_after")

    def __init__(self, items: list[R], next_after: C | None) -> None:
        self.items = items
        self.next_after = next_after


class Span(NamedTuple):
    """Instants from one on, included, to before another, epoch milliseconds."""

    from_ms: int = 0
    before_ms: int = MAX_TIME_MS + 1

    def holds(self, instant_ms: int) -> bool:
        """Whether an instant is one of them."""
        return self.from_ms <= instant_ms < self.before_ms


ALWAYS: Final = Span()


def list_jobs(
    store: Store,
    after: int | None,
    limit: int,
    queue: str | None,
    state: JobState | None,
    tag: str | None = None,
    created: Span = ALWAYS,
) -> Page[Job, int]:
    """Jobs by falling id, from below `after` on."""
    upto = None if after is None else after - 1

    # One function within, not two: of two that refer to each other, compiled, each call would leave
    # a ring behind for the collector.
    def found() -> Iterator[tuple[Job, int, bool]]:
        for job in store.jobs.newest_first(upto):
            if job.created_ms < created.from_ms:
                return  # ids and log-time rise together
            wanted = (
                (queue is None or job.queue == queue)
                and (state is None or job.state is state)
                and (tag is None or tag in job.options.tags)
                and created.holds(job.created_ms)
            )
            yield job, job.id, wanted

    return _page(found(), limit)


def list_executions(
    store: Store,
    after: tuple[int, int] | None,
    limit: int,
    queue: str | None,
    state: ExecutionState | None,
    tag: str | None = None,
    due: Span = ALWAYS,
) -> Page[Execution, tuple[int, int]]:
    """Executions by falling (job id, nominal time), from below `after` on."""

    def found() -> Iterator[tuple[Execution, tuple[int, int], bool]]:
        for job in store.jobs.newest_first(None if after is None else after[0]):
            of_job = (queue is None or job.queue == queue) and (
                tag is None or tag in job.options.tags
            )
            for execution in reversed(store.executions_of(job)):
                place = (job.id, execution.nominal_ms)
                if after is None or place < after:
                    wanted = state in (None, execution.state) and due.holds(execution.due_ms)
                    yield execution, place, of_job and wanted

    return _page(found(), limit)


@dataclass(frozen=True, kw_only=True)
class DeadFilter:
    """Which dead executions are wanted: those to which all applies; None: whichever."""

    queue: str | None = None
    job: int | None = None
    error_type: str | None = None
    """Of the last attempt; "" for those whose worker named none."""
    reason: str | None = None
    """Or the family of the reason (see `poison`)."""
    died_after_ms: int = 0
    """Died then or later…"""
    died_before_ms: int = MAX_TIME_MS + 1
    """… and before this."""

    def admits(self, execution: Execution) -> bool:
        """Whether a dead execution is wanted."""
        job = execution.job
        return (
            (self.queue is None or job.queue == self.queue)
            and (self.job is None or job.id == self.job)
            and self.died_after_ms <= execution.finished_ms < self.died_before_ms
            and (self.reason is None or is_of(execution.reason, self.reason))
            and (self.error_type is None or error_type_of(execution) == self.error_type)
        )


ALL_DEAD: Final = DeadFilter()


def list_dead(
    store: Store, after: tuple[int, int] | None, limit: int, wanted: DeadFilter
) -> Page[Execution, tuple[int, int]]:
    """Dead executions by falling (time of death, token), from below `after` on."""

    def found() -> Iterator[tuple[Execution, tuple[int, int], bool]]:
        # The order of deaths is the order of their log-times; within one of these, sort.
        for ended_ms, dead in groupby(reversed(store.dead), key=lambda one: one.finished_ms):
            if after is not None and ended_ms > after[0]:
                continue
            if ended_ms < wanted.died_after_ms:
                return
            for execution in sorted(dead, key=lambda one: one.token, reverse=True):
                place = (ended_ms, execution.token)
                if after is None or place < after:
                    yield execution, place, wanted.admits(execution)

    return _page(found(), limit)


def _page(found: Iterable[tuple[R, C, bool]], limit: int) -> Page[R, C]:
    assert limit >= 1
    items: list[R] = []
    cursor: C | None = None
    for looked_at, (record, place, wanted) in enumerate(found):
        if len(items) == limit or looked_at == MOST_LOOKED_AT:
            return Page(items, cursor)
        cursor = place
        if wanted:
            items.append(record)
    return Page(items, None)

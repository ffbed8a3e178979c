"""The guess at an operation's bytes is never below what the log takes for it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from timeball.cluster.state import operations as ops
from timeball.cluster.state.queue_settings import QUEUE_STATES, QueueChange, RateLimit
from timeball.cluster.state.sizes import count_items, guess_bytes

NUMBERS = st.integers(0, 2**53)
IDENTITY = st.tuples(NUMBERS, NUMBERS)
HOLD = st.tuples(NUMBERS, NUMBERS, NUMBERS)
KEY = st.text(max_size=255)
NAME = st.text("aé😀", max_size=64)


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=20)


ZONE = st.text("aB/_", max_size=64)
EXPRESSION = st.text("0123456789*/,", max_size=256)
RULE = st.one_of(
    st.builds(ops.Every, NUMBERS, NUMBERS),
    st.builds(ops.Cron, EXPRESSION, ZONE),
    st.builds(ops.At, some(NUMBERS).map(tuple)),
)
EXCLUSION = st.one_of(
    st.builds(ops.Dates, some(IDENTITY).map(tuple), ZONE),
    st.builds(ops.Window, EXPRESSION, ZONE),
)
TIMETABLE = st.builds(
    ops.Timetable,
    st.lists(RULE, max_size=16).map(tuple),
    *([NUMBERS] * 4),
    st.lists(EXCLUSION, max_size=16).map(tuple),
    st.sampled_from(["none", "one", "all"]),
    NUMBERS,
    NUMBERS,
    st.sampled_from(ops.OVERLAPS),
)
RETRY = st.builds(
    ops.RetryPolicy,
    *([NUMBERS] * 5),
    st.sampled_from(ops.BACKOFFS),
    st.lists(NUMBERS, max_size=50).map(tuple),
    st.lists(st.text("aé😀", max_size=200), max_size=16).map(tuple),
)
TAGS = st.lists(st.text("aé😀", max_size=64), max_size=16).map(tuple)
OPTIONS = st.builds(ops.Options, KEY, TAGS, TAGS, NUMBERS, NUMBERS)
NEW_JOB = st.builds(
    ops.NewJob,
    queue=st.text("ab", max_size=64),
    payload=st.binary(max_size=200),
    first_ms=NUMBERS,
    timetable=st.none() | TIMETABLE,
    partition_key=KEY,
    retry=RETRY,
    timeout_ms=NUMBERS,
    idempotency_key=KEY,
    fingerprint=st.binary(max_size=64),
    options=st.none() | OPTIONS,
    key_rule=st.none() | st.builds(ops.KeyRule, NUMBERS, *([st.booleans()] * 3)),
)
FATE = st.builds(ops.Fate, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 3), NAME)
OPERATIONS = st.one_of(
    st.builds(ops.CreateJobs, KEY, some(NEW_JOB)),
    st.builds(ops.CancelJobs, some(NUMBERS)),
    st.builds(ops.Claim, NAME, KEY, NUMBERS, some(IDENTITY), TAGS),
    st.builds(ops.Start, some(HOLD)),
    st.builds(
        ops.Succeed,
        some(st.builds(ops.Success, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=99), NUMBERS)),
    ),
    st.builds(
        ops.Fail,
        some(st.builds(ops.Failure, *([NUMBERS] * 3), NAME, KEY, NUMBERS, backtrace=KEY)),
    ),
    st.builds(ops.Release, some(HOLD)),
    st.builds(ops.Expire, some(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.booleans()))),
    st.builds(
        ops.AdvanceTimetables,
        some(
            st.builds(
                ops.Advance,
                *(NUMBERS, NUMBERS, NUMBERS, some(NUMBERS), NUMBERS, st.lists(FATE, max_size=8)),
                st.none() | FATE,
                NUMBERS,
            ),
        ),
    ),
    st.builds(ops.Replay, some(HOLD)),
    st.builds(ops.PurgeDead, some(HOLD)),
    st.builds(ops.SkipExpired, some(IDENTITY)),
    st.builds(
        ops.ReportProgress,
        some(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=200))),
    ),
    st.builds(ops.ParkTimetables, some(st.tuples(NUMBERS, NUMBERS, KEY))),
    st.builds(ops.BackfillJob, NUMBERS, NUMBERS, some(NUMBERS)),
)
SINGLE = st.one_of(
    st.builds(ops.Lead, NAME, st.just(ops.ClusterSettings())),
    st.builds(ops.RaiseLevel, NUMBERS, NUMBERS),
    st.builds(ops.PauseJob, NUMBERS, KEY),
    st.builds(ops.ResumeJob, NUMBERS),
    st.builds(ops.TriggerJob, NUMBERS, KEY),
    st.builds(
        ops.UpdateJob,
        *(NUMBERS, NUMBERS),
        st.builds(
            ops.Change,
            st.none() | st.binary(max_size=200),
            *(RETRY, NUMBERS, NUMBERS, TIMETABLE, NUMBERS, NUMBERS, TAGS, TAGS, NUMBERS, NUMBERS),
        ),
    ),
    st.builds(ops.PutJob, NAME, NEW_JOB),
    st.builds(ops.InstructWorker, NAME, st.sampled_from(["", *ops.INSTRUCTIONS])),
    st.builds(
        ops.ConfigureQueue,
        NAME,
        NUMBERS,
        st.builds(
            QueueChange,
            st.sampled_from(QUEUE_STATES),
            *(NUMBERS, NUMBERS),
            st.builds(RateLimit, *([NUMBERS] * 3)),
        ),
    ),
)


@given(OPERATIONS | SINGLE)
def test_the_guess_is_an_upper_bound(operation: ops.AnyOperation) -> None:
    assert len(ops.encode_entry(2**53, [operation])) <= guess_bytes(operation)


@given(OPERATIONS)
def test_each_item_counts(operation: ops.AnyOperation) -> None:
    named = "executions" if isinstance(operation, ops.Claim) else operation.__struct_fields__[-1]
    items = getattr(operation, named)
    assert count_items(operation) == len(items)


@given(SINGLE)
def test_an_operation_on_one_thing_counts_as_one(operation: ops.AnyOperation) -> None:
    assert count_items(operation) == 1


def test_texts_of_failures_count() -> None:
    """What is proposed in a burst must meet the limit on bytes that wait."""
    failure = ops.Failure(1, 1, 1, "", "x" * 2_000, backtrace="y" * 8_000)
    assert guess_bytes(ops.Fail([failure] * 100)) > 100 * 10_000

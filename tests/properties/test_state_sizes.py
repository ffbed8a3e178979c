"""The guess at an operation's bytes is never below what the log takes for it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from timeball.cluster.state import operations as ops
from timeball.cluster.state.sizes import count_items, guess_bytes

NUMBERS = st.integers(0, 2**53)
IDENTITY = st.tuples(NUMBERS, NUMBERS)
HOLD = st.tuples(NUMBERS, NUMBERS, NUMBERS)
KEY = st.text(max_size=255)
NAME = st.text("aé😀", max_size=64)


def some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=20)


TIMETABLES = st.one_of(
    st.none(),
    st.builds(ops.Every, NUMBERS, NUMBERS, NUMBERS),
    st.builds(ops.Cron, st.text("0123456789*/,", max_size=256), st.text("aB/_", max_size=64)),
)
OPERATIONS = st.one_of(
    st.builds(
        ops.CreateJobs,
        KEY,
        some(
            st.builds(
                ops.NewJob,
                queue=st.text("ab", max_size=64),
                payload=st.binary(max_size=200),
                first_ms=NUMBERS,
                timetable=TIMETABLES,
                partition_key=KEY,
                retry=st.builds(ops.RetryPolicy, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
                timeout_ms=NUMBERS,
                idempotency_key=KEY,
                fingerprint=st.binary(max_size=64),
            )
        ),
    ),
    st.builds(ops.CancelJobs, some(NUMBERS)),
    st.builds(ops.Claim, NAME, KEY, NUMBERS, some(IDENTITY)),
    st.builds(ops.Start, some(HOLD)),
    st.builds(
        ops.Succeed,
        some(st.builds(ops.Success, NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=99), NUMBERS)),
    ),
    st.builds(
        ops.Fail,
        some(st.builds(ops.Failure, NUMBERS, NUMBERS, NUMBERS, NAME, KEY, NUMBERS)),
    ),
    st.builds(ops.Release, some(HOLD)),
    st.builds(ops.Expire, some(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.booleans()))),
    st.builds(
        ops.AdvanceTimetables,
        some(
            st.builds(ops.Advance, NUMBERS, NUMBERS, some(NUMBERS), NUMBERS, NUMBERS, NUMBERS),
        ),
    ),
    st.builds(ops.Replay, some(IDENTITY)),
    st.builds(ops.Lead, NAME, st.just(ops.ClusterSettings())),
)


@given(OPERATIONS)
def test_the_guess_is_an_upper_bound(operation: ops.AnyOperation) -> None:
    assert len(ops.encode_entry(2**53, [operation])) <= guess_bytes(operation)


@given(OPERATIONS)
def test_each_item_counts(operation: ops.AnyOperation) -> None:
    items = getattr(operation, operation.__struct_fields__[-1])
    assert count_items(operation) == (1 if isinstance(operation, ops.Lead) else len(items))


def test_texts_of_failures_count() -> None:
    """What is proposed in a burst must meet the limit on bytes that wait."""
    failure = ops.Failure(1, 1, 1, "", "x" * 2_000)
    assert guess_bytes(ops.Fail([failure] * 100)) > 100 * 2_000

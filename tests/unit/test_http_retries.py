"""Retry policies and errors on their way from the wire to the log and back."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.http.definitions import read_policy, weight_of
from timeball.cluster.http.executions import MAX_OPERATION_BYTES, _split, clip_beginning
from timeball.cluster.http.views import show_policy
from timeball.cluster.state import poison
from timeball.cluster.state.operations import (
    BACKOFFS,
    Fail,
    Failure,
    NewJob,
    RetryPolicy,
    encode_entry,
)


def test_a_backtrace_that_is_too_long_is_cut_at_its_beginning_with_a_mark() -> None:
    assert clip_beginning("short", 10) == "short"
    assert clip_beginning("0123456789", 10) == "0123456789"
    clipped = clip_beginning("outermost … innermost", 14)
    assert clipped == "[…]  innermost"
    assert len(clipped) == 14


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        ({"backoff": "list"}, "delays_ms"),
        ({"delays_ms": [1]}, "delays_ms"),
        ({"backoff": "fixed", "delays_ms": [1]}, "delays_ms"),
        ({"initial_ms": 3_600_001}, "max_ms"),
        ({"backoff": "linear", "initial_ms": 11, "max_ms": 10}, "max_ms"),
        ({"backoff": "list", "delays_ms": [1, 3_600_001, 2]}, "max_ms"),
    ],
)
def test_parts_of_a_retry_policy_that_contradict_each_other_are_refused_by_name(
    retry: dict[str, Any], field: str
) -> None:
    for _ in range(2):  # also when it is remembered
        with pytest.raises(InvalidRequest) as refused:
            read_policy(msgspec.convert(retry, messages.Retry), "jobs[3].")
        assert refused.value.errors[0].field == f"jobs[3].retry.{field}"


def test_a_retry_policy_reaches_the_log_whole_and_the_default_as_none() -> None:
    assert read_policy(messages.Retry(), "") is None
    assert read_policy(messages.Retry(backoff="exponential", initial_ms=1_000), "") is None
    retry = messages.Retry(7, 20, 300, 900, 40, "list", (20, 30), ("KeyError",))
    policy = RetryPolicy(7, 20, 300, 900, 40, "list", (20, 30), ("KeyError",))
    assert read_policy(retry, "") == policy
    assert show_policy(policy) == retry


def test_the_words_of_the_wire_are_those_of_the_state() -> None:
    assert get_args(messages.BackoffName) == BACKOFFS
    assert set(get_args(messages.DeadReason)) == {*poison.REASONS, poison.ATTEMPTS_EXHAUSTED}


def test_an_operation_of_failures_is_bounded_with_all_their_texts() -> None:
    failure = Failure(1, 1, 1, "é" * 200, "é" * 2_000, backtrace="é" * 8_192)
    parts = _split([failure] * 100)
    assert sum(map(len, parts)) == 100
    assert len(parts) > 1
    for part in parts:
        assert len(encode_entry(1, [Fail(part)])) <= MAX_OPERATION_BYTES


def test_the_names_of_errors_weigh_in_a_batch_of_jobs() -> None:
    policy = RetryPolicy(non_retryable_errors=("é" * 200,) * 16, delays_ms=(2**40,) * 50)
    job = NewJob("q", b"", retry=policy)
    assert weight_of(job) >= len(msgspec.msgpack.encode(job))

"""The rules of failing over, in virtual time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.client.failover import (
    LEAST_ATTEMPT_MS,
    MAX_ATTEMPTS,
    RULES,
    Attempts,
    Backoff,
    Nodes,
    Trouble,
)

A, B, C = "http://a", "http://b", "http://c"


class Highest(Random):
    def uniform(self, a: float, b: float) -> float:
        return b


class Lowest(Random):
    def uniform(self, a: float, b: float) -> float:
        return a


def attempts(nodes: Nodes | None = None, rng: Random | None = None, deadline_ms: int = 60_000):
    return Attempts(nodes or Nodes([A, B, C]), Backoff(50, 2_000), rng or Highest(), deadline_ms)


def test_every_trouble_has_a_rule() -> None:
    assert set(RULES) == set(Trouble)


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble.UNREACHABLE,
        Trouble.NO_LEADER,
        Trouble.BROKEN,
        Trouble.TIMED_OUT,
        Trouble.BEHIND,
    ],
)
def test_http_09_each_node_is_asked_at_once_before_the_first_pause(trouble: Trouble) -> None:
    call = attempts()
    assert call.url == A
    assert call.after(trouble, 0) == (B, 0)
    assert call.after(trouble, 0) == (C, 0)
    assert call.after(trouble, 0) == (A, 50)
    assert call.after(trouble, 50) == (B, 0)


@pytest.mark.parametrize("trouble", [Trouble.OUTCOME_UNKNOWN, Trouble.INTERNAL, Trouble.OVERLOADED])
def test_a_node_that_answered_with_trouble_is_given_time(trouble: Trouble) -> None:
    call = attempts()
    assert call.after(trouble, 0) == (B, 50)
    assert call.after(trouble, 50) == (C, 100)


def test_http_09_pauses_grow_to_a_cap_and_are_fully_jittered() -> None:
    longest, shortest = attempts(rng=Highest()), attempts(rng=Lowest())
    pauses = [longest.after(Trouble.OVERLOADED, 0).pause_ms for _ in range(8)]
    assert pauses == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000]
    assert [shortest.after(Trouble.OVERLOADED, 0).pause_ms for _ in range(8)] == [0] * 8


def test_what_the_cluster_asks_for_is_waited_for_and_the_jitter_comes_on_top() -> None:
    assert attempts(rng=Lowest()).after(Trouble.OVERLOADED, 0, retry_after_ms=700) == (B, 700)
    assert attempts(rng=Highest()).after(Trouble.OVERLOADED, 0, retry_after_ms=700) == (B, 750)


def test_a_round_of_nodes_without_a_leader_waits_for_the_soonest() -> None:
    call = attempts(rng=Lowest())
    assert call.after(Trouble.NO_LEADER, 0, retry_after_ms=900) == (B, 0)
    assert call.after(Trouble.NO_LEADER, 0, retry_after_ms=300) == (C, 0)
    assert call.after(Trouble.NO_LEADER, 0, retry_after_ms=600) == (A, 300)


def test_a_call_that_would_have_to_wait_past_its_deadline_fails_at_once() -> None:
    call = attempts(deadline_ms=500)
    assert call.after(Trouble.OVERLOADED, 0, retry_after_ms=1_000) is None


def test_a_leader_hint_is_followed_only_to_a_configured_node() -> None:
    assert attempts().after(Trouble.NO_LEADER, 0, leader=C) == (C, 0)
    assert attempts().after(Trouble.NO_LEADER, 0, leader="http://container:7001") == (B, 0)


def test_http_09_two_nodes_that_name_each_other_do_not_make_a_loop() -> None:
    call = attempts()
    hints = {A: B, B: A, C: A}
    asked = [call.url]
    for _ in range(2):
        following = call.after(Trouble.NO_LEADER, 0, leader=hints[call.url])
        assert following.pause_ms == 0
        asked.append(following.url)
    assert sorted(asked) == [A, B, C]
    assert call.after(Trouble.NO_LEADER, 0, leader=hints[call.url]).pause_ms > 0


def test_later_calls_stay_with_the_node_that_answered() -> None:
    nodes = Nodes([A, B, C])
    call = attempts(nodes)
    call.after(Trouble.UNREACHABLE, 0)
    call.succeeded()
    assert attempts(nodes).url == B


def test_a_node_that_answers_late_is_trusted_again() -> None:
    nodes = Nodes([A, B, C])
    slow = attempts(nodes)
    attempts(nodes).after(Trouble.TIMED_OUT, 0)
    assert nodes.preferred == B
    slow.succeeded()
    assert nodes.preferred == A


def test_later_calls_leave_a_node_that_failed_another() -> None:
    nodes = Nodes([A, B, C])
    attempts(nodes).after(Trouble.TIMED_OUT, 0)
    assert attempts(nodes).url == B


def test_a_late_failure_does_not_unseat_the_node_that_works() -> None:
    nodes = Nodes([A, B, C])
    slow = attempts(nodes)
    nodes.answered(C)
    slow.after(Trouble.TIMED_OUT, 0)
    assert nodes.preferred == C


def test_one_node_alone_is_asked_again_after_a_pause() -> None:
    call = attempts(Nodes([A]))
    assert call.after(Trouble.UNREACHABLE, 0) == (A, 50)


@given(
    troubles=st.lists(
        st.tuples(st.sampled_from(Trouble), st.integers(0, 3_000), st.integers(0, 500)),
        max_size=2 * MAX_ATTEMPTS,
    ),
    deadline_ms=st.integers(1, 60_000),
    seed=st.integers(0, 2**32),
    size=st.integers(1, 5),
)
def test_http_09_attempts_are_bounded_and_never_pass_the_deadline(
    troubles, deadline_ms, seed, size
):
    nodes = Nodes([f"http://n{number}" for number in range(size)])
    call = attempts(nodes, Random(seed), deadline_ms)
    now_ms = 0
    maybe = False
    at_once = 0
    for trouble, retry_after_ms, took_ms in troubles:
        now_ms += took_ms
        maybe |= RULES[trouble].maybe_applied
        following = call.after(trouble, now_ms, retry_after_ms=retry_after_ms)
        assert call.maybe_applied == maybe
        if following is None:
            return
        url, pause_ms = following
        assert url in nodes.urls
        at_once = at_once + 1 if pause_ms == 0 and RULES[trouble].at_once else 0
        if trouble is Trouble.OVERLOADED:
            assert pause_ms >= retry_after_ms
        now_ms += pause_ms
        assert now_ms <= deadline_ms - LEAST_ATTEMPT_MS
        assert call.count <= MAX_ATTEMPTS

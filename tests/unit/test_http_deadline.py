"""The lazy deadline in virtual time, against a model that has no timer at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from timeball.cluster.http.deadline import Deadline

NAP_S = 10


class Timer:
    def __init__(self, moment: float, call: Callable[[], None]) -> None:
        self.moment, self.call = moment, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualLoop:
    """As much of an event loop as a deadline uses; asserts that it keeps one timer at most."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []
        self.timers_set = 0

    def time(self) -> float:
        return self.now

    def call_at(self, moment: float, call: Callable[[], None]) -> Timer:
        self.timers = [timer for timer in self.timers if not timer.cancelled]
        assert not self.timers
        self.timers.append(Timer(moment, call))
        self.timers_set += 1
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = [t for t in self.timers if not t.cancelled and t.moment <= end]
            if not due:
                break
            self.timers.remove(due[0])
            self.now = due[0].moment
            due[0].call()
        self.now = end


steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 40)),
        st.tuples(st.just("advance"), st.integers(0, 30)),
        st.tuples(st.just("lift"), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_it_calls_back_at_its_moment_and_only_then(steps: list[tuple[str, int]]) -> None:
    loop: Any = VirtualLoop()
    deadline = Deadline(loop, NAP_S)
    called: list[float] = []
    expected: list[float] = []
    moment = math.inf
    for step, seconds in steps:
        if step == "set":
            deadline.set(seconds, lambda: called.append(loop.now))
            moment = loop.now + seconds
        elif step == "lift":
            deadline.lift()
            moment = math.inf
        else:
            loop.advance(seconds)
            if moment <= loop.now:
                expected.append(moment)
                moment = math.inf
        if moment > loop.now:
            assert called == expected
    deadline.end()
    loop.advance(1000)
    assert called == expected


def test_moving_it_for_every_request_sets_no_timers() -> None:
    loop: Any = VirtualLoop()
    deadline = Deadline(loop, NAP_S)
    for _ in range(1000):
        deadline.set(75, loop.advance)
        loop.advance(0.001)
        deadline.lift()
    assert loop.timers_set == 1

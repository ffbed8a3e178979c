"""The stall watch tells the longest hold-up of the last minute, and forgets older ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from timeball.cluster.stalls import PERIOD_S, WINDOW_S, StallWatch


class FakeTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """A loop whose time passes as the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waiting: tuple[float, Callable[[], object], FakeTimer] | None = None

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], object], /) -> FakeTimer:
        timer = FakeTimer()
        self.waiting = (self.now_s + delay, callback, timer)
        return timer

    def turn(self, late_s: float = 0.0) -> None:
        """Let the timer ring, so much after its time."""
        assert self.waiting is not None
        due_s, callback, timer = self.waiting
        assert not timer.cancelled
        self.now_s = due_s + late_s
        callback()

    def pass_quietly(self, seconds: float) -> None:
        for _ in range(round(seconds / PERIOD_S)):
            self.turn()


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def watch(loop: FakeLoop) -> StallWatch:
    watch = StallWatch()
    watch.start(loop)
    return watch


def test_a_loop_that_is_never_held_up_shows_nothing(loop: FakeLoop, watch: StallWatch):
    loop.pass_quietly(1)
    assert watch.longest_s() == pytest.approx(0, abs=1e-6)


def test_the_longest_stall_is_kept_not_the_last(loop: FakeLoop, watch: StallWatch):
    for late_s in (0.005, 0.08, 0.02):
        loop.turn(late_s)
    assert watch.longest_s() == pytest.approx(0.08)
    loop.pass_quietly(2)
    assert watch.longest_s() == pytest.approx(0.08)


def test_what_is_older_than_the_window_is_forgotten(loop: FakeLoop, watch: StallWatch):
    loop.turn(0.08)
    loop.pass_quietly(WINDOW_S - 2)
    loop.turn(0.02)
    assert watch.longest_s() == pytest.approx(0.08)
    loop.pass_quietly(3)
    assert watch.longest_s() == pytest.approx(0.02)


def test_it_stops(loop: FakeLoop, watch: StallWatch):
    loop.turn(0.08)
    watch.stop()
    assert loop.waiting is not None
    assert loop.waiting[2].cancelled
    assert watch.longest_s() == pytest.approx(0.08)


def test_every_ring_is_told_with_its_lateness(loop: FakeLoop, watch: StallWatch):
    told: list[float] = []
    watch.observe_ms.append(told.append)
    for late_s in (0.0015, 0.0195, 0.08):
        loop.turn(late_s)
    loop.pass_quietly(0.1)
    assert told[:3] == pytest.approx([1.5, 19.5, 80.0])
    assert len(told) == 3 + round(0.1 / PERIOD_S)
    assert told[3:] == pytest.approx([0.0] * 10, abs=1e-6)
    assert min(told) >= 0

"""The clock watch tells each step of the wall clock, with its direction (TIMR-07)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from timeball.cluster.clocks import PERIOD_S, STEP_MS, ClockWatch


class FakeTimer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeClocks:
    """A monotonic and a wall clock that pass as the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_ms = 1_800_000_000_000
        self.timer = FakeTimer()
        self.callback: Callable[[], object] | None = None

    def time(self) -> float:
        return self.now_s

    def wall_clock_ms(self) -> int:
        return self.wall_ms

    def call_later(self, delay: float, callback: Callable[[], object], /) -> FakeTimer:
        assert delay == PERIOD_S
        self.callback, self.timer = callback, FakeTimer()
        return self.timer

    def pass_s(self, seconds: float, *, step_ms: int = 0, asleep: bool = False) -> None:
        """Let time pass up to the next look, with a step, or with the monotonic clock at rest."""
        self.wall_ms += round(seconds * 1000) + step_ms
        self.now_s += PERIOD_S if asleep else seconds
        assert self.callback is not None
        self.callback()


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def told(clocks: FakeClocks) -> list[int]:
    told: list[int] = []
    watch = ClockWatch(clocks.wall_clock_ms, told.append)
    watch.start(clocks)
    return told


def test_timr_07_steps_in_both_directions_are_told_once_each(
    clocks: FakeClocks, told: list[int]
) -> None:
    clocks.pass_s(1.0)
    clocks.pass_s(1.0, step_ms=-12 * 3_600_000)
    clocks.pass_s(1.0)
    clocks.pass_s(1.0, step_ms=-1_000)
    clocks.pass_s(1.0, step_ms=7_200_000)
    clocks.pass_s(1.0)
    assert told == [-12 * 3_600_000, -1_000, 7_200_000]


def test_slewing_and_a_loop_that_was_held_up_are_no_steps(
    clocks: FakeClocks, told: list[int]
) -> None:
    for _ in range(100):
        clocks.pass_s(1.0, step_ms=STEP_MS - 1)
    clocks.pass_s(30.0)  # SIGSTOP: both clocks went on
    assert told == []


def test_a_suspended_machine_is_told_as_a_step_ahead(clocks: FakeClocks, told: list[int]) -> None:
    clocks.pass_s(600.0, asleep=True)
    assert told == [600_000 - 1_000]


def test_it_stops(clocks: FakeClocks) -> None:
    watch = ClockWatch(clocks.wall_clock_ms, lambda _: None)
    watch.start(clocks)
    watch.stop()
    assert clocks.timer.cancelled
    watch.stop()

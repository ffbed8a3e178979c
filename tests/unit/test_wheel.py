"""The timing wheel, rule by rule: given timers, when time is so much, then these fire."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from random import Random

import pytest

from timeball.wheel import Timer, TimingWheel

NOW = 1_764_480_000_123
DAY = 86_400_000
TOP_SPAN = 1 << 26  # what all levels below the overflow span


def drain(wheel: TimingWheel[str], now_ms: int) -> list[str]:
    """Advance until nothing is left to do at this instant."""
    fired: list[str] = []
    while (expiry := wheel.next_expiry()) is not None and expiry <= now_ms:
        fired += wheel.advance(now_ms)
    return fired


def test_a_timer_fires_at_its_due_time_and_once() -> None:
    wheel = TimingWheel[str](NOW)
    wheel.insert(NOW + 5, "a")
    assert wheel.advance(NOW + 4) == []
    assert wheel.advance(NOW + 5) == ["a"]
    assert wheel.advance(NOW + 6) == []
    assert len(wheel) == 0
    assert wheel.next_expiry() is None


@pytest.mark.parametrize(
    "delay_ms", [1, 255, 256, 257, 16_383, 16_384, 1 << 20, (1 << 20) + 1, TOP_SPAN, 400 * DAY]
)
def test_no_level_fires_early_or_late(delay_ms: int) -> None:
    wheel = TimingWheel[str](NOW)
    wheel.insert(NOW + delay_ms, "a")
    assert wheel.advance(NOW + delay_ms - 1) == []
    assert wheel.advance(NOW + delay_ms) == ["a"]


def test_timers_fire_by_due_time_then_in_order_of_insertion() -> None:
    wheel = TimingWheel[str](NOW)
    for due_ms, item in [(900, "e"), (3, "b"), (900, "f"), (-1, "a"), (3, "c"), (300, "d")]:
        wheel.insert(NOW + due_ms, item)
    assert wheel.advance(NOW + 900) == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("delay_ms", [-5, 0, 1, 255, 256, 20_000, 1 << 20, TOP_SPAN, 400 * DAY])
def test_what_is_due_at_an_instant_is_told_in_order_wherever_it_stands(delay_ms: int) -> None:
    wheel = TimingWheel[str](NOW)
    assert list(wheel.at(NOW + delay_ms)) == []
    wheel.insert(NOW + delay_ms, "a")
    cancelled = wheel.insert(NOW + delay_ms, "b")
    wheel.insert(NOW + delay_ms, "c")
    wheel.insert(NOW + delay_ms + 1, "d")
    wheel.cancel(cancelled)
    wheel.advance(NOW + delay_ms - 1)
    assert list(wheel.at(NOW + delay_ms)) == ["a", "c"]
    assert wheel.advance(NOW + delay_ms) == ["a", "c"]
    assert list(wheel.at(NOW + delay_ms)) == []


def test_a_timer_from_an_upper_level_goes_before_a_later_insertion_for_the_same_instant() -> None:
    wheel = TimingWheel[str](0)
    wheel.insert(20_000, "from level 2")
    wheel.advance(19_990)
    wheel.insert(20_000, "from level 0")
    assert wheel.advance(20_000) == ["from level 2", "from level 0"]


@pytest.mark.parametrize(
    "due_ms", [NOW, NOW - 1, NOW - 10 * 365 * DAY, 0, -1, -(NOW + 1), -(2**63)]
)
def test_timr_02_present_past_zero_and_negative_due_times_fire_once_at_the_next_advance(
    due_ms: int,
) -> None:
    wheel = TimingWheel[str](NOW)
    wheel.advance(NOW)
    wheel.insert(due_ms, "a")
    assert wheel.next_expiry() == due_ms
    assert wheel.advance(NOW) == ["a"]
    assert wheel.advance(NOW) == []
    assert wheel.next_expiry() is None


@pytest.mark.parametrize(
    "due_ms", [2**53, 2**63 - 1, 2**63, 2**64, 10**18, 10**30, 253_402_300_799_000]
)
def test_timr_01_a_practically_endless_delay_waits_and_costs_no_wake_ups(due_ms: int) -> None:
    wheel = TimingWheel[str](NOW)
    wheel.insert(due_ms, "never")
    wheel.insert(NOW + 7, "soon")
    assert wheel.advance(NOW + 400 * DAY) == ["soon"]
    expiry = wheel.next_expiry()
    assert expiry is not None
    assert due_ms - TOP_SPAN < expiry <= due_ms
    assert wheel.advance(due_ms - 1) == []
    assert wheel.advance(due_ms) == ["never"]


def test_timr_01_time_jumps_over_the_far_future_without_walking_it() -> None:
    wheel = TimingWheel[str](0)
    dues = [2**31, 2**53, 2**63, 2**90]
    for due_ms in reversed(dues):
        wheel.insert(due_ms, str(due_ms))
    assert wheel.advance(2**100) == [str(due_ms) for due_ms in dues]


@pytest.mark.parametrize("base", [2**31, 2**53, 2**63])
def test_carries_through_all_levels_keep_order(base: int) -> None:
    wheel = TimingWheel[str](base - 2)
    for offset in (1, -1, 0, 2):
        wheel.insert(base + offset, f"{offset}")
    assert [wheel.advance(base + offset) for offset in (-1, 0, 1, 2)] == [
        ["-1"],
        ["0"],
        ["1"],
        ["2"],
    ]


@pytest.mark.parametrize(
    ("due_ms", "expiry"),
    [
        (999, 999),
        (1000, 1000),
        (1023, 1023),
        (1024, 1024),
        (1300, 1280),
        (20_000, 16_384),
        (2_000_000, 1 << 20),
        (2**26 + 5, 2**26),
        (2**63 + 5, 2**63),
    ],
)
def test_places_are_those_of_the_worked_example(due_ms: int, expiry: int) -> None:
    """The next expiry shows where a slot starts, and so at which level the timer is."""
    wheel = TimingWheel[str](1000)
    wheel.insert(due_ms, "a")
    assert wheel.next_expiry() == expiry


def test_an_idle_node_wakes_at_most_five_times_for_one_timer() -> None:
    random = Random(1)
    for _ in range(300):
        start = random.randrange(2 ** random.randrange(1, 60))
        due_ms = start + random.randrange(2 ** random.randrange(1, 64))
        wheel = TimingWheel[str](start)
        wheel.insert(due_ms, "a")
        wakes, fired = 0, list[str]()
        while (expiry := wheel.next_expiry()) is not None:
            assert expiry <= due_ms
            fired += wheel.advance(expiry)
            wakes += 1
        assert fired == ["a"]
        assert wakes <= 5


def test_cancel_answers_whether_the_timer_was_still_to_fire() -> None:
    wheel = TimingWheel[str](NOW)
    timers = [wheel.insert(NOW + d, "x") for d in (-5, 0, 5, 300, 20_000, 1 << 21, 1 << 40)]
    fired = wheel.insert(NOW + 1, "fired")
    assert wheel.advance(NOW + 1) == ["x", "x", "fired"]
    assert not wheel.cancel(fired)
    for timer in timers[2:]:
        assert timer in wheel
        assert wheel.cancel(timer)
        assert timer not in wheel
        assert not wheel.cancel(timer)
    assert [wheel.cancel(timer) for timer in timers[:2]] == [False, False]
    assert len(wheel) == 0
    assert wheel.next_expiry() is None
    assert drain(wheel, 1 << 50) == []


def test_a_past_due_timer_can_be_cancelled_before_the_next_advance() -> None:
    wheel = TimingWheel[str](NOW)
    keep = wheel.insert(NOW - 1, "keep")
    drop = wheel.insert(NOW - 2, "drop")
    assert wheel.cancel(drop)
    assert not wheel.cancel(drop)
    assert wheel.next_expiry() == NOW - 1
    assert keep in wheel
    assert wheel.advance(NOW) == ["keep"]


def test_a_timer_is_equal_only_to_itself() -> None:
    wheel = TimingWheel[str](NOW)
    first, second = wheel.insert(NOW + 9, "same"), wheel.insert(NOW + 9, "same")
    stranger = Timer(NOW + 9)
    assert not wheel.cancel(stranger)
    assert wheel.cancel(first)
    assert not wheel.cancel(first)
    assert second in wheel
    assert wheel.advance(NOW + 9) == ["same"]


def test_timr_07_a_clock_that_steps_back_fires_nothing_early_and_nothing_twice() -> None:
    wheel = TimingWheel[str](NOW)
    wheel.insert(NOW + 10, "before")
    later = NOW + 12 * 3_600_000
    assert wheel.advance(later) == ["before"]
    # The clock steps back by twelve hours; the wheel's time stays ahead of it.
    assert wheel.advance(NOW) == []
    wheel.insert(NOW + 10, "between")
    wheel.insert(NOW + 5, "sooner")
    wheel.insert(NOW + 10, "between, second")
    wheel.insert(later + 1, "after")
    assert wheel.next_expiry() == NOW + 5
    assert wheel.advance(NOW + 4) == []
    assert wheel.advance(NOW + 5) == ["sooner"]
    assert wheel.advance(NOW + 9) == []
    assert wheel.advance(NOW + 10) == ["between", "between, second"]
    assert wheel.advance(later) == []
    assert wheel.advance(later + 1) == ["after"]


def test_timr_07_a_step_back_leaves_the_timers_that_wait_in_place() -> None:
    ahead = ((NOW >> 8) + 40_000) << 8
    wheel = TimingWheel[str](NOW)
    wheel.advance(ahead)
    drop, keep = wheel.insert(ahead + 50, "drop"), wheel.insert(ahead + 60, "keep")
    assert wheel.advance(NOW) == []
    assert wheel.next_expiry() == ahead + 50
    assert wheel.cancel(drop)
    assert keep in wheel
    for now_ms in (NOW + 300, ahead - 1000, ahead + 59):
        assert wheel.advance(now_ms) == []
    assert wheel.advance(ahead + 60) == ["keep"]


def test_timr_07_a_clock_that_jumps_forward_fires_all_in_order() -> None:
    wheel = TimingWheel[str](NOW)
    dues = sorted(NOW + 2**k + j for k in range(45) for j in (0, 1))
    for due_ms in Random(7).sample(dues, len(dues)):
        wheel.insert(due_ms, str(due_ms))
    assert wheel.advance(NOW + 2**50) == [str(due_ms) for due_ms in dues]


def test_the_limit_cuts_and_the_next_call_goes_on_in_order() -> None:
    wheel = TimingWheel[str](NOW)
    items = [str(n) for n in range(10)]
    for n, item in enumerate(items):
        wheel.insert(NOW - 2 + n // 3, item)
    fired = wheel.advance(NOW + 10, limit=4)
    assert fired == items[:4]
    assert (wheel.next_expiry() or 0) <= NOW + 10
    fired += wheel.advance(NOW + 10, limit=4)
    assert fired == items[:8]
    assert (wheel.next_expiry() or 0) <= NOW + 10
    assert wheel.advance(NOW + 10, limit=4) == items[8:]
    assert wheel.next_expiry() is None


def test_what_comes_while_an_instant_is_drained_goes_behind_it() -> None:
    wheel = TimingWheel[str](NOW)
    timers = [wheel.insert(NOW + 1, f"{n}") for n in range(6)]
    assert wheel.advance(NOW + 1, limit=2) == ["0", "1"]
    assert wheel.next_expiry() == NOW + 1
    wheel.insert(NOW + 1, "6")
    wheel.insert(NOW, "past due")
    assert wheel.cancel(timers[3])
    assert not wheel.cancel(timers[0])
    assert wheel.advance(NOW + 1, limit=2) == ["past due", "2"]
    assert wheel.advance(NOW + 1, limit=2) == ["4", "5"]
    assert wheel.advance(NOW + 1, limit=2) == ["6"]


def test_a_drained_instant_that_is_cancelled_away_leaves_the_next_instants_whole() -> None:
    wheel = TimingWheel[str](NOW)
    timers = [wheel.insert(NOW + 1, f"{n}") for n in range(6)]
    assert wheel.advance(NOW + 1, limit=2) == ["0", "1"]
    assert all(wheel.cancel(timer) for timer in timers[2:])
    assert wheel.next_expiry() is None
    for n in range(5):
        wheel.insert(NOW + 2, f"{n}")
    assert wheel.advance(NOW + 2, limit=3) == ["0", "1", "2"]
    assert wheel.advance(NOW + 2, limit=3) == ["3", "4"]


def test_timr_09_many_timers_on_one_instant_are_drained_in_bounded_steps_in_fifo_order() -> None:
    count, limit = 20_000, 700
    wheel = TimingWheel[int](NOW, moves_limit=limit)
    due_ms = NOW + 3_600_000
    for n in range(count):
        wheel.insert(due_ms, n)
    fired: list[int] = []
    steps = 0
    now_ms = NOW
    while (expiry := wheel.next_expiry()) is not None:
        now_ms = max(now_ms, expiry)
        step = wheel.advance(now_ms, limit)
        assert len(step) <= limit
        assert not step or now_ms == due_ms
        fired += step
        steps += 1
    assert fired == list(range(count))
    assert list(wheel._run) == [], "nothing is kept of what was drained"
    # One pass through each of the four levels below the overflow, and to fire.
    assert steps <= 5 * (count // limit + 2)


def test_timr_09_many_timers_on_one_instant_move_as_one() -> None:
    wheel = TimingWheel[int](NOW, moves_limit=1)
    due_ms = NOW + 3_600_000
    for n in range(1000):
        wheel.insert(due_ms, n)
    assert wheel.advance(due_ms) == []
    assert wheel.advance(due_ms) == []
    assert wheel.advance(due_ms) == list(range(1000))


@pytest.mark.parametrize("ahead_ms", [1 << 12, 1 << 18, 1 << 24, 1 << 40])
def test_timr_09_a_cascade_in_steps_keeps_order(ahead_ms: int) -> None:
    wheel = TimingWheel[str](0, moves_limit=2)
    timers = [wheel.insert(ahead_ms + n // 2, f"{n}") for n in range(14)]
    assert wheel.advance(ahead_ms) == []
    assert wheel.next_expiry() == ahead_ms
    for n in range(7):
        wheel.insert(ahead_ms + n, f"late comer {n}")
        assert wheel.cancel(timers[2 * n])
        assert not wheel.cancel(timers[2 * n])
        assert timers[2 * n + 1] in wheel
    wheel.insert(ahead_ms + 7, "late instant")
    wheel.insert(ahead_ms - 1, "before")
    assert len(wheel) == 16
    pairs = [item for n in range(7) for item in (f"{2 * n + 1}", f"late comer {n}")]
    assert drain(wheel, ahead_ms) == ["before", *pairs[:2]]
    assert drain(wheel, ahead_ms + 7) == [*pairs[2:], "late instant"]
    assert wheel.next_expiry() is None


@pytest.mark.parametrize("kept", range(7))
@pytest.mark.parametrize("ahead_ms", [1 << 12, 1 << 18, 1 << 24, 1 << 40])
def test_timr_09_instants_can_be_cancelled_on_both_sides_of_a_cascade(
    ahead_ms: int, kept: int
) -> None:
    """Two of seven instants have moved, and five have not; all but one go, whichever it is."""
    wheel = TimingWheel[str](0, moves_limit=2)
    timers = [wheel.insert(ahead_ms + n, f"{n}") for n in range(7)]
    assert wheel.advance(ahead_ms) == []
    for n, timer in enumerate(timers):
        if n != kept:
            assert wheel.cancel(timer)
            assert timer not in wheel
            assert not wheel.cancel(timer)
    assert timers[kept] in wheel
    assert len(wheel) == 1
    wheel.insert(ahead_ms + kept, "late comer")
    assert drain(wheel, ahead_ms + kept - 1) == []
    assert drain(wheel, ahead_ms + kept) == [f"{kept}", "late comer"]
    assert wheel.next_expiry() is None


@pytest.mark.parametrize("ahead_ms", [1 << 12, 1 << 24, 1 << 40])
def test_a_slot_that_is_cancelled_away_during_its_cascade_takes_new_timers(ahead_ms: int) -> None:
    wheel = TimingWheel[str](0, moves_limit=2)
    timers = [wheel.insert(ahead_ms + n, f"{n}") for n in range(5)]
    assert wheel.advance(ahead_ms) == []
    assert all(wheel.cancel(timer) for timer in timers)
    assert wheel.next_expiry() is None
    wheel.insert(ahead_ms, "new")
    wheel.insert(ahead_ms + 2, "newer")
    assert wheel.next_expiry() == ahead_ms
    assert drain(wheel, ahead_ms) == ["new"]
    assert drain(wheel, ahead_ms + 2) == ["newer"]


def test_an_instant_that_is_drained_in_steps_and_comes_back_is_whole_again() -> None:
    wheel = TimingWheel[str](NOW)
    timers = [wheel.insert(NOW + 1, f"old {n}") for n in range(4)]
    assert wheel.advance(NOW + 1, limit=1) == ["old 0"]
    assert all(wheel.cancel(timer) for timer in timers[1:])
    for n in range(3):
        wheel.insert(NOW + 1, f"new {n}")
    assert wheel.advance(NOW + 1, limit=2) == ["new 0", "new 1"]
    assert wheel.advance(NOW + 1, limit=2) == ["new 2"]


def test_timr_06_ten_thousand_reschedules_leave_one_timer() -> None:
    random = Random(6)
    wheel = TimingWheel[int](NOW)
    now_ms, live, fires = NOW, wheel.insert(NOW, 0), 0
    for version in range(1, 10_001):
        now_ms += random.randrange(3)
        fired = wheel.advance(now_ms)
        assert fired in ([], [version - 1])
        fires += len(fired)
        assert wheel.cancel(live) == (not fired)
        live = wheel.insert(now_ms + random.choice([-1, 0, 1, 2, 400, 1 << 30]), version)
        assert len(wheel) == 1
    assert fires > 1000
    assert wheel.cancel(live)
    assert wheel.next_expiry() is None


def test_timr_06_create_and_cancel_traffic_does_not_grow_memory(
    bytes_grown_by: Callable[[Callable[[int], None]], int],
) -> None:
    random = Random(3)
    wheel = TimingWheel[int](NOW)
    held = [wheel.insert(NOW + (1 << k), k) for k in range(40)]
    held.append(wheel.insert(NOW - 1, 0))

    def traffic(rounds: int) -> None:
        for _ in range(rounds):
            ahead = wheel.insert(NOW + random.randrange(2 ** random.randrange(12, 62)), 1)
            behind = wheel.insert(NOW - random.randrange(1, 1000), 1)
            assert wheel.cancel(ahead)
            assert wheel.cancel(behind)

    assert bytes_grown_by(traffic) < 50_000
    assert len(wheel) == len(held)


def test_the_wheel_lets_go_of_items_that_are_cancelled_or_fired() -> None:
    class Item:
        pass

    wheel = TimingWheel[Item](NOW)
    timers = []
    refs = []
    for delay_ms in (-1, 0, 300, 1 << 30):
        item = Item()
        refs.append(weakref.ref(item))
        timers.append(wheel.insert(NOW + delay_ms, item))
        del item
    assert wheel.cancel(timers[0])
    assert wheel.cancel(timers[3])
    wheel.advance(NOW + 300)
    assert [ref() for ref in refs] == [None] * 4


@pytest.mark.parametrize("arguments", [(-1, 1), (0, 0)])
def test_a_wheel_asserts_its_arguments(arguments: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        TimingWheel[str](arguments[0], moves_limit=arguments[1])


def test_advance_asserts_its_limit() -> None:
    with pytest.raises(AssertionError):
        TimingWheel[str](0).advance(0, limit=0)

"""Strikes fall on the mark, by turns before it and upon it; the reference knows every beat."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from timeball.bench.chaos.nemesis import Nemesis, NotOvercome
from timeball.bench.chaos.plan import KINDS, Fault
from timeball.bench.evidence import Run
from timeball.bench.history import (
    AnyEvent,
    FaultHealed,
    FaultOvercome,
    FaultStruck,
    FinalAnswers,
    Recorder,
)
from timeball.bench.timetables.reference import PERIODS_MS, ZONES, beats, timetables
from timeball.bench.timetables.strikes import BEFORE_MS, strikes
from timeball.client import messages
from timeball.cluster.dispatch.timetable import next_fires
from timeball.cluster.state.operations import Cron, Every, Timetable

T0 = 1_764_480_000_000
"""A full minute, epoch milliseconds."""
MINUTE = 60_000


def planned(seed: int, minutes: int = 6, **options: Any) -> list[tuple[int, Fault]]:
    chosen = {"spacing_s": 15, "pause_s": 20.0} | options
    return list(strikes(seed, T0 + 1_234, T0 + minutes * MINUTE + 1, **chosen))


def test_a_seed_repeats_its_strikes_and_another_has_others() -> None:
    assert planned(7) == planned(7) != planned(8)


def test_one_strikes_at_every_mark_by_turns_before_it_and_upon_it() -> None:
    instants = [at_ms - T0 for at_ms, _ in planned(7)]
    marks = [-(-at // 15_000) * 15_000 for at in instants]
    assert marks == list(range(15_000, 6 * MINUTE + 1, 15_000))
    assert {at - mark for at, mark in zip(instants, marks, strict=True)} == {0, -BEFORE_MS}
    numbers = [fault.number for _, fault in planned(7)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("seed", range(4))
def test_recu03_each_kind_meets_the_full_minute_from_both_sides(seed: int) -> None:
    met = {
        (fault.kind.replace("vanish", "isolate"), at_ms % MINUTE)
        for at_ms, fault in planned(seed)
        if (at_ms + BEFORE_MS) % MINUTE in (0, BEFORE_MS)
    }
    kinds = ("kill_leader", "freeze_leader", "isolate_leader")
    assert met == {(kind, side) for kind in kinds for side in (0, MINUTE - BEFORE_MS)}


def test_only_a_paused_leader_still_stands_at_the_next_mark() -> None:
    for _, fault in planned(7) + planned(7, spacing_s=5, pause_s=9.0):
        assert fault.kind in KINDS
        if fault.kind != "freeze_leader":
            assert 0 < fault.hold_s < 15
    assert {f.hold_s for _, f in planned(7) if f.kind == "freeze_leader"} == {20.0}


@pytest.mark.parametrize("label", PERIODS_MS)
def test_every_timetable_names_the_multiples_of_its_period_and_nothing_else(label: str) -> None:
    """What the reference takes for granted, of every form and zone."""
    until_ms = T0 + 10 * MINUTE + 500
    seen = set()
    for asked in timetables(label, 3 * len(ZONES), until_ms):
        if isinstance(asked, messages.Cron):
            seen.add(asked.time_zone)
            rule: Cron | Every = Cron(asked.expression, asked.time_zone)
        else:
            assert isinstance(asked, messages.Every)
            anchor_ms = cast("int", asked.anchor)
            rule = Every(asked.interval_ms, anchor_ms)
        fires = next_fires(Timetable((rule,), until_ms=until_ms), T0 + 1, 1_000)
        period_ms = PERIODS_MS[label]
        assert fires == list(range(T0 + period_ms, until_ms + 1, period_ms))
    assert seen == set(ZONES)


def test_a_beat_at_the_creation_is_over_and_one_at_the_end_counts() -> None:
    assert list(beats("each-second", T0, T0 + 2_000)) == [T0 + 1_000, T0 + 2_000]
    assert list(beats("each-second", T0 - 1, T0 + 999)) == [T0]
    assert not beats("each-minute", T0, T0 + MINUTE - 1)


class Cluster:
    """Stands in for one of three nodes: notes what is done to it, comes round when let."""

    names = ("a", "b", "c")

    def __init__(self) -> None:
        self.links = self
        self.asked = asyncio.Event()
        """Somebody waits for it to come round."""
        self.ready = asyncio.Event()
        self.ready.set()

    def signal(self, *_: object) -> None:
        pass

    def govern(self, *_: object) -> None:
        pass

    def clear(self) -> None:
        pass

    async def wait_ready(self, timeout_s: float) -> None:
        self.asked.set()
        async with asyncio.timeout(timeout_s):
            await self.ready.wait()


class Leaders:
    """Says who leads, after `first` has happened if it is asked again."""

    def __init__(self, first: asyncio.Event | None = None) -> None:
        self._first = first
        self._asked = 0

    async def leader(self) -> messages.ClusterView:
        self._asked += 1
        if self._first is not None and self._asked == 2:
            await self._first.wait()
        return messages.ClusterView(
            cluster="c",
            node="a",
            version="0",
            role="leader",
            serving=True,
            leader="a",
            term=1,
            commit_index=1,
            applied_index=1,
            log_time_ms=T0,
            nodes=[],
            queues=[],
            totals={},
        )


class Notes:
    """A recorder whose clock stands."""

    source = "client"

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def clock_us(self) -> int:
        return T0 * 1000

    def stamp(self) -> dict[str, Any]:
        return {"at_us": T0 * 1000, "source": self.source}

    def record(self, event: AnyEvent) -> None:
        self.events.append(event)

    def faults(self) -> list[tuple[str, int]]:
        final = FinalAnswers(asked_us=0, jobs=[], executions=[], nodes=[], expected_nodes=3)
        run = Run(self.events, final)
        told = {FaultStruck: "struck", FaultHealed: "healed", FaultOvercome: "overcome"}
        return [
            (told[type(event)], cast("FaultStruck", event).number)
            for event in run.events
            if type(event) in told
        ]


def nemesis(cluster: Cluster, leaders: Leaders, notes: Notes, tell: Any) -> Nemesis:
    return Nemesis(cast("Any", cluster), cast("Any", leaders), cast("Recorder", notes), tell)


def fault(number: int, kind: str, hold_s: float) -> tuple[int, Fault]:
    return T0, Fault(number=number, kind=kind, hold_s=hold_s, rest_s=0, pick=0)


async def test_the_next_strike_does_not_wait_for_a_pause_to_end_and_both_are_overcome() -> None:
    notes = Notes()
    faults = [fault(1, "freeze_leader", 0.05), fault(2, "isolate_leader", 0.0)]
    await nemesis(Cluster(), Leaders(), notes, print).strike(faults)
    order = notes.faults()
    assert order[:4] == [("struck", 1), ("struck", 2), ("healed", 2), ("healed", 1)]
    assert sorted(order[4:]) == [("overcome", 1), ("overcome", 2)]


async def test_a_cluster_that_has_yet_to_come_round_is_not_struck() -> None:
    cluster, notes, told = Cluster(), Notes(), list[str]()
    cluster.ready.clear()

    def faults() -> Iterator[tuple[int, Fault]]:
        yield fault(1, "isolate_leader", 0.0)
        yield fault(2, "freeze_leader", 0.0)  # who leads is told only when 1 is healed
        cluster.ready.set()

    await nemesis(cluster, Leaders(cluster.asked), notes, told.append).strike(faults())
    assert notes.faults() == [("struck", 1), ("healed", 1), ("overcome", 1)]
    assert told[-1] == "freeze_leader is left out: the cluster has yet to come round"


async def test_a_strike_that_is_late_is_left_out() -> None:
    notes, told = Notes(), list[str]()
    early = (T0 - 21, fault(1, "isolate_leader", 0.0)[1])
    await nemesis(Cluster(), Leaders(), notes, told.append).strike([early])
    assert notes.faults() == []
    assert "left out" in told[-1]


async def test_a_cluster_that_does_not_come_round_ends_the_strikes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("timeball.bench.chaos.nemesis.OVERCOME_S", 0.01)
    cluster, notes = Cluster(), Notes()
    cluster.ready.clear()
    with pytest.raises(NotOvercome):
        await nemesis(cluster, Leaders(), notes, print).strike([fault(1, "isolate_leader", 0.0)])
    assert notes.faults() == [("struck", 1), ("healed", 1)]

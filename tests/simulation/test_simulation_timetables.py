"""The rules of timetables see what is not so: a good run's evidence, falsified in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from sim_faults import plan
from sim_run import Simulation, quiet
from sim_schedules import beats
from sim_timetable_events import QUEUE, Asked, Explained, Handed, Told
from sim_timetables import RULES, judge_timetables

from timeball.bench.history import Delivered, FinalAnswers
from timeball.client.messages import (
    AtRule,
    Cron,
    CronRule,
    Every,
    EveryRule,
    ExecutionView,
    Paused,
    Union,
    WindowExcluded,
)

Falsify = Callable[[list[Any], FinalAnswers], tuple[list[Any], FinalAnswers]]
SEED = 0
"""A run in which timekeepers ask for everything."""


@pytest.fixture(scope="module")
def good() -> Simulation:
    with quiet():
        run = Simulation(plan(SEED))
        assert run.run().violations == []
    return run


def _events(kind: type, change: Callable[[Any], Any]) -> Falsify:
    """Change the events of a kind, of which None stays as it is."""

    def falsify(events: list[Any], final: FinalAnswers) -> tuple[list[Any], FinalAnswers]:
        return [
            (change(event) or event) if isinstance(event, kind) else event for event in events
        ], final

    return falsify


def _views(change: Callable[[ExecutionView], ExecutionView | None]) -> Falsify:
    def falsify(events: list[Any], final: FinalAnswers) -> tuple[list[Any], FinalAnswers]:
        views = [
            (change(view) or view) if view.queue == QUEUE else view for view in final.executions
        ]
        return events, replace(final, executions=views)

    return falsify


def _without(origin: str) -> Falsify:
    def falsify(events: list[Any], final: FinalAnswers) -> tuple[list[Any], FinalAnswers]:
        views = [view for view in final.executions if view.origin != origin]
        return events, replace(final, executions=views)

    return falsify


def _one_more(one: Explained) -> Explained:
    timetable = one.answer.timetable
    return replace(
        one, answer=replace(one.answer, timetable=replace(timetable, fired=timetable.fired + 1))
    )


def _paused(one: Explained) -> Explained:
    paused = Paused("2027-01-15T08:00:00Z", "falsified")
    return replace(
        one, answer=replace(one.answer, timetable=replace(one.answer.timetable, paused=paused))
    )


def _runs_once(asked: Asked) -> Asked | None:
    schedule = asked.schedule
    return None if schedule is None else replace(asked, schedule=replace(schedule, max_runs=1))


def _never_pauses(asked: Asked) -> Asked | None:
    if asked.schedule is None:
        return None
    return replace(asked, schedule=replace(asked.schedule, pause_on_failure=False))


def _elsewhen(view: ExecutionView) -> ExecutionView | None:
    if view.origin != "timetable":
        return None
    return replace(
        view, nominal_at=view.nominal_at.replace("T08:", "T07:").replace("Z", "")[:19] + ".001Z"
    )


def _early(view: ExecutionView) -> ExecutionView | None:
    return replace(view, due_at=view.due_at.replace("T08:", "T07:"))


def _delivered_in_a_pause(events: list[Any], final: FinalAnswers) -> tuple[list[Any], FinalAnswers]:
    """After each answer to a pause, an occurrence of a later time is delivered."""

    def falsified() -> Iterator[Any]:
        pauses = {
            (e.source, e.number) for e in events if isinstance(e, Asked) if e.action == "pause"
        }
        for event in events:
            yield event
            if isinstance(event, Told) and (event.source, event.number) in pauses:
                for view in final.executions:
                    if view.job_id == event.job_id and view.origin == "timetable":
                        yield Delivered(
                            at_us=event.at_us + 1,
                            source="w1",
                            execution_id=view.execution_id,
                            job_id=view.job_id,
                            token=1,
                            attempt=1,
                            nominal_ms=event.at_us // 1000 + 1,
                            due_ms=event.at_us // 1000 + 1,
                            claim_sent_us=event.at_us,
                        )

    return list(falsified()), final


def _goes_on(events: list[Any], final: FinalAnswers) -> tuple[list[Any], FinalAnswers]:
    return events, replace(final, jobs=[replace(job, state="active") for job in final.jobs])


FALSIFIED: dict[str, list[Falsify]] = {
    "unnamed": [_views(_elsewhen)],
    "accounting": [_events(Explained, _one_more)],
    "max_runs": [_events(Asked, _runs_once)],
    "pause": [_delivered_in_a_pause],
    "trigger": [
        _without("trigger"),
        _events(Told, lambda told: replace(told, executions=("1-1",)) if told.executions else None),
    ],
    "backfill": [_without("backfill")],
    "failure": [lambda e, f: _events(Asked, _never_pauses)(*_events(Explained, _paused)(e, f))],
    "payload": [
        _events(Handed, lambda one: replace(one, payload=1)),
        _events(Asked, lambda one: replace(one, at_us=one.at_us + 60_000_000)),
    ],
    "version": [_events(Told, lambda told: replace(told, version=told.version + 1))],
    "jitter": [_views(_early)],
    "cancel": [_goes_on],
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_sees_what_is_not_so(rule: str, good: Simulation):
    assert good.final is not None
    for falsify in FALSIFIED[rule]:
        told = judge_timetables(*falsify(good.events, good.final), skewed=False)
        assert rule in {violation.partition(":")[0] for violation in told}


def test_the_nominal_times_of_a_schedule_are_arithmetic():
    assert beats(Every(700, anchor=1_000), 0, 2_500) == [1_000, 1_700, 2_400]
    assert beats(Every(700, anchor=1_000), 1_000, 2_400) == [1_700, 2_400]
    assert beats(Cron("*/5 * * * * *"), 5_000, 15_000) == [10_000, 15_000]
    union = Union(
        [EveryRule(2_000, anchor=0), CronRule("*/5 * * * * *"), AtRule([9_000, 10_000])],
        start=4_000,
        until=12_000,
        exclude=[WindowExcluded("6-8 * * * * *")],
    )
    assert beats(union, 0, 60_000) == [4_000, 5_000, 9_000, 10_000, 12_000]

"""Figures of a run, measured from the recorded history where a worker stands.

Fire lag is the time from the due instant of an execution to the moment when a worker had
the answer to its claim in hand: the whole way over the wheel, the log's commit on a
majority of disks and the network. It is given twice, and each says what it covers: over
**all** first attempts, and over the **steady** ones alone, due outside of the windows in
which the run itself had broken something.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from timeball.bench.evidence import Run
from timeball.bench.history import (
    Delivered,
    JobAcknowledged,
    LeaderObserved,
    ProcessSignalled,
    ReplayAcknowledged,
    ReportAnswered,
)

FAILOVER_SEARCH_MS = 10_000
"""The longest silence that begins this soon after a leader's death is its fail-over gap."""
UNDER_WAY_MS = 250
"""A fault's window opens this long before it: what was due just then was still under way."""
SETTLING_MS = 1_000
"""A fault's window stays open this long after its end, for the backlog to drain."""


class Lag(msgspec.Struct, frozen=True):
    """Percentiles (nearest rank) of a number of lags, in milliseconds."""

    p50: float
    p99: float
    max: float
    count: int


class Window(msgspec.Struct, frozen=True):
    """A time in which something was broken on purpose, epoch milliseconds."""

    why: str
    start_ms: int
    end_ms: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the run's table and its JSON tell beside the checkers' counts."""

    executions: int
    deliveries: int
    retries: int
    redelivered: int
    stale_refused: int
    duplicates_suppressed: int
    dead: int
    replayed: int
    cancelled: int
    failovers: int
    failover_gap_ms: float | None
    fire_lag_ms: Lag
    fire_lag_steady_ms: Lag
    fault_windows: list[Window]


def measure(run: Run) -> Figures:
    """Measure a run."""
    windows = fault_windows(run)
    first = [delivery for delivery in run.of(Delivered) if delivery.attempt == 1]
    steady = [
        delivery
        for delivery in first
        if not any(window.start_ms <= delivery.due_ms <= window.end_ms for window in windows)
    ]
    retries, redelivered = _repeats(run)
    kills = leader_kills(run)
    gaps = [gap for kill in kills if (gap := failover_gap(run, kill)) is not None]
    return Figures(
        executions=sum(view.finished_at is not None for view in run.final.executions),
        deliveries=len(run.of(Delivered)),
        retries=retries,
        redelivered=redelivered,
        stale_refused=sum(answer.verdict == "stale" for answer in run.of(ReportAnswered)),
        duplicates_suppressed=_duplicates(run),
        dead=len(_dead(run)),
        replayed=sum(replay.status == "replayed" for replay in run.of(ReplayAcknowledged)),
        cancelled=len(run.cancels),
        failovers=sum(_succeeded_by(run, kill) is not None for kill in kills),
        failover_gap_ms=max((_ms(end - start) for start, end in gaps), default=None),
        fire_lag_ms=lag_of(first),
        fire_lag_steady_ms=lag_of(steady),
        fault_windows=windows,
    )


def lag_of(deliveries: Sequence[Delivered]) -> Lag:
    """Summarise fire lags; all zero when there is none."""
    lags = sorted(_ms(d.at_us - d.due_ms * 1000) for d in deliveries)
    if not lags:
        return Lag(0.0, 0.0, 0.0, 0)
    return Lag(rank(lags, 50), rank(lags, 99), lags[-1], len(lags))


def rank(ordered: Sequence[float], percent: int) -> float:
    """The percentile of ordered values, by nearest rank; IndexError when there is none."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _ms(span_us: int) -> float:
    return round(span_us / 1000, 2)


def leader_kills(run: Run) -> list[ProcessSignalled]:
    """Every SIGKILL of a node that led."""
    return [s for s in run.of(ProcessSignalled) if s.signal == "kill" and s.led]


def _succeeded_by(run: Run, kill: ProcessSignalled) -> LeaderObserved | None:
    """The next leader seen, of a higher term than any before the kill."""
    seen = run.of(LeaderObserved)
    before = max((s.term for s in seen if s.at_us <= kill.at_us), default=0)
    return next((s for s in seen if s.at_us > kill.at_us and s.term > before), None)


def failover_gap(run: Run, kill: ProcessSignalled) -> tuple[int, int] | None:
    """The longest silence between two deliveries around a leader's death, epoch microseconds.

    Work is due all the time, so the silence is the time without a leader as workers see
    it: from the last grant of the old one to the first of the next, with everything that
    lies between. None when nothing was delivered after the kill.
    """
    times = sorted(delivery.at_us for delivery in run.of(Delivered))
    silences = [
        (earlier, later)
        for earlier, later in itertools.pairwise(times)
        if later > kill.at_us and earlier < kill.at_us + FAILOVER_SEARCH_MS * 1000
    ]
    return max(silences, key=lambda silence: silence[1] - silence[0], default=None)


def fault_windows(run: Run) -> list[Window]:
    """The times from just before each fault to its end and the settling after it."""
    windows = []
    signals = run.of(ProcessSignalled)
    for signal in signals:
        end_us: int | None = None
        if signal.signal == "stop":
            end_us = next(
                (
                    later.at_us
                    for later in signals
                    if later.process == signal.process
                    and later.signal == "continue"
                    and later.at_us > signal.at_us
                ),
                run.final.asked_us,
            )
        elif signal.signal == "kill":
            gap = failover_gap(run, signal) if signal.led else None
            end_us = gap[1] if gap else signal.at_us
        if end_us is not None:
            windows.append(
                Window(
                    f"{signal.signal} {signal.process}",
                    signal.at_us // 1000 - UNDER_WAY_MS,
                    end_us // 1000 + SETTLING_MS,
                )
            )
    return windows


def _repeats(run: Run) -> tuple[int, int]:
    """Count deliveries after a reported failure (retries) and after a lost lease (redelivered)."""
    retries = redelivered = 0
    for execution_id, deliveries in run.deliveries.items():
        ended = {
            answer.token
            for answer in run.answers.get(execution_id, [])
            if answer.kind in ("fail", "release") and answer.verdict in ("accepted", "duplicate")
        }
        tokens = sorted({delivery.token for delivery in deliveries})
        for earlier in tokens[:-1]:
            retries += earlier in ended
            redelivered += earlier not in ended
    return retries, redelivered


def _duplicates(run: Run) -> int:
    creates = sum(ack.status == "duplicate" for ack in run.of(JobAcknowledged))
    return creates + sum(answer.verdict == "duplicate" for answer in run.of(ReportAnswered))


def _dead(run: Run) -> set[str]:
    """Executions that were dead at some time: they are, or they were replayed."""
    return {view.execution_id for view in run.final.executions if view.state == "dead"} | {
        replay.execution_id for replay in run.of(ReplayAcknowledged) if replay.status == "replayed"
    }

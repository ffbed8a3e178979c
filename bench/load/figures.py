"""The figures of a run: what `timeball bench` prints as one JSON object."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from timeball.bench.load.driver import Driver, Kill, Observed
from timeball.bench.load.percentiles import Lags
from timeball.bench.load.probes import (
    COMMIT,
    LONGEST_STALL,
    LOOP_STALL,
    SNAPSHOT_S,
    SNAPSHOTS,
    WHEEL_LAG,
    Buckets,
    Samples,
    Usage,
)
from timeball.bench.load.records import NEVER, numbers
from timeball.bench.load.surroundings import describe

GAP_SEARCH_US = 10_000_000
"""The longest silence that begins this soon after a leader's death is its fail-over gap."""

STALL_GOAL_S = 0.02
"""No event loop should be held up for longer."""

Figures = dict[str, Any]

MUST_NOT_BE = ("early", "lost", "double_accepted", "duplicates")
"""What must be zero in every run, however overloaded."""


def measured(observed: Observed) -> range:
    """The executions due in the measured window."""
    plan, start_ms = observed.plan, observed.start_ms
    first_ms, last_ms = observed.window_ms
    if not plan.rate:
        return range(plan.total)
    first = int((first_ms - start_ms) * plan.rate / 1000)
    return range(first, min(plan.total, int((last_ms - start_ms) * plan.rate / 1000)))


def fire_lags(observed: Observed) -> Lags:
    """The lags of the executions due in the measured window that were delivered."""
    chosen = measured(observed)
    lags_us = observed.merged.lags_us[chosen.start : chosen.stop]
    return Lags(lag_us for lag_us in lags_us if lag_us != NEVER)


def fire_lag_figures(observed: Observed, driver: Driver) -> Figures:
    """All that a run of open-loop load tells."""
    account = observed.merged.account
    lags = fire_lags(observed)
    first_ms, last_ms = observed.window_ms
    seconds = (last_ms - first_ms) / 1000
    arrived = observed.merged.arrivals.between(first_ms, last_ms)
    figures: Figures = {
        "rate_requested": observed.plan.rate,
        "rate_achieved": round(arrived / seconds, 1),
        "seconds": seconds,
        "executions": lags.count,
        "early": account.early,
        "lost": account.lost,
        "double_accepted": account.double_accepted,
        "duplicates": account.duplicates,
        "redelivered": account.redelivered,
        "refused": account.refused,
        "unanswered": account.unanswered,
        "fire_lag_ms": lags.summary("p50", "p90", "p99", "p999", "max"),
        **node_figures(observed),
        "cpu_us_per_execution": cpu_per_execution(observed, arrived),
        "cores_used": processor_use(observed),
        "rss_mb": rss_by_role(observed),
        "submitters": submitter_figures(observed),
        "workers": worker_figures(observed),
        "account": msgspec.structs.asdict(account),
        "fire_lag_hdr": lags.encoded(),
    }
    if observed.kills:
        figures["failover"] = failover_figures(observed.kills, observed.merged.arrivals.at_us)
    return {**figures, **surroundings(observed, driver)}


def node_figures(observed: Observed) -> Figures:
    """From the nodes' own metrics, read before and after the window.

    The wheel lag is observed in whole milliseconds, rounded down, and told as the bound of its
    bucket. After a change of leader there is no one node to ask, and an overloaded one may not
    answer in time: null.
    """
    leader = observed.leader or ""
    before = observed.metrics_before.get(leader, {})
    after = observed.metrics_after.get(leader, {}) if before else {}
    wheel, commit = Buckets(WHEEL_LAG, before, after), Buckets(COMMIT, before, after)
    return {
        "wheel_lag_ms": {
            "p50": wheel.bound_ms(50),
            "p99": wheel.bound_ms(99),
            "max": wheel.bound_ms(100),
        },
        "commit_ms": {"p50": commit.interpolated_ms(50), "p99": commit.interpolated_ms(99)},
        "loop_stall_ms": stall_figures(observed),
        "snapshots": snapshot_figures(observed),
    }


def _told_twice(observed: Observed) -> dict[str, tuple[Samples, Samples]]:
    """The metrics of the nodes that ran all through the window, before and after it."""
    killed = {kill.node for kill in observed.kills}
    before, after = observed.metrics_before, observed.metrics_after
    return {
        name: (before[name], after[name])
        for name in sorted(before)
        if before[name] and after.get(name) and name not in killed
    }


def longest_stalls(told: Mapping[str, tuple[Samples, Samples]]) -> dict[str, float]:
    """The longest hold-up of each node's event loop between two readings, in milliseconds."""
    longest: dict[str, float] = {}
    for name, (before, after) in told.items():
        hint_ms = after.get(LONGEST_STALL, 0.0) * 1000
        highest_ms = Buckets(LOOP_STALL, before, after).highest_ms(hint_ms)
        if highest_ms is not None:
            longest[name] = highest_ms
    return longest


def stall_figures(observed: Observed) -> Figures:
    """The longest hold-up of an event loop in the window, and which node's; null: nobody tells."""
    told = _told_twice(observed)
    longest = longest_stalls(told)
    over = sum(Buckets(LOOP_STALL, *told[name]).above(STALL_GOAL_S) for name in longest)
    worst = max(longest, key=longest.__getitem__, default=None)
    role = None
    if worst is not None and observed.leader is not None:
        role = "leader" if worst == observed.leader else "follower"
    return {
        "max": None if worst is None else longest[worst],
        "node": worst,
        "role": role,
        "by_node": longest,
        "over_20_ms": over if longest else None,
    }


def snapshot_figures(observed: Observed) -> Figures:
    """The snapshots that were completed in the window, of all nodes, and how long one took."""
    taken, seconds = 0, 0.0
    for before, after in _told_twice(observed).values():
        mine = int(after.get(SNAPSHOTS, 0) - before.get(SNAPSHOTS, 0))
        taken += mine
        if mine:
            seconds = max(seconds, after.get(SNAPSHOT_S, 0.0))
    return {"taken": taken, "seconds_max": round(seconds, 3) if taken else None}


def cpu_per_execution(observed: Observed, executions: int) -> Figures:
    """CPU time in the window over executions in it, microseconds; workers in sum."""
    began, ended = observed.began, observed.ended
    spent = {
        name: usage.cpu_s - began.nodes[name].cpu_s
        for name, usage in ended.nodes.items()
        if name in began.nodes
    }
    followers = [cpu_s for name, cpu_s in spent.items() if name != observed.leader]
    known = observed.leader is not None and bool(spent)
    generators = {
        role: usage.cpu_s - began.generators[role].cpu_s
        for role, usage in ended.generators.items()
        if role in began.generators
    }

    def each(cpu_s: float | None) -> float | None:
        return None if cpu_s is None or not executions else round(cpu_s * 1e6 / executions, 1)

    return {
        "leader": each(spent[observed.leader]) if known and observed.leader else None,
        "follower": each(sum(followers) / len(followers)) if known else None,
        "worker": each(generators.get("worker")),
        "submitter": each(generators.get("submitter")),
    }


def rss_by_role(observed: Observed) -> Figures:
    """Resident memory at the window's end; of the larger follower."""
    nodes: dict[str, Usage] = observed.ended.nodes
    followers = [usage.rss_mb for name, usage in nodes.items() if name != observed.leader]
    if observed.leader not in nodes:
        return {"leader": None, "follower": None}
    return {"leader": nodes[observed.leader].rss_mb, "follower": max(followers, default=None)}


def submitter_figures(observed: Observed) -> Figures:
    """How well the load was generated: what of the lag may be the generators' own fault."""
    lateness = (late for s in observed.submitters for late in numbers(s.lateness_us, "I"))
    latency = (span for s in observed.submitters for span in numbers(s.latency_us, "I"))
    return {
        "lateness_ms": Lags(lateness).summary("p50", "p99", "max"),
        "create_ms": Lags(latency).summary("p50", "p99", "max"),
        "sent_after_due": sum(s.sent_after_due for s in observed.submitters),
        "repeats": sum(s.repeats for s in observed.submitters),
        "internal_errors": sum(s.internal_errors for s in observed.submitters),
    }


def worker_figures(observed: Observed) -> Figures:
    """The requests of all workers; internal errors are defects of a node, repeated like losses."""
    names = ("claims", "reports", "repeats", "internal_errors")
    return {name: sum(getattr(worker, name) for worker in observed.workers) for name in names}


def failover_figures(kills: list[Kill], arrivals: array[int]) -> Figures:
    """The silences around each leader's death, as workers saw them."""
    gaps = [gap for kill in kills if (gap := _gap_ms(kill, arrivals)) is not None]
    return {
        "kills": len(kills),
        "gap_ms": {"min": min(gaps), "median": _median(gaps), "max": max(gaps)} if gaps else None,
        "gaps_ms": gaps,
        "restart_s": [kill.restart_s for kill in kills],
    }


def _gap_ms(kill: Kill, arrivals: array[int]) -> float | None:
    silences = (
        later - earlier
        for earlier, later in itertools.pairwise(arrivals)
        if later > kill.at_us and earlier < kill.at_us + GAP_SEARCH_US
    )
    longest = max(silences, default=None)
    return None if longest is None else round(longest / 1000, 1)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def surroundings(observed: Observed, driver: Driver) -> Figures:
    """Settings, versions and machine: without them a figure means nothing."""
    told = msgspec.structs.asdict(observed.plan)
    settings = {name: told[name] for name in told if name not in ("urls", "folder", "name")}
    if driver.cluster is not None:
        configured = driver.cluster.settings
        settings["nodes"] = {
            "count": len(configured.nodes),
            "fsync": True,
            "commit_spacing_ms": configured.process.commit_spacing_ms,
            "commit_entry_items": configured.process.commit_entry_items,
            **msgspec.structs.asdict(configured.limits),
        }
    return {"settings": settings, **describe(driver.speed)}


def processor_use(observed: Observed) -> Figures:
    """Processors in use during the window: by all, by this run's processes, stolen by the host."""
    began, ended = observed.began, observed.ended
    first_ms, last_ms = observed.window_ms
    seconds = (last_ms - first_ms) / 1000
    spent_s = sum(
        usage.cpu_s - before[name].cpu_s
        for before, after in (
            (began.nodes, ended.nodes),
            (began.generators, ended.generators),
        )
        for name, usage in after.items()
        if name in before
    )
    return {
        "all": round((ended.processors.busy_s - began.processors.busy_s) / seconds, 2),
        "run": None if observed.kills else round(spent_s / seconds, 2),
        "stolen": round((ended.processors.stolen_s - began.processors.stolen_s) / seconds, 2),
    }

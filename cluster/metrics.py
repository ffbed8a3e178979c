"""Prometheus metrics of one node, in a registry of its own.

Most are read from the parts when they are scraped, which costs the hot path nothing; only
what is a distribution is observed as it happens. Labels are bounded: queues beyond
`MAX_QUEUES` are summed up under one name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from timeball.cluster.dispatch.admission import HELD_BACK_BY
from timeball.cluster.dispatch.dispatcher import Dispatcher
from timeball.cluster.dispatch.seams import Instruments
from timeball.cluster.dispatch.zones import data_version
from timeball.cluster.histogram import BatchHistogram
from timeball.cluster.history import History
from timeball.cluster.raft.commit import GroupCommit
from timeball.cluster.raft.interface import Member
from timeball.cluster.stalls import StallWatch
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.queue_settings import PAUSED, QUEUE_STATES

_log = logging.getLogger(__name__)

MAX_QUEUES = 100
OTHER_QUEUES = "(other)"
LAG_BUCKETS_S = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.0045, 0.005),
    *(0.006, 0.007, 0.008, 0.009, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 15.0, 60.0, 300.0),
)
"""Fine where the design's goals lie; a share of a millisecond is seen where it is observed."""
STALL_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.0175, 0.02),
    *(0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0),
)
SYNC_BUCKETS_S = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.25, 1.0)

_TOTALS = {
    "created": "Executions created",
    "duplicates": "Creates answered with an earlier job",
    "rejected": "Creates refused, as they asked, because their idempotency key has a job",
    "keys_forgotten": "Idempotency keys forgotten before their window was over, for want of room",
    "claimed": "Leases granted",
    "succeeded": "Executions that succeeded",
    "failed": "Attempts reported as failed",
    "expired": "Leases that ran out",
    "released": "Executions given back",
    "stale": "Reports refused because the token was not the latest",
    "retried": "Attempts after which another was scheduled",
    "died": "Executions that became dead letters",
    "replayed": "Dead letters given a new budget",
    "purged": "Dead letters forgotten on request",
    "cancelled": "Executions cancelled",
    "coalesced": "Nominal times folded into another",
    "missed": "Nominal times given up",
    "skipped": "Nominal times left out by the overlap rule, a pause or expiry",
    "skipped_expired": "Executions skipped because they expired before an attempt",
    "withdrawn": "Occurrences taken back before their time, by a pause or an edit",
    "caught_up": "Runs of the past that catch-up made",
    "configured": "Changes of the settings of queues",
}
_QUEUE_TEXTS = {
    "scheduled_executions": "Executions that wait for their due time or a claim",
    "leased_executions": "Executions that workers hold",
    "paused_queue": "1 while the queue is paused",
    "dead_executions": "Dead letters",
    "ready_executions": "Due executions that wait for a claim",
    "waiting_claims": "Claims that wait for work",
    "oldest_due_age_seconds": "How long the oldest due execution has waited",
}


class Measured(Protocol):
    """The node, as far as it is read when it is scraped."""

    @property
    def consensus(self) -> Member: ...

    @property
    def commit(self) -> GroupCommit: ...

    @property
    def state(self) -> StateMachine: ...

    @property
    def dispatcher(self) -> Dispatcher: ...

    @property
    def history(self) -> History: ...

    @property
    def stalls(self) -> StallWatch: ...

    @property
    def serving(self) -> bool: ...

    @property
    def open_requests(self) -> int: ...

    @property
    def answers(self) -> Mapping[tuple[str, str, int], int]:
        """Answers given, by method, route and status."""

    def wall_clock_ms(self) -> int: ...


class Metrics:
    """What one node measures."""

    def __init__(self, node: Measured) -> None:
        self.registry = CollectorRegistry()
        self.commit = BatchHistogram(
            "timeball_commit_seconds", "From a proposal to its verdict", LAG_BUCKETS_S
        )
        self.registry.register(self.commit)
        self.journal_sync_s = Histogram(
            "timeball_journal_sync_seconds",
            "One sync of the journal",
            buckets=SYNC_BUCKETS_S,
            registry=self.registry,
        )
        self.loop_stall = BatchHistogram(
            "timeball_loop_stall_seconds",
            "By how much a timer of the event loop that should ring rings late",
            STALL_BUCKETS_S,
        )
        self.registry.register(self.loop_stall)
        self._clock_steps_s = Histogram(
            "timeball_clock_step_seconds",
            "Steps of the wall clock, by size",
            buckets=(0.5, 1.0, 10.0, 60.0, 3600.0),
            registry=self.registry,
        )
        self.dispatch = DispatchInstruments(self.registry)
        self.registry.register(_NodeCollector(node))

    def clock_stepped(self, step_ms: int) -> None:
        """The wall clock stepped (negative: back)."""
        _log.warning("the wall clock stepped by %d ms", step_ms)
        self._clock_steps_s.observe(abs(step_ms) / 1000)


class DispatchInstruments(Instruments):
    """What the leader's dispatcher tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._fire_lag = BatchHistogram(
            "timeball_fire_lag_seconds",
            "From the due time of an execution to the answer with its committed lease",
            LAG_BUCKETS_S,
        )
        self._wheel_lag = BatchHistogram(
            "timeball_wheel_lag_seconds",
            "From a due time to the ready queue, or to the answer with a lease granted ahead",
            LAG_BUCKETS_S,
        )
        registry.register(self._fire_lag)
        registry.register(self._wheel_lag)
        self._refused = Counter(
            "timeball_claims_refused", "Leases refused by the log", registry=registry
        )
        self._unused = Counter(
            "timeball_unused_released",
            "Leases given back because their claim was gone",
            registry=registry,
        )
        self._taken_over = Counter(
            "timeball_leases_taken_over",
            "Leases of earlier leaders that this one gave their whole length again",
            registry=registry,
        )
        self._parked = Counter(
            "timeball_timetables_parked",
            "Timetables that failed and stand still",
            registry=registry,
        )
        self._failed = Counter(
            "timeball_dispatch_proposals_failed",
            "Items of the leader's own operations that failed and are proposed again",
            labelnames=("kind",),
            registry=registry,
        )

    def observe_wheel(self, lags_ms: Sequence[int]) -> None:
        """Something was made available."""
        self._wheel_lag.observe_all_ms(lags_ms)

    def observe_claim(self, lags_ms: Sequence[int]) -> None:
        """The granted are counted by the replicated state."""
        self._fire_lag.observe_all_ms(lags_ms)

    def leases_refused(self, count: int) -> None:
        """Something else had the execution by then."""
        self._refused.inc(count)

    def unused_released(self, count: int) -> None:
        """A claim was gone before its answer."""
        self._unused.inc(count)

    def leases_taken_over(self, count: int) -> None:
        """This node has become the leader."""
        self._taken_over.inc(count)

    def timetable_parked(self, job: int) -> None:  # noqa: ARG002
        """A timetable failed; the planner has logged which, and why."""
        self._parked.inc()

    def proposal_failed(self, kind: str, items: int) -> None:
        """An operation of the leader's own failed."""
        self._failed.labels(kind).inc(items)


class _NodeCollector(Collector):
    """Reads a node when it is scraped."""

    def __init__(self, node: Measured) -> None:
        self._node = node

    def describe(self) -> Iterable[Metric]:
        """Nothing is collected at registration, when the node has not started."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families of this node."""
        yield from self._consensus()
        yield from self._state()
        yield from self._queues()
        yield from self._requests()
        yield from self._events()

    def _consensus(self) -> Iterator[Metric]:
        consensus, commit = self._node.consensus, self._node.commit
        stats = consensus.stats
        now_ms = self._node.wall_clock_ms()
        gauges = {
            "raft_term": ("The term", consensus.term),
            "raft_leader": ("1 while this node leads", consensus.role == "leader"),
            "raft_serving": ("1 while this node leads and does its duties", self._node.serving),
            "raft_voter": ("1 while this node's disk counts", consensus.standing == "voter"),
            "raft_members_without_vote": (
                "Members, this one too, whose disks are known not to count",
                sum(peer.standing in ("blank", "joining") for peer in consensus.peers())
                + (consensus.standing != "voter"),
            ),
            "raft_quorum_seen": ("1 while a majority is in touch", consensus.quorum_seen),
            "raft_peers_connected": (
                "Other members that this node has a connection to",
                sum(peer.connected for peer in consensus.peers()),
            ),
            "reads_waiting": ("Reads that wait for a position", consensus.waiting_reads),
            "raft_commit_index": ("The committed position", consensus.commit_index),
            "raft_applied_index": ("The applied position", consensus.applied_index),
            "raft_applied_lag": (
                "Committed entries that wait to be applied",
                consensus.known_commit_index - consensus.applied_index,
            ),
            "raft_snapshot_index": ("The newest snapshot's position", stats.last_snapshot_index),
            "raft_snapshot_under_way": (
                "1 while a snapshot is being written",
                stats.snapshot_under_way,
            ),
            "raft_snapshot_bytes": ("Size of the latest snapshot", stats.last_snapshot_bytes),
            "raft_snapshot_seconds": ("Time of the latest snapshot", stats.last_snapshot_s),
            "disk_free_bytes": ("Room on the disk of the data directory", consensus.free_bytes),
            "disk_low": (
                "1 while the disk has too little room to lead on",
                consensus.room != "plenty",
            ),
            "disk_full": ("1 while nothing is written to the journal", consensus.room == "full"),
            "loop_stall_seconds_max": (
                "Longest hold-up of the event loop in the last minute",
                self._node.stalls.longest_s(),
            ),
            "proposals_pending": ("Operations that wait for an entry", commit.pending),
            "log_time_ahead_seconds": (
                "How far log-time is ahead of this node's clock; a large value is clock skew",
                (self._node.state.log_time_ms - now_ms) / 1000,
            ),
        }
        counters = {
            "raft_elections": ("Elections that this node stood in", stats.elections),
            "raft_leaderships": ("Terms that this node led", stats.leaderships),
            "raft_read_rounds": ("Rounds of messages for strong reads", stats.read_rounds),
            "raft_entries_applied": ("Entries applied", stats.entries_applied),
            "raft_snapshots_taken": ("Snapshots written", stats.snapshots_taken),
            "raft_snapshots_installed": ("Snapshots taken over", stats.snapshots_installed),
            "raft_snapshot_failures": ("Snapshots that failed", stats.snapshot_failures),
            "journal_bytes": ("Bytes written to the journal", stats.journal_bytes),
            "commit_entries": ("Entries proposed by this node", commit.entries),
            "commit_operations": ("Operations in them", commit.operations),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"timeball_{name}", text, value=float(value))
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"timeball_{name}", text, value=float(value))

    def _state(self) -> Iterator[Metric]:
        """Totals of the replicated state: the same on every node at one position."""
        totals = asdict(self._node.state.counters)
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"timeball_{name}", text, value=float(totals[name]))
        state = self._node.state
        yield GaugeMetricFamily(
            "timeball_pending_executions", "Executions that wait", value=float(len(state.pending))
        )
        held = GaugeMetricFamily(
            "timeball_idempotency_keys",
            "Idempotency keys in memory, by what they hold until",
            labels=["until"],
        )
        held.add_metric(["window_ends"], float(state.windowed_keys))
        held.add_metric(["job_ends"], float(state.held_keys))
        yield held
        yield GaugeMetricFamily(
            "timeball_paused_timetables",
            "Timetables that are paused",
            value=float(state.paused_timetables),
        )
        yield GaugeMetricFamily(
            "timeball_parked_timetables",
            "Timetables that failed and stand still until they are resumed or edited",
            value=float(state.parked_timetables),
        )
        zone_data = GaugeMetricFamily(
            "timeball_zone_data_info",
            "1; the label tells the time zone data that this node plans by",
            labels=["version"],
        )
        zone_data.add_metric([data_version()], 1.0)
        yield zone_data
        yield GaugeMetricFamily(
            "timeball_feature_level", "The feature level of the state", value=float(state.level)
        )

    def _queues(self) -> Iterator[Metric]:
        """Depths by queue; what only a serving leader knows is left out elsewhere."""
        node, dispatcher = self._node, self._node.dispatcher
        serving = node.serving
        depths: dict[str, dict[str, float]] = {}
        oldest_ms: dict[str, int] = {}
        for place, name in enumerate(sorted(node.state.queues)):
            label = name if place < MAX_QUEUES else OTHER_QUEUES
            counts = node.state.queues[name]
            values: dict[str, float] = {
                "scheduled_executions": counts.scheduled,
                "leased_executions": counts.leased,
                "dead_executions": counts.dead,
                "paused_queue": _is_paused(node.state, name),
            }
            if serving:
                values["ready_executions"] = dispatcher.ready_depth(name)
                values["waiting_claims"] = dispatcher.waiting_claims(name)
                due_ms = dispatcher.oldest_due_ms(name)
                if due_ms is not None:
                    oldest_ms[label] = min(due_ms, oldest_ms.get(label, due_ms))
            for metric, value in values.items():
                labelled = depths.setdefault(metric, {})
                labelled[label] = labelled.get(label, 0.0) + value
        now_ms = node.wall_clock_ms()
        depths["oldest_due_age_seconds"] = {
            label: (now_ms - due_ms) / 1000 for label, due_ms in oldest_ms.items()
        }
        for metric, labelled in depths.items():
            family = GaugeMetricFamily(
                f"timeball_{metric}", _QUEUE_TEXTS[metric], labels=("queue",)
            )
            for label, value in labelled.items():
                family.add_metric((label,), value)
            yield family
        yield from self._settings_of_queues()

    def _settings_of_queues(self) -> Iterator[Metric]:
        """How many queues have which state, and how many hold work back for which setting."""
        node = self._node
        states = dict.fromkeys(QUEUE_STATES, 0)
        held_back = dict.fromkeys(HELD_BACK_BY, 0)
        for name, configured in node.state.configured.items():
            states[configured.settings.state] += 1
            if node.serving:
                for reason in node.dispatcher.held_back_by(name):
                    held_back[reason] += 1
        configured_queues = GaugeMetricFamily(
            "timeball_configured_queues",
            "Queues that have settings of their own, by their state",
            labels=("state",),
        )
        for state, count in states.items():
            configured_queues.add_metric((state,), count)
        yield configured_queues
        if node.serving:
            held_back_queues = GaugeMetricFamily(
                "timeball_held_back_queues",
                "Queues in which due executions wait for what a setting allows, by the setting",
                labels=("reason",),
            )
            for reason, count in held_back.items():
                held_back_queues.add_metric((reason,), count)
            yield held_back_queues

    def _requests(self) -> Iterator[Metric]:
        answered = CounterMetricFamily(
            "timeball_http_requests", "Answers given", labels=("method", "route", "status")
        )
        for (method, route, status), count in self._node.answers.items():
            answered.add_metric((method, route, str(status)), float(count))
        yield answered
        yield GaugeMetricFamily(
            "timeball_http_open_requests",
            "Requests that are being answered",
            value=float(self._node.open_requests),
        )

    def _events(self) -> Iterator[Metric]:
        history = self._node.history
        counts = history.counts
        gauges = {
            "event_streams": ("Clients that this node tells events to", counts.open),
            "event_history_events": ("Events kept in memory", history.events),
        }
        counters = {
            "events_sent": ("Events told to clients", counts.sent),
            "event_streams_cut_off": ("Streams whose client was too slow", counts.cut_off),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"timeball_{name}", text, value=float(value))
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"timeball_{name}", text, value=float(value))


def _is_paused(state: StateMachine, queue: str) -> float:
    configured = state.configured.get(queue)
    return float(configured is not None and configured.settings.state == PAUSED)

"""The operation that skips executions which have expired before an attempt of them began."""

from __future__ import annotations

from timeball.cluster.state.expiry import expires_by
from timeball.cluster.state.operations import SkipExpired
from timeball.cluster.state.records import ExecutionState
from timeball.cluster.state.store import Store
from timeball.cluster.state.transitions import Event
from timeball.cluster.state.verdicts import Verdict


def skip_expired(store: Store, operation: SkipExpired) -> list[Verdict]:
    """Skip each that still is scheduled and has expired by log-time."""
    return [_skip(store, *name) for name in operation.executions]


def _skip(store: Store, job_id: int, nominal_ms: int) -> Verdict:
    execution = store.execution(job_id, nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    if execution.state is not ExecutionState.SCHEDULED or not expires_by(
        execution, store.log_time_ms
    ):
        return Verdict.STALE
    store.lapse(execution, Event.SKIP)
    return Verdict.ACCEPTED

"""The operations on dead letters: replay and purge.

Both say which death they mean by the token of its last attempt, so that what was chosen by a
reason is not taken for what it died of later. A repeat finds nothing more to do.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.expiry import expires_by
from timeball.cluster.state.happenings import Happened
from timeball.cluster.state.operations import PurgeDead, Replay
from timeball.cluster.state.records import Execution, ExecutionState, JobState
from timeball.cluster.state.store import Store
from timeball.cluster.state.transitions import Event
from timeball.cluster.state.verdicts import Verdict

REQUESTED: Final = "requested"
"""Why a dead execution is gone that somebody purged."""


def replay(store: Store, operation: Replay) -> list[Verdict]:
    """Give dead executions a new attempt budget; their attempts stay on record."""
    return [_replay(store, *letter) for letter in operation.executions]


def _replay(store: Store, job_id: int, nominal_ms: int, token: int) -> Verdict:
    execution = _dead(store, job_id, nominal_ms, token)
    if not isinstance(execution, Execution):
        return execution
    job = execution.job
    if job.state is JobState.CANCELLED:
        return Verdict.JOB_CANCELLED
    if expires_by(execution, max(store.log_time_ms, execution.due_ms)):
        return Verdict.EXPIRED
    if not store.keys.hold_again(job.id, store.log_time_ms):
        return Verdict.KEY_TAKEN
    if job.state is JobState.COMPLETED and job.recurrence is not None:
        store.happened.of_job(job, Happened.JOB_REOPENED)
    job.state = JobState.ACTIVE
    execution.attempts_used = 0
    execution.reason = ""
    store.reschedule(execution, Event.REPLAY, store.log_time_ms)
    store.counters.replayed += 1
    return Verdict.ACCEPTED


def purge_dead(store: Store, operation: PurgeDead) -> list[Verdict]:
    """Forget dead executions, as retention does with the oldest."""
    return [_purge(store, *letter) for letter in operation.executions]


def _purge(store: Store, job_id: int, nominal_ms: int, token: int) -> Verdict:
    execution = _dead(store, job_id, nominal_ms, token)
    if not isinstance(execution, Execution):
        return execution
    store.bury(execution, REQUESTED)
    store.counters.purged += 1
    return Verdict.ACCEPTED


def _dead(store: Store, job_id: int, nominal_ms: int, token: int) -> Execution | Verdict:
    """The execution that is meant, or why there is nothing to do."""
    execution = store.execution_to_change(job_id, nominal_ms)
    if execution is None:
        return Verdict.UNKNOWN
    if execution.state is not ExecutionState.DEAD or token not in (0, execution.token):
        return Verdict.NOT_DEAD
    return execution

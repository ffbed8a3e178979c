"""Everything that the state machine holds, and the indexes that follow from it.

The store keeps records and indexes in step; the rules of the operations are in the
modules named after their nouns and change records only through it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from timeball.cluster.state.expiry import EXPIRED, expires_by
from timeball.cluster.state.fifo import Fifo
from timeball.cluster.state.happenings import Happened, Happenings
from timeball.cluster.state.jobmap import JobMap
from timeball.cluster.state.keys import Keys
from timeball.cluster.state.ledger import fate_of, write_down
from timeball.cluster.state.levels import FIRST_LEVEL
from timeball.cluster.state.memory import Granted, Memory, Request
from timeball.cluster.state.operations import NUMBERED_PER_ENTRY, ClusterSettings, RetryPolicy
from timeball.cluster.state.overlap import first_in_line
from timeball.cluster.state.records import (
    ConfiguredQueue,
    Counters,
    Execution,
    ExecutionState,
    FateKind,
    Job,
    JobState,
    Origin,
    QueueCounts,
    Recurrence,
    origin_of,
)
from timeball.cluster.state.sizes import kept_bytes
from timeball.cluster.state.transitions import TERMINAL, Event, move
from timeball.cluster.state.usual import NO_OPTIONS
from timeball.wheel import TimeBuckets

if TYPE_CHECKING:
    from timeball.cluster.state.snapshot import Dump

_BUCKET_MS: Final = 1_000
_POLICIES_SHARED: Final = 1_024
NO_EXECUTIONS: Final[dict[int, Execution]] = {}
"""What a one-shot job holds before and after its execution; never changed."""

# Names of the module, since reading a member off its class takes ten times as long.
_SCHEDULED: Final = ExecutionState.SCHEDULED
_LEASED: Final = ExecutionState.LEASED
_RUNNING: Final = ExecutionState.RUNNING
_SUCCEEDED: Final = ExecutionState.SUCCEEDED
_DEAD: Final = ExecutionState.DEAD
_SKIPPED: Final = ExecutionState.SKIPPED
_ACTIVE: Final = JobState.ACTIVE
_COMPLETED: Final = JobState.COMPLETED
_CLAIM: Final = Event.CLAIM
_CREATED: Final = Happened.CREATED


@mypyc_attr(acyclic=True)
class EndedJob:
    """A recurring job that ended when it held no execution: kept for a while like one."""

    __slots__ = ("finished_ms", "job")

    def __init__(self, job: Job, finished_ms: int) -> None:
        self.job = job
        self.finished_ms = finished_ms


class Store:
    """The whole replicated state, with its derived indexes."""

    def __init__(self) -> None:
        self.settings = ClusterSettings()
        self.level = FIRST_LEVEL
        """The feature level of the cluster."""
        self.applied_index = 0
        self.log_time_ms = 0
        self.counters = Counters()
        self.jobs = JobMap()
        self.keys = Keys()
        self.requests: Memory[Request] = Memory()
        self.claims: Memory[Granted] = Memory()
        self.finished: Fifo[Execution | EndedJob] = Fifo()
        """What retention drops, in the order in which it ended; dead executions apart."""
        self.dead: OrderedDict[Execution, None] = OrderedDict()
        """Dead executions in the order in which they died."""
        self.finished_bytes = self.dead_bytes = 0
        """What both count for, by `sizes.kept_bytes`."""
        self.catch_up_us = 0
        """When the budget of runs of the past will be whole again, log-time in microseconds."""
        self.configured: dict[str, ConfiguredQueue] = {}
        """The queues whose settings are not the default."""
        self.instructions: dict[str, tuple[str, int]] = {}
        """What workers are told, and the log-time since when, the oldest first."""
        # Derived from the records:
        self.pending: TimeBuckets[Execution] = TimeBuckets(_BUCKET_MS)
        self.timetables: TimeBuckets[Job] = TimeBuckets(_BUCKET_MS)
        self.leased: dict[int, Execution] = {}
        """Leased and running executions by token, that is, in the order of their grants."""
        self.names: dict[str, Job] = {}
        """Recurring jobs by name, until their timetable ends."""
        self.paused = self.parked = 0
        """Timetables that stand still, for either reason or both."""
        self.queues: dict[str, QueueCounts] = {}
        self.policies: dict[RetryPolicy, RetryPolicy] = {}
        """Policies to share: most jobs have one of a few."""
        self.dump: Dump | None = None
        """The dump that is under way; it is told of every change beforehand."""
        # Only within one entry:
        self.touched: list[Execution | Job] = []
        self.reconfigured: list[str] = []
        """Queues whose settings changed."""
        self.instructed: list[str] = []
        """Workers that were told something, or nothing any more."""
        self.happened = Happenings()
        self._next_job = 0
        self._next_token = 0
        self._next_occurrence = 0

    def begin_entry(self, index: int, log_time_ms: int) -> None:
        """Enter the entry at `index`; log-time never goes back."""
        self.applied_index = index
        self.log_time_ms = max(self.log_time_ms, log_time_ms)
        self.touched = []
        self.reconfigured = []
        self.instructed = []
        self.happened = Happenings()
        self._next_job = self._next_token = index * NUMBERED_PER_ENTRY
        self._next_occurrence = self._next_job

    def number_job(self) -> int:
        """A new job id."""
        self._next_job += 1
        return self._next_job - 1

    def number_occurrence(self) -> int:
        """A sequence number for an occurrence that a timetable adds.

        It only breaks ties of due time, so the many of one entry may share the last.
        """
        highest = (self.applied_index + 1) * NUMBERED_PER_ENTRY - 1
        self._next_occurrence = min(self._next_occurrence + 1, highest)
        return self._next_occurrence

    def number_tokens(self, count: int) -> range:
        """That many new fencing tokens (rising)."""
        first = self._next_token
        self._next_token += count
        return range(first, first + count)

    def share_policy(self, policy: RetryPolicy) -> RetryPolicy:
        """Let jobs to come share this policy; returns it."""
        if len(self.policies) >= _POLICIES_SHARED:
            self.policies.clear()
        return self.policies.setdefault(policy, policy)

    def execution(self, job_id: int, nominal_ms: int) -> Execution | None:
        """The execution of this identity."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        executions = job.executions
        if type(executions) is Execution:
            return executions if executions.nominal_ms == nominal_ms else None
        assert isinstance(executions, dict)
        return executions.get(nominal_ms)

    def job_to_change(self, job_id: int) -> Job | None:
        """The job of this id, whose own record may change now."""
        job = self.jobs.get(job_id)
        if self.dump is not None and job is not None:
            self.dump.keep_job(job)
        return job

    def execution_to_change(self, job_id: int, nominal_ms: int) -> Execution | None:
        """The execution of this identity, which may change now, and its job with it."""
        execution = self.execution(job_id, nominal_ms)
        if self.dump is not None and execution is not None:
            self.dump.keep_execution(execution)
        return execution

    def will_change(self, execution: Execution) -> None:
        """Say so before an execution changes that was not looked up for it."""
        if self.dump is not None:
            self.dump.keep_execution(execution)

    def held(self, job_id: int, nominal_ms: int, token: int) -> Execution | None:
        """The execution of this identity, if it is leased under this token; it may change now."""
        execution = self.leased.get(token)
        if (
            execution is not None
            and execution.nominal_ms == nominal_ms
            and execution.job.id == job_id
        ):
            if self.dump is not None:
                self.dump.keep_execution(execution)
            return execution
        return None

    def executions_of(self, job: Job) -> list[Execution]:
        """The kept executions of a job by nominal time."""
        executions = job.executions
        return list(executions.values()) if isinstance(executions, dict) else [executions]

    def add_job(self, job: Job) -> None:
        """Add a job without executions. Its queue comes into being if need be."""
        counts = self.queues.get(job.queue)
        if counts is None:
            counts = self.queues[job.queue] = QueueCounts(job.queue)
        counts.jobs += 1
        counts.count_requirements(job.options.requires, 1)
        job.queue = counts.name
        self.jobs.add(job)
        self.plan(job)
        recurrence = job.recurrence
        if recurrence is not None and recurrence.name and not recurrence.ended:
            self.names[recurrence.name] = job

    def plan(self, job: Job) -> None:
        """Have the timetable of a job moved on when its planned occurrence is due."""
        if job.timetable_moves:
            self.timetables.add(job.moves_at_ms, job)
        else:
            self._count_standing(job, 1)

    def unplan(self, job: Job) -> None:
        """Not so, since what it depends on is about to change."""
        if job.timetable_moves:
            self.timetables.discard(job.moves_at_ms, job)
        else:
            self._count_standing(job, -1)

    def _count_standing(self, job: Job, one: int) -> None:
        recurrence = job.recurrence
        if recurrence is not None and not recurrence.ended:
            self.paused += one if recurrence.paused_ms else 0
            self.parked += one if recurrence.parked else 0

    def add_execution(
        self, job: Job, nominal_ms: int, due_ms: int, sequence: int, *, in_order: bool = True
    ) -> Execution:
        """Create the occurrence of `job` at `nominal_ms`, scheduled for `due_ms`.

        Whoever adds many of the past says `in_order=False`, and `put_in_order` in the end.
        """
        execution = Execution(job, nominal_ms, due_ms, sequence)
        recurrence = job.recurrence
        if recurrence is None:
            job.executions = execution
        else:
            assert isinstance(job.executions, dict)
            if in_order:
                _insert(job.executions, execution)
            else:
                job.executions[nominal_ms] = execution
            recurrence.live[nominal_ms] = execution
        self.pending.add(execution.due_ms, execution)
        counts = self.queues[job.queue]
        counts.scheduled += 1
        counts.total_created += 1
        self.counters.created += 1
        self.touched.append(execution)
        self.happened.add(
            _CREATED, 0, job.queue, job.id, nominal_ms, 0, 0, execution.due_ms, "", ""
        )
        if job.options is not NO_OPTIONS and expires_by(execution, execution.due_ms):
            self.lapse(execution, Event.SKIP)
        return execution

    def put_in_order(self, job: Job) -> None:
        """Have the executions of a recurring job by nominal time again."""
        executions = job.executions
        assert isinstance(executions, dict)
        in_order = sorted(executions.items())
        executions.clear()
        executions.update(in_order)

    def lease(self, execution: Execution, token: int) -> None:
        """Scheduled → leased under a new token, which its new attempt tells from now on."""
        move(execution, _CLAIM, _LEASED)
        self.pending.discard(execution.due_ms, execution)
        self.leased[token] = execution
        job = execution.job
        counts = self.queues[job.queue]
        counts.scheduled -= 1
        counts.leased += 1
        if job.options is not NO_OPTIONS:
            count_key(counts, job, 1)
        self.touched.append(execution)

    def reschedule(self, execution: Execution, event: Event, due_ms: int) -> None:
        """Back to scheduled, not to be handed out before `due_ms`, nor before it was due.

        One that would have expired by then is skipped instead.
        """
        if execution.state is not _SCHEDULED:  # else a late report takes a backoff back
            due_ms = max(due_ms, execution.due_ms)
        if expires_by(execution, due_ms):
            self.lapse(execution, event)
            return
        counts = self.queues[execution.job.queue]
        self._leave(execution, counts)
        move(execution, event, _SCHEDULED)
        execution.due_ms = due_ms
        self.pending.add(due_ms, execution)
        counts.scheduled += 1
        self.touched.append(execution)
        self.happened.moved(execution, event, "")
        recurrence = execution.job.recurrence
        if recurrence is not None:
            if event is Event.REPLAY:
                recurrence.live[execution.nominal_ms] = execution
            self._touch_first_in_line(execution.job)

    def finish(self, execution: Execution, event: Event, target: ExecutionState) -> None:
        """To a terminal state; the job ends with it if nothing else is to come."""
        job = execution.job
        counts = self.queues[job.queue]
        self._leave(execution, counts)
        move(execution, event, target)
        execution.finished_ms = self.log_time_ms
        if job.recurrence is not None:
            self._leave_line(job, job.recurrence, execution)
        if target is _DEAD:
            self.dead[execution] = None
            self.dead_bytes += kept_bytes(execution)
            counts.dead += 1
            counts.total_dead += 1
        else:
            self.finished.append(execution)
            self.finished_bytes += kept_bytes(execution)
            if target is _SUCCEEDED:
                counts.succeeded += 1
                counts.total_succeeded += 1
            elif target is _SKIPPED:
                counts.skipped += 1
                counts.total_skipped += 1
            else:
                counts.cancelled += 1
                counts.total_cancelled += 1
        self.touched.append(execution)
        self.happened.moved(execution, event, execution.reason)
        if job.state is _ACTIVE:
            self.complete_if_idle(job)
        else:
            self.free_key_if_idle(job)

    def _leave_line(self, job: Job, recurrence: Recurrence, execution: Execution) -> None:
        """An occurrence has ended: the next in line may go."""
        del recurrence.live[execution.nominal_ms]
        if execution.state is not _DEAD:  # which may be replayed
            recurrence.begun.pop(execution.nominal_ms, None)
        self._touch_first_in_line(job)

    def _touch_first_in_line(self, job: Job) -> None:
        """The line of a job has changed: who is first now may have been held back till now."""
        first = first_in_line(job)
        if first is not None and first.state is _SCHEDULED:
            self.touched.append(first)

    def skip(self, execution: Execution, kind: FateKind, reason: str) -> None:
        """A scheduled occurrence is not to run: its record says so, and the totals."""
        self.will_change(execution)
        recurrence = execution.job.recurrence
        assert recurrence is not None
        execution.reason = f"{kind.name.lower()}:{reason}"
        self.finish(execution, Event.SKIP, _SKIPPED)
        if origin_of(execution) is Origin.TIMETABLE:
            recurrence.fired -= 1
            self.count_fates(recurrence, kind, 1)

    def lapse(self, execution: Execution, event: Event) -> None:
        """An execution has expired, or will have before its next attempt: there is none."""
        self.will_change(execution)
        execution.reason = EXPIRED
        self.finish(execution, event, _SKIPPED)
        self.counters.skipped_expired += 1
        recurrence = execution.job.recurrence
        if recurrence is not None and origin_of(execution) is Origin.TIMETABLE:
            recurrence.fired -= 1
            self.count_fates(recurrence, FateKind.SKIPPED, 1)

    def count_fates(self, recurrence: Recurrence, kind: FateKind, count: int) -> None:
        """Nominal times of a timetable have no run of their own."""
        if kind is FateKind.COALESCED:
            recurrence.coalesced += count
            self.counters.coalesced += count
        elif kind is FateKind.SKIPPED:
            recurrence.skipped += count
            self.counters.skipped += count
        else:
            assert kind is FateKind.MISSED
            recurrence.missed += count
            self.counters.missed += count

    def withdraw(self, execution: Execution) -> None:
        """Take back an occurrence whose time has not come: as if it had not been made."""
        self.will_change(execution)
        job = execution.job
        recurrence, executions = job.recurrence, job.executions
        assert recurrence is not None
        assert isinstance(executions, dict)
        counts = self.queues[job.queue]
        self._leave(execution, counts)
        move(execution, Event.WITHDRAW, _SKIPPED)
        counts.total_skipped += 1
        self.counters.withdrawn += 1
        recurrence.made -= 1
        recurrence.fired -= 1
        del recurrence.live[execution.nominal_ms]
        del executions[execution.nominal_ms]
        self.touched.append(execution)
        self.happened.moved(execution, Event.WITHDRAW, "")

    def _leave(self, execution: Execution, counts: QueueCounts) -> None:
        """Take an execution out of the index of the state that it is about to leave."""
        state = execution.state
        if state is _SCHEDULED:
            self.pending.discard(execution.due_ms, execution)
            counts.scheduled -= 1
        elif state is _LEASED or state is _RUNNING:
            del self.leased[execution.token]
            counts.leased -= 1
            if execution.job.options is not NO_OPTIONS:
                count_key(counts, execution.job, -1)
        else:
            assert state is _DEAD, "only a dead execution leaves a terminal state"
            del self.dead[execution]
            self.dead_bytes -= kept_bytes(execution)
            counts.dead -= 1
            execution.finished_ms = 0

    def end_timetable(self, job: Job) -> None:
        """No further occurrence will come."""
        recurrence = job.recurrence
        if recurrence is not None and not recurrence.ended:
            self.unplan(job)
            recurrence.ended = True
            self.names.pop(recurrence.name, None)
            self.touched.append(job)
            if not job.executions:
                self.finished.append(EndedJob(job, self.log_time_ms))
                self.finished_bytes += kept_bytes(job)

    def complete_if_idle(self, job: Job) -> None:
        """Complete an active job of which nothing is to come or under way."""
        if is_idle(job):
            job.state = _COMPLETED
            if job.recurrence is not None:
                self.happened.of_job(job, Happened.JOB_COMPLETED)
            if job.idempotency_key:
                self.keys.release(job.id)

    def free_key_if_idle(self, job: Job) -> None:
        """A key that is held until its job has ended: of a cancelled one, until its worker has."""
        if job.idempotency_key and is_idle(job):
            self.keys.release(job.id)

    def bury(self, execution: Execution, reason: str) -> None:
        """Forget a dead execution."""
        self.happened.of_execution(execution, Happened.PURGED, why=reason)
        del self.dead[execution]
        self.dead_bytes -= kept_bytes(execution)
        self.drop_execution(execution)

    def drop_execution(self, execution: Execution) -> None:
        """Forget a terminal execution that no order of retention holds any more.

        The job goes with its last execution if it has ended. Job and execution refer to
        each other and the collector does not see them: the ring is opened here.
        """
        if self.dump is not None:
            self.dump.keep_execution(execution)
        job = execution.job
        counts = self.queues[job.queue]
        state = execution.state
        if state is _SUCCEEDED:
            counts.succeeded -= 1
        elif state is _DEAD:
            counts.dead -= 1
        elif state is _SKIPPED:
            counts.skipped -= 1
        else:
            counts.cancelled -= 1
        executions, recurrence = job.executions, job.recurrence
        if recurrence is None:
            job.executions = executions = NO_EXECUTIONS
        else:
            assert isinstance(executions, dict)
            del executions[execution.nominal_ms]
            recurrence.begun.pop(execution.nominal_ms, None)
            if recurrence.asked.pop(execution.nominal_ms, Origin.TIMETABLE) is Origin.TIMETABLE:
                write_down(recurrence, fate_of(execution))
        if not executions and job.state is not _ACTIVE:
            self.drop_job(job)

    def drop_job(self, job: Job) -> None:
        """Forget an ended job that holds no execution."""
        assert not job.executions
        assert job.state is not _ACTIVE
        if self.dump is not None:
            self.dump.keep_job(job)
        if job.idempotency_key:
            self.keys.drop(job.id)
        self.jobs.remove(job)
        counts = self.queues[job.queue]
        counts.jobs -= 1
        counts.count_requirements(job.options.requires, -1)
        if counts.jobs == 0:
            del self.queues[job.queue]


def count_key(counts: QueueCounts, job: Job, one: int) -> None:
    """A lease of a job with options begins (1) or ends (-1): count it by concurrency key."""
    key = job.options.concurrency_key
    if key:
        leased = counts.leased_by_key.get(key, 0) + one
        if leased:
            counts.leased_by_key[key] = leased
        else:
            del counts.leased_by_key[key]


def is_idle(job: Job) -> bool:
    """Nothing of a job is to come or under way."""
    executions = job.executions
    if type(executions) is Execution:
        return executions.state in TERMINAL
    recurrence = job.recurrence
    assert recurrence is not None
    return recurrence.ended and not recurrence.live


def _insert(executions: dict[int, Execution], execution: Execution) -> None:
    """Add one where it belongs by nominal time, at a step for each later one: there are few."""
    later: list[Execution] = []
    while executions and next(reversed(executions)) > execution.nominal_ms:
        later.append(executions.popitem()[1])
    executions[execution.nominal_ms] = execution
    executions.update([(one.nominal_ms, one) for one in reversed(later)])

"""What has ended is kept for a while and up to a number, then leaves nothing behind."""

from __future__ import annotations

import sys

import pytest

from timeball.cluster.state.limits import TRIM_STEP
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Advance,
    AdvanceTimetables,
    CancelJobs,
    Claim,
    ClusterSettings,
    CreateJobs,
    Cron,
    Every,
    Fail,
    Failure,
    Lead,
    NewJob,
    RetryPolicy,
    Succeed,
    Success,
    Timetable,
    encode_entry,
)
from timeball.cluster.state.records import JobState
from timeball.cluster.state.sizes import KEPT_RECORD, kept_bytes


def done(log, **job):
    hold, token = log.claimed(**job)
    log.succeed(hold, token)
    return hold


def dead(log, **job):
    hold, token = log.claimed(**job)
    log.fail(hold, token, non_retryable=True)
    return hold


def test_finished_executions_are_kept_up_to_a_number_oldest_out(log):
    log.settings(keep_finished=2)
    holds = [done(log) for _ in range(4)]
    assert [log.execution(hold) is None for hold in holds] == [True, True, False, False]
    assert [log.machine.job(hold[0]) is None for hold in holds] == [True, True, False, False]
    assert log.machine.queues["mail"].succeeded == 2
    assert log.machine.queues["mail"].total_succeeded == 4


def test_finished_executions_are_kept_for_a_time_by_log_time(log):
    log.settings(keep_finished_ms=1_000)
    hold = done(log)
    log.pass_ms(999)
    log.apply()
    assert log.execution(hold) is not None
    log.pass_ms(1)
    log.apply()
    assert log.execution(hold) is None


def test_cancelled_executions_are_trimmed_like_the_succeeded(log):
    log.settings(keep_finished=0)
    hold = log.create()
    log.cancel(hold)
    assert log.machine.job(hold[0]) is None
    assert log.machine.queues == {}


def test_dead_executions_have_their_own_bound(log):
    log.settings(keep_finished=0, keep_finished_ms=0, keep_dead=2)
    holds = [dead(log) for _ in range(3)]
    assert [log.execution(hold) is None for hold in holds] == [True, False, False]
    assert log.machine.queues["mail"].dead == 2


def test_a_replayed_execution_waits_in_the_order_of_its_second_death(log):
    log.settings(keep_dead=2)
    first, second = dead(log), dead(log)
    log.replay(first)
    log.fail(first, log.claim_when_due(first), non_retryable=True)
    dead(log)
    assert log.execution(second) is None
    assert log.execution(first) is not None


def test_what_is_under_way_is_never_trimmed(log):
    log.settings(keep_finished=0, keep_dead=0, keep_finished_ms=0)
    waiting = log.create(delay_ms=10**9)
    held, _ = log.claimed()
    log.pass_ms(10**8)
    log.apply()
    assert log.execution(waiting) is not None
    assert log.execution(held) is not None


def test_an_active_recurring_job_outlives_its_executions_and_goes_when_ended(log):
    log.settings(keep_finished=0)
    hold = log.create(timetable=Timetable((Cron("* * * * *"),)))
    job, first_ms = hold
    log.succeed(hold, log.claim_when_due(hold))
    assert log.execution(hold) is None
    assert log.machine.job(job).state is JobState.ACTIVE
    last = (job, first_ms + 1)
    log.apply(AdvanceTimetables([Advance(job, 1, first_ms, [last[1]], last[1], ended=True)]))
    log.pass_ms(1)
    log.succeed(last, log.claim_when_due(last))
    assert log.machine.job(job) is None


def test_a_recurring_job_that_ends_without_executions_is_kept_like_one(log):
    log.settings(keep_finished=1)
    hold = log.create(timetable=Timetable((Cron("* * * * *"),)))
    log.succeed(hold, log.claim_when_due(hold))
    done(log)
    assert log.execution(hold) is None
    log.cancel(hold)
    assert log.machine.job(hold[0]).state is JobState.CANCELLED
    done(log)
    assert log.machine.job(hold[0]) is None


def test_trimming_takes_bounded_steps_and_keeps_up_with_what_ends(log):
    count = 4 * TRIM_STEP
    jobs = [(one.job, one.nominal_ms) for one in log.create_all(*[NewJob("q", b"")] * count)]
    log.apply(CancelJobs([job for job, _ in jobs]))
    log.settings(keep_finished=0)
    assert log.machine.queues["q"].cancelled == count - TRIM_STEP
    more = [(one.job, one.nominal_ms) for one in log.create_all(*[NewJob("q", b"")] * count)]
    log.apply(CancelJobs([job for job, _ in more]))
    assert log.machine.queues == {}, "an entry that ends many may drop many"


def test_dropped_records_leave_no_ring_of_references(log):
    """The records are invisible to the collector: a ring would stay for ever."""
    log.settings(keep_finished=0)
    one_shot, token = log.claimed(payload=b"one-shot payload")
    recurring = log.create(payload=b"recurring payload", timetable=Timetable((Cron("* * * * *"),)))
    payloads = [log.machine.job(hold[0]).payload for hold in (one_shot, recurring)]
    log.succeed(one_shot, token)
    log.cancel(recurring)
    log.apply()
    assert log.machine.job(one_shot[0]) is log.machine.job(recurring[0]) is None
    # What is taken from a `Fifo` leaves memory with its block, 64 items.
    later = log.create_all(*[NewJob("q", b"")] * 64)
    log.apply(CancelJobs([created.job for created in later]))
    log.apply()
    # The list and the argument of getrefcount; no job is left to hold them.
    assert [sys.getrefcount(payloads[at]) for at in (0, 1)] == [2, 2]


def test_counts_survive_a_whole_life_in_one_entry(log):
    log.settings(keep_finished=0)
    first = (log.index + 1) * 4096
    hold = (first, log.now_ms)
    log.apply(
        CreateJobs("", [NewJob("q", b"")]),
        Claim("w", "", 1_000, [hold]),
        Succeed([Success(*hold, first)]),
    )
    assert log.machine.job(first) is None
    assert log.machine.counters.succeeded == 1
    assert len(log.machine.pending) == len(log.machine.leased) == 0


def test_finished_executions_are_kept_up_to_their_bytes_oldest_out(log):
    log.settings(keep_finished_bytes=3 * (KEPT_RECORD + 1_000))
    holds = []
    for size in (1_000, 1_000, 1_000, 1_000, 2_000):
        hold, token = log.claimed(payload=b"p" * (size - 600))
        log.succeed(hold, token, result=b"r" * 600)
        holds.append(hold)
    assert [log.execution(hold) is None for hold in holds] == [True, True, True, False, False]


def test_dead_executions_are_kept_up_to_their_bytes_and_have_their_own(log):
    log.settings(keep_finished_bytes=0, keep_dead_bytes=2 * (KEPT_RECORD + 100))
    holds = []
    for text in ("x" * 100, "x" * 100, "é" * 25):
        hold, token = log.claimed(payload=b"")
        log.fail(hold, token, message=text, non_retryable=True)
        holds.append(hold)
    assert [log.execution(hold) is None for hold in holds] == [True, False, False]
    log.replay(holds[1])  # what is replayed does not count any more
    more = dead(log, payload=b"")
    assert [log.execution(hold) is None for hold in (*holds[1:], more)] == [False] * 3


def test_backtraces_count_for_retention(log):
    hold, token = log.claimed(payload=b"")
    log.fail(hold, token, error_type="E", message="mm", backtrace="b" * 97)
    assert kept_bytes(log.execution(hold)) == KEPT_RECORD + 100
    log.fail(hold, log.claim_when_due(hold), backtrace="é" * 10, non_retryable=True)
    assert kept_bytes(log.execution(hold)) == KEPT_RECORD + 140
    assert log.machine._store.dead_bytes == KEPT_RECORD + 140


def test_one_record_over_the_whole_bound_is_not_kept(log):
    log.settings(keep_finished_bytes=500)
    assert log.execution(done(log, payload=b"x" * 501)) is None


def test_a_recurring_jobs_payload_counts_with_each_execution_and_with_its_end(log):
    log.settings()
    hold = log.create(payload=b"x" * 50, timetable=Timetable((Cron("* * * * *"),)))
    log.succeed(hold, log.claim_when_due(hold), result=b"")
    assert kept_bytes(log.execution(hold)) == KEPT_RECORD + 50
    log.settings(keep_finished=0)
    log.settings(keep_finished_bytes=KEPT_RECORD + 49)
    log.cancel(hold)
    assert log.machine.job(hold[0]) is None, "the ended job itself is over the bound"


class Soak:
    """Work without end, in virtual time, on two replicas; one is started anew now and then."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.machine, self.replica = StateMachine(), StateMachine()
        self.index, self.now_ms = 0, 1_764_480_000_000
        self.apply(Lead("a", settings))
        every = [
            NewJob("r", b"p", timetable=Timetable((Every(1_000, self.now_ms),))) for _ in range(5)
        ]
        self.recurring = [one.job for one in self.apply(CreateJobs("", every))[0].jobs]

    def apply(self, *operations):
        self.index += 1
        entry = encode_entry(self.now_ms, operations)
        applied = self.machine.apply(self.index, entry)
        assert applied.halt is None
        assert self.replica.apply(self.index, entry).halt is None
        return applied.verdicts

    def go_on(self, seconds: int) -> None:
        """Each second: 20 jobs with keys and results, 2 that die, each timetable fires."""
        for _ in range(seconds):
            self.now_ms += 1_000
            now_ms = self.now_ms
            jobs = [
                NewJob(
                    "q",
                    b"p" * 60,
                    idempotency_key=f"k{now_ms}-{at}",
                    retry=RetryPolicy(max_attempts=1),
                )
                for at in range(20)
            ]
            (created,) = self.apply(CreateJobs(f"r{now_ms}", jobs))
            self.apply(
                AdvanceTimetables(
                    [
                        Advance(job, 1, planned := self.machine.job(job).planned_ms,
                                [planned + 1_000], planned + 1_000)
                        for job in self.recurring
                    ]
                )
            )  # fmt: skip
            holds = [(one.job, one.nominal_ms) for one in created.jobs]
            holds += [
                (job, execution.nominal_ms)
                for job in self.recurring
                for execution in self.machine.executions_of(self.machine.job(job))
                if not execution.token and execution.due_ms <= now_ms
            ]
            (tokens,) = self.apply(Claim("w", f"c{now_ms}", 10_000, holds))
            held = [(*hold, token) for hold, token in zip(holds, tokens, strict=True) if token]
            self.apply(
                Succeed([Success(*hold, b"r" * 2_048) for hold in held[2:]]),
                Fail([Failure(*hold, message="e" * 2_000) for hold in held[:2]]),
            )

    def sizes(self) -> tuple[int, int]:
        """Bytes of a snapshot, and records in it that can be listed."""
        size = sum(map(len, self.machine.dump()))
        return size, len(self.machine.list_executions(limit=100_000).items)

    def start_anew(self) -> None:
        restored = StateMachine()
        restored.load(self.replica.dump())
        self.replica = restored


BOUNDS = {
    "count": {"keep_finished": 300, "keep_dead": 30},
    "age": {"keep_finished_ms": 15_000, "keep_dead": 30},
    "bytes": {"keep_finished_bytes": 700_000, "keep_dead_bytes": 70_000},
}


@pytest.mark.parametrize("bound", BOUNDS)
def test_oper_02_whatever_bounds_retention_the_state_levels_off_alike_on_all_replicas(bound):
    """Each bound alone; what is remembered (keys, requests, claims) has short windows."""
    windows = ("idempotency_window_ms", "request_memory_ms", "claim_memory_ms")
    memories = dict.fromkeys(windows, 9_000)
    soak = Soak(ClusterSettings(**BOUNDS[bound], **memories))
    soak.go_on(40)
    sizes = [soak.sizes()]
    for _ in range(4):
        soak.go_on(40)
        soak.start_anew()
        sizes.append(soak.sizes())
        assert soak.machine.digest() == soak.replica.digest()
    created = soak.machine.counters.created
    (first_bytes, first_records), *later = sizes
    assert created > 10 * first_records, "far more has passed than is held"
    assert all(size <= 1.02 * first_bytes for size, _ in later), sizes
    assert all(records <= 1.02 * first_records for _, records in later), sizes
    store = soak.machine._store
    if bound == "bytes":
        assert store.finished_bytes <= 700_000
        assert store.dead_bytes <= 70_000
        assert sizes[-1][0] < 1_000_000, "a snapshot is about as large as what is kept"


def test_oper_02_log_time_that_stands_still_drops_nothing_for_its_age(log):
    log.settings(keep_finished_ms=1_000)
    hold = done(log)
    for _ in range(1_000):
        log.apply()
    assert log.execution(hold) is not None

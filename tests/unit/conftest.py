"""What unit tests share: a log that is written and applied at once, and a measure of memory."""

from __future__ import annotations

import tracemalloc

import pytest

from timeball.cluster.state.machine import Applied, StateMachine
from timeball.cluster.state.operations import (
    CancelJobs,
    Claim,
    ClusterSettings,
    CreateJobs,
    Expire,
    Fail,
    Failure,
    Lead,
    NewJob,
    PurgeDead,
    Release,
    Replay,
    ReportProgress,
    RetryPolicy,
    Start,
    Succeed,
    Success,
    encode_entry,
)

EPOCH_MS = 1_764_480_000_000
PLAIN = RetryPolicy(max_attempts=3, initial_ms=1_000, multiplier_pct=200, jitter_pct=0)


class Log:
    """One state machine and the virtual time of its log. Holds are (job, nominal_ms)."""

    def __init__(self) -> None:
        self.machine = StateMachine()
        self.index = 0
        self.now_ms = EPOCH_MS
        self.applied = Applied(None, [], [])

    def apply(self, *operations):
        """Apply one entry at the present virtual time and return its verdicts."""
        self.index += 1
        self.applied = self.machine.apply(self.index, encode_entry(self.now_ms, operations))
        assert self.applied.halt is None, self.applied.halt
        return self.applied.verdicts

    def pass_ms(self, ms):
        self.now_ms += ms

    def settings(self, **changes):
        (refused,) = self.apply(Lead("n1", ClusterSettings(**changes)))
        assert refused is None

    def create_all(self, *jobs, request_id=""):
        return self.apply(CreateJobs(request_id, jobs))[0].jobs

    def create(self, queue="mail", payload=b"\xc0", retry=PLAIN, **rest):
        (created,) = self.create_all(NewJob(queue, payload, retry=retry, **rest))
        return created.job, created.nominal_ms

    def claim(self, *holds, worker="w1", request_id="", lease_ms=10_000):
        return self.apply(Claim(worker, request_id, lease_ms, holds))[0]

    def claimed(self, **job):
        """A new execution, leased at once: its hold and token."""
        hold = self.create(**job)
        (token,) = self.claim(hold)
        assert token
        return hold, token

    def start(self, hold, token):
        return self.apply(Start([(*hold, token)]))[0][0]

    def report_progress(self, hold, token, progress):
        return self.apply(ReportProgress([(*hold, token, progress)]))[0][0]

    def succeed(self, hold, token, result=b"\x01", started_ms=0):
        return self.apply(Succeed([Success(*hold, token, result, started_ms)]))[0][0]

    def fail(self, hold, token, **rest):
        return self.apply(Fail([Failure(*hold, token, **rest)]))[0][0]

    def release(self, hold, token):
        return self.apply(Release([(*hold, token)]))[0][0]

    def expire(self, hold, token, timed_out=False):
        return self.apply(Expire([(*hold, token, timed_out)]))[0][0]

    def cancel(self, hold):
        return self.apply(CancelJobs([hold[0]]))[0][0]

    def replay(self, hold, token=0):
        return self.apply(Replay([(*hold, token)]))[0][0]

    def purge(self, hold, token=0):
        return self.apply(PurgeDead([(*hold, token)]))[0][0]

    def execution(self, hold):
        return self.machine.execution(*hold)

    def claim_when_due(self, hold, **rest):
        """Let time pass until the execution is due, then claim it."""
        self.now_ms = max(self.now_ms, self.execution(hold).due_ms)
        (token,) = self.claim(hold, **rest)
        assert token
        return token


@pytest.fixture
def log() -> Log:
    log = Log()
    log.settings()
    return log


@pytest.fixture
def bytes_grown_by():
    """Tell by how many bytes memory has grown over 5,000 rounds of a traffic that is warm."""

    def measure(traffic):
        traffic(2_000)
        tracemalloc.start()
        try:
            traffic(500)
            before = tracemalloc.get_traced_memory()[0]
            traffic(5_000)
            return tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()

    return measure

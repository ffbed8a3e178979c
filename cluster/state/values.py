"""Small values that records hold and dumps carry as they are."""

from __future__ import annotations

import msgspec

from timeball.cluster.state.operations import RetryPolicy
from timeball.cluster.state.verdicts import Created


class AttemptError(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What its worker said of an attempt that failed; texts of bounded length."""

    error_type: str = ""
    message: str = ""
    backtrace: str = ""


class Definition(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What executions of a job run with, as it was at `version` of the job."""

    version: int
    payload: bytes
    retry: RetryPolicy
    priority: int
    timeout_ms: int


class Remembered(msgspec.Struct, array_like=True, eq=False, gc=False):
    """Something known by a key since a log-time (epoch ms)."""

    key: str
    since_ms: int

    def weight(self) -> int:
        """Its share of the memory's limit."""
        raise NotImplementedError


class RequestRecord(Remembered):
    """A request id of `CreateJobs`, or of a trigger, and the answer."""

    answer: list[Created]
    of_trigger: bool = False

    def weight(self) -> int:
        """The number of jobs answered for."""
        return len(self.answer)


class ClaimRecord(Remembered):
    """A request id of `Claim` and the tokens that it was granted."""

    tokens: list[int]

    def weight(self) -> int:
        """The number of leases granted."""
        return len(self.tokens)

"""Small values that records hold and dumps carry as they are."""

from __future__ import annotations

import msgspec

from timeball.cluster.state.operations import RetryPolicy


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

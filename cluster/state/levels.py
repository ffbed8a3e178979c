"""Feature levels: which operations a cluster may use while its nodes run several releases.

`LEVELS` says which *feature level* each operation needs. A release supports all levels up to
`SUPPORTED_LEVEL`; the state stands at one of them, and rises by `RaiseLevel` alone. An
operation above the state's level is not proposed, and is never applied.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.operations import (
    AdvanceTimetables,
    BackfillJob,
    CancelJobs,
    Claim,
    ConfigureQueue,
    CreateJobs,
    Expire,
    Fail,
    InstructWorker,
    Lead,
    Operation,
    ParkTimetables,
    PauseJob,
    PurgeDead,
    PutJob,
    RaiseLevel,
    Release,
    Replay,
    ReportProgress,
    ResumeJob,
    SkipExpired,
    Start,
    Succeed,
    TriggerJob,
    UpdateJob,
)

LEVELS: Final[dict[type[Operation], int]] = {
    CreateJobs: 1,
    CancelJobs: 1,
    Claim: 1,
    Start: 1,
    Succeed: 1,
    Fail: 1,
    Release: 1,
    Expire: 1,
    AdvanceTimetables: 1,
    Replay: 1,
    Lead: 1,
    RaiseLevel: 1,
    PauseJob: 1,
    ResumeJob: 1,
    TriggerJob: 1,
    BackfillJob: 1,
    UpdateJob: 1,
    PutJob: 1,
    ParkTimetables: 1,
    PurgeDead: 1,
    ReportProgress: 1,
    ConfigureQueue: 1,
    SkipExpired: 1,
    InstructWorker: 1,
}
"""The feature level that each operation needs."""

FIRST_LEVEL: Final = 1
"""Where a new cluster begins."""
SUPPORTED_LEVEL: Final = 1
"""The highest level that this release supports."""


def level_of(operation: Operation) -> int:
    """The feature level that an operation needs.

    A field that a later release adds to one of them needs a level too, wherever it differs
    from its default: releases that do not know it would read over it.
    """
    return LEVELS[type(operation)]

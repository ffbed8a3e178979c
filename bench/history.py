"""The recorded history: what clients, workers and the demo itself saw, as typed events.

Every process appends to its own file, one JSON object a line, each written by one
unbuffered `write` *before* the process acts on what it records: a SIGKILL loses nothing
that the process had already let others see. `read_history` merges the files in order of
time; all writers share one machine, so their wall clocks are comparable.

Instants are epoch microseconds (`…_us`) where this harness measures, and epoch
milliseconds (`…_ms`) where they come from the protocol.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypedDict

import msgspec

from timeball.client.messages import (
    ClusterView,
    ExecutionStateName,
    ExecutionView,
    JobView,
    Schedule,
)

MAX_LINE_BYTES = 256 * 1024
"""The longest line of a history; a payload never gets into it, so lines are short."""

ReportKind = Literal["start", "complete", "fail", "release"]
Signal = Literal["start", "kill", "stop", "continue", "terminate"]


def wall_clock_us() -> int:
    """Read the wall clock, in epoch microseconds."""
    return time.time_ns() // 1000


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something seen by `source` at `at_us`."""

    at_us: int
    source: str


class CreateSent(Event, frozen=True, kw_only=True, tag="create_sent"):
    """A client is about to ask for `jobs` new jobs under one request id."""

    request_id: str
    jobs: int = 1


class JobAcknowledged(Event, frozen=True, kw_only=True, tag="job_acknowledged"):
    """The cluster answered a create; `sent_us` is when its request was first sent."""

    request_id: str
    position: int = 0
    """The job's place within the request."""
    job_id: str
    status: Literal["created", "duplicate"]
    sent_us: int
    label: str = ""
    idempotency_key: str | None = None
    schedule: Schedule | None = None
    next_fires: list[str] = []


class CancelAcknowledged(Event, frozen=True, kw_only=True, tag="cancel_acknowledged"):
    """The cluster answered a cancel."""

    job_id: str
    status: Literal["cancelled", "requested", "finished"]
    sent_us: int


class ReplayAcknowledged(Event, frozen=True, kw_only=True, tag="replay_acknowledged"):
    """The cluster answered the replay of a dead execution."""

    execution_id: str
    status: Literal["replayed", "expired", "not_dead", "unknown", "key_taken"]
    sent_us: int


class WorkerReady(Event, frozen=True, kw_only=True, tag="worker_ready"):
    """A worker is about to claim for the first time."""


class Delivered(Event, frozen=True, kw_only=True, tag="delivered"):
    """A worker received a lease; `claim_sent_us` is when it first sent the claim."""

    execution_id: str
    job_id: str
    token: int
    attempt: int
    nominal_ms: int
    due_ms: int
    claim_sent_us: int


class HandlerStarted(Event, frozen=True, kw_only=True, tag="handler_started"):
    """A worker began the work of a delivery."""

    execution_id: str
    token: int
    label: str = ""


class ReportSent(Event, frozen=True, kw_only=True, tag="report_sent"):
    """A worker is about to report on an execution."""

    kind: ReportKind
    execution_id: str
    token: int


class ReportAnswered(Event, frozen=True, kw_only=True, tag="report_answered"):
    """The cluster answered a report; `sent_us` is when it was first sent."""

    kind: ReportKind
    execution_id: str
    token: int
    verdict: Literal["accepted", "duplicate", "stale", "finished", "unknown"]
    sent_us: int


class ProcessSignalled(Event, frozen=True, kw_only=True, tag="process_signalled"):
    """The harness started, killed, stopped or continued a node or a worker."""

    process: str
    signal: Signal
    led: bool = False
    """Whether the process was the leading node at that moment."""


class LeaderObserved(Event, frozen=True, kw_only=True, tag="leader_observed"):
    """A node said that it leads and serves."""

    leader: str
    term: int


class FaultStruck(Event, frozen=True, kw_only=True, tag="fault_struck"):
    """The nemesis has just done what a fault begins with."""

    number: int
    """Counts the faults of a run from 1; the events of one fault share it."""
    kind: str
    targets: list[str]
    """The nodes that it is about."""
    leader: str | None
    """Who led and served just before."""


class FaultHealed(Event, frozen=True, kw_only=True, tag="fault_healed"):
    """The nemesis has taken back what it did: nothing is broken any more."""

    number: int


class FaultOvercome(Event, frozen=True, kw_only=True, tag="fault_overcome"):
    """All nodes are ready again, and one leads and serves."""

    number: int


class NodeEnded(Event, frozen=True, kw_only=True, tag="node_ended"):
    """A node's process has ended; `code` is negative for the signal that ended it."""

    node: str
    code: int
    asked: Literal["kill", "terminate"] | None
    """What the harness had done to have it end; None: nothing."""


class NodeComplained(Event, frozen=True, kw_only=True, tag="node_complained"):
    """A node logged an error, which it must do for defects alone."""

    node: str
    line: str


class StatusRead(Event, frozen=True, kw_only=True, tag="status_read"):
    """A node answered what becomes of a one-shot job, as of `applied_index`."""

    node: str
    job_id: str
    applied_index: int
    state: ExecutionStateName | None
    """The state of its execution; None: the node knows no such job."""


AnyEvent = (
    CreateSent
    | JobAcknowledged
    | CancelAcknowledged
    | ReplayAcknowledged
    | WorkerReady
    | Delivered
    | HandlerStarted
    | ReportSent
    | ReportAnswered
    | ProcessSignalled
    | LeaderObserved
    | FaultStruck
    | FaultHealed
    | FaultOvercome
    | NodeEnded
    | NodeComplained
    | StatusRead
)


class FinalAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster answered over HTTP when the run was over and nothing was due any more."""

    asked_us: int
    jobs: list[JobView]
    executions: list[ExecutionView]
    nodes: list[ClusterView]
    """One view from each node, asked with `digest=true`."""
    expected_nodes: int


class Stamp(TypedDict):
    """What every event has: who saw it, and when."""

    at_us: int
    source: str


class Recorder:
    """Appends events to one process's file, each durable against the death of the process."""

    def __init__(
        self, path: Path, source: str, clock_us: Callable[[], int] = wall_clock_us
    ) -> None:
        self.source = source
        self.clock_us = clock_us
        self._encoder = msgspec.json.Encoder()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def stamp(self) -> Stamp:
        """What an event of this very moment begins with."""
        return Stamp(at_us=self.clock_us(), source=self.source)

    def record(self, event: AnyEvent) -> None:
        """Write one event before returning; raises OSError when the file can't take it."""
        line = self._encoder.encode(event) + b"\n"
        assert len(line) <= MAX_LINE_BYTES
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of history were written")

    def close(self) -> None:
        """Close the file; the recorder is of no further use."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class HistoryReader:
    """Reads a growing history file from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[AnyEvent]:
        """Return the events appended since the last call; a line still unfinished waits."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text.rfind(b"\n") + 1
        self._offset += whole
        return [_decoder.decode(line) for line in text[:whole].splitlines()]


def read_history(paths: Iterable[Path]) -> list[AnyEvent]:
    """Merge history files by time; events of one file keep their order.

    The last line of a file may be torn by SIGKILL: it recorded something that its process
    never acted on, and is left out. Raises `msgspec.DecodeError` for any other damage.
    """
    events = [event for path in sorted(paths) for event in HistoryReader(path).read()]
    return sorted(events, key=lambda event: event.at_us)

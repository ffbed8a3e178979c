"""What must hold of every simulated run, judged from outside.

Two kinds of evidence: what clients and workers recorded, judged by the checkers of `bench`, which
know the protocol alone; and what each node applied and which terms it led, judged here. Nothing of
this knows how the cluster works inside, so the cluster cannot make it agree with itself.

Which clock judges. "Not before its due time" can only mean: by the clock of the cluster, and that
is the leader's. A leader whose clock is ahead fires early by every other clock, and must not fire
early by its own; log-time, which never goes back, keeps what an earlier leader's clock has shown.
So the judge's clock is the highest instant that the wall clock of any leader has shown so far. As
long as all clocks are right it is the true time. What a client asks for "after a delay" counts
from its sending by the slowest clock of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from msgspec.structs import replace
from sim_timetable_events import QUEUE

from timeball.bench.checkers import check
from timeball.bench.evidence import Run
from timeball.bench.history import AnyEvent, FinalAnswers


class Ledger:
    """What the nodes did, over all their lives; `violations` grows as soon as it is seen."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.applied_entries = 0
        self.leaderships = 0
        self._entries: dict[int, tuple[int, int]] = {}
        self._leaders: dict[int, str] = {}
        self._digests: dict[int, tuple[str, str]] = {}
        self._last: dict[tuple[str, int], int] = {}

    def violated(self, what: str) -> None:
        self.violations.append(what)

    def applied(self, node: str, life: int, index: int, term: int, entry: bytes) -> None:
        """A node has applied an entry: the same as every other node at this index."""
        self.applied_entries += 1
        found = (term, crc32(entry))
        known = self._entries.setdefault(index, found)
        if known != found:
            self.violated(f"applied: {node} applied {found} at {index}, others {known}")
        last = self._last.get((node, life), 0)
        if index <= last:
            self.violated(f"applied: {node} applied {index} after {last}")
        self._last[node, life] = index

    def installed(self, node: str, life: int, index: int) -> None:
        """A node's state was replaced by a snapshot: it must not go back."""
        last = self._last.get((node, life), 0)
        if index < last:
            self.violated(f"applied: {node} installed {index} after it applied {last}")
        self._last[node, life] = index

    def leads(self, node: str, term: int) -> None:
        self.leaderships += 1
        other = self._leaders.setdefault(term, node)
        if other != node:
            self.violated(f"leaders: both {other} and {node} lead term {term}")

    def digest(self, node: str, index: int, digest: str) -> None:
        """A node's state at an index has this hash."""
        other, known = self._digests.setdefault(index, (node, digest))
        if known != digest:
            self.violated(f"digests: the states of {other} and {node} differ at {index}")


class JudgesClock:
    """The highest instant that any leader's wall clock has shown, in microseconds."""

    def __init__(self) -> None:
        self._leaders: dict[str, Callable[[], int]] = {}
        self._highest_us = 0

    def begins(self, node: str, clock_us: Callable[[], int]) -> None:
        """A node leads; `clock_us` reads its wall clock."""
        self._leaders[node] = clock_us
        self.read_us()

    def ends(self, node: str) -> None:
        self.read_us()
        self._leaders.pop(node, None)

    def read_us(self) -> int:
        """To be called before any clock is set, too."""
        for clock_us in self._leaders.values():
            self._highest_us = max(self._highest_us, clock_us())
        return self._highest_us


def judge(events: list[AnyEvent], final: FinalAnswers) -> list[str]:
    """What clients saw, against what the cluster says in the end."""
    # Whose creations are judged as requests on timetables is no job that nobody asked for.
    others = [job for job in final.jobs if job.queue != QUEUE]
    findings = check(Run(events, replace(final, jobs=others)))
    return [
        f"{violation.rule}: {violation.subject}: {violation.detail}"
        for finding in findings.values()
        for violation in finding.violations
    ]

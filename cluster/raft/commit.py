"""Group commit: many operations, one entry of the log, one verdict for each.

An idle node writes an entry at the end of the turn in which an operation came. Under load entries
keep their distance and few are in flight, so what comes meanwhile gathers: the busier, the larger
the entries. After an entry of few items the distance is shorter, for there is little to gather, and
after a full one, for the next is full as well. Sources are asked at the very moment an entry is put
together, so that what they bind (waiting claims to ready work) is bound to the latest state.

New work stands in a queue of its own, and in a crowd goes after what brings work to its end, but
for a part of each entry that is kept for it: what has to wait does so outside, where it costs
nothing, and not half-done in the indexes of every node. Who brings it asks `congested` first. So a
busy node refuses the work that it has not begun, and is left with what it has. Waiting is measured
where it ends, at the verdict, so a saturated event loop or a disk that is slow counts as much as a
long queue. While more waits than one entry takes, the pace at which entries drain the queue tells
how long what comes now would have to wait: else a crowd would be let in before the first of it had
waited for long.

Every proposal ends: with its verdict, or with one of the errors of `errors`. Definite errors mean
that it was not and will not be applied; only OutcomeUnknown leaves that open.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from timeball.cluster.raft.errors import (
    ConsensusError,
    DiskFull,
    EntryTooLarge,
    Expired,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from timeball.cluster.raft.interface import Applied, Observer, Proposer, Replica
from timeball.cluster.raft.settings import MAX_ENTRY_WEIGHT, CommitSettings

Verdict: TypeAlias = "asyncio.Future[object]"
Source: TypeAlias = Callable[[int, int], Iterable[tuple[Any, int, Proposer]]]
Encode: TypeAlias = Callable[[int, Sequence[Any]], bytes]
Objection: TypeAlias = Callable[[Any], ConsensusError | None]

_NEW_SHARE = 0.25
_REST_SHARE = 0.5
"""What new work, and what else waits, may take of an entry that is wanted by the other or by
sources: to these is left what remains, and to each what the others do not take."""

_FULL_SHARE = 0.75
"""An entry that takes more than this of its room counts as full: the next is likely to be, too."""
_CLOSEST = 0.4
"""Of the spacing: what an entry keeps from one that held next to nothing, or was full."""
_BUSY_ITEMS = 30
"""From an entry of so many items, or more, the next one keeps the whole spacing."""

_PACE_SHARE = 0.3
"""What the latest entry counts in the pace at which the queue is drained."""

_COST_SHARE = 0.2
"""What the latest entry counts in the price of an item."""

_FAULT_PAUSE_S = 0.05

_SWEEPS = 20
"""How often in the time of one deadline the queues are looked through."""


class _Proposal(msgspec.Struct):
    op: Any
    room: int
    """What it takes of an entry."""
    size: int
    verdict: Any
    deadline: float
    begins: bool = False
    """Whether it is new work."""


class _Queue:
    """Proposals that wait, first come first served."""

    __slots__ = ("bytes", "proposals", "room")

    def __init__(self) -> None:
        self.proposals: deque[_Proposal] = deque()
        self.bytes = 0
        self.room = 0

    def __len__(self) -> int:
        return len(self.proposals)

    @property
    def oldest(self) -> float:
        """The deadline of what has waited longest."""
        return self.proposals[0].deadline if self.proposals else math.inf

    def join(self, proposal: _Proposal, *, in_front: bool = False) -> None:
        if in_front:
            self.proposals.appendleft(proposal)
        else:
            self.proposals.append(proposal)
        self.bytes += proposal.size
        self.room += proposal.room

    def leave(self) -> _Proposal:
        proposal = self.proposals.popleft()
        self.bytes -= proposal.size
        self.room -= proposal.room
        return proposal

    def kept(self, room: int, spare: int, *, whole: bool) -> tuple[int, int]:
        """What is kept for it of an entry, if its share is so much room and so many bytes;
        `whole`: at least what has waited longest goes."""
        if not self.proposals:
            return 0, 0
        first = self.proposals[0]
        least_room, least_bytes = (first.room, first.size) if whole else (0, 0)
        return max(min(self.room, room), least_room), max(min(self.bytes, spare), least_bytes)


class _Written(msgspec.Struct):
    """An entry in flight."""

    index: int
    term: int
    proposals: list[_Proposal]
    weight: int
    """What it holds."""
    room: int
    """What it took out of the queue of new work."""
    crowded: bool
    """Whether more was left in that queue: the next entry follows as soon as it can."""
    oldest: float
    """The earliest deadline of what it holds."""


def _room(weight: int) -> int:
    """What an operation takes of an entry; one without items has a place too."""
    if not 0 <= weight <= MAX_ENTRY_WEIGHT:
        raise ValueError(f"an operation has 0 to {MAX_ENTRY_WEIGHT} items, not {weight}")
    return weight or 1


class GroupCommit(Observer):
    """Gathers the operations of one node while it leads.

    `encode(log_time_ms, ops)` makes an entry, `wall_clock_ms` reads the wall clock, and
    `last_log_time` tells the log time of the last entry that the state has applied. `objection`
    tells why an operation must not be proposed, if it must not; by default nothing is refused.
    """

    def __init__(
        self,
        replica: Replica,
        encode: Encode,
        wall_clock_ms: Callable[[], int],
        settings: CommitSettings,
        *,
        last_log_time: Callable[[], int],
        clock: Callable[[], float],
        objection: Objection = lambda _op: None,
    ) -> None:
        settings.validate()
        self._replica = replica
        self._encode = encode
        self._wall_clock_ms = wall_clock_ms
        self._settings = settings
        self._last_log_time = last_log_time
        self._clock = clock
        self._objection = objection
        self._sources: list[Source] = []
        self._new = _Queue()
        self._rest = _Queue()
        self._in_flight: deque[_Written] = deque()
        self._in_flight_room = 0
        self._entry_room = settings.entry_weight
        """Items of the next entry."""
        self._item_s = 0.0
        """What applying one item of a full entry takes."""
        self._pace = 0.0
        """Room that entries take out of the queue of new work while it is crowded, per second."""
        self._paced_at = float("-inf")
        self._drained = 0
        """Room taken out since `_applied_at`, when the last entry was applied."""
        self._applied_at = float("-inf")
        self._crowded = False
        """Whether the entry applied last left something in the queue of new work."""
        self._beyond_share = False
        """Whether something in the latest entry took more than its share."""
        self._rest_went_beyond = False
        """Whether that was, the last time that something could, none of the new work."""
        self._log_time_ms = 0
        self._leading: int | None = None
        self._woken = False
        self._flush_at: asyncio.Handle | None = None
        self._not_before = float("-inf")
        self._deadline_timer: asyncio.TimerHandle | None = None
        self.entries = 0
        self.operations = 0
        replica.add_observer(self)

    @property
    def pending(self) -> int:
        """Operations that wait for an entry."""
        return len(self._new) + len(self._rest)

    @property
    def congested(self) -> bool:
        """Whether new work should come later: the oldest operation has waited for too long, or
        half of the queue is taken."""
        settings = self._settings
        if (
            2 * self.pending > settings.max_pending
            or 2 * self._pending_bytes > settings.max_pending_bytes
        ):
            return True
        now = self._clock()
        waiting = self._new.room + self._in_flight_room
        if waiting > self._pace * settings.max_wait_s and now - self._paced_at < (
            settings.deadline_s
        ):
            return True
        oldest = min(self._new.oldest, self._rest.oldest)
        if self._in_flight:
            oldest = min(oldest, self._in_flight[0].oldest)
        return oldest - settings.deadline_s < now - settings.max_wait_s

    @property
    def _pending_bytes(self) -> int:
        return self._new.bytes + self._rest.bytes

    def add_source(self, source: Source) -> None:
        """Ask `source(log_time_ms, room)` for operations whenever an entry is put together.

        It yields (operation, weight, who is told the verdict), and should do so lazily: what was
        yielded is proposed, what was not asked for stays with the source. What it yields beyond
        `room` waits for the next entry, and may be overtaken by what it yields then.
        """
        self._sources.append(source)

    def wake(self) -> None:
        """A source has something: put an entry together soon."""
        self._woken = True
        self._schedule()

    def propose(
        self,
        op: object,
        *,
        weight: int = 1,
        size: int = 256,
        as_of_ms: int = 0,
        begins: bool = False,
    ) -> Verdict:
        """Propose an operation; the future gives its verdict or raises a ConsensusError.

        `weight` is the number of numbered items in it; `size` a guess at its bytes, for the limit
        on what waits. `as_of_ms` is the present that the operation was decided by: its entry has no
        earlier log-time, though the clock be set back meanwhile. If it `begins` new work, what
        brings work to its end goes first. Raises ValueError when no entry could hold the weight.
        """
        room = _room(weight)
        verdict: Verdict = asyncio.get_running_loop().create_future()
        settings = self._settings
        if self._leading is None:
            verdict.set_exception(NotLeader(self._leader_elsewhere()))
        elif (error := self._objection(op)) is not None:
            verdict.set_exception(error)
        elif (
            self.pending >= settings.max_pending
            or self._pending_bytes + size > settings.max_pending_bytes
        ):
            verdict.set_exception(Overloaded())
        else:
            deadline = self._clock() + settings.deadline_s
            self._log_time_ms = max(self._log_time_ms, as_of_ms)
            self._queue_of(begins).join(_Proposal(op, room, size, verdict, deadline, begins))
            self._watch_deadlines()
            self._schedule()
        return verdict

    def _queue_of(self, begins: bool) -> _Queue:
        return self._new if begins else self._rest

    def _leader_elsewhere(self) -> str | None:
        return None if self._replica.role == "leader" else self._replica.leader

    # When to write.

    def _schedule(self) -> None:
        """See that an entry is put together as soon as the rules allow."""
        if self._flush_at is not None or self._leading is None:
            return
        if not (self.pending or self._woken):
            return
        if len(self._in_flight) >= self._settings.max_in_flight:
            return  # the next commit asks again
        loop = asyncio.get_running_loop()
        wait = self._not_before - self._clock()
        if wait <= 0:
            self._flush_at = loop.call_soon(self._flush)
        else:
            self._flush_at = loop.call_later(wait, self._flush)

    def _flush(self) -> None:
        self._flush_at = None
        if self._leading is None:
            return
        self._woken = False
        self._log_time_ms = max(self._log_time_ms, self._last_log_time(), self._wall_clock_ms())
        waiting = self._new.room
        try:
            proposals = self._gather()
            if proposals:
                self._write(proposals, waiting)
        except BaseException:
            self._not_before = self._clock() + _FAULT_PAUSE_S  # a lasting fault must not spin
            raise
        finally:
            self._schedule()

    def _gather(self) -> list[_Proposal]:
        """The next entry's operations: what brings work to its end, new work, those of sources."""
        room, spare = self._entry_room, self._settings.max_entry_bytes
        rest_kept, new_kept, new_bytes = self._kept(room, spare)
        found: list[_Proposal] = []
        if rest_kept + new_kept < room and new_bytes < spare:
            found = self._ask_sources(room - rest_kept - new_kept)
        else:
            self._woken = True
        room -= sum(proposal.room for proposal in found)
        alone = not (found or new_kept)
        rest, spare = self._take(self._rest, room - new_kept, spare - new_bytes, alone=alone)
        room -= sum(proposal.room for proposal in rest)
        new, _ = self._take(self._new, room, spare + new_bytes, alone=not (found or rest))
        return rest + new + found

    def _kept(self, room: int, spare: int) -> tuple[int, int, int]:
        """What is kept of an entry's room for what brings work to its end and for new work, and of
        its bytes for new work.

        What has waited longest goes now, and be it alone; then the next entry is for all again,
        and the one behind it for the other queue.
        """
        new_share, rest_share = int(room * _NEW_SHARE), int(room * _REST_SHARE)
        bytes_share = int(spare * _NEW_SHARE)
        whole = not self._beyond_share
        rest_first = not (self._rest_went_beyond and self._new)
        rest_kept, _ = self._rest.kept(rest_share, spare, whole=whole and rest_first)
        rest_goes_beyond = rest_kept > rest_share
        new_whole = whole and not rest_goes_beyond
        new_kept, new_bytes = self._new.kept(new_share, bytes_share, whole=new_whole)
        if rest_goes_beyond:
            new_kept = min(new_kept, max(room - rest_kept, 0))
        else:
            rest_kept = min(rest_kept, max(room - new_kept, 0))
        if not new_kept:
            new_bytes = 0
        if whole:
            self._rest_went_beyond = rest_goes_beyond
        self._beyond_share = rest_goes_beyond or new_kept > new_share or new_bytes > bytes_share
        return rest_kept, new_kept, new_bytes

    def _take(
        self, queue: _Queue, room: int, spare: int, *, alone: bool
    ) -> tuple[list[_Proposal], int]:
        """What fits from the head of a queue, and the bytes that are to spare then; the first
        whatever it takes, if the entry is to hold nothing else (`alone`)."""
        chosen: list[_Proposal] = []
        while queue:
            proposal = queue.proposals[0]
            if proposal.room > room and (chosen or not alone):
                break
            if proposal.size > spare and (chosen or not alone):
                break  # to encode what cannot be written would only hold up the loop
            queue.leave()
            if proposal.verdict.done():
                continue  # its caller has gone away before anything was written
            room -= proposal.room
            spare -= proposal.size
            chosen.append(proposal)
        return chosen, spare

    def _ask_sources(self, room: int) -> list[_Proposal]:
        found: list[_Proposal] = []
        deadline = self._clock() + self._settings.deadline_s
        try:
            for source in self._sources:
                for op, weight, verdict in source(self._log_time_ms, room):
                    if (error := self._objection(op)) is not None:
                        verdict.set_exception(error)
                        continue
                    proposal = _Proposal(op, _room(weight), 0, verdict, deadline)
                    if proposal.room > room:
                        self._rest.join(proposal)
                        self._woken = True  # it may have more: ask again for the next entry
                        break
                    room -= proposal.room
                    found.append(proposal)
        except BaseException:
            self._return_to_queue(found)
            raise
        self._sources = self._sources[1:] + self._sources[:1]
        return found

    def _return_to_queue(self, proposals: list[_Proposal]) -> None:
        for proposal in reversed(proposals):
            self._queue_of(proposal.begins).join(proposal, in_front=True)

    def _write(self, proposals: list[_Proposal], waiting: int) -> None:
        """Write as many of them as fit into one entry; the others wait in front.

        `waiting` is the room of the queue of new work before they were taken from it.
        """
        entry = self._encoded(proposals)
        limit = self._settings.max_entry_bytes
        while len(entry) > limit and len(proposals) > 1:
            half = len(proposals) // 2
            self._return_to_queue(proposals[half:])
            del proposals[half:]
            entry = self._encoded(proposals)
        if len(entry) > limit:
            self._fail(proposals, EntryTooLarge(len(entry), limit))
            return
        term = self._replica.term
        try:
            index = self._replica.append(entry)
        except (NotLeader, OutcomeUnknown) as error:
            self._fail(proposals, error)
            return
        except DiskFull as error:  # until another leads: sources must not be asked all the time
            self._not_before = self._clock() + _FAULT_PAUSE_S
            self._fail(proposals, error)
            return
        except BaseException:
            self._fail(proposals, OutcomeUnknown("the entry was not written in full"))
            raise
        room = max(0, waiting - self._new.room)
        weight = sum(proposal.room for proposal in proposals)
        oldest = min(proposal.deadline for proposal in proposals)
        crowded = bool(self._new)
        self._in_flight.append(_Written(index, term, proposals, weight, room, crowded, oldest))
        self._in_flight_room += room
        self._not_before = self._clock() + self._spacing_s(weight)
        self.entries += 1
        self.operations += len(proposals)
        self._watch_deadlines()

    def _spacing_s(self, weight: int) -> float:
        """How far the next entry keeps from one of so many items."""
        full = bool(self.pending) or weight > _FULL_SHARE * self._entry_room
        busy = 0.0 if full else min(1.0, weight / _BUSY_ITEMS)
        return self._settings.spacing_s * (_CLOSEST + (1 - _CLOSEST) * busy)

    def _encoded(self, proposals: list[_Proposal]) -> bytes:
        try:
            return self._encode(self._log_time_ms, [p.op for p in proposals])
        except Exception as error:
            self._fail(proposals, ConsensusError(f"nothing was proposed: {error}"))
            raise

    # How it ends.

    def on_applied(self, index: int, term: int, entry: bytes, applied: Applied) -> None:  # noqa: ARG002
        if not self._in_flight or self._in_flight[0].index != index:
            return
        written = self._in_flight.popleft()
        self._measure_pace(written)
        self._measure_cost(written)
        assert written.term == term, "another leader's entry has taken the place of ours"
        verdicts = applied.verdicts
        assert len(verdicts) == len(written.proposals), "one verdict for each operation"
        for proposal, verdict in zip(written.proposals, verdicts, strict=True):
            if not proposal.verdict.done():
                proposal.verdict.set_result(verdict)
        self._schedule()

    def _measure_pace(self, written: _Written) -> None:
        """One more entry is applied; the time since the last one counts if new work was crowded
        all that time. What the last of a crowd holds is what was left, not what it could hold."""
        self._in_flight_room -= written.room
        now = self._clock()
        if self._crowded:
            self._drained += written.room
            took = now - self._applied_at
            if took > 0 and written.crowded:
                pace = self._drained / took
                known = now - self._paced_at < self._settings.deadline_s
                self._pace += (pace - self._pace) * (_PACE_SHARE if known else 1)
                self._paced_at = now
        if now > self._applied_at:
            self._applied_at, self._drained = now, 0
        self._crowded = written.crowded

    def _measure_cost(self, written: _Written) -> None:
        """The next entries hold what is applied in time, by what this one and those before took."""
        settings = self._settings
        least = min(settings.entry_weight_least, settings.entry_weight)
        if written.weight >= least:  # else the price of an entry as such counts for too much
            item_s = self._replica.apply_s / written.weight
            self._item_s += (item_s - self._item_s) * (_COST_SHARE if self._item_s else 1)
            most = settings.entry_weight
            if self._item_s * most > settings.entry_apply_s:
                most = max(least, int(settings.entry_apply_s / self._item_s))
            self._entry_room = most

    def on_leadership(self, term: int | None) -> None:
        self._leading = term
        if term is None:
            self._fail_all("the leadership was lost")

    def on_halt(self, reason: str) -> None:  # noqa: ARG002
        self._leading = None
        self._fail_all("the node has stopped itself")

    def _fail_all(self, reason: str) -> None:
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        for written in self._in_flight:
            self._fail(written.proposals, OutcomeUnknown(reason))
        self._in_flight.clear()
        self._in_flight_room = 0
        self._crowded = False
        for queue in (self._rest, self._new):
            self._fail(queue.proposals, NotLeader(self._leader_elsewhere()))
        self._rest, self._new = _Queue(), _Queue()

    def _fail(self, proposals: Iterable[_Proposal], error: ConsensusError) -> None:
        for proposal in proposals:
            if not proposal.verdict.done():
                proposal.verdict.set_exception(error)

    def _watch_deadlines(self) -> None:
        if self._deadline_timer is None and (self._in_flight or self.pending):
            loop = asyncio.get_running_loop()
            wait = self._settings.deadline_s / _SWEEPS
            self._deadline_timer = loop.call_later(wait, self._sweep)

    def _sweep(self) -> None:
        """End what is overdue; a few sweeps in each deadline are exact enough."""
        self._deadline_timer = None
        now = self._clock()
        for written in self._in_flight:
            late = [p for p in written.proposals if p.deadline <= now]
            self._fail(late, OutcomeUnknown("the deadline passed before it was committed"))
        for queue in (self._rest, self._new):
            for _ in range(len(queue)):
                proposal = queue.leave()
                if proposal.deadline <= now:
                    self._fail([proposal], Expired())
                else:
                    queue.join(proposal)
        self._watch_deadlines()

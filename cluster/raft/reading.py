"""Reads that wait until this node has applied enough, and what is enough.

A read that names an index waits for that. A strong read waits for all that was committed when it
came: its node asks the leader for the index (see `rounds`), and answers from its own state once
that is applied there. Reads that come together share a question, and one question is under way at
a time.

Every read ends: applied, or refused by its deadline at the latest. None is answered by a guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from timeball.cluster.raft.errors import NotCaughtUp, NotConfirmed, TooManyReads
from timeball.cluster.raft.messages import Message, ReadReply, ReadRequest

if TYPE_CHECKING:
    from timeball.cluster.raft.engine import Engine

Waiter = asyncio.Future[None]


class _Read(msgspec.Struct, eq=False):
    """One read that waits."""

    waiter: Waiter
    index: int
    """What it needs, as far as that is known."""
    confirmed: bool
    """Whether it is known in full."""
    timer: asyncio.TimerHandle | None = None


class Reading:
    """The part of an engine that lets reads wait."""

    def __init__(self, engine: Engine, first_number: int) -> None:
        """Questions are numbered from `first_number` on: another in each life of a node, so that
        it cannot take what its former life was told for an answer."""
        self._engine = engine
        self._reads: dict[Waiter, _Read] = {}
        self._gathered: dict[Waiter, _Read] = {}
        """Strong reads that no question covers yet."""
        self._asked: dict[Waiter, _Read] = {}
        """Those of the question under way."""
        self._number = first_number
        """Of the question under way, or the last one."""
        self._asked_at = float("-inf")
        self._scheduled = False
        self._lowest = float("inf")
        """No confirmed read needs less."""
        self.leader_answers = False
        """Whether the leader is of a release that answers questions."""

    @property
    def waiting(self) -> int:
        """Reads that wait."""
        return len(self._reads)

    def wait(self, index: int, strong: bool) -> Waiter:
        """Wait until `index` is applied here; if `strong`, also all that is committed by now.

        The future raises TooManyReads at once; NotConfirmed when no leader confirmed in time what
        is committed; NotCaughtUp when that, or `index`, was not applied here in time.
        """
        engine = self._engine
        waiter: Waiter = engine.create_future()
        read = _Read(waiter, index, confirmed=not strong)
        if engine.halted is not None:
            waiter.set_exception(_refusal(read, engine.applied_index))
        elif read.confirmed and index <= engine.applied_index:
            waiter.set_result(None)
        elif len(self._reads) >= engine.settings.max_waiting_reads:
            waiter.set_exception(TooManyReads(len(self._reads)))
        else:
            self._enter(read)
        return waiter

    def _enter(self, read: _Read) -> None:
        engine = self._engine
        self._reads[read.waiter] = read
        read.waiter.add_done_callback(self._leave)
        read.timer = engine.call_later(
            engine.settings.read_deadline_s, lambda: self._refuse([read])
        )
        if read.confirmed:
            self._lowest = min(self._lowest, read.index)
        else:
            self._gathered[read.waiter] = read
            self._ask_soon()

    def _leave(self, waiter: Waiter) -> None:
        """It has ended: answered, refused, or its client has gone."""
        read = self._reads.pop(waiter)
        if read.timer is not None:
            read.timer.cancel()
        if self._asked.pop(waiter, None) is None:
            self._gathered.pop(waiter, None)
        self._ask_soon()

    # Asking.

    def _ask_soon(self) -> None:
        """Ask at the end of this turn, for all that come in it, unless an answer is awaited."""
        if self._gathered and not self._asked and not self._scheduled:
            self._scheduled = True
            self._engine.call_soon(self._ask)

    def _ask(self) -> None:
        self._scheduled = False
        if self._engine.halted is not None or not self._gathered or self._asked:
            return
        self._asked, self._gathered = self._gathered, {}
        self._number += 1
        with self._engine.turn():
            self._send()

    def _send(self) -> None:
        """Put the question to who leads now; without anybody to ask it has failed."""
        engine = self._engine
        self._asked_at = engine.clock()
        if engine.leadership is not None:
            engine.leadership.rounds.join(engine.name, self._number)
        elif engine.leader is None:
            self.lost("no leader is known")
        elif not self.leader_answers:
            self.lost("the leader is of a release without strong reads")
        else:
            engine.send(engine.leader, ReadRequest(engine.term, self._number))

    def tick(self, now: float) -> None:
        """Repeat a question without an answer: it, or the leader, may have been lost."""
        if self._asked and now - self._asked_at >= self._engine.settings.probe_retry_s:
            self._send()

    def lost(self, reason: str) -> None:
        """Whoever was asked, or might have been, will not answer."""
        reads = [*self._asked.values(), *self._gathered.values()]
        self._asked, self._gathered = {}, {}
        self._refuse(reads, reason)

    # Answers.

    def receive(self, peer: str, message: Message) -> bool:
        """Whether the message was a question or an answer."""
        match message:
            case ReadRequest():
                leadership = self._engine.leadership
                if leadership is not None:  # else the asker will find who leads now
                    leadership.rounds.join(peer, message.number)
            case ReadReply():
                self._on_answer(message.number, message.index)
            case _:
                return False
        return True

    def tell(self, member: str, number: int, index: int) -> None:
        """Answer a member, maybe this one: by its question's round, all up to `index` counts."""
        if member == self._engine.name:
            self._on_answer(number, index)
        else:
            self._engine.send(member, ReadReply(self._engine.term, number, index))

    def _on_answer(self, number: int, index: int) -> None:
        if number != self._number:
            return
        answered, self._asked = self._asked, {}
        for read in answered.values():
            read.index = max(read.index, index)
            read.confirmed = True
            self._lowest = min(self._lowest, read.index)
        self.applied()
        self._ask_soon()

    # Ends.

    def applied(self) -> None:
        """The node has applied more: answer those who waited for it."""
        applied = self._engine.applied_index
        if applied < self._lowest:
            return
        self._lowest = float("inf")
        for waiter, read in self._reads.items():
            if not read.confirmed or waiter.done():
                continue
            if read.index <= applied:
                waiter.set_result(None)
            else:
                self._lowest = min(self._lowest, read.index)

    def end(self) -> None:
        """The node goes, or has stopped itself: nobody waits for it."""
        self._refuse(list(self._reads.values()))

    def _refuse(self, reads: Iterable[_Read], reason: str = "") -> None:
        for read in reads:
            if not read.waiter.done():
                read.waiter.set_exception(_refusal(read, self._engine.applied_index, reason))


def _refusal(read: _Read, applied: int, reason: str = "") -> NotCaughtUp | NotConfirmed:
    if read.confirmed:
        return NotCaughtUp(read.index, applied)
    return NotConfirmed(reason or "no majority confirmed in time that its leader still leads")

"""Faults that production has mended, put back for a run: the checkers have to see them.

Each is a patch of production code from outside; production knows nothing of it. The first ones are
how pysyncobj behaves out of the box (F… are the ids of `tests/raft`), the others take away one rule
each; those of timetables come from the table of the mutants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from msgspec.structs import replace
from sim_disk import AgeingFile
from sim_interpreted import is_interpreted
from sim_mutants import BY_NAME, without_rule

from timeball.cluster.dispatch import leases as dispatch_leases
from timeball.cluster.dispatch.admission import Gate
from timeball.cluster.dispatch.claims import WaitingClaims
from timeball.cluster.node import Node
from timeball.cluster.raft import candidacy, following, leading, progress, storage
from timeball.cluster.raft.entry import Entry
from timeball.cluster.raft.journal import Journal
from timeball.cluster.raft.messages import AppendReply
from timeball.cluster.state import leases, overlap
from timeball.cluster.state.transitions import TERMINAL
from timeball.cluster.state.verdicts import Verdict

Patch = tuple[Any, str, Callable[..., Any]]


def _nothing(*_: object) -> None:
    return


def _acks_before_sync() -> list[Patch]:
    """F1: what is written counts as durable, and is never synced."""

    honest = Journal.sync

    def sync(self: Journal) -> int:
        with mock.patch.object(AgeingFile, "sync", _nothing):
            return honest(self)

    return [(Journal, "sync", sync)]


def _start_without_sync() -> list[Patch]:
    """What a process left unsynced in the kernel's memory is vouched for by the next."""
    return [(Journal, "_secure", lambda _journal: None)]


def _votes_not_durable() -> list[Patch]:
    """F1: term and vote are known to memory alone."""

    def save_vote(self: storage.Storage, term: int, vote: str | None) -> None:
        self.metadata = replace(self.metadata, term=term, vote=vote)

    return [(storage.Storage, "save_vote", save_vote)]


def _terms_ignored_on_acks() -> list[Patch]:
    """F6: an acknowledgement counts whatever the term in which it was given."""
    agree = candidacy.Candidacy.agree_on_term

    def agree_on_term(self: candidacy.Candidacy, peer: str, message: Any) -> bool:
        if isinstance(message, AppendReply) and message.term < self._engine.term:
            message.index = min(message.index, self._engine.last_index)
            return self._engine.leadership is not None
        return agree(self, peer, message)

    return [(candidacy.Candidacy, "agree_on_term", agree_on_term)]


def _rewind_and_truncate() -> list[Patch]:
    """F7: an ack moves `next` back, and a follower cuts whatever follows the entry before."""
    accepted = progress.Progress.accepted

    def rewinding(self: progress.Progress, index: int) -> bool:
        news = accepted(self, index)
        self.next = index + 1
        return news

    def take(self: following.Following, message: Any) -> None:
        engine, log = self._engine, self._engine.log
        index = message.prev_index
        if not message.entries or index < log.base_index:
            return
        if index < log.last_index:
            engine.storage.truncate_from(index + 1)
        for term, data in message.entries:
            index += 1
            engine.write(Entry(data, index, term))

    return [(progress.Progress, "accepted", rewinding), (following.Following, "_take", take)]


def _any_log_may_lead() -> list[Patch]:
    """A vote is given without a look at the candidate's log (Raft, §5.4.1)."""
    return [(candidacy, "log_is_current", lambda *_: True)]


def _no_barrier() -> list[Patch]:
    """Duties begin at the election, with earlier entries unapplied (O1)."""
    begin = leading.Leadership.begin

    def begin_at_once(self: leading.Leadership) -> None:
        begin(self)
        if not self.announced:
            self.announced = True
            term = self._engine.term
            self._engine._notify(lambda observer: observer.on_leadership(term))

    return [(leading.Leadership, "begin", begin_at_once)]


def _stale_tokens_count() -> list[Patch]:
    """A completion counts whoever holds the execution by now."""
    judge = leases._judge

    def lenient(store: Any, execution: Any, token: int, reported: Any) -> Verdict:
        verdict = judge(store, execution, token, reported)
        stale = verdict is Verdict.STALE and execution.state not in TERMINAL
        return Verdict.ACCEPTED if stale else verdict

    return [(leases, "_judge", lenient)]


def _early_answers() -> list[Patch]:
    """A claim that was leased ahead of time is answered at once."""

    def hand_over(self: WaitingClaims, waiter: Any, held: list[Any]) -> None:
        self._answer(waiter, held)

    return [(WaitingClaims, "_hand_over", hand_over)]


def _leases_never_end() -> list[Patch]:
    """No lease runs out: what a worker took with it is never delivered again."""
    return [(dispatch_leases.Leases, "advance", lambda *_: False)]


def _followers_differ() -> list[Patch]:
    """What an entry does depends on the node that applies it."""
    on_applied = Node.on_applied

    def counting(self: Node, index: int, *rest: Any) -> None:
        on_applied(self, index, *rest)
        if not self.serving:
            self.state.counters.stale += 1

    return [(Node, "on_applied", counting)]


def _none_waits() -> list[Patch]:
    """Nothing holds an occurrence back for another one: neither the leader nor the state."""
    return [(overlap.waits, "__code__", (lambda _execution: False).__code__)]


def _limits_forgotten() -> list[Patch]:
    """Neither the state nor the leader knows what the settings of a queue allow."""
    return [
        (leases, "admit", lambda _store, _execution: True),
        (Gate, "room", lambda _gate, _now_ms: 1_000),
    ]


UNSAFE: dict[str, Callable[[], list[Patch]]] = {
    "acks-before-sync": _acks_before_sync,
    "start-without-sync": _start_without_sync,
    "votes-not-durable": _votes_not_durable,
    "terms-ignored-on-acks": _terms_ignored_on_acks,
    "rewind-and-truncate": _rewind_and_truncate,
    "any-log-may-lead": _any_log_may_lead,
    "no-barrier": _no_barrier,
    "stale-tokens-count": _stale_tokens_count,
    "early-answers": _early_answers,
    "leases-never-end": _leases_never_end,
    "followers-differ": _followers_differ,
    "none-waits": _none_waits,
    "limits-forgotten": _limits_forgotten,
    **{name: partial(without_rule, name) for name in BY_NAME},
}
"""By name, what each puts back."""


@contextlib.contextmanager
def unsafe(name: str | None) -> Iterator[None]:
    """Put a fault back for the time of the block; None: nothing."""
    assert name is None or is_interpreted(), "a compiled function can not be replaced"
    with contextlib.ExitStack() as stack:
        for target, attribute, replacement in UNSAFE[name]() if name is not None else ():
            stack.callback(setattr, target, attribute, getattr(target, attribute))
            setattr(target, attribute, replacement)
        yield

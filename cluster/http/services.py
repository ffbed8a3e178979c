"""What handlers need of their node, handed in as one value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from timeball.client.errors import NotFound, OutcomeUnknown
from timeball.cluster.dispatch.dispatcher import Dispatcher
from timeball.cluster.history import History
from timeball.cluster.http.codec import check_queue_name
from timeball.cluster.http.freshness import wait_until_fresh
from timeball.cluster.http.waiting import Ends
from timeball.cluster.raft.errors import OutcomeUnknown as ConsensusOutcomeUnknown
from timeball.cluster.raft.errors import Overloaded
from timeball.cluster.raft.interface import Replica
from timeball.cluster.settings import NodeSettings, Settings
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import AnyOperation

Propose = Callable[[AnyOperation], Awaitable[Any]]


class Services(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of one node, as far as requests touch them."""

    settings: Settings
    me: NodeSettings
    state: StateMachine
    replica: Replica
    history: History
    """What happened lately."""
    ends: Ends
    """Who waits for an execution to end."""
    dispatcher: Dispatcher
    propose: Propose
    """Puts one operation into the log; answers with its verdict, or raises what it means."""
    congested: Callable[[], bool]
    """Whether operations wait so long that new jobs should come later."""
    serving: Callable[[], bool]
    """Whether this node leads and has taken up its duties."""
    take_snapshot: Callable[[], int]
    """Begins a snapshot of this node's state; the position that it covers."""
    ready: Callable[[], bool]
    """Whether this node has caught up and is in touch with a majority."""
    wall_clock_ms: Callable[[], int]

    @property
    def applied_index(self) -> int:
        """How far the state is that answers are given from."""
        return self.replica.applied_index

    def now_ms(self) -> int:
        """The present as the log has it: never before what is applied, if a clock steps back."""
        return max(self.wall_clock_ms(), self.state.log_time_ms)

    async def wait_until_fresh(self, parameters: dict[str, str]) -> None:
        """Let a read wait as its parameters ask; see `freshness`."""
        await wait_until_fresh(parameters, self.replica)

    def require_room(self) -> None:
        """Raise Overloaded while the node is congested: before anything is spent on new jobs.

        Claims and reports are not asked: they are what a congested node gets its work done by.
        """
        if self.congested():
            raise Overloaded

    def require_queue(self, queue: str, prefix: str = "") -> None:
        """Raise unless the cluster serves the queue that the field `queue` after `prefix` names.

        InvalidRequest: nothing can be named so; NotFound: it is outside of the configured ones,
        and they are a closed list.
        """
        check_queue_name(queue, prefix)
        queues = self.settings.queues
        if queues is not None and queue not in queues:
            detail = f"this cluster does not serve a queue {queue!r}"
            raise NotFound.at(f"{prefix}queue", detail)

    def require_known_queue(self, queue: str | None) -> None:
        """Raise NotFound for a queue that is neither configured nor holds any job."""
        if queue is None or queue in self.state.queues or queue in (self.settings.queues or ()):
            return
        raise NotFound.at("queue", f"no queue {queue!r}")


async def propose_all(propose: Propose, operations: Sequence[AnyOperation]) -> list[Any]:
    """Propose the operations that one request was split into; verdicts in order.

    When some failed and others may have been applied, the outcome of the whole is unknown,
    whatever each error says of its own part.
    """
    if len(operations) == 1:  # nearly always
        return [await propose(operations[0])]
    outcomes = await asyncio.gather(
        *(propose(operation) for operation in operations), return_exceptions=True
    )
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        if not isinstance(failure, Exception):
            raise failure
    if not failures:
        return outcomes
    unknown = len(failures) < len(outcomes) or any(
        isinstance(failure, ConsensusOutcomeUnknown | OutcomeUnknown) for failure in failures
    )
    if unknown:
        raise OutcomeUnknown("only a part of the batch is known to be applied") from failures[0]
    raise failures[0]

"""One node, put together: state machine, consensus, group commit, dispatcher and HTTP.

start    bind both addresses, load what is on disk, join the cluster
lead     consensus gives a term  →  propose Lead(settings)  →  once it is applied in that
         term, the dispatcher takes up its duties and the node serves
step down consensus takes it back →  the dispatcher stops within the same turn
stop     take no new connections, hand leadership over, answer what is open, leave
halt     consensus stopped itself: end the process, saying why
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import random
import socket
from collections.abc import Callable, Mapping
from typing import Any

from timeball.cluster.clocks import ClockWatch
from timeball.cluster.dispatch.dispatcher import Dispatcher
from timeball.cluster.dispatch.seams import DispatchSettings
from timeball.cluster.history import History
from timeball.cluster.http.application import Application
from timeball.cluster.http.eager import carried_out
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.nouns import all_routes
from timeball.cluster.http.server import HttpServer
from timeball.cluster.http.services import Services
from timeball.cluster.http.waiting import Ends
from timeball.cluster.levels import LevelKeeper, objection_at
from timeball.cluster.metrics import Metrics
from timeball.cluster.raft.commit import GroupCommit
from timeball.cluster.raft.consensus import Consensus
from timeball.cluster.raft.disk import Disk
from timeball.cluster.raft.interface import Applied, Member, Observer
from timeball.cluster.raft.network import Network
from timeball.cluster.raft.settings import CommitSettings, RaftSettings
from timeball.cluster.settings import Address, ConfigError, Settings
from timeball.cluster.stalls import StallWatch
from timeball.cluster.state import operations, store
from timeball.cluster.state.machine import Applied as StateApplied
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.sizes import count_items, guess_bytes

_log = logging.getLogger(__name__)

EXIT_CONFIG = 2
EXIT_DAMAGED = 3
EXIT_HALTED = 4
READY_LAG = 100
"""A node is ready while at most so many entries that it knows to be committed are not applied."""
OFFICE_RETRY_S = 0.05
"""The pause before a new leader whose first operation failed proposes it again."""
EXECUTIONS_BOUND = 375
"""Of one claim, and of all that one entry binds: half of a full one. A third would do if nothing
had piled up; what has must be taken up faster than new jobs come in."""
DISPATCH = DispatchSettings(
    max_executions_per_claim=EXECUTIONS_BOUND, executions_per_entry=EXECUTIONS_BOUND
)
YOUNG_OBJECTS, YOUNG_TO_MIDDLE, MIDDLE_TO_OLD = 10_000, 50, 100_000
"""Thresholds of the garbage collector (see `_tame_collector`)."""


class Node(Observer):
    """One member of the cluster, in this process."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        wall_clock_ms: Callable[[], int],
        clock: Callable[[], float],
        rng: random.Random,
        network: Network | None = None,
        disk: Disk | None = None,
        raft: RaftSettings | None = None,
        member: Callable[[StateMachine], Member] | None = None,
        dispatch: DispatchSettings = DISPATCH,
    ) -> None:
        """Build every part; nothing is opened before `start`. Raises ConfigError.

        Without `network` and `disk` the members speak TCP and write to the real disk; without
        `raft` consensus has its defaults. `member` makes another consensus than ours.
        """
        self.settings = settings
        self.me = settings.node(name)
        self.wall_clock_ms = wall_clock_ms
        self._stop_requested = asyncio.Event()
        self._stopping = False
        self._halted: str | None = None
        self._serving_term: int | None = None
        self.state = StateMachine()
        self.consensus: Member
        if member is not None:
            self.consensus = member(self.state)
        else:
            members = {node.name: (node.raft.host, node.raft.port) for node in settings.nodes}
            self.consensus = Consensus(
                name,
                members,
                settings.data_dir(name),
                settings.secret,
                self.state,
                raft
                or RaftSettings(
                    cluster=settings.name,
                    min_free_bytes=settings.process.min_free_mib * 1024 * 1024,
                ),
                clock=clock,
                rng=rng,
                level=self.state.supported_level,
                network=network,
                disk=disk,
            )
        # Before the group commit, which tells verdicts: who hears one may ask what happened.
        self.history = History(
            self.state, settings.process.event_history, settings.process.event_history_bytes
        )
        self.consensus.add_observer(self.history)
        self.ends = Ends()
        self.consensus.add_observer(self.ends)
        self.commit = GroupCommit(
            self.consensus,
            self.state.encode,
            wall_clock_ms,
            CommitSettings(
                spacing_s=settings.process.commit_spacing_ms / 1000,
                entry_weight=settings.process.commit_entry_items,
            ),
            last_log_time=lambda: self.state.log_time_ms,
            clock=clock,
            objection=objection_at(self.state),
        )
        self.levels = LevelKeeper(self.state, self.consensus, self.commit.propose)
        self.stalls = StallWatch()
        self.metrics = Metrics(self)
        self.clocks = ClockWatch(wall_clock_ms, self.metrics.clock_stepped)
        self.dispatcher = Dispatcher(
            self.state,
            self.commit,
            wall_clock_ms,
            settings=dispatch,
            instruments=self.metrics.dispatch,
        )
        self.stalls.observe_ms.append(self.metrics.loop_stall.observe_ms)
        self.consensus.observe_fsync.append(self.metrics.journal_sync_s.observe)
        # After the group commit, so that proposals can be made once leadership is told.
        self.consensus.add_observer(self)
        self.forwarder = Forwarder(self._leader_url, self.me.http_url)
        self.application = self._make_application()
        self.http = HttpServer(
            self.application,
            self.me.http.host,
            self.me.http.port,
            wall_clock_ms=wall_clock_ms,
            connections_per_peer=settings.process.connections_per_peer,
        )

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open files and ports and join the cluster.

        Raises ConfigError for an address that cannot be taken, Damaged or Misconfigured for
        files that cannot be trusted, Halted for those of a newer release, and OSError for files
        that cannot be read.
        """
        try:
            self.http.bind()
        except OSError as error:
            raise self._address_error("http", self.me.http, error) from error
        try:
            await self.consensus.start()
            await self.forwarder.start()
            await self.http.start()
        except OSError as error:
            await self._close()
            unresolved = isinstance(error, socket.gaierror)
            if unresolved or (error.filename is None and error.errno in _ADDRESS_ERRORS):
                raise self._address_error("raft", self.me.raft, error) from error
            raise
        except BaseException:
            await self._close()
            raise
        _tame_collector()
        self.stalls.start(asyncio.get_running_loop())
        self.clocks.start(asyncio.get_running_loop())
        core = "interpreted" if store.__file__.endswith(".py") else "compiled"
        _log.info("%s serves at %s (core: %s)", self.me.name, self.me.http_url, core)

    async def run(self) -> int:
        """Serve until asked to stop or halted; the exit code."""
        await self._stop_requested.wait()
        if self._halted is None:
            await self._leave()
        else:
            await self._close()
        if self._halted is not None:
            return EXIT_HALTED
        _log.info("%s has ended", self.me.name)
        return 0

    def request_stop(self) -> None:
        """Ask the node to hand over, drain and leave; `run` then returns."""
        self._stop_requested.set()

    async def _leave(self) -> None:
        _log.info("%s is stopping", self.me.name)
        self._stopping = True
        await self.http.stop_accepting()
        self.history.close()
        self.ends.close()
        self.forwarder.end_claims()
        await self.consensus.stop()
        if not await self.http.wait_idle(self.settings.process.drain_ms / 1000):
            _log.warning("%s leaves %d requests unanswered", self.me.name, self.http.open_requests)
        await self._close()

    async def _close(self) -> None:
        self.stalls.stop()
        self.clocks.stop()
        self.history.close()
        self.ends.close()
        await self.http.stop()
        await self.forwarder.stop()
        await self.consensus.stop()

    def _address_error(self, kind: str, address: Address, error: OSError) -> ConfigError:
        reason = errno.errorcode.get(error.errno or 0, "")
        text = {
            "EADDRINUSE": "is already in use",
            "EADDRNOTAVAIL": "is not an address of this machine",
            "EACCES": "may not be used by this user",
        }.get(reason, f"cannot be used: {error.strerror or error}")
        return ConfigError(self.settings.path, f"node {self.me.name}, {kind}", f"{address} {text}")

    # --- leadership --------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """Whether this node leads and has taken up its duties."""
        term = self._serving_term
        return term is not None and term == self.consensus.leading_term

    @property
    def ready(self) -> bool:
        """Whether this node is of use to clients (see protocol: `GET /readyz`)."""
        if self._stopping or self._halted is not None or not self.consensus.quorum_seen:
            return False
        if self.consensus.standing != "voter" or self.consensus.room != "plenty":
            return False
        if self.consensus.known_commit_index - self.consensus.applied_index > READY_LAG:
            return False
        return self.serving if self.consensus.role == "leader" else self._leader_url() is not None

    def on_leadership(self, term: int | None) -> None:
        """Begin or end the duties of a leader."""
        self._serving_term = None
        self.dispatcher.stop()
        self.levels.stop()
        if term is not None:
            _log.info("%s leads in term %d", self.me.name, term)
            self._take_office(term)

    def _take_office(self, term: int) -> None:
        if self.consensus.leading_term != term:
            return
        lead = operations.Lead(self.me.name, self.settings.limits.for_state())
        verdict = self.commit.propose(lead)
        verdict.add_done_callback(lambda done: self._took_office(term, done))

    def _took_office(self, term: int, verdict: asyncio.Future[object]) -> None:
        error = verdict.exception()
        if self.consensus.leading_term != term:
            return
        if error is not None:
            _log.warning("%s could not take office, and tries again: %s", self.me.name, error)
            asyncio.get_running_loop().call_later(OFFICE_RETRY_S, self._take_office, term)
            return
        if verdict.result() is not None:
            _log.error("the settings of %s were refused: %s", self.me.name, verdict.result())
        self._serving_term = term
        self.dispatcher.start(term)
        self.levels.start()

    def on_applied(
        self,
        index: int,  # noqa: ARG002 — the interface of observers
        term: int,  # noqa: ARG002
        entry: bytes,  # noqa: ARG002
        applied: Applied,
    ) -> None:
        """Let the dispatcher derive the timers of what has changed."""
        if self._serving_term is not None:
            assert isinstance(applied, StateApplied), "the node's own state machine applied it"
            self.dispatcher.applied(applied)

    def on_halt(self, reason: str) -> None:
        """Consensus has stopped itself: nothing more can be done here."""
        _log.critical("%s halts: %s", self.me.name, reason)
        self._halted = reason
        self._serving_term = None
        self.dispatcher.stop()
        self.levels.stop()
        self._stop_requested.set()

    def _leader_url(self) -> str | None:
        leader = None if self._stopping else self.consensus.leader
        return None if leader is None else self.settings.node(leader).http_url

    # --- measured ----------------------------------------------------------------------------

    @property
    def open_requests(self) -> int:
        """Requests that are being answered."""
        return self.http.open_requests

    @property
    def answers(self) -> Mapping[tuple[str, str, int], int]:
        """Answers given, by method, route and status."""
        return self.application.answers

    # --- parts -------------------------------------------------------------------------------

    def _make_application(self) -> Application:
        services = Services(
            settings=self.settings,
            me=self.me,
            state=self.state,
            replica=self.consensus,
            history=self.history,
            ends=self.ends,
            dispatcher=self.dispatcher,
            propose=self.propose,
            take_snapshot=self.consensus.take_snapshot,
            congested=lambda: self.commit.congested,
            serving=lambda: self.serving,
            ready=lambda: self.ready,
            wall_clock_ms=self.wall_clock_ms,
        )
        return Application(
            all_routes(services, self.metrics.registry),
            serving=lambda: self.serving,
            has_room=lambda: self.consensus.room == "plenty",
            applied_index=lambda: self.consensus.applied_index,
            forwarder=self.forwarder,
        )

    async def propose(self, operation: operations.AnyOperation) -> Any:
        """Put one operation into the log; its verdict, or one of the errors of consensus."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        proposed = self.commit.propose(
            operation,
            weight=count_items(operation),
            size=guess_bytes(operation),
            begins=isinstance(operation, operations.BEGINNING),
        )
        # Whoever waits may go: what has come whole is written all the same.
        verdict = await carried_out(proposed)
        self.metrics.commit.observe_ms((loop.time() - began) * 1000)
        return verdict


_ADDRESS_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)


def _tame_collector() -> None:
    """Keep full collections from stalling the event loop.

    A full collection walks every container, and takes tens of milliseconds in a node that
    holds much. What start-up made never dies: freeze it. Records carry no collector
    headers, so what remains tracked is mostly short-lived; the two younger generations,
    which cost microseconds, are collected as usual, and the oldest practically never.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_TO_MIDDLE, MIDDLE_TO_OLD)

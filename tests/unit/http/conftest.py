"""The HTTP interface on a state machine in this process: no sockets, no consensus, virtual time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

from timeball.cluster.dispatch.catchup import plan
from timeball.cluster.http.application import Application
from timeball.cluster.http.changes import Changes
from timeball.cluster.http.claims import Claims
from timeball.cluster.http.dead import DeadLetters
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.executions import Executions
from timeball.cluster.http.explain import Explanations
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.jobs import Jobs
from timeball.cluster.http.occurrences import Occurrences
from timeball.cluster.http.queues import Queues
from timeball.cluster.http.services import Services
from timeball.cluster.http.waiting import Ends
from timeball.cluster.http.workers import Workers
from timeball.cluster.state.operations import AdvanceTimetables


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def field(self) -> str:
        """The field that a problem blames."""
        (error,) = self.body["errors"]
        return error["field"]


class Replica:
    """Reads are always fresh here; how often somebody wanted certainty is counted."""

    applied_index = 7

    def __init__(self) -> None:
        self.strong_reads = 0

    async def read(self, index: int, *, strong: bool) -> None:
        self.strong_reads += strong


class Dispatch:
    """What a leader knows besides."""

    def ready_depth(self, queue: str) -> int:
        return 3

    def oldest_due_ms(self, queue: str) -> int:
        return 17

    def waiting_claims(self, queue: str) -> int:
        return 2

    def held_back_by(self, queue: str) -> list[str]:
        return ["paused"]


class Desk:
    """A leader's handlers. `before` is called ahead of each proposal."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.replica = Replica()
        self.ends = Ends()
        self.leads = True
        self.before: Callable[[Any], None] = lambda _operation: None
        self.proposed: list[Any] = []
        services: Any = Services(
            settings=SimpleNamespace(queues=None),  # type: ignore[arg-type]
            me=SimpleNamespace(name="n1"),  # type: ignore[arg-type]
            state=log.machine,
            replica=self.replica,  # type: ignore[arg-type]
            history=None,  # type: ignore[arg-type]
            ends=self.ends,
            dispatcher=Dispatch(),  # type: ignore[arg-type]
            propose=self._propose,
            congested=lambda: False,
            serving=lambda: self.leads,
            take_snapshot=lambda: 0,
            ready=lambda: True,
            wall_clock_ms=lambda: log.now_ms,
        )
        self.services = services
        nouns = (
            *(Jobs, Changes, Occurrences, Queues, Explanations, Executions, Claims, DeadLetters),
            Workers,
        )
        self.application = Application(
            [route for noun in nouns for route in noun(services).routes()],
            serving=lambda: self.leads,
            has_room=lambda: True,
            applied_index=lambda: 7,
            forwarder=Forwarder(lambda: None, "http://here"),
        )

    async def _propose(self, operation: Any) -> Any:
        self.before(operation)
        self.proposed.append(operation)
        verdict = self.log.apply(operation)[0]
        self.ends.on_applied(self.log.index, 1, b"", self.log.applied)
        return verdict

    async def ask(
        self, method: str, target: str, body: Any = None, *, form: str = "json", **headers: str
    ) -> Reply:
        """One request; underscores in the names of headers stand for dashes."""
        path, _, query = target.partition("?")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = b""
        coder: Any = msgspec.json if form == "json" else msgspec.msgpack
        if body is not None:
            raw = body if isinstance(body, bytes) else coder.encode(body)
            sent["content-type"] = f"application/{form}"
        request = Request(method=method, path=path, query=query, headers=sent, body=raw)
        response = await self.application.handle(request)
        return Reply(response.status, coder.decode(response.body), response.headers)

    async def create(self, schedule: Any = None, **rest: Any) -> str:
        reply = await self.ask("POST", "/v1/jobs", {"schedule": schedule, **rest})
        assert reply.status == 201, reply
        return reply.body["job_id"]

    async def put(self, name: str, schedule: Any, **rest: Any) -> Reply:
        headers = {key: rest.pop(key) for key in ("if_match", "if_none_match") if key in rest}
        body = {"schedule": schedule, **rest}
        return await self.ask("PUT", f"/v1/jobs/by-name/{name}", body, **headers)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and the leader move on what has come due."""
        self.log.pass_ms(ms)
        now_ms = self.log.now_ms
        machine = self.log.machine
        for job in machine.list_jobs(after=None, limit=1_000, queue=None, state=None).items:
            while True:
                room = machine.catch_up_room(now_ms)
                step = plan(job, now_ms, grace_ms=10_000, limit=100, room=room)
                if step is None:
                    break
                self.log.apply(AdvanceTimetables([step]))


@pytest.fixture
def desk(log) -> Desk:
    return Desk(log)

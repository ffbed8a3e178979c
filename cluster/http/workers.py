"""Workers: tell them to claim no more, or to end, and look at what they are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.freshness import FRESHNESS
from timeball.cluster.http.instants import render_instant
from timeball.cluster.http.paging import read_query
from timeball.cluster.http.problems import cluster_full
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.state.operations import QUIET, TERMINATE, InstructWorker
from timeball.cluster.state.verdicts import ChangeStatus

FULL = "as many workers are told something as may be; resume some, or wait: it is kept for a day"
_NOT_TOLD = ("", 0)

_nothing = BodyDecoder(messages.InstructionRequest, messages.InstructionRequest())


class Workers:
    """The handlers of workers."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="GET", pattern="/v1/workers/{worker}", handler=self.get),
            *(
                Route(
                    method="POST",
                    pattern=f"/v1/workers/{{worker}}/{verb}",
                    handler=handler,
                    leader=True,
                    write=True,
                )
                for verb, handler in (
                    ("quiet", self.quiet),
                    ("terminate", self.terminate),
                    ("resume", self.resume),
                )
            ),
        ]

    async def get(self, request: Request) -> Answered:
        """What a worker is told. Any name may be a worker's."""
        parameters = read_query(request.query, FRESHNESS)
        name = _named(request)
        await self._services.wait_until_fresh(parameters)
        return self._answer(name)

    async def quiet(self, request: Request) -> Answered:
        """Claim no more, and finish what it has."""
        return await self._instruct(request, QUIET)

    async def terminate(self, request: Request) -> Answered:
        """The same, and end then."""
        return await self._instruct(request, TERMINATE)

    async def resume(self, request: Request) -> Answered:
        """Nothing any more."""
        return await self._instruct(request, "")

    async def _instruct(self, request: Request, instruction: str) -> Answered:
        read_query(request.query, ())
        _nothing.decode(request.body, request.body_form)
        name = _named(request)
        status: ChangeStatus = await self._services.propose(InstructWorker(name, instruction))
        if status is ChangeStatus.FULL:
            raise cluster_full(FULL)
        assert status is not ChangeStatus.INVALID, "the state takes every name that is let in"
        return self._answer(name)

    def _answer(self, name: str) -> Answered:
        services = self._services
        instruction, since_ms = services.state.instructions.get(name, _NOT_TOLD)
        return Answered(
            messages.WorkerDetails(
                name=name,
                instruction=cast("messages.Instruction | None", instruction or None),
                instructed_at=render_instant(since_ms) if instruction else None,
                applied_index=services.applied_index,
            )
        )


def instruction_of(
    instructions: Mapping[str, tuple[str, int]], worker: str
) -> messages.Instruction | None:
    """What a worker is told, as answers have it."""
    instruction, _ = instructions.get(worker, _NOT_TOLD)
    return cast("messages.Instruction | None", instruction or None)


def _named(request: Request) -> str:
    try:
        return msgspec.convert(request.parameters["worker"], messages.WorkerName)
    except msgspec.ValidationError as error:
        raise InvalidRequest.at("worker", f"a worker's name: {error}") from error

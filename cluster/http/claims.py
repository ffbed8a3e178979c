"""Claims: lease due executions to a worker, waiting for them if need be."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from timeball.client import messages
from timeball.client.errors import OutcomeUnknown
from timeball.cluster.dispatch.errors import TooManyClaims
from timeball.cluster.dispatch.messages import ClaimRequest
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.exchange import Answered, Request, read_request_id
from timeball.cluster.http.executions import answer_report, report_all
from timeball.cluster.http.paging import read_query
from timeball.cluster.http.problems import cluster_full
from timeball.cluster.http.routes import Route
from timeball.cluster.http.services import Services
from timeball.cluster.http.views import delivery
from timeball.cluster.http.workers import instruction_of
from timeball.cluster.state import operations

_claim: Final = BodyDecoder(messages.Claim)
_withdrawals: Final = BodyDecoder(messages.Withdrawals)

Hold = tuple[int, int, int]
"""Job, nominal time and token of what is leased."""


class Claims:
    """The handler of claims."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="POST", pattern="/v1/claims", handler=self.claim, leader=True, write=True),
            *[
                Route(method="POST", pattern=pattern, handler=handler, leader=True, write=True)
                for pattern, handler in (
                    ("/v1/claims/withdraw", self.withdraw_many),
                    ("/v1/claims/{request_id}/withdraw", self.withdraw),
                )
            ],
        ]

    async def claim(self, request: Request) -> Answered:
        """Lease up to `max_executions`; what cannot be delivered is given back at once."""
        read_query(request.query, ())
        body: messages.Claim = _claim.decode(request.body, request.body_form)
        self._services.require_queue(body.queue)
        request_id = read_request_id(request, body.request_id) or uuid.uuid4().hex
        dispatcher = self._services.dispatcher
        try:
            grants = await dispatcher.claim(
                ClaimRequest(
                    queue=body.queue,
                    worker=body.worker,
                    request_id=request_id,
                    max_executions=body.max_executions,
                    wait_ms=body.wait_ms,
                    lease_ms=body.lease_ms,
                    offered=frozenset(body.tags),
                )
            )
        except TooManyClaims as error:
            raise cluster_full(str(error)) from error
        form = request.answer_form
        deliveries = [
            delivery(grant.execution, grant.token, grant.attempt, grant.lease_ms, form)
            for grant in grants
        ]
        instruction = None
        if instructions := self._services.state.instructions:
            instruction = instruction_of(instructions, body.worker)
        return Answered(
            message=messages.Claimed(request_id, deliveries, instruction),
            undelivered=(lambda: dispatcher.release_unused(grants)) if grants else None,
        )

    async def withdraw(self, request: Request) -> Answered:
        """Release what is held under a claim's request id: nobody is left to take it."""
        read_query(request.query, ())
        return await self._withdraw([request.parameters["request_id"]])

    async def withdraw_many(self, request: Request) -> Answered:
        """The same for several claims, as a node asks for whose clients have gone away."""
        read_query(request.query, ())
        body: messages.Withdrawals = _withdrawals.decode(request.body, request.body_form)
        return await self._withdraw(body.request_ids)

    async def _withdraw(self, request_ids: Iterable[str]) -> Answered:
        """Release what is held under these request ids, a batch of executions at a time: each
        claim may hold as many as that, and other work goes between.

        What is still on its way into the log is not held yet: that answer finds its connection
        closed.
        """
        results: list[messages.Report] = []
        held: list[Hold] = []
        for request_id in dict.fromkeys(request_ids):
            held += self._services.state.remembered_claim(request_id) or ()
            if len(held) >= messages.MAX_BATCH:
                results += await self._release(held, results)
                held = []
        results += await self._release(held, results)
        return Answered(message=messages.Reports(results=results))

    async def _release(
        self, held: list[Hold], before: Sequence[messages.Report]
    ) -> list[messages.Report]:
        """Release these. An error after others `before` them leaves open what came of the whole."""
        try:
            verdicts = await report_all(self._services.propose, operations.Release, held)
        except Exception as error:
            if not before:
                raise
            raise OutcomeUnknown("only a part of the batch is known to be applied") from error
        return [
            answer_report(messages.encode_execution_id(job, nominal_ms), verdict)
            for (job, nominal_ms, _), verdict in zip(held, verdicts, strict=True)
        ]
